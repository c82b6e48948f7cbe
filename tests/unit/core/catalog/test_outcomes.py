"""The window of outcomes: what it remembers, for how long, and what its digest says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.client.request_ids import uuid7
from coordinator.codec import Codec
from coordinator.core.catalog.outcomes import (
    AHEAD_MS_MAX,
    GROUPS_FORGOTTEN_MAX,
    LEADS_FIRST,
    OutcomeWindow,
    time_of_uuid7,
)
from coordinator.core.model.outcome_records import OutcomesRecorded, RecordedOutcome
from coordinator.core.model.types import Instant, TxnId

WINDOW_MS = 600_000
WALL_MS = 1_800_000_000_000
CODEC = Codec()


def group(cas: int, *ids: str, at_ms: int = WALL_MS) -> bytes:
    outcomes = tuple(
        RecordedOutcome(
            id=one, status="done", fingerprint=1, answer="setting", index_ids=(), cas=cas
        )
        for one in ids
    )
    return CODEC.encode_outcomes(OutcomesRecorded(TxnId(1, cas), cas, at_ms, outcomes))


def window(*groups: tuple[int, bytes], mono_ms: int = 0) -> OutcomeWindow:
    made = OutcomeWindow(CODEC)
    for cas, value in groups:
        made.add(cas, value, Instant(mono_ms, WALL_MS))
    return made


def due(made: OutcomeWindow, wall_ms: int, mono_ms: int = WINDOW_MS + 100_000) -> int:
    return made.due(Instant(mono_ms, wall_ms), WINDOW_MS, WINDOW_MS)


def test_an_outcome_is_found_by_its_id_with_the_transaction_that_brought_it() -> None:
    made = window((5, group(5, "a", "b")), (9, group(9, "c")))
    found = made.find("b")
    assert found is not None
    assert (found.txn, found.outcome.cas) == (TxnId(1, 5), 5)
    assert made.find("d") is None
    assert len(made) == 3


def test_a_master_that_has_just_begun_forgets_nothing() -> None:
    made, late = window((5, group(5, "a"))), Instant(10**9, WALL_MS + 10**9)
    assert made.due(late, WINDOW_MS, WINDOW_MS // LEADS_FIRST - 1) == 0
    assert made.due(late, WINDOW_MS, WINDOW_MS // LEADS_FIRST) == 5


def test_groups_go_when_the_window_has_passed_and_not_before() -> None:
    made = window((5, group(5, "a")), (9, group(9, "b", at_ms=WALL_MS + 1_000)))
    assert due(made, WALL_MS + WINDOW_MS) == 0
    assert due(made, WALL_MS + WINDOW_MS + 1) == 5
    assert due(made, WALL_MS + WINDOW_MS + 1_001) == 9


def test_an_outcome_outlives_the_window_of_the_clients_clock() -> None:
    """Else a repeat would be neither remembered nor too old, and execute again."""
    ahead_ms = 60_000
    made = window((5, group(5, uuid7(WALL_MS + ahead_ms, 0))))
    assert due(made, WALL_MS + WINDOW_MS + ahead_ms) == 0
    assert due(made, WALL_MS + WINDOW_MS + ahead_ms + 1) == 5


def test_a_wall_clock_that_runs_ahead_forgets_nothing() -> None:
    made = window((5, group(5, "a")), mono_ms=1_000)
    assert due(made, WALL_MS + 10**9, mono_ms=1_000 + WINDOW_MS) == 0
    assert due(made, WALL_MS + 10**9, mono_ms=1_001 + WINDOW_MS) == 5


def test_what_a_clock_that_ran_ahead_has_recorded_goes_by_the_monotonic_clock() -> None:
    """Else it would be remembered for as long as the clock was ahead, and what comes after it."""
    made = window((5, group(5, "a", at_ms=WALL_MS + 10**12)), (9, group(9, "b")), mono_ms=1_000)
    assert due(made, WALL_MS, mono_ms=1_000 + WINDOW_MS + AHEAD_MS_MAX) == 0
    assert due(made, WALL_MS, mono_ms=1_001 + WINDOW_MS + AHEAD_MS_MAX) == 9


def test_an_id_of_a_far_year_is_believed_within_a_bound() -> None:
    """A published command may come with any id."""
    made = window((5, group(5, uuid7(WALL_MS + 10**12, 0))))
    assert made.forgotten_ms(5) == WALL_MS + AHEAD_MS_MAX
    assert due(made, WALL_MS + WINDOW_MS + AHEAD_MS_MAX) == 0
    assert due(made, WALL_MS + WINDOW_MS + AHEAD_MS_MAX + 1) == 5


def test_so_many_groups_at_most_are_forgotten_at_once() -> None:
    count = GROUPS_FORGOTTEN_MAX + 10
    made = window(*((cas, group(cas, str(cas))) for cas in range(1, count + 1)))
    assert due(made, WALL_MS + 10**9) == GROUPS_FORGOTTEN_MAX


def test_an_id_that_was_used_again_is_forgotten_with_its_newest_group() -> None:
    made = window((5, group(5, "a")), (9, group(9, "a")))
    assert made.forget(5) == [5]
    found = made.find("a")
    assert found is not None
    assert found.outcome.cas == 9
    assert made.forget(9) == [9]
    assert made.find("a") is None
    assert made.digest == 0


def test_a_window_from_the_middle_of_the_log_is_whole_when_the_rest_is_forgotten() -> None:
    before = window((5, group(5, "a")), (7, group(7, "b")))
    made = OutcomeWindow(CODEC)
    made.begin(before.digest)
    for one in (before, made):
        one.add(9, group(9, "c"), Instant(0, WALL_MS))
    for forgotten, whole in ((0, False), (5, False), (7, True)):
        before.forget(forgotten)
        made.forget(forgotten)
        assert made.agrees(before.digest)
        assert made.is_whole is whole
    assert not made.agrees(before.digest + 1)


def test_a_window_that_begins_where_nothing_is_remembered_is_whole() -> None:
    made = OutcomeWindow(CODEC)
    made.begin(0)
    assert made.is_whole


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.data())
def test_the_digest_that_a_verdict_says_is_that_of_the_window_after_it(
    sizes: list[int], data: st.DataObject
) -> None:
    made = OutcomeWindow(CODEC)
    for cas, size in enumerate(sizes, 1):
        value = group(cas, *(f"{cas}-{n}" for n in range(size)))
        forgotten = data.draw(st.integers(0, cas - 1))
        said = made.digest_after(cas, value, forgotten)
        made.add(cas, value, Instant(0, WALL_MS))
        made.forget(forgotten)
        assert made.digest == said
    restored = OutcomeWindow(CODEC)
    restored.restore(made.kept(), Instant(0, WALL_MS))
    assert restored.digest == made.digest
    assert len(restored) == len(made)
    assert list(restored.kept()) == list(made.kept())
    assert all(restored.find(one) == made.find(one) for g in made.kept() for one in g.ids)


def test_a_changed_byte_changes_the_digest() -> None:
    value = group(5, "a")
    for place in range(len(value)):
        damaged = bytearray(value)
        damaged[place] ^= 1
        made = OutcomeWindow(CODEC)
        assert made.digest_after(5, bytes(damaged), 0) != made.digest_after(5, value, 0)


def test_a_group_is_as_young_as_its_youngest_request() -> None:
    made = window((5, group(5, uuid7(WALL_MS, 0), uuid7(WALL_MS + 60_000, 0))))
    assert made.forgotten_ms(5) == WALL_MS + 60_000
    assert due(made, WALL_MS + WINDOW_MS + 60_000) == 0


def test_the_time_of_an_id_does_not_depend_on_its_case() -> None:
    assert time_of_uuid7(uuid7(WALL_MS, 0).upper()) == WALL_MS

"""What of the log may go: whole transactions, old ones, never the newest, and below a copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import pytest

from coordinator.core.history.retention import Portion, Seen, left_by
from coordinator.core.model.authority_state import SnapshotInfo
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from tests.support.changes import ONE, THREE, TWO, a_transaction, written

LOG = [*ONE, *TWO, *THREE]
NEWEST = THREE[-1].cas
ENDS = {ONE[-1].cas, TWO[-1].cas}
LATER = Cas(NEWEST + 100)
STRANGER = Seen(1, 1, None)


def seen(event: Event, at_ms: int = 1) -> Seen:
    return Seen(at_ms, 10, event)


def portion(above: int = 0, newest: Cas = LATER, size_max: int = 1_000) -> Portion:
    return Portion(Cas(above), newest, before_ms=5, size_max=size_max)


def whole_after(made: Portion, records: list[Seen]) -> int:
    """Return how many of the records may go together, after `made` was offered all of them."""
    for one in records:
        if not made.takes(one):
            break
    return made.whole


@pytest.mark.parametrize("count", range(len(LOG) + 1))
def test_it_ends_where_a_transaction_ends_wherever_the_log_does(count: int) -> None:
    made = portion()
    whole = whole_after(made, [seen(event) for event in LOG[:count]])
    assert whole == max((n for n in (0, 2, 5, 6) if n <= count), default=0)
    assert made.last_cas == (LOG[whole - 1].cas if whole else 0)
    assert made.first_cas == (LOG[0].cas if count else 0)


@pytest.mark.parametrize("young", range(len(LOG)))
def test_it_ends_before_a_transaction_of_which_a_part_is_not_old(young: int) -> None:
    records = [seen(event, 5 if number == young else 1) for number, event in enumerate(LOG)]
    ends = [0, *accumulate((len(ONE), len(TWO)))]
    assert whole_after(portion(), records) == max(n for n in ends if n <= young)


def test_what_is_old_behind_what_is_not_waits_for_it() -> None:
    records = [*map(seen, ONE), Seen(5, 1, None), *map(seen, TWO)]
    assert whole_after(portion(), records) == len(ONE)


def test_the_newest_transaction_never_goes() -> None:
    assert whole_after(portion(newest=NEWEST), [*map(seen, LOG)]) == len(ONE) + len(TWO)
    assert whole_after(portion(newest=TWO[-1].cas), [*map(seen, LOG)]) == len(ONE)
    assert whole_after(portion(newest=ONE[-1].cas), [*map(seen, ONE)]) == 0


@pytest.mark.parametrize("place", range(len(LOG)))
def test_what_no_master_has_committed_goes_with_the_transaction_after_it(place: int) -> None:
    beyond = seen(replace(ONE[0], cas=Cas(LATER + 1)))
    records: list[Seen] = [*map(seen, LOG)]
    records[place:place] = [STRANGER, beyond]
    made = portion()
    assert whole_after(made, records) == len(records)
    assert (made.first_cas, made.last_cas) == (LOG[0].cas, LOG[-1].cas)
    assert whole_after(portion(), [*map(seen, ONE), STRANGER]) == len(ONE)


def test_it_is_full_where_a_transaction_ends_and_not_before() -> None:
    made = portion(size_max=25)
    full = []
    for event in LOG:
        assert made.takes(seen(event))
        full.append(made.is_full)
    assert full == [False, False, False, False, True, True]


def test_what_is_archived_already_is_not_counted_as_a_transaction() -> None:
    made = portion(above=TWO[-1].cas)
    assert whole_after(made, [*map(seen, LOG)]) == len(LOG)
    assert (made.first_cas, made.last_cas) == (THREE[0].cas, THREE[-1].cas)


def test_a_transaction_without_its_beginning_is_no_end() -> None:
    torn = a_transaction(7, 20, written("a", "1"), written("b", "1"))[1:]
    assert whole_after(portion(), [*map(seen, ONE), *map(seen, torn)]) == len(ONE)


@dataclass(frozen=True)
class Part:
    begin: Offset
    end: Offset
    last_cas: Cas


PARTS = [Part(Offset(10 * n), Offset(10 * n + 10), Cas(100 * n + 90)) for n in range(4)]


def copy_at(cas: int) -> SnapshotInfo:
    return SnapshotInfo(1, Cas(cas), 0, Offset(0), Offset(0), 0)


@pytest.mark.parametrize(
    ("low", "cas", "ends"),
    [
        (0, 90, []),
        (0, 91, [10]),
        (0, 190, [10]),
        (0, 300, [10, 20, 30]),
        (0, 1_000, [10, 20, 30, 40]),
        (20, 300, [30]),
        (25, 300, [30]),
        (40, 1_000, []),
    ],
)
def test_what_goes_is_in_the_topic_and_below_the_copy(low: int, cas: int, ends: list[int]) -> None:
    assert [one.end for one in left_by(PARTS, Offset(low), copy_at(cas))] == ends


def test_without_a_copy_nothing_goes() -> None:
    assert left_by(PARTS, Offset(0), None) == ()

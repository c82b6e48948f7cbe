"""What the board of timestamps takes, ignores and refuses; and how lags are counted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.codec import Codec, encode
from coordinator.core.catalog.state import evolve
from coordinator.core.consensus.effects import Ask, Note, SendDeadLetter
from coordinator.core.consensus.inputs import StabilityRequired, TimestampEntry, TimestampsRead
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import Mutation, Unreadable
from coordinator.core.model.stream_records import (
    SYNC_MISSING,
    ConsolidatedStability,
    HwHeartbeat,
    PromotionRequested,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.types import Instant
from coordinator.core.model.vectors import Places, Vector
from coordinator.core.node import Node
from coordinator.core.timestamps.board import (
    EMPTY,
    ENQUIRIES_MAX,
    RESTARTS_MAX,
    Board,
    Record,
    fold,
    lag,
    of,
)
from coordinator.core.timestamps.board import has as has_places
from tests.support.indexes import make_watermarks

TOP = 2**64 - 1


def at(ms: int) -> Instant:
    return Instant(ms, 1_000_000 + ms)


def stable(number: int, *seqnos: int, bucket: str = "b", at_ms: int = 0) -> StabilityTimestamp:
    seqnos = seqnos or (number,)
    vector = Vector([7] * len(seqnos), seqnos)
    return StabilityTimestamp(bucket, number, *vector.to_bytes(), at_ms or number * 1_000)


def restart(number: int, *vbuckets: int) -> RestartTimestamp:
    vbuuids, seqnos = Vector([7] * len(vbuckets), [number] * len(vbuckets)).to_bytes()
    return RestartTimestamp(
        bucket="b",
        number=number,
        round=0,
        vbuckets=vbuckets,
        vbuuids=vbuuids,
        seqnos=seqnos,
        branched=(),
        projectors=(0,),
        reason="closed",
        at_ms=number,
    )


def enquiry(number: int) -> RollbackEnquiry:
    return RollbackEnquiry(
        bucket="b",
        number=number,
        vbucket=3,
        vbuuid=7,
        seqno=10,
        seen_vbuuid=7,
        seen_seqno=10,
        projector=0,
        connection=99,
        reason=SYNC_MISSING,
        at_ms=number,
    )


def folded(*records: Record, board: Board = EMPTY) -> Board:
    for read_ms, record in enumerate(records):
        board, problem, _ = fold(board, record, at(read_ms))
        assert problem == ""
    return board


def number_of(board: Board, bucket: str = "b") -> int:
    held = of(board, bucket).stability
    return held.record.number if held else 0


@given(st.lists(st.integers(1, 20), max_size=30))
def test_the_newest_number_is_held_and_never_falls(numbers: list[int]) -> None:
    board, highest = EMPTY, 0
    for number in numbers:
        board = folded(stable(number), board=board)
        highest = max(highest, number)
        assert number_of(board) == highest


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_records_that_are_written_twice_leave_the_same_board(
    numbers: list[int], chance: random.Random
) -> None:
    once = [
        record
        for number in sorted(set(numbers))
        for record in (stable(number), restart(2 * number, 1), enquiry(2 * number + 1))
    ]
    twice = list(once)
    for place in sorted(chance.sample(range(len(once)), len(once) // 2), reverse=True):
        twice[place : place + 1] = twice[max(0, place - 3) : place + 1]
    assert shown(folded(*twice)) == shown(folded(*once))


def shown(board: Board) -> Any:
    known = of(board, "b")
    held = known.stability.record if known.stability else None
    rest = [[read.record for read in reads] for reads in (known.restarts, known.enquiries)]
    return held, *rest, known.backwards


def test_a_record_has_the_time_at_which_it_was_read() -> None:
    board = folded(stable(1), stable(2), stable(2), stable(1))
    held = of(board, "b").stability
    assert held is not None
    assert (held.record.number, held.at) == (2, at(1))


def test_buckets_are_numbered_for_themselves_and_may_come_in_one_record() -> None:
    both = ConsolidatedStability((stable(5, bucket="a"), stable(2, bucket="b")))
    board = folded(stable(9), both)
    assert (number_of(board, "a"), number_of(board, "b"), number_of(board, "c")) == (5, 9, 0)


@pytest.mark.parametrize(
    "late",
    [stable(1, at_ms=10_000), stable(8, at_ms=10_000), stable(9, 4), stable(9, 4, at_ms=1)],
)
def test_numbers_that_begin_again_are_not_taken_and_are_told_once(late: StabilityTimestamp) -> None:
    board = folded(stable(9))
    after, problem, note = fold(board, late, at(5))
    assert (number_of(after), problem) == (9, "")
    assert of(after, "b").backwards == late
    assert "not above 9" in note
    again, _, note = fold(after, replace(late, at_ms=late.at_ms + 1), at(6))
    assert note == ""
    assert of(again, "b").backwards == replace(late, at_ms=late.at_ms + 1)
    assert of(folded(stable(10), board=again), "b").backwards is None


@pytest.mark.parametrize("repeat", [stable(9), stable(8), stable(1)])
def test_a_repeat_is_no_beginning_again(repeat: StabilityTimestamp) -> None:
    board = folded(stable(9))
    assert fold(board, repeat, at(5)) == (board, "", "")


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (replace(stable(1), number=0), "number 0"),
        (replace(stable(1), bucket=""), "no bucket"),
        (replace(stable(1), vbuuids=b""), "no vector"),
        (replace(stable(1), vbuuids=b"", seqnos=b""), "no vector"),
        (replace(stable(1), vbuuids=b"1234567", seqnos=b"1234567"), "no vector"),
        (ConsolidatedStability((stable(2), replace(stable(3), seqnos=b""))), "no vector"),
        (replace(restart(1, 4, 5), vbuckets=(4,)), "no vector"),
        (replace(restart(1, 4), number=-1), "number -1"),
        (replace(enquiry(1), bucket=""), "no bucket"),
    ],
)
def test_a_malformed_record_changes_nothing_and_says_why(record: Record, what: str) -> None:
    board, problem, _ = fold(EMPTY, record, at(0))
    assert board == EMPTY
    assert what in problem


def test_the_last_restarts_and_enquiries_are_kept() -> None:
    board = folded(
        *(restart(n, 1, 2) for n in range(1, RESTARTS_MAX + 4)),
        *(enquiry(n) for n in range(1, ENQUIRIES_MAX + 6)),
        restart(2, 9),
        enquiry(5),
    )
    known = of(board, "b")
    assert [r.record.number for r in known.restarts] == list(range(4, RESTARTS_MAX + 4))
    assert [r.record.number for r in known.enquiries] == list(range(6, ENQUIRIES_MAX + 6))
    assert known.stability is None
    assert known.dropped == 5, "more was said of both than is kept"
    assert of(folded(restart(1), enquiry(1)), "b").dropped == 0


def test_restart_timestamps_that_begin_again_are_told_of_once() -> None:
    board = folded(restart(2**63 - 1, 4))
    later = replace(restart(1, 4), at_ms=restart(2**63 - 1).at_ms + 1)
    board, problem, note = fold(board, later, at(0))
    assert (problem, note) == (
        "",
        f"restart timestamps of b begin again at 1, not above {2**63 - 1}: they are ignored",
    )
    assert fold(board, replace(later, number=2), at(0)).note == ""
    assert fold(board, restart(2**63 - 1, 4), at(0)) == (board, "", ""), "a repeat says nothing"


# -- in a node -----------------------------------------------------------------------------------


def test_a_node_makes_dead_letters_of_what_is_of_no_use_and_goes_on() -> None:
    node = Node(
        NodeConfig(node=1, roster=(1,), address="", pid=1, incarnation=1, cluster_id="c"), Codec()
    )
    bad = replace(stable(7), seqnos=b"")
    entries = (
        TimestampEntry("stability", 4, Unreadable("bad_body: torn"), b"raw"),
        TimestampEntry("stability", 5, bad, encode(bad)),
        TimestampEntry("stability", 6, stable(3), encode(stable(3))),
        TimestampEntry("stability", 7, stable(2, at_ms=99_000), b""),
    )
    effects = node.step(Instant(5, 77), TimestampsRead(entries))
    letters = [effect.dead_letter for effect in effects if isinstance(effect, SendDeadLetter)]
    assert [(x.topic, x.partition, x.offset, x.value, x.at_ms) for x in letters] == [
        ("stability", 0, 4, b"raw", 77),
        ("stability", 0, 5, encode(bad), 77),
    ]
    assert letters[0].reason == "bad_body: torn"
    assert [e for e in effects if isinstance(e, Note)]
    assert number_of(node.timestamps) == 3


# -- lags ----------------------------------------------------------------------------------------


def hw(indexer: int, places: list[tuple[int, int]], at_ms: int = 0, last: int = 0) -> HwHeartbeat:
    vector = Vector([vbuuid for vbuuid, _ in places], [seqno for _, seqno in places])
    return make_watermarks(indexer, vector, last_stability=last, at_ms=at_ms)


def test_a_node_asks_for_a_timestamp_once_for_all_scans_that_wait() -> None:
    node = Node(
        NodeConfig(node=1, roster=(1,), address="", pid=1, incarnation=1, cluster_id="c"), Codec()
    )
    bucket = Bucket("travel", 64)
    node.follower.state = evolve(node.state, [(Mutation("Changed", bucket.key, b"", bucket), 1)])
    asked = []
    for at_ms, name in ((0, "travel"), (1, "travel"), (500, "travel"), (600, "unknown")):
        effects = node.step(Instant(9_000 + at_ms, 7_000 + at_ms), StabilityRequired(name, 40))
        asked += [effect.record for effect in effects if isinstance(effect, Ask)]
    assert asked == [PromotionRequested("travel", 40, at) for at in (7_000, 7_500)]


PLACES = {0: (7, 5), 3: (TOP, 0)}


@pytest.mark.parametrize(
    ("vbuuids", "seqnos", "has"),
    [
        ([7, 7], [5, 0], True),
        ([7, 7], [TOP, 0], True),
        ([7, 7], [4, 9], False),
        ([8, 7], [9, 9], False),
        ([], [], False),
    ],
)
def test_a_timestamp_has_places_or_not(vbuuids: list[int], seqnos: list[int], has: bool) -> None:
    vector = Vector(vbuuids, seqnos)
    record = StabilityTimestamp("b", 1, *vector.to_bytes(), 0)
    assert has_places(record, Places.of(PLACES)) is has
    assert not has_places(None, Places.of(PLACES))


@pytest.mark.parametrize("places", [{-1: (1, 1)}, {0: (-1, 1)}, {0: (1, 2**64)}, {2**40: (1, 1)}])
def test_what_is_no_place_is_refused(places: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"unsigned|vbucket"):
        Places.of(places)


def test_a_lag_counts_what_the_furthest_indexer_has_beyond_the_timestamp() -> None:
    timestamp = stable(1, 10, 20, 0, at_ms=5_000)
    digest = Vector.from_bytes(timestamp.vbuuids, timestamp.seqnos).digest()
    first = hw(1, [(7, 15), (7, 18), (8, 4)], 6_000, digest)
    second = hw(2, [(7, 12), (7, 21), (0, 0)], 6_500)
    found = lag(timestamp, [second, first])
    assert found is not None
    assert found.indexers == ((1, 9, 2, 0, True, digest, 0), (2, 3, 0, 0, False, 0, 0))
    assert (found.high, found.seqnos, found.ms) == (15 + 21 + 4, 5 + 1 + 4, 1_500)


def test_positions_of_other_branches_are_counted_and_not_compared() -> None:
    found = lag(stable(1, 10, 10), [hw(1, [(8, 15), (8, 5)])])
    assert found is not None
    assert found.indexers == ((1, 0, 0, 2, False, 0, 0),)
    assert (found.seqnos, found.ms) == (0, 0)


def test_an_idle_bucket_has_no_lag_however_old_its_timestamp_is() -> None:
    found = lag(stable(1, 10, at_ms=1), [hw(1, [(7, 10)], at_ms=10**9)])
    assert found is not None
    assert (found.seqnos, found.ms) == (0, 0)


def test_sums_of_the_largest_seqnos_do_not_overflow() -> None:
    found = lag(stable(1, 0, 0), [hw(1, [(7, TOP), (7, TOP)])])
    assert found is not None
    assert (found.high, found.seqnos) == (2 * TOP, 2 * TOP)


def test_without_a_timestamp_everything_is_beyond_it() -> None:
    found = lag(None, [hw(1, [(7, 3), (7, 4)])])
    assert found is not None
    assert (found.high, found.seqnos, found.ms) == (7, 7, 0)


@pytest.mark.parametrize(
    "beats", [[], [hw(1, [(7, 1)])], [replace(hw(1, [(7, 1)] * 2), vbuuids=b"")]]
)
def test_without_watermarks_of_this_life_of_the_bucket_no_lag_is_known(
    beats: list[HwHeartbeat],
) -> None:
    assert lag(stable(1, 1, 2), beats) is None

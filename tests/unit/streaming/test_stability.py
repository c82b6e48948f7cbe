"""What a bucket's streams do to its ownership and its timestamps, case by case."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.core.model.stream_records import (
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.bucket_state import HEAD
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.announcements import (
    HURRIED_MS_MAX,
    HURRIED_PERIOD_MS,
    INDEXERS_MAX,
)
from streaming.stability.fold import (
    QUESTIONS_MAX,
    BucketState,
    Control,
    Output,
    Owner,
    fold,
    owners,
    pack,
    unpack,
)
from streaming.stability.ownership import CONNECTIONS_MAX
from streaming.stability.positions import EARLY_PER_VBUCKET_MAX
from tests.support.stability_bench import (
    TOP,
    A,
    B,
    Bench,
    asked,
    batch,
    begin,
    closed,
    end,
    heartbeat,
    hurried,
    log,
    sync,
)

SETTINGS = TimestampSettings()
HELD, UNMATCHED = SETTINGS.begin_held_ms, SETTINGS.end_unmatched_ms
MISSING, PERIOD = SETTINGS.sync_missing_ms, SETTINGS.period_ms


def restarts(outputs: list[Output]) -> list[tuple[str, tuple[int, ...]]]:
    return [(o.reason, o.vbuckets) for o in outputs if isinstance(o, RestartTimestamp)]


def enquiries(outputs: list[Output]) -> list[tuple[str, int]]:
    return [(o.reason, o.vbucket) for o in outputs if isinstance(o, RollbackEnquiry)]


def stabilities(outputs: list[Output]) -> list[StabilityTimestamp]:
    return [o for o in outputs if isinstance(o, StabilityTimestamp)]


def positions(output: RestartTimestamp) -> list[tuple[int, int]]:
    vector = Vector.from_bytes(output.vbuuids, output.seqnos)
    return list(zip(vector.vbuuids.tolist(), vector.seqnos.tolist(), strict=True))


# -- ownership -------------------------------------------------------------------------------------

X, Y, Z = 11, 12, 13
"""Connections."""

OWNERSHIP: dict[str, tuple[list[Control], int | None]] = {
    "a BEGIN owns what nobody has": ([begin(0, X, 1)], X),
    "a BEGIN of another projector is held": (
        [begin(0, X, 1), begin(0, Y, 1, number=2, projector=1)],
        X,
    ),
    "until the END of the owner": (
        [begin(0, X, 1), begin(0, Y, 1, number=2, projector=1), end(0, X, 2)],
        Y,
    ),
    "or until the owner's connection is closed": (
        [begin(0, X, 1), begin(0, Y, 1, number=2, projector=1), closed(X, 2)],
        Y,
    ),
    "a closed connection ends nothing that it has lost": (
        [begin(0, X, 1), begin(0, Y, 1, number=2), closed(X, 2)],
        Y,
    ),
    "a newer generation of the same projector takes over at once": (
        [begin(0, X, 1), begin(0, Y, 1, number=2)],
        Y,
    ),
    "an older generation is late": ([begin(0, Y, 1, number=2), begin(0, X, 1)], Y),
    "an older generation is late after the END, too": (
        [begin(0, Y, 1, number=2, projector=1), end(0, Y, 2), begin(0, X, 1)],
        None,
    ),
    "the same generation of another projector is held": (
        [begin(0, X, 1), begin(0, Y, 1, projector=1)],
        X,
    ),
    "no generation is no older one": (
        [begin(0, X, 1), begin(0, Y, 1, number=0, projector=1), end(0, X, 2)],
        Y,
    ),
    "of those that are held the newest generation owns": (
        [
            begin(0, X, 1),
            begin(0, Z, 1, number=3, projector=2),
            begin(0, Y, 1, number=2, projector=1),
            end(0, X, 2),
        ],
        Z,
    ),
    "what is held and ends is not held any more": (
        [begin(0, X, 1), begin(0, Y, 1, number=2, projector=1), end(0, Y, 2), end(0, X, 2)],
        None,
    ),
    "what is held and is closed is not held any more": (
        [begin(0, X, 1), begin(0, Y, 1, number=2, projector=1), closed(Y, 2), closed(X, 2)],
        None,
    ),
    "an END before its BEGIN ends it": ([end(0, X, 2), begin(0, X, 1)], None),
    "a connection that is closed before its BEGIN never owns": (
        [closed(X, 9), begin(0, X, 1)],
        None,
    ),
    "a BEGIN that is over is not held": (
        [begin(0, X, 1), end(0, Y, 2), begin(0, Y, 1, number=2, projector=1), end(0, X, 2)],
        None,
    ),
    "a vbucket comes back on the same connection": (
        [begin(0, X, 1), end(0, X, 2), begin(0, X, 3)],
        X,
    ),
    "an END of the stream before it is late": (
        [begin(0, X, 1), begin(0, X, 3), end(0, X, 2)],
        X,
    ),
    "the END of the second stream waits for its BEGIN": (
        [begin(0, X, 1), end(0, X, 2), end(0, X, 4), begin(0, X, 3)],
        None,
    ),
    "an END belongs to the first BEGIN before it": (
        [end(0, X, 2), begin(0, X, 1), begin(0, X, 3)],
        X,
    ),
    "two ENDs wait for two BEGINs": (
        [end(0, X, 4), end(0, X, 2), begin(0, X, 1), begin(0, X, 3)],
        None,
    ),
    "a BEGIN that is read twice counts once": (
        [begin(0, X, 1), end(0, X, 2), begin(0, X, 1)],
        None,
    ),
    "other kinds of streams own nothing": ([begin(0, X, 1, kind="catch-up")], None),
    "other kinds of streams end nothing": (
        [begin(0, X, 1), end(0, X, 2, kind="backfill"), closed(X, 3, kind="backfill")],
        X,
    ),
    "another vbucket is another matter": (
        [begin(0, X, 1), begin(1, X, 2), end(1, X, 3)],
        X,
    ),
}


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("case", OWNERSHIP)
def test_ownership(case: str, together: bool) -> None:
    records, owner = OWNERSHIP[case]
    bench = Bench()
    if together:
        bench.fold(records)
    else:
        bench.read(*records)
    assert bench.owners[0] == owner


def test_a_closed_connection_gives_up_exactly_what_it_owned() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(1, X, 2), begin(2, X, 3), end(1, X, 4))
    bench.read(begin(2, Y, 1, number=2), begin(3, Y, 2, number=2), closed(X, 9))
    assert bench.owners == [None, None, Y, Y]


def test_owners_are_told_for_display() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(2, X, 2), begin(3, Y, 1, number=5, projector=1))
    assert owners(bench.state) == [Owner(X, 0, 1, (0, 2)), Owner(Y, 1, 5, (3,))]


# -- SYNC ------------------------------------------------------------------------------------------


def test_a_sync_of_the_owner_moves_the_current_timestamp() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 5), sync(0, X, 3, TOP))
    assert (bench.vbuuids[0], bench.seqnos) == (A, [TOP, 0, 0, 0])


def test_a_lower_sync_of_the_same_branch_is_ignored() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 5), sync(0, X, 3, 4))
    assert bench.seqnos[0] == 5


def test_syncs_of_others_do_not_count() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, Y, 2, 50), sync(0, X, 2, 5))
    assert bench.seqnos[0] == 5


def test_syncs_that_come_before_their_begin_count_when_it_comes() -> None:
    bench = Bench()
    bench.read(sync(0, X, 3, 7), sync(0, X, 2, 5))
    assert bench.seqnos[0] == 0
    bench.read(begin(0, X, 1))
    assert bench.seqnos[0] == 7
    assert len(bench.state.early) == 0


def test_a_sync_that_was_sent_before_the_begin_is_nothing() -> None:
    bench = Bench()
    bench.read(sync(0, X, 3, 7), begin(0, X, 5), sync(0, X, 4, 9))
    assert bench.seqnos[0] == 0
    assert len(bench.state.early) == 0


def test_what_a_held_connection_says_counts_when_it_owns() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(0, Y, 1, number=2, projector=1), sync(0, Y, 2, 7))
    assert bench.seqnos[0] == 0
    bench.read(end(0, X, 2))
    assert bench.seqnos[0] == 7


def test_who_has_ended_is_heard_until_the_next_owner_comes() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), end(0, X, 5), sync(0, X, 4, 7), sync(0, X, 6, 9))
    assert bench.seqnos[0] == 7
    bench.read(begin(0, Y, 1, number=2), sync(0, X, 4, 8))
    assert bench.seqnos[0] == 7


def test_a_begin_counts_where_nothing_is_known() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1, 40))
    assert bench.seqnos[0] == 40
    bench.read(begin(0, Y, 1, 90, number=2))
    assert bench.seqnos[0] == 40
    bench.read(sync(0, Y, 2, 95))
    assert bench.seqnos[0] == 95


def test_syncs_that_nobody_begins_are_bounded_and_forgotten() -> None:
    bench = Bench()
    bench.fold([sync(v, 100 + c, o, 1) for v in range(4) for c in range(40) for o in (1, 2)])
    assert len(bench.state.early) == EARLY_PER_VBUCKET_MAX * 4
    bench.tick(MISSING)
    assert len(bench.state.early) == 0


def test_a_vbucket_that_is_streamed_without_a_begin_counts_as_lost() -> None:
    bench = Bench()
    bench.read(sync(2, X, 7, 5))
    assert restarts(bench.tick(MISSING - 1)) == []
    assert restarts(bench.tick(1)) == [("no_owner", (2,))]


# -- branches --------------------------------------------------------------------------------------


def test_the_owner_goes_over_to_a_branch_that_keeps_what_was_sent() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), log(0, (B, 10), (A, 0)), sync(0, X, 3, 12, B))
    assert (bench.vbuuids[0], bench.seqnos[0]) == (B, 12)


@pytest.mark.parametrize("seqno", [4, 12])
def test_a_branch_without_what_was_sent_is_enquired_about_once(seqno: int) -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), log(0, (B, 9), (A, 0)))
    found = bench.read(sync(0, X, 3, seqno, B))
    assert enquiries(found) == [("seqno_regressed", 0)]
    assert isinstance(found[0], RollbackEnquiry)
    assert (found[0].vbuuid, found[0].seqno) == (A, 10)
    assert (found[0].seen_vbuuid, found[0].seen_seqno) == (B, seqno)
    assert (found[0].connection, found[0].projector, found[0].number) == (X, 0, 1)
    assert (bench.vbuuids[0], bench.seqnos[0]) == (B, seqno)
    assert enquiries(bench.read(sync(0, X, 4, seqno + 1, B))) == []
    assert enquiries(bench.tick(HELD)) == []


def test_a_branch_that_no_log_names_waits_for_it() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10))
    assert bench.read(sync(0, X, 3, 12, B)) == []
    assert (bench.vbuuids[0], bench.seqnos[0]) == (A, 10)
    assert enquiries(bench.tick(HELD - 1)) == []
    bench.read(log(0, (B, 11), (A, 0)))
    assert (bench.vbuuids[0], bench.seqnos[0]) == (B, 12)
    assert enquiries(bench.tick(HELD)) == []


def test_a_branch_that_no_log_names_is_enquired_about_past_the_limit() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), sync(0, X, 3, 5, B))
    assert enquiries(bench.tick(HELD - 1, sync(0, X, 4, 6, B))) == []
    assert enquiries(bench.tick(1, sync(0, X, 5, 7, B))) == [("seqno_regressed", 0)]
    assert enquiries(bench.tick(HELD)) == []


def test_a_begin_on_a_lost_branch_is_enquired_about_at_once() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), log(0, (B, 4), (A, 0)))
    found = bench.read(begin(0, Y, 1, 4, number=2, vbuuid=B))
    assert enquiries(found) == [("seqno_regressed", 0)]


def test_branches_within_one_batch_are_taken_in_turn() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), log(0, (B, 9), (A, 0)))
    found = bench.fold([sync(0, X, 3, 4, B), sync(0, X, 2, 10)])
    assert enquiries(found) == [("seqno_regressed", 0)]
    assert isinstance(found[0], RollbackEnquiry)
    assert (found[0].seen_vbuuid, found[0].seen_seqno) == (B, 4)
    assert (bench.vbuuids[0], bench.seqnos[0]) == (B, 4)


def test_a_lower_seqno_of_a_branch_that_keeps_all_is_waited_out() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), log(0, (B, 12), (A, 0)))
    assert enquiries(bench.read(begin(0, Y, 1, 5, number=2, vbuuid=B), sync(0, Y, 2, 5, B))) == []
    assert (bench.vbuuids[0], bench.seqnos[0]) == (A, 10)
    bench.read(sync(0, Y, 3, 14, B))
    assert (bench.vbuuids[0], bench.seqnos[0]) == (B, 14)


def test_what_a_store_refuses_is_enquired_about_and_not_asked_for_again() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), closed(X, 3))
    found = bench.read(end(0, Y, 1, reason="rollback", seqno=10))
    assert enquiries(found) == [("stream_refused", 0)]
    assert bench.read(end(0, Z, 1, reason="rollback", seqno=10)) == []
    assert restarts(bench.tick(HELD)) == []
    assert restarts(bench.tick(MISSING)) == []
    bench.read(begin(0, Y, 5, number=3), closed(Y, 6))
    assert restarts(bench.tick(HELD)) == [("no_owner", (0,))]


# -- limits ----------------------------------------------------------------------------------------


def test_a_begin_that_is_held_too_long_takes_over() -> None:
    bench = Bench()
    bench.fold([begin(v, X, v + 1) for v in range(4)] + [sync(1, X, 9, 20), sync(2, X, 10, 30)])
    bench.read(begin(1, Y, 1, 15, number=2, projector=1), begin(2, Y, 2, 30, number=2, projector=1))
    assert restarts(bench.tick(HELD - 1)) == []
    found = bench.tick(1)
    assert restarts(found) == [("begin_held", (1, 2))]
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 20), (A, 30)]
    assert (found[0].projectors, found[0].round, found[0].number) == ((0,), 0, 1)
    assert bench.owners == [X, Y, Y, X]
    assert bench.tick(HELD) == []


def test_a_begin_that_takes_over_on_a_lost_branch_is_enquired_about_at_once() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), log(0, (B, 4), (A, 0)))
    bench.read(begin(0, Y, 1, 4, number=2, projector=1, vbuuid=B))
    found = bench.tick(HELD)
    assert restarts(found) == [("begin_held", (0,))]
    assert enquiries(found) == [("seqno_regressed", 0)]


def test_who_takes_over_is_heard_with_what_it_said_while_it_waited() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 10), begin(0, Y, 1, 10, number=2, projector=1))
    bench.read(sync(0, Y, 2, 30))
    found = bench.tick(HELD)
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 10)]
    assert stabilities(found)[0].seqnos == Vector([A, 0, 0, 0], [30, 0, 0, 0]).to_bytes()[1]


def test_a_connection_waits_once() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(0, Y, 1, projector=1), begin(0, Y, 3, projector=1))
    assert [held.ordinal for held in bench.state.held[0]] == [3]


def test_what_comes_late_from_who_was_silent_is_ignored() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(0, Y, 1, projector=1))
    bench.tick(HELD)
    bench.read(sync(0, X, 5, 99), end(0, X, 6), closed(X, 7), begin(0, X, 1))
    assert (bench.owners[0], bench.seqnos[0]) == (Y, 0)
    assert restarts(bench.tick(UNMATCHED)) == []
    assert (bench.state.early_ends, len(bench.state.early)) == ({}, 0)


def test_an_end_without_begin_is_a_restart() -> None:
    bench = Bench()
    bench.read(end(0, X, 2), end(3, X, 3))
    assert restarts(bench.tick(UNMATCHED - 1)) == []
    assert restarts(bench.tick(1)) == [("end_unmatched", (0, 3))]
    assert restarts(bench.tick(UNMATCHED)) == []


def test_each_end_without_begin_has_its_own_time() -> None:
    bench = Bench()
    bench.read(end(0, X, 2))
    bench.tick(UNMATCHED - 1)
    bench.read(end(0, X, 4))
    bench.read(end(3, X, 8))
    bench.tick(0, end(3, X, 7))
    assert restarts(bench.tick(1)) == [("end_unmatched", (0,))]
    bench.read(begin(0, X, 3))
    assert bench.owners[0] is None


def test_an_end_without_begin_does_not_matter_if_the_owner_is_heard() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), end(0, Y, 2))
    bench.tick(1, sync(0, X, 2, 1))
    assert restarts(bench.tick(UNMATCHED)) == []
    bench.read(end(0, Y, 4))
    assert restarts(bench.tick(UNMATCHED)) == [("end_unmatched", (0,))]


def test_a_vbucket_without_owner_is_asked_for_once_then_rarely() -> None:
    bench = Bench()
    bench.fold([begin(v, X, v + 1, 10 * v) for v in range(4)])
    bench.read(end(1, X, 8), end(2, X, 9))
    assert restarts(bench.tick(HELD - 1)) == []
    found = bench.tick(1)
    assert restarts(found) == [("no_owner", (1, 2))]
    assert restarts(bench.tick(MISSING - 1)) == []
    assert restarts(bench.tick(1)) == [("no_owner", (1, 2))]
    assert restarts(bench.tick(MISSING)) == []
    bench.read(begin(1, Y, 1, number=2), end(1, Y, 2))
    assert restarts(bench.tick(HELD)) == [("no_owner", (1, 2))]


def test_a_vbucket_that_gets_an_owner_in_time_is_not_asked_for() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), end(0, X, 2))
    bench.tick(HELD - 1, begin(0, Y, 1, number=2))
    assert restarts(bench.tick(HELD)) == []


def test_a_silent_owner_is_enquired_about_once_until_it_speaks() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1, 3), begin(1, X, 2))
    assert enquiries(bench.tick(MISSING - 1, sync(1, X, 3, 0))) == []
    found = bench.tick(1)
    assert enquiries(found) == [("sync_missing", 0)]
    assert enquiries(bench.tick(MISSING - 2)) == []
    bench.read(sync(0, X, 4, 3))
    assert enquiries(bench.tick(MISSING)) == [("sync_missing", 0), ("sync_missing", 1)]


def test_time_begins_with_the_first_tick() -> None:
    bench = Bench()
    bench.now_ms, bench.state = 0, BucketState.new("b", 4)
    bench.read(begin(0, X, 1), begin(0, Y, 1, projector=1), end(1, X, 9), begin(2, X, 2))
    bench.read(end(2, X, 3), sync(3, Z, 1, 1), asked(1, (5,)))
    assert restarts(bench.tick(10**12)) == []
    assert [reason for reason, _ in restarts(bench.tick(HELD))] == [
        "begin_held",
        "end_unmatched",
        "no_owner",
    ]


def test_limits_stand_still_while_nobody_watches() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(0, Y, 1, projector=1), end(1, X, 9), begin(2, X, 2))
    bench.read(end(2, X, 3), sync(3, Z, 1, 1), asked(1, (5,)))
    bench.tick(1_000)
    before = bench.state
    late = 10 * MISSING
    found = bench.tick(late, begin(3, X, 12), end(3, X, 13), unwatched_ms=late)
    assert (restarts(found), enquiries(found)) == ([], [])
    assert bench.state.places["lost_ms"].tolist()[2:] == [
        before.places["lost_ms"][2] + late,
        bench.now_ms,
    ]
    assert restarts(bench.tick(HELD - 1_001)) == []
    assert restarts(bench.tick(1)) == [
        ("begin_held", (0,)),
        ("end_unmatched", (1,)),
        ("no_owner", (2,)),
    ]
    assert restarts(bench.tick(1_000)) == [("no_owner", (3,))]
    assert restarts(bench.tick(1_000)) == [("bootstrap", (0, 1, 2, 3))]


def test_a_bucket_goes_on_from_its_last_stability_timestamp() -> None:
    bench = Bench()
    first = stabilities(bench.tick(1, begin(0, X, 1), sync(0, X, 2, 50)))
    bench.state = BucketState.new("b", 4).caught_up(first[0], 0)
    assert bench.state.current == bench.state.stable == Vector([A, 0, 0, 0], [50, 0, 0, 0])
    assert bench.tick(PERIOD, begin(0, Y, 1, 30, number=2), sync(0, Y, 2, 40)) == []
    found = stabilities(bench.tick(1, sync(0, Y, 3, 60)))
    assert [timestamp.number for timestamp in found] == [2]
    assert BucketState.new("b", 5).caught_up(first[0], 0).stability_number == 1


def test_limits_are_looked_at_when_there_is_a_tick() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(0, Y, 1, projector=1), end(1, X, 9))
    bench.now_ms += 10 * MISSING
    assert bench.fold([]) == []


def test_nothing_changes_when_nothing_comes() -> None:
    bench = Bench()
    bench.tick(1, begin(0, X, 1), sync(0, X, 2, 5))
    before = bench.state
    assert bench.tick(PERIOD) == []
    assert bench.fold([]) == []
    assert bench.state is before


# -- restart ---------------------------------------------------------------------------------------


def test_a_restart_is_where_the_slowest_indexer_is() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), begin(1, X, 2), sync(0, X, 3, 50))
    bench.read(heartbeat(1, Vector([A] * 4, [40, 2, 0, 0])))
    bench.read(heartbeat(2, Vector([A] * 4, [60, 3, 0, 0])))
    bench.read(heartbeat(3, Vector.zero(4)))
    bench.read(heartbeat(4, Vector([A] * 4, [1, 1, 1, 1]), indexes=()))
    bench.read(log(1, (B, 2), (A, 0)), end(0, X, 8), end(1, X, 9))
    found = bench.tick(HELD)[0]
    assert isinstance(found, RestartTimestamp)
    assert positions(found) == [(A, 40), (A, 2)]
    assert found.branched == (1,)


def test_a_restart_request_is_answered_when_all_participants_are_known() -> None:
    bench = Bench()
    bench.read(heartbeat(1, Vector([A] * 4, [4, 5, 6, 7])))
    assert bench.read(asked(77, (1, 2))) == []
    found = bench.read(heartbeat(2, Vector([A, A, A, 0], [9, 3, 9, 0])))
    assert restarts(found) == [("bootstrap", (0, 1, 2, 3))]
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 4), (A, 3), (A, 6), (0, 0)]
    assert found[0].round == 77
    assert bench.tick(SETTINGS.heartbeat_stale_ms) == []


def test_who_has_only_just_come_sends_nobody_back_to_the_beginning() -> None:
    bench = Bench()
    bench.read(heartbeat(1, Vector([A] * 4, [4, 5, 6, 7])), heartbeat(2, Vector.zero(4)))
    found = bench.read(asked(77, (1, 2)))[0]
    assert isinstance(found, RestartTimestamp)
    assert positions(found) == [(A, 4), (A, 5), (A, 6), (A, 7)]


def test_a_restart_request_is_answered_without_who_stays_silent() -> None:
    bench = Bench()
    bench.read(asked(77, (1, 2)), asked(77, (1, 2)))
    assert restarts(bench.tick(4_999, heartbeat(1, Vector([A] * 4, [4, 5, 6, 7])))) == []
    found = bench.tick(1)
    assert restarts(found) == [("bootstrap", (0, 1, 2, 3))]
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 4), (A, 5), (A, 6), (A, 7)]


def test_what_a_participant_said_long_ago_is_not_taken_for_an_answer() -> None:
    bench = Bench()
    bench.read(heartbeat(1, Vector([A] * 4, [4, 4, 4, 4])), heartbeat(2, Vector([A] * 4, [9] * 4)))
    bench.tick(5_001)
    assert bench.read(asked(77, (1, 2))) == []
    bench.tick(4_000, heartbeat(2, Vector([A] * 4, [9] * 4)))
    found = bench.tick(1_000)
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 9)] * 4


def test_without_any_participant_the_answer_is_what_is_known() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1), sync(0, X, 2, 5))
    found = bench.read(asked(3, ()))
    assert isinstance(found[0], RestartTimestamp)
    assert positions(found[0]) == [(A, 5), (0, 0), (0, 0), (0, 0)]
    assert found[0].projectors == (0,)


# -- stability -------------------------------------------------------------------------------------


def test_what_advanced_is_promoted_each_period() -> None:
    bench = Bench()
    first = bench.tick(1, begin(0, X, 1), sync(0, X, 2, 5))
    assert [(t.number, t.at_ms) for t in stabilities(first)] == [(1, bench.now_ms)]
    assert bench.tick(PERIOD - 1, sync(0, X, 3, 6)) == []
    second = bench.tick(1, sync(0, X, 4, 7))
    assert stabilities(second)[0].seqnos == Vector([0] * 4, [7, 0, 0, 0]).to_bytes()[1]
    assert stabilities(second)[0].number == 2
    assert bench.state.stable == bench.state.current
    assert bench.tick(PERIOD) == []
    assert len(stabilities(bench.tick(1, sync(0, X, 5, 8)))) == 1


def test_the_mean_of_heartbeats_is_promoted() -> None:
    bench = Bench(settings=replace(SETTINGS, algorithm="heartbeat"))
    vectors = [Vector([A] * 4, [n, 0, 0, 0]) for n in (10, 21)]
    bench.read(heartbeat(1, vectors[0]), heartbeat(3, Vector.zero(4), indexes=()))
    found = stabilities(bench.tick(1, heartbeat(2, vectors[1])))
    assert Vector.from_bytes(found[0].vbuuids, found[0].seqnos) == Vector([A] * 4, [15, 0, 0, 0])
    bench.settings = replace(SETTINGS, algorithm="promotion")
    assert bench.tick(PERIOD, begin(0, X, 1), sync(0, X, 2, 12)) == []


@pytest.mark.parametrize(
    ("later", "seqno"),
    [
        ({"queue": 9}, 25),
        ({"queue": 5}, 20),
        ({"queue": 9, "free": 0}, 20),
        ({"queue": 9, "incarnation": 2}, 20),
    ],
    ids=["grows", "stays", "is full", "is another life's"],
)
def test_the_mean_leans_to_the_fast_indexer_whose_queue_grows(
    later: dict[str, int], seqno: int
) -> None:
    bench = Bench(settings=replace(SETTINGS, algorithm="heartbeat"))
    slow, fast = Vector([A] * 4, [10, 0, 0, 0]), Vector([A] * 4, [30, 0, 0, 0])
    bench.read(heartbeat(1, slow), heartbeat(2, fast, queue=5))
    bench.read(heartbeat(2, fast, **later))
    found = stabilities(bench.tick(1))
    assert Vector.from_bytes(found[0].vbuuids, found[0].seqnos).seqnos[0] == seqno


def test_silent_indexers_are_left_out_of_the_mean() -> None:
    bench = Bench(settings=replace(SETTINGS, algorithm="heartbeat"))
    bench.read(heartbeat(1, Vector([A] * 4, [10, 0, 0, 0])))
    found = bench.tick(5_001, heartbeat(2, Vector([A] * 4, [30, 0, 0, 0])))
    assert bench.state.stable.seqnos.tolist() == [30, 0, 0, 0]
    assert len(found) == 1
    assert bench.tick(60_000) == []


def test_while_a_query_waits_what_advances_is_promoted_sooner() -> None:
    bench = Bench(settings=replace(SETTINGS, period_ms=10_000))
    bench.tick(1, begin(0, X, 1), sync(0, X, 2, 5))
    assert bench.tick(HURRIED_PERIOD_MS, sync(0, X, 3, 6)) == []
    found = stabilities(bench.fold([hurried(1_000, bench.now_ms)]))
    assert [(t.number, t.at_ms) for t in found] == [(2, bench.now_ms)]
    assert bench.fold([sync(0, X, 4, 7)]) == []
    assert bench.tick(HURRIED_PERIOD_MS - 1) == []
    assert len(stabilities(bench.tick(1))) == 1
    assert bench.tick(0, hurried(10_000, bench.now_ms)) == []
    bench.tick(HURRIED_PERIOD_MS)
    assert len(stabilities(bench.fold([sync(0, X, 5, 8)]))) == 1, "a tick is not waited for"


def test_who_waits_for_less_long_does_not_end_the_hurry_of_who_waits_for_longer() -> None:
    bench = Bench()
    until_ms = bench.now_ms + 10_000
    bench.fold([hurried(10_000, bench.now_ms)])
    bench.fold([hurried(1_000, bench.now_ms)])
    assert bench.state.hurried_until_ms == until_ms


def test_of_too_many_indexers_the_one_that_was_heard_longest_ago_is_forgotten() -> None:
    bench = Bench()
    for indexer in range(1, INDEXERS_MAX + 3):
        bench.tick(1, heartbeat(indexer, Vector([A] * 4, [1, 0, 0, 0])))
    assert {*bench.state.heard} == {*range(3, INDEXERS_MAX + 3)}


def test_nobody_is_hurried_for_ever() -> None:
    bench = Bench(settings=replace(SETTINGS, period_ms=3_600_000))
    bench.tick(1, begin(0, X, 1), sync(0, X, 2, 5))
    assert len(stabilities(bench.tick(PERIOD, sync(0, X, 3, 6), hurried(2**62, 2**62)))) == 1
    assert bench.state.hurried_until_ms == bench.now_ms + HURRIED_MS_MAX
    assert bench.tick(HURRIED_MS_MAX, sync(0, X, 4, 7)) == []


def test_the_mean_of_heartbeats_is_hurried_too_and_stays_the_mean() -> None:
    bench = Bench(settings=replace(SETTINGS, algorithm="heartbeat", period_ms=10_000))
    bench.tick(1, begin(0, X, 1), sync(0, X, 2, 90), heartbeat(1, Vector([A] * 4, [10, 0, 0, 0])))
    bench.tick(600, heartbeat(1, Vector([A] * 4, [30, 0, 0, 0])), hurried(1_000, bench.now_ms))
    assert bench.state.stable.seqnos.tolist() == [30, 0, 0, 0]


def test_before_the_first_tick_nobody_is_hurried() -> None:
    records = [begin(0, X, 1), sync(0, X, 2, 5), hurried(10_000, 1)]
    state, outputs, _ = fold(BucketState.new("b", 4), batch(records), SETTINGS)
    assert outputs == []
    assert state.hurried_until_ms == 0


# -- nonsense, bounds ------------------------------------------------------------------------------

NONSENSE: list[Any] = [
    begin(4, X, 1),
    begin(-1, X, 1),
    begin(0, -1, 1),
    begin(0, 2**63, 1),
    begin(0, X, -1),
    begin(0, X, 2**62),
    begin(0, X, 1, 2**64),
    begin(0, X, 1, -1),
    begin(0, X, 1, number=-1),
    begin(0, X, 1, projector=-1),
    replace(begin(0, X, 1), bucket="other"),
    end(4, X, 1),
    closed(X, -1),
    log(9, (A, 0)),
    log(0),
    log(0, (2**64, 0)),
    heartbeat(1, Vector.zero(3)),
    replace(heartbeat(1, Vector.zero(4)), seqnos=b"1"),
    heartbeat(-1, Vector.zero(4)),
    asked(1, (), vbuckets=5),
    asked(-1, ()),
    hurried(-1, 1),
    hurried(1, -1),
    hurried(2**63, 1),
]


@pytest.mark.parametrize("record", NONSENSE, ids=lambda r: type(r).__name__)
def test_nonsense_is_refused_and_changes_nothing(record: Any) -> None:
    bench = Bench()
    before = bench.state
    bench.fold([record])
    assert bench.state is before
    assert bench.refused is not None
    assert bench.refused
    assert [place for place, _ in bench.refused.control] == [0]


def test_nonsense_among_syncs_is_refused_by_its_place() -> None:
    bench = Bench()
    good = sync(0, X, 2, 5)
    bad = [sync(4, X, 2, 5), sync(-1, X, 2, 5), sync(0, -1, 2, 5), sync(0, X, -1, 5)]
    bench.fold([begin(0, X, 1), *bad[:2], good, *bad[2:], sync(0, X, 2**62, 9)])
    assert bench.refused is not None
    assert bench.refused.syncs.tolist() == [0, 1, 3, 4, 5]
    assert bench.seqnos[0] == 5


def test_connections_are_bounded_and_owners_are_not_forgotten() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1))
    for n in range(3 * CONNECTIONS_MAX):
        bench.read(begin(1, 1_000 + n, 1, number=1 + n), end(2, 5_000 + n, 1))
    assert len(bench.state.connections) <= CONNECTIONS_MAX + 2
    assert X in bench.state.connections
    bench.read(end(0, X, 2))
    assert bench.owners[0] is None


def test_of_too_many_idle_connections_the_oldest_are_forgotten() -> None:
    bench = Bench()
    for connection in range(CONNECTIONS_MAX + 4):
        bench.read(begin(0, connection, 1), closed(connection, 2))
        kept = {*range(max(0, connection + 1 - CONNECTIONS_MAX), connection + 1)}
        assert {*bench.state.connections} == kept


def test_of_two_early_ends_each_begin_has_its_own() -> None:
    bench = Bench()
    bench.read(end(0, X, 2), end(0, X, 4), begin(0, X, 1))
    assert bench.state.places["ended"][0] == 2
    bench.read(begin(0, X, 3))
    assert bench.state.places["ended"][0] == 4


def test_of_too_many_early_syncs_those_that_came_last_are_kept() -> None:
    bench, most = Bench(), EARLY_PER_VBUCKET_MAX * 4
    for connection in range(most + 5):
        bench.now_ms += 1
        bench.fold([sync(0, connection, 1, 1)])
    assert {*bench.state.early["connection"].tolist()} == {*range(5, most + 5)}


def test_of_too_many_questions_the_last_ones_are_answered() -> None:
    bench = Bench()
    bench.read(*(asked(number, (1,)) for number in range(1, QUESTIONS_MAX + 3)))
    assert [one.round for one in bench.state.questions] == [*range(3, QUESTIONS_MAX + 3)]


def test_early_ends_are_bounded() -> None:
    bench = Bench()
    bench.fold([end(n % 4, 100 + n // 8, 1 + n) for n in range(1_000)])
    assert len(bench.state.early_ends) <= 16


@pytest.mark.parametrize(
    "data", [b"", b"\x02", b"\x01\x00\x00\x00\x00", b"\x01\x05\x00\x00\x00abc"]
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="state"):
        unpack(data)


def test_a_state_of_an_older_version_lacks_columns() -> None:
    bench = Bench()
    bench.read(begin(0, X, 1, 7), sync(1, Y, 2, 3))
    packed = pack(bench.state)
    version, size = HEAD.unpack_from(packed)
    body = zlib.decompress(packed[HEAD.size :])
    head = json.loads(body[:size])
    assert head["places"][-1] == "enquired"
    before, after = body[size : size + 15 * 4 * 8], body[size + 16 * 4 * 8 :]
    head["places"] = head["places"][:-1]
    del head["hurried_until_ms"]
    text = json.dumps(head).encode()
    older = HEAD.pack(version, len(text)) + zlib.compress(text + before + after)
    assert unpack(older) == bench.state


def test_a_state_that_an_older_version_has_written_is_gone_on_with() -> None:
    """It has an owner, held and early records, a heartbeat, and a question that is open."""
    bench = Bench()
    bench.state = unpack(bytes.fromhex(WRITTEN_BEFORE))
    bench.now_ms += 1_000
    assert bench.state.current == Vector([A, A, A, 0], [9, 5, 2**63, 0])
    assert [o.connection for o in owners(bench.state)] == [1_000, 1_001]
    assert (list(bench.state.held), list(bench.state.heard)) == ([0], [1])
    assert restarts(bench.tick(HELD)) == [("begin_held", (0,)), ("end_unmatched", (3,))]
    found = bench.read(heartbeat(2, Vector([A] * 4, [9] * 4)))
    assert restarts(found) == [("bootstrap", (0, 1, 2, 3))]
    assert bench.read(sync(1, 1_000, 5, 8)) == []
    assert bench.state.current.seqnos[1] == 8


WRITTEN_BEFORE = (
    "01910200007801b552db6e133110e58e78e21ffc6c246fbbe9d23c217e238a22efeed09aba76e20b528590f85ce0"
    "27caccda93b42ba2f000d64ac73367e6ccc5fb55f479b8812496a217527c295614cb568aadd503e07545ee6c46e4"
    "23ec9c274cbab7b039f88bbda701dc03922ca606ef1c0cc9788732dbe03fa3e103de5dbeed812e3d5c6522c18d40"
    "35af418771731bf16a7d4ce5a6e30d54e7e8735fbde076d904cc5a63ba0ef6ae363f4df8b8dca33e7c188dd3162b"
    "1c26e2498d1b806a5649431b69a82b3ba2fa4ac955231ba52e25826cdeb7ed45d7b6aa3befd4e562d15c340b8994"
    "52f8a9f51a450e8569b52bf24b85a9ef9a354a61e024c45691458b27dae05a38b193e7541db35104cfa46ffdd5c4"
    "53637feaa6444d4b9dea63b914324897ad2d52f293b6110ea252ec32447ab249b8eba8e81936d47b9f620a7a2b1e"
    "06d3bf61ac49779bfaa4b4ae80023aa4bd4be16be4de9a785d9e714993e308dfee8f9c27f5bca9f8921d05bfb379"
    "24fd9ef9ff9dffe379a9c4f8b3dadc17f7c1f8b45e98677b8ef3f867d5c1719c7f0a3f7c7c3b65cef154debfe279"
    "8e6358d7b5a77f55c77c4e8ee339781f2f6ae6a97e399ee3e636fbff16b92eff97af6a1faf2bfe06b4512075"
)
"""By `pack`, before states knew `hurried_until_ms`."""


def test_a_bucket_has_vbuckets() -> None:
    with pytest.raises(ValueError, match="0 vbuckets"):
        BucketState.new("b", 0)


def test_a_million_syncs_are_folded_at_once() -> None:
    bench = Bench(1024)
    bench.fold([begin(v, X, v + 1) for v in range(1024)])
    order = np.random.default_rng(1).permutation(1_000_000)
    vbuckets = (order % 1024).astype(np.int64)
    syncs = batch([]).syncs._replace(
        vbucket=vbuckets,
        projector=np.zeros(len(order), np.int64),
        connection=np.full(len(order), X),
        ordinal=order + 2_000,
        vbuuid=np.full(len(order), A, np.uint64),
        seqno=order.astype(np.uint64),
    )
    state, _, _ = fold(bench.state, batch([], 1)._replace(syncs=syncs), SETTINGS)
    assert state.current.seqnos.tolist() == [max(range(v, 1_000_000, 1024)) for v in range(1024)]

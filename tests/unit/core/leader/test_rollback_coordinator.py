"""What a master finds out about a loss, and the steps by which a bucket goes back."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.leader.rollback_coordinator import (
    Heard,
    failover_timestamp,
    lost_vbuckets,
    restart_timestamp,
)
from coordinator.core.model.commands import MoveRollback, RenewStream
from coordinator.core.model.entities import ROLLBACK_STATES, Rollback
from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.vectors import Vector
from tests.support.builds_bench import Bench
from tests.support.indexes import make_watermarks

A, B, C = 7, 8, 9
LOST = {0: (FailoverBranch(B, 4), FailoverBranch(A, 0)), 1: (FailoverBranch(A, 0),)}
"""Vbucket 0 has lost what came after 4."""


def heard(*vectors: Vector, logs: Any = LOST, **more: Any) -> Heard:
    """What indexers 1, 2, … hold."""
    beats = {n: make_watermarks(n, vector, **more) for n, vector in enumerate(vectors, 1)}
    return Heard(2, beats, logs, everybody=True)


@pytest.mark.parametrize(
    ("vector", "lost"),
    [
        pytest.param(Vector([A, A], [5, 9]), (0,), id="above the branch"),
        pytest.param(Vector([A, A], [4, 9]), (), id="up to the branch"),
        pytest.param(Vector([B, A], [9, 9]), (), id="on the branch"),
        pytest.param(Vector([C, A], [9, 9]), (), id="of a branch that it may not know yet"),
        pytest.param(Vector([0, 0], [0, 0]), (), id="nothing"),
    ],
)
def test_what_a_history_has_lost_is_found_by_what_indexers_hold(
    vector: Vector, lost: tuple[int, ...]
) -> None:
    fine = Vector([A, A], [1, 1])
    assert lost_vbuckets(heard(fine, vector), 0) == lost


def test_an_indexer_itself_may_say_that_it_is_on_another_branch() -> None:
    fine = Vector([A, A], [1, 1])
    assert lost_vbuckets(heard(fine, branched=(1, 2, -1)), 0) == (1,), "there are two vbuckets"


def test_who_has_yet_to_go_back_is_not_looked_at() -> None:
    behind = Vector([A, A], [5, 9])
    assert lost_vbuckets(heard(behind, rollback=6), 7) == ()
    assert lost_vbuckets(heard(behind, rollback=7), 7) == (0,)


def test_the_failover_timestamp_is_what_is_left_of_every_position_that_was_lost() -> None:
    twice = {0: (FailoverBranch(C, 6), FailoverBranch(B, 4), FailoverBranch(A, 0))}
    found = failover_timestamp(
        (0,),
        heard(Vector([A, A], [9, 9]), Vector([B, A], [8, 9]), Vector([A, A], [2, 9]), logs=twice),
    )
    assert found == Vector([C], [4]), "4 of A, 6 of B; 2 of A is not lost"


def test_of_a_vbucket_whose_loss_nobody_can_show_nothing_counts() -> None:
    assert failover_timestamp((1,), heard(Vector([A, A], [9, 9]))) == Vector([A], [0])
    assert failover_timestamp((1,), heard(Vector([A, A], [9, 9]), logs={})) == Vector([0], [0])


def a_rollback(state: str, **more: Any) -> Rollback:
    fields = {"bucket": "b", "number": 3, "vbuckets": (0,), "reason": "", "began_ms": 0}
    return Rollback(state=state, **(fields | more))


def test_streams_begin_again_after_what_everybody_will_have_at_least() -> None:
    vbuuids, seqnos = Vector([B], [4]).to_bytes()
    held = a_rollback("prepare", failover_vbuuids=vbuuids, failover_seqnos=seqnos)
    both = heard(Vector([A, A], [9, 9]), Vector([B, A], [6, 7]), Vector.zero(2))
    assert restart_timestamp(held, both) == Vector([B, A], [4, 7])
    assert restart_timestamp(held, heard(Vector.zero(2))) == Vector.zero(2)


# -- the steps -------------------------------------------------------------------------------------


def moves(bench: Bench, *states: str) -> list[list[str]]:
    """Move the rollback of bucket b on, by commands that are meant for it as it is."""
    found = []
    for state in states:
        held = bench.state.rollback("b")
        command = MoveRollback("b", held.number if held else 0, state, (1,), b"u" * 8, b"s" * 8)
        decision = bench.do(command)
        found.append([change.event for change in getattr(decision, "changes", ())])
    return found


def test_a_rollback_goes_through_all_its_states_and_keeps_its_timestamps() -> None:
    bench = Bench("i")
    assert moves(bench, *ROLLBACK_STATES) == [
        ["RollbackStarted"],
        ["RollbackPrepared"],
        ["RollbackRestarted"],
        ["RollbackCommanded"],
        ["RollbackEnded"],
    ]
    held = bench.state.rollback("b")
    assert held is not None
    assert (held.state, held.vbuckets, held.is_over) == ("done", (1,), True)
    assert held.failover_seqnos == held.restart_seqnos == b"s" * 8
    assert held.number < held.barrier


@pytest.mark.parametrize("state", ROLLBACK_STATES)
def test_a_step_that_does_not_follow_changes_nothing(state: str) -> None:
    at = ROLLBACK_STATES.index(state)
    for other in ROLLBACK_STATES:
        bench = Bench("i")
        moves(bench, *ROLLBACK_STATES[: at + 1])
        follows = ROLLBACK_STATES.index(other) == at + 1
        is_new = other == "started" and state in ("rollback", "done")
        assert moves(bench, other) == [[]] or follows or is_new, (state, other)


def test_a_step_of_another_rollback_changes_nothing() -> None:
    bench = Bench("i")
    moves(bench, "started")
    before = bench.state
    bench.do(MoveRollback("b", 99, "prepare"))
    bench.do(MoveRollback("elsewhere", 0, "started", (1,)))
    assert bench.state == before


def test_no_stream_is_renewed_before_it_is_known_after_what() -> None:
    bench = Bench("i")
    renew = RenewStream(bucket="other", number=0, projectors=((0, 1),))
    for state in ROLLBACK_STATES[:3]:
        moves(bench, state)
        bench.do(renew)
        assert bench.state.stream("other") is None
    moves(bench, "rollback")
    bench.do(renew)
    stream: Any = bench.state.stream("other")
    held = bench.state.rollback("b")
    assert held is not None
    assert stream.entity.number > held.barrier

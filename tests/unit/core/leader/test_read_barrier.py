"""Reads: behind a barrier that was sent after they came, or once this node has applied enough.

The parts alone: the master's barriers, local reads, and the barrier that every node has of its own.
`docs/protocol.md` has the same in words ("The read barrier").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.consensus.effects import Append, Reply
from coordinator.core.consensus.inputs import ReadRequested
from coordinator.core.consensus.liveness import Liveness
from coordinator.core.consensus.local_reads import TOO_MANY_READERS, LocalReads
from coordinator.core.consensus.view import Tokens
from coordinator.core.leader.read_barriers import ReadBarriers
from coordinator.core.model.commands import OK, Outcome, refused, unknown
from coordinator.core.model.records import ReadBarrier
from tests.support.views import AUTHORITY, MONO_MS, a_state, a_view

EPOCH, CAS = 4, 50
DEADLINE_MS = MONO_MS + 100
REPEAT_MS = 1_000
"""A barrier that is not read back is sent again after two times `ack_timeout_ms`."""

NO_ANSWER = unknown("timeout", "the log did not answer")
READ = Outcome(OK, cas=CAS)


def barriers() -> ReadBarriers:
    return ReadBarriers(EPOCH, Tokens())


def sent(found: list[Any]) -> ReadBarrier:
    """Return the one barrier among results that are nothing else."""
    (append,) = found
    assert isinstance(append, Append)
    assert isinstance(append.record, ReadBarrier)
    return append.record


def told(outcome: Outcome, *tokens: int) -> list[Any]:
    return [Reply(token, outcome) for token in tokens]


# -- linearizable reads --------------------------------------------------------------------------


def test_a_reader_is_answered_when_a_barrier_that_was_sent_after_it_came_is_read_back() -> None:
    reads, view = barriers(), a_view()
    assert reads.send(view) == [], "nobody waits"
    assert reads.read_requested(view, 1, DEADLINE_MS) == []
    first = sent(reads.send(view))
    assert first.epoch == EPOCH
    assert reads.read_requested(view, 2, DEADLINE_MS) == []
    assert reads.send(view) == [], "one is in flight at a time"
    assert reads.read_back(view, first) == told(READ, 1), "the second came after it was sent"
    second = sent(reads.send(view))
    assert second.nonce != first.nonce
    assert reads.read_back(view, first) == [], "a repeat of the first says nothing of the second"
    later = a_view(state=a_state(51))
    assert reads.read_back(later, second) == told(Outcome(OK, cas=51), 2)
    assert reads.send(view) == []


def test_all_that_came_before_a_barrier_was_sent_share_it() -> None:
    reads, view = barriers(), a_view()
    for token in (1, 2, 3):
        reads.read_requested(view, token, DEADLINE_MS)
    assert reads.read_back(view, sent(reads.send(view))) == told(READ, 1, 2, 3)


@pytest.mark.parametrize("fields", [{"nonce": 7}, {"epoch": EPOCH - 1}, {"epoch": EPOCH + 1}])
def test_no_other_barrier_answers_a_read(fields: dict[str, int]) -> None:
    """That of another node, and one of another epoch, prove nothing of this mastership."""
    reads, view = barriers(), a_view()
    reads.read_requested(view, 1, DEADLINE_MS)
    barrier = sent(reads.send(view))
    assert reads.read_back(view, replace(barrier, **fields)) == []
    assert reads.read_back(view, barrier) == told(READ, 1)


def test_no_two_lives_have_one_barrier() -> None:
    nonces = []
    for incarnation in (10, 11):
        reads, view = barriers(), a_view(settings={"incarnation": incarnation})
        reads.read_requested(view, 1, DEADLINE_MS)
        nonces.append(sent(reads.send(view)).nonce)
    assert nonces[0] != nonces[1]


def test_a_refusal_waits_for_a_barrier_too_and_stays_as_it_was_decided() -> None:
    reads, view = barriers(), a_view(state=a_state(60))
    no, existed = refused("index_exists", "it exists"), Outcome(OK, answer={"existed": 1}, cas=41)
    reads.answer_behind(1, no, DEADLINE_MS)
    reads.answer_behind(2, existed, DEADLINE_MS)
    reads.answer_behind(3, Outcome(OK, answer={"a": 1}), DEADLINE_MS)
    assert reads.read_back(view, sent(reads.send(view))) == [
        Reply(1, no),
        Reply(2, existed),
        Reply(3, Outcome(OK, answer={"a": 1}, cas=60)),
    ]


def test_a_barrier_that_may_be_lost_is_sent_again_until_it_is_read_back() -> None:
    reads = barriers()
    reads.read_requested(a_view(), 1, DEADLINE_MS)
    barrier = sent(reads.send(a_view()))
    assert reads.tick(a_view(MONO_MS + REPEAT_MS)) == []
    assert sent(reads.tick(a_view(MONO_MS + REPEAT_MS + 1))) == barrier
    assert reads.tick(a_view(MONO_MS + 2 * REPEAT_MS + 1)) == []
    assert sent(reads.tick(a_view(MONO_MS + 2 * REPEAT_MS + 2))) == barrier
    assert reads.read_back(a_view(), barrier) == told(READ, 1)
    assert reads.tick(a_view(MONO_MS + 9 * REPEAT_MS)) == []


def test_a_reader_is_told_at_its_deadline_that_the_log_did_not_answer() -> None:
    """One that waits for the barrier in flight, and one that waits for the next."""
    reads, view = barriers(), a_view()
    reads.read_requested(view, 1, DEADLINE_MS)
    barrier = sent(reads.send(view))
    reads.read_requested(view, 2, DEADLINE_MS)
    reads.read_requested(view, 3, DEADLINE_MS + 1)
    assert reads.expire(DEADLINE_MS - 1) == []
    assert reads.expire(DEADLINE_MS) == told(NO_ANSWER, 1, 2)
    assert reads.read_back(view, barrier) == [], "a reader hears once"
    assert reads.read_back(view, sent(reads.send(view))) == told(READ, 3)


def test_readers_are_taken_up_to_a_bound_wherever_they_wait() -> None:
    reads, view = barriers(), a_view(settings={"readers_max": 2})
    reads.read_requested(view, 1, DEADLINE_MS)
    barrier = sent(reads.send(view))
    assert reads.read_requested(view, 2, DEADLINE_MS) == []
    assert reads.read_requested(view, 3, DEADLINE_MS) == told(TOO_MANY_READERS, 3)
    reads.read_back(view, barrier)
    assert reads.read_requested(view, 4, DEADLINE_MS) == []


def test_at_the_end_of_a_mastership_every_reader_hears_that_once() -> None:
    reads, view = barriers(), a_view()
    reads.read_requested(view, 1, DEADLINE_MS)
    barrier = sent(reads.send(view))
    reads.read_requested(view, 2, DEADLINE_MS)
    gone = unknown("no_master", "the master is changing: retry")
    assert reads.depose(gone) == told(gone, 1, 2)
    assert reads.depose(gone) == []
    assert reads.read_back(view, barrier) == []


# -- reads at any node ---------------------------------------------------------------------------


def local(token: int, at_least: int = 0, deadline_ms: int = DEADLINE_MS) -> ReadRequested:
    return ReadRequested(token, deadline_ms, False, at_least)


def test_a_local_read_is_answered_once_this_node_has_applied_what_it_asks_for() -> None:
    reads, view = LocalReads(), a_view()
    assert reads.requested(view, local(1)) == told(READ, 1)
    assert reads.requested(view, local(2, at_least=CAS)) == told(READ, 2)
    assert reads.requested(view, local(3, at_least=CAS + 1)) == []
    assert reads.requested(view, local(4, at_least=CAS + 5)) == []
    later = a_view(state=a_state(CAS + 2))
    assert reads.serve(later) == told(Outcome(OK, cas=CAS + 2), 3)
    assert reads.serve(later) == []


def test_a_local_read_that_waits_too_long_is_told_how_far_this_node_is() -> None:
    reads = LocalReads()
    reads.requested(a_view(), local(1, at_least=CAS + 1))
    reads.requested(a_view(), local(2, at_least=CAS + 1, deadline_ms=DEADLINE_MS + 1))
    assert reads.expire(a_view(DEADLINE_MS - 1)) == []
    late = unknown("timeout", "this node has applied CAS 50, not 51")
    assert reads.expire(a_view(DEADLINE_MS)) == told(late, 1)
    assert reads.serve(a_view(state=a_state(51))) == told(Outcome(OK, cas=51), 2)


def test_local_readers_are_taken_up_to_a_bound() -> None:
    reads, view = LocalReads(), a_view(settings={"readers_max": 1})
    assert reads.requested(view, local(1, at_least=CAS + 1)) == []
    assert reads.requested(view, local(2, at_least=CAS + 1)) == told(TOO_MANY_READERS, 2)
    reads.expire(a_view(DEADLINE_MS))
    assert reads.requested(view, local(3, at_least=CAS + 1)) == []


# -- the barrier of a node -----------------------------------------------------------------------


def test_a_node_has_read_to_the_end_when_it_reads_its_own_newest_barrier_once() -> None:
    liveness, view = Liveness(Tokens()), a_view()
    first = sent(liveness.send_barrier(view))
    second = sent(liveness.send_barrier(view))
    assert (first.epoch, second.epoch) == (4, 4)
    assert not liveness.barrier_read(first), "the second has taken its place"
    assert not liveness.barrier_read(replace(second, nonce=7))
    assert liveness.barrier_read(second)
    assert not liveness.barrier_read(second)


def test_a_barrier_before_there_is_a_cluster_is_of_no_epoch() -> None:
    assert sent(Liveness(Tokens()).send_barrier(a_view(authority=None))).epoch == 0


def test_a_nodes_barrier_that_may_be_lost_is_sent_again() -> None:
    liveness, view = Liveness(Tokens()), a_view(authority=AUTHORITY)
    liveness.started(view.now)
    barrier = sent(liveness.send_barrier(view))
    assert liveness.tick(a_view(MONO_MS + REPEAT_MS)) == []
    assert sent(liveness.tick(a_view(MONO_MS + REPEAT_MS + 1))) == barrier
    liveness.barrier_read(barrier)
    assert liveness.tick(a_view(MONO_MS + 3 * REPEAT_MS)) == []

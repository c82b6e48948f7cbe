"""Who takes part in a restart, and for how long that must not change: while an answer may come."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.codec import Codec
from coordinator.core.catalog.state import StateContext, evolve
from coordinator.core.consensus.effects import Ask
from coordinator.core.consensus.signals import Want
from coordinator.core.leader import build_coordinator as builds
from coordinator.core.leader.build_coordinator import BuildCoordinator
from coordinator.core.leader.membership import Membership
from coordinator.core.leader.stream_restart import StreamRestart
from coordinator.core.model.entities import (
    MAINTENANCE,
    PENDING,
    ROLLBACK_STARTED,
    ROLLBACK_STATES,
    Bucket,
    Index,
    Rollback,
    Source,
    Stream,
)
from coordinator.core.model.records import (
    IndexerRegistered,
    Mutation,
    StreamAwaited,
    StreamOwner,
)
from coordinator.core.model.stream_records import (
    SYNC_MISSING,
    FailoverBranch,
    RestartRequested,
    RestartTimestamp,
    RollbackEnquiry,
)
from coordinator.core.model.types import Cas, Instant, Seqno, Vbuuid
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.board import EMPTY, ENQUIRIES_MAX, fold
from tests.support.indexes import make_index, make_indexer_beat, make_watermarks

WAIT_MS = 2_000
HELD = Vector([7, 7], [5, 9])
ONE = {1: HELD}


class View:
    """What a node shows while its application computes timestamps."""

    def __init__(self) -> None:
        self.config: Any = SimpleNamespace(
            node=1, restart_wait_ms=WAIT_MS, restart_pause_ms=10_000, election_timeout_ms=1_500
        )
        self.now = Instant(mono_ms=1_000, wall_ms=1_000)
        self.timestamps = EMPTY
        self.state: Any = StateContext()
        self.peers: Any = SimpleNamespace(
            application_of=lambda bucket: object(), alive=lambda heartbeat: True, clock_ms=0
        )

    def advance(self, by_ms: int) -> None:
        self.now = Instant(mono_ms=self.now.mono_ms + by_ms, wall_ms=self.now.wall_ms + by_ms)

    def answer(self, question: RestartRequested, vector: Vector = HELD) -> None:
        vbuuids, seqnos = vector.to_bytes()
        record = RestartTimestamp(
            bucket="travel",
            number=1,
            round=question.round,
            vbuckets=(0, 1),
            vbuuids=vbuuids,
            seqnos=seqnos,
            branched=(),
            projectors=(),
            reason="asked",
            at_ms=1,
        )
        self.timestamps = fold(self.timestamps, record, self.now).board


@pytest.fixture
def view() -> Any:
    return View()


@pytest.fixture
def restarting() -> StreamRestart:
    return StreamRestart(3)


@pytest.fixture
def question(view: Any, restarting: StreamRestart) -> RestartRequested:
    """Return what was asked first: the answer is awaited."""
    vector, [asked] = restarting.vector(view, "travel", ONE, {})
    assert vector is None
    assert restarting.is_asking(view)
    assert isinstance(asked.record, RestartRequested)
    return asked.record


def test_it_asks_until_the_answer_is_there(
    view: Any, restarting: StreamRestart, question: RestartRequested
) -> None:
    view.answer(question)
    assert not restarting.is_asking(view)
    assert restarting.vector(view, "travel", ONE, {}) == (HELD, ())


@pytest.mark.usefixtures("question")
def test_it_asks_no_longer_than_the_wait(view: Any, restarting: StreamRestart) -> None:
    """The renewal may be wanted for longer, as nobody may be there who serves the streams."""
    view.advance(WAIT_MS - 1)
    assert restarting.is_asking(view)
    view.advance(1)
    assert not restarting.is_asking(view)
    assert restarting.vector(view, "travel", ONE, {}) == (HELD, ())


def test_streams_that_were_renewed_are_not_renewed_at_once_again(
    view: Any, restarting: StreamRestart
) -> None:
    """What is told meanwhile is of the streams before."""
    view.answer(SimpleNamespace(round=0))
    assert restarting.told(view, "travel", 0) is not None
    restarting.renewed(view, "travel")
    view.advance(view.config.restart_pause_ms - 1)
    assert restarting.told(view, "travel", 0) is None
    view.advance(1)
    assert restarting.told(view, "travel", 0) is not None


# -- what is lost is answered for all of whom it was told -----------------------------------------


def an_enquiry(number: int, vbucket: int, projector: int) -> RollbackEnquiry:
    return RollbackEnquiry(
        bucket="travel",
        number=number,
        vbucket=vbucket,
        vbuuid=7,
        seqno=5,
        seen_vbuuid=7,
        seen_seqno=5,
        projector=projector,
        connection=70 + projector,
        reason=SYNC_MISSING,
        at_ms=1,
    )


def renewed_for(view: Any, *told: Any, beating: tuple[int, ...]) -> Any:
    """Return the renewal for what was told of the streams of projectors 0 and 1."""
    building = a_building(view, make_index(1, 1, state=MAINTENANCE), live=(1,))
    stream = Stream("travel", 5, (Source(0, 9, 5, 5), Source(1, 9, 5, 5)), b"", b"", "")
    view.state = evolve(view.state, [(Mutation("Changed", stream.key, b"", stream), 9)])
    for record in told:
        view.timestamps = fold(view.timestamps, record, view.now).board
    beats: Any = [SimpleNamespace(projector=p, incarnation=9, waiting=()) for p in beating]
    return building._wanted(view, beats).get("travel")


def test_who_is_silent_for_a_moment_has_its_streams_begun_again_with_those_of_others(
    view: Any,
) -> None:
    """An enquiry is made once: a renewal that answers it for one of two loses it for the other."""
    told = an_enquiry(1, 0, 0), an_enquiry(2, 1, 1)
    renewal = renewed_for(view, *told, beating=(0,))
    assert renewal.projectors == ((0, 9), (1, 9))
    assert (renewal.vbuckets, renewal.restart) == ((0, 1), 2)
    assert renewed_for(view, beating=()) is None, "nobody is there to stream: it is told later"


def test_where_more_was_told_than_is_kept_all_streams_begin_again(view: Any) -> None:
    told = [an_enquiry(number, number % 2, 0) for number in range(1, ENQUIRIES_MAX + 2)]
    renewal = renewed_for(view, *told, beating=(0, 1))
    assert renewal.projectors == ((0, 9), (1, 9))
    assert renewal.whole == {(0, 9), (1, 9)}
    told = [*told[:ENQUIRIES_MAX]]
    view.timestamps = EMPTY
    renewal = renewed_for(view, *told, beating=(0, 1))
    assert (renewal.projectors, renewal.whole) == (((0, 9),), frozenset())


# -- who takes part ------------------------------------------------------------------------------

ZERO = Vector.zero(2)


def a_peer(indexer: int) -> Any:
    return SimpleNamespace(beat=SimpleNamespace(indexer=indexer, incarnation=1))


def a_building(view: Any, *indexes: Index, live: tuple[int, ...]) -> BuildCoordinator:
    bucket = Bucket("travel", 2)
    entities = [bucket, *indexes]
    changes = [(Mutation("Changed", e.key, b"", e), cas) for cas, e in enumerate(entities, 1)]
    view.state = evolve(StateContext(), changes)
    view.peers.indexers = {indexer: a_peer(indexer) for indexer in live}
    view.peers.indexer_alive = lambda number: number in live
    return BuildCoordinator(3)


def says(view: Any, building: BuildCoordinator, indexer: int, vector: Vector) -> None:
    record = make_watermarks(indexer, vector, bucket="travel", indexes=(1,))
    building.streams_read(view, [record])


def test_who_is_away_or_holds_nothing_takes_no_part(view: Any) -> None:
    """Indexer 2 has only just come, 3 is away; 4 hosts what nobody has begun to build."""
    building = a_building(
        view,
        make_index(1, 1, 2, 3, state=MAINTENANCE),
        make_index(2, 4, state=PENDING),
        live=(1, 2, 4),
    )
    for indexer, vector in ((1, HELD), (2, ZERO), (4, ZERO)):
        says(view, building, indexer, vector)
    begin, [asked] = building._restart(view, "travel", overdue=False)
    assert begin is None
    assert isinstance(asked, Ask)
    assert isinstance(asked.record, RestartRequested)
    assert asked.record.participants == (1,)


def test_who_is_sure_to_hold_something_is_waited_for(view: Any) -> None:
    building = a_building(view, make_index(1, 1, 2, state=MAINTENANCE), live=(1, 2))
    says(view, building, 1, HELD)
    assert building._restart(view, "travel", overdue=False) == (None, ())
    view.peers.application_of = lambda bucket: None
    view.peers.alive = lambda peer: peer is not None
    assert building._restart(view, "travel", overdue=True) == (HELD.to_bytes(), ())


def test_no_indexer_is_registered_while_an_answer_is_awaited(view: Any) -> None:
    beat = make_indexer_beat(3, incarnation=7, address="http://x", at_ms=1)
    view.authority = SimpleNamespace(
        indexers={}, projectors={}, members={}, active=(), minimum=1, outcomes_apart=True
    )
    copies: Any = SimpleNamespace(is_due=lambda view: False, kept_by=lambda epoch: [])
    membership = Membership(view, 3, Codec(), copies)
    membership.indexer_heard(view, beat)
    assert membership.due(view, is_idle=False, is_computing=lambda: True).records == []
    [record] = membership.due(view, is_idle=False, is_computing=lambda: False).records
    assert isinstance(record, IndexerRegistered)


def test_a_projector_that_lapses_often_has_its_streams_renewed_with_pauses(view: Any) -> None:
    building = a_building(view, make_index(1, 1, state=MAINTENANCE), live=(1,))
    says(view, building, 1, HELD)
    stream = Stream("travel", 5, (Source(0, 9, 5),), b"", b"", "")
    view.state = evolve(view.state, [(Mutation("Changed", stream.key, b"", stream), Cas(9))])
    owner = StreamOwner("travel", 71, 0, 5, 2)
    projector = SimpleNamespace(projector=0, incarnation=9, waiting=(), buckets=(), topics=())
    view.authority = SimpleNamespace(projectors={0: SimpleNamespace(incarnation=9)})
    view.config.stream_hold_ms = 0
    view.config.stream_timeout_ms = 5_000
    application = SimpleNamespace(beat=SimpleNamespace(owners=(owner,)))
    view.peers.applications = {"0/1": application}
    view.peers.projectors = {0: SimpleNamespace(beat=projector)}
    view.peers.application_of = lambda bucket: None
    wanted: list[int] = []
    for _ in range(300):
        silent = view.now.mono_ms % 6_000
        view.peers.projector_lapsed = lambda number, ms=silent: ms > 5_000
        view.peers.alive = lambda peer, ms=silent: peer is application or ms < 1_000
        if any(isinstance(one, Want) for one in building.tick(view)):
            wanted.append(view.now.mono_ms)
        view.advance(200)
    assert 2 <= len(wanted) <= 60_000 // view.config.restart_pause_ms + 1
    assert all(after - before >= 10_000 for before, after in itertools.pairwise(wanted))


@pytest.mark.parametrize("state", ROLLBACK_STATES)
def test_who_takes_part_does_not_change_while_a_rollback_is_computed(view: Any, state: str) -> None:
    building = a_building(view, live=(1,))
    assert not building.is_computing(view)
    rollback = Rollback(
        bucket="travel", number=5, state=state, vbuckets=(0,), reason="", began_ms=1
    )
    view.state = evolve(view.state, [(Mutation("Changed", rollback.key, b"", rollback), Cas(9))])
    assert building.is_computing(view) == (state == ROLLBACK_STARTED)


def test_what_is_answered_counts_and_not_only_what_is_held_here(
    view: Any, restarting: StreamRestart, question: RestartRequested
) -> None:
    said = Vector([7, 7], [5, 3])
    view.answer(question, said)
    assert restarting.vector(view, "travel", ONE, {}).vector == said


def test_where_a_history_does_not_know_what_is_held_the_stream_begins_at_0(
    view: Any, restarting: StreamRestart, question: RestartRequested
) -> None:
    """The vbucket was made anew: the store would refuse any other stream of it, for ever."""
    view.answer(question)
    logs = {0: (FailoverBranch(Vbuuid(8), Seqno(0)),)}
    begin = restarting.vector(view, "travel", ONE, logs).vector
    assert begin == Vector([8, 7], [0, HELD.position(1)[1]])
    known = (*logs[0], FailoverBranch(Vbuuid(7), Seqno(0)))
    assert restarting.vector(view, "travel", ONE, {0: known}).vector == HELD


def test_an_answer_is_not_taken_for_a_loss_that_nobody_asked_about(
    view: Any, restarting: StreamRestart, question: RestartRequested
) -> None:
    view.answer(question)
    assert restarting.told(view, "travel", 0) is None


def test_what_an_indexer_held_in_another_life_does_not_count(view: Any) -> None:
    building = a_building(view, make_index(1, 1, state=MAINTENANCE), live=(1,))
    says(view, building, 1, HELD)
    assert building._beat(view, "travel", 1, 2) is not None
    view.peers.indexers[1].beat.incarnation = 2
    assert building._beat(view, "travel", 1, 2) is None


@pytest.mark.parametrize("states", [(MAINTENANCE, PENDING), (PENDING, MAINTENANCE)])
def test_a_host_of_two_indexes_surely_holds_something_if_one_of_them_is_built(
    view: Any, states: tuple[str, str]
) -> None:
    indexes = [make_index(number, 1, state=state) for number, state in enumerate(states, 1)]
    a_building(view, *indexes, live=(1,))
    # The state has them in no particular order: here, in both.
    view.state = SimpleNamespace(in_phase=lambda *phases: indexes)
    assert builds._hosts(view, "travel") == [(1, True)]


def test_who_waits_under_a_number_that_was_renewed_already_waits_no_more(view: Any) -> None:
    """A heartbeat from before the renewal would bring another one."""
    building = a_building(view, make_index(1, 1, state=MAINTENANCE), live=(1,))
    stream = Stream("travel", 4, (Source(0, 5, 4),), b"", b"", "")
    change = (Mutation("StreamRenewed", stream.key, b"", stream), 9)
    state = evolve(view.state, [change])

    def waiting(number: int) -> Any:
        beat: Any = SimpleNamespace(
            projector=0, incarnation=5, waiting=(StreamAwaited("travel", number),)
        )
        return building._waiting(state, [beat])

    assert waiting(3) == {}
    assert waiting(4) == {"travel": (4, [(0, 5)])}

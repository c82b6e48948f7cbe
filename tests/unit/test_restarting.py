"""Who takes part in a restart, and for how long that must not change: while an answer may come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.building import Building
from coordinator.core.entities import MAINTENANCE, PENDING, Bucket, Index, Slice, Source, Stream
from coordinator.core.membership import Membership
from coordinator.core.records import IndexerHeartbeat, IndexerRegistered, Mutation, StreamAwaited
from coordinator.core.restarting import Restarting
from coordinator.core.state import StateContext, evolve
from coordinator.core.stream_records import HwHeartbeat, RestartTimestamp
from coordinator.core.timestamp_board import EMPTY, fold
from coordinator.core.types import Instant
from coordinator.core.vectors import Vector

WAIT_MS = 2_000
HELD = Vector([7, 7], [5, 9])


class Master:
    """What `Restarting` knows of a master."""

    def __init__(self) -> None:
        config = SimpleNamespace(restart_wait_ms=WAIT_MS, restart_pause_ms=10_000)
        self.asked: list[Any] = []
        self.epoch = 3
        self.building = SimpleNamespace(logs=lambda bucket: {})
        self.node = SimpleNamespace(
            config=config,
            now=Instant(mono_ms=1_000, wall_ms=1_000),
            timestamps=EMPTY,
            application=object(),
            alive=lambda heartbeat: True,
            emit=self.asked.append,
        )

    def advance(self, by_ms: int) -> None:
        now = self.node.now
        self.node.now = Instant(mono_ms=now.mono_ms + by_ms, wall_ms=now.wall_ms + by_ms)

    def answer(self, vector: Vector = HELD) -> None:
        question = self.asked[-1].record
        vbuuids, seqnos = vector.to_bytes()
        record = RestartTimestamp(
            *("travel", 1, question.round, (0, 1), vbuuids, seqnos, (), (), "asked", 1)
        )
        self.node.timestamps = fold(self.node.timestamps, record, self.node.now).board


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def restarting(master: Master) -> Restarting:
    found: Any = Restarting(master)  # type: ignore[arg-type]
    assert found.vector("travel", 2, [HELD], (1,)) is None
    assert found.is_asking
    return found  # type: ignore[no-any-return]


def test_it_asks_until_the_answer_is_there(master: Master, restarting: Restarting) -> None:
    master.answer()
    assert not restarting.is_asking
    assert restarting.vector("travel", 2, [HELD], (1,)) == HELD


def test_it_asks_no_longer_than_the_wait(master: Master, restarting: Restarting) -> None:
    """The renewal may be wanted for longer, as nobody may be there who serves the streams."""
    master.advance(WAIT_MS - 1)
    assert restarting.is_asking
    master.advance(1)
    assert not restarting.is_asking
    assert restarting.vector("travel", 2, [HELD], (1,)) == HELD
    assert len(master.asked) == 1


# -- who takes part ------------------------------------------------------------------------------

ZERO = Vector.zero(2)


def an_index(number: int, state: str, *hosts: int) -> Index:
    slices = tuple(Slice(place, host) for place, host in enumerate(hosts))
    return Index(
        *(number, f"i{number}", "travel", ("a",), None, False, "gsi", False, state, None),
        *(slices, f"r{number}", 1),
    )


def a_peer(indexer: int) -> Any:
    return SimpleNamespace(beat=SimpleNamespace(indexer=indexer, incarnation=1))


def a_building(master: Master, *indexes: Index, live: tuple[int, ...]) -> Building:
    bucket = Bucket("travel", 2)
    entities = [bucket, *indexes]
    changes = [(Mutation("Changed", e.key, b"", e), cas) for cas, e in enumerate(entities, 1)]
    master.node.state = evolve(StateContext(), changes)
    master.node.indexers = {indexer: a_peer(indexer) for indexer in live}
    master.node.alive = lambda peer: peer is not None
    return Building(master)  # type: ignore[arg-type]


def says(building: Building, indexer: int, vector: Vector) -> None:
    record = HwHeartbeat(indexer, 1, "travel", (1,), *vector.to_bytes(), 0, 0, 0, 0, (), 0)
    building.streams_read([record])


def test_who_is_away_or_holds_nothing_takes_no_part(master: Master) -> None:
    """Indexer 2 has only just come, 3 is away; 4 hosts what nobody has begun to build."""
    building = a_building(
        master, an_index(1, MAINTENANCE, 1, 2, 3), an_index(2, PENDING, 4), live=(1, 2, 4)
    )
    for indexer, vector in ((1, HELD), (2, ZERO), (4, ZERO)):
        says(building, indexer, vector)
    building.restarting = Restarting(master)  # type: ignore[arg-type]
    assert building._restart("travel", overdue=False) is None
    [question] = [one.record for one in master.asked]
    assert question.participants == (1,)


def test_who_is_sure_to_hold_something_is_waited_for(master: Master) -> None:
    building = a_building(master, an_index(1, MAINTENANCE, 1, 2), live=(1, 2))
    says(building, 1, HELD)
    assert building._restart("travel", overdue=False) is None
    assert not master.asked
    master.node.application = None
    master.node.alive = lambda peer: peer is not None
    assert building._restart("travel", overdue=True) == HELD.to_bytes()


def test_no_indexer_is_registered_while_an_answer_is_awaited(
    master: Master, restarting: Restarting
) -> None:
    beat = IndexerHeartbeat(3, 7, "http://x", "", 1, 0, 0, 0, 1)
    authority = SimpleNamespace(
        indexers={}, projectors={}, members={}, active=(), minimum=1, outcomes_apart=True
    )
    master.building = SimpleNamespace(restarting=restarting)
    master.authority = authority
    master.node.copies = SimpleNamespace(is_due=False, kept_by=lambda epoch: [])
    master.has_work = True
    master.node.hearing_ms = 0
    membership = Membership(master)  # type: ignore[arg-type]
    membership.indexer_heard(beat)
    assert membership.due() == []
    master.answer()
    assert [type(record) for record in membership.due()] == [IndexerRegistered]


def test_what_is_answered_counts_and_not_only_what_is_held_here(
    master: Master, restarting: Restarting
) -> None:
    said = Vector([7, 7], [5, 3])
    master.answer(said)
    assert restarting.vector("travel", 2, [HELD], (1,)) == said


def test_an_answer_is_not_taken_for_a_loss_that_nobody_asked_about(
    master: Master, restarting: Restarting
) -> None:
    master.answer()
    assert restarting.told("travel", 0) is None


def test_what_an_indexer_held_in_another_life_does_not_count(master: Master) -> None:
    building = a_building(master, an_index(1, MAINTENANCE, 1), live=(1,))
    says(building, 1, HELD)
    assert building._watermark("travel", 1, 2) is not None
    master.node.indexers[1].beat.incarnation = 2
    assert building._watermark("travel", 1, 2) is None


@pytest.mark.parametrize("states", [(MAINTENANCE, PENDING), (PENDING, MAINTENANCE)])
def test_a_host_of_two_indexes_surely_holds_something_if_one_of_them_is_built(
    master: Master, states: tuple[str, str]
) -> None:
    indexes = [an_index(number, state, 1) for number, state in enumerate(states, 1)]
    building = a_building(master, *indexes, live=(1,))
    # The state has them in no particular order: here, in both.
    master.node.state = SimpleNamespace(in_phase=lambda *phases: indexes)
    assert building._hosts("travel") == [(1, True)]


def test_who_waits_under_a_number_that_was_renewed_already_waits_no_more(master: Master) -> None:
    """A heartbeat from before the renewal would bring another one."""
    building = a_building(master, an_index(1, MAINTENANCE, 1), live=(1,))
    stream = Stream("travel", 4, (Source(0, 5, 4),), b"", b"", "")
    change = (Mutation("StreamRenewed", stream.key, b"", stream), 9)
    master.node.state = evolve(master.node.state, [change])

    def waiting(number: int) -> Any:
        beat: Any = SimpleNamespace(
            projector=0, incarnation=5, waiting=(StreamAwaited("travel", number),)
        )
        return building._waiting([beat])

    assert waiting(3) == {}
    assert waiting(4) == {"travel": (4, [(0, 5)])}

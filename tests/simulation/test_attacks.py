"""Directed scenarios that once broke something: each shows what must not happen again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.consensus.effects import ReadTail
from coordinator.core.consensus.election import ELECTED
from coordinator.core.consensus.inputs import AcksRead, BeatsRead
from coordinator.core.consensus.view import CATCHING_UP
from coordinator.core.model.commands import OK, REFUSED, UNKNOWN, Leave, Reform, StepDown
from coordinator.core.model.records import (
    IndexerRegistered,
    JoinRequested,
    MasterClaimed,
    MemberAdmitted,
    MemberExpired,
    ProjectorHeartbeat,
    ProjectorRegistered,
)
from coordinator.kafka.topics import ACKS, HEARTBEAT
from tests.simulation.actors import Operator
from tests.simulation.machine import EFFECTS, Machine
from tests.simulation.scenes import (
    PUT,
    ask,
    master_of,
    operate,
    records,
    replicas_of,
    run_until,
    serves,
    standing,
    world_has_members,
)
from tests.simulation.world import World
from tests.support.indexes import make_indexer_beat


def test_a_node_whose_heartbeats_are_not_heard_is_not_admitted_over_and_over(world: World) -> None:
    mute = replicas_of(world)[0]
    mute.cut_topics.add(HEARTBEAT)
    world.clock.run(world.clock.now + 8_000)
    assert len(records(world, MemberExpired)) == 1
    assert mute.number not in world.judge.truth.members
    mute.cut_topics.clear()
    run_until(world, world_has_members(world, 3))


def test_the_expiry_of_the_last_life_does_not_end_the_next(world: World) -> None:
    """Both are due at once where a node comes back while the master is writing."""
    master, again = master_of(world), replicas_of(world)[0]
    again.crash()
    again.start()
    node = master.node
    assert node is not None
    incarnation = again.number * 1_000 + again.incarnation
    beat = replace(node.peers.nodes[again.number].beat, incarnation=incarnation)
    stranger = make_indexer_beat(7, address="indexer7", zone="a")
    joiner = JoinRequested(again.number, incarnation, "again", node.state.cas, node.state.digest)
    master.feed(BeatsRead((stranger,)))
    master.feed(BeatsRead((beat,)))
    master.feed(AcksRead((joiner,)))
    run_until(world, lambda: world.judge.truth.members.get(again.number) == incarnation)
    run_until(world, world_has_members(world, 3))
    written = records(world, MemberAdmitted, MemberExpired)
    admitted = next(offset for offset, r in written if getattr(r, "incarnation", 0) == incarnation)
    assert not [r for offset, r in written if offset > admitted]


def test_a_reform_by_another_node_answers_nobody_who_wished_to_leave(world: World) -> None:
    """The master of before is cut off, and reads the forced claim when it is back."""
    old = master_of(world)
    other, third = replicas_of(world)
    old.cut = True
    run_until(world, lambda: standing(other).state != ELECTED)
    wish = Operator(world, old, Leave(third.number))
    forced = Operator(world, other, Reform(2, (), "the master is away"))
    run_until(world, lambda: forced.outcome is not None)
    assert forced.outcome is not None
    assert forced.outcome.status == OK
    old.cut = False
    run_until(world, lambda: wish.outcome is not None)
    assert wish.outcome is not None
    assert wish.outcome.status == UNKNOWN
    assert third.number in world.judge.truth.roster


def test_nobody_leaves_where_too_few_would_be_active(world: World) -> None:
    first, second = replicas_of(world)
    first.crash()
    run_until(world, lambda: first.number not in world.judge.truth.members)
    outcome = operate(world, master_of(world), Leave(second.number))
    assert (outcome.status, outcome.code) == (REFUSED, "leave_impossible")
    assert ask(world, PUT).status == OK


def test_nobody_leaves_where_too_few_that_may_claim_would_be_left(world: World) -> None:
    """A node that has just come back may not claim before it has accepted something."""
    leaver, back = replicas_of(world)
    back.cut = True
    run_until(world, lambda: ask(world, PUT).status == OK)
    back.cut = False
    run_until(world, world_has_members(world, 3))
    outcome = operate(world, master_of(world), Leave(leaver.number))
    assert (outcome.status, outcome.code) == (REFUSED, "leave_impossible")
    assert ask(world, PUT).status == OK
    assert operate(world, master_of(world), Leave(leaver.number)).status == OK
    master_of(world).crash()
    run_until(world, lambda: serves(back))


def test_a_master_that_ends_nothing_lets_another_try(world: World) -> None:
    """It cannot hear a single answer, and would claim again and again."""
    deaf = master_of(world)
    deaf.cut_topics.add(ACKS)
    limit = world.clock.now + 30_000
    while ask(world, PUT).status != OK:
        assert world.clock.now < limit
        world.clock.run(world.clock.now + 200)
    assert master_of(world) is not deaf
    assert world.judge.truth.epoch == 3
    deaf.cut_topics.clear()


def test_a_master_whose_store_hangs_lets_another_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = master_of(world)
    monkeypatch.setattr(hanging, "_synced", lambda *_: None)
    limit = world.clock.now + 30_000
    while ask(world, PUT).status != OK:
        assert world.clock.now < limit
    assert master_of(world) is not hanging
    monkeypatch.undo()
    hanging.crash()
    hanging.start()


@pytest.mark.thorough
def test_a_master_that_ends_nothing_goes_on_where_nobody_else_could(world: World) -> None:
    """No answer of anybody arrives for a while."""
    for machine in world.machines.values():
        machine.cut_topics.add(ACKS)
    limit = world.clock.now + 20_000
    while world.clock.now < limit:
        assert ask(world, PUT).status == UNKNOWN
    for machine in world.machines.values():
        machine.cut_topics.clear()
    run_until(world, lambda: ask(world, PUT).status == OK, limit_ms=30_000)


def test_a_master_that_never_recovers_lets_another_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read `statecontext`, and its heartbeats would keep the others waiting."""
    read_tail, stuck = EFFECTS[ReadTail], set[Machine]()

    def read_unless_stuck(machine: Machine, effect: ReadTail) -> None:
        if not stuck or machine in stuck:
            stuck.add(machine)
        else:
            read_tail(machine, effect)

    monkeypatch.setitem(EFFECTS, ReadTail, read_unless_stuck)
    operate(world, master_of(world), StepDown())
    run_until(world, lambda: master_of(world) not in stuck and serves(master_of(world)))
    assert ask(world, PUT).status == OK
    assert stuck


@pytest.mark.thorough
@pytest.mark.parametrize("trimmed", [True, False])
def test_a_reader_that_begins_late_does_not_make_an_empty_state_of_an_unread_log(
    world: World, monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    """All nodes died in a transaction, one lost its disk, and reads nothing for a while."""
    operate(world, master_of(world), StepDown())
    run_until(world, world_has_members(world, 3))
    if trimmed:
        world.broker.trim(records(world, MasterClaimed)[-1][0])
    world.broker.transaction_timeout_ms = 20_000
    session = world.broker.session
    assert session is not None
    Operator(world, master_of(world), Leave(99))
    for machine in world.machines.values():
        machine.crash("all at once")
    world.broker.send(session, "commit", MemberExpired(world.judge.truth.epoch, 99, "", 0))
    late, other = replicas_of(world)
    late.wipe()
    monkeypatch.setattr(late, "_commit_moved", lambda: None)
    late.start()
    world.clock.run(world.clock.now + 4_000)
    assert late.node is not None
    assert late.node.phase == CATCHING_UP
    monkeypatch.undo()
    late._commit_moved()
    other.start()
    run_until(world, lambda: serves(master_of(world)) and len(world.judge.truth.members) > 1)
    assert ask(world, PUT).status == OK


def test_nobody_registers_under_a_number_that_cannot_be(world: World) -> None:
    """A record of it would be void, and written again with each of its heartbeats."""
    stranger = make_indexer_beat(999, address="indexer999", zone="a")
    for _ in range(4):
        master_of(world).feed(
            BeatsRead(
                (
                    stranger,
                    ProjectorHeartbeat(
                        projector=-3, incarnation=1, address="projector", pid=1, at_ms=0
                    ),
                )
            )
        )
        world.clock.run(world.clock.now + 250)
    numbers = {r.indexer for _, r in records(world, IndexerRegistered)}
    assert numbers == {i.number for i in world.indexers}
    assert not records(world, ProjectorRegistered)

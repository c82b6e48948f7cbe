"""Directed scenarios: stepping down, leaving, reform, nobody to elect, indexers that forget."""

from __future__ import annotations

import pytest

from coordinator.core.consensus.election import (
    CLAIMING,
    ELECTED,
    NO_ELIGIBLE_NODE,
    OPENING,
    READING,
)
from coordinator.core.consensus.inputs import Stopping
from coordinator.core.consensus.roles import BOOTSTRAP, REPLICA
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    UNKNOWN,
    CreateIndex,
    Leave,
    Reform,
    StepDown,
)
from coordinator.core.model.entities import Index
from coordinator.core.model.records import (
    ClusterReformed,
    MasterClaimed,
    MasterResigned,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.types import TxnId
from tests.simulation.actors import Operator
from tests.simulation.machine import Machine
from tests.simulation.scenes import (
    PUT,
    Caller,
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


def test_stepping_down_hands_over_to_whom_is_named_without_any_suspicion(world: World) -> None:
    old, heir = master_of(world), replicas_of(world)[-1]
    before = world.clock.now
    outcome = operate(world, old, StepDown(heir.number, "upgrade"))
    assert outcome.status == OK
    assert outcome.answer["master"] == heir.number
    assert world.clock.now - before < world.config["election_timeout_ms"]
    assert old.node is not None
    assert old.node.role in (BOOTSTRAP, REPLICA)
    run_until(world, world_has_members(world, 3))
    assert len(records(world, MasterResigned)) == 1
    assert ask(world, PUT).status == OK


def test_a_repeat_of_stepping_down_deposes_nobody_else(world: World) -> None:
    epoch = world.judge.truth.epoch
    operate(world, master_of(world), StepDown(epoch=epoch))
    run_until(world, lambda: serves(master_of(world)))
    heir = master_of(world)
    outcome = operate(world, heir, StepDown(epoch=epoch))
    assert (outcome.status, outcome.answer["master"]) == (OK, heir.number)
    assert world.judge.truth.epoch == epoch + 1


def test_nobody_steps_down_when_nobody_could_follow(world: World) -> None:
    for replica in replicas_of(world):
        replica.crash()
    world.clock.run(world.clock.now + 2_000)
    outcome = operate(world, master_of(world), StepDown())
    assert (outcome.status, outcome.code) == (REFUSED, "no_successor")
    assert serves(master_of(world))


def test_a_successor_that_dies_is_replaced(world: World) -> None:
    heir = replicas_of(world)[0]
    operator = Operator(world, master_of(world), StepDown(heir.number))
    run_until(world, lambda: world.judge.truth.master == 0)
    heir.crash()
    run_until(world, lambda: operator.outcome is not None)
    assert operator.outcome is not None
    assert operator.outcome.answer["master"] != heir.number


def test_a_stopping_master_hands_over_first(world: World) -> None:
    old = master_of(world)
    old.feed(Stopping())
    run_until(world, lambda: world.judge.truth.master not in (0, old.number))
    assert len(records(world, MasterResigned)) == 1


def test_a_resignation_waits_for_the_transaction_under_way(world: World) -> None:
    """A replica is silent: the transaction stays open while the master asks it again."""
    silent, heir = replicas_of(world)
    silent.pause()
    old = master_of(world)
    caller = Caller(world, PUT)
    run_until(world, lambda: world.judge.truth.open is not None)
    operator = Operator(world, old, StepDown(heir.number))
    assert world.judge.truth.open is not None
    run_until(world, lambda: operator.outcome is not None)
    silent.resume()
    assert operator.outcome is not None
    assert operator.outcome.status == OK
    run_until(world, lambda: caller.outcome is not None)
    assert caller.outcome is not None
    assert caller.outcome.status == OK, "it was committed, and told, before the end"
    ends = (TransactionProposed, TransactionCommitted, TransactionRolledBack, MasterResigned)
    order = [type(record) for _, record in records(world, *ends)]
    resigned = order.index(MasterResigned)
    assert order[resigned - 2 : resigned] == [TransactionProposed, TransactionCommitted]


def test_a_node_leaves_and_returns_when_it_is_started_again(world: World) -> None:
    leaver = replicas_of(world)[0]
    outcome = operate(world, master_of(world), Leave(leaver.number))
    assert outcome.status == OK
    assert leaver.number not in outcome.answer["roster"]
    assert ask(world, PUT).status == OK
    world.clock.run(world.clock.now + 3_000)
    assert leaver.node is not None
    assert leaver.node.admission.has_left
    assert leaver.number not in world.judge.truth.members
    leaver.crash()
    leaver.start()
    run_until(world, world_has_members(world, 3))
    assert leaver.number in world.judge.truth.roster


def test_the_last_copies_and_the_master_do_not_leave(world: World) -> None:
    master = master_of(world)
    assert operate(world, master, Leave(master.number)).code == "leave_impossible"
    assert operate(world, master, Leave(99)).code == "member_not_found"
    first, second = replicas_of(world)
    assert operate(world, master, Leave(first.number)).status == OK
    assert operate(world, master, Leave(second.number)).code == "leave_impossible"
    run_until(world, lambda: first.node is not None and first.node.admission.has_left)


def test_a_master_alone_goes_on_after_a_reform(world: World) -> None:
    master, lost = master_of(world), replicas_of(world)
    for replica in lost:
        replica.crash()
    assert ask(world, PUT, patience_ms=3_000).status == UNKNOWN
    numbers = tuple(m.number for m in lost)
    outcome = operate(world, master, Reform(1, numbers, "two are lost"))
    assert outcome.status == OK
    assert outcome.answer == {"roster": [master.number], "active": [master.number], "minimum": 1}
    assert ask(world, PUT).status == OK


def test_nobody_eligible_is_said_and_a_complete_node_can_be_made_master(world: World) -> None:
    """The node that is left was outside when the last transaction was accepted."""
    outside, other = replicas_of(world)
    outside.cut = True
    run_until(world, lambda: ask(world, PUT).status == OK)
    assert outside.number not in world.judge.truth.acceptors
    master_of(world).crash()
    other.crash()
    outside.cut = False
    run_until(world, lambda: standing(outside).state == NO_ELIGIBLE_NODE)
    assert set(standing(outside).waiting_for) == set(world.judge.truth.acceptors)
    refusal = operate(world, outside, StepDown())
    assert refusal.details["mastership"] == NO_ELIGIBLE_NODE
    assert outside.node is not None
    assert "no eligible node is alive" in outside.node.why_not_ready
    outcome = operate(world, outside, Reform(1, (), "the others are lost"))
    while outcome.code == "no_master":  # Its own last candidacy still ends.
        outcome = operate(world, outside, Reform(1, (), "the others are lost"))
    assert outcome.status == OK
    assert outcome.answer["master"] == outside.number
    run_until(world, lambda: standing(outside).state == ELECTED and serves(outside))
    assert ask(world, PUT).status == OK
    assert len(records(world, ClusterReformed)) == 1


def test_a_reform_is_refused_while_there_is_a_master(world: World) -> None:
    replica = replicas_of(world)[0]
    assert operate(world, replica, Reform(1)).code == "not_master"
    assert operate(world, master_of(world), Reform(9)).code == "reform_impossible"


@pytest.mark.parametrize("alive", [True, False])
def test_an_indexer_that_lost_its_storage_allocates_again_and_the_state_says_so(
    world: World, alive: bool
) -> None:
    outcome = ask(
        world, CreateIndex(name="i", bucket="b", expressions=("x",), slices=3, replicas=1)
    )
    index_id = int(outcome.answer["index"]["id"])
    before = shards_of(world, index_id)
    assert 0 not in before.values()
    indexer = next(i for i in world.indexers if i.number in before)
    indexer.alive = alive
    indexer.forget()
    if not alive:
        master_of(world).crash()
        indexer.alive = True
    run_until(world, lambda: shards_of(world, index_id)[indexer.number] != before[indexer.number])
    run_until(world, lambda: world.judge.indexer_differences() == "")


def shards_of(world: World, index_id: int) -> dict[int, int]:
    entity = world.judge.entities[f"index/{index_id}"][2]
    assert isinstance(entity, Index)
    return {shard.indexer: shard.number for shard in entity.shards}


def test_a_cluster_that_was_stopped_as_a_whole_elects_one_master_when_it_starts(
    world: World,
) -> None:
    """The last master resigned when it was told to stop: nobody is to be missed."""
    for machine in world.machines.values():
        machine.feed(Stopping())
    run_until(world, lambda: len(records(world, MasterResigned)) == 1)
    for machine in world.machines.values():
        machine.crash("stopped")
    epoch, claims = world.judge.truth.epoch, len(records(world, MasterClaimed))
    world.clock.run(world.clock.now + 1_000)
    began = world.clock.now
    for machine in world.machines.values():
        machine.start()
    run_until(world, lambda: world.judge.truth.epoch > epoch and serves(master_of(world)))
    assert world.clock.now - began < 2_000
    run_until(world, world_has_members(world, 3))
    assert len(records(world, MasterClaimed)) == claims + 1


@pytest.mark.parametrize("step", [OPENING, READING, CLAIMING])
def test_a_candidate_that_fences_and_dies_leaves_no_lasting_damage(world: World, step: str) -> None:
    """The master was only stopped for a while: it goes on, or claims anew."""
    old = master_of(world)
    old.pause()

    def candidate() -> Machine | None:
        for machine in replicas_of(world):
            candidacy = machine.node.election.candidacy if machine.node else None
            if candidacy is not None and candidacy.step == step:
                return machine
        return None

    while candidate() is None:
        world.clock.run(world.clock.now + 1)
    dead = candidate()
    assert dead is not None
    dead.crash()
    old.resume()
    outcome = ask(world, PUT, id="after", recorded=True)
    while outcome.status != OK:
        world.clock.run(world.clock.now + 100)
        if world.judge.truth.master:
            outcome = ask(world, PUT, id="after", recorded=True)
    dead.start()
    run_until(world, world_has_members(world, 3))
    assert len(world.judge.effects["after"]) == 1


@pytest.mark.parametrize("wiped", [False, True])
def test_a_start_does_not_wait_for_the_transaction_of_a_dead_master(
    world: World, wiped: bool
) -> None:
    """All nodes died while the verdict was written, and Kafka waits for its end for 20 s."""
    world.broker.transaction_timeout_ms = 20_000
    master = master_of(world)
    session = world.broker.session
    Operator(world, master, Leave(99))
    assert session is not None
    for machine in world.machines.values():
        machine.crash("all at once")
    stands = world.judge.truth
    late = TransactionRolledBack(TxnId(stands.epoch, 99), -1, "of the dead", 0)
    world.broker.send(session, "commit", late)
    if wiped:
        replicas_of(world)[0].wipe()
    began = world.clock.now
    for machine in world.machines.values():
        machine.start()
    run_until(world, lambda: world.judge.truth.epoch > 1 and serves(master_of(world)))
    assert world.clock.now - began < 8_000
    assert ask(world, PUT).status == OK
    run_until(world, world_has_members(world, 3))

"""Directed scenarios: one fault, placed by hand, and what must come of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.consensus import authority as authorities
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    UNKNOWN,
    CreateIndex,
    DeleteSetting,
    PutSetting,
    Request,
)
from coordinator.core.model.records import (
    MemberAdmitted,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from tests.simulation.actors import NEVER, request_of
from tests.simulation.faults import HOUR_MS
from tests.simulation.machine import Machine
from tests.simulation.scenes import (
    Caller,
    ask,
    master_of,
    records,
    replicas_of,
    run_until,
    serves,
    world_has_members,
)
from tests.simulation.world import World

PUT = PutSetting("k", '"v"')
CREATE = CreateIndex(name="i", bucket="b", expressions=("x",))


def test_a_refusing_replica_rolls_back_and_its_log_is_deleted(world: World) -> None:
    replica = replicas_of(world)[0]
    before = {m.number: m.node.state.cas for m in world.machines.values() if m.node}
    replica.disk.full = True
    rolled_back = world.judge.rolled_back
    outcome = ask(world, PUT)
    assert (outcome.status, outcome.code) == (UNKNOWN, "unavailable")
    assert world.judge.rolled_back - rolled_back == world.config.get("attempts_max", 3)
    world.clock.run(world.clock.now + 200)
    for machine in world.machines.values():
        assert machine.node is not None
        assert machine.node.state.cas == before[machine.number]
        assert machine.node.prepared is None
        assert machine.disk.newest.prepared is None
    assert replica.number not in world.judge.truth.members, "it kept refusing"
    assert ask(world, PUT).status == OK


@pytest.mark.thorough
def test_refusals_with_a_success_between_them_do_not_add_up(world: World) -> None:
    master, replica = master_of(world), replicas_of(world)[0]
    assert master.node is not None
    assert replica.node is not None
    limit = 6
    master.node.config = replace(master.node.config, attempts_max=limit)
    replica.node.config = replace(replica.node.config, probe_ms=1)
    before = world.judge.rolled_back
    while world.judge.rolled_back - before <= 2 * limit:
        rolled_back = world.judge.rolled_back
        replica.disk.full = True
        caller = Caller(world, PUT)
        while world.judge.rolled_back == rolled_back:
            world.clock.run(world.clock.now + 1)
        replica.disk.full = False
        run_until(world, lambda asked=caller: asked.outcome is not None)  # type: ignore[misc]
        assert caller.outcome is not None
        assert caller.outcome.status == OK
        assert replica.number in world.judge.truth.members


def test_who_hears_the_master_again_while_it_looks_does_not_claim(world: World) -> None:
    master, replicas = master_of(world), replicas_of(world)
    epoch = world.judge.truth.epoch
    master.pause()
    looking: list[Machine] = []

    def somebody_looks() -> bool:
        looking[:] = [m for m in replicas if m.node and m.node.election.candidacy]
        return bool(looking)

    run_until(world, somebody_looks, step_ms=1)
    for machine in looking:
        machine.dead_reader = "commit"
    master.resume()
    world.clock.run(world.clock.now + 300)
    for machine in looking:
        machine.dead_reader = ""
    world.clock.run(world.clock.now + 2_000)
    assert (world.judge.truth.epoch, master_of(world)) == (epoch, master)


def test_a_silent_replica_is_expired_and_the_transaction_goes_on(world: World) -> None:
    replica = replicas_of(world)[0]
    replica.cut = True
    assert ask(world, PUT).status == OK
    assert replica.number not in world.judge.truth.members
    replica.cut = False
    run_until(world, world_has_members(world, 3))


def test_below_the_minimum_nothing_is_proposed(world: World) -> None:
    for replica in replicas_of(world):
        replica.crash()
    assert ask(world, PUT).status == UNKNOWN
    run_until(world, lambda: len(world.judge.truth.members) == 1)
    proposed = len(records(world, TransactionProposed))
    outcome = ask(world, PUT, patience_ms=1_500)
    assert outcome.status == UNKNOWN
    assert "copies are needed" in outcome.message
    assert len(records(world, TransactionProposed)) == proposed
    for machine in world.machines.values():
        machine.start()
    run_until(world, world_has_members(world, 3))
    assert ask(world, PUT).status == OK


@pytest.mark.parametrize("settled", ["committed", "rolled back"])
def test_a_late_duplicate_of_a_proposal_is_void(world: World, settled: str) -> None:
    if settled == "rolled back":
        replicas_of(world)[0].disk.full = True
        ask(world, PUT)
        replicas_of(world)[0].disk.full = False
    run_until(world, lambda: world.judge.truth.open is None)
    _, proposal = records(world, TransactionProposed)[-1]
    points = [world.judge.truth.point]
    world.broker["commit"].append(proposal, None, world.clock.now)
    points.append(world.judge.truth.point)
    assert points[0] == points[1]
    assert ask(world, PUT).status == OK


def test_an_ambiguous_commit_is_answered_from_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = world.judge.truth.epoch
    caller = Caller(world, PUT)
    end = world.broker.end

    def unheard(*args: Any) -> None:
        world.faults.answer_lost = 1.0
        end(*args)

    monkeypatch.setattr(world.broker, "end", unheard)
    run_until(world, lambda: caller.outcome is not None)
    monkeypatch.undo()
    world.faults.answer_lost = 0.0
    assert caller.outcome is not None
    assert caller.outcome.status == OK
    assert caller.outcome.cas in world.judge.done
    run_until(world, lambda: world.judge.truth.epoch > epoch)
    run_until(world, world.settled)


def test_a_state_whose_last_tombstone_is_compacted_away_is_synchronised(world: World) -> None:
    ask(world, PUT)
    assert ask(world, DeleteSetting("k")).status == OK
    replica = replicas_of(world)[0]
    replica.crash()
    replica.wipe()
    world.broker.compact(0)
    newest = world.broker["statecontext"].records[-1]
    assert newest.offset + world.cas_base < world.judge.last_cas
    replica.start()
    run_until(world, world_has_members(world, 3))
    assert replica.node is not None
    assert replica.node.counters.full_synchronisations == 1
    assert replica.node.state.cas == world.judge.last_cas


def test_a_flipped_byte_on_a_disk_stops_the_node_and_it_rebuilds(world: World) -> None:
    replica = replicas_of(world)[0]
    run_until(world, lambda: "config/first" in replica.disk.newest.entities)
    world.clock.run(world.clock.now + 500)
    replica.crash(kept=len(replica.disk.unsynced))
    content = replica.disk.newest
    held = content.entities["config/first"]
    flipped = held._replace(value=bytes([held.value[0] ^ 1]) + held.value[1:])
    entities = content.entities.set("config/first", flipped)
    assert states.restore(content.cas, entities.items()).digest != content.digest
    replica.disk.durable = replica.disk.newest = content._replace(entities=entities)
    world.alarms_expected = {"digest_mismatch"}
    world.judge.restored = lambda number, restored: None  # type: ignore[method-assign]
    replica.start()
    run_until(world, world_has_members(world, 3))
    assert any("halts: digest_mismatch" in line for line in world.lines)


def test_a_joiner_is_not_admitted_inside_a_transaction(world: World) -> None:
    joiner, silent = replicas_of(world)
    joiner.crash()
    joiner.wipe()
    silent.pause()
    caller = Caller(world, PUT)
    joiner.start()
    run_until(world, lambda: caller.outcome is not None)
    silent.resume()
    run_until(world, world_has_members(world, 3))
    ends = (TransactionCommitted, TransactionRolledBack)
    opened = None
    for _, record in records(world, TransactionProposed, MemberAdmitted, *ends):
        if isinstance(record, TransactionProposed):
            opened = record.txn
        elif isinstance(record, ends):
            opened = None
        else:
            assert opened is None, f"node {record.node} was admitted inside {opened}"


def test_an_admission_inside_a_transaction_is_void(world: World) -> None:
    replicas_of(world)[0].pause()
    Caller(world, PUT)
    run_until(world, lambda: world.judge.truth.open is not None)
    world.clock.run(world.clock.now + 20)
    node = master_of(world).node
    assert node is not None
    authority = node.authority
    assert authority is not None
    assert authority.open is not None
    record = MemberAdmitted(authority.epoch, 9, 1, "", authority.last_cas, authority.digest, 0)
    folded = authorities.fold(authority, 10**6, record)
    assert folded.state == authority
    assert "is open" in folded.void


def test_an_index_that_an_indexer_refuses_is_removed_again(world: World) -> None:
    for indexer in world.indexers:
        indexer.refusing = 1.0
    outcome = ask(world, CREATE)
    assert (outcome.status, outcome.code) == (REFUSED, "indexer_refused")
    for indexer in world.indexers:
        indexer.refusing = 0.0
    assert ask(world, CREATE).status == OK, "the name is free again"
    run_until(world, world.settled)
    assert len(world.judge.names) == 1


def test_indexers_that_stay_silent_count_as_refusing(world: World) -> None:
    run_until(world, lambda: len(world.judge.truth.members) == 3)
    caller = Caller(world, CREATE)
    for indexer in world.indexers:
        indexer.alive = False
    run_until(world, lambda: caller.outcome is not None)
    assert caller.outcome is not None
    assert (caller.outcome.status, caller.outcome.code) == (REFUSED, "indexer_refused")


def test_a_repeat_after_a_failover_gets_the_first_outcome(world: World) -> None:
    first = ask(world, PUT, id="same", recorded=True, fingerprint=5)
    assert ask(world, PutSetting("k", '"other"')).status == OK
    epoch = world.judge.truth.epoch
    master_of(world).crash()
    run_until(world, lambda: world.judge.truth.epoch > epoch)
    run_until(world, lambda: serves(master_of(world)))
    second = ask(world, PUT, id="same", recorded=True, fingerprint=5)
    assert (second.status, second.cas, second.txn) == (OK, first.cas, first.txn)
    assert len(world.judge.effects["same"]) == 1


def test_recorded_refusals_keep_to_the_bounds_of_a_group(world: World) -> None:
    """A refusal of a command from the topic is recorded with the value that stood in its way."""
    assert ask(world, PutSetting("k", json.dumps("v" * 60_000))).status == OK
    before = len(records(world, TransactionCommitted))
    for number in range(20):
        request = Request(command=PUT, id=f"t{number}", expected_cas=NEVER, recorded=True)
        world.broker.ddl[0].append(request, None, world.clock.now)
    run_until(world, lambda: len(world.broker["ddl-replies"].read(0)) == 20)
    assert len(records(world, TransactionCommitted)) - before > 2, "they do not fit into one"


def test_a_master_decides_by_the_membership_that_it_has_read_back(world: World) -> None:
    """Kafka tells the end of a transaction before anybody can read it."""
    world.broker.marker_spread_ms = 400
    joiner = replicas_of(world)[0]
    for _ in range(4):
        joiner.crash()
        assert ask(world, PUT).status == OK
        joiner.start()
        epoch = world.judge.truth.epoch
        while not (joiner.node and joiner.node.is_member):
            assert ask(world, PUT).status == OK
        assert world.judge.truth.epoch == epoch


def test_a_published_command_is_not_overtaken_after_a_rollback(world: World) -> None:
    """The second one waits for an index; the first is rolled back, and still comes first."""
    for indexer in world.indexers:
        indexer.alive = False
    Caller(world, CREATE)
    run_until(world, lambda: len(world.judge.names) == 1)
    for replica in replicas_of(world):
        replica.disk.full = True
    line = (PutSetting("k", '"first"'), CREATE, PutSetting("k", '"last"'))
    for number, command in enumerate(line):
        request = Request(command=command, id=f"t{number}", fingerprint=number, recorded=True)
        world.broker.ddl[0].append(request, None, world.clock.now)
    run_until(world, lambda: world.judge.rolled_back > 0)
    for replica in replicas_of(world):
        replica.disk.full = False
    for indexer in world.indexers:
        indexer.alive = True
    run_until(world, lambda: len(world.broker["ddl-replies"].read(0)) == 3)
    replies = [r.value.request for r in world.broker["ddl-replies"].read(0)]
    assert replies == ["t0", "t1", "t2"]


def test_a_request_is_not_executed_again_after_a_wall_clock_ran_ahead() -> None:
    """A master whose clock is ahead evicts nothing that it has not known for a whole window."""
    world = World(1, plain=True)
    run_until(world, world_has_members(world, 3))
    world.timed_ids = True
    request_id, _ = world.request_id("")
    again = {"id": request_id, "recorded": True, "fingerprint": 5}
    first = ask(world, PUT, **again)
    master = master_of(world)
    master.skew_ms += 2 * HOUR_MS
    world.clock.run(world.clock.now + 3_000)
    master.crash()
    run_until(world, lambda: serves(master_of(world)))
    second = ask(world, PUT, **again)
    assert (second.status, second.cas, second.txn) == (OK, first.cas, first.txn)


def test_what_was_published_is_executed_once_however_long_there_was_no_master() -> None:
    """Also what was published before the outage, and not read; and no late repeat of any of it."""
    window_ms = 4_000
    world = World(1, plain=True, request_window_ms=window_ms)
    run_until(world, world_has_members(world, 3))
    world.timed_ids = True
    ddl = world.broker.ddl
    sent: list[Request] = []

    def publish(key: str) -> None:
        request_id, _ = world.request_id(key)
        sent.append(request_of(PutSetting(key, f'"{key}"'), request_id, "", None, True))
        ddl[len(sent) % len(ddl)].append(sent[-1], None, world.clock.now)

    for machine in world.machines.values():
        machine.crash()
    for turn in range(5):
        publish(f"k{turn}")
        world.clock.run(world.clock.now + window_ms)
    for machine in world.machines.values():
        machine.start()
    run_until(world, lambda: len(_replies(world)) == 5)
    assert {reply.status for reply in _replies(world)} == {OK}
    for turn in range(1, 9):
        world.clock.run(world.clock.now + window_ms // 2)
        for number, request in enumerate(sent):
            ddl[(number + turn) % len(ddl)].append(request, None, world.clock.now)
        run_until(world, lambda told=turn: len(_replies(world)) == 5 * (1 + told))  # type: ignore[misc]
    assert {reply.error_code for reply in _replies(world)} == {"", "request_expired"}
    world.heal()
    run_until(world, world.settled)
    world.judge.conclude()


def _replies(world: World) -> list[Any]:
    return [record.value for record in world.broker["ddl-replies"].read(0)]

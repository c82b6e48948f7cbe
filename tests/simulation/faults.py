"""The faults of the world: how each of them strikes, how long it lasts, and how it ends.

A fault strikes at random, at a time that the seed chose, or it is *armed*: it strikes a node at the
moment at which that takes a certain step of the protocol, between two effects if need be. A strike
that makes no sense now (no transaction is open to time out) does not happen, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from coordinator.core.model.commands import Leave, StepDown
from coordinator.core.model.records import AuthoritySnapshot, MasterClaimed, Unreadable
from coordinator.kafka.topics import ACKS, HEARTBEAT
from tests.simulation.kernel.broker import ABORTED, COMMITTED
from tests.simulation.kernel.faults import Fault
from tests.simulation.machine import PROCESS_STOPS, Machine

if TYPE_CHECKING:
    from tests.simulation.actors import Indexer
    from tests.simulation.cluster import Cluster
    from tests.simulation.world import World

Apply = Callable[[Machine], None]
Kind = Callable[[Any, Machine], bool]
"""A fault that strikes a machine; it tells whether it makes sense now."""

HOUR_MS = 3_600_000
OPENS_WITHIN_MS = 80


LIKELY = {
    "append_lost": 0.05,
    "append_unknown": 0.1,
    "append_doubled": 0.3,
    "ack_lost": 0.15,
    "call_lost": 0.04,
    "call_slow": 0.08,
    "answer_lost": 0.06,
    "end_late": 0.02,
}


class Faults(SimpleNamespace):
    """How likely each message meets each fault, by the names in `LIKELY`: at first, not at all."""

    def __init__(self) -> None:
        super().__init__(**dict.fromkeys(LIKELY, 0.0))


# -- processes -----------------------------------------------------------------------------------


def _crash(world: Cluster, machine: Machine) -> bool:
    """End the process within the next moments."""
    world.clock.at(world.clock.chance.randint(0, 3), _crash_now, world, machine)
    return True


def _crash_now(world: Cluster, machine: Machine) -> None:
    if machine.node is not None and not world.healed:
        world.coverage.struck("crash", machine.step)
        machine.crash()
        world.clock.at(world.down_ms(), machine.start)


def _ends(
    fault: str,
    why: str,
    kept: int | None = None,
    then: Apply | None = None,
    *,
    spares_the_last: bool = False,
) -> Kind:
    """Return a fault that ends the process, does something to the disk, and starts it again."""

    def strike(world: Cluster, machine: Machine) -> bool:
        if spares_the_last and not _others_stand(world, machine):
            return False
        world.coverage.struck(fault, machine.step)
        machine.crash(why, kept)
        if then is not None:
            then(machine)
        world.clock.at(world.down_ms(), machine.start)
        return True

    return strike


_crash_between_effects = _ends("crash between effects", "crash between two effects")
_power_cut = _ends("power cut", "power cut", kept=0)
"""All that was not synced is lost."""


def _crash_soon(world: Cluster, machine: Machine) -> bool:
    """Crash between two effects, some effects from now."""
    machine.fuse = world.clock.chance.randint(0, 12)
    return True


def _pause(world: Cluster, machine: Machine) -> bool:
    return _stop_for(world, machine, "pause", world.clock.chance.choice((100, 400, 900)))


def _zombie(world: Cluster, machine: Machine) -> bool:
    """Stop it for longer than every timeout, and let it go on as if nothing had been."""
    return _stop_for(world, machine, "zombie", world.clock.chance.randint(3_300, 4_500))


def _stop(world: Cluster, machine: Machine) -> bool:
    return world.clock.chance.choice((_pause, _zombie))(world, machine)


def _stop_for(world: Cluster, machine: Machine, kind: str, lasts_ms: int) -> bool:
    if PROCESS_STOPS & machine.active.keys():
        return False
    machine.begin(kind)
    machine.pause()
    machine.at(lasts_ms, _go_on, machine, kind)
    return True


def _go_on(machine: Machine, kind: str) -> None:
    if machine.paused:
        machine.end(kind)
        machine.resume()


# -- disks ---------------------------------------------------------------------------------------


def _others_stand(world: Cluster, machine: Machine) -> bool:
    """Tell whether some other disk has everything: only then may this one be lost."""
    others = [m for m in world.machines.values() if m is not machine]
    return any(m.node is not None and m.node.is_member for m in others)


_lose_any_disk = _ends("lost disk", "its disk is lost", then=Machine.wipe)
"""Also if it is the last: the log has everything."""
_lose_disk = _ends("lost disk", "its disk is lost", then=Machine.wipe, spares_the_last=True)
_damage_disk = _ends(
    "damaged disk",
    "its disk is damaged",
    then=lambda machine: setattr(machine.disk, "unreadable", True),
    spares_the_last=True,
)
"""The store cannot be read any more, and the reader notices."""


def _flip_bit(world: Cluster, machine: Machine) -> bool:
    """A byte of an entity changes in silence."""
    if not _others_stand(world, machine) or not machine.disk.newest.entities:
        return False
    step = machine.step
    machine.crash("a byte on its disk has changed", kept=len(machine.disk.unsynced))
    world.clock.at(world.down_ms(), machine.start)
    if machine.disk.flip(world.clock.chance.choice):
        machine.flipped = True
        world.coverage.struck("bit flip", step)
    return True


def _fail_sync(world: Cluster, machine: Machine) -> bool:
    """The next sync fails, and what it should have brought to the disk is not there."""
    machine.disk.next_sync_fails = True
    world.coverage.struck("failed sync", machine.step)
    return True


# -- the network ---------------------------------------------------------------------------------


def _lasts(kind: str, apply: Apply, undo: Apply) -> Kind:
    """Return a fault of one machine that lasts for a while."""

    def strike(world: Cluster, machine: Machine) -> bool:
        machine.begin(kind)
        apply(machine)
        world.clock.at(world.down_ms(), finish, machine)
        return True

    def finish(machine: Machine) -> None:
        if machine.end(kind):
            undo(machine)

    return strike


def _sets(name: str, value: Any) -> Apply:
    return lambda machine: setattr(machine, name, value)


def _fills(full: bool) -> Apply:
    return lambda machine: setattr(machine.disk, "full", full)


def _cut_off(topic: str) -> Kind:
    return _lasts(
        f"cut from {topic}",
        lambda machine: machine.cut_topics.add(topic),
        lambda machine: machine.cut_topics.discard(topic),
    )


def _mend(machine: Machine) -> None:
    """What else cuts the machine off goes on."""
    cut = "cut" in machine.active or "leader change" in machine.active
    machine.deaf = cut or "cut: hears nothing" in machine.active
    machine.mute = cut or "cut: is not heard" in machine.active


def _delay_messages(machine: Machine) -> None:
    machine.slow_ms = machine.clock.chance.choice((150, 600))


# -- clocks --------------------------------------------------------------------------------------


def _jump(world: Cluster, machine: Machine) -> bool:
    """The wall clock of the machine is set, hours forwards or backwards."""
    hours = world.clock.chance.choice((-5, -1, 1, 5))
    world.clocks_were_set = True
    machine.skew_ms += hours * HOUR_MS
    machine.begin("clock jump")
    world.clock.at(1_000, machine.end, "clock jump")
    return True


def _drift(machine: Machine) -> None:
    machine.run_at(machine.clock.chance.choice((0.8, 1.2)))


# -- the broker, and indexers --------------------------------------------------------------------


def _everywhere(world: Cluster, kind: str) -> bool:
    for machine in world.machines.values():
        if machine.node is not None:
            world.coverage.pairs[machine.step, kind] += 1
    world.coverage.faults[kind] += 1
    return True


def _time_out(world: Cluster, machine: Machine) -> bool:
    """The broker aborts the open transaction."""
    return _while_open(world, "transaction timeout", world.broker.time_out, OPENS_WITHIN_MS)


def _end_late(kind: str, status: str) -> Kind:
    """Return what no client of ours can bring about: topics are damaged, and must be repaired.

    The EndTxn of an earlier transaction ends the one that is open, and fences nobody.
    """

    def strike(world: Cluster, machine: Machine) -> bool:
        world.damaged = True
        return _while_open(world, kind, lambda: world.broker.end_late(status), OPENS_WITHIN_MS)

    return strike


def _repeat_the_end(world: Cluster, machine: Machine) -> bool:
    """The next EndTxn is delayed, its connection cut, and the client sends another."""
    machine.producer.cut_at_the_end = True
    world.coverage.struck("repeated EndTxn", machine.step)
    return True


def _while_open(world: Cluster, kind: str, strike: Callable[[], None], left_ms: int) -> bool:
    """Strike at the open transaction; if there is none, at the one that opens presently."""
    if world.healed:
        return False
    if world.broker.is_open:
        strike()
        _everywhere(world, kind)
    elif left_ms:
        world.clock.at(1, _while_open, world, kind, strike, left_ms - 1)
    return True


def _compact(world: Cluster, machine: Machine) -> bool:
    """Tombstones outlive any time without a master: what is above the last commit stays."""
    above = world.judge.last_cas - world.cas_base + 1
    return world.broker.compact(500, above) > 0 and _everywhere(world, "compaction")


def _trim(world: Cluster, machine: Machine) -> bool:
    """Somebody trims `commit`, up to a snapshot that all live nodes have read.

    Outcomes of requests that are remembered are not taken: they stand nowhere else.
    """
    read = [m.node.applied for m in world.machines.values() if m.node is not None]
    commit = world.broker["commit"]
    begins = [
        r.offset
        for r in commit.read(0)
        if isinstance(r.value, MasterClaimed | AuthoritySnapshot)
        and r.value.epoch <= world.judge.truth.epoch
        and not any(cas <= r.value.snapshot.last_cas for cas in world.judge.remembered)
    ]
    safe = [c for c in begins if all(c <= applied for applied in read)]
    if not safe or len(read) < len(world.machines) or safe[-1] <= commit.start:
        return False
    world.broker.trim(safe[-1])
    return _everywhere(world, "trim")


def _change_leader(world: Cluster, machine: Machine) -> bool:
    """Another broker takes over: for a while nobody is heard, and connections are cut."""
    lasts_ms = world.clock.chance.choice((200, 800, 1_500))
    for each in world.machines.values():
        if each.node is None:
            continue
        each.begin("leader change")
        each.cut = True
        each.producer.cut_at_the_end = world.clock.hit(0.5)
        world.clock.at(lasts_ms, _lead_again, each)
    return True


def _lead_again(machine: Machine) -> None:
    if machine.end("leader change"):
        _mend(machine)


def _kill_reader(world: Cluster, machine: Machine) -> bool:
    """The reader of `commit`, or of the heartbeats, stops without a word."""
    machine.dead_reader = world.clock.chance.choice(("commit", "heartbeat"))
    world.coverage.struck("dead reader", machine.step)
    return True


def _foreign(world: Cluster, machine: Machine) -> bool:
    """Somebody writes bytes on `commit` that are no record of it."""
    world.broker["commit"].append(Unreadable("foreign bytes"), None, world.clock.now)
    return _everywhere(world, "foreign record")


def _indexer_dies(world: World, machine: Machine) -> bool:
    indexer = world.clock.chance.choice(world.indexers)
    if not indexer.alive:
        return False
    indexer.alive = False
    for each in world.machines.values():
        each.begin("dead indexer")
    world.clock.at(2 * world.down_ms(), _indexer_lives, world, indexer)
    return True


def _indexer_lives(world: World, indexer: Indexer) -> None:
    indexer.alive = True
    for each in world.machines.values():
        each.end("dead indexer")


def _indexer_loses_storage(world: World, machine: Machine) -> bool:
    world.clock.chance.choice(world.indexers).forget()
    return _everywhere(world, "indexer without storage")


def _projector_dies(world: World, machine: Machine) -> bool:
    """A projector is away for a while, or started again at once; it remembers nothing."""
    if not world.projectors:
        return False
    projector = world.clock.chance.choice(world.projectors)
    projector.restart()
    if projector.alive and world.clock.hit(0.6):
        projector.alive = False
        world.clock.at(2 * world.down_ms(), setattr, projector, "alive", True)
    return True


def _projector_disconnects(world: World, machine: Machine) -> bool:
    for projector in world.projectors:
        if world.clock.hit(0.6):
            projector.disconnect()
    return bool(world.projectors)


# -- operators -----------------------------------------------------------------------------------


def _step_down(world: Cluster, machine: Machine) -> bool:
    """An operator moves the mastership, to this node or to any."""
    command = StepDown(world.clock.chance.choice((0, machine.number)))
    world.clock.at(1, world.operate, command)
    return _everywhere(world, "hand-over")


def _leave(world: Cluster, machine: Machine) -> bool:
    """An operator takes the node out of the cluster; it comes back later."""
    world.clock.at(1, world.operate, Leave(machine.number))
    world.clock.at(world.down_ms(), machine.tend)
    return _everywhere(world, "departure")


KINDS: dict[str, Kind] = {
    "crash": _crash,
    "crash between effects": _crash_between_effects,
    "power cut": _power_cut,
    "pause": _pause,
    "zombie": _zombie,
    "lost disk": _lose_disk,
    "damaged disk": _damage_disk,
    "bit flip": _flip_bit,
    "full disk": _lasts("full disk", _fills(True), _fills(False)),
    "cut": _lasts("cut", _sets("cut", True), _mend),
    "cut: is not heard": _lasts("cut: is not heard", _sets("mute", True), _mend),
    "cut: hears nothing": _lasts("cut: hears nothing", _sets("deaf", True), _mend),
    "cut from acks": _cut_off(ACKS),
    "cut from heartbeat": _cut_off(HEARTBEAT),
    "message loss": _lasts("message loss", _sets("lossy", True), _sets("lossy", False)),
    "duplication": _lasts("duplication", _sets("doubling", True), _sets("doubling", False)),
    "delay": _lasts("delay", _delay_messages, _sets("slow_ms", 0)),
    "clock jump": _jump,
    "clock rate": _lasts("clock rate", _drift, lambda machine: machine.run_at(1.0)),
    "transaction timeout": _time_out,
    "late commit": _end_late("late commit", COMMITTED),
    "compaction": _compact,
    "trim": _trim,
    "foreign record": _foreign,
    "dead indexer": _indexer_dies,
    "indexer without storage": _indexer_loses_storage,
    "hand-over": _step_down,
    "departure": _leave,
    "late abort": _end_late("late abort", ABORTED),
    "repeated EndTxn": _repeat_the_end,
    "failed sync": _fail_sync,
    "leader change": _change_leader,
    "dead reader": _kill_reader,
}

Chosen = tuple[Iterable[Machine], str]


def _running(machines: Iterable[Machine], named: Machine) -> Chosen:
    return (each for each in machines if each.node is not None), f", node {named.number}"


def _drawn(world: Cluster) -> Machine:
    return world.machines[world.clock.chance.choice(list(world.machines))]


def any_node(world: Cluster) -> Chosen:
    machine = _drawn(world)
    return _running((machine,), machine)


def the_master(world: Cluster) -> Chosen:
    machine = _drawn(world)
    machine = world.master or machine
    return _running((machine,), machine)


def all_nodes(world: Cluster) -> Chosen:
    return _running(world.machines.values(), _drawn(world))


ACTIONS: dict[str, Fault] = {
    "crash": Fault(any_node, _crash),
    "crash_in_step": Fault(any_node, _crash_soon),
    "crash_and_wipe": Fault(any_node, _lose_disk),
    "damage": Fault(any_node, _damage_disk),
    "flip": Fault(any_node, _flip_bit),
    "power_cut": Fault(any_node, _power_cut),
    "pause": Fault(any_node, _stop),
    "cut": Fault(any_node, KINDS["cut"]),
    "mute": Fault(any_node, KINDS["cut: is not heard"]),
    "deaf": Fault(any_node, KINDS["cut: hears nothing"]),
    "cut_topic": Fault(any_node, KINDS["cut from acks"]),
    "cut_beats": Fault(any_node, KINDS["cut from heartbeat"]),
    "full_disk": Fault(any_node, KINDS["full disk"]),
    "slow_network": Fault(any_node, KINDS["delay"]),
    "lossy_network": Fault(any_node, KINDS["message loss"]),
    "clock_jump": Fault(any_node, _jump),
    "clock_rate": Fault(any_node, KINDS["clock rate"]),
    "indexer_dies": Fault(any_node, _indexer_dies),
    "indexer_loses_storage": Fault(any_node, _indexer_loses_storage),
    "projector_dies": Fault(any_node, _projector_dies),
    "projector_disconnects": Fault(any_node, _projector_disconnects),
    "compact": Fault(any_node, _compact),
    "trim": Fault(any_node, _trim),
    "foreign": Fault(any_node, _foreign),
    "time_out": Fault(any_node, _time_out),
    "crash_the_master": Fault(the_master, _crash),
    "pause_the_master": Fault(the_master, _stop),
    "crash_the_master_in_step": Fault(the_master, _crash_soon),
    "cut_the_master": Fault(the_master, KINDS["cut"]),
    "mute_the_master": Fault(the_master, KINDS["cut: is not heard"]),
    "deafen_the_master": Fault(the_master, KINDS["cut: hears nothing"]),
    "cut_beats_of_the_master": Fault(the_master, KINDS["cut from heartbeat"]),
    "crash_all": Fault(all_nodes, _crash),
    "step_down": Fault(any_node, _step_down),
    "leave": Fault(any_node, _leave),
    "fail_sync": Fault(any_node, _fail_sync),
    "change_leader": Fault(any_node, _change_leader),
    "kill_reader": Fault(any_node, _kill_reader),
    "lose_all_disks": Fault(all_nodes, _lose_any_disk),
}

"""Which fault met which step of the protocol: named steps, named faults, and the pairs of them.

A node is *in* a step from the moment it takes it until it takes the next one. A pair counts when
the fault acts on the node at that moment, or strikes it before the next step. Faults of the broker
and of indexers strike every node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import OK, REFUSED
from coordinator.core.model.records import (
    ACCEPTED,
    AuthoritySnapshot,
    HoldingsReported,
    HoldingsRequested,
    IndexerRegistered,
    JoinRequested,
    MasterClaimed,
    MasterResigned,
    MemberAdmitted,
    MemberExpired,
    MemberLeft,
    ProposalAnswered,
    ReadBarrier,
    SliceAnswered,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

WRITTEN = {
    MasterClaimed: "claim written",
    TransactionCommitted: "verdict written",
    TransactionRolledBack: "rollback written",
    MemberAdmitted: "admission written",
    MemberExpired: "expiry written",
    IndexerRegistered: "registration written",
    AuthoritySnapshot: "snapshot written",
    MasterResigned: "resignation written",
    MemberLeft: "departure written",
}
BUILD_EVENTS = {"BuildRouted", "IndexBuilt", "StreamRenewed"}
READ = {
    TransactionProposed: "proposal read",
    TransactionCommitted: "verdict read",
    TransactionRolledBack: "rollback read",
    MemberAdmitted: "admission read",
    MemberExpired: "expiry read",
    IndexerRegistered: "registration read",
    AuthoritySnapshot: "snapshot read",
    MasterResigned: "resignation read",
    MemberLeft: "departure read",
    ReadBarrier: "barrier read",
}


def _appended(machine: Machine, effect: fx.Append) -> str:
    node = machine.node
    assert node is not None
    if isinstance(effect.record, TransactionProposed):
        events = {m.event for m in effect.record.mutations}
        if events & BUILD_EVENTS:
            return "step of a build proposed"
        return "READY proposed" if "IndexReady" in events else "proposal sent"
    if node.master is not None:
        return "barrier sent"
    if node.phase != "following":
        return "catching up"
    return "fenced, reading on" if machine.producer.session is not None else "claim look"


def _answered(machine: Machine, effect: fx.Answer) -> str:
    record = effect.record
    if isinstance(record, ProposalAnswered):
        return "proposal accepted" if record.answer == ACCEPTED else "proposal refused"
    return "admission asked for" if isinstance(record, JoinRequested) else ""


def _concluded(machine: Machine, effect: fx.Conclude) -> str:
    names = [WRITTEN[type(record)] for record in effect.records if type(record) in WRITTEN]
    if "expiry written" in names:
        return "expiry written"
    return names[-1] if names else ""


def _replied(machine: Machine, effect: fx.Reply) -> str:
    return {OK: "caller answered", REFUSED: "caller refused"}.get(effect.outcome.status, "")


def _beaten(machine: Machine, effect: fx.Beat) -> str:
    return "holdings asked for" if isinstance(effect.record, HoldingsRequested) else ""


def _always(name: str) -> Callable[[Machine, Any], str]:
    return lambda machine, effect: name


STEPS_OF_EFFECT: dict[type, Callable[[Machine, Any], str]] = {
    fx.Append: _appended,
    fx.Answer: _answered,
    fx.Conclude: _concluded,
    fx.Reply: _replied,
    fx.Save: lambda machine, effect: "log written" if effect.sync else "state written",
    fx.OpenProducer: _always("producer asked for"),
    fx.CloseProducer: _always("producer given up"),
    fx.WriteEvents: _always("events written"),
    fx.WriteHistory: _always("history written"),
    fx.Abandon: _always("transaction abandoned"),
    fx.Synchronise: _always("full synchronisation begun"),
    fx.ReadTail: _always("tail asked for"),
    fx.ReadDdl: _always("ddl reading begun"),
    fx.Probe: _always("store probed"),
    fx.Examine: _always("end of the log asked for"),
    fx.Beat: _beaten,
}

STEPS_OF_INPUT: dict[type, str] = {
    inp.Started: "started",
    inp.Stored: "log durable",
    inp.StoreFailed: "store refused",
    inp.ProducerOpened: "producer opened",
    inp.ProducerFailed: "producer failed",
    inp.Written: "events placed",
    inp.Ended: "end of transaction heard",
    inp.TailRead: "tail read",
    inp.DdlRead: "DDL command taken",
    inp.AppendFailed: "append failed",
    inp.Examined: "end of the log heard",
}

ACKS_READ: dict[type, str] = {
    ProposalAnswered: "answer counted",
    SliceAnswered: "slices answered",
    HoldingsReported: "holdings reported",
}


def steps_of_input(machine: Machine, event: inp.Input) -> tuple[str, ...]:
    """Return the steps that the machine's node takes with this input."""
    kind = type(event)
    if kind is inp.Tick or kind is inp.BeatsRead:
        return ()
    name = STEPS_OF_INPUT.get(kind)
    if name is not None:
        return (name,)
    if isinstance(event, inp.CommitRead):
        return _read(machine, event)
    if isinstance(event, inp.SyncRead):
        return ("full synchronisation read",) if event.done else ()
    node = machine.node
    assert node is not None
    if node.master is None:
        return ()
    if isinstance(event, inp.Requested):
        return ("command taken",)
    if isinstance(event, inp.AcksRead):
        name = ACKS_READ.get(type(event.records[0]))
        return (name,) if name is not None else ()
    return ()


def _read(machine: Machine, event: inp.CommitRead) -> tuple[str, ...]:
    node = machine.node
    assert node is not None
    found = []
    for entry in event.entries:
        record = entry.record
        name = READ.get(type(record))
        if name is not None:
            found.append(name)
        elif isinstance(record, MasterClaimed):
            mine = record.incarnation == node.config.incarnation
            found.append("claim read back" if mine else "claim of another read")
    return tuple(found)


OTHERS = (
    "claim read back; claim of another read; full synchronisation begun; full synchronisation "
    "read; command taken; answer counted; slices answered; holdings asked for; holdings reported; "
    "end of the log asked for; proposal sent; READY proposed; step of a build proposed; proposal "
    "accepted; proposal refused; admission asked for; catching up; claim look; fenced, reading "
    "on; producer asked for; producer given up; events written; history written; log written; "
    "state written; barrier sent; caller answered; caller refused; transaction abandoned; tail "
    "asked for; ddl reading begun; store probed"
)
STEPS: tuple[str, ...] = (
    *dict.fromkeys(STEPS_OF_INPUT.values()),
    *dict.fromkeys(READ.values()),
    *dict.fromkeys(WRITTEN.values()),
    *OTHERS.split("; "),
)

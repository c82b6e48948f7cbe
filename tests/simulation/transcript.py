"""A scenario as a transcript: what a node takes in, and what it does, line by line.

Production nodes in the simulator, at rest but for one thing. Left out is what is there all the
time (heartbeats, ticks that lead to nothing, probes) and what differs without a meaning (tokens,
digests, offsets). A person reads it beside `docs/protocol.md`; a test holds it against the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.effects import Effect
from coordinator.core.consensus.inputs import Input
from coordinator.core.model import records as rec
from coordinator.core.model.authority_state import TransactionStatus
from coordinator.core.model.commands import Command
from tests.simulation.machine import Machine
from tests.simulation.world import World

WIDTH = 100
PAUSE_MS = 400
"""Silence of this length is told of."""

SILENT = (fx.Beat, fx.Note, fx.Probe, fx.Examine, fx.Follow, fx.ReadDdl, fx.StopDdl, fx.Publish)


class Transcript(World):
    """A world whose nodes are written down from `begin` on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, plain=True)
        self.told: list[str] = []
        self._since_ms = -1
        self._known: dict[int, set[tuple[int, TransactionStatus]]] = {}
        """What each node's store has of the log of transactions."""

    def begin(self) -> None:
        """Write down what follows."""
        self._since_ms = self.clock.now

    def say(self, line: str) -> None:
        """Write down what the scenario does."""
        self._silence()
        self.told += ["", f"== {line}"]

    def stepped(self, machine: Machine, event: Input, found: list[Effect]) -> None:
        super().stepped(machine, event, found)
        taken, done = told_of_input(event), told_of(self._news(machine, found))
        if self._since_ms < 0:
            return
        if not done and isinstance(event, inp.Tick | inp.BeatsRead | inp.Stored | inp.Ended):
            return
        if not taken and not done:
            return
        self._silence()
        self.told.append(f"{title(machine)} < {taken or 'heartbeats'}")
        self.told += [f"{'':<11} > {line}" for line in done]

    def _news(self, machine: Machine, found: list[Effect]) -> list[Effect]:
        """Return the effects; of the log of transactions only what is new to this node's store."""
        news = []
        for effect in found:
            if isinstance(effect, fx.Save):
                known = self._known.setdefault(machine.number, set())
                rows = tuple(row for row in effect.rows if row not in known)
                known.update(rows)
                effect = replace(effect, rows=rows)
            news.append(effect)
        return news

    def _silence(self) -> None:
        paused_ms = self.clock.now - self._since_ms
        if paused_ms >= PAUSE_MS and self.told:
            self.told += ["", f"   ... after {round(paused_ms, -2):,} ms"]
        self._since_ms = self.clock.now


def title(machine: Machine) -> str:
    """Return number and state of a node."""
    assert machine.node is not None
    return f"{machine.number} {machine.node.role:<9}"


def told_of_input(event: Input) -> str:
    """Return what a node takes in, empty where it is there all the time."""
    if isinstance(event, inp.Tick):
        return "time passes"
    if isinstance(event, inp.BeatsRead | inp.Examined):
        return ""
    if isinstance(event, inp.CommitRead):
        return "commit: " + "; ".join(told_of_record(one.record) for one in event.entries)
    if isinstance(event, inp.AcksRead):
        return "acks: " + "; ".join(map(told_of_record, event.records))
    if isinstance(event, inp.Requested):
        return f"asked: {told_of_command(event.request.command)}"
    if isinstance(event, inp.MembershipRequested):
        return f"asked: {told_of_command(event.command)}"
    if isinstance(event, inp.ReadRequested):
        return f"asked: a {'linearizable' if event.linearizable else 'local'} read"
    simple = TAKEN.get(type(event))
    return simple(event) if simple is not None else type(event).__name__


TAKEN: dict[type, Callable[[Any], str]] = {
    inp.Started: lambda e: f"started, with {'a stored state' if e.restored else 'nothing stored'}",
    inp.Stored: lambda e: "its store has synced",
    inp.StoreFailed: lambda e: f"its store fails: {e.reason}",
    inp.ProducerOpened: lambda e: "its transactional producer is open, any older one is fenced",
    inp.ProducerFailed: lambda e: f"its transactional producer fails: {e.reason}",
    inp.Written: lambda e: "the events are written, their offsets are known",
    inp.Ended: lambda e: "the Kafka transaction has ended",
    inp.AppendFailed: lambda e: f"a plain record may not have arrived: {e.reason}",
    inp.SyncRead: lambda e: f"a source was read{' to its end' if e.done else ''}",
    inp.TailRead: lambda e: "the end of statecontext was read",
    inp.SnapshotTaken: lambda e: "a copy of the state stands on snapshots",
    inp.CopyWanted: lambda e: "a copy of the state is wanted",
    inp.Scrubbed: lambda e: "statecontext was compared",
    inp.Stopping: lambda e: "told to stop",
}


def told_of(found: list[Effect]) -> list[str]:
    """Return what a node does, a line each; the same thing several times in one."""
    lines = [line for effect in found if (line := told_of_effect(effect))]
    counted = [(line, len(list(same))) for line, same in groupby(lines)]
    return [line if count == 1 else f"{line} ({count} times)" for line, count in counted]


def told_of_effect(effect: Effect) -> str:
    """Return what a node does, empty where it does that all the time."""
    if isinstance(effect, SILENT):
        return ""
    if isinstance(effect, fx.Append):
        return f"append to commit: {told_of_record(effect.record)}"
    if isinstance(effect, fx.Answer):
        return f"acks: {told_of_record(effect.record)}"
    if isinstance(effect, fx.Save):
        return told_of_save(effect)
    if isinstance(effect, fx.Conclude):
        records = "; ".join(map(told_of_record, effect.records))
        return f"write {records}, and commit the Kafka transaction"
    if isinstance(effect, fx.WriteEvents | fx.WriteHistory):
        topic = "statecontext" if isinstance(effect, fx.WriteEvents) else "history"
        changes = ", ".join(one.mutation.key for one in effect.events)
        return f"write to {topic}, in a Kafka transaction: {changes}"
    if isinstance(effect, fx.Reply):
        outcome = effect.outcome
        return f"answer: {outcome.status}{f', {outcome.code}' if outcome.code else ''}"
    simple = DONE.get(type(effect))
    return simple(effect) if simple is not None else type(effect).__name__


DONE: dict[type, Callable[[Any], str]] = {
    fx.OpenProducer: lambda e: "open the transactional producer",
    fx.CloseProducer: lambda e: "give the transactional producer up",
    fx.Abandon: lambda e: "abort the Kafka transaction",
    fx.Synchronise: lambda e: f"read the state from {e.source}",
    fx.ReadTail: lambda e: "read the end of statecontext",
    fx.TakeSnapshot: lambda e: "write a copy of the state to snapshots",
    fx.Scrub: lambda e: "compare statecontext with the state",
    fx.Halt: lambda e: f"stop: {e.code}",
}


def told_of_save(effect: fx.Save) -> str:
    """Return what a node puts into its store in one batch."""
    parts = [f"{'delete' if held is None else 'put'} {key}" for key, held in effect.changes]
    if effect.prepared is not None:
        parts.append(f"prepared {effect.prepared.proposal.txn}")
    parts += [f"{row.txn} is {row.status}" for _, row in effect.rows]
    told = ", ".join(parts) or "how far it is"
    return f"store, synced: {told}" if effect.sync else f"store: {told}"


def told_of_command(command: Command | Any) -> str:
    names = [
        str(value) for name in ("name", "key", "node") if (value := getattr(command, name, ""))
    ]
    return " ".join([type(command).__name__, *names])


def told_of_record(record: Any) -> str:
    """Return a record of `commit` or `acks`: its name, and what the protocol goes by."""
    name = type(record).__name__
    if isinstance(record, rec.TransactionProposed):
        keys = ", ".join(one.key for one in record.mutations)
        participants = " ".join(map(str, record.participants))
        return f"{name} {record.txn} ({keys}), participants {participants}"
    if isinstance(record, rec.ProposalAnswered):
        return f"{record.answer} {record.txn}, by {record.node}"
    if isinstance(record, rec.MasterClaimed):
        return f"{name} epoch {record.epoch}, by {record.node}"
    if isinstance(record, rec.SliceAnswered):
        return f"{record.answer} index {record.index_id}, by indexer {record.indexer}"
    said = [str(record.txn)] if hasattr(record, "txn") else []
    said += [f"node {record.node}"] if hasattr(record, "node") else []
    return " ".join([name, *said])

"""What goes into a node: everything that happens outside it, as values.

Pure, frozen data. The shell (agents, HTTP, timers, producers, store) turns the world into these;
the simulator makes them up. A `token` ties a completion to the effect that asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.scrubber import Findings
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.commands import MembershipCommand, Request
from coordinator.core.model.records import (
    AckRecord,
    CommitRecord,
    Event,
    Heartbeat,
    TransactionProposed,
    Unreadable,
)
from coordinator.core.model.stream_records import FailoverLog, HwHeartbeat
from coordinator.core.model.types import Offset
from coordinator.core.timestamps.board import Record as TimestampRecord


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A proposal that waits for its verdict: persisted, not yet visible."""

    offset: Offset
    proposal: TransactionProposed
    raw: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """What a node finds in its store: all of it at one applied offset of `commit`."""

    applied: int
    authority: AuthorityState | None
    state: StateContext
    prepared: PreparedTransaction | None
    outcomes: tuple[KeptGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The node's process is up. `restored` is None for an empty or unfinished folder.

    `log_start` is the first offset that `commit` still has, `log_end` the one after its last.
    """

    restored: Restored | None
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the instant comes with every step."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the commit topic, with its bytes as they stood there."""

    offset: Offset
    record: CommitRecord
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class CommitRead:
    """Entries of the commit topic, in order, read_committed."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AcksRead:
    """Records of the acks topic."""

    records: tuple[AckRecord, ...]


@dataclass(frozen=True, slots=True)
class BeatsRead:
    """Records of the heartbeat topic."""

    records: tuple[Heartbeat, ...]


@dataclass(frozen=True, slots=True)
class StreamsRead:
    """Records of the topics `hw` and `failover-log`."""

    records: tuple[HwHeartbeat | FailoverLog, ...]


@dataclass(frozen=True, slots=True)
class TimestampEntry:
    """A record of `stability` or `restart`, of partition 0, with its bytes as they stood there."""

    topic: str
    offset: Offset
    record: TimestampRecord | Unreadable
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class TimestampsRead:
    """Entries of `stability` or `restart`, in the order of the topic, read_committed."""

    entries: tuple[TimestampEntry, ...]


@dataclass(frozen=True, slots=True)
class DdlRead:
    """Commands of the `ddl` topic, in the order of each partition, each with its position."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Requested:
    """A client asks for a command; it hears through `Reply` with the request's token."""

    request: Request


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """A client wants to read: behind a barrier, or once this node has applied `at_least`."""

    token: int
    deadline_ms: int
    linearizable: bool
    at_least: int = 0


@dataclass(frozen=True, slots=True)
class MembershipRequested:
    """An operator asks for a change of the Authority; the answer is a `Reply`."""

    token: int
    deadline_ms: int
    command: MembershipCommand
    principal: str = ""


@dataclass(frozen=True, slots=True)
class StabilityRequired:
    """A scan waits for a newer stability timestamp of a bucket, at most so long."""

    bucket: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The process is told to end: a master hands over first, and nobody else claims from here."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What a second connection to Kafka found out about `commit`.

    `end` is its last stable offset, -1 where Kafka is out of reach. `written` is the offset of the
    last plain record of this node that Kafka acknowledged.
    """

    token: int
    end: int
    written: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The `Save` or `Probe` with this token is durable."""

    token: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store refused the write with this token: no unsynced batch can be relied on."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """A plain record on `commit` may or may not be there."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """The transactional producer is initialised; whoever held the mastership is fenced."""

    token: int


@dataclass(frozen=True, slots=True)
class ProducerFailed:
    """The transactional producer could not be made, or broke: what it wrote may count or not."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """The events of the open Kafka transaction stand at these offsets of `statecontext`."""

    token: int
    offsets: tuple[Offset, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The Kafka transaction with this token has ended, as far as the producer was told."""

    token: int


@dataclass(frozen=True, slots=True)
class SyncRead:
    """What a source of a full synchronisation has: entities of a copy, then events, in order.

    `done` is true in the last of them.
    """

    token: int
    events: tuple[Event, ...]
    done: bool
    held: tuple[tuple[str, Versioned], ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The copy begins at `offset` of `snapshots` and has its digest; or a problem is in the way."""

    token: int
    offset: Offset
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CopyWanted:
    """Old records of `history` could go if there were a copy of the state above them."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How `statecontext` differs from the state that `Scrub` named; or why nobody could tell."""

    token: int
    findings: Findings
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TailRead:
    """All events of `statecontext` above the CAS that `ReadTail` named."""

    token: int
    events: tuple[Event, ...]


Input = (
    Started
    | Tick
    | CommitRead
    | AcksRead
    | BeatsRead
    | StreamsRead
    | TimestampsRead
    | DdlRead
    | Requested
    | ReadRequested
    | MembershipRequested
    | StabilityRequired
    | Stopping
    | Examined
    | Stored
    | StoreFailed
    | AppendFailed
    | ProducerOpened
    | ProducerFailed
    | Written
    | Ended
    | SyncRead
    | SnapshotTaken
    | CopyWanted
    | Scrubbed
    | TailRead
)

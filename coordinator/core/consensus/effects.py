"""What comes out of a node: everything that it wants done outside, as values.

Pure, frozen data. The shell executes effects in order. No effect returns a value: where the node
needs the result, the effect has a `token`, and an input with the same token answers it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.inputs import PreparedTransaction
from coordinator.core.model.authority_state import AuthorityState, TransactionStatus
from coordinator.core.model.commands import Outcome
from coordinator.core.model.records import (
    AckRecord,
    CommitRecord,
    DdlReply,
    DeadLetter,
    Event,
    Heartbeat,
)
from coordinator.core.model.stream_records import (
    ConnectionClosed,
    PromotionRequested,
    RestartRequested,
)
from coordinator.core.model.types import Cas, Offset


@dataclass(frozen=True, slots=True)
class Follow:
    """Read `commit` from this offset on, and keep reading."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Append:
    """Send a plain record to `commit`: a proposal or a read barrier, nothing else."""

    token: int
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """Send a record to `acks`."""

    record: AckRecord


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a record to `heartbeat`."""

    record: Heartbeat


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a question to `restart-request`; one that is lost is not repeated."""

    record: RestartRequested | PromotionRequested


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Say on `stream-end` that a connection is closed; if it is lost, it is said again."""

    record: ConnectionClosed


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write one atomic batch to the store.

    All of it holds as of offset `applied` of `commit`. `changes` has entities to put; None deletes
    one. `outcomes` has groups of outcomes by their CAS, in the same way. `prepared` is the prepared
    transaction after the batch. With `wipe`, the store deletes everything first. If `authority` is
    None, the store is unfinished, and a node that finds it so synchronises in full. `Stored`
    answers a synced batch; then all batches before it are durable, too. After a `StoreFailed` the
    store refuses everything until it is probed.
    """

    token: int
    applied: int
    authority: AuthorityState | None
    rows: tuple[tuple[int, TransactionStatus], ...]
    prepared: PreparedTransaction | None
    cas: Cas
    digest: int
    changes: tuple[tuple[str, Versioned | None], ...] = ()
    wipe: bool = False
    sync: bool = False
    outcomes: tuple[tuple[int, KeptGroup | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether the store takes writes again."""

    token: int


@dataclass(frozen=True, slots=True)
class Examine:
    """Ask Kafka, over another connection than those in use, where `commit` ends."""

    token: int


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """Initialise the cluster's one transactional producer, which fences any other."""

    token: int


@dataclass(frozen=True, slots=True)
class CloseProducer:
    """Close the transactional producer."""


@dataclass(frozen=True, slots=True)
class WriteEvents:
    """Begin a Kafka transaction with these events on `statecontext`; `Written` tells offsets."""

    token: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class WriteHistory:
    """Add these events, their CAS known, to the open Kafka transaction on `history`."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Add these records to the Kafka transaction (begin one if none is open) and commit it."""

    token: int
    records: tuple[CommitRecord, ...]
    replies: tuple[DdlReply, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abort the open Kafka transaction, if one is open."""

    token: int


@dataclass(frozen=True, slots=True)
class Synchronise:
    """Read a source of the state, in batches, for a full synchronisation up to `cas` or later.

    `source` is one of those in `full_sync`: all of `statecontext`; all of `history`; the copy with
    the number `copy`, from `offset` of `snapshots` on, with the events after it on `history` or
    without.
    """

    token: int
    source: str
    cas: Cas
    offset: Offset = Offset(0)
    copy: int = 0


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write a copy of this state to `snapshots`, and read it back; `SnapshotTaken` answers."""

    token: int
    copy: int
    state: StateContext


@dataclass(frozen=True, slots=True)
class Trim:
    """Delete what `commit` holds below this offset; if that fails, the next `Trim` does it."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Scrub:
    """Compare all of `statecontext` with this state; `Scrubbed` answers."""

    token: int
    state: StateContext


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Read what `statecontext` holds above this CAS."""

    token: int
    cas: Cas


@dataclass(frozen=True, slots=True)
class ReadDdl:
    """Read `ddl`, each partition after the offset given (-1 where none is), and keep reading."""

    consumed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StopDdl:
    """Stop reading `ddl`."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell whoever watches the state that these events, a transaction, were installed on it."""

    before: StateContext
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the caller who waits under this token."""

    token: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SendDeadLetter:
    """Send a record that could not be used to `dead-letter`."""

    dead_letter: DeadLetter


@dataclass(frozen=True, slots=True)
class Note:
    """Tell the operator, in the log of the process."""

    message: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the process. With `rebuild` the next start synchronises in full; `final` ones would
    only fail again and must not be restarted."""

    code: str
    message: str
    rebuild: bool = False
    final: bool = False


Effect = (
    Follow
    | Append
    | Answer
    | Beat
    | Ask
    | CloseConnection
    | Save
    | Probe
    | Examine
    | OpenProducer
    | CloseProducer
    | WriteEvents
    | WriteHistory
    | Conclude
    | Abandon
    | Synchronise
    | TakeSnapshot
    | Trim
    | Scrub
    | ReadTail
    | ReadDdl
    | StopDdl
    | Publish
    | Reply
    | SendDeadLetter
    | Note
    | Halt
)

"""Kafka as far as the protocol can see it: single partitions and one transactional id.

* Plain records and records of transactions interleave; markers take offsets.
* A read_committed reader sees up to the last stable offset, and nothing that was aborted.
* The outcome of a transaction is decided at one instant, and told then; its markers reach the
  partitions one by one, later, so that one topic may show a transaction before another does. The
  next transaction waits for them.
* Initialising the producer fences the older one, aborts what it had open, and returns when the
  markers of everything before are written.
* The request that ends a transaction does not say which: one that comes late ends what is open by
  then, as long as its producer is the newest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.kafka.topics import DDL_PARTITIONS
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.clock import Clock
from tests.simulation.kernel.network import unchanged

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Fenced(Exception):
    """The producer is no longer the one that the broker knows."""


class Misplaced(Exception):
    """The transaction has ended already, and otherwise."""


@dataclass(slots=True, eq=False)
class Session:
    """One initialised transactional producer, and how its last transaction ended."""

    node: int
    epoch: int
    ended: str = ""


@dataclass(slots=True, eq=False)
class Transaction:
    """A Kafka transaction: whose it is, what it holds, and when its fate was decided."""

    session: Session
    began_ms: int
    status: str = OPEN
    decided_ms: int = -1
    topics: list[str] = field(default_factory=list)
    unmarked: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Stored:
    """A record in a partition."""

    offset: int
    value: Any
    txn: Transaction | None
    at_ms: int


class Partition:
    """One partition, with its readers."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.start = 0
        self.end = 0
        self.records: list[Stored] = []
        self.unstable: int | None = None
        self.through: Callable[[Any], Any] = unchanged
        """What a record goes through on its way here: encoding and decoding, in some worlds."""
        self.listeners: list[Callable[[], None]] = []

    @property
    def stable(self) -> int:
        """The last stable offset: where read_committed readers stop."""
        return self.end if self.unstable is None else self.unstable

    def append(self, value: Any, txn: Transaction | None, now: int) -> int:
        offset = self.end
        self.records.append(Stored(offset, self.through(value), txn, now))
        self.end += 1
        if txn is not None and self.unstable is None:
            self.unstable = offset
        if txn is None and self.unstable is None:
            self.moved()
        return offset

    def mark(self) -> None:
        """Write the marker of the transaction that is open here."""
        self.end += 1
        self.unstable = None
        self.moved()

    def moved(self) -> None:
        for listener in self.listeners:
            listener()

    def read(self, offset: int, limit: int = 1 << 30) -> list[Stored]:
        """Return up to `limit` committed records from `offset` on."""
        found: list[Stored] = []
        stable = self.stable
        records = self.records
        position = bisect_left(records, offset, key=lambda r: r.offset)
        while position < len(records) and len(found) < limit:
            record = records[position]
            if record.offset >= stable:
                break
            if record.txn is None or record.txn.status == COMMITTED:
                found.append(record)
            position += 1
        return found


class Broker(Actor):
    """The partitions and the coordinator of the one transactional id."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        names = ("commit", "statecontext", "history", "snapshots", "ddl-replies", "dead-letter")
        self.partitions = {name: Partition(name) for name in names}
        self.ddl = [Partition(f"ddl/{number}") for number in range(DDL_PARTITIONS)]
        self.transaction_timeout_ms = 6_000
        self.session: Session | None = None
        self.current: Transaction | None = None
        self.marker_spread_ms = 6
        self._epoch = 0
        self._waiting: list[Callable[[], None]] = []

    def __getitem__(self, topic: str) -> Partition:
        return self.partitions[topic]

    def heal(self) -> None:
        self.marker_spread_ms = 5

    def unsettled(self) -> str:
        return "a transaction is open or not yet marked" if self.current else ""

    # -- the transactional producer ----------------------------------------------------------

    def initialise(self, node: int, done: Callable[[Session], None]) -> None:
        """Fence the older producer; call `done` once nothing of it is undecided or unmarked."""
        self._epoch += 1
        session = Session(node, self._epoch)
        self.session = session
        current = self.current
        if current is not None and current.status == OPEN:
            self._decide(current, ABORTED)
        self._when_idle(lambda: done(session))

    def send(self, session: Session, topic: str, value: Any) -> int:
        """Add a record to the session's transaction, beginning one where none is open."""
        self.check(session)
        if self.current is None:
            self.current = Transaction(session, self.clock.now)
            self.clock.at(self.transaction_timeout_ms, self._time_out, self.current)
        txn = self.current
        assert txn.status == OPEN
        if topic not in txn.unmarked:
            txn.unmarked.add(topic)
            txn.topics.append(topic)
        return self[topic].append(value, txn, self.clock.now)

    def end(self, session: Session, status: str) -> None:
        """Decide the session's transaction; ask only while none is being marked.

        Where none is open, this is a repeat of the request that ended the last one, or wrong.
        """
        self.check(session)
        if self.current is not None:
            assert self.current.status == OPEN
            self._decide(self.current, status)
        elif session.ended not in ("", status):
            raise Misplaced(f"the transaction is {session.ended} already")

    def when_complete(self, what: Callable[[], None]) -> None:
        """Call `what` once no transaction is between its decision and its last marker."""
        if self.current is not None and self.current.status != OPEN:
            self._waiting.append(what)
        else:
            what()

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open and undecided."""
        return self.current is not None and self.current.status == OPEN

    def end_late(self, status: str) -> None:
        """The EndTxn of an earlier transaction arrives late: it ends the open one.

        Nobody is fenced, and nobody is told.
        """
        if self.current is not None and self.current.status == OPEN:
            self._decide(self.current, status)

    def time_out(self) -> None:
        """The open transaction has lasted too long: it is aborted, and its producer fenced."""
        if self.current is not None:
            self._time_out(self.current)

    def check(self, session: Session) -> None:
        if session is not self.session:
            raise Fenced("fenced by a newer producer")

    def _when_idle(self, done: Callable[[], None]) -> None:
        if self.current is None:
            done()
        else:
            self._waiting.append(done)

    def _time_out(self, txn: Transaction) -> None:
        if self.current is txn and txn.status == OPEN:
            self._epoch += 1
            self.session = None
            self._decide(txn, ABORTED)

    def _decide(self, txn: Transaction, status: str) -> None:
        txn.status = status
        txn.session.ended = status
        txn.decided_ms = self.clock.now
        for topic in txn.topics:
            delay = int(self.clock.chance.random() ** 3 * self.marker_spread_ms)
            self.clock.at(delay, self._mark, txn, topic)

    def _mark(self, txn: Transaction, topic: str) -> None:
        txn.unmarked.discard(topic)
        if not txn.unmarked:
            self.current = None
        self[topic].mark()
        if not txn.unmarked:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                self.when_complete(done)

    # -- upkeep ------------------------------------------------------------------------------

    def compact(self, lag_ms: int, tombstones_below: int | None = None) -> int:
        """Compact `statecontext`: superseded records and old tombstones go; return how many.

        Tombstones from the offset `tombstones_below` on are too young to go.
        """
        partition = self["statecontext"]
        limit = self.clock.now - lag_ms
        stable = partition.stable
        newest: dict[str, int] = {}
        for record in partition.records:
            if record.offset >= stable or record.at_ms > limit:
                break
            if record.txn is None or record.txn.status == COMMITTED:
                newest[record.value.mutation.key] = record.offset
        kept: list[Stored] = []
        for record in partition.records:
            key = record.value.mutation.key
            if record.offset < stable and record.at_ms <= limit:
                old = record.txn is not None and record.txn.status == ABORTED
                gone = record.value.mutation.value is None and (
                    tombstones_below is None or record.offset < tombstones_below
                )
                if old or newest.get(key) != record.offset or gone:
                    continue
            kept.append(record)
        count = len(partition.records) - len(kept)
        partition.records = kept
        return count

    def trim(self, offset: int) -> None:
        """Delete what `commit` holds below `offset`, as retention does."""
        partition = self["commit"]
        partition.records = [r for r in partition.records if r.offset >= offset]
        partition.start = max(partition.start, offset)

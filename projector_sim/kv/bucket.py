"""A bucket of the key-value store: documents in vbuckets, and the mutations that made them.

Invariants, for each vbucket:

- Each mutation has the next seqno. Only the newest mutation of a key is in the order by seqno:
  that order has holes, and its last entry has the highest seqno that this branch gave out.
- What a stream yields, applied to the documents as they were at its start, gives the documents as
  they are at its snapshot's end.
- After `lose_tail` all is as it was at that seqno, under a new vbuuid.

A batch is one write of RocksDB: the documents, their order, what they superseded. After a refused
write all that is known is read again: whether it took place, only the database can tell. What was
written is in the `tail`, too, for those who follow. No clock: `expire` is told the time. Nothing
here knows Kafka. Not for several threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rocksdict import WriteBatch

from coordinator.core.model.types import Seqno, Vbuuid
from projector_sim.kv.database import Database
from projector_sim.kv.errors import KvError, RollbackError
from projector_sim.kv.layout import (
    BY_KEY,
    BY_SEQNO,
    COUNT,
    DELETED,
    EXPIRY,
    EXPIRY_PLACE,
    KEY_BYTES_MAX,
    LIVE,
    NEWEST,
    NUMBER,
    OWNER,
    OWNERS,
    PLACE,
    SEQNO_MAX,
    SEQNO_PLACE,
    SUPERSEDED,
    VBUCKET,
    Change,
    Mutation,
    Newest,
    Placed,
    expiry_place,
    newest_of,
    pack_entry,
    pack_owners,
    pack_vbucket,
    unpack_entry,
    unpack_vbucket,
)
from projector_sim.kv.stream import Reader, Stream
from projector_sim.kv.tail import Entry, Tail
from projector_sim.kv.vbuckets import check_vbuckets, spread, vbucket_of
from projector_sim.protocol.failover import Branch, FailoverLog, branched, rollback_seqno
from projector_sim.protocol.frames import pack_mutation

TAIL_SEQNOS = 1000
"""So many mutations, at least, can a vbucket lose, counted from the most that it ever had."""
EXPIRED_MAX = 10_000
"""So many documents one `expire` deletes."""
VBUUID_BITS = 48


def fresh_vbuuid() -> Vbuuid:
    """Return a vbuuid that no other history has."""
    return Vbuuid(1 + secrets.randbits(VBUUID_BITS))


class Bucket:
    """One bucket in one folder.

    Large because it has one method for each operation on documents, and for each fault that
    tests can order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sync: bool = False,
        tail_seqnos: int = TAIL_SEQNOS,
        new_vbuuid: Callable[[], Vbuuid] = fresh_vbuuid,
    ) -> None:
        """Open a bucket that `make_bucket` has made. KvError, as of all methods.

        Without `sync` what is written survives the death of the process, not of the machine.
        """
        self._database = Database(folder)
        self._sync = sync
        self._tail_seqnos = tail_seqnos
        self._new_vbuuid = new_vbuuid
        self._readers: WeakSet[Reader] = WeakSet()
        self.tail = Tail()
        self._stale = True
        self._documents = 0
        self._owners: list[int] = []
        self._logs: list[FailoverLog] = []
        self._floors: list[int] = []
        self._high: list[Seqno] = []
        self._refresh()

    def close(self) -> None:
        """Close the files, and all that is being read from them."""
        for reader in list(self._readers):
            reader.close()
        self._database.close()

    # -- what there is -----------------------------------------------------------------------

    @property
    def vbuckets(self) -> int:
        """How many vbuckets there are."""
        return len(self._owners)

    def count(self) -> int:
        """Return how many documents there are."""
        self._refresh()
        return self._documents

    def high_seqno(self, vbucket: int) -> Seqno:
        """Return the highest seqno of a vbucket."""
        self._refresh()
        return self._high[vbucket]

    def high_seqnos(self) -> list[Seqno]:
        """Return the highest seqno of each vbucket."""
        self._refresh()
        return self._high.copy()

    def vbuuids(self) -> list[int]:
        """Return the current vbuuid of each vbucket."""
        self._refresh()
        return [log[0].vbuuid for log in self._logs]

    def lowest_seqno(self, vbucket: int) -> int:
        """Return the seqno that a vbucket can go back to, at least; it can go to 0 in any case."""
        self._refresh()
        return self._floors[vbucket]

    def failover_log(self, vbucket: int) -> FailoverLog:
        """Return the histories of a vbucket, newest first."""
        self._refresh()
        return self._logs[vbucket]

    def owners(self) -> list[int]:
        """Return the node that owns each vbucket."""
        self._refresh()
        return self._owners.copy()

    def owner(self, vbucket: int) -> int:
        """Return the node that owns a vbucket."""
        self._refresh()
        return self._owners[vbucket]

    def owned_by(self, node: int) -> list[int]:
        """Return the vbuckets that a node owns."""
        return [vbucket for vbucket, owner in enumerate(self.owners()) if owner == node]

    def get(self, key: bytes) -> bytes | None:
        """Return a document, or None."""
        mutation = self.newest(key)
        return mutation.value if mutation else None

    def newest(self, key: bytes) -> Mutation | None:
        """Return the newest mutation of a key, a deletion too; None: it never had one."""
        vbucket = vbucket_of(key, self.vbuckets)
        place = PLACE.pack(BY_KEY, vbucket) + key
        newest = self._newest([place]).get(place)
        return (
            None
            if newest is None
            else unpack_entry(newest.seqno, self._entry(vbucket, newest.seqno))
        )

    def documents(self) -> Iterator[Mutation]:
        """Yield all documents of one moment, by vbucket and seqno."""
        self._refresh()
        reader = Reader(
            self._database.snapshot(), range(self.vbuckets), Seqno(0), Seqno(SEQNO_MAX - 1)
        )
        self._readers.add(reader)
        return (mutation for mutation in reader if mutation.value is not None)

    # -- writing -----------------------------------------------------------------------------

    def upsert(self, key: bytes, value: bytes, expiry_ms: int = 0) -> Placed:
        """Write one document. Raises as `write`."""
        return self.write([(key, value, expiry_ms)])[0]

    def delete(self, key: bytes) -> Placed:
        """Delete one document; seqno 0: there is none. Raises as `write`."""
        return self.write([(key, None, 0)])[0]

    def expire(self, now_ms: int, limit: int = EXPIRED_MAX) -> list[Placed]:
        """Delete documents that expire up to `now_ms`, the earliest first. Raises as `write`."""
        due: list[Change] = []
        for place, _ in self._database.scan(EXPIRY, EXPIRY_PLACE.pack(EXPIRY, now_ms + 1, 0)):
            if len(due) == limit:
                break
            expiry_ms = EXPIRY_PLACE.unpack_from(place)[1]
            due.append(Change(place[EXPIRY_PLACE.size :], None, expiry_ms))
        return self.write(due)

    def write(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> list[Placed]:
        """Write changes (key, value or None, expiry in ms or 0) in their order, as one.

        ValueError: a key is empty or too long. KvError: whether it took place is open.
        """
        changes = list(changes)
        vbuckets = [vbucket_of(key, self.vbuckets) for key, _, _ in changes]
        places = [
            PLACE.pack(BY_KEY, vbucket) + key
            for (key, _, _), vbucket in zip(changes, vbuckets, strict=True)
        ]
        if not all(0 < len(key) <= KEY_BYTES_MAX for key, _, _ in changes):
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes")
        newest = self._newest(places)
        batch = WriteBatch(raw_mode=True)
        high: dict[int, Seqno] = {}
        placed: list[Placed] = []
        documents, followed, entries = self._documents, self.tail.followed, list[Entry]()
        for (key, value, expiry_ms), vbucket, place in zip(changes, vbuckets, places, strict=True):
            old = newest.get(place)
            if value is None and (old is None or old.kind == DELETED):
                placed.append(Placed(vbucket, Seqno(0)))
                continue
            seqno = Seqno(1 + (high.get(vbucket) or self._high[vbucket]))
            high[vbucket] = seqno
            if old is not None:
                batch.put(SEQNO_PLACE.pack(SUPERSEDED, vbucket, seqno), NUMBER.pack(old.seqno))
                _forget_expiry(batch, place, old)
            new = Newest(seqno, DELETED if value is None else LIVE, expiry_ms)
            entry = pack_entry(key, value, expiry_ms)
            batch.put(SEQNO_PLACE.pack(BY_SEQNO, vbucket, seqno), entry)
            _put_newest(batch, place, new)
            newest[place] = new
            placed.append(Placed(vbucket, seqno))
            documents += new.kind - (LIVE if old is not None and old.kind == LIVE else DELETED)
            if followed:
                entries.append((vbucket, seqno, pack_mutation(seqno, key, value)))
        if not high:
            return placed
        floors = self._trim(batch, high)
        batch.put(COUNT, NUMBER.pack(documents))
        self._commit(batch)
        self._documents = documents
        for vbucket, seqno in high.items():
            self._high[vbucket] = seqno
        for vbucket, floor in floors.items():
            self._floors[vbucket] = floor
        self.tail.append(entries)
        return placed

    def _trim(self, batch: Any, high: Mapping[int, Seqno]) -> dict[int, int]:
        """Delete what was superseded long ago; return the floors that rise by that."""
        floors: dict[int, int] = {}
        for vbucket, seqno in high.items():
            if seqno - self._floors[vbucket] < 2 * self._tail_seqnos:
                continue
            # Not more than the database has: this batch may supersede something, too.
            floors[vbucket] = floor = min(seqno - self._tail_seqnos, self._high[vbucket])
            begin = SEQNO_PLACE.pack(SUPERSEDED, vbucket, 0)
            end = SEQNO_PLACE.pack(SUPERSEDED, vbucket, floor + 1)
            for _, raw in self._database.scan(begin, end):
                batch.delete(SEQNO_PLACE.pack(BY_SEQNO, vbucket, NUMBER.unpack(raw)[0]))
            batch.delete_range(begin, end)
            batch.put(PLACE.pack(VBUCKET, vbucket), pack_vbucket(floor, self._logs[vbucket]))
        return floors

    # -- streams -----------------------------------------------------------------------------

    def stream(
        self,
        vbucket: int,
        vbuuid: Vbuuid,
        start_seqno: Seqno,
        end_seqno: Seqno | None = None,
        snapshot: tuple[Seqno, Seqno] | None = None,
    ) -> Stream:
        """Return the mutations after `start_seqno`, up to `end_seqno` or to the last one.

        `snapshot`, as in `rollback_seqno`: for one who has not read a snapshot to its end.
        RollbackError: (`vbuuid`, `start_seqno`) is not on this vbucket's history.
        """
        self._refresh()
        log, high_seqno = self._logs[vbucket], self._high[vbucket]
        to = rollback_seqno(log, high_seqno, vbuuid, start_seqno, snapshot)
        if to is not None:
            raise RollbackError(vbucket, to)
        end = high_seqno if end_seqno is None else max(start_seqno, min(end_seqno, high_seqno))
        # Who goes on within a snapshot is in a longer one now, which began where that one did.
        begin = snapshot[0] if snapshot and start_seqno < snapshot[1] else start_seqno
        reading = self._database.snapshot()
        stream = Stream(reading, vbucket, log, start_seqno, Seqno(end), (begin, high_seqno))
        self._readers.add(stream)
        return stream

    # -- faults and moves --------------------------------------------------------------------

    def lose_tail(self, vbucket: int, seqno: Seqno) -> int:
        """Lose all mutations of a vbucket after `seqno`, as in a crash; return the new vbuuid.

        ValueError: it has not got that far. KvError `too_far`: what has to come back is not kept.
        """
        self._refresh()
        if not 0 <= seqno <= self._high[vbucket]:
            raise ValueError(f"vbucket {vbucket} is at {self._high[vbucket]}, not at {seqno}")
        if 0 < seqno < self._floors[vbucket]:
            raise KvError("too_far", f"vbucket {vbucket} can go back to {self._floors[vbucket]}")
        batch = WriteBatch(raw_mode=True)
        back: list[Seqno] = []
        kinds: dict[bytes, int] = {}
        for later, raw in self._since(SUPERSEDED, vbucket, seqno):
            batch.delete(SEQNO_PLACE.pack(SUPERSEDED, vbucket, later))
            (old_seqno,) = NUMBER.unpack(raw)
            if old_seqno <= seqno:
                back.append(old_seqno)
        for later, entry in self._since(BY_SEQNO, vbucket, seqno):
            batch.delete(SEQNO_PLACE.pack(BY_SEQNO, vbucket, later))
            place, lost = newest_of(vbucket, later, entry)
            batch.delete(place)
            _forget_expiry(batch, place, lost)
            kinds[place] = lost.kind  # In the end, the one of the newest mutation.
        documents = self._documents - sum(kinds.values())
        for earlier in back:
            place, old = newest_of(vbucket, earlier, self._entry(vbucket, earlier))
            _put_newest(batch, place, old)
            documents += old.kind
        batch.put(COUNT, NUMBER.pack(documents))
        log = branched(self._logs[vbucket], self._new_vbuuid(), seqno)
        floor = min(self._floors[vbucket], seqno)
        batch.put(PLACE.pack(VBUCKET, vbucket), pack_vbucket(floor, log))
        self._commit(batch)
        self._logs[vbucket], self._high[vbucket], self._floors[vbucket] = log, seqno, floor
        self._documents = documents
        return log[0].vbuuid

    def move(self, vbuckets: Iterable[int], node: int) -> None:
        """Give vbuckets to a node. Nothing is lost by that, and their histories go on."""
        owners = self.owners()
        for vbucket in vbuckets:
            owners[vbucket] = node
        batch = WriteBatch(raw_mode=True)
        batch.put(OWNERS, pack_owners(owners))
        self._commit(batch)
        self._owners = owners

    # -- the database ------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Read what is known of the vbuckets, if that may have changed."""
        if not self._stale:
            return
        raw, count = self._database.get_all([OWNERS, COUNT])
        if raw is None:
            raise KvError("not_found", "no bucket has been made here")
        self._documents = NUMBER.unpack(count)[0] if count else 0
        self._owners = [owner for (owner,) in OWNER.iter_unpack(raw)]
        records = self._database.get_all([PLACE.pack(VBUCKET, v) for v in range(self.vbuckets)])
        vbuckets = [unpack_vbucket(record) for record in records if record is not None]
        self._floors = [floor for floor, _ in vbuckets]
        self._logs = [log for _, log in vbuckets]
        self._high = [self._last_seqno(vbucket) for vbucket in range(self.vbuckets)]
        self._stale = False

    def _last_seqno(self, vbucket: int) -> Seqno:
        """Return the last seqno that was given out: it is there, for nothing supersedes it."""
        highest = SEQNO_PLACE.pack(BY_SEQNO, vbucket, SEQNO_MAX)
        place = self._database.last(PLACE.pack(BY_SEQNO, vbucket), highest)
        return Seqno(0 if place is None else SEQNO_PLACE.unpack(place)[2])

    def _newest(self, places: list[bytes]) -> dict[bytes, Newest]:
        """Return the newest mutation of each key that has one, by its place."""
        self._refresh()
        return {
            place: Newest(*NEWEST.unpack(raw))
            for place, raw in zip(places, self._database.get_all(places), strict=True)
            if raw is not None
        }

    def _entry(self, vbucket: int, seqno: Seqno) -> bytes:
        """Return a mutation that is stored, as it is stored."""
        entry = self._database.get_all([SEQNO_PLACE.pack(BY_SEQNO, vbucket, seqno)])[0]
        assert entry is not None, f"vbucket {vbucket} has lost seqno {seqno}"
        return entry

    def _since(self, what: bytes, vbucket: int, seqno: Seqno) -> Iterator[tuple[Seqno, bytes]]:
        """Yield the records of a vbucket after `seqno`: seqno, value."""
        begin = SEQNO_PLACE.pack(what, vbucket, seqno + 1)
        for place, raw in self._database.scan(begin, SEQNO_PLACE.pack(what, vbucket, SEQNO_MAX)):
            yield SEQNO_PLACE.unpack(place)[2], raw

    def _commit(self, batch: Any) -> None:
        self._stale = True
        try:
            self._database.write(batch, sync=self._sync)
        except KvError:
            self.tail.break_off()
            raise
        self._stale = False


def make_bucket(
    folder: Path,
    vbuckets: int,
    nodes: Sequence[int],
    new_vbuuid: Callable[[], Vbuuid] = fresh_vbuuid,
) -> None:
    """Make an empty bucket, whole or not at all. ValueError, KvError."""
    check_vbuckets(vbuckets)
    batch = WriteBatch(raw_mode=True)
    batch.put(OWNERS, pack_owners(spread(vbuckets, nodes)))
    for vbucket in range(vbuckets):
        batch.put(PLACE.pack(VBUCKET, vbucket), pack_vbucket(0, (Branch(new_vbuuid(), Seqno(0)),)))
    database = Database(folder)
    try:
        database.write(batch, sync=True)
    finally:
        database.close()


def _put_newest(batch: Any, place: bytes, new: Newest) -> None:
    """Make a mutation the newest one of the key at `place`."""
    batch.put(place, NEWEST.pack(*new))
    if new.expiry_ms and new.kind == LIVE:
        batch.put(expiry_place(place, new.expiry_ms), b"")


def _forget_expiry(batch: Any, place: bytes, old: Newest) -> None:
    if old.expiry_ms and old.kind == LIVE:
        batch.delete(expiry_place(place, old.expiry_ms))

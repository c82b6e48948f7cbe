"""The router: mutations of one connection to items for the indexers.

It has, for each index, the registry of its subscribers: pairs of a partition of `mutations` and an
indexer. Invariants:

- Items leave in the order of the stream.
- Each indexer gets one item of each mutation, which tells where the document is in all indexes that
  it hosts. What does not fit into one item, and a mutation of which only some of these indexes are
  sent, takes one for each index. A backfill leaves out absent documents.
- Everything that a SYNC or an END covers was passed to the sink before it.
- Each record names the one before it on its partition and for its indexer, and says if items of its
  last seqno follow in the next one. So a reader knows when a record is missing, and when a seqno is
  complete.

No I/O: frames come in, records go to a `Sink`. `projector_sim.protocol.frames` defines the frames.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from coordinator.core.keys.key_versions import (
    DOCUMENT,
    END,
    KEY_BYTES_MAX,
    MANY,
    MUTATION_HEAD,
    NO_SLICE,
    PLACED_HEAD,
    PLACES,
    Item,
    Placed,
    Where,
    attach,
    begin,
    history,
    is_of_one_mutation,
    pack,
    pack_many,
    pack_syncs,
    unpack_placed,
)
from coordinator.core.model.stream_records import (
    BACKFILL,
    MAINTENANCE,
    ConnectionClosed,
    FailoverBranch,
    FailoverLog,
    KeyVersions,
    StreamBegin,
    StreamEnd,
    SyncVector,
)
from coordinator.core.model.types import Seqno
from coordinator.language.expressions import Evaluator
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.document_reader import Reader, reader_of
from projector_sim.projector.evaluation_plan import Route
from projector_sim.protocol.frames import MUTATION, Kind, Reason

FLUSH_BYTES = 64 * 1024
"""So much a message may hold before the next mutation is begun, about."""

RECORD_BYTES_MAX = 512 * 1024
"""So many bytes of items one record holds at most; the items of one mutation may be several.

A mutation has a key of up to 4 KiB in each index: with many indexes they fit into no message
(`MESSAGE_BYTES_MAX`). Half a MiB also fits into `dead-letter`, which takes 1 MiB.
"""

ITEM_BYTES_MAX = 64 * 1024
"""So many bytes the places of one item have at most, about."""

SYNCED_MAX = 16_384
"""Of so many vbuckets one record says how far they have come: 288 KB."""

VBUCKET = struct.Struct(">H")
BEGIN_HEAD = struct.Struct(">HQQH")
BRANCH = struct.Struct(">QQ")
POSITION = struct.Struct(">HQ")
END_BODY = struct.Struct(">HQB")

GARBAGE = 0
"""The index under which documents that are no JSON are counted."""


Thing = TypeVar("Thing")


class Sink(Protocol):
    """Where records go. Both may wait; neither loses anything without telling its owner."""

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None: ...

    def control(
        self,
        place: int,
        record: StreamBegin | StreamEnd | SyncVector | ConnectionClosed | FailoverLog,
    ) -> None:
        """`place` is the record's vbucket; of one that has several, any number."""


class Host:
    """What goes to one indexer on one partition; `indexes` are those that it hosts, in order."""

    __slots__ = ("buffer", "builds", "indexes", "parts", "place")

    def __init__(self, indexes: tuple[int, ...], builds: tuple[int, ...]) -> None:
        self.indexes = indexes
        self.builds = builds
        self.place = {index_id: place for place, index_id in enumerate(indexes)}
        self.buffer: list[bytes] = []
        """Items that wait."""
        self.parts: list[bytes] = []
        """Where the document is that is being evaluated, packed: each place by itself."""


Target = tuple[Callable[[bytes], None], int]
"""How a host is given a part, and the place of the index in its list."""


class Row(NamedTuple):
    """An index on one partition; `targets` has, by place of a slice, who holds the slice."""

    index_id: int
    evaluate: Evaluator
    place_of: Callable[[bytes], int] | None
    numbers: tuple[int, ...]
    targets: tuple[tuple[Target, ...], ...]


Table = tuple[tuple[str, ...], Mapping[str, tuple[Row, ...]]]
"""Rows by the text that a document must have at the end of a path."""


class Choice(NamedTuple):
    """Which rows a document is evaluated for: those of `always`, and what it has in each table."""

    always: tuple[Row, ...]
    tables: tuple[Table, ...] = ()


class Lane:
    """What goes to one partition: the items for each indexer, and how many bytes at most."""

    __slots__ = ("choice", "hosts", "rows", "size")

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.rows: tuple[Row, ...] = ()
        self.choice = Choice(())
        self.size = 0


class FrameError(Exception):
    """The key-value store sent what is no frame, or not one that belongs there."""


class Router:
    """Turns the frames of one connection into records.

    Large because each kind of frame has a method, and all of them fill the same lanes.
    """

    def __init__(
        self,
        run: Run,
        routes: Iterable[Route],
        sink: Sink,
        projector: int,
        partitions: int,
        wall_ms: Callable[[], int],
        record_bytes_max: int = RECORD_BYTES_MAX,
        is_topic: bool = False,
        garbage: Callable[[int, int, bytes], None] | None = None,
    ) -> None:
        """`is_topic`: its source may send older mutations of a document, too, before the last one,
        and forget branches.

        `garbage` is told of each document that is no JSON: vbucket, seqno and text. Without it the
        source has JSON only, and of its documents no more is read than the indexes refer to.
        """
        self.run = run
        self._asked = frozenset(run.vbuckets)
        self._record_bytes_max = record_bytes_max
        self._item_bytes_max = min(ITEM_BYTES_MAX, record_bytes_max)
        self.errors: Counter[int] = Counter()
        self.documents = 0
        self.sent_bytes = 0
        self._says_absent = run.kind != BACKFILL or is_topic
        """A backfill does not say where a document is not, unless an older one came before."""
        self._forgets = is_topic
        self._garbage = garbage
        self._read: Reader = orjson.loads
        self._sink = sink
        self._projector = projector
        self._partitions = partitions
        self._wall_ms = wall_ms
        self._previous: dict[tuple[int, int], int] = {}
        """The ordinal of the last record for each partition and indexer."""
        self._over_soon: list[tuple[int, int, str]] = []
        self._synced: dict[int, int] = {}
        self._said: set[int] = set()
        self._lanes = [Lane() for _ in range(partitions)]
        self._frames: dict[int, Callable[[bytes], None]] = {
            Kind.BEGIN: self._begin,
            Kind.MUTATIONS: self._mutations,
            Kind.SYNC: self._sync,
            Kind.END: self._end,
            Kind.ROLLBACK: self._rollback,
        }
        self._lay(routes)

    # -- which indexes -----------------------------------------------------------------------

    def carry(
        self,
        routes: Iterable[Route],
        attached: Iterable[int] = (),
        vbuckets: Container[int] | None = None,
    ) -> None:
        """Send the items of these indexes from now on; say so of those that are `attached`.

        In these `vbuckets`, None: in all. Who held nothing until now hears, too, where a snapshot
        has ended: perhaps nothing follows.
        """
        self.flush()
        self._lay(routes)
        attached = tuple(attached)
        for index_id in attached:
            for vbucket, seqno in self.run.positions.items():
                if vbuckets is not None and vbucket not in vbuckets:
                    continue
                log, vbuuid = self.run.histories[vbucket], self.run.vbuuids[vbucket]
                self._append(
                    vbucket,
                    (
                        (host, log + pack(attach(vbucket, seqno, vbuuid, host.place[index_id])))
                        for host in self._lane_of(vbucket).hosts.values()
                        if index_id in host.place
                    ),
                )
        if attached and self.run.kind == MAINTENANCE:
            there = self.run.positions
            self._say_ends(v for v in there if vbuckets is None or v in vbuckets)
        self.flush()

    def _lay(self, routes: Iterable[Route]) -> None:
        """Lay the plan out for each partition; nothing may wait in the lanes."""
        ordered = _grouped(routes)
        only = self.run.indexer
        hosts = frozenset().union(*(route.indexers for route in ordered))
        if only is not None:
            hosts &= {only}
        lists = {
            indexer: tuple(r.index.id for r in ordered if indexer in r.indexers)
            for indexer in sorted(hosts)
        }
        builds = {
            indexer: tuple(self.run.carried[index_id].build for index_id in indexes)
            for indexer, indexes in lists.items()
        }
        if self._garbage is None:
            self._read = reader_of(frozenset().union(*(route.fields for route in ordered)))
        for lane in self._lanes:
            lane.hosts = {i: Host(indexes, builds[i]) for i, indexes in lists.items()}
            lane.rows = tuple(_row(route, lane.hosts) for route in ordered)
            lane.choice = _choice(ordered, lane.rows)

    # -- frames ------------------------------------------------------------------------------

    def route(self, kind: int, body: bytes) -> None:
        """Turn one frame into items. Raises FrameError."""
        handle = self._frames.get(kind)
        if handle is None:
            raise FrameError(f"a frame of type {kind}")
        try:
            handle(body)
        except (struct.error, ValueError) as error:
            raise FrameError(f"a frame of type {kind} that is not one: {error}") from error

    def _begin(self, body: bytes) -> None:
        vbucket, vbuuid, seqno, _ = BEGIN_HEAD.unpack_from(body)
        run = self.run
        if vbucket not in self._asked:
            raise FrameError(f"vbucket {vbucket} has begun, and nobody has asked for it")
        if vbucket in run.given_up or run.until_on.get(vbucket, vbuuid) != vbuuid:
            return  # Where this is to end is on another branch, of which more may be on its way.
        if self._over_soon:
            self.flush()  # It may be this vbucket that has ended, and goes on.
        run.vbuuids[vbucket], run.positions[vbucket] = vbuuid, seqno
        run.ended.pop(vbucket, None)
        log = tuple(FailoverBranch(*b) for b in BRANCH.iter_unpack(body[BEGIN_HEAD.size :]))
        run.histories[vbucket] = history(vbucket, log, forgets=self._forgets)
        self._synced.pop(vbucket, None)  # It may have begun within a snapshot of the source.
        self._tell_of(
            vbucket, StreamBegin, vbuuid=vbuuid, seqno=seqno, kind=run.kind, number=run.number
        )
        if run.kind == MAINTENANCE:
            self.failover_log(vbucket, log)
        lane = self._lane_of(vbucket)
        rows, before = self._rows_of(vbucket, lane), run.histories[vbucket]
        self._append(
            vbucket,
            (
                (host, before + pack(begin(vbucket, seqno, vbuuid, places)))
                for host in lane.hosts.values()
                if (places := _places(host, rows))
            ),
        )

    def failover_log(self, vbucket: int, branches: tuple[FailoverBranch, ...]) -> None:
        """Publish the histories of a vbucket."""
        record = FailoverLog(self.run.bucket, vbucket, branches, self._wall_ms())
        self._sink.control(vbucket, record)

    def _rows_of(self, vbucket: int, lane: Lane) -> Sequence[Row]:
        """Return the rows of the indexes that are sent of this vbucket."""
        share = self.run.shares.get(vbucket)
        if share is None:
            return lane.rows
        return [row for row in lane.rows if row.index_id in share]

    def _mutations(self, body: bytes) -> None:
        """Turn mutations of one vbucket into items: all the time goes by here."""
        (vbucket,) = VBUCKET.unpack_from(body)
        if vbucket not in self.run.positions:
            return  # It never began, or is over: who receives this could not use it.
        partition = vbucket % self._partitions
        lane = self._lanes[partition]
        rows = self._rows_of(vbucket, lane)
        always, tables = lane.choice if rows is lane.rows else Choice(tuple(rows))
        says_absent = self._says_absent
        kind = DOCUMENT if says_absent else PLACES
        singly = says_absent and vbucket in self.run.shares
        hosts = tuple(lane.hosts.values())
        unpack, entry_size, end = MUTATION.unpack_from, MUTATION.size, len(body)
        loads, pack_head, pack_place = self._read, MUTATION_HEAD.pack, PLACED_HEAD.pack
        errors, item_bytes_max = self.errors, self._item_bytes_max
        size, limit = lane.size, FLUSH_BYTES
        at, count, seqno = VBUCKET.size, 0, 0
        while at < end:
            seqno, live, id_size, body_size = unpack(body, at)
            middle = at + entry_size + id_size
            document_id = body[at + entry_size : middle]
            at = middle + body_size
            if at > end:
                raise FrameError("mutations that are cut off")
            count += 1
            if live:
                try:
                    document: Any = loads(body[middle:at])
                except ValueError:
                    errors[GARBAGE] += 1
                    live = 0
                    if self._garbage is not None:
                        self._garbage(vbucket, seqno, body[middle:at])
            if live:
                name = document_id.decode("utf-8", "replace")
                evaluated: Evaluator | None = None
                key: Any = None
                chosen = _chosen(always, tables, document) if tables else always
                for index_id, evaluate, place_of, numbers, targets in chosen:
                    if evaluate is not evaluated:
                        evaluated, key = evaluate, None
                        try:
                            key = evaluate(name, document)
                            if type(key) is bytes and len(key) > KEY_BYTES_MAX:
                                errors[index_id] += 1
                                key = None
                        except Exception:
                            # Whatever it is: a document must not stop the others.
                            errors[index_id] += 1
                    if key is None:
                        continue
                    if type(key) is list:
                        _spread(key, place_of, numbers, targets)
                        continue
                    which = 0 if place_of is None else place_of(key)
                    for add, place in targets[which]:
                        add(pack_place(place, numbers[which], len(key)) + key)
            most = 0
            for host in hosts:
                parts = host.parts
                if not parts and not says_absent:
                    continue
                places = b"".join(parts)
                if singly or len(places) > item_bytes_max:
                    most = max(most, self._singly(host, rows, vbucket, seqno, document_id))
                else:
                    head = pack_head(kind, vbucket, seqno, len(parts), id_size, len(places))
                    item = head + document_id + places
                    host.buffer.append(item)
                    if len(item) > most:
                        most = len(item)
                parts.clear()
            size += most
            if size > limit:
                lane.size = size
                self._flush(partition)
                size = 0
        lane.size = size
        self.documents += count
        if count:
            self.run.positions[vbucket] = Seqno(seqno)

    def _singly(
        self, host: Host, rows: Sequence[Row], vbucket: int, seqno: int, document_id: bytes
    ) -> int:
        """Append items of a mutation that name each index that is told of it; return their bytes.

        They are as many as it takes, and together say what one DOCUMENT does.
        """
        places = b"".join(host.parts)
        there = {placed[0]: placed for placed in unpack_placed(places, len(host.parts))}
        told = _places(host, rows)
        if not self._says_absent:
            told = [place for place in told if place in there]
        size = 0
        wanted = [there.get(place, (place, NO_SLICE, b"")) for place in told]
        for some in _cut(wanted, self._item_bytes_max):
            item = pack(Item(PLACES, vbucket, Seqno(seqno), document=document_id, placed=some))
            host.buffer.append(item)
            size += len(item)
        return size

    def _sync(self, body: bytes) -> None:
        """Say how far vbuckets have come: to the indexers in line, and to everybody."""
        run = self.run
        reached: list[tuple[int, Seqno]] = []
        for vbucket, seqno in POSITION.iter_unpack(body):
            if vbucket in run.positions:
                run.positions[vbucket] = max(seqno, run.positions[vbucket])
                reached.append((vbucket, seqno))
        if run.kind != MAINTENANCE:
            return
        self._say_reached(reached)
        self.flush()
        self._synced.update(reached)
        self._tell_synced([vbucket for vbucket, _ in reached])

    def _say_reached(self, reached: Iterable[tuple[int, Seqno]]) -> None:
        """Say in line how far vbuckets have come, to all indexers."""
        apart: list[list[tuple[int, Seqno]]] = [[] for _ in range(self._partitions)]
        for position in reached:
            apart[position[0] % self._partitions].append(position)
        for some in apart:
            for item in pack_syncs(some):
                self._to_all(item, some[0][0])

    def _say_ends(self, vbuckets: Iterable[int]) -> None:
        """Say in line how far these have come, of those that are at the end of a snapshot."""
        positions = ((v, self.run.positions[v]) for v in vbuckets if v in self.run.positions)
        self._say_reached((v, seqno) for v, seqno in positions if seqno == self._synced.get(v))

    def repeat(self) -> None:
        """Say how far vbuckets have come that were not spoken of since the last call.

        To those who follow the control records: for them silence means that something is wrong.
        Indexers have it in line already; what they hear is whether that is all there was.
        """
        if self.run.kind != MAINTENANCE:
            return
        self.probe()
        self._tell_synced(sorted(self._synced.keys() & self.run.positions.keys() - self._said))
        self._said.clear()

    def probe(self, vbuckets: Iterable[int] = ()) -> None:
        """Send a record to each indexer on each partition, after all that waits.

        Who misses something of this connection learns of it. Who has applied the record has
        applied, or has missed, all that was handed over before it, on whatever connection. Of these
        `vbuckets` it says how far they have come, unless something is about to follow.
        """
        self._say_ends(vbuckets)
        self.flush()
        for partition, lane in enumerate(self._lanes):
            for indexer, host in lane.hosts.items():
                self._send(partition, indexer, host, b"")

    def _end(self, body: bytes) -> None:
        vbucket, seqno, reason = END_BODY.unpack_from(body)
        self.run.ended[vbucket] = reason
        if vbucket not in self.run.positions:
            return  # It never began: of a vbucket that has just moved away, say.
        if self.run.kind != MAINTENANCE and reason == Reason.DONE:
            self._to_all(pack(Item(END, vbucket, seqno)), vbucket)
            self.run.done.append(vbucket)
        self._over(vbucket, seqno, Reason(reason).name.lower())

    def _over(self, vbucket: int, seqno: Seqno, reason: str) -> None:
        """End the stream of a vbucket, and say so after all that came of it."""
        del self.run.positions[vbucket]
        self._said.discard(vbucket)
        self._over_soon.append((vbucket, seqno, reason))

    def _rollback(self, body: bytes) -> None:
        """The store has another history than was asked for: this vbucket is not streamed."""
        vbucket, seqno = POSITION.unpack_from(body)
        run = self.run
        if vbucket in run.given_up:
            return
        run.refused[vbucket] = seqno
        run.positions.pop(vbucket, None)
        vbuuid, begun = run.starts.get(vbucket, (0, 0)) if run.starts else (0, 0)
        self._tell_of(
            vbucket, StreamEnd, vbuuid=vbuuid, seqno=begun, kind=run.kind, reason="rollback"
        )

    def give_up(self, vbuckets: Iterable[int]) -> None:
        """End the streams of vbuckets that another connection brings from now on.

        What still comes of them is passed over.
        """
        for vbucket in sorted(vbuckets):
            self.run.given_up.add(vbucket)
            seqno = self.run.positions.get(vbucket)
            if seqno is not None:
                self._over(vbucket, seqno, "replaced")
        self.flush()

    def close(self, reason: str, *, lost: bool = False) -> None:
        """Send what is left, end each vbucket and the connection.

        `lost`: Kafka has not taken what was sent before; nothing must come after that gap.
        """
        if lost:
            for lane in self._lanes:
                lane.size = 0
                for host in lane.hosts.values():
                    host.buffer.clear()
        for vbucket, seqno in sorted(self.run.positions.items()):
            self._over(vbucket, seqno, "closed")
        self.flush()
        self._tell(0, ConnectionClosed, kind=self.run.kind, reason=reason)

    # -- records -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand all that waits to the sink: items, then what says that nothing follows them."""
        for partition, lane in enumerate(self._lanes):
            if lane.size:
                self._flush(partition)
        over, self._over_soon = self._over_soon, []
        for vbucket, seqno, reason in over:
            self._tell_of(
                vbucket,
                StreamEnd,
                vbuuid=self.run.vbuuids[vbucket],
                seqno=seqno,
                kind=self.run.kind,
                reason=reason,
            )

    def _flush(self, partition: int) -> None:
        lane = self._lanes[partition]
        is_large = lane.size > self._record_bytes_max
        lane.size = 0
        for indexer, host in lane.hosts.items():
            if not host.buffer:
                continue
            if is_large:
                for items, continued in _parts(host.buffer, self._record_bytes_max):
                    self._send(partition, indexer, host, items, continued=continued)
            else:
                self._send(partition, indexer, host, b"".join(host.buffer))
            host.buffer.clear()

    def _send(
        self, partition: int, indexer: int, host: Host, items: bytes, *, continued: bool = False
    ) -> None:
        """Hand a record to the sink; it has the next ordinal, and names the one before it."""
        run = self.run
        run.ordinal += 1
        self.sent_bytes += len(items)
        record = KeyVersions(
            bucket=run.bucket,
            kind=run.kind,
            projector=self._projector,
            connection=run.connection,
            ordinal=run.ordinal,
            number=run.number,
            indexes=host.indexes,
            builds=host.builds,
            items=items,
            at_ms=self._wall_ms(),
            previous=self._previous.get((partition, indexer), 0),
            continued=continued,
        )
        self._previous[partition, indexer] = run.ordinal
        self._sink.items(partition, indexer, record)

    def _to_all(self, item: bytes, vbucket: int) -> None:
        """Append an item for each indexer that hosts anything of what this vbucket is sent of."""
        share = self.run.shares.get(vbucket)
        hosts = self._lane_of(vbucket).hosts.values()
        told = (host for host in hosts if share is None or not share.isdisjoint(host.place))
        self._append(vbucket, ((host, item) for host in told))

    def _lane_of(self, vbucket: int) -> Lane:
        return self._lanes[vbucket % self._partitions]

    def _append(self, vbucket: int, items: Iterable[tuple[Host, bytes]]) -> None:
        """Append an item for each of some hosts; what waits is sent if it is much."""
        lane, most = self._lane_of(vbucket), 0
        for host, item in items:
            host.buffer.append(item)
            most = max(most, len(item))
        lane.size += most
        if lane.size > FLUSH_BYTES:
            self._flush(vbucket % self._partitions)

    def _tell_synced(self, vbuckets: Sequence[int]) -> None:
        """Tell how far vbuckets have come. Those of one connection go to one partition."""
        self._said.update(vbuckets)
        for at in range(0, len(vbuckets), SYNCED_MAX):
            some = vbuckets[at : at + SYNCED_MAX]
            self._tell(
                self.run.connection,
                SyncVector,
                vbuckets=struct.pack(f"<{len(some)}H", *some),
                vbuuids=struct.pack(f"<{len(some)}Q", *map(self.run.vbuuids.__getitem__, some)),
                seqnos=struct.pack(f"<{len(some)}Q", *map(self._synced.__getitem__, some)),
            )

    def _tell_of(self, vbucket: int, record_type: type, **fields: Any) -> None:
        """Send a control record of a vbucket."""
        self._tell(vbucket, record_type, vbucket=vbucket, **fields)

    def _tell(self, place: int, record_type: type, **fields: Any) -> None:
        """Send a control record of this connection; it has the next ordinal."""
        self.run.ordinal += 1
        record = record_type(
            bucket=self.run.bucket,
            projector=self._projector,
            connection=self.run.connection,
            ordinal=self.run.ordinal,
            at_ms=self._wall_ms(),
            **fields,
        )
        self._sink.control(place, record)


def _row(route: Route, hosts: Mapping[int, Host]) -> Row:
    """Return the row of an index for who is told of it: those of `hosts`."""
    targets = tuple(
        tuple(
            (hosts[indexer].parts.append, hosts[indexer].place[route.index.id])
            for indexer in sorted(there)
            if indexer in hosts
        )
        for there in route.hosts
    )
    return Row(route.index.id, route.evaluate, route.place_of, route.numbers, targets)


def _grouped(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return routes in the order in which documents are evaluated for them.

    Those that a document is always evaluated for come first, then those that require something, by
    the path at which they look. Those with the same evaluator follow each other: an index and its
    parts have the same keys, and each document is evaluated once for all of them.
    """
    paths: dict[tuple[str, ...], dict[Evaluator, list[Route]]] = {(): {}}
    for route in routes:
        path = route.required.path if route.required is not None else ()
        paths.setdefault(path, {}).setdefault(route.evaluate, []).append(route)
    return tuple(route for groups in paths.values() for group in groups.values() for route in group)


def _choice(routes: Sequence[Route], rows: Sequence[Row]) -> Choice:
    """Return how the rows of these routes, which are `_grouped`, are chosen."""
    always: list[Row] = []
    tables: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for route, row in zip(routes, rows, strict=True):
        if route.required is None:
            always.append(row)
        else:
            path, text = route.required
            tables.setdefault(path, {}).setdefault(text, []).append(row)
    frozen = {
        path: {text: tuple(found) for text, found in table.items()}
        for path, table in tables.items()
    }
    return Choice(tuple(always), tuple(frozen.items()))


def _chosen(always: tuple[Row, ...], tables: Iterable[Table], document: Any) -> tuple[Row, ...]:
    """Return the rows of the indexes in which a document may be, in their order."""
    chosen = always
    for path, table in tables:
        value = document
        for name in path:
            value = value.get(name) if type(value) is dict else None
        if type(value) is str:
            chosen += table.get(value, ())
    return chosen


def _spread(
    keys: Iterable[bytes],
    place_of: Callable[[bytes], int] | None,
    numbers: Sequence[int],
    targets: Sequence[Sequence[Target]],
) -> None:
    """Give each host the keys of a document in the slices that it has of an index, as one place."""
    told: dict[Target, list[Where]] = {}
    for key in keys:
        which = 0 if place_of is None else place_of(key)
        for target in targets[which]:
            told.setdefault(target, []).append((numbers[which], key))
    for (add, place), places in told.items():
        if len(places) == 1:
            ((piece, key),) = places
        else:
            piece, key = MANY, pack_many(places)
        add(PLACED_HEAD.pack(place, piece, len(key)) + key)


def _places(host: Host, rows: Iterable[Row]) -> list[int]:
    """Return the places of the indexes of rows in the list of a host that hosts them."""
    return [host.place[row.index_id] for row in rows if row.index_id in host.place]


def _cut(placed: Iterable[Placed], bytes_max: int) -> Iterator[tuple[Placed, ...]]:
    """Yield places in groups that each fit into an item."""
    return map(tuple, _grouped_by_size(placed, _size_of_place, bytes_max))


def _size_of_place(placed: Placed) -> int:
    return PLACED_HEAD.size + len(placed[2])


def _parts(items: Sequence[bytes], bytes_max: int) -> Iterator[tuple[bytes, bool]]:
    """Yield items as records of bounded size, each with whether its last seqno goes on."""
    groups = list(_grouped_by_size(items, len, bytes_max))
    for group, after in zip_longest(groups, groups[1:]):
        yield b"".join(group), after is not None and is_of_one_mutation(group[-1], after[0])


def _grouped_by_size(
    things: Iterable[Thing], size_of: Callable[[Thing], int], size_max: int
) -> Iterator[list[Thing]]:
    """Yield things in groups that are not larger than that, or of one thing."""
    group: list[Thing] = []
    whole = 0
    for thing in things:
        size = size_of(thing)
        if group and whole + size > size_max:
            yield group
            group, whole = [], 0
        group.append(thing)
        whole += size
    if group:
        yield group

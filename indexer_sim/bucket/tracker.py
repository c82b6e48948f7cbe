"""What an indexer makes of the key-versions of one bucket: which of them count, how far it is.

Pure. Decoded records come in, in the order of their partition; changes to documents come out, and
what is known about vbuckets and indexes changes with them. Both belong into one write, so that a
restart finds exactly what the database stands at; `load_place`, `load_mark` and `load_state` take
it up again.

A *place* is how far a vbucket is held: every mutation up to its high watermark `seqno` is in the
entries of each index that is done there. One maintenance connection at a time is its owner, and
moves it. A *mark* is how far the build of an index is in a vbucket: attached, then done. What
must hold:

- A connection becomes the owner by its BEGIN (or ATTACH) under no lower number, never by an item:
  what a superseded one still sends is ignored. Where its stream begins above the high watermark,
  the place has a gap: items are applied, but the high watermark stays until a catch-up that began
  at or below it has ended at or above where the owner's stream began.
- What the high watermark says holds for each index that is attached. One that is attached below it,
  where a stream begins again further back, takes it back to there.
- A build has all of a vbucket when a backfill that began after the index was attached has ended at
  or above where it was attached: what is later, the owner carries.
- Backfills and catch-ups are finite: what they bring may be older than what the owner said of a
  document and took back. So absence leaves a tombstone as long as one of them may come.
- A document's entry is the one of the highest seqno: `entries` keeps the seqno, and whoever
  applies a change compares. Nothing here depends on a document.
- Each record names the one before it on its connection, partition and indexer. Where that one is
  not here, no high watermark moves past what it held: the places that it may have been about are
  LOST and are caught up, and no backfill ends that may have lost something. What of a build is
  missing then, nobody here asks for: the heartbeats say how far each build is, and after which
  records, and its projector sends it again.

Seqnos of two branches are not compared: a stream of another branch than that of the high watermark
is `branched`, and nothing of it is applied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    END,
    SYNC,
    VBUUID,
    Item,
    begun,
)
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    NOT_SAID,
    ConnectionRead,
    GenerationTaken,
    KeyVersions,
)
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.entries import State

NEVER = 2**64 - 1
"""A seqno that no mutation has."""

BOUNDARIES_MAX = 256
"""So many ends of snapshots of a vbucket are remembered."""

CHAINS_MAX = 8_192
"""So many connections are followed in all partitions; the one that was silent for longest goes.

There are one maintenance connection for each projector, and a few that end. Should the one that
goes be heard again, something of it counts as lost, and is streamed once more.
"""

TAKEN_MAX = 512
"""So many generations are told of, the newest: each projector has one, as a rule."""

Connection = tuple[int, int]
"""A projector, and the number of the connection for itself alone."""

WHOLE, GAP, LOST, ORPHANED, BRANCHED = range(5)
"""The conditions of a place. `LOST`: part of what the owner sent is gone, and perhaps who the owner
is; caught up, it is `ORPHANED`: nothing is missing, and whoever sends next is the owner."""

CATCHING_UP = (GAP, LOST)
PLACE_RECORD = struct.Struct(">qiqQQBQQQQiq")
MARK_RECORD = struct.Struct(">QQQiq")
NO_CONNECTION: Connection = (-1, 0)


class Change(NamedTuple):
    """What a document has come to in an index; `piece` -1: it is in no slice that is held here.

    Applied only if `seqno` is above what is held of the document. `guarded`: absence must leave a
    tombstone. `logged`: it can be undone, for a moment between the high watermarks.
    """

    index_id: int
    document: bytes
    seqno: int
    piece: int
    key: bytes
    guarded: bool
    logged: bool
    vbucket: int


class Chain(NamedTuple):
    """How far a connection is here in one partition: up to the record with this ordinal.

    `number` is that of a maintenance connection, 0 for one that ends.
    """

    ordinal: int
    number: int


ChainKey = tuple[int, Connection]
"""A partition of `mutations`, and a connection that sends on it."""


@dataclass(slots=True)
class Place:
    """How far a vbucket is held, and by whom it is moved.

    `begun` is where the owner's stream began, or from where on it is whole; `reached` how far it
    has come; `synced` the last end of a snapshot. `floor`: below it, no moment can be told exactly.
    `partial` is the last seqno of which a part came before the rest: after a restart nobody can
    take that part back, so that it is a floor then.
    """

    number: int = 0
    owner: Connection = NO_CONNECTION
    vbuuid: int = 0
    seqno: int = 0
    condition: int = WHOLE
    begun: int = 0
    reached: int = 0
    synced: int = 0
    floor: int = 0
    catchup: Connection = NO_CONNECTION
    partial: int = 0

    def pack(self) -> bytes:
        return PLACE_RECORD.pack(
            self.number,
            *self.owner,
            self.vbuuid,
            self.seqno,
            self.condition,
            self.begun,
            self.reached,
            self.synced,
            max(self.floor, self.partial),
            *self.catchup,
        )

    @classmethod
    def unpack(cls, raw: bytes) -> Place:
        number, p1, c1, vbuuid, seqno, condition, begun, reached, synced, floor, p2, c2 = (
            PLACE_RECORD.unpack(raw)
        )
        return cls(
            number, (p1, c1), vbuuid, seqno, condition, begun, reached, synced, floor, (p2, c2)
        )


@dataclass(slots=True)
class Mark:
    """How far the build of an index is in one vbucket.

    `attached`: from this seqno on owners carry it, or the last one does. `done`: all of it is
    here, and exactly so from this seqno on. `lacks`: the owner that is now does not carry it, and
    its stream began here. `source`: the connection of its backfill.
    """

    attached: int
    done: int = NEVER
    lacks: int = NEVER
    source: Connection = NO_CONNECTION

    def pack(self) -> bytes:
        return MARK_RECORD.pack(self.attached, self.done, self.lacks, *self.source)

    @classmethod
    def unpack(cls, raw: bytes) -> Mark:
        attached, done, lacks, projector, connection = MARK_RECORD.unpack(raw)
        return cls(attached, done, lacks, (projector, connection))


@dataclass(slots=True)
class Tracked:
    """An index that has slices here. `tombstones`: there may be some.

    `done` has a bit for each vbucket of which all is here, None if that must be found out.
    """

    state: State = field(default_factory=State)
    marks: dict[int, Mark] = field(default_factory=dict)
    tombstones: bool = False
    done: bytes | None = None


@dataclass(slots=True)
class Dirty:
    """What changed since it was last written."""

    places: set[int] = field(default_factory=set)
    marks: set[tuple[int, int]] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    chains: set[ChainKey] = field(default_factory=set)

    def clear(self) -> None:
        self.places.clear()
        self.marks.clear()
        self.states.clear()
        self.chains.clear()


class Tracker:
    """All that is known of one bucket's streams. `vbuckets` is 0 while that is not known.

    `partitions` is how many `mutations` has: what is sent of vbucket `v` lies in `v % partitions`.
    """

    def __init__(self, vbuckets: int = 0, partitions: int = 1) -> None:
        self.vbuckets = vbuckets
        self.partitions = partitions
        self.places: dict[int, Place] = {}
        self.indexes: dict[int, Tracked] = {}
        self.chains: dict[ChainKey, Chain] = {}
        """How far connections are here; who was heard last comes last."""
        self._maintaining: set[ChainKey] = set()
        """Those of them that do not end."""
        self.dirty = Dirty()
        self.boundaries: dict[int, list[int]] = {}
        """Ends of snapshots of each vbucket, ascending, since somebody took them."""
        self._odd: set[int] = set()
        """All vbuckets that are not WHOLE, and perhaps some that are again: hardly ever any."""
        self._vbuuids = np.zeros(vbuckets, np.uint64)
        self._seqnos = np.zeros(vbuckets, np.uint64)
        self._taken: tuple[GenerationTaken, ...] | None = None

    # -- what was written before -------------------------------------------------------------

    def load_place(self, vbucket: int, place: Place) -> None:
        place.floor = max(place.floor, place.seqno)
        self.places[vbucket] = place
        self._taken = None
        self.boundaries[vbucket] = [place.synced]
        self._note(vbucket, place)

    def load_chain(self, partition: int, connection: Connection, chain: Chain) -> None:
        self._link((partition, connection), chain)

    def load_mark(self, index_id: int, vbucket: int, mark: Mark) -> None:
        self.indexes[index_id].marks[vbucket] = mark

    def load_state(self, index_id: int, state: State, tombstones: bool) -> None:
        self.indexes[index_id].state = state
        self.indexes[index_id].tombstones = tombstones

    # -- which indexes there are -------------------------------------------------------------

    def hold(self, index_id: int) -> None:
        """An index has storage here, which is empty."""
        self.indexes[index_id] = Tracked()

    def forget(self, index_id: int) -> None:
        """An index has no storage here any more, or has lost all that was in it."""
        self.indexes.pop(index_id, None)
        self.dirty.states.discard(index_id)
        self.dirty.marks = {mark for mark in self.dirty.marks if mark[0] != index_id}

    def know(self, vbuckets: int) -> None:
        """The bucket has this many vbuckets."""
        if vbuckets != self.vbuckets:
            self.vbuckets = vbuckets
            self._vbuuids = np.zeros(vbuckets, np.uint64)
            self._seqnos = np.zeros(vbuckets, np.uint64)
            self._taken = None
            for vbucket, place in self.places.items():
                self._note(vbucket, place)
            for index_id in self.indexes:
                self._complete(index_id)

    def newer_builds(self, record: KeyVersions) -> dict[int, int]:
        """Return the indexes of which a record tells a newer build: what they hold is void.

        The master commits a build before anybody can send items for it, and numbers only ascend.
        """
        found: dict[int, int] = {}
        for index_id, build in zip(record.indexes, record.builds, strict=True):
            tracked = self.indexes.get(index_id)
            if tracked is not None and build > tracked.state.build:
                found[index_id] = build
        return found

    def begin_build(self, index_id: int, build: int) -> None:
        """An index begins from nothing, under a new build."""
        self.forget(index_id)
        self.indexes[index_id] = Tracked(State(build))
        self.dirty.states.add(index_id)

    # -- records -----------------------------------------------------------------------------

    def take(self, record: KeyVersions, items: Iterable[Item], partition: int = 0) -> list[Change]:
        """Take one record from a partition; return what is to be applied, in order.

        ItemsError, IndexError: the record is not one. Nothing was changed up to the item.
        """
        if not self._follow(record, partition):
            return []
        known: list[tuple[int, Tracked | None]] = []
        for index_id, build in zip(record.indexes, record.builds, strict=True):
            tracked = self.indexes.get(index_id)
            held = tracked is not None and tracked.state.build == build
            known.append((index_id, tracked if held else None))
        changes: list[Change] = []
        if record.kind == MAINTENANCE:
            self._maintain(record, known, items, changes)
        elif record.kind in (BACKFILL, CATCHUP):
            self._fill(record, known, items, changes)
        return changes

    def _follow(self, record: KeyVersions, partition: int) -> bool:
        """Note how far a connection is; False: this record of it is here already."""
        at = (partition, (record.projector, record.connection))
        before = self.chains.get(at)
        reached = before.ordinal if before is not None else 0
        if record.previous != NOT_SAID:
            if record.ordinal <= reached:
                return False
            if record.previous != reached:
                self._miss(record, partition)
        number = record.number if record.kind == MAINTENANCE else 0
        if before is None:
            self._let_go(partition, record.projector, number)
        else:
            del self.chains[at]
        self._link(at, Chain(record.ordinal, number))
        self.dirty.chains.add(at)
        return True

    def _link(self, at: ChainKey, chain: Chain) -> None:
        self.chains[at] = chain
        if chain.number:
            self._maintaining.add(at)

    def _unlink(self, at: ChainKey) -> None:
        self.chains.pop(at, None)
        self._maintaining.discard(at)
        self.dirty.chains.add(at)

    def _let_go(self, partition: int, projector: int, number: int) -> None:
        """Make room for a connection: what it supersedes is not followed any more."""
        gone = [
            at
            for at in self._maintaining
            if at[0] == partition and at[1][0] == projector and self.chains[at].number < number
        ]
        for at in gone:
            self._unlink(at)
        if len(self.chains) >= CHAINS_MAX:
            self._unlink(next(iter(self.chains)))

    def _miss(self, record: KeyVersions, partition: int) -> None:
        """What a connection sent before this record is not here: take it for lost.

        It may have been about each vbucket of the partition that this connection owns, or has
        taken over from one with a lower number.
        """
        connection = (record.projector, record.connection)
        if record.kind != MAINTENANCE:
            self._break_off(partition, connection)
            return
        for vbucket, place in self.places.items():
            mine = place.number == record.number and place.owner[0] == record.projector
            if vbucket % self.partitions == partition and (mine or place.number < record.number):
                self._lose(vbucket, place)

    def _lose(self, vbucket: int, place: Place) -> None:
        if place.condition != BRANCHED:
            place.condition, place.catchup = LOST, NO_CONNECTION
            self._touch(vbucket, place)

    def _break_off(self, partition: int, connection: Connection | None = None) -> None:
        """A connection that ends has lost something; None: each of them."""
        for vbucket, place in self.places.items():
            if vbucket % self.partitions == partition and _is_of(place.catchup, connection):
                place.catchup = NO_CONNECTION
                self.dirty.places.add(vbucket)
        for index_id, tracked in self.indexes.items():
            for vbucket, mark in tracked.marks.items():
                if vbucket % self.partitions == partition and _is_of(mark.source, connection):
                    mark.source = NO_CONNECTION
                    self._marked(index_id, vbucket)

    def _maintain(
        self,
        record: KeyVersions,
        known: Sequence[tuple[int, Tracked | None]],
        items: Iterable[Item],
        changes: list[Change],
    ) -> None:
        """Take items of a maintenance connection. The high watermark moves when a seqno is over."""
        vbucket, seqno = -1, 0
        place: Place | None = None
        made, append = tuple.__new__, changes.append
        for kind, at, number, which, piece, document, payload in items:
            if kind > ABSENT:
                if place is not None:
                    self._moved(vbucket, place, seqno)
                self._control(record, known, Item(kind, at, number, which, payload=payload))
                vbucket, place = -1, None
                continue
            if at != vbucket:
                if place is not None:
                    self._moved(vbucket, place, seqno)
                vbucket, place = at, self._owned(record, known, at, number)
            elif number != seqno and place is not None and place.condition == WHOLE:
                place.seqno = seqno if seqno > place.seqno else place.seqno
            seqno = number
            index_id, tracked = known[which]
            if place is None or tracked is None or place.condition == BRANCHED:
                continue
            mark = tracked.marks.get(vbucket)
            if mark is None:
                continue
            whole = place.condition == WHOLE
            if mark.done == NEVER:
                guarded = True
            elif number <= place.seqno:
                continue
            else:
                # Up to the floor, a catch-up may have brought what the owner has still to send.
                guarded = not whole or number <= place.floor
                if guarded and number > place.floor:
                    place.floor = number
            if kind == ABSENT:
                piece = -1
                tracked.tombstones = tracked.tombstones or guarded
            append(
                made(
                    Change,
                    (index_id, document, number, piece, payload, guarded, not guarded, vbucket),
                )
            )
        if place is not None:
            if record.continued:
                # What is still to come of the last seqno must not be counted as held.
                place.partial, seqno = seqno, seqno - 1
            self._moved(vbucket, place, seqno)

    def _owned(
        self,
        record: KeyVersions,
        known: Sequence[tuple[int, Tracked | None]],
        vbucket: int,
        seqno: int,
    ) -> Place | None:
        """Return a vbucket's place if this connection is its owner, or is taken for it."""
        place = self.places.get(vbucket)
        connection = (record.projector, record.connection)
        if place is None:
            return None
        if place.condition not in (LOST, ORPHANED):
            return place if place.owner == connection else None
        if record.number < place.number:
            return None
        # Who the owner is, and what it carries, may be among what was lost. All that this one sent
        # since is here, and it lists what it carries.
        place.number, place.owner = record.number, connection
        self._taken = None
        place.begun = place.reached = max(0, seqno - 1)
        place.condition = GAP if place.condition == LOST else WHOLE
        self.dirty.places.add(vbucket)
        self._carry_held(vbucket, {index_id for index_id, tracked in known if tracked is not None})
        return place

    def _moved(self, vbucket: int, place: Place, seqno: int) -> None:
        """All up to this seqno has come from the owner."""
        if seqno > place.reached:
            place.reached = seqno
        if place.condition == WHOLE and seqno > place.seqno:
            place.seqno = seqno
        self._touch(vbucket, place)

    def _touch(self, vbucket: int, place: Place) -> None:
        self.dirty.places.add(vbucket)
        self._note(vbucket, place)

    def _note(self, vbucket: int, place: Place) -> None:
        if place.condition != WHOLE:
            self._odd.add(vbucket)
        if vbucket < len(self._seqnos):
            self._vbuuids[vbucket] = place.vbuuid
            self._seqnos[vbucket] = place.seqno

    # -- control on a maintenance connection -------------------------------------------------

    def _control(
        self, record: KeyVersions, known: Sequence[tuple[int, Tracked | None]], item: Item
    ) -> None:
        vbucket, seqno = item.vbucket, item.seqno
        if item.kind == BEGIN:
            vbuuid, places = begun(item)
            listed = {known[place][0] for place in places if known[place][1] is not None}
            if self._begin(record, vbucket, vbuuid, seqno):
                self._carry(vbucket, listed)
        elif item.kind == ATTACH:
            index_id, tracked = known[item.place]
            if tracked is not None:
                vbuuid = VBUUID.unpack_from(item.payload)[0] if item.payload else 0
                self._attach(record, known, vbucket, vbuuid, seqno, index_id)
        else:
            place = self._owned(record, known, vbucket, seqno + 1)
            if place is not None and place.condition != BRANCHED:
                if item.kind == SYNC and seqno >= place.synced:
                    place.synced = seqno
                    ends = self.boundaries.setdefault(vbucket, [])
                    if not ends or seqno > ends[-1]:
                        ends.append(seqno)
                    if len(ends) > BOUNDARIES_MAX:
                        del ends[: BOUNDARIES_MAX // 2]
                self._moved(vbucket, place, seqno)

    def _begin(self, record: KeyVersions, vbucket: int, vbuuid: int, seqno: int) -> bool:
        """A connection becomes the owner of a vbucket; False: it is superseded."""
        place = self.places.setdefault(vbucket, Place())
        if record.number < place.number:
            return False
        place.number, place.owner = record.number, (record.projector, record.connection)
        self._taken = None
        place.reached = seqno
        if not self._is_held(vbucket):
            # Nothing is held, so nothing is missing, wherever it begins.
            place.vbuuid, place.seqno, place.condition = vbuuid, seqno, WHOLE
            place.begun = place.synced = place.floor = seqno
            place.catchup = NO_CONNECTION
            self.boundaries[vbucket] = [seqno]
        elif place.seqno and vbuuid != place.vbuuid:
            place.condition = BRANCHED
        elif seqno <= place.seqno:
            place.vbuuid, place.condition, place.begun = vbuuid, WHOLE, seqno
            place.catchup = NO_CONNECTION
        else:
            place.vbuuid, place.condition, place.begun = vbuuid, GAP, seqno
        self._touch(vbucket, place)
        return True

    def _carry(self, vbucket: int, listed: set[int]) -> None:
        """The new owner of a vbucket carries these indexes."""
        begun = self.places[vbucket].begun
        self._carry_held(vbucket, listed)
        for index_id in listed:
            mark = self.indexes[index_id].marks.get(vbucket)
            if mark is None or (mark.done == NEVER and begun < mark.attached):
                self._mark(vbucket, index_id, begun)

    def _carry_held(self, vbucket: int, listed: set[int]) -> None:
        """Of what is attached already, the new owner carries these indexes, and no others."""
        place = self.places[vbucket]
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(vbucket)
            if mark is None:
                continue
            if index_id in listed:
                self._resume(vbucket, index_id, place.begun)
            elif mark.lacks == NEVER:
                mark.lacks = min(place.begun, place.seqno)
                self._marked(index_id, vbucket)
                self._complete(index_id)

    def _attach(
        self,
        record: KeyVersions,
        known: Sequence[tuple[int, Tracked | None]],
        vbucket: int,
        vbuuid: int,
        seqno: int,
        index_id: int,
    ) -> None:
        """From here on a connection carries an index in a vbucket, too."""
        place = self.places.get(vbucket)
        superseded = place is not None and place.number < record.number
        if place is None or superseded or not self._is_held(vbucket):
            # It began before anything was held here.
            if not self._begin(record, vbucket, vbuuid, seqno):
                return
        elif self._owned(record, known, vbucket, seqno + 1) is None:
            return
        place = self.places[vbucket]
        mark = self.indexes[index_id].marks.get(vbucket)
        if mark is None:
            self._mark(vbucket, index_id, seqno)
        else:
            self._resume(vbucket, index_id, seqno)
        if place.condition != BRANCHED:
            self._moved(vbucket, place, seqno)

    def _mark(self, vbucket: int, index_id: int, seqno: int) -> None:
        """An index is attached here: what it does not have, the high watermark must not say."""
        tracked = self.indexes[index_id]
        mark = tracked.marks.setdefault(vbucket, Mark(seqno))
        mark.attached = seqno
        self._marked(index_id, vbucket)
        place = self.places[vbucket]
        if place.condition == WHOLE and seqno < place.seqno:
            place.floor = max(place.floor, place.seqno)
            place.seqno = seqno
            self._touch(vbucket, place)

    def _resume(self, vbucket: int, index_id: int, seqno: int) -> None:
        """An index is carried from here on; what was sent without it before is a gap."""
        mark = self.indexes[index_id].marks[vbucket]
        lacks, mark.lacks = mark.lacks, NEVER
        if lacks == NEVER:
            return
        place = self.places[vbucket]
        if place.condition in (WHOLE, GAP):
            place.floor = max(place.floor, place.seqno, place.reached)
            place.seqno = min(place.seqno, lacks)
            if seqno > lacks:
                begun = place.begun if place.condition == GAP else 0
                place.condition, place.begun = GAP, max(begun, seqno)
                place.catchup = NO_CONNECTION
            self._touch(vbucket, place)
        self._marked(index_id, vbucket)
        self._complete(index_id)

    # -- backfills and catch-ups -------------------------------------------------------------

    def _fill(
        self,
        record: KeyVersions,
        known: Sequence[tuple[int, Tracked | None]],
        items: Iterable[Item],
        changes: list[Change],
    ) -> None:
        """Take items of a connection that ends."""
        connection = (record.projector, record.connection)
        is_backfill = record.kind == BACKFILL
        made, append = tuple.__new__, changes.append
        for kind, vbucket, number, which, piece, document, payload in items:
            if kind > ABSENT:
                item = Item(kind, vbucket, number, which, payload=payload)
                if is_backfill:
                    self._backfill_control(connection, known, item)
                else:
                    self._catchup_control(connection, known, item)
                continue
            index_id, tracked = known[which]
            if tracked is None or (mark := tracked.marks.get(vbucket)) is None:
                continue
            if is_backfill:
                if mark.done != NEVER or mark.source != connection:
                    continue
            else:
                place = self.places[vbucket]
                if place.catchup != connection or place.condition not in CATCHING_UP:
                    continue
                if number <= place.seqno:
                    continue  # It is here, and what has become of it since may be, too.
                if number > place.floor:
                    place.floor = number
                    self.dirty.places.add(vbucket)
            if kind == ABSENT:
                piece = -1
                tracked.tombstones = True
            append(made(Change, (index_id, document, number, piece, payload, True, False, vbucket)))

    def _backfill_control(
        self, connection: Connection, known: Sequence[tuple[int, Tracked | None]], item: Item
    ) -> None:
        place = self.places.get(item.vbucket)
        if place is None:
            return
        if item.kind == BEGIN:
            vbuuid, listed = begun(item)
            if item.seqno or vbuuid != place.vbuuid:
                return
            for which in listed:
                index_id, tracked = known[which]
                mark = tracked.marks.get(item.vbucket) if tracked is not None else None
                if mark is not None and mark.done == NEVER:
                    mark.source = connection
                    self._marked(index_id, item.vbucket)
        elif item.kind == END:
            for index_id, tracked in known:
                # Of those that it began with: one that it left out since is not listed any more.
                mark = tracked.marks.get(item.vbucket) if tracked is not None else None
                if mark is None or mark.source != connection:
                    continue
                mark.source = NO_CONNECTION
                if item.seqno >= mark.attached:
                    mark.done = max(item.seqno, place.reached, place.seqno)
                    self._complete(index_id)
                self._marked(index_id, item.vbucket)

    def _catchup_control(
        self, connection: Connection, known: Sequence[tuple[int, Tracked | None]], item: Item
    ) -> None:
        place = self.places.get(item.vbucket)
        if place is None or place.condition not in CATCHING_UP:
            return
        if item.kind == BEGIN:
            vbuuid, listed = begun(item)
            carried = {known[which][0] for which in listed}
            same = vbuuid == place.vbuuid or not place.seqno
            if same and item.seqno <= place.seqno and carried >= self._missing(item.vbucket):
                place.catchup = connection
                self.dirty.places.add(item.vbucket)
        elif item.kind == END and place.catchup == connection:
            place.catchup = NO_CONNECTION
            place.floor = max(place.floor, item.seqno)
            if place.condition == LOST:
                place.condition, place.seqno = ORPHANED, max(place.seqno, item.seqno)
            elif item.seqno >= place.begun:
                place.condition, place.seqno = WHOLE, max(place.seqno, place.reached)
            else:
                place.seqno = max(place.seqno, item.seqno)
            self._touch(item.vbucket, place)

    def _missing(self, vbucket: int) -> set[int]:
        """Return the indexes that lack something in the gap of a vbucket."""
        place = self.places[vbucket]
        found: set[int] = set()
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(vbucket)
            if mark is not None and mark.lacks == NEVER:
                late = place.condition == GAP and place.begun <= mark.attached
                if mark.done != NEVER or not late:
                    found.add(index_id)
        return found

    # -- what follows ------------------------------------------------------------------------

    def lose(self, partitions: Iterable[int]) -> None:
        """Part of these partitions is gone, nobody knows what: nothing that is sent there is whole.

        What is complete stays so: it lacks what comes after the high watermarks, and no more.
        """
        for partition in partitions:
            for vbucket, place in self.places.items():
                if vbucket % self.partitions == partition:
                    self._lose(vbucket, place)
            self._break_off(partition)
            for at in [at for at in self.chains if at[0] == partition]:
                self._unlink(at)

    def _marked(self, index_id: int, vbucket: int) -> None:
        self.dirty.marks.add((index_id, vbucket))
        self.indexes[index_id].done = None

    def _complete(self, index_id: int) -> None:
        """Note whether all of an index is here."""
        tracked = self.indexes[index_id]
        complete = 0 < self.vbuckets == len(tracked.marks) and all(
            mark.done != NEVER and mark.lacks == NEVER for mark in tracked.marks.values()
        )
        if complete != tracked.state.complete:
            tracked.state = tracked.state._replace(complete=complete)
            self.dirty.states.add(index_id)

    def swept(self) -> list[int]:
        """Return the indexes whose tombstones nobody needs any more; they are taken for gone."""
        if self.gaps():
            return []
        found = [i for i, t in self.indexes.items() if t.tombstones and t.state.complete]
        for index_id in found:
            self.indexes[index_id].tombstones = False
        return found

    def gaps(self) -> list[int]:
        """Return the vbuckets that must be caught up, ascending."""
        return [vbucket for vbucket in self._in(*CATCHING_UP) if self._is_held(vbucket)]

    def _is_held(self, vbucket: int) -> bool:
        """Tell whether any index has anything of a vbucket, and so may miss something."""
        return any(vbucket in tracked.marks for tracked in self.indexes.values())

    def branched(self) -> list[int]:
        """Return the vbuckets whose stream has left what is held, ascending."""
        return self._in(BRANCHED)

    def _in(self, *conditions: int) -> list[int]:
        """Return the vbuckets in these conditions, ascending. Asked after every batch."""
        self._odd = {v for v in self._odd if self.places[v].condition != WHOLE}
        return sorted(v for v in self._odd if self.places[v].condition in conditions)

    def read(self) -> tuple[ConnectionRead, ...]:
        """Return how far maintenance connections are here."""
        found: dict[Connection, list[int]] = {}
        for at in self._maintaining:
            partition, connection = at
            if partition < self.partitions:
                ordinals = found.setdefault(connection, [0] * self.partitions)
                ordinals[partition] = self.chains[at].ordinal
        return tuple(ConnectionRead(*c, tuple(o)) for c, o in sorted(found.items()))

    def taken(self) -> tuple[GenerationTaken, ...]:
        """Return under which numbers vbuckets are taken, and from whom; the highest first."""
        if self._taken is None:
            found: dict[tuple[int, int], list[int]] = {}
            for vbucket, place in self.places.items():
                if place.number:
                    found.setdefault((-place.number, place.owner[0]), []).append(vbucket)
            self._taken = tuple(
                GenerationTaken(-number, projector, self._bits(found[number, projector]))
                for number, projector in sorted(found)[:TAKEN_MAX]
            )
        return self._taken

    def vector(self) -> Vector:
        """Return the high watermarks."""
        return Vector(self._vbuuids, self._seqnos)

    def covers(self, vector: Vector) -> bool:
        """Tell whether no high watermark is below that of a vector, whatever the branches."""
        return bool(np.all(self._seqnos >= vector.seqnos))

    def done_bits(self, index_id: int) -> bytes:
        """Return a bit for each vbucket of which all of an index is here, and goes on to come."""
        tracked = self.indexes[index_id]
        if tracked.done is None or len(tracked.done) != -(-self.vbuckets // 8):
            tracked.done = self._bits(
                vbucket
                for vbucket, mark in tracked.marks.items()
                if mark.done != NEVER and mark.lacks == NEVER
            )
        return tracked.done

    def _bits(self, vbuckets: Iterable[int]) -> bytes:
        """Return a bit for each vbucket of the bucket: those of these are set."""
        bits = bytearray(-(-self.vbuckets // 8))
        for vbucket in vbuckets:
            if vbucket < self.vbuckets:
                bits[vbucket // 8] |= 1 << vbucket % 8
        return bytes(bits)


def _is_of(held: Connection, connection: Connection | None) -> bool:
    """Tell whether what is held is this connection, or any if none is named."""
    return held == connection if connection is not None else held != NO_CONNECTION

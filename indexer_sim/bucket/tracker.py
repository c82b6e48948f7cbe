"""What an indexer makes of the key-versions of one bucket: which of them count, how far it is.

Pure. Decoded records come in, in the order of their partition. Changes to documents come out, and
what is known about vbuckets and indexes changes with them. The caller writes both in one batch, so
after a restart it finds exactly the state of the database; `load_progress`, `load_mark`,
`load_state` and `chains.load` load it.

The *progress* of a vbucket is how far it is held: every mutation up to its high watermark `seqno`
is in the entries of each index that is done there. One maintenance connection at a time is the
owner of the vbucket, and moves its progress. `progress.CONDITIONS` is the table of what can happen
to a vbucket. A *mark* is how far the build of an index is in a vbucket: attached, then done.

Invariants:

- A connection becomes the owner by a BEGIN (or ATTACH) under no lower number. An item makes it the
  owner only of a vbucket that has lost its owner (LOST, ORPHANED). So what a superseded connection
  still sends is ignored. If the owner's stream begins above the high watermark, the vbucket has a
  gap: items are applied, but the high watermark does not advance. The gap ends when a catch-up that
  began at or below the high watermark ends at or above the seqno where the owner's stream began.
- A catch-up counts if it is of the owner's projector, under the owner's number, or under a higher
  one: then this is the owner. It ends where the store was when its projector heard the request. It
  may have been asked for before a loss, so it does not tell that nothing else is lost: that does
  what the owner sends next, if nothing can lie between.
- The high watermark holds for each index that is attached. If an index is attached below it,
  because a stream begins again further back, the high watermark goes back to there.
- A build is complete in a vbucket when a backfill that began after the index was attached has ended
  at or above the seqno of the attachment. The owner sends everything later.
- Backfills and catch-ups end. They may bring older items than the owner has sent, also for a
  document that the owner has deleted. So a deletion leaves a tombstone as long as one may come.
- The entry of a document is the one of its highest seqno. `entries` keeps the seqno, and whoever
  applies a change compares. Nothing here depends on a document.
- `chains` tells where records of a connection are missing. No high watermark moves past such a
  hole: the vbuckets that the missing records may have been about are LOST, and have to be caught
  up. A backfill that may have lost a record does not end. Nobody here requests the missing part of
  a build: the heartbeats say how far each build is, and after which records, and the projector
  sends the part again.

Seqnos of two branches are not compared, but where the history in front of a BEGIN says that the new
branch has all that was applied here: then the high watermark goes over to it. Any other stream on
another branch than that of the high watermark is `branched`, and nothing of it is applied.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coordinator.core.keys.key_versions import (
    ATTACH,
    BEGIN,
    DOCUMENT,
    END,
    HISTORY,
    OF_MUTATIONS,
    SYNC,
    VBUUID,
    Item,
    Placed,
    begun,
    branches,
    placed_before,
)
from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    BuildProgress,
    FailoverBranch,
    GenerationTaken,
    KeyVersions,
)
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import Succession, succession
from indexer_sim.bucket.chains import AFTER_A_HOLE, READ_BEFORE, Chains
from indexer_sim.bucket.entries import State
from indexer_sim.bucket.progress import (
    BEGUN_ABOVE,
    BEGUN_ON_A_BRANCH,
    BEGUN_WITHIN,
    BRANCHED,
    CARRIED_LATER,
    CATCHING_UP,
    CAUGHT_UP,
    CUT_OFF,
    GAP,
    GOES_ON,
    LOST,
    NO_CONNECTION,
    NOT_HEARD,
    ORPHANED,
    OWNER_HEARD,
    RECORDS_MISSING,
    WHOLE,
    WITHOUT_OWNER,
    Connection,
    VbucketProgress,
)

NEVER = Seqno(2**64 - 1)
"""A seqno that no mutation has."""

BOUNDARIES_MAX = 256
"""So many ends of snapshots of a vbucket are remembered."""

LISTED_MAX = 64
"""So many different lists of indexes are remembered: there are few connections at a time."""

TAKEN_MAX = 1_024
"""So many generations are told of, the newest: each projector has four at most."""

MARK_RECORD = struct.Struct(">QQQiq")


class Scope(NamedTuple):
    """The indexes for which a mutation counts.

    Of those `logged` its change can be undone, for a snapshot at a seqno between high watermarks.
    Of those `guarded` older items may still come: where the document is not, a tombstone must be.
    """

    logged: frozenset[int]
    guarded: frozenset[int]


NO_INDEX: frozenset[int] = frozenset()


class Change(NamedTuple):
    """The new places of a document, by the places of the indexes among `indexes`.

    They count for the indexes of the scope, and for an index only if `seqno` is above what is held
    of the document there. `others`: in the other indexes of the scope the document is not.
    """

    document: bytes
    seqno: Seqno
    vbucket: int
    placed: tuple[Placed, ...]
    others: bool
    scope: Scope
    indexes: Sequence[int]


@dataclass(slots=True)
class Mark:
    """How far the build of an index is in one vbucket.

    `attached`: from this seqno on the owners carry the index. `done`: everything is here, and exact
    from this seqno on. `lacks`: the present owner does not carry the index, and its stream began
    here. `source`: the connection of its backfill.
    """

    attached: Seqno
    done: Seqno = NEVER
    lacks: Seqno = NEVER
    source: Connection = NO_CONNECTION

    @property
    def is_whole(self) -> bool:
        """All of the vbucket is here, and what follows goes on to come."""
        return self.done != NEVER and self.lacks == NEVER

    def pack(self) -> bytes:
        return MARK_RECORD.pack(self.attached, self.done, self.lacks, *self.source)

    @classmethod
    def unpack(cls, raw: bytes) -> Mark:
        attached, done, lacks, projector, connection = MARK_RECORD.unpack(raw)
        return cls(attached, done, lacks, (projector, connection))


@dataclass(slots=True)
class Tracked:
    """An index that has slices here.

    `done` has a bit for each vbucket in which the build is complete; None: it has to be computed.
    """

    state: State = field(default_factory=State)
    marks: dict[int, Mark] = field(default_factory=dict)
    done: bytes | None = None

    def is_complete(self, vbuckets: int) -> bool:
        """Tell whether all of the index is here, of each of the bucket's `vbuckets`; 0: unknown."""
        marks = self.marks.values()
        return 0 < vbuckets == len(marks) and all(mark.is_whole for mark in marks)


Known = Sequence[tuple[int, Tracked | None]]
"""The indexes that a record lists, each None if that build of it is not held."""


class Listed(NamedTuple):
    """What a record lists: each index, None if that build is not held, and which are newer.

    There is one of all records that list the same.
    """

    known: Known
    newer: dict[int, int]


class Carried(NamedTuple):
    """The indexes that a connection carries in one vbucket, by what a mutation of it is to them.

    `known` are those that its records list. What comes above all that is held is `new`;
    what is held by those that are done is new to the others alone, `unbuilt`; and of what is
    above, but where older items may follow, nothing can be undone: `unordered`.
    """

    known: Known
    new: Scope
    unbuilt: Scope
    unordered: Scope


@dataclass(slots=True)
class Dirty:
    """What changed since it was last written."""

    progress: set[int] = field(default_factory=set)
    marks: set[tuple[int, int]] = field(default_factory=set)
    states: set[int] = field(default_factory=set)

    def clear(self) -> None:
        self.progress.clear()
        self.marks.clear()
        self.states.clear()


class Tracker:
    """All that is known of one bucket's streams. `vbuckets` is 0 while that is not known.

    `partitions` is how many `mutations` has: what is sent of vbucket `v` lies in `v % partitions`.

    Large because marks and progress change together: each kind of item changes both, and a
    reader has to see both changes in one place.
    """

    def __init__(self, vbuckets: int = 0, partitions: int = 1) -> None:
        self.vbuckets = vbuckets
        self.partitions = partitions
        self.progress: dict[int, VbucketProgress] = {}
        self.indexes: dict[int, Tracked] = {}
        self.tombstoned: set[int] = set()
        """The indexes that may have tombstones."""
        self.chains = Chains()
        """How far connections are here."""
        self.dirty = Dirty()
        self.boundaries: dict[int, list[int]] = {}
        """Ends of snapshots of each vbucket, ascending, since somebody took them."""
        self._histories: dict[int, tuple[FailoverBranch, ...]] = {}
        """Of vbuckets whose BEGIN or ATTACH comes next."""
        self._odd: set[int] = set()
        """All vbuckets that are not WHOLE, and perhaps some that are again: hardly ever any."""
        self._vbuuids = np.zeros(vbuckets, np.uint64)
        self._seqnos = np.zeros(vbuckets, np.uint64)
        self._taken: tuple[GenerationTaken, ...] | None = None
        self._states: Mapping[int, State] | None = None
        self._builds: tuple[BuildProgress, ...] | None = None
        self._listed: dict[tuple[tuple[int, ...], tuple[int, ...]], Listed] = {}
        """By what records list: ids of indexes, and their builds."""
        self._carried: dict[int, Carried] = {}
        """By vbucket, what the last records of it carried, while no mark of it has changed."""
        self._scopes: dict[tuple[frozenset[int], frozenset[int]], Carried] = {}
        """The same by what is done and what is not: one for all vbuckets that are alike."""

    # -- what was written before -------------------------------------------------------------

    def load_progress(self, vbucket: int, progress: VbucketProgress) -> None:
        progress.floor = max(progress.floor, progress.seqno)
        self.progress[vbucket] = progress
        self._taken = None
        self.boundaries[vbucket] = [progress.synced]
        self._note(vbucket, progress)

    def load_mark(self, index_id: int, vbucket: int, mark: Mark) -> None:
        self.indexes[index_id].marks[vbucket] = mark
        self.look_up_again()

    def load_state(self, index_id: int, state: State, has_tombstones: bool) -> None:
        self.indexes[index_id].state = state
        if has_tombstones:
            self.tombstoned.add(index_id)
        self.look_up_again()

    # -- which indexes there are -------------------------------------------------------------

    def hold(self, index_id: int) -> None:
        """An index has storage here, which is empty."""
        self.indexes[index_id] = Tracked()
        self.look_up_again()

    def forget(self, index_id: int) -> None:
        """An index has no storage here any more, or has lost all that was in it."""
        self.indexes.pop(index_id, None)
        self.tombstoned.discard(index_id)
        self.look_up_again()
        self.dirty.states.discard(index_id)
        self.dirty.marks = {mark for mark in self.dirty.marks if mark[0] != index_id}

    def look_up_again(self) -> None:
        """Other indexes are held, or other builds of them."""
        self._listed.clear()
        self._carried.clear()
        self._scopes.clear()
        self._states = self._builds = None

    def know(self, vbuckets: int) -> None:
        """The bucket has this many vbuckets."""
        if vbuckets != self.vbuckets:
            self.vbuckets = vbuckets
            self._vbuuids = np.zeros(vbuckets, np.uint64)
            self._seqnos = np.zeros(vbuckets, np.uint64)
            self._taken = self._builds = None
            for vbucket, progress in self.progress.items():
                self._note(vbucket, progress)
            for index_id in self.indexes:
                self._complete(index_id)

    def newer_builds(self, record: KeyVersions) -> dict[int, int]:
        """Return the indexes of which a record tells a newer build: what they hold is void.

        The master commits a build before anybody can send items for it, and numbers only ascend.
        """
        return self._listed_by(record).newer

    def _listed_by(self, record: KeyVersions) -> Listed:
        """Look up what a record lists: most records list the same."""
        at = record.indexes, record.builds
        found = self._listed.get(at)
        if found is None:
            known: list[tuple[int, Tracked | None]] = []
            newer: dict[int, int] = {}
            for index_id, build in zip(*at, strict=True):
                tracked = self.indexes.get(index_id)
                held = tracked is not None and tracked.state.build == build
                known.append((index_id, tracked if held else None))
                if tracked is not None and build > tracked.state.build:
                    newer[index_id] = build
            if len(self._listed) >= LISTED_MAX:
                self._listed.clear()
            found = self._listed[at] = Listed(known, newer)
        return found

    def begin_build(self, index_id: int, build: int) -> None:
        """An index begins from nothing, under a new build."""
        self.forget(index_id)
        self.indexes[index_id] = Tracked(State(build))
        self.dirty.states.add(index_id)

    # -- records -----------------------------------------------------------------------------

    def apply(self, record: KeyVersions, items: Iterable[Item], partition: int = 0) -> list[Change]:
        """Apply one record from a partition; return what is to be applied, in order.

        ItemsError, IndexError: the record is not one. Nothing was changed up to the item.
        """
        followed = self.chains.follow(record, partition, self._owners)
        if followed == READ_BEFORE:
            return []
        if followed == AFTER_A_HOLE:
            self._miss(record, partition)
        known = self._listed_by(record).known
        changes: list[Change] = []
        if record.kind == MAINTENANCE:
            self._maintain(record, known, items, changes, is_cut=followed == AFTER_A_HOLE)
        elif record.kind in (BACKFILL, CATCHUP):
            self._fill(record, known, items, changes)
        return changes

    def _owners(self) -> set[Connection]:
        """Return the connections that own a vbucket: what they send next must not be missed."""
        return {progress.owner for progress in self.progress.values()}

    def _miss(self, record: KeyVersions, partition: int) -> None:
        """What a connection sent before this record is not here: take it for lost.

        It may have been about each vbucket of the partition that this connection owns, or has
        taken over from one with a lower number.
        """
        connection = (record.projector, record.connection)
        if record.kind != MAINTENANCE:
            self._break_off(partition, connection)
            return
        for vbucket, progress in self.progress.items():
            mine = progress.number == record.number and progress.owner[0] == record.projector
            if vbucket % self.partitions == partition and (mine or progress.number < record.number):
                self._lose(vbucket, progress)

    def _lose(self, vbucket: int, progress: VbucketProgress) -> None:
        if progress.condition != BRANCHED:
            progress.change(RECORDS_MISSING)
            progress.catchup = NO_CONNECTION
            self._touch(vbucket, progress)

    def _break_off(self, partition: int, connection: Connection | None = None) -> None:
        """A connection that ends has lost something; None: each of them."""
        for vbucket, progress in self.progress.items():
            if vbucket % self.partitions == partition and _is_of(progress.catchup, connection):
                progress.catchup = NO_CONNECTION
                self.dirty.progress.add(vbucket)
        for index_id, tracked in self.indexes.items():
            for vbucket, mark in tracked.marks.items():
                if vbucket % self.partitions == partition and _is_of(mark.source, connection):
                    mark.source = NO_CONNECTION
                    self._marked(index_id, vbucket)

    def _maintain(
        self,
        record: KeyVersions,
        known: Known,
        items: Iterable[Item],
        changes: list[Change],
        *,
        is_cut: bool,
    ) -> None:
        """Take items of a maintenance connection. The high watermark moves when a seqno is over.

        `is_cut`: what comes first may be the rest of a mutation, of which the beginning is missing.
        """
        vbucket, seqno = -1, Seqno(0)
        progress: VbucketProgress | None = None
        carried: Carried | None = None
        made, append, indexes = tuple.__new__, changes.append, record.indexes
        for item in items:
            kind, at, number, _, _, document, _, placed = item
            if kind not in OF_MUTATIONS:
                if progress is not None:
                    self._moved(vbucket, progress, seqno)
                self._control(record, known, item)
                vbucket, progress, is_cut = -1, None, False
                continue
            if at != vbucket:
                if progress is not None:
                    self._moved(vbucket, progress, seqno)
                first, is_cut = Seqno(number + is_cut), False
                vbucket, progress = at, self._owned(record, known, at, first)
                carried = self._carries(known, at) if progress is not None else None
            elif number != seqno and progress is not None and progress.condition == WHOLE:
                progress.seqno = seqno if seqno > progress.seqno else progress.seqno
            seqno = number
            if carried is None or progress is None or progress.condition == BRANCHED:
                continue
            if number <= progress.seqno:
                scope = carried.unbuilt
            elif progress.condition == WHOLE and number > progress.floor:
                scope = carried.new
            else:
                # Up to the floor, a catch-up may have brought what the owner has still to send.
                scope = carried.unordered
                if carried.new.logged and number > progress.floor:
                    progress.floor = number
            if not (scope.logged or scope.guarded):
                continue
            if kind < DOCUMENT:
                placed = placed_before(item)
            others = kind == DOCUMENT
            append(made(Change, (document, number, vbucket, placed, others, scope, indexes)))
        if progress is not None:
            if record.continued and progress.condition != BRANCHED:
                # What is still to come of the last seqno must not be counted as held.
                progress.partial = max(progress.partial, seqno)
                seqno = Seqno(seqno - 1)
            self._moved(vbucket, progress, seqno)

    def _carries(self, known: Known, vbucket: int) -> Carried:
        """Return what the indexes of a record are to a vbucket; most are what they were before."""
        carried = self._carried.get(vbucket)
        if carried is not None and carried.known is known:
            return carried
        done: set[int] = set()
        building: set[int] = set()
        for index_id, tracked in known:
            mark = tracked.marks.get(vbucket) if tracked is not None else None
            if mark is not None:
                (building if mark.done == NEVER else done).add(index_id)
        at = frozenset(done), frozenset(building)
        carried = self._scopes.get(at)
        if carried is None or carried.known is not known:
            carried = self._scopes[at] = Carried(
                known,
                new=Scope(*at),
                unbuilt=Scope(NO_INDEX, at[1]),
                unordered=Scope(NO_INDEX, at[0] | at[1]),
            )
        self._carried[vbucket] = carried
        return carried

    def _owned(
        self,
        record: KeyVersions,
        known: Known,
        vbucket: int,
        seqno: Seqno,
    ) -> VbucketProgress | None:
        """Return a vbucket's progress if this connection is its owner, or is taken for it."""
        progress = self.progress.get(vbucket)
        connection = (record.projector, record.connection)
        if progress is None:
            return None
        if progress.condition not in WITHOUT_OWNER:
            return progress if progress.owner == connection else None
        if record.number < progress.number:
            return None
        # Who the owner is, and what it carries, may be among what was lost. All that this one sent
        # since is here, and it lists what it carries.
        is_known = _is_by_owner(progress, record)
        progress.begun = Seqno(max(0, seqno - 1))
        progress.reach(progress.begun)
        if progress.condition == ORPHANED and is_known and progress.begun <= progress.seqno:
            progress.change(GOES_ON)
        else:
            progress.change(OWNER_HEARD)
        if not is_known:
            progress.catchup = NO_CONNECTION
        progress.number, progress.owner = record.number, connection
        self._taken = None
        self.dirty.progress.add(vbucket)
        self._carry_held(vbucket, {index_id for index_id, tracked in known if tracked is not None})
        return progress

    def _moved(self, vbucket: int, progress: VbucketProgress, seqno: Seqno) -> None:
        """All up to this seqno has come from the owner."""
        if progress.condition == BRANCHED:
            return
        if seqno > progress.reached:
            progress.reached = seqno
        if progress.condition == WHOLE and seqno > progress.seqno:
            progress.seqno = seqno
        self._touch(vbucket, progress)

    def _touch(self, vbucket: int, progress: VbucketProgress) -> None:
        self.dirty.progress.add(vbucket)
        self._note(vbucket, progress)

    def _note(self, vbucket: int, progress: VbucketProgress) -> None:
        if progress.condition != WHOLE:
            self._odd.add(vbucket)
        if vbucket < len(self._seqnos):
            self._vbuuids[vbucket] = progress.vbuuid
            # What may be lost of a branch is all that was applied, and not only what is whole.
            is_branched = progress.condition == BRANCHED
            self._seqnos[vbucket] = progress.applied if is_branched else progress.seqno

    # -- control on a maintenance connection -------------------------------------------------

    def _control(self, record: KeyVersions, known: Known, item: Item) -> None:
        vbucket, seqno = item.vbucket, item.seqno
        if item.kind == HISTORY:
            self._histories[vbucket] = branches(item)
        elif item.kind == BEGIN:
            vbuuid, which = begun(item)
            listed = {known[at][0] for at in which if known[at][1] is not None}
            if self._begin(record, vbucket, vbuuid, seqno) and not self._is_branched(vbucket):
                self._carry(vbucket, listed)
        elif item.kind == ATTACH:
            index_id, tracked = known[item.place]
            if tracked is not None:
                vbuuid = Vbuuid(VBUUID.unpack_from(item.payload)[0] if item.payload else 0)
                self._attach(record, known, vbucket, vbuuid, seqno, index_id)
        else:
            progress = self._owned(record, known, vbucket, Seqno(seqno + 1))
            if progress is not None and progress.condition != BRANCHED:
                if item.kind == SYNC and seqno >= progress.synced:
                    progress.synced = seqno
                    self._bound(vbucket, seqno)
                self._moved(vbucket, progress, seqno)

    def _is_branched(self, vbucket: int) -> bool:
        """Tell whether nothing of the owner of a vbucket counts."""
        return self.progress[vbucket].condition == BRANCHED

    def _bound(self, vbucket: int, seqno: Seqno) -> None:
        """A snapshot of the store has ended here."""
        ends = self.boundaries.setdefault(vbucket, [])
        if not ends or seqno > ends[-1]:
            ends.append(seqno)
        if len(ends) > BOUNDARIES_MAX:
            del ends[: BOUNDARIES_MAX // 2]

    def _begin(self, record: KeyVersions, vbucket: int, vbuuid: Vbuuid, seqno: Seqno) -> bool:
        """A connection becomes the owner of a vbucket; False: it is superseded."""
        log = self._histories.pop(vbucket, ())
        progress = self.progress.setdefault(vbucket, VbucketProgress())
        if record.number < progress.number:
            return False
        progress.number, progress.owner = record.number, (record.projector, record.connection)
        progress.catchup = NO_CONNECTION  # It may not carry all that this one does not bring.
        self._taken = None
        goes_on = has_what_was_applied(progress, vbuuid, log)
        if goes_on or not self._is_held(vbucket):
            progress.reach(seqno)
        if not self._is_held(vbucket):
            # Nothing is held, so nothing is missing, wherever it begins.
            progress.change(BEGUN_WITHIN)
            progress.vbuuid, progress.seqno = vbuuid, seqno
            progress.begun = progress.floor = seqno
            progress.partial = progress.synced = Seqno(0)
            self.boundaries[vbucket] = []  # It may have begun within a snapshot of the store.
        elif not goes_on:
            progress.change(BEGUN_ON_A_BRANCH)
        else:
            self._go_over(vbucket, progress, vbuuid)
            progress.change(BEGUN_WITHIN if seqno <= progress.seqno else BEGUN_ABOVE)
            progress.begun = seqno
            self._forget_ends(vbucket, progress)
        self._touch(vbucket, progress)
        return True

    def _forget_ends(self, vbucket: int, progress: VbucketProgress) -> None:
        """What comes above the high watermark is perhaps of a later snapshot of the store, in which
        something is left out for the sake of what follows: ends from before are none there."""
        self.boundaries[vbucket] = self._ends_held(vbucket, progress)
        last = Seqno(max(self.boundaries[vbucket], default=0))
        progress.synced = min(progress.synced, last)

    def _ends_held(self, vbucket: int, progress: VbucketProgress) -> list[int]:
        """Return the ends of snapshots up to the high watermark."""
        return [end for end in self.boundaries.get(vbucket, ()) if end <= progress.seqno]

    def _go_over(self, vbucket: int, progress: VbucketProgress, vbuuid: Vbuuid) -> None:
        """What is held is of this branch: what is filled from another one must not count.

        Such a backfill or catch-up may bring what the vbucket has lost. And within a snapshot of
        the store a mutation has not come, if another was to follow that this branch may not have:
        so what is held goes up to the end of a snapshot, and no further.
        """
        if vbuuid == progress.vbuuid:
            return
        progress.floor = max(progress.floor, progress.applied)
        progress.seqno = Seqno(max(self._ends_held(vbucket, progress), default=0))
        progress.vbuuid, progress.catchup = vbuuid, NO_CONNECTION
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(vbucket)
            if mark is not None and mark.source != NO_CONNECTION:
                mark.source = NO_CONNECTION
                self._marked(index_id, vbucket)

    def _carry(self, vbucket: int, listed: set[int]) -> None:
        """The new owner of a vbucket carries these indexes."""
        begun = self.progress[vbucket].begun
        self._carry_held(vbucket, listed)
        for index_id in listed:
            mark = self.indexes[index_id].marks.get(vbucket)
            if mark is None or (mark.done == NEVER and begun < mark.attached):
                self._mark(vbucket, index_id, begun)

    def _carry_held(self, vbucket: int, listed: set[int]) -> None:
        """Of what is attached already, the new owner carries these indexes, and no others."""
        progress = self.progress[vbucket]
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(vbucket)
            if mark is None:
                continue
            if index_id in listed:
                self._resume(vbucket, index_id, progress.begun)
            elif mark.lacks == NEVER:
                mark.lacks = min(progress.begun, progress.seqno)
                self._marked(index_id, vbucket)
                self._complete(index_id)

    def _attach(
        self,
        record: KeyVersions,
        known: Known,
        vbucket: int,
        vbuuid: Vbuuid,
        seqno: Seqno,
        index_id: int,
    ) -> None:
        """From here on a connection carries an index in a vbucket, too."""
        progress = self.progress.get(vbucket)
        superseded = progress is not None and progress.number < record.number
        if progress is None or superseded or not self._is_held(vbucket):
            # It began before anything was held here.
            if not self._begin(record, vbucket, vbuuid, seqno):
                return
            if not self._is_branched(vbucket):
                self._carry_held(vbucket, {i for i, there in known if there is not None})
        elif self._owned(record, known, vbucket, Seqno(seqno + 1)) is None:
            return
        if self._is_branched(vbucket):
            return
        mark = self.indexes[index_id].marks.get(vbucket)
        if mark is None:
            self._mark(vbucket, index_id, seqno)
        else:
            self._resume(vbucket, index_id, seqno)
        self._moved(vbucket, self.progress[vbucket], seqno)

    def _mark(self, vbucket: int, index_id: int, seqno: Seqno) -> None:
        """An index is attached here: what it does not have, the high watermark must not say."""
        tracked = self.indexes[index_id]
        mark = tracked.marks.setdefault(vbucket, Mark(seqno))
        mark.attached = seqno
        self._marked(index_id, vbucket)
        progress = self.progress[vbucket]
        if progress.condition == WHOLE and seqno < progress.seqno:
            progress.floor = max(progress.floor, progress.seqno)
            progress.seqno = seqno
            self._touch(vbucket, progress)

    def _resume(self, vbucket: int, index_id: int, seqno: Seqno) -> None:
        """An index is carried from here on; what was sent without it before is a gap."""
        mark = self.indexes[index_id].marks[vbucket]
        lacks, mark.lacks = mark.lacks, NEVER
        if lacks == NEVER:
            return
        progress = self.progress[vbucket]
        if progress.condition in (WHOLE, GAP):
            progress.floor = max(progress.floor, progress.seqno, progress.reached)
            progress.seqno = min(progress.seqno, lacks)
            if seqno > lacks:
                begun = progress.begun if progress.condition == GAP else Seqno(0)
                progress.change(CARRIED_LATER)
                progress.begun, progress.catchup = max(begun, seqno), NO_CONNECTION
            self._touch(vbucket, progress)
        self._marked(index_id, vbucket)
        self._complete(index_id)

    # -- backfills and catch-ups -------------------------------------------------------------

    def _fill(
        self,
        record: KeyVersions,
        known: Known,
        items: Iterable[Item],
        changes: list[Change],
    ) -> None:
        """Take items of a connection that ends."""
        connection = (record.projector, record.connection)
        is_backfill = record.kind == BACKFILL
        made, append, indexes = tuple.__new__, changes.append, record.indexes
        vbucket, guarded, scope = -1, NO_INDEX, Scope(NO_INDEX, NO_INDEX)
        for item in items:
            kind, at, number, _, _, document, _, placed = item
            if kind not in OF_MUTATIONS:
                if is_backfill:
                    self._backfill_control(connection, known, item)
                else:
                    self._catchup_control(record, known, item)
                vbucket = -1
                continue
            if at != vbucket:
                vbucket = at
                guarded = self._filled(connection, known, at, is_backfill)
                scope = Scope(NO_INDEX, guarded)
            if not guarded:
                continue
            progress = self.progress[vbucket]
            if not is_backfill and number <= progress.seqno:
                continue  # It is here, and what has become of it since may be, too.
            if kind < DOCUMENT:
                placed = placed_before(item)
            others = kind == DOCUMENT
            if not others:
                for place in placed:
                    if indexes[place[0]] in guarded:
                        break
                else:
                    continue
            if number > progress.seqno and number > progress.floor:
                progress.floor = number
                self.dirty.progress.add(vbucket)
            append(made(Change, (document, number, vbucket, placed, others, scope, indexes)))

    def _filled(
        self,
        connection: Connection,
        known: Known,
        vbucket: int,
        is_backfill: bool,
    ) -> frozenset[int]:
        """Return the indexes of which a connection that ends fills a vbucket."""
        progress = self.progress.get(vbucket)
        if progress is None:
            return NO_INDEX
        if not is_backfill and (
            progress.catchup != connection or progress.condition not in CATCHING_UP
        ):
            return NO_INDEX
        found: set[int] = set()
        for index_id, tracked in known:
            mark = tracked.marks.get(vbucket) if tracked is not None else None
            if mark is None:
                continue
            if not is_backfill or (mark.done == NEVER and mark.source == connection):
                found.add(index_id)
        return frozenset(found)

    def _backfill_control(self, connection: Connection, known: Known, item: Item) -> None:
        progress = self.progress.get(item.vbucket)
        if progress is None:
            return
        if item.kind == BEGIN:
            vbuuid, listed = begun(item)
            if item.seqno or vbuuid != progress.vbuuid:
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
                    mark.done = max(item.seqno, progress.applied)
                    self._complete(index_id)
                self._marked(index_id, item.vbucket)

    def attached(self, index_id: int) -> Vector | None:
        """Return from where on the owners carry an index, in each vbucket; None: not in all yet."""
        marks = self.indexes[index_id].marks
        if not 0 < self.vbuckets == len(marks):
            return None
        vbuuids = np.zeros(self.vbuckets, np.uint64)
        seqnos = np.zeros(self.vbuckets, np.uint64)
        for vbucket, mark in marks.items():
            vbuuids[vbucket], seqnos[vbucket] = self.progress[vbucket].vbuuid, mark.attached
        return Vector(vbuuids, seqnos)

    def is_unfilled(self, index_id: int) -> bool:
        """Tell whether what was before an index was attached has come in no vbucket yet."""
        tracked = self.indexes.get(index_id)
        return tracked is None or all(mark.done == NEVER for mark in tracked.marks.values())

    def has_filled(self, index_id: int) -> None:
        """All has come of an index from what holds all mutations up to where it was attached, and
        none beyond the high watermarks of now.

        So a backfill does that has ended in every vbucket.
        """
        for vbucket, mark in self.indexes[index_id].marks.items():
            if mark.done == NEVER:
                progress = self.progress[vbucket]
                mark.source = NO_CONNECTION
                mark.done = progress.applied
                self._marked(index_id, vbucket)
        self._complete(index_id)

    def _catchup_control(self, record: KeyVersions, known: Known, item: Item) -> None:
        connection = (record.projector, record.connection)
        if item.kind == HISTORY:
            self._histories[item.vbucket] = branches(item)
            return
        log = self._histories.pop(item.vbucket, ())
        progress = self.progress.get(item.vbucket)
        if progress is None or progress.condition not in CATCHING_UP:
            return
        if item.kind == BEGIN:
            if not self._is_of_owner(item.vbucket, progress, record):
                return
            vbuuid, listed = begun(item)
            carried = {known[which][0] for which in listed}
            if _succession(progress, vbuuid, log) is Succession.LOST:
                progress.change(BEGUN_ON_A_BRANCH)
                progress.catchup = NO_CONNECTION
            elif has_what_was_applied(progress, vbuuid, log):
                self._go_over(item.vbucket, progress, vbuuid)
                if item.seqno <= progress.seqno and carried >= self._missing(item.vbucket):
                    progress.catchup = connection
            self._touch(item.vbucket, progress)
        elif item.kind == END and progress.catchup == connection:
            progress.catchup = NO_CONNECTION
            progress.floor = max(progress.floor, item.seqno)
            if progress.condition == LOST:
                progress.change(CAUGHT_UP)
                progress.seqno = max(progress.seqno, item.seqno)
            elif item.seqno >= progress.begun:
                progress.change(CAUGHT_UP)
                progress.seqno = max(progress.seqno, progress.reached)
            else:
                progress.seqno = max(progress.seqno, item.seqno)
            is_last = progress.seqno == progress.floor == item.seqno
            if progress.condition not in CATCHING_UP and is_last:
                # It has brought the last of each document, up to here, and nothing came since.
                self._bound(item.vbucket, progress.seqno)
            self._touch(item.vbucket, progress)

    def _is_of_owner(self, vbucket: int, progress: VbucketProgress, record: KeyVersions) -> bool:
        """Tell whether a catch-up is of the owner of a vbucket.

        If it is of a higher number, the owner is another by now, and how it began is lost, or has
        yet to come. A lost owner is whoever has it now.
        """
        if _is_by_owner(progress, record):
            return True
        if record.number < progress.number or (
            record.number == progress.number and progress.condition != LOST
        ):
            return False
        self._lose(vbucket, progress)
        progress.number, progress.owner = record.number, (record.projector, NOT_HEARD)
        self._taken = None
        return True

    def _missing(self, vbucket: int) -> set[int]:
        """Return the indexes that lack something in the gap of a vbucket."""
        progress = self.progress[vbucket]
        found: set[int] = set()
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(vbucket)
            if mark is not None and mark.lacks == NEVER:
                late = progress.condition == GAP and progress.begun <= mark.attached
                if mark.done != NEVER or not late:
                    found.add(index_id)
        return found

    # -- what follows ------------------------------------------------------------------------

    def lose(self, partitions: Iterable[int]) -> None:
        """Part of these partitions is gone, nobody knows what: nothing that is sent there is whole.

        What is complete stays so: it lacks what comes after the high watermarks, and no more.
        """
        for partition in partitions:
            for vbucket, progress in self.progress.items():
                if vbucket % self.partitions == partition:
                    self._lose(vbucket, progress)
            self._break_off(partition)
            self.chains.forget(partition)

    # -- going back --------------------------------------------------------------------------

    def lost(self, rollback: Rollback) -> dict[int, int]:
        """Return the vbuckets of which more was applied than is left, with what is left."""
        left = _left(rollback)
        found: dict[int, int] = {}
        for vbucket, progress in self.progress.items():
            vbuuid, seqno = left.get(vbucket, (Vbuuid(0), Seqno(0)))
            is_older = vbucket in left and progress.vbuuid != vbuuid and progress.applied > seqno
            if self._is_held(vbucket) and (is_older or progress.condition == BRANCHED):
                found[vbucket] = seqno
        return found

    def let_go(self, rollback: Rollback) -> None:
        """Of what no index holds anything, nothing was lost here: say no more than what is left.

        Else what was held once would be taken for a loss again and again.
        """
        for vbucket, (vbuuid, left) in _left(rollback).items():
            progress = self.progress.get(vbucket)
            if progress is None or progress.vbuuid == vbuuid or self._is_held(vbucket):
                continue
            if progress.applied > left:
                progress.go_back(vbuuid, min(progress.seqno, left))
                progress.floor = progress.seqno
                self._touch(vbucket, progress)

    def cut_off(self, barrier: int) -> None:
        """Nothing counts any more that was sent under a generation below `barrier`."""
        for vbucket, progress in self.progress.items():
            if progress.number < barrier:
                progress.number = barrier
                self._disown(vbucket, progress)

    def _disown(self, vbucket: int, progress: VbucketProgress) -> None:
        """Whoever sends next is the owner of a vbucket."""
        progress.owner = progress.catchup = NO_CONNECTION
        progress.change(CUT_OFF)
        self._taken = None
        self._touch(vbucket, progress)

    def go_back(self, vector: Vector | None, whole: Collection[int]) -> None:
        """All is as it was at a vector, and complete in the indexes `whole`; the others are empty.
        None has a tombstone.

        None: nothing is here any more. IndexError: the vector lacks a vbucket.

        A stream that has begun already is of no use: perhaps on another branch, which nobody says
        again. Its number does not count, so its projector will begin another one.
        """
        for vbucket, progress in self.progress.items():
            vbuuid, seqno = vector.position(vbucket) if vector else (Vbuuid(0), Seqno(0))
            if vector is not None:
                progress.number += 1
            progress.go_back(vbuuid, seqno)
            progress.floor = min(progress.floor, seqno)
            self.boundaries[vbucket] = [seqno]
            self._disown(vbucket, progress)
        for index_id, tracked in list(self.indexes.items()):
            if index_id not in whole:
                self.begin_build(index_id, tracked.state.build)
                continue
            for vbucket, mark in tracked.marks.items():
                mark.lacks, mark.source = NEVER, NO_CONNECTION
                self._marked(index_id, vbucket)
            self.tombstoned.discard(index_id)
            self._complete(index_id)

    def touch_all(self) -> None:
        """All that is known is to be written."""
        self.dirty.progress.update(self.progress)
        self.dirty.states.update(self.indexes)
        for index_id, tracked in self.indexes.items():
            self.dirty.marks.update((index_id, vbucket) for vbucket in tracked.marks)
        self.chains.dirty.update(self.chains.by_key)

    def _marked(self, index_id: int, vbucket: int) -> None:
        self.dirty.marks.add((index_id, vbucket))
        self.indexes[index_id].done = None
        self._carried.pop(vbucket, None)
        self._builds = None

    def _complete(self, index_id: int) -> None:
        """Note whether all of an index is here."""
        tracked = self.indexes[index_id]
        complete = tracked.is_complete(self.vbuckets)
        if complete != tracked.state.complete:
            tracked.state = tracked.state._replace(complete=complete)
            self._states = None
            self.dirty.states.add(index_id)

    def swept(self) -> list[int]:
        """Return the indexes whose tombstones nobody needs any more; they are taken for gone."""
        if not self.tombstoned or self.gaps():
            return []
        found = [i for i in self.tombstoned if self.indexes[i].state.complete]
        self.tombstoned.difference_update(found)
        return found

    def guards(self, index_id: int) -> bool:
        """Tell whether a document that goes from an index must leave a tombstone."""
        return not self.indexes[index_id].state.complete or bool(self.gaps())

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
        self._odd = {v for v in self._odd if self.progress[v].condition != WHOLE}
        return sorted(v for v in self._odd if self.progress[v].condition in conditions)

    def taken(self) -> tuple[GenerationTaken, ...]:
        """Return under which numbers vbuckets are taken, and from whom; the highest first."""
        if self._taken is None:
            found: dict[tuple[int, int], list[int]] = {}
            for vbucket, progress in self.progress.items():
                if progress.number:
                    found.setdefault((-progress.number, progress.owner[0]), []).append(vbucket)
            self._taken = tuple(
                GenerationTaken(-number, projector, self._bits(found[number, projector]))
                for number, projector in sorted(found)[:TAKEN_MAX]
            )
        return self._taken

    def vector(self) -> Vector:
        """Return the high watermarks."""
        return Vector(self._vbuuids, self._seqnos)

    def applied(self) -> Vector:
        """Return above which seqnos nothing was applied: the high watermarks may be lower."""
        found = self._seqnos.copy()
        for vbucket, progress in self.progress.items():
            if vbucket < self.vbuckets:
                found[vbucket] = progress.applied
        return Vector(self._vbuuids, found)

    def covers(self, vector: Vector) -> bool:
        """Tell whether no high watermark is below that of a vector, whatever the branches."""
        return bool(np.all(self._seqnos >= vector.seqnos))

    def states(self) -> Mapping[int, State]:
        """Return the state of each index: another mapping only if one has changed."""
        if self._states is None:
            self._states = {i: tracked.state for i, tracked in self.indexes.items()}
        return self._states

    def builds(self) -> tuple[BuildProgress, ...]:
        """Return how far each build is."""
        if self._builds is None:
            self._builds = tuple(
                BuildProgress(index_id, tracked.state.build, self.done_bits(index_id))
                for index_id, tracked in sorted(self.indexes.items())
                if tracked.state.build
            )
        return self._builds

    def done_bits(self, index_id: int) -> bytes:
        """Return a bit for each vbucket of which all of an index is here, and goes on to come."""
        tracked = self.indexes[index_id]
        if tracked.done is None or len(tracked.done) != -(-self.vbuckets // 8):
            tracked.done = self._bits(
                vbucket for vbucket, mark in tracked.marks.items() if mark.is_whole
            )
        return tracked.done

    def _bits(self, vbuckets: Iterable[int]) -> bytes:
        """Return a bit for each vbucket of the bucket: those of these are set."""
        bits = bytearray(-(-self.vbuckets // 8))
        for vbucket in vbuckets:
            if vbucket < self.vbuckets:
                bits[vbucket // 8] |= 1 << vbucket % 8
        return bytes(bits)


def _left(rollback: Rollback) -> dict[int, tuple[Vbuuid, Seqno]]:
    """Return, of each vbucket that has lost something, its branch and what is left of it."""
    failover = Vector.from_bytes(rollback.failover_vbuuids, rollback.failover_seqnos)
    return {v: failover.position(place) for place, v in enumerate(rollback.vbuckets)}


def has_what_was_applied(
    progress: VbucketProgress, vbuuid: Vbuuid, log: Sequence[FailoverBranch]
) -> bool:
    """Tell whether a branch has all that was applied of a vbucket, as its history says."""
    return _succession(progress, vbuuid, log) is Succession.COVERED


def _succession(
    progress: VbucketProgress, vbuuid: Vbuuid, log: Sequence[FailoverBranch]
) -> Succession:
    """Return what becomes of what was applied of a vbucket where a branch is spoken of."""
    if vbuuid == progress.vbuuid or not progress.applied:
        return Succession.COVERED
    return succession(log, progress.vbuuid, progress.applied, vbuuid)


def _is_by_owner(progress: VbucketProgress, record: KeyVersions) -> bool:
    """Tell whether the owner's projector has sent a record, under the number of the owner."""
    return (record.number, record.projector) == (progress.number, progress.owner[0])


def _is_of(held: Connection, connection: Connection | None) -> bool:
    """Tell whether what is held is this connection, or any if none is named."""
    return held == connection if connection is not None else held != NO_CONNECTION

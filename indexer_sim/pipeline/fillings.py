"""How the parts of an indexer are filled: from what other indexers hold of the same slices.

Pure but for the storage: who drives it asks `Fillings` what to ask whom, and brings the answers. A
part holds copies of slices that move here (`coordinator.core.catalog.rebalances`). The maintenance
stream carries it from some position on. What lies before that is backfilled by a projector, or
filled from its *origins*: indexers that hold the same slices, complete. Each gives them as they are
at one moment (`bucket.transfers`). Invariants:

- What is asked for has all mutations up to where the part was attached.
- Nothing of it is written before all that was applied at the origin is held here, on the same
  branches. So what it tells of a document is what is known here, or older than the attachment: a
  rollback that takes something of it back takes back what this indexer itself holds, too.
- Where the storage of the part begins from nothing, or the bucket goes back, what was filled does
  not count, and filling begins anew.
- Whoever does not get on gives it up, for this build: then a projector backfills the part. What was
  filled by then does no harm: each entry has its seqno, and a backfill replaces what is not newer.
  That matters where one of several origins gave its keys of a document, and another one nothing.
  But once a backfill has ended in a vbucket, nothing is filled any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.core.model.entities import BACKFILL, Index
from coordinator.core.model.vectors import Numbers, Vector
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import places_in
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.transfers import DOCUMENTS_MAX, Ask, Given, TransferRefused

PATIENCE_S = 20.0
"""A part that does not get on for so long is left to a projector."""

TRIES = 3
"""But not before it was tried so often: others may have taken the time."""

ATTEMPTS_MAX = 8
"""So often filling begins anew."""

AGAIN_S = 0.1
"""So long after a refusal that may pass, or while something is waited for, it is asked again."""

ENTRIES_MAX = 4
"""If an origin has more entries than so many for each mutation of the bucket, the part is
backfilled: taking an entry over costs less than evaluating a document, but not nothing."""

SAID_MAX = 300
"""So many characters of a refusal are told."""

Life = tuple[int, int, int, int]
"""What changes when the storage of an index begins from nothing."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An indexer, and what it has all at once of the slices of a part."""

    indexer: int
    index: int
    shard: int
    build: int
    slices: tuple[int, ...]

    def is_asked(self, ask: Ask) -> bool:
        """Tell whether a question is one to this indexer, for all of this."""
        return self == Origin(ask.indexer, ask.index, ask.shard, ask.build, ask.slices)


@dataclass(slots=True, kw_only=True)
class Filling:
    """A part that is filled: from its origins, one after the other.

    `number`, `after` and `applied` are of the transfer that goes on; `applied_before` of those that
    are over. `branches` are those of the vbuckets here while it goes on. So many `tries` there were
    since it got on last.
    """

    part: Index
    origins: tuple[Origin, ...]
    got_on_s: float
    due_s: float = 0.0
    attempts: int = 0
    at: int = 0
    number: int = 0
    after: bytes | None = None
    applied: Vector | None = None
    applied_before: list[Vector] = field(default_factory=list)
    life: Life | None = None
    branches: Numbers | None = None
    taken: int = 0
    tries: int = 0

    @property
    def origin(self) -> Origin:
        return self.origins[self.at]

    def gets_on(self, now_s: float) -> None:
        self.got_on_s, self.due_s, self.tries = now_s, now_s, 0

    def begin_anew(self) -> None:
        """What was filled does not count."""
        self.attempts += 1
        self.at, self.life = 0, None
        self.applied_before.clear()
        self.begin_transfer()

    def begin_transfer(self) -> None:
        self.number, self.after, self.applied = 0, None, None


class Fillings:
    """What of an indexer's storage is filled. One thread drives it; any may ask `are_filled`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: Mapping[int, Index] = {}
        self._running: dict[int, Filling] = {}
        self._given_up: dict[int, int] = {}
        """By part, the build of which nothing more is asked."""
        self._unfilled: dict[int, bool] = {}
        """By part, whether nothing has filled any of it, as was found last."""
        self.are_idle = True
        """Nothing is to be filled, as far as was looked last."""
        self.said: list[str] = []
        """What became of parts, for the operator, who may take it from here."""

    def know(self, indexes: Mapping[int, Index]) -> None:
        """These are the indexes that are held, as the log has them."""
        self._parts = {i: index for i, index in indexes.items() if index.origins}
        self._given_up = {i: build for i, build in self._given_up.items() if i in self._parts}
        self._unfilled = {i: found for i, found in self._unfilled.items() if i in self._parts}

    def are_filled(self) -> frozenset[int]:
        """Return the indexes that are filled here, or will be: no projector needs to send them.

        Does not wait for who writes: of a bucket that is busy, what was found last counts.
        """
        return frozenset(
            i for i, part in self._parts.items() if self._may_be_filled(part, waits=False)
        )

    def _may_be_filled(self, part: Index, *, waits: bool = True) -> bool:
        """Tell whether a part is not given up, and nothing has filled any of it.

        Once a backfill has ended in a vbucket, what is deleted there leaves no tombstone. What an
        origin gave then might bring it back.
        """
        if self._given_up.get(part.id, -1) >= part.build:
            return False
        bucket = self._storage.bucket_of(part.id)
        if bucket is None:
            return True
        if bucket.lock.acquire(blocking=waits):
            try:
                self._unfilled[part.id] = bucket.tracker.is_unfilled(part.id)
            finally:
                bucket.lock.release()
        return self._unfilled.get(part.id, True)

    def _is_wanted(self, part: Index) -> bool:
        if part.state != BACKFILL or self._storage.bucket_of(part.id) is None:
            return False
        return self._may_be_filled(part)

    @contextmanager
    def _held(self, filling: Filling) -> Iterator[Bucket | None]:
        """Hold the bucket of a part; None: the part is gone, or the bucket is to be loaded."""
        bucket = self._storage.bucket_of(filling.part.id)
        if bucket is None:
            yield None
            return
        with bucket.lock:
            # Whoever has released the part meanwhile, or the whole bucket, held the same lock.
            is_here = self._storage.bucket_of(filling.part.id) is bucket
            yield bucket if is_here and not bucket.stale else None

    def asks(self, now_s: float, limit: int = DOCUMENTS_MAX) -> list[tuple[Filling, Ask]]:
        """Return what is to be asked now, for so many documents at most, and for which part."""
        wanted = {part.id: part for part in self._parts.values() if self._is_wanted(part)}
        for index_id in self._running.keys() - wanted.keys():
            del self._running[index_id]
        self.are_idle = not wanted
        found: list[tuple[Filling, Ask]] = []
        for index_id, part in sorted(wanted.items()):
            filling = self._running.get(index_id)
            if filling is None or filling.part.build != part.build:
                filling = self._running[index_id] = Filling(
                    part=part, origins=origins_of(part), got_on_s=now_s
                )
            if now_s >= filling.due_s and (ask := self._ask(filling, now_s, limit)) is not None:
                found.append((filling, ask))
        return found

    def _ask(self, filling: Filling, now_s: float, limit: int) -> Ask | None:
        """Return the next question of a part; None while something has to come here first."""
        filling.due_s = now_s + AGAIN_S
        if now_s - filling.got_on_s > PATIENCE_S and filling.tries >= TRIES:
            who = f"indexer {filling.origin.indexer}"
            self._give_up(filling, f"nothing came from {who} for {PATIENCE_S:.0f} s")
            return None
        if filling.attempts > ATTEMPTS_MAX:
            self._give_up(filling, f"filling was begun {filling.attempts} times")
            return None
        filling.tries += 1
        origin = filling.origin
        with self._held(filling) as bucket:
            attached = None if bucket is None else self._attached(bucket, filling.part)
            if bucket is None or attached is None:
                return None
            life = self.life_of(bucket, filling.part.id)
            if filling.life is None:
                filling.life = life
            branches = bucket.tracker.vector().vbuuids
            has_branched = filling.branches is not None and (branches != filling.branches).any()
            if filling.life != life or (filling.number and has_branched):
                filling.begin_anew()  # What is of another branch is never held here.
                return None
            filling.branches = branches
            if filling.applied is not None and not holds(bucket, (filling.applied,)):
                return None
        return Ask(
            indexer=origin.indexer,
            index=origin.index,
            slices=origin.slices,
            shard=origin.shard,
            build=origin.build,
            number=filling.number,
            after=filling.after,
            limit=limit,
            at_least=(b"", b"") if filling.number else attached.to_bytes(),
        )

    def _attached(self, bucket: Bucket, part: Index) -> Vector | None:
        """Return from where on the streams carry a part; None: they do not everywhere."""
        tracked = bucket.tracker.indexes.get(part.id)
        if tracked is None or tracked.state.build != part.build:
            return None
        return bucket.tracker.attached(part.id)

    def life_of(self, bucket: Bucket, index_id: int) -> Life:
        shard, life = bucket.shards[index_id], bucket.back_index.lives[index_id]
        return self._storage.epoch, bucket.rolled_back, shard, life

    def _give_up(self, filling: Filling, why: str) -> None:
        self._given_up[filling.part.id] = filling.part.build
        self._running.pop(filling.part.id, None)
        self.said.append(f"index {filling.part.id}: left to projectors: {why}")

    def take(self, filling: Filling, ask: Ask, given: Given, now_s: float) -> int:
        """Take the answer to a question; return how many documents were written.

        Raises StorageError. ValueError: it is no answer.
        """
        is_running = self._running.get(filling.part.id) is filling
        if not is_running or not filling.origin.is_asked(ask) or ask.number != filling.number:
            return 0
        if not filling.number:
            self._begin(filling, ask, given, now_s)
            return 0
        if ask.after != filling.after or filling.applied is None:
            return 0
        check_page(ask, given)
        is_last = not given.more and filling.at == len(filling.origins) - 1
        with self._held(filling) as bucket:
            if bucket is None or filling.life != self.life_of(bucket, filling.part.id):
                return 0
            if not holds(bucket, (filling.applied,)):
                return 0
            if not bucket.tracker.is_unfilled(filling.part.id):
                self._give_up(filling, "a projector has sent some of it")
                return 0
            if is_last and not holds(bucket, filling.applied_before):
                filling.begin_anew()
                return 0
            bucket.take_over(filling.part.id, given.documents, is_all=is_last)
        filling.gets_on(now_s)
        filling.after = given.after
        filling.taken += len(given.documents)
        if is_last:
            del self._running[filling.part.id]
            who = ", ".join(str(origin.indexer) for origin in filling.origins)
            text = f"index {filling.part.id}: has {filling.taken} documents from indexer {who}"
            self.said.append(text)
        elif not given.more:
            filling.applied_before.append(filling.applied)
            filling.at += 1
            filling.begin_transfer()
        return len(given.documents)

    def _begin(self, filling: Filling, ask: Ask, given: Given, now_s: float) -> None:
        """Note which transfer goes on, if it has what is lacking here. ValueError: it is none."""
        applied = Vector.from_bytes(*given.applied)
        if not given.number:
            raise ValueError("a transfer without a number")
        if given.entries > ENTRIES_MAX * sum(applied.seqnos.tolist()):
            self._give_up(filling, f"{given.entries} entries are more than a backfill needs")
            return
        with self._held(filling) as bucket:
            attached = None if bucket is None else self._attached(bucket, filling.part)
            if attached is None or attached.to_bytes() != ask.at_least:
                return
            if len(applied) != len(attached):
                raise ValueError(f"{len(applied)} vbuckets")
        filling.number, filling.applied = given.number, applied
        filling.gets_on(now_s)

    def has_filled(self, filling: Filling) -> bool:
        """Tell whether a part is full now, or given up: nothing more is asked for it."""
        return self._running.get(filling.part.id) is not filling

    def refused(self, filling: Filling, refusal: TransferRefused, now_s: float) -> None:
        """Note that a question was refused: it is asked again, filling begins anew, or it is given
        up."""
        if refusal.code == "transfer_gone":
            filling.begin_anew()
        elif refusal.code == "overloaded":
            filling.got_on_s = now_s  # Others are served, and will be over.
        elif not refusal.is_passing:
            who = f"indexer {filling.origin.indexer}"
            said = f"{refusal.code}: {refusal.message}"[:SAID_MAX]
            self._give_up(filling, f"{who} says {said}")

    def failed(self, filling: Filling) -> None:
        """Note that a page cannot be written: what is here may be less than was written."""
        filling.begin_anew()


def holds(bucket: Bucket, vectors: Iterable[Vector]) -> bool:
    """Tell whether all of these vectors is held, on the same branches."""
    if bucket.tracker.branched():
        return False
    held = bucket.tracker.vector()
    return all(map(held.covers, vectors))


def check_page(ask: Ask, given: Given) -> None:
    """ValueError: this is no page that follows, or has something that was not asked for."""
    names = [document for document, _ in given.documents]
    if ask.after is not None:
        names.insert(0, ask.after)
    if any(one >= other for one, other in pairwise(names)):
        raise ValueError("documents that are not in order")
    if given.more and (given.after is None or given.after <= (ask.after or b"")):
        raise ValueError("a page that does not get on")
    slices = frozenset(ask.slices)
    for _, entry in given.documents:
        try:
            places = places_in(entry)
        except struct.error as error:
            raise ValueError(f"no entry: {error}") from error
        if not places or any(piece not in slices for piece, _ in places):
            raise ValueError("an entry of slices that were not asked for")


def origins_of(part: Index) -> tuple[Origin, ...]:
    """Return who has which slices of a part, each once."""
    slices: dict[tuple[int, int, int, int], list[int]] = {}
    for one in part.origins:
        slices.setdefault((one.indexer, one.index, one.shard, one.build), []).append(one.slice)
    return tuple(Origin(*who, tuple(sorted(numbers))) for who, numbers in sorted(slices.items()))

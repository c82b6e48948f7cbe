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
- Whoever does not get on gives it up, for this build: then a projector backfills the part. An entry
  keeps its seqno, so both may even run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.core.model.entities import BACKFILL, Index
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import State
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.transfers import DOCUMENTS_MAX, Ask, Given, TransferRefused

PATIENCE_S = 20.0
"""A part that does not get on for so long is left to a projector."""

ATTEMPTS_MAX = 8
"""So often filling begins anew."""

AGAIN_S = 0.1
"""So long after a refusal that may pass, or while something is waited for, it is asked again."""

ENTRIES_MAX = 4
"""A part that has more entries than so many for each mutation of its bucket is backfilled: taking
an entry over costs less than evaluating a document, but not nothing."""

WHOLE = State(complete=True)

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


@dataclass(slots=True, kw_only=True)
class Filling:
    """A part that is filled: from its origins, one after the other.

    `number`, `after` and `applied` are of the transfer that goes on; `applied_before` of those that
    are over.
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
    taken: int = 0

    @property
    def origin(self) -> Origin:
        return self.origins[self.at]

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

        self.said: list[str] = []
        """What became of parts, for the operator, who may take it from here."""

    def know(self, indexes: Mapping[int, Index]) -> None:
        """These are the indexes that are held, as the log has them."""
        self._parts = {i: index for i, index in indexes.items() if index.origins}

    def are_filled(self) -> frozenset[int]:
        """Return the indexes that are filled here, or will be: no projector needs to send them."""
        return frozenset(
            i for i, part in self._parts.items() if self._given_up.get(i, -1) < part.build
        )

    def are_idle(self) -> bool:
        """Tell whether nothing is to be filled. For any thread."""
        return not any(map(self._is_wanted, self._parts.values()))

    def _is_wanted(self, part: Index) -> bool:
        if part.state != BACKFILL or self._given_up.get(part.id, -1) >= part.build:
            return False
        bucket = self._storage.bucket_of(part.id)
        if bucket is None or bucket.published.states.get(part.id, WHOLE).complete:
            return False
        with bucket.lock:
            return bucket.tracker.is_to_be_filled(part.id)

    def asks(self, now_s: float, limit: int = DOCUMENTS_MAX) -> list[tuple[Filling, Ask]]:
        """Return what is to be asked now, for so many documents at most, and for which part."""
        wanted = {part.id: part for part in self._parts.values() if self._is_wanted(part)}
        for index_id in self._running.keys() - wanted.keys():
            del self._running[index_id]
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
        if now_s - filling.got_on_s > PATIENCE_S:
            self._give_up(filling, f"nothing has come for {PATIENCE_S:.0f} s")
            return None
        if filling.attempts > ATTEMPTS_MAX:
            self._give_up(filling, f"filling was begun {filling.attempts} times")
            return None
        index_id, origin = filling.part.id, filling.origin
        bucket = self._storage.bucket_of(index_id)
        if bucket is None:
            return None
        with bucket.lock:
            tracked = bucket.tracker.indexes.get(index_id)
            attached = None
            if tracked is not None and tracked.state.build == filling.part.build:
                attached = bucket.tracker.attached(index_id)
            if bucket.stale or attached is None:
                filling.got_on_s = now_s  # A backfill would wait for the same.
                return None
            if filling.life is None:
                filling.life = self.life_of(bucket, index_id)
            elif filling.life != self.life_of(bucket, index_id):
                filling.begin_anew()
                return None
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

    def life_of(self, bucket: Bucket, index_id: int) -> Life:
        shard, life = bucket.shards[index_id], bucket.back_index.life(index_id)
        return self._storage.epoch, bucket.rolled_back, shard, life

    def _give_up(self, filling: Filling, why: str) -> None:
        self._given_up[filling.part.id] = filling.part.build
        self._running.pop(filling.part.id, None)
        self.said.append(f"index {filling.part.id}: left to projectors: {why}")

    def take(self, filling: Filling, ask: Ask, given: Given, now_s: float) -> int:
        """Take the answer to a question; return how many documents were written.

        Raises StorageError. ValueError: it is no answer.
        """
        if self._running.get(filling.part.id) is not filling or ask.number != filling.number:
            return 0
        if not filling.number:
            applied = Vector.from_bytes(*given.applied)
            if given.entries > ENTRIES_MAX * int(applied.seqnos.sum()):
                self._give_up(filling, f"{given.entries} entries are more than a backfill needs")
            else:
                filling.number, filling.applied = given.number, applied
                self._gets_on(filling, now_s)
            return 0
        bucket = self._storage.bucket_of(filling.part.id)
        if bucket is None or ask.after != filling.after or filling.applied is None:
            return 0
        with bucket.lock:
            if bucket.stale or filling.life != self.life_of(bucket, filling.part.id):
                return 0
            if not holds(bucket, (filling.applied,)):
                return 0
            is_last = not given.more and filling.at == len(filling.origins) - 1
            if is_last and not holds(bucket, filling.applied_before):
                filling.begin_anew()
                return 0
            bucket.take_over(filling.part.id, given.documents, is_all=is_last)
        self._gets_on(filling, now_s)
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

    def has_filled(self, filling: Filling) -> bool:
        """Tell whether a part is full now, or given up: nothing more is asked for it."""
        return self._running.get(filling.part.id) is not filling

    def _gets_on(self, filling: Filling, now_s: float) -> None:
        filling.got_on_s, filling.due_s = now_s, now_s

    def refused(self, filling: Filling, refusal: TransferRefused) -> None:
        """Note that a question was refused: it is asked again, filling begins anew, or it is given
        up."""
        if refusal.code == "transfer_gone":
            filling.begin_anew()
        elif not refusal.is_passing:
            who = f"indexer {filling.origin.indexer}"
            self._give_up(filling, f"{who} says {refusal.code}: {refusal.message}")

    def failed(self, filling: Filling) -> None:
        """Note that a page cannot be written: what is here may be less than was written."""
        filling.begin_anew()


def holds(bucket: Bucket, vectors: Iterable[Vector]) -> bool:
    """Tell whether all of these vectors is held, on the same branches."""
    if bucket.tracker.branched():
        return False
    held = bucket.tracker.vector()
    return all(len(v) == len(held) and held.lacking(v.places()) is None for v in vectors)


def origins_of(part: Index) -> tuple[Origin, ...]:
    """Return who has which slices of a part, each once."""
    slices: dict[tuple[int, int, int, int], list[int]] = {}
    for one in part.origins:
        slices.setdefault((one.indexer, one.index, one.shard, one.build), []).append(one.slice)
    return tuple(Origin(*who, tuple(sorted(numbers))) for who, numbers in sorted(slices.items()))

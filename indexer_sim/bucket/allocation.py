"""What an indexer has to hold: which slices to allocate or release, and what to answer.

Pure: no Kafka, RocksDB or clock. Level-triggered: only the latest state of each index counts. So an
indexer that missed ten changes reaches the same result as one that saw them all.

Invariants:

- After the actions exactly the wanted slices are there; a copy that leaves is not made again.
- An index is answered only while it waits for answers, or while its shard here is another one than
  in the state; with "allocated" or "released" only if that is so.
- Nothing is done or answered before the log was read to its end: until then it may be out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.core.model.entities import DROPPING, INIT, Index
from coordinator.core.model.records import ALLOCATED, REFUSED, RELEASED, Holding

Slices = frozenset[int]
NONE: Slices = frozenset()


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make storage for these slices of `index`, all or none."""

    index: Index
    slices: Slices


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the storage of these slices."""

    index_id: int
    slices: Slices


Action = Allocate | Release


@dataclass(frozen=True, slots=True)
class Reply:
    """What the coordinator is to hear about all slices of one index on this indexer."""

    index_id: int
    answer: str
    reason: str
    slices: tuple[int, ...]
    shard: int = 0


@dataclass(slots=True, kw_only=True)
class AllocationPlanner:
    """What an indexer knows: index states, what it holds, what it refused, what is unfinished.

    `indexes` has every index with slices here, at its latest state. `open` are the ids that need an
    action or an answer, now and with every heartbeat. `complete`: the log was read to its end, so
    an index that is held and not in `indexes` does not exist. While the log is read again from its
    start, `unseen` are the indexes that have not come up yet.
    """

    indexer: int
    indexes: dict[int, Index] = field(default_factory=dict)
    held: dict[int, Slices] = field(default_factory=dict)
    shards: dict[int, int] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    complete: bool = False
    unseen: set[int] = field(default_factory=set)

    def observe(self, index_id: int, index: Index | None) -> bool:
        """Note an index's latest state, None if it is gone; tell whether what is known changed."""
        before = self.indexes.pop(index_id, None)
        self.unseen.discard(index_id)
        if index is not None and self.indexer in index.hosts:
            self.indexes[index_id] = index
        if index is None or index.state != INIT:
            self.refusals.pop(index_id, None)
        if before is not None or index_id in self.indexes or index_id in self.held:
            self.open.add(index_id)
        return before != self.indexes.get(index_id)

    def hold(self, held: dict[int, Slices], shards: dict[int, int] | None = None) -> None:
        """Note what is allocated, and in which shard of each index."""
        lost = self.held.keys() - held.keys()
        self.held = held
        self.shards = shards or {}
        self.open.update(set(held) - set(self.indexes), lost)
        self.open.update(i for i in self.shards if self._has_moved(self.indexes.get(i)))

    def _has_moved(self, index: Index | None) -> bool:
        """Tell whether a finished index is held here in another shard than the state says."""
        if index is None or index.state in (INIT, DROPPING):
            return False
        return self.shards.get(index.id, 0) not in (0, index.shard_on(self.indexer))

    def ahead(self, builds: Mapping[int, int]) -> set[int]:
        """Return the indexes that are held under a newer build than the state knows.

        Either the state is not read that far yet, or nobody ever meant that build.
        """
        return {i for i, index in self.indexes.items() if builds.get(i, 0) > index.build}

    def report(self) -> list[Holding]:
        """Return everything that is held, for the handshake."""
        return [
            Holding(index_id, self.shards.get(index_id, 0), tuple(sorted(slices)))
            for index_id, slices in sorted(self.held.items())
        ]

    def read_again(self) -> None:
        """Note that the log is read from its start: its older tombstones may be compacted away."""
        self.complete = False
        self.unseen = set(self.indexes)

    def caught_up(self) -> set[int]:
        """Note that the log was read to its end; return the indexes that turn out to be gone."""
        self.complete = True
        gone = set(self.unseen)
        for index_id in gone:
            self.observe(index_id, None)
        return gone

    def refuse(self, action: Allocate, reason: str) -> bool:
        """Note that storage could not be made; tell whether that is final.

        It is for an index in `init`: the coordinator acts on the first refusal it hears. Every
        other index has been promised, and is tried again.
        """
        final = action.index.state == INIT
        if final:
            self.refusals[action.index.id] = reason
        return final

    def plan(self) -> list[Action]:
        """Return what to do about the open indexes; releases first, they make room."""
        if not self.complete:
            return []
        releases: list[Action] = []
        allocations: list[Action] = []
        for index_id in sorted(self.open):
            index = self.indexes.get(index_id)
            have = self.held.get(index_id, NONE)
            want = wanted(index, self.indexer)
            if have - want:
                releases.append(Release(index_id, have - want))
            lacks = want & needed(index, self.indexer) - have
            if index is not None and lacks and index_id not in self.refusals:
                allocations.append(Allocate(index, lacks))
        return releases + allocations

    def replies(self) -> list[Reply]:
        """Return what to answer about the open indexes."""
        if not self.complete:
            return []
        found = (self._reply(self.indexes[i]) for i in sorted(self.open & self.indexes.keys()))
        return [reply for reply in found if reply is not None]

    def close_finished(self) -> None:
        """Forget to attend to the indexes that need neither action nor answer."""
        if self.complete:
            busy = {action_id(action) for action in self.plan()}
            self.open &= busy | {reply.index_id for reply in self.replies()}

    def _reply(self, index: Index) -> Reply | None:
        numbers = index.slices_on(self.indexer)
        have = self.held.get(index.id, NONE)
        if index.state == INIT and index.id in self.refusals:
            return Reply(index.id, REFUSED, self.refusals[index.id], numbers)
        if have >= needed(index, self.indexer) and (index.state == INIT or self._has_moved(index)):
            return Reply(index.id, ALLOCATED, "", numbers, self.shards.get(index.id, 0))
        if index.state == DROPPING and not have:
            return Reply(index.id, RELEASED, "", numbers)
        return None


def wanted(index: Index | None, indexer: int) -> Slices:
    """Return the slices of `index` for which `indexer` must have storage; None is gone."""
    if index is None or index.state == DROPPING:
        return NONE
    return frozenset(index.slices_on(indexer))


def needed(index: Index | None, indexer: int) -> Slices:
    """Return the slices of `index` that are made if they are not there: none that leave."""
    return frozenset(index.needed_on(indexer)) if index is not None else NONE


def action_id(action: Action) -> int:
    """Return the index that an action is about."""
    return action.index.id if isinstance(action, Allocate) else action.index_id


def count(held: Iterable[Slices]) -> int:
    """Return how many slices there are."""
    return sum(len(numbers) for numbers in held)

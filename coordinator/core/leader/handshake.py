"""The handshake with indexers: what each holds, against what the StateContext says it should.

Pure. A new master asks every indexer for everything that it holds, and asks again when an indexer
was restarted. An indexer follows the StateContext by itself: it allocates what it lacks, and
deletes what it no longer has to hold. So a difference usually means that the indexer is still
busy, and the master asks again. If a difference lasts, the master tells the indexer to read the
state from its start. Storage that was allocated again has another shard number; the master commits
this difference as a change of the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.core.catalog.state import StateContext
from coordinator.core.model.entities import DROPPING, INIT, Index, Shard
from coordinator.core.model.records import (
    Holding,
    HoldingsReported,
    HoldingsRequested,
    IndexerHeartbeat,
)
from coordinator.core.model.types import Cas, Epoch

ROUNDS_BEFORE_REREAD = 4
BACKOFF_MAX = 5
"""Asked again after up to 2^5 times the period."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an indexer's holdings differ from the state, by index id.

    `unclear` are indexes that the state does not have now, but perhaps had at the CAS up to which
    the indexer has followed it.
    """

    moved: tuple[tuple[int, Shard], ...] = ()
    missing: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    unclear: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moved or self.missing or self.orphans)


def compare(state: StateContext, indexer: int, cas: Cas, holdings: Iterable[Holding]) -> Comparison:
    """Return how `holdings` of an indexer that has followed the state up to `cas` differ from it.

    An index that changed after `cas`, or that is being made or dropped, does not count; whether
    an index is an orphan is unclear before the indexer has followed the whole state.
    """
    held = {holding.index_id: holding for holding in holdings}
    moved: list[tuple[int, Shard]] = []
    missing: list[int] = []
    hosted: set[int] = set()
    for held_at in state.of_kind("index"):
        index, at = held_at.entity, held_at.cas
        assert isinstance(index, Index)
        wanted = index.slices_on(indexer)
        if not wanted:
            continue
        hosted.add(index.id)
        if at > cas or index.state in (INIT, DROPPING):
            continue
        found = held.get(index.id)
        if not set(index.needed_on(indexer)) <= set(found.slices if found else ()):
            missing.append(index.id)
        elif found is not None and found.shard != index.shard_on(indexer):
            moved.append((index.id, Shard(indexer, found.shard)))
    unknown = tuple(sorted(set(held) - hosted))
    orphans, unclear = (unknown, ()) if cas >= state.cas else ((), unknown)
    return Comparison(tuple(sorted(moved)), tuple(sorted(missing)), orphans, unclear)


def moved_shard(index: Index | None, indexer: int, shard: int) -> bool:
    """Tell whether `indexer` holds a finished index in other storage than the state says."""
    return (
        index is not None
        and index.state not in (INIT, DROPPING)
        and indexer in index.hosts
        and shard not in (0, index.shard_on(indexer))
    )


@dataclass(slots=True, kw_only=True)
class Handshake:
    """What is known of one incarnation of one indexer."""

    incarnation: int
    due_ms: int
    round: int = 0
    rounds: int = 0
    asked_cas: Cas = Cas(0)
    agreed: bool = False
    has_reported: bool = False
    """It has said once what it holds, whatever that is."""
    difference: Comparison = field(default_factory=Comparison)
    parts: dict[int, HoldingsReported] = field(default_factory=dict)


class Handshakes:
    """All indexers, by id, as one master sees them."""

    def __init__(self, epoch: Epoch, period_ms: int) -> None:
        self._epoch = epoch
        self._period_ms = period_ms
        self._by_indexer: dict[int, Handshake] = {}

    def get(self, indexer: int) -> Handshake | None:
        """Return what is known of the indexer, if it was heard."""
        return self._by_indexer.get(indexer)

    def note(self, beat: IndexerHeartbeat, now_ms: int) -> None:
        """An indexer is alive: another incarnation of it begins a new handshake."""
        known = self._by_indexer.get(beat.indexer)
        if known is None or known.incarnation != beat.incarnation:
            self._by_indexer[beat.indexer] = Handshake(incarnation=beat.incarnation, due_ms=now_ms)

    def due(self, now_ms: int, cas: Cas) -> list[HoldingsRequested]:
        """Return what is to be asked now; it is asked again, less and less often, until agreed.

        `cas` is the state's: an indexer agrees that has followed it as far as it was when asked.
        """
        asked: list[HoldingsRequested] = []
        for indexer, held in self._by_indexer.items():
            if held.agreed or now_ms < held.due_ms:
                continue
            held.rounds += 1
            held.round = (self._epoch << 20) + held.rounds
            held.due_ms = now_ms + (self._period_ms << min(held.rounds - 1, BACKOFF_MAX))
            held.parts.clear()
            held.asked_cas = cas
            reread = bool(held.difference) and held.rounds % ROUNDS_BEFORE_REREAD == 0
            asked.append(
                HoldingsRequested(self._epoch, indexer, held.incarnation, held.round, reread)
            )
        return asked

    def count(self, report: HoldingsReported, state: StateContext) -> Comparison | None:
        """Count a part of a report; return how the whole differs from `state` once it is whole."""
        held = self._by_indexer.get(report.indexer)
        if held is None or (held.incarnation, held.round) != (report.incarnation, report.round):
            return None
        held.parts[report.part] = report
        if len(held.parts) < report.parts:
            return None
        holdings = (h for part in held.parts.values() for h in part.holdings)
        held.difference = compare(state, report.indexer, report.cas, holdings)
        held.parts = {}
        held.round = 0
        held.has_reported = True
        difference = held.difference
        held.agreed = not difference and not difference.unclear and report.cas >= held.asked_cas
        return difference

"""What an indexer tells of the weight of its slices: entries, bytes, mutations a second.

Told every `PERIOD_S` while it changes, otherwise every `REPEAT_S`, for nodes that have come since.
That is a record of its own: heartbeats come ten times as often, and stay small.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.model.records import SLICE_LOADS_MAX, SliceLoad, SliceLoads
from indexer_sim.bucket.bucket import Bucket

PERIOD_S, REPEAT_S = 5.0, 30.0

INT_MAX = 2**31 - 1


class SliceLoadMeter:
    """Turns what buckets count into loads, and says when they are to be told."""

    def __init__(self, life: tuple[int, int]) -> None:
        """`life` is the indexer and its incarnation."""
        self._indexer, self._incarnation = life
        self._changes: dict[tuple[int, int], int] = {}
        self._measured_s: float | None = None
        self._told: tuple[SliceLoad, ...] = ()
        self._told_s = 0.0

    def due(self, buckets: Iterable[Bucket], now_s: float, wall_ms: int) -> SliceLoads | None:
        """Return what is to be told now, None if there is nothing."""
        last_s = self._measured_s
        if last_s is not None and now_s - last_s < PERIOD_S:
            return None
        self._measured_s = now_s
        passed_s = None if last_s is None else now_s - last_s
        measured = sorted(self._measure(buckets, passed_s), key=_size)
        loads = tuple(measured[:SLICE_LOADS_MAX])
        if loads == self._told and (not loads or now_s - self._told_s < REPEAT_S):
            return None
        self._told, self._told_s = loads, now_s
        left_out = len(measured) - len(loads)
        return SliceLoads(self._indexer, self._incarnation, loads, left_out, wall_ms)

    def _measure(self, buckets: Iterable[Bucket], passed_s: float | None) -> list[SliceLoad]:
        found: list[SliceLoad] = []
        before, self._changes = self._changes, {}
        for bucket in buckets:
            sizes = bucket.sizes.all()
            whole = sum(size.bytes for _, size in sizes) or 1
            for place, size in sizes:
                self._changes[place] = size.changes
                more = max(0, size.changes - before.get(place, 0))
                rate = 0 if passed_s is None else min(INT_MAX, round(more / passed_s))
                if size.entries:
                    part = bucket.size_bytes * size.bytes // whole
                    found.append(SliceLoad(*place, size.entries, part, rate))
        return found


def _size(load: SliceLoad) -> tuple[int, int, int, int]:
    return -load.bytes, -load.entries, load.index_id, load.slice

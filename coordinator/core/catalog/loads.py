"""How much a copy of a slice weighs: one number, made of what it holds and what it is sent.

Pure. The entries, the bytes and the mutations a second of a copy are each a share of what the
whole cluster has; its weight is the mean of these shares. So weights add up: what an indexer bears
is the sum over its copies, all indexers together bear 1, and "indexer 1 has 62 % of the load" means
just that. The price: an indexer with all mutations and another with all bytes count as equal.
Whole numbers, in parts of `WHOLE`: sums are the same in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WHOLE = 10**12
"""The weight of everything in the cluster together."""

LEAST = 100
"""A copy weighs a hundredth of the mean copy at least: empty slices are spread, too."""


class Load(NamedTuple):
    """What one copy of a slice holds, and the mutations that it is sent each second."""

    entries: int = 0
    bytes: int = 0
    mutations: int = 0


def weigh(loads: Sequence[Load], copies: Sequence[int]) -> list[int]:
    """Return what one copy of each slice weighs; `copies` says how many there are of it.

    A dimension in which nobody has anything does not count.
    """
    totals = [
        sum(load[kind] * count for load, count in zip(loads, copies, strict=True))
        for kind in range(len(Load._fields))
    ]
    kinds = [kind for kind, total in enumerate(totals) if total]
    least = WHOLE // (LEAST * max(1, sum(copies)))
    return [
        max(least, sum(load[kind] * WHOLE // totals[kind] for kind in kinds) // max(1, len(kinds)))
        for load in loads
    ]

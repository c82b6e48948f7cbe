"""Which SYNCs say everything: the last of each connection, vbucket and branch.

A connection numbers its records, and a position on a branch only grows. So the SYNC with the
highest ordinal replaces all older ones: a register in which the last writer wins. To reduce is
associative, commutative and idempotent. SYNCs may be reduced wherever they are, in any parts and
any order, and what is left reduced again; `fold` makes the same of it as of all of them. That is
a law with a test (`tests/unit/streaming/test_reduction.py`).

Pure. The work grows with the rows, not with how many connections or branches they name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.stability.grouping import firsts, grouped
from streaming.stability.positions import Syncs


def latest(syncs: Syncs, *ranks: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of the SYNCs that say everything, in ascending order.

    The numbers of the SYNCs must be sound, as `positions.sound` has it. Of two under one ordinal,
    which a sound connection never sends, the one with the higher seqno is kept, then the one of the
    higher projector, then of the last of the `ranks` that differs.
    """
    if not len(syncs.vbucket):
        return np.zeros(0, np.intp)
    groups, count = grouped(syncs.connection, syncs.vbucket, int(syncs.vbucket.max()) + 1)
    newest = np.full(count, -1, np.int64)
    np.maximum.at(newest, groups, syncs.ordinal)
    ahead = np.flatnonzero(syncs.ordinal == newest[groups])
    if len(ahead) > count:  # Several under one ordinal.
        return _sorted_out(syncs, ranks, np.arange(len(groups)))
    branch = np.zeros(count, np.uint64)
    branch[groups[ahead]] = syncs.vbuuid[ahead]
    elsewhere = np.flatnonzero(syncs.vbuuid != branch[groups])
    if len(elsewhere):
        ahead = np.sort(np.concatenate([ahead, _sorted_out(syncs, ranks, elsewhere)]))
    return ahead


def _sorted_out(
    syncs: Syncs, ranks: Sequence[NDArray[np.int64]], places: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the same of the SYNCs at these places, by sorting them: right for any, but slower."""
    rows = syncs.only(places)
    tied = [rank[places] for rank in ranks]
    order = np.lexsort(
        (
            *tied,
            rows.projector,
            rows.seqno,
            rows.ordinal,
            rows.vbuuid,
            rows.vbucket,
            rows.connection,
        )
    )
    first = firsts(rows.connection[order], rows.vbucket[order], rows.vbuuid[order])
    last = np.append(first[1:], True)
    return np.sort(places[order[last]])

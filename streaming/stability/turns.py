"""What a vbucket's connections have said within one batch, taken in the order in which they did.

Topics have no common order, so a batch has all BEGINs before all ENDs, and SYNCs apart from both.
A vbucket may have had several owners meanwhile. `in_turn` puts an END behind the BEGIN that it
ends, by the ordinals of its connection; BEGINs of a vbucket stand in order on their topic. `Said`
hands out the SYNCs of an owner up to the record at which that owner leaves. So a batch leads to
what its records would lead to one after the other.

Pure, but for `Said`, which lives for one batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import (
    MAINTENANCE,
    ORDINAL_MAX,
    ConnectionClosed,
    StreamBegin,
    StreamEnd,
)
from coordinator.core.timestamps.bucket_state import Array
from streaming.stability.positions import Syncs

Turn = StreamBegin | StreamEnd | ConnectionClosed
"""What may change the owner of a vbucket."""

FIRST = -1


def in_turn(records: Iterable[object]) -> list[Turn]:
    """Return the maintenance records that change owners, in the order to take them in.

    BEGINs keep their order. An END comes right behind the last BEGIN of its connection and vbucket
    that is older, by ordinal; the end of a connection behind all that is older on it. What has no
    older BEGIN here comes first.
    """
    turns = [one for one in records if isinstance(one, Turn) and one.kind == MAINTENANCE]
    if len({type(one) for one in turns}) < 2:
        return turns
    begins: dict[tuple[int, int], list[tuple[int, int]]] = {}
    furthest: dict[int, list[tuple[int, int]]] = {}
    for place, one in enumerate(turns):
        if isinstance(one, StreamBegin):
            begins.setdefault((one.connection, one.vbucket), []).append((one.ordinal, place))
            furthest.setdefault(one.connection, []).append((one.ordinal, place))
    for known in begins.values():
        known.sort()
    for connection, known in furthest.items():
        furthest[connection] = _running(sorted(known))

    def key(numbered: tuple[int, Turn]) -> tuple[int, int, int]:
        place, one = numbered
        match one:
            case StreamBegin():
                return place, 0, 0
            case StreamEnd():
                older = begins.get((one.connection, one.vbucket), [])
                return _place_before(older, one.ordinal), 1, one.ordinal
            case ConnectionClosed():
                return _place_before(furthest.get(one.connection, []), one.ordinal), 2, one.ordinal

    return [one for _, one in sorted(enumerate(turns), key=key)]


def _running(known: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ordinals, each with the last place of all up to it."""
    last, found = FIRST, []
    for ordinal, place in known:
        last = max(last, place)
        found.append((ordinal, last))
    return found


def _place_before(known: list[tuple[int, int]], ordinal: int) -> int:
    at = bisect_left(known, (ordinal, FIRST))
    return known[at - 1][1] if at else FIRST


class Said:
    """SYNCs of vbuckets whose owner may change in this batch, by connection and ordinal.

    Each is handed out once, if at all: to look at one record after the other costs no more than to
    look at all SYNCs once.
    """

    def __init__(self, syncs: Syncs, since: NDArray[np.int64]) -> None:
        """`since` is when each was read."""
        order = np.lexsort((syncs.ordinal, syncs.connection, syncs.vbucket))
        self._syncs, self._since = syncs.only(order), since[order]
        self._left = np.ones(len(order), np.bool_)
        vbuckets, connections = self._syncs.vbucket, self._syncs.connection
        new = np.ones(len(order), np.bool_)
        new[1:] = (vbuckets[1:] != vbuckets[:-1]) | (connections[1:] != connections[:-1])
        starts = np.flatnonzero(new)
        ends = np.append(starts, len(order))[1:]
        keys = zip(vbuckets[starts].tolist(), connections[starts].tolist(), strict=True)
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        self._groups = dict(zip(keys, bounds, strict=True))

    def up_to(
        self, vbucket: int, connection: int, begun: int, before: int = ORDINAL_MAX + 1
    ) -> Syncs:
        """Return what was not handed out yet, above the ordinal `begun` and below `before`."""
        begin, end = self._groups.get((vbucket, connection), (0, 0))
        if begin == end:
            return Syncs.none()
        ordinals = self._syncs.ordinal[begin:end]
        first = begin + int(np.searchsorted(ordinals, begun, "right"))
        last = begin + int(np.searchsorted(ordinals, before, "left"))
        # What is older than this BEGIN or END never counts again.
        self._groups[vbucket, connection] = (max(begin, last), end)
        if first >= last:
            return Syncs.none()
        self._left[first:last] = False
        return self._syncs.only(np.arange(first, last))

    def rest(self) -> tuple[Syncs, NDArray[np.int64]]:
        """Return what was not handed out, and when it was read."""
        return self._syncs.only(self._left), self._since[self._left]


def joined(early: Array, syncs: Syncs, now_ms: int) -> tuple[Syncs, NDArray[np.int64]]:
    """Return what was kept and what is new as one, and when each was read."""
    columns = (np.concatenate([early[name], getattr(syncs, name)]) for name in Syncs._fields)
    new = np.full(len(syncs.vbucket), now_ms, np.int64)
    return Syncs(*columns), np.concatenate([early["since_ms"], new])


def named(turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    """Return the vbuckets that are named, and the connections that end."""
    vbuckets = [one.vbucket for one in turns if not isinstance(one, ConnectionClosed)]
    return vbuckets, [one.connection for one in turns if isinstance(one, ConnectionClosed)]

"""Connections of projectors that have lapsed: the master says that they are closed.

Pure. A projector lapses when it was silent for `lapsed_projector_ms`, and for longer than four of
its heartbeats take. One that was killed sends no END, so its vbuckets would have an owner for as
long as the application on Spark waits. The master knows from that application which connections
own vbuckets. It closes those of a lapsed projector in its place, by a `ConnectionClosed` on
`stream-end`; it repeats that while the application names them as owners.

A projector that was only paused goes on with a connection that does not count any more. So when it
is heard again under the same generation, its streams are renewed. A new master does not know of
that; the streams are renewed then when the application misses their SYNCs. Source: specification,
"UPR connection coordination".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from coordinator.core.consensus.effects import CloseConnection
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.model.entities import Source
from coordinator.core.model.records import ProjectorHeartbeat, StreamOwner
from coordinator.core.model.stream_records import MAINTENANCE, ORDINAL_MAX, ConnectionClosed

REPEAT_MS = 2_000
TOLD_MAX = 4_096
"""Of so many connections it is known that they were closed, the last ones."""
REASON = "the projector has lapsed"

ProcessId = tuple[int, int]
"""A process: its number and its incarnation."""


class LapsedProjectors:
    """The part of a master that closes connections in the place of those who cannot."""

    def __init__(self) -> None:
        self._told_ms: dict[StreamOwner, int] = {}
        """When it was last said that a connection is closed, on the monotonic clock; how many
        vbuckets it has does not count here."""

    def tick(self, view: NodeView) -> list[CloseConnection]:
        """Return which connections are to be closed now."""
        lapsed = _lapsed(view)
        if not lapsed:
            return []
        found: list[CloseConnection] = []
        for owner in _owners(view):
            named = replace(owner, vbuckets=0)
            last_ms = self._told_ms.get(named)
            is_told = last_ms is not None and view.now.mono_ms - last_ms < REPEAT_MS
            if owner.projector in lapsed and not is_told:
                self._told_ms.pop(named, None)
                self._told_ms[named] = view.now.mono_ms
                if len(self._told_ms) > TOLD_MAX:
                    del self._told_ms[next(iter(self._told_ms))]
                found.append(CloseConnection(_closed(owner, view.now.wall_ms)))
        return found

    def returned(
        self,
        projectors: Iterable[ProjectorHeartbeat],
        sources: Mapping[str, Mapping[ProcessId, Source]],
    ) -> dict[str, tuple[ProcessId, ...]]:
        """Return, by bucket, the projectors that stream on connections that were closed for them.

        `sources` has each process that streams a bucket. What was closed does not count any more
        if all streams of its process have begun again since.
        """
        alive = {beat.projector: (beat.projector, beat.incarnation) for beat in projectors}
        found: dict[str, set[ProcessId]] = {}
        for owner in list(self._told_ms):
            process = alive.get(owner.projector)
            if process is None:
                continue
            source = sources.get(owner.bucket, {}).get(process)
            if source is not None and source.began <= owner.number <= source.number:
                found.setdefault(owner.bucket, set()).add(process)
            else:
                del self._told_ms[owner]
        return {bucket: tuple(sorted(ids)) for bucket, ids in found.items()}

    @property
    def buckets(self) -> set[str]:
        """The buckets of which connections were closed."""
        return {owner.bucket for owner in self._told_ms}


def _lapsed(view: NodeView) -> set[int]:
    peers = view.peers
    return {n for n in authority_of(view).projectors if peers.projector_lapsed(n)}


def _owners(view: NodeView) -> Iterator[StreamOwner]:
    for application in view.peers.applications.values():
        if view.peers.alive(application):
            yield from application.beat.owners


def _closed(owner: StreamOwner, at_ms: int) -> ConnectionClosed:
    return ConnectionClosed(
        owner.bucket, MAINTENANCE, owner.projector, owner.connection, ORDINAL_MAX, REASON, at_ms
    )

"""The key-value store as its process has it: buckets on nodes, connections, levers and faults.

A node is a number that owns vbuckets and serves their streams. Whatever changes here wakes those
who watch. All on one event loop; a step that takes long lets others run in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coordinator.core.model.types import Seqno
from projector_sim.kv.bucket import Bucket
from projector_sim.kv.errors import KvError
from projector_sim.kv.faults import Faults
from projector_sim.kv.store import KvStore
from projector_sim.kv.streams import Connection, StreamRequest
from projector_sim.kv.vbuckets import VBUCKETS
from projector_sim.protocol.frames import Reason

EXPIRED_AT_ONCE = 500
CLOSE_GRACE_S = 0.5
"""So long may a connection that was closed take to say so."""


class Live:
    """A connection that is being served, and how to end it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.task: asyncio.Task[None] | None = None
        self.broken = False

    def break_(self) -> None:
        """End it in the middle of whatever it does."""
        self.broken = True
        if self.task is not None:
            self.task.cancel()

    def close(self, reason: str) -> None:
        """Let it say why it ends; whoever does not read has it broken after a while."""
        self.connection.close(reason)
        asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self.break_)


class Hub:
    """The buckets of a store, on nodes 0 to `nodes` - 1."""

    def __init__(self, store: KvStore, nodes: int) -> None:
        """KvError `too_few_nodes`: some vbucket's owner would not be there."""
        self.store = store
        self.nodes = nodes
        self.faults = Faults()
        self.connections: dict[str, Live] = {}
        self.stopping = False
        self._crashing: set[int] = set()
        self._watchers: set[Callable[[], None]] = set()
        # Never one that an earlier process has told.
        self._version = int(time.time() * 1000)
        self._versions = dict.fromkeys(store.buckets, self._version)
        highest = max((max(bucket.owners()) for bucket in store.buckets.values()), default=0)
        if highest >= nodes:
            raise KvError("too_few_nodes", f"node {highest} owns vbuckets: start {highest + 1}")

    # -- buckets -----------------------------------------------------------------------------

    def create(
        self, name: str, vbuckets: int | None, nodes: Sequence[int] | None
    ) -> tuple[Bucket, bool]:
        """Return a bucket, and whether it was made. ValueError, KvError `exists`."""
        for node in nodes or ():
            self.check_node(node)
        bucket = self.store.buckets.get(name)
        if bucket is not None:
            if vbuckets not in (None, bucket.vbuckets):
                raise KvError("exists", f"{name} has {bucket.vbuckets} vbuckets, not {vbuckets}")
            return bucket, False
        bucket = self.store.create(name, vbuckets or VBUCKETS, nodes or range(self.nodes))
        self._changed(name)
        return bucket, True

    def drop(self, name: str) -> None:
        """Delete a bucket; its streams end. KvError `not_found`."""
        self.store.bucket(name)
        for live in self._of(name):
            live.connection.leave(dict.fromkeys(live.connection.at, 0), Reason.DROPPED)
        self.store.drop(name)
        del self._versions[name]
        self._changed(None)

    def move(self, name: str, vbuckets: Iterable[int], to: int) -> list[int]:
        """Give vbuckets to a node and end their streams; return those that it did not own."""
        bucket = self.store.bucket(name)
        self.check_node(to)
        moved = [vbucket for vbucket in vbuckets if bucket.owner(vbucket) != to]
        if not moved:
            return moved
        bucket.move(moved, to)
        seqnos = {vbucket: bucket.high_seqno(vbucket) for vbucket in moved}
        for live in self._of(name):
            if live.connection.request.node != to:
                live.connection.leave(seqnos, Reason.MOVED)
        self._changed(name)
        return moved

    def some_vbuckets(self, name: str, count: int, to: int, source: int | None) -> list[int]:
        """Return `count` vbuckets to move to a node: from `source`, or from who has the most."""
        bucket = self.store.bucket(name)
        owned = {node: bucket.owned_by(node) for node in range(self.nodes) if node != to}
        if source is not None:
            return owned.get(source, [])[:count]
        chosen: list[int] = []
        while len(chosen) < count and any(owned.values()):
            chosen.append(owned[max(owned, key=lambda node: len(owned[node]))].pop())
        return chosen

    # -- nodes -------------------------------------------------------------------------------

    def check_node(self, node: int) -> None:
        """KvError `not_found`: there is no such node."""
        if not 0 <= node < self.nodes:
            raise KvError("not_found", f"there is no node {node}, only 0 to {self.nodes - 1}")

    async def crash(
        self, node: int, lose: int, only: Iterable[int] | None, bucket_name: str | None
    ) -> dict[str, Any]:
        """Break a node's connections; its vbuckets begin a branch, without the last mutations.

        `lose` seqnos go, of the vbuckets `only`. KvError `too_far`: so many are not kept.
        """
        self.check_node(node)
        if bucket_name is not None:
            self.store.bucket(bucket_name)
        losing = None if only is None else set(only)
        names = [name for name in self.store.buckets if bucket_name in (None, name)]
        for name in names:
            bucket = self.store.bucket(name)
            for vbucket in bucket.owned_by(node):
                if losing is None or vbucket in losing:
                    _check_loss(name, bucket, vbucket, lose)
        broken = self._break(lambda live: live.connection.request.node == node)
        self._crashing.add(node)
        lost, branched = 0, 0
        try:
            owned = [(name, v) for name in names for v in self.store.bucket(name).owned_by(node)]
            for name, vbucket in owned:
                if name in self.store.buckets:  # It may have been dropped meanwhile.
                    count = lose if losing is None or vbucket in losing else 0
                    lost += self._branch(name, vbucket, count)
                    branched += 1
                await asyncio.sleep(0)
        finally:
            self._crashing.discard(node)
        return {"node": node, "connections": broken, "vbuckets": branched, "lost": lost}

    def _branch(self, name: str, vbucket: int, lose: int) -> int:
        """Begin a branch of a vbucket; nobody goes on with what was there before it."""
        bucket = self.store.bucket(name)
        high = bucket.high_seqno(vbucket)
        # Since it was checked, what is kept may have moved on a little.
        seqno = max(high - lose, bucket.lowest_seqno(vbucket)) if lose < high else 0
        self._break(
            lambda live: live.connection.request.bucket == name and vbucket in live.connection.at
        )
        bucket.lose_tail(vbucket, Seqno(seqno))
        return high - seqno

    # -- connections -------------------------------------------------------------------------

    def connect(self, request: StreamRequest) -> Live:
        """Return a new connection. KvError `exists`, `not_found`, `unavailable`."""
        bucket = self.store.bucket(request.bucket)
        self.check_node(request.node)
        if self.stopping or request.node in self._crashing:
            raise KvError("unavailable", f"node {request.node} is not there at the moment")
        if request.connection in self.connections:
            raise KvError("exists", f"there is a connection {request.connection}")
        live = Live(Connection(bucket, request, self.faults))
        self.connections[request.connection] = live
        return live

    def disconnected(self, live: Live) -> None:
        self.connections.pop(live.connection.request.connection, None)

    def close(self, connection: str, reason: str) -> None:
        """End a connection. KvError `not_found`."""
        if connection not in self.connections:
            raise KvError("not_found", f"there is no connection {connection}")
        self.connections[connection].close(reason)

    def _of(self, bucket: str) -> list[Live]:
        return [
            live for live in self.connections.values() if live.connection.request.bucket == bucket
        ]

    def _break(self, chosen: Callable[[Live], bool]) -> int:
        broken = [live for live in self.connections.values() if not live.broken and chosen(live)]
        for live in broken:
            live.break_()
        return len(broken)

    # -- what goes on ------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> None:
        """Delete what has expired."""
        for name in list(self.store.buckets):
            while (bucket := self.store.buckets.get(name)) and bucket.expire(
                now_ms, EXPIRED_AT_ONCE
            ):
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Close all connections, and let nobody watch any more."""
        self.stopping = True
        for live in list(self.connections.values()):
            live.close("the key-value store stops")
        for wake in list(self._watchers):
            wake()

    def watch(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when a bucket is made or dropped, or an owner changes."""
        self._watchers.add(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.discard(wake)

    def watched(self) -> dict[str, Any]:
        """Return what those who watch are told."""
        return {
            "buckets": {
                name: {"vbuckets": bucket.vbuckets, "owners": self._versions[name]}
                for name, bucket in self.store.buckets.items()
            }
        }

    def _changed(self, name: str | None) -> None:
        self._version += 1
        if name is not None:
            self._versions[name] = self._version
        for wake in list(self._watchers):
            wake()


def _check_loss(name: str, bucket: Bucket, vbucket: int, lose: int) -> None:
    seqno, lowest = bucket.high_seqno(vbucket) - lose, bucket.lowest_seqno(vbucket)
    if 0 < seqno < lowest:
        raise KvError(
            "too_far", f"vbucket {vbucket} of {name} can lose {bucket.high_seqno(vbucket) - lowest}"
        )

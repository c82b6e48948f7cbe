"""One connection that streams vbuckets of a bucket: what it sends next, and what it waits for.

A vbucket whose mutations are not all in the tail is read from the bucket, a piece at a time: no
snapshot of the database is kept while the other side does not read. After that the connection
follows the tail. Invariants:

- What was sent of a vbucket, in its order, is what the bucket has up to `at[vbucket]`, except
  within a snapshot; a SYNC names only seqnos at which none is open.
- After the END of a vbucket nothing of it is sent.
- One piece is kept, not more: who does not read, is not sent anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.core.model.types import Seqno, Vbuuid
from projector_sim.kv.bucket import Bucket
from projector_sim.kv.faults import DELAY, Faults
from projector_sim.protocol import frames
from projector_sim.protocol.failover import rollback_seqno
from projector_sim.protocol.frames import Reason

CHUNK_BYTES = 256 * 1024
Sending = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Wanted:
    """Where the stream of a vbucket begins, and from which seqno on it may end."""

    vbucket: int
    vbuuid: Vbuuid = Vbuuid(0)
    seqno: Seqno = Seqno(0)
    until: int | None = None


@dataclass(frozen=True)
class StreamRequest:
    """What one connection asks for."""

    connection: str
    bucket: str
    node: int
    kind: str
    wanted: tuple[Wanted, ...]
    current: bool = False
    """Begin with what is written from now on, whatever `wanted` says."""
    sync_ms: int = 100


@dataclass
class Sent:
    """What a connection has sent so far."""

    mutations_bytes: int = 0
    frames: int = 0
    pieces_read: int = 0
    since_ms: int = field(default_factory=lambda: int(time.time() * 1000))


class _Closed(Exception):
    """The connection is to be closed, and may still say so."""


class Connection:
    """Made when it is asked for; `run` sends. All on one event loop."""

    def __init__(self, bucket: Bucket, request: StreamRequest, faults: Faults) -> None:
        self.request = request
        self.sent = Sent()
        self.at: dict[int, Seqno] = {}
        """The vbuckets that are being streamed, and up to where they were."""
        self._bucket = bucket
        self._faults = faults
        self._until: dict[int, int] = {}
        self._leaving: dict[int, tuple[int, Reason]] = {}
        """Vbuckets to end, and up to where they may be streamed."""
        self._pending: dict[int, int] = {}
        """Ends of snapshots to tell of; always where the vbucket is."""
        self._sync_s = request.sync_ms / 1000
        self._synced_s = 0.0
        self._cursor: int | None = None
        self._wake = asyncio.Event()
        self._closing: str | None = None
        self._out: list[bytes] = []
        self._size = 0
        self._send: Sending | None = None
        self._opening = [self._opened(wanted) for wanted in request.wanted]

    def _opened(self, wanted: Wanted) -> tuple[str, int, bytes]:
        """Begin one vbucket, or not; return the frame that says so."""
        bucket, vbucket, seqno = self._bucket, wanted.vbucket, wanted.seqno
        if bucket.owner(vbucket) != self.request.node:
            return "end", vbucket, frames.end(vbucket, seqno, Reason.MOVED)
        log, high = bucket.failover_log(vbucket), bucket.high_seqno(vbucket)
        if self.request.current:
            seqno = high
        else:
            to = rollback_seqno(log, high, wanted.vbuuid, seqno)
            if to is not None:
                return "rollback", vbucket, frames.rollback(vbucket, to)
        self.at[vbucket] = seqno
        if seqno == high:
            # Where nothing changes, nothing else would tell that this is the end of a snapshot.
            self._pending[vbucket] = seqno
        if wanted.until is not None:
            self._until[vbucket] = wanted.until
        return "begin", vbucket, frames.begin(vbucket, log[0].vbuuid, seqno, log)

    # -- what others tell it -----------------------------------------------------------------

    def leave(self, vbuckets: Mapping[int, int], reason: Reason) -> None:
        """End vbuckets, each at the seqno given for it, or before that."""
        self._leaving |= {v: (seqno, reason) for v, seqno in vbuckets.items() if v in self.at}
        self._wake.set()

    def close(self, reason: str) -> None:
        """Say `reason` and end."""
        self._closing = reason
        self._wake.set()

    def describe(self) -> dict[str, Any]:
        request = self.request
        try:
            behind = sum(self._bucket.high_seqno(v) - at for v, at in self.at.items())
        except Exception:  # The bucket may be gone, or not be readable at present.
            behind = None
        return {
            "id": request.connection,
            "bucket": request.bucket,
            "node": request.node,
            "kind": request.kind,
            "vbuckets": len(self.at),
            "behind": behind,
            "bytes": self.sent.mutations_bytes,
            "frames": self.sent.frames,
            "pieces_read": self.sent.pieces_read,
            "since_ms": self.sent.since_ms,
        }

    # -- sending -----------------------------------------------------------------------------

    async def run(self, send: Sending) -> None:
        """Send until all vbuckets have ended, or until it is closed."""
        self._send = send
        self._bucket.tail.follow(self._wake.set)
        try:
            await self._stream()
        except _Closed:
            await send(b"".join(self._out) + frames.close(self._closing or ""))
        finally:
            self._bucket.tail.leave(self._wake.set)

    async def _stream(self) -> None:
        for kind, vbucket, frame in self._opening:
            await self._emit(kind, vbucket, frame)
        for vbucket in list(self.at):
            await self._end_if_done(vbucket)
        tail = self._bucket.tail
        while self.at:
            if self._cursor is None or not tail.has(self._cursor):
                await self._read_all()
            elif self._cursor < tail.end:
                await self._follow(self._cursor)
            elif self._leaving:
                await self._end_leaving(all_of_them=True)
            elif self._out:
                await self._flush()
            else:
                await self._idle()
            if self._pending and time.monotonic() >= self._synced_s + self._sync_s:
                await self._sync()
        await self._flush()

    async def _read_all(self) -> None:
        """Read every vbucket that has mutations that were not sent, then go on with the tail."""
        await self._end_leaving(all_of_them=True)
        self._cursor = self._bucket.tail.end
        behind = [v for v, at in self.at.items() if at < self._bucket.high_seqno(v)]
        for vbucket in behind:
            await self._read(vbucket)
            if self._pending and time.monotonic() >= self._synced_s + self._sync_s:
                await self._sync()

    async def _read(self, vbucket: int) -> None:
        """Read a vbucket to the end of a snapshot."""
        self._pending.pop(vbucket, None)
        vbuuid = self._bucket.failover_log(vbucket)[0].vbuuid
        while vbucket in self.at:
            if self._leaving:
                await self._end_leaving(all_of_them=True)
                continue
            stream = self._bucket.stream(vbucket, vbuuid, self.at[vbucket])
            seqno, parts = stream.piece(CHUNK_BYTES)
            self.sent.pieces_read += 1
            self.at[vbucket] = seqno
            if parts:
                await self._emit_mutations(vbucket, parts)
            if seqno == stream.end_seqno and vbucket in self.at:
                self._pending[vbucket] = seqno
                await self._end_if_done(vbucket)
                return

    async def _follow(self, number: int) -> None:
        """Send a batch of the tail."""
        parts: dict[int, list[bytes]] = {}
        to: dict[int, Seqno] = {}
        for vbucket, seqno, mutation in self._bucket.tail.batch(number):
            at = to.get(vbucket) or self.at.get(vbucket)
            if at is None or seqno <= at:
                continue
            if vbucket in self._leaving and seqno > self._leaving[vbucket][0]:
                continue
            if seqno != at + 1:
                raise RuntimeError(f"vbucket {vbucket}: seqno {seqno} in the tail after {at}")
            parts.setdefault(vbucket, []).append(mutation)
            to[vbucket] = seqno
        for vbucket, mutations in parts.items():
            self._pending.pop(vbucket, None)
            await self._emit_mutations(vbucket, mutations)
            if vbucket in self.at:
                self.at[vbucket] = self._pending[vbucket] = to[vbucket]
                await self._end_if_done(vbucket)
        self._cursor = number + 1
        await self._end_leaving(all_of_them=False)

    async def _end_if_done(self, vbucket: int) -> None:
        until = self._until.get(vbucket)
        if until is not None and self.at[vbucket] >= until:
            await self._end(vbucket, Reason.DONE)

    async def _end_leaving(self, *, all_of_them: bool) -> None:
        """End the vbuckets that are to end, all or those that have come to their seqno."""
        for vbucket, (seqno, reason) in list(self._leaving.items()):
            if vbucket in self.at and not all_of_them and self.at[vbucket] < seqno:
                continue
            del self._leaving[vbucket]
            if vbucket in self.at:
                await self._end(vbucket, reason)

    async def _end(self, vbucket: int, reason: Reason) -> None:
        if vbucket in self._pending and reason != Reason.DONE:
            await self._sync()
        self._pending.pop(vbucket, None)
        self._leaving.pop(vbucket, None)
        seqno = self.at.pop(vbucket)
        await self._emit("end", vbucket, frames.end(vbucket, seqno, reason))

    async def _sync(self) -> None:
        """Tell at which ends of snapshots the vbuckets are."""
        self._synced_s = time.monotonic()
        pairs, self._pending = self._pending, {}
        if self._faults:
            for vbucket in list(pairs):
                if await self._is_lost("sync", vbucket):
                    del pairs[vbucket]
        if pairs:
            await self._put(frames.sync(pairs.items()))

    async def _emit_mutations(self, vbucket: int, parts: list[bytes]) -> None:
        if self._faults:
            await self._is_lost("mutations", vbucket)
        size = sum(map(len, parts))
        self.sent.mutations_bytes += size
        self._out.append(frames.mutations_head(vbucket, size))
        self._out += parts
        self._size += size
        await self._put(b"")

    async def _emit(self, kind: str, vbucket: int, frame: bytes) -> None:
        if not (self._faults and await self._is_lost(kind, vbucket)):
            await self._put(frame)

    async def _put(self, frame: bytes) -> None:
        self.sent.frames += 1
        self._out.append(frame)
        self._size += len(frame)
        if self._size >= CHUNK_BYTES:
            await self._flush()

    async def _is_lost(self, kind: str, vbucket: int) -> bool:
        """Have a frame's fault take place; return whether it is lost."""
        request = self.request
        fault = self._faults.trigger(kind, request.bucket, vbucket, request.kind)
        if fault is None:
            return False
        if fault.action != DELAY:
            return True
        await self._flush()
        await asyncio.sleep(fault.delay_ms / 1000)
        return False

    async def _flush(self) -> None:
        """Send what has been put together, when the other side takes it."""
        if self._closing is not None:
            raise _Closed
        if self._out:
            chunk, self._out, self._size = b"".join(self._out), [], 0
            assert self._send is not None
            await self._send(chunk)
            # Sending need not wait for anything: let others have their turn.
            await asyncio.sleep(0)

    async def _idle(self) -> None:
        """Wait for something to do, or until a SYNC is due."""
        self._wake.clear()
        if self._closing is not None:
            raise _Closed
        wait_s = None
        if self._pending:
            wait_s = max(0.0, self._synced_s + self._sync_s - time.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

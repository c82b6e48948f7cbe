"""The key-value store as a source: streams and metadata, over HTTP.

A `KvStream` is one connection, with a thread that reads it and cuts it into frames. If a projector
is slow, TCP holds the store back (back-pressure). A `KvWatch` follows which buckets there are, and
who owns which vbuckets. Orders that may take long have a thread of their own.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.kafka.state_follower import StatusLog
from coordinator.runtime.threads import Threads
from projector_sim.protocol.frames import HEAD
from projector_sim.protocol.source import Frame, Logs, SourceBucket, StreamRequest
from projector_sim.sources.queued_stream import QueuedStream

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 5.0
WATCH_TIMEOUT_S = 6.0
"""The store says something every two seconds."""

PAUSE_S = 0.3
FRAME_BYTES_MAX = 64 * 1024 * 1024


def split(rest: bytearray, data: bytes) -> list[Frame]:
    """Return the frames that are complete with `data`; what is left stays in `rest`. ValueError."""
    rest += data
    frames: list[Frame] = []
    at, size_of_head, end = 0, HEAD.size, len(rest)
    while end - at >= size_of_head:
        size, kind = HEAD.unpack_from(rest, at)
        if not 1 <= size <= FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes")
        after = at + size_of_head + size - 1
        if after > end:
            break
        frames.append((kind, bytes(rest[at + size_of_head : after])))
        at = after
    if at:
        del rest[:at]
    return frames


def asked(request: StreamRequest, node: int, sync_ms: int) -> dict[str, Any]:
    """Return the request for a connection."""
    body: dict[str, Any] = {
        "bucket": request.bucket,
        "node": node,
        "kind": request.kind.replace("-", ""),
        "connection": str(request.connection),
        "vbuckets": list(request.vbuckets),
        "current": request.starts is None,
        "sync_ms": sync_ms,
    }
    if request.starts is not None:
        body["vbuuids"] = [str(request.starts[v][0]) for v in request.vbuckets]
        body["seqnos"] = [str(request.starts[v][1]) for v in request.vbuckets]
    if request.until:
        body["until"] = [str(request.until[v]) for v in request.vbuckets]
    return body


class KvSource:
    """The store: a `Source` that also makes buckets."""

    def __init__(
        self,
        kv: str,
        node: int,
        sync_ms: int,
        seen: Callable[[dict[str, SourceBucket] | None], None],
        status_log: StatusLog,
        stopping: threading.Event,
        threads: Threads,
    ) -> None:
        """`seen` is called with what the store has, and with None when it is away."""
        self._place = (kv, node, sync_ms)
        self._orders = KvOrders(kv, status_log, stopping, threads)
        self._watch = KvWatch(kv, node, seen, stopping, threads)
        self.make_bucket = self._orders.make_bucket
        self.fetch_logs = self._orders.fetch_logs
        self.close = self._watch.close

    @property
    def trouble(self) -> str:
        """Why it is away."""
        return self._watch.trouble

    def open(self, request: StreamRequest, wake: Callable[[], None]) -> KvStream:
        return KvStream(*self._place, request, wake)


class KvStream(QueuedStream):
    """One connection to the store."""

    def __init__(
        self, kv: str, node: int, sync_ms: int, request: StreamRequest, wake: Callable[[], None]
    ) -> None:
        self._url = f"{kv}/v1/streams"
        self._body = asked(request, node, sync_ms)
        self._response: httpx.Response | None = None
        super().__init__(f"{request.kind} {request.bucket}", wake)

    def close(self) -> None:
        super().close()
        response = self._response
        if response is not None:
            _shut_down(response)

    def _read(self) -> None:
        timeout = httpx.Timeout(CALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=None)
        rest = bytearray()
        with (
            httpx.Client(timeout=timeout, trust_env=False) as client,
            client.stream("POST", self._url, json=self._body) as response,
        ):
            self._response = response
            if self._stopping.is_set():
                return  # Whoever closed this may have come before there was anything to close.
            if response.status_code != 200:
                response.read()
                self.reason = f"HTTP {response.status_code}: {response.text[:300]}"
                return
            for data in response.iter_raw():
                frames = split(rest, data)
                if frames and not self._put(frames):
                    return
        self.reason = self.reason or "the store ended it"


class KvWatch:
    """Follows what the store has; hands over {bucket: SourceBucket}, or None while it is away."""

    def __init__(
        self,
        kv: str,
        node: int,
        seen: Callable[[dict[str, SourceBucket] | None], None],
        stopping: threading.Event,
        threads: Threads,
    ) -> None:
        self._kv = kv
        self._node = node
        self._seen = seen
        self._stopping = stopping
        self._response: httpx.Response | None = None
        self.trouble = ""
        threads.start("kv-watch", self._run, stopping)

    def close(self) -> None:
        """Break off; does not wait."""
        if self._response is not None:
            _shut_down(self._response)

    def _run(self) -> None:
        timeout = httpx.Timeout(CALL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=WATCH_TIMEOUT_S)
        with httpx.Client(base_url=self._kv, timeout=timeout, trust_env=False) as client:
            while not self._stopping.is_set():
                try:
                    self._follow(client)
                    self.trouble = "the store ended the watch"
                except Exception as error:
                    # The store is away, or says what nobody can read: no reason to end.
                    self.trouble = f"{type(error).__name__}: {error}"
                self._seen(None)
                self._stopping.wait(PAUSE_S)

    def _follow(self, client: httpx.Client) -> None:
        """Look again at all whose version has changed, for as long as the watch lasts."""
        versions: dict[str, Any] = {}
        known: dict[str, SourceBucket] = {}
        first = True
        for said in self._lines(client):
            found = said["buckets"]
            if not first and found == versions:
                continue
            known = {
                name: known[name]
                if found[name] == versions.get(name) and name in known
                else self._look(client, name)
                for name in found
            }
            versions, first = found, False
            self.trouble = ""
            self._seen(dict(known))

    def _lines(self, client: httpx.Client) -> Iterator[dict[str, Any]]:
        with client.stream("GET", "/v1/watch") as response:
            response.raise_for_status()
            self._response = response
            for line in response.iter_lines():
                if self._stopping.is_set():
                    return
                if line:
                    yield json.loads(line)

    def _look(self, client: httpx.Client, bucket: str) -> SourceBucket:
        said = client.get(f"{_path(bucket)}/vbuckets").raise_for_status().json()
        owners = said["owners"]
        owned = frozenset(v for v, owner in enumerate(owners) if owner == self._node)
        return SourceBucket(len(owners), owned)


class KvOrders:
    """Requests to the store that nobody waits for, one after the other."""

    def __init__(
        self, kv: str, status_log: StatusLog, stopping: threading.Event, threads: Threads
    ) -> None:
        self._status_log = status_log
        self._client = httpx.Client(
            base_url=kv, timeout=httpx.Timeout(CALL_TIMEOUT_S), trust_env=False
        )
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._making: set[str] = set()
        threads.start("kv-orders", self._run, stopping)

    def make_bucket(self, name: str, vbuckets: int) -> None:
        """Have a bucket made; nothing, if that is under way."""
        if name in self._making:
            return
        self._making.add(name)

        def order() -> None:
            try:
                self._client.put(_path(name), json={"vbuckets": vbuckets}).raise_for_status()
            finally:
                self._making.discard(name)

        self._orders.put(order)

    def fetch_logs(
        self,
        bucket: str,
        vbuckets: Sequence[int],
        done: Callable[[Logs], None],
    ) -> None:
        """Have the failover logs of vbuckets looked up."""

        def order() -> None:
            url = f"{_path(bucket)}/vbuckets"
            found = self._client.get(url, params={"failover_logs": "true"}).raise_for_status()
            logs = found.json()["failover_logs"]
            done({v: tuple(map(_branch, logs[v])) for v in vbuckets})

        self._orders.put(order)

    def _run(self) -> None:
        while True:
            order = self._orders.get()
            try:
                order()
            except Exception as error:
                # It is asked for again for as long as it is wanted.
                self._status_log.problem(
                    "an order to the store", f"{type(error).__name__}: {error}"
                )
            else:
                self._status_log.resolved("an order to the store")


def _path(bucket: str) -> str:
    return f"/v1/buckets/{quote(bucket, safe='')}"


def _branch(said: dict[str, str]) -> FailoverBranch:
    return FailoverBranch(Vbuuid(int(said["vbuuid"])), Seqno(int(said["seqno"])))


def _shut_down(response: httpx.Response) -> None:
    """Wake the thread that reads a response, and let it find its end."""
    stream: Any = response.extensions.get("network_stream")
    with suppress(OSError, AttributeError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

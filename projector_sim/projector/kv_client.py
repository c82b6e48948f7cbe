"""The key-value store as a projector sees it: streams and metadata, over HTTP.

A `KvStream` is one connection, with a thread that reads it and cuts it into frames. Its queue is
bounded: if a projector is slow, TCP holds the store back (back-pressure). A `KvWatch` follows which
buckets there are, and who owns which vbuckets. Orders that may take long have a thread of their
own.
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
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.stream_planner import KvBucket
from projector_sim.protocol.frames import HEAD, Kind

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 5.0
WATCH_TIMEOUT_S = 6.0
"""The store says something every two seconds."""

PAUSE_S = 0.3
BATCHES_MAX = 16
FRAME_BYTES_MAX = 64 * 1024 * 1024

Frame = tuple[int, bytes]


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


def asked(run: Run, node: int, sync_ms: int) -> dict[str, Any]:
    """Return the request for a connection."""
    body: dict[str, Any] = {
        "bucket": run.bucket,
        "node": node,
        "kind": run.kind.replace("-", ""),
        "connection": str(run.connection),
        "vbuckets": list(run.vbuckets),
        "current": run.starts is None,
        "sync_ms": sync_ms,
    }
    if run.starts is not None:
        body["vbuuids"] = [str(run.starts[v][0]) for v in run.vbuckets]
        body["seqnos"] = [str(run.starts[v][1]) for v in run.vbuckets]
    if run.until:
        body["until"] = [str(run.until[v]) for v in run.vbuckets]
    return body


class KvStream:
    """One connection; `take` returns the frames that have come, until `is_over`."""

    def __init__(
        self, kv: str, run: Run, node: int, sync_ms: int, wake: Callable[[], None]
    ) -> None:
        self.run = run
        self.reason = ""
        self._url = f"{kv}/v1/streams"
        self._body = asked(run, node, sync_ms)
        self._wake = wake
        self._batches: queue.Queue[list[Frame]] = queue.Queue(BATCHES_MAX)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"{run.kind} {run.bucket}", daemon=True
        )
        self._thread.start()

    def poll(self) -> list[Frame] | None:
        """Return the frames of one piece, None if nothing has come."""
        try:
            return self._batches.get_nowait()
        except queue.Empty:
            return None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more will come; then `reason` says why."""
        return self._ended.is_set() and self._batches.empty()

    def close(self) -> None:
        """Break the connection off; does not wait."""
        self._stopping.set()
        response = self._response
        if response is not None:
            _shut_down(response)

    def _run(self) -> None:
        try:
            self._read()
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.reason = self.reason or f"{type(error).__name__}: {error}"
        except BaseException as error:
            # A response that is closed while it is read: whatever the client makes of that. Nobody
            # else would hear of it: who reads the frames is told, and asks for what is missing.
            self.reason = self.reason or repr(error)
        finally:
            self._ended.set()
            self._wake()

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

    def _put(self, frames: list[Frame]) -> bool:
        """Wait for room, and add frames; False: nobody wants them any more."""
        kind, body = frames[-1]
        if kind == Kind.CLOSE:
            self.reason = body.decode("utf-8", "replace") or "closed by the store"
        while not self._stopping.is_set():
            try:
                self._batches.put(frames, timeout=0.2)
            except queue.Full:
                continue
            self._wake()
            return True
        return False


class KvWatch:
    """Follows what the store has; hands over {bucket: KvBucket}, or None while it is away."""

    def __init__(
        self,
        kv: str,
        node: int,
        seen: Callable[[dict[str, KvBucket] | None], None],
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
        known: dict[str, KvBucket] = {}
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

    def _look(self, client: httpx.Client, bucket: str) -> KvBucket:
        said = client.get(f"{_path(bucket)}/vbuckets").raise_for_status().json()
        owners = said["owners"]
        owned = frozenset(v for v, owner in enumerate(owners) if owner == self._node)
        return KvBucket(len(owners), owned)


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
        done: Callable[[dict[int, tuple[FailoverBranch, ...]]], None],
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

"""What tests of the key-value store's process need: the process, and readers of its streams."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tests.integration.cluster import LINES
from tests.integration.preloaded import PRELOADED, Spawned
from tests.support.kv_follower import Documents, Follower

DEADLINE_S = 90.0
T = TypeVar("T")


def until(what: str, condition: Callable[[], T]) -> T:
    """Return what `condition` returns, once that is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)
    return found


class KvProcess:
    """One store in a folder; it can be killed, and started again where it was."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.nodes = nodes
        self.url = ""
        self.process: Spawned | None = None
        self.http = httpx.Client()

    def start(self) -> KvProcess:
        announce = self.folder.with_name(f"{self.folder.name}.json")
        announce.unlink(missing_ok=True)
        port = self.url.rpartition(":")[2] or "0"
        argv = [sys.executable, "-m", "projector_sim", "kv", "--data-dir", str(self.folder)]
        argv += ["--port", port, "--nodes", str(self.nodes), "--announce-file", str(announce)]
        self.process = PRELOADED.spawn(argv)
        until("the store answers", announce.exists)
        self.url = json.loads(announce.read_text())["kv"]
        self.http.close()
        self.http = httpx.Client(base_url=f"{self.url}/v1", timeout=DEADLINE_S, trust_env=False)
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process; return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> KvProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request that must not be refused."""
        response = self.http.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json()

    def load(self, bucket: str, *lines: dict[str, Any]) -> Any:
        content = "".join(json.dumps(line) + "\n" for line in lines)
        path = f"/buckets/{bucket}/documents"
        response = self.http.post(path, content=content.encode(), headers=LINES)
        assert response.is_success, response.text
        return response.json()

    def write(self, bucket: str, documents: dict[str, Any]) -> Any:
        return self.load(bucket, *({"id": key, "doc": doc} for key, doc in documents.items()))

    def documents(self, bucket: str) -> Documents:
        """Return all documents, as they are in a stream."""
        lines = self.http.get(f"/buckets/{bucket}/documents").text.splitlines()
        found = map(json.loads, lines)
        return {
            one["id"].encode(): json.dumps(one["doc"], separators=(",", ":")).encode()
            for one in found
        }

    def high_seqnos(self, bucket: str) -> list[int]:
        return [int(s) for s in self.ask("GET", f"/buckets/{bucket}/vbuckets")["high_seqnos"]]

    def connections(self) -> dict[str, Any]:
        return {one["id"]: one for one in self.ask("GET", "/connections")["connections"]}


class StreamReader:
    """One connection, read by a thread; `over` once it has ended, `clean` if by a proper end."""

    def __init__(
        self, kv: KvProcess, follower: Follower, paused: bool = False, **body: Any
    ) -> None:
        self.follower = follower
        self.clean = False
        self.status = 0
        self.begun = threading.Event()
        self._reading = threading.Event()
        if not paused:
            self._reading.set()
        self._url = f"{kv.url}/v1/streams"
        self._body = {"kind": "maintenance", "sync_ms": 10, **body}
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def resume(self) -> None:
        self._reading.set()

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert self.over

    def break_off(self) -> None:
        """Go away, as a client that dies."""
        self.begun.wait(DEADLINE_S)
        self._reading.set()
        if self._response is not None:
            stream = self._response.extensions["network_stream"]
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(2)
        self.join()

    def _run(self) -> None:
        try:
            with httpx.stream(
                "POST", self._url, json=self._body, timeout=DEADLINE_S * 2, trust_env=False
            ) as response:
                self._response = response
                self.status = response.status_code
                self.begun.set()
                self._reading.wait()
                for chunk in response.iter_raw():
                    self.follower.feed(chunk)
                self.clean = True
        except httpx.HTTPError:
            return
        finally:
            self.begun.set()

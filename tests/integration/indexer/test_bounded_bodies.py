"""A POST without an end is answered once it is too long, and nobody reads on."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from coordinator.kafka.topics import HEARTBEAT
from indexer_sim.scans.api import BODY_BYTES_MAX
from projector_sim.kv.api_errors import BODY_BYTES_MAX as STORE_BODY_BYTES_MAX
from tests.integration.indexer_process import Cluster, Start
from tests.integration.projectors import Store

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}
PIECE = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
SENT_BYTES_MAX = 150 * 1024 * 1024
TIMEOUT_S = 10


def send_for_ever(address: str, method: str, path: str, host: str = "") -> tuple[int, bytes]:
    """Send pieces of a body until there is an answer; return how much was sent, and the answer.

    Under the `Host` of the address, or another one.
    """
    url = httpx.URL(address)
    with socket.create_connection((url.host, url.port), TIMEOUT_S) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host or url.netloc.decode()}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < SENT_BYTES_MAX:
                connection.sendall(PIECE)
                sent += len(PIECE)
        answer = b""
        with suppress(ConnectionResetError):
            answer = connection.recv(4_096)
    return sent, answer


def rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def test_an_indexer_does_not_keep_a_body_without_an_end(
    cluster: Cluster,
    start: Start,
) -> None:
    process = start()
    pid = process.process.pid
    with cluster.listen(HEARTBEAT) as beats:
        address = beats.hears("a heartbeat", lambda beat: beat.pid == pid).address
    before = rss(pid)
    for host in ("", "stranger.example"):
        sent, _ = send_for_ever(address, "POST", "/v1/slices/scan", host)
        assert sent < SENT_BYTES_MAX, "it stops reading, and the client can send no more"
    assert rss(pid) - before < 8 * BODY_BYTES_MAX
    announced = httpx.post(
        f"{address}/v1/slices/scan", content=b"x" * (BODY_BYTES_MAX + 1), headers=JSON
    )
    assert announced.status_code == 400
    assert announced.json()["error"]["code"] == "invalid_request"
    assert announced.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/streams"), ("PUT", "/v1/buckets/b/documents/x")]
)
def test_the_store_does_not_keep_a_body_without_an_end(
    tmp_path: Path, method: str, path: str
) -> None:
    store = Store(tmp_path / "kv")
    try:
        store.call("PUT", "/v1/buckets/b", {"vbuckets": 4})
        before = rss(store.process.pid)
        send_for_ever(store.url, method, path)
        assert rss(store.process.pid) - before < 8 * STORE_BODY_BYTES_MAX
        assert store.call("GET", "/v1/buckets")
    finally:
        store.close()

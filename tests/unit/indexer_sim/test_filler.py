"""What fills parts over HTTP: from a real server, and from servers that answer as nobody should."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.kafka.state_follower import StatusLog
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.entries import pack_back
from indexer_sim.bucket.transfers import Given, given_bytes
from indexer_sim.pipeline import filler as module
from indexer_sim.pipeline import fillings
from indexer_sim.pipeline.filler import Filler
from indexer_sim.scans.api import ScanServer
from indexer_sim.scans.reader import StorageReading
from tests.support.transfers import ALL, INDEX, PART, SOURCE, Holder, Target, entries_of, written

SOON_S = 20.0


class Driven:
    """A target whose parts are filled, by a thread."""

    def __init__(self, target: Target, per_s: int = 0) -> None:
        self.target = target
        self.per_s = per_s
        self.news = 0
        self.threads = Threads(lambda: None)
        self.filler = Filler(
            target.storage, lambda: self.per_s, self._told, StatusLog("target"), self.threads
        )

    def _told(self) -> None:
        self.news += 1

    def fill(self, address: str, *origins: Any) -> None:
        """Begin to fill the part from whoever answers there."""
        part = self.target.knows(*origins)
        self.filler.meet(SOURCE, address)
        self.filler.know({PART: part})
        self.filler.start()

    def end(self) -> None:
        self.filler.end()
        self.filler.join()
        self.threads.check()


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path / "source", SOURCE, ALL)
    yield made
    made.storage.close()


@pytest.fixture
def served(source: Holder) -> Iterator[str]:
    server = ScanServer(
        StorageReading(source.storage), SOURCE, Threads(lambda: None), giving=source.giving
    )
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    target = Target(tmp_path / "target", ALL, (50, 0))
    made = Driven(target)
    yield made
    made.end()
    target.storage.close()


@pytest.mark.thorough
def test_a_part_is_filled_over_http(source: Holder, served: str, driven: Driven) -> None:
    written(source, 50)
    driven.fill(served, *source.origins())
    until(lambda: driven.target.is_complete, "it is filled")
    until(lambda: driven.news, "somebody is told")
    assert driven.target.entries() == entries_of(source, INDEX)


@pytest.mark.thorough
def test_it_is_no_faster_than_it_may_and_a_new_pace_counts_at_once(
    source: Holder, served: str, driven: Driven
) -> None:
    written(source, 50)
    driven.per_s = 1
    began_s = time.monotonic()
    driven.fill(served, *source.origins())
    until(lambda: sum(map(len, driven.target.entries().values())) >= 2, "two have come")
    assert time.monotonic() - began_s > 1 - 2 * 0.1, "a tenth of a second is taken at once"
    assert not driven.target.is_complete
    driven.per_s = 0
    until(lambda: driven.target.is_complete, "it is filled")


@pytest.mark.thorough
def test_a_long_wait_ends_with_another_pace(
    source: Holder, served: str, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE_S", 45.0)
    written(source, 50)
    driven.per_s = 1
    driven.fill(served, *source.origins())
    until(lambda: sum(map(len, driven.target.entries().values())) == 45, "the first have come")
    driven.per_s = 0
    until(lambda: driven.target.is_complete, "it is filled")


@pytest.mark.thorough
def test_who_does_not_answer_is_left_alone_for_a_while(
    source: Holder, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all others would wait for it again and again."""
    monkeypatch.setattr(module, "REST_S", 1e6)
    monkeypatch.setattr(fillings, "PATIENCE_S", 0.5)
    server = Answering(http(b"hello"))
    try:
        driven.fill(server.address, *source.origins())
        until(lambda: not driven.filler.fillings.are_filled(), "it is left to projectors")
    finally:
        server.close()
    assert server.asked == 1


@pytest.mark.thorough
def test_who_comes_back_elsewhere_is_asked_there(
    source: Holder, served: str, driven: Driven
) -> None:
    written(source, 50)
    driven.fill("http://127.0.0.1:9", *source.origins())
    driven.filler.meet(SOURCE, served)
    until(lambda: driven.target.is_complete, "it is filled")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "ftp://127.0.0.1",
        "http://[::1",
        "http://256.1.1.1:3",
        "http://::1:4000",
        "http://a\nb",
        "http://" + "a" * 70_000,
    ],
)
def test_no_address_ends_the_thread(
    source: Holder, driven: Driven, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fillings, "PATIENCE_S", 0.2)
    monkeypatch.setattr(module, "REST_S", 0.01)
    driven.fill(address, *source.origins())
    until(lambda: not driven.filler.fillings.are_filled(), "it is left to projectors")


class Answering:
    """A server that answers each question with these bytes; with `each_s`, byte by byte."""

    def __init__(self, raw: bytes, each_s: float = 0.0) -> None:
        self.raw, self.each_s = raw, each_s
        self.asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(1_000_000)
                self.asked += 1
                try:
                    self._send(connection)
                except OSError:
                    continue

    def _send(self, connection: socket.socket) -> None:
        head, _, body = self.raw.partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        if not self.each_s:
            connection.sendall(body)
        while self.each_s and not self._ended.wait(self.each_s):
            connection.sendall(body)

    def close(self) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # Who waits for the next one would wait for ever.
        self._socket.close()


def http(body: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (status, size) + body


def page(**fields: Any) -> bytes:
    return http(given_bytes(Given(**({"number": 5} | fields))))


def deep(levels: int) -> bytes:
    """A page with a field that nobody knows, which nests."""
    return b"\x81\xa1x" + b"\x91" * levels + b"\xc0"


WRONG = {
    "nothing": b"HTTP/1.1 200 OK\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "no page": http(b"hello"),
    "a deep page": http(deep(100_000)),
    "a page of another kind": http(msgspec.msgpack.encode({"number": "x"})),
    "half a page": http(b"\x85", length=500),
    "a vector of another length": page(applied=(bytes(8), bytes(8))),
    "no vector": page(applied=(b"123", b"")),
    "no number": page(number=0, applied=(bytes(16), bytes(16))),
    "documents at once": page(applied=(bytes(16), bytes(16)), documents=((b"d", b""),)),
    "a redirect": http(b"", b"302 Found\r\nlocation: http://127.0.0.1:1/"),
    "an error of its own": http(
        b'{"error": {"code": "%s", "message": 5}}' % (b"x" * 100_000), b"503 No"
    ),
    "deep JSON": http(b'{"a":' * 100_000, b"503 No"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG)
def test_no_answer_ends_the_thread(
    capsys: pytest.CaptureFixture[str],
    source: Holder,
    driven: Driven,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it says at its end is captured, too: so that is asked for first."""
    monkeypatch.setattr(fillings, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "REST_S", 0.01)
    server = Answering(WRONG[name])
    try:
        driven.fill(server.address, *source.origins())
        until(lambda: not driven.filler.fillings.are_filled(), "it is left to projectors")
    finally:
        server.close()
    assert server.asked
    assert max(map(len, capsys.readouterr().err.splitlines() or [""])) < 1_000
    assert driven.target.entries() == {0: [], 1: []}


@pytest.mark.thorough
@pytest.mark.parametrize(("body", "each_s"), [(b"x", 0.02), (bytes(1_000_000), 0.0001)])
def test_no_answer_holds_it_up_for_ever(
    source: Holder, driven: Driven, body: bytes, each_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fillings, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "REST_S", 0.01)
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 3_000_000)
    server = Answering(http(body, length=10**12), each_s)
    try:
        driven.fill(server.address, *source.origins())
        until(lambda: not driven.filler.fillings.are_filled(), "it is left to projectors")
    finally:
        server.close()


@pytest.mark.thorough
def test_pages_that_do_not_get_on_are_no_progress(
    source: Holder, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fillings, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "REST_S", 0.01)
    entry = pack_back(1, 1, 0, b"k")
    same = page(applied=(bytes(16), bytes(16)), more=True, documents=((b"d", entry),), after=b"")
    server = Answering(same)
    try:
        driven.fill(server.address, *source.origins())
        until(lambda: not driven.filler.fillings.are_filled(), "it is left to projectors")
    finally:
        server.close()
    assert driven.target.entries() == {0: [], 1: []}

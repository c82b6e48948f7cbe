"""A registry as its HTTP API is documented: answers recorded from that, over real connections."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from projector_sim.sources import schema_registry
from projector_sim.sources.schema_registry import (
    ANSWER_BYTES_MAX,
    DENIALS,
    SchemaRegistry,
)
from projector_sim.sources.topic_records import RecordError, RegistryClosed

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "to", "type": "Place"}]}
REFERENCE = {"name": "Place", "subject": "place-value", "version": 1}


class Registry(BaseHTTPRequestHandler):
    """Answers what `answers` has for a path: a status and a body."""

    answers: ClassVar[dict[str, list[tuple[int, Any]]]] = {}
    asked: ClassVar[list[str]] = []
    encoding: ClassVar[str] = ""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.answers.get(self.path, [(404, {"error_code": 40403, "message": "not found"})])
        status, body = known.pop(0) if len(known) > 1 else known[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        if self.encoding:
            self.send_header("Content-Encoding", self.encoding)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Registry.answers, Registry.asked, Registry.encoding = {}, [], ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


class Known(SchemaRegistry):
    """A registry, and what was said of it; it is given up after so many waits."""

    def __init__(self, url: str, patience: int = 8) -> None:
        self.said: list[str] = []
        self.left = patience
        super().__init__(url, self.waited, self.said.append, lambda: self.said.append("well"))

    def waited(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_schema_is_asked_for_once(url: str) -> None:
    Registry.answers["/schemas/ids/7"] = [(200, {"schema": json.dumps(PLACE)})]
    registry = Known(url)
    first = registry.get(7)
    assert first.parsed["fields"][0]["name"] == "city"
    assert not first.is_recursive
    assert registry.get(7) is first
    assert Registry.asked == ["/schemas/ids/7"]


def test_what_a_schema_refers_to_is_fetched_too(url: str) -> None:
    trip = {"schema": json.dumps(TRIP), "references": [REFERENCE]}
    Registry.answers["/schemas/ids/8"] = [(200, trip)]
    Registry.answers["/subjects/place-value/versions/1"] = [(200, {"schema": json.dumps(PLACE)})]
    registry = Known(url)
    assert registry.get(8).parsed["name"] == "Trip"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, {"error_code": 40403}), "unknown_schema"),
        ((200, {"schema": "{", "schemaType": "AVRO"}), "bad_schema"),
        ((200, {"schema": "message A {}", "schemaType": "PROTOBUF"}), "bad_schema"),
        ((200, {"schema": 5}), "bad_schema"),
        ((200, [1]), "bad_schema"),
        ((200, b'"' + b"a" * (ANSWER_BYTES_MAX + 1) + b'"'), "bad_schema"),
        ((200, {"schema": json.dumps(TRIP), "references": [REFERENCE]}), "unknown_schema"),
        ((200, {"schema": json.dumps(TRIP)}), "bad_schema"),
        ((200, {"schema": json.dumps(TRIP), "references": [{}]}), "bad_schema"),
        ((200, {"schema": json.dumps(TRIP), "references": 5}), "bad_schema"),
    ],
)
def test_a_schema_that_nobody_can_read_is_so_for_each_record(
    url: str, answer: tuple[int, Any], code: str
) -> None:
    Registry.answers["/schemas/ids/9"] = [answer]
    registry = Known(url)
    for _ in range(2):
        with pytest.raises(RecordError) as caught:
            registry.get(9)
        assert caught.value.code == code
    assert Registry.asked.count("/schemas/ids/9") <= 1 + DENIALS


def test_that_a_registry_lacks_a_schema_is_believed_after_a_while_only(url: str) -> None:
    lacks = (404, {"error_code": 40403})
    Registry.answers["/schemas/ids/7"] = [lacks, lacks, (200, {"schema": json.dumps(PLACE)})]
    registry = Known(url)
    assert registry.get(7).parsed["name"] == "Place"


def test_a_404_of_who_is_no_registry_is_waited_for(url: str) -> None:
    good = (200, {"schema": json.dumps(PLACE)})
    Registry.answers["/schemas/ids/7"] = [(404, b"<html>"), *[(404, {})] * 6, good]
    registry = Known(url)
    assert registry.get(7).parsed["name"] == "Place"


def test_an_answer_that_is_packed_is_not_unpacked(url: str) -> None:
    Registry.encoding = "gzip"
    Registry.answers["/schemas/ids/7"] = [(200, {"schema": json.dumps(PLACE)})]
    registry = Known(url, patience=2)
    with pytest.raises(RegistryClosed, match="encoding"):
        registry.get(7)


def test_schemas_that_refer_to_each_other_are_refused(url: str) -> None:
    said = {"schema": json.dumps(TRIP), "references": [REFERENCE]}
    Registry.answers["/schemas/ids/9"] = [(200, said)]
    Registry.answers["/subjects/place-value/versions/1"] = [(200, said)]
    registry = Known(url)
    with pytest.raises(RecordError, match="references"):
        registry.get(9)


def test_a_registry_that_fails_is_waited_for(url: str) -> None:
    good = (200, {"schema": json.dumps(PLACE)})
    Registry.answers["/schemas/ids/7"] = [(500, {}), (503, b""), (200, b"no json"), good]
    registry = Known(url)
    registry.get(7)
    assert len(Registry.asked) == 4
    assert registry.said[-1] == "well"
    assert len(registry.said) == 4


def test_who_is_not_waited_for_any_more_gives_up() -> None:
    registry = Known("http://127.0.0.1:9")
    with pytest.raises(RegistryClosed):
        registry.get(7)
    assert len(registry.said) == 9


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_registry_that_never_ends_its_head_is_told_of(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and the answer never."""
    monkeypatch.setattr(schema_registry, "TIMEOUT_S", 0.4)
    over = Event()

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(said)
            while not over.wait(0.05):
                connection.sendall(b"X-More: 1\r\n" if b"200" in said else said)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=answer, args=(listening,))
        thread.start()
        registry = Known(f"http://127.0.0.1:{listening.getsockname()[1]}", patience=0)
        with pytest.raises(RegistryClosed, match="TimeoutError"):
            registry.get(7)
        over.set()
        thread.join()
    assert len(registry.said) == 1


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (302, b"", "HTTP 302"),
        (404, ["none"], "HTTP 404"),
        (200, {"error_code": 50001}, "error 50001"),
        (200, b"<html>", "JSONDecodeError"),
    ],
)
def test_an_answer_that_is_none_is_waited_for_and_named(
    url: str, status: int, body: Any, told: str
) -> None:
    Registry.answers["/schemas/ids/7"] = [(status, body), (200, {"schema": json.dumps(PLACE)})]
    registry = Known(url)
    assert registry.get(7).parsed["name"] == "Place"
    assert [told in text for text in registry.said] == [True, False]


@pytest.mark.parametrize("body", [b'{"schema":' + b"[" * 100_000, b'{"id":' + b"9" * 5_000 + b"}"])
def test_an_answer_that_can_never_be_read_is_believed(url: str, body: bytes) -> None:
    Registry.answers["/schemas/ids/7"] = [(200, body)]
    with pytest.raises(RecordError) as refused:
        Known(url).get(7)
    assert refused.value.code == "bad_schema"

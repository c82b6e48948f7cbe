"""A node as its clients see it: an HTTP server that answers what a test says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.ports import reserve_port


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What a node answers; None as its body closes the connection without a word."""

    status: int
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, code: str, **details: Any) -> Answer:
    error = {"code": code, "message": f"because of {code}", "details": details}
    return Answer(status, {"error": error})


class Node:
    """An HTTP server that answers what `script(request)` returns, and records what it got."""

    def __init__(self, script: Callable[[Request], Answer]) -> None:
        self.script = script
        self.requests: list[Request] = []
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # Else each body waits for the ACK of its headers.

            def answer(self) -> None:
                parts = urlsplit(self.path)
                size = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command,
                    parts.path,
                    {k: v[0] for k, v in parse_qs(parts.query).items()},
                    {k.lower(): v for k, v in self.headers.items()},
                    self.rfile.read(size),
                )
                if request.path != "/v1/members":
                    node.requests.append(request)
                answer = node.script(request)
                if answer.body is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = answer.body
                data = text.encode() if isinstance(text, str) else json.dumps(text).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                pass  # a client that gave up is no error of this server

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def keys(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self.requests]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def unused_url() -> str:
    """Return the URL of a port on which nothing listens, nor will as long as this process lives."""
    return f"http://127.0.0.1:{reserve_port()}"


def members(*urls: str) -> Answer:
    return Answer(200, {"epoch": 1, "master": "n1", "members": [{"address": u} for u in urls]})


def redirect_to(url: str) -> Callable[[Request], Answer]:
    def script(request: Request) -> Answer:
        moved = refusal(307, "not_master")
        return Answer(307, moved.body, {"Location": url + request.path})

    return script

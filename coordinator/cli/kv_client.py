"""The key-value store as the commands see it: where it is, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from coordinator.cli.output import CommandError
from coordinator.cli.session import Session

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 60.0
LINES = {"Content-Type": "application/x-ndjson"}


class Kv:
    """The store at `url`. Its errors, and that it is away, are a CommandError."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        self.url = _checked(url)
        answer_s = timeout_s or ANSWER_TIMEOUT_S
        timeout = httpx.Timeout(answer_s, connect=min(CONNECT_TIMEOUT_S, answer_s))
        self._http = httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def __enter__(self) -> Kv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, *path: str | int) -> Any:
        return self._ask("GET", path)

    def put(self, *path: str | int, body: Any = None) -> Any:
        return self._ask("PUT", path, json=_given(body))

    def post(self, *path: str | int, body: Any = None) -> Any:
        return self._ask("POST", path, json=_given(body))

    def delete(self, *path: str | int) -> Any:
        return self._ask("DELETE", path)

    def load(self, bucket: str, content: Iterator[bytes] | bytes) -> Any:
        """Send lines of documents; answer what became of them."""
        path = ("buckets", bucket, "documents")
        return self._ask("POST", path, content=content, headers=LINES)

    def documents(self, bucket: str, every: int) -> Iterator[str]:
        """Yield documents as lines: about one of `every`."""
        path = _path(("buckets", bucket, "documents"))
        with (
            self._reached(),
            self._http.stream("GET", path, params={"every": every}) as response,
        ):
            if not response.is_success:
                response.read()
            _raise_unless_ok(response)
            yield from response.iter_lines()

    def _ask(self, method: str, path: tuple[str | int, ...], **sent: Any) -> Any:
        with self._reached():
            response = self._http.request(method, _path(path), **sent)
        return _raise_unless_ok(response)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = f"the key-value store at {self.url} does not answer: {error}"
            raise CommandError("unavailable", text) from None


def connect(session: Session, url: str | None) -> Kv:
    """Return the store at `url`, or the one that the cluster's projectors read."""
    return Kv(url or find(session), session.timeout_s)


def connect_to_write(session: Session, url: str | None, bucket: str) -> Kv:
    """Return the store for writing documents of a bucket. CommandError `usage`: it is a topic's."""
    if url is None:
        with session.connect() as client:
            found = (b["source"] for b in client.buckets()["buckets"] if b["name"] == bucket)
            source = next(found, None)
        if source:
            text = f"the documents of bucket {bucket} are in the Kafka topic {source['topic']}"
            raise CommandError("usage", f"{text}, not in the key-value store: write them there")
    return connect(session, url)


def find(session: Session) -> str:
    """Return the URL of the store, which the projectors know."""
    with session.connect() as client:
        known = client.projectors()["projectors"]
    # What a dead one has said last is better than nothing.
    urls = [p["kv"] for p in sorted(known, key=lambda p: not p.get("alive")) if p.get("kv")]
    if not urls:
        raise CommandError(
            "unavailable", "no projector names the key-value store: give its address with --kv URL"
        )
    return str(urls[0])


def _checked(url: str) -> str:
    """Return a URL without its last slash. CommandError `usage`: it is none."""
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host:
            return url.rstrip("/")
    raise CommandError("usage", f"{url} is no URL of a key-value store, as http://127.0.0.1:8603")


def _path(parts: tuple[str | int, ...]) -> str:
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def _given(body: Any) -> Any:
    """Return a body without the fields that were not given."""
    return {key: value for key, value in (body or {}).items() if value is not None}


def _raise_unless_ok(response: httpx.Response) -> Any:
    """Return the body of an answer; raise the error that it is, if it is one."""
    if response.is_success and not response.headers.get("content-type", "").endswith("ndjson"):
        return response.json()
    if response.is_success:
        return None
    try:
        error = response.json()["error"]
        raise CommandError(error["code"], error["message"], error["details"])
    except (ValueError, KeyError, TypeError):
        text = f"{response.url} answers {response.status_code}: is that the key-value store?"
        raise CommandError("bad_response", text) from None

"""Clients of the coordinator's HTTP API: `Client` blocks, `AsyncClient` is awaited.

Both know the URL of any node and find the rest by themselves. A call is tried until it is
answered, refused, or its deadline has passed:

* A 307 is followed to the master. Later writes go to the master directly.
* If a node cannot be reached, the client tries the other nodes that it knows. It learns their
  addresses from `GET /v1/members` after the first answer, and keeps them until it is closed.
* A read sees all earlier writes of the same client, whichever node answers, unless the call names
  a `consistency` or `at_least`.
* The client repeats a call after a transient error (`no_master`, `unavailable`, `timeout`, …), or
  if no node was reached, with exponential backoff and jitter. A repeated write has the same
  `Idempotency-Key`, so it takes effect at most once.

What is sent and what an answer means is decided once, by generators that do no I/O:
`_Api`'s methods are *plans* (they yield `Call`s and are sent bodies), `_Route.round` tries one
call once around the nodes (it yields requests and is sent what became of them). The two clients
only carry requests out.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
import unicodedata
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import tenacity
from httpx_sse import EventSource, SSEError

from coordinator.client.errors import CoordinatorError, UnavailableError, error_of
from coordinator.client.request_ids import new_request_id
from coordinator.client.scanning import LINES, Pages
from coordinator.client.watching import SILENCE_S, Receiving, StateWait, Watch, refusal_of

DEFAULT_URL = "http://127.0.0.1:8600"
DEADLINE_S = 30.0
CONNECT_TIMEOUT_S = 2.0
MEMBERS_TIMEOUT_S = 2.0
SHARE = 0.6
"""Of the deadline, for one node: more than the 15 s of 30 after which a node itself gives up."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 0.5
"""A new master is elected within seconds: a longer pause would only be added to that."""
LIMIT = "limit_s"
"""The extension of a request that carries its call's limit to the clock of the attempts."""

REDIRECTS_MAX = 5
CONNECTIONS_MAX = 256
SCAN_PAGE = 5_000

_TRANSIENT = frozenset(
    {
        *("not_master", "no_master", "unavailable", "overloaded", "timeout", "unreachable"),
        *("slice_unavailable", "index_rolling_back", "index_recovering", "not_ready"),
    }
)
_NO_MASTER = frozenset({"not_master", "no_master"})
_ELSEWHERE = _NO_MASTER | {"not_ready", "slice_unavailable"}
"""Another node may do better, at once."""

_STATUS_CODES = {404: "not_found", 502: "unavailable", 503: "unavailable", 504: "timeout"}

Body = dict[str, Any]
Consistency = Literal["local", "linearizable"]
ScanConsistency = Literal["any", "consistent", "last_good"] | Mapping[str, Any]
"""Of a scan; an object is `{"at_least": {"vbuckets": …}}` or `{"consistent": number}`, or both with
the number 0."""

Filter = str | int | Sequence[str] | Sequence[int] | None

R = TypeVar("R")


def default_urls() -> list[str]:
    """Return the URLs in `INDEXCTL_URL` (separated by commas), or the default one."""
    return (os.environ.get("INDEXCTL_URL") or DEFAULT_URL).split(",")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request of the API. `node` pins it to the node of that URL: no other, no retry.

    `reads`: it changes nothing, whatever its method, and any node answers it. `sees_own_writes`: it
    waits for what the client has written. `limit_s` is how long one node may take at most: less
    than its share of the deadline, where an answer takes no time.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    node: str | None = None
    reads: bool = False
    sees_own_writes: bool = False
    limit_s: float | None = None

    @property
    def writes(self) -> bool:
        return self.method != "GET" and not self.reads


MEMBERS = Call(method="GET", path="/v1/members", limit_s=MEMBERS_TIMEOUT_S)

Plan = Generator[Call, Body, Body]
Outcome = httpx.Response | httpx.TransportError
Asking = Generator[httpx.Request, Outcome, httpx.Response]
Round = Generator[httpx.Request, Outcome, Body]


class _Transient(Exception):
    """A round that may go better next time."""

    def __init__(self, error: CoordinatorError) -> None:
        super().__init__(error)
        self.error = error


class _Silent(Exception):
    """A node did not answer."""


class _Route:
    """The nodes that a client knows, and how one call goes around them."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._seeds = [_origin(url) for url in urls]
        self._learnt: list[str] = []
        self._has_learnt = False
        self._master: str | None = None
        self._last: str | None = None
        self._written_cas = 0
        self.has_answered = False

    def nodes(self, *, for_write: bool) -> list[str]:
        """Return the URLs to try, best first: the master for a write, else who answered last."""
        best = [self._master] if for_write else [self._last]
        candidates = [*best, self._last, *self._seeds, *self._learnt]
        return list(dict.fromkeys(url for url in candidates if url))

    def round(self, call: Call) -> Round:
        """Try `call` once around the nodes: yield requests, return the body of the answer.

        Raises `_Transient` when a later round may do better, `CoordinatorError` otherwise.
        """
        nodes = [_origin(call.node)] if call.node else self.nodes(for_write=call.writes)
        if call.sees_own_writes and self._written_cas:
            call = replace(call, query={**call.query, "at_least": self._written_cas})
        lost: CoordinatorError | None = None
        for node in nodes:
            try:
                answer = yield from self._ask(call, node)
                body = _body_of(answer, writes=call.writes)
            except _Silent:
                continue
            except _Transient as transient:
                lost = transient.error
                if lost.code in _NO_MASTER:
                    self._master = None
                if lost.code in _ELSEWHERE:
                    continue
                raise
            except CoordinatorError as error:
                if error.code == "not_found":
                    yield from self._expect_node(call, node, error)
                raise
            if call.writes:
                self._note_write(body.get("cas"))
            if not self._has_learnt and not call.node:
                yield from self._learn()
            return body
        where = ", ".join(nodes)
        nobody = error_of("unreachable", f"no coordinator answers at {where}", {"urls": nodes})
        raise _Transient(lost or nobody)

    def _ask(self, call: Call, node: str) -> Asking:
        """Return the answer of `node`, or of the master it points to; `_Silent` if there is none.

        A redirect is followed with the same headers and content, the request's id among them.
        """
        request = _request(call, node)
        for _ in range(REDIRECTS_MAX):
            outcome = yield request
            asked = _origin(str(request.url))
            if isinstance(outcome, httpx.TransportError):
                self._forget(asked)
                raise _Silent
            self.has_answered = True
            if outcome.status_code != 307 or "Location" not in outcome.headers:
                if not call.node:
                    self._remember(asked, writes=call.writes)
                return outcome
            target = request.url.join(outcome.headers["Location"])
            request = _request(call, _origin(str(target)), target)
        raise _Transient(error_of("no_master", f"from {node}, nodes redirect to one another"))

    def _expect_node(self, call: Call, node: str, error: CoordinatorError) -> Round:
        """Raise `error` as what is no node means it, if `node` is none: it knows no members."""
        if call.path != MEMBERS.path:
            outcome = yield _request(MEMBERS, node)
            if not isinstance(outcome, httpx.Response) or outcome.status_code != 404:
                return {}
        text = f"what answers at {node} is no node: {error.message}"
        raise error_of(error.code, text, error.details) from None

    def _note_write(self, cas: Any) -> None:
        if isinstance(cas, int):
            self._written_cas = max(self._written_cas, cas)

    def _remember(self, node: str, *, writes: bool) -> None:
        self._last = node
        if writes:
            self._master = node

    def _forget(self, node: str) -> None:
        self._last = None if self._last == node else self._last
        self._master = None if self._master == node else self._master

    def _learn(self) -> Round:
        """Ask for the members' addresses, once; a failure changes nothing."""
        assert self._last is not None
        outcome = yield _request(MEMBERS, self._last)
        if isinstance(outcome, httpx.Response) and outcome.status_code == 200:
            with suppress(CoordinatorError, _Transient):
                self.learn_from(_body_of(outcome))
        return {}

    def learn_from(self, members: Body) -> None:
        """Keep the addresses of a body of `GET /v1/members`."""
        listed = members.get("members")
        found = listed if isinstance(listed, list) else []
        addresses = [m.get("address") for m in found if isinstance(m, dict)]
        self._learnt = []
        for address in addresses:
            if isinstance(address, str):
                with suppress(CoordinatorError):
                    self._learnt.append(_origin(address))
        self._has_learnt = True


def _origin(url: str) -> str:
    """Return scheme, host and port of `url`; `host:port` means http."""
    url = url.strip()
    try:
        parsed = httpx.URL(url if "://" in url else f"http://{url}")
        parsed.host.encode("idna")  # Who connects does that, and fails in a way of its own.
    except (httpx.InvalidURL, UnicodeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CoordinatorError("invalid_request", f"not the URL of a node: {url!r}")
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def _header_of(principal: str) -> bytes:
    """Return a principal as a header has it. CoordinatorError `invalid_request`: none can."""
    if any(unicodedata.category(one) == "Cc" for one in principal):
        raise CoordinatorError("invalid_request", f"a principal is one line: {principal!r}")
    return principal.encode()


def _request(call: Call, node: str, target: httpx.URL | None = None) -> httpx.Request:
    """Return the request of `call` to `node`, or to the `target` that a node redirected to."""
    query = {name: value for name, value in call.query.items() if value is not None}
    try:
        return httpx.Request(
            call.method,
            target or node + call.path,
            params=None if target else query or None,
            headers={"Accept": "application/json", **call.headers},
            content=call.content,
            extensions={LIMIT: call.limit_s},
        )
    except httpx.InvalidURL as error:
        raise CoordinatorError("invalid_request", f"that is too long to ask for: {error}") from None


def _streaming_request(call: Call, node: str, accept: str, silence_s: float) -> httpx.Request:
    """Return a request whose answer is read as it comes; who says nothing for so long is gone."""
    request = _request(call, node)
    request.headers["Accept"] = accept
    limits = httpx.Timeout(CONNECT_TIMEOUT_S, read=silence_s)
    request.extensions = {"timeout": limits.as_dict()}
    return request


def _body_of(response: httpx.Response, *, writes: bool = False) -> Body:
    """Return the body of a success; raise what a refusal says, as `_Transient` where it is.

    What is no refusal of a write leaves open whether it was done: UnavailableError.
    """
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    error = _error_of(response, body)
    if error.code in _TRANSIENT:
        raise _Transient(error)
    status = response.status_code
    if writes and (response.is_success or status == 408 or status >= 500):
        raise UnavailableError(error.code, error.message, error.details)
    raise error


def _error_of(response: httpx.Response, body: Any) -> CoordinatorError:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        details = error.get("details")
        return error_of(
            error["code"],
            str(error.get("message") or error["code"]),
            details if isinstance(details, dict) else None,
        )
    code = _STATUS_CODES.get(response.status_code, "bad_response")
    what = f"{response.request.method} {response.request.url} answered {response.status_code}"
    return error_of(code, f"{what}, which is not an answer of the coordinator's API")


class _Attempts:
    """The clock of one call: how long it may still take, and when to try again."""

    def __init__(
        self,
        route: _Route,
        deadline_s: float,
        first_contact_s: float,
        headers: Mapping[bytes, bytes],
    ) -> None:
        """`headers` are those of every request."""
        self._route = route
        self._headers = headers
        self._deadline_s = deadline_s
        self._first_contact_s = first_contact_s
        self._start = time.monotonic()
        self._answered: CoordinatorError | None = None
        self.count = 0

    def policy(self, call: Call) -> dict[str, Any]:
        """Return tenacity's settings; a call that is pinned to a node is tried once."""
        self._answered = None
        return {
            "retry": tenacity.retry_if_exception_type(_Transient),
            "wait": tenacity.wait_random_exponential(BACKOFF_FIRST_S, BACKOFF_MAX_S)
            + tenacity.wait_fixed(BACKOFF_FIRST_S / 5),
            "stop": tenacity.stop_after_attempt(1) if call.node else self._stop,
            "reraise": True,
        }

    def _stop(self, state: tenacity.RetryCallState) -> bool:
        assert state.outcome is not None
        transient = state.outcome.exception()
        if isinstance(transient, _Transient) and transient.error.code != "unreachable":
            self._answered = transient.error
        limit = self._deadline_s if self._route.has_answered else self._first_contact_s
        return time.monotonic() - self._start + state.upcoming_sleep >= limit

    def timeout(self, limit_s: float | None = None) -> httpx.Timeout:
        """Return the limits of the next request: a hung node may not use up the deadline."""
        self.count += 1
        left_s = max(self._deadline_s - (time.monotonic() - self._start), 0.001)
        share_s = min(left_s, limit_s or self._deadline_s * SHARE)
        return httpx.Timeout(share_s, connect=min(share_s, CONNECT_TIMEOUT_S))

    def failure(self, transient: _Transient) -> CoordinatorError:
        """Return the last reason that a node gave, and after it for how long the call was tried.

        Silence at the end, when the deadline cuts a request short, does not hide a reason. Of a
        node that has answered before, `details` says so: `answered`.
        """
        error = self._answered or transient.error
        spent_s = time.monotonic() - self._start
        details = {**error.details, "requests": self.count, "seconds": round(spent_s, 3)}
        message = error.message
        if error.code == "unreachable" and self._route.has_answered:
            details["answered"] = True
            message = f"no answer from {', '.join(details['urls'])} in {spent_s:.1f} s"
        if self._answered:
            message += f" (tried for {spent_s:.1f} s)"
        return UnavailableError(error.code, message, details)

    def prepare(self, request: httpx.Request) -> httpx.Request:
        limit_s = request.extensions.pop(LIMIT, None)
        request.extensions["timeout"] = self.timeout(limit_s).as_dict()
        request.headers.update(self._headers)
        request.headers.encoding = "utf-8"  # What reads them as ASCII fails after the answer.
        return request


class _Api(Generic[R]):
    """The calls. `R` is a body, or an awaitable of one. Bodies are those of docs/http-api.md.

    Each call that writes takes a `request_id` (a UUIDv7; a new one if None): a repeat under the
    same id gets the first outcome. `expected_cas` makes it conditional; 0 means "must not exist".

    Each call raises CoordinatorError: a refusal, with its code; UnavailableError, if there is no
    outcome by the deadline: a write may then have taken effect or not.

    Large because it has one method for each call of the HTTP API.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        first_contact_s: float | None = None,
        principal: str | None = None,
    ) -> None:
        """`url`: the URL of any node, or several (a list, or a text with commas); by default those
        in INDEXCTL_URL, else http://127.0.0.1:8600. `deadline_s`: seconds for each call, its
        repeats included. `first_contact_s`: the deadline of calls until a node has answered.

        `principal`: in whose name changes are made, at most 256 characters. The history shows it;
        nobody verifies it. Raises CoordinatorError `invalid_request`: no header can hold it.
        """
        urls = default_urls() if url is None else url.split(",") if isinstance(url, str) else url
        self._route = _Route(urls)
        self._deadline_s = deadline_s
        self._first_contact_s = deadline_s if first_contact_s is None else first_contact_s
        self._settings: dict[str, Any] = {
            # Nodes are addressed directly: a proxy of the environment is for other traffic.
            "trust_env": False,
            "limits": httpx.Limits(
                max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX
            ),
        }
        self._headers = {b"X-Principal": _header_of(principal)} if principal else {}
        if not any(node.startswith("https:") for node in self._route.nodes(for_write=False)):
            # Loading the trusted certificates takes longer than most calls.
            self._settings["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._open()

    def _open(self) -> None:
        """Make the HTTP client of `_settings`."""
        raise NotImplementedError

    def _attempts(self) -> _Attempts:
        return _Attempts(self._route, self._deadline_s, self._first_contact_s, self._headers)

    def _run(self, plan: Plan) -> R:
        raise NotImplementedError

    def create_index(self, definition: Mapping[str, Any], request_id: str | None = None) -> R:
        """Create an index; `definition` is the body of `POST /v1/indexes`.

        Answers `{"index", "cas", "txn"}`, with `"existed": true` if `if_not_exists` found one.
        """
        return self._run(_plan_write("POST", "/v1/indexes", dict(definition), None, request_id))

    def drop_index(
        self,
        index_id: str | int | None = None,
        *,
        bucket: str | None = None,
        name: str | None = None,
        expected_cas: int | None = None,
        request_id: str | None = None,
    ) -> R:
        """Drop the index with this id, or this bucket and name; answer `{"index", "cas", "txn"}`.

        By name, the client looks the id up first, then drops that id: an index that gets the name
        in between is not dropped.
        """
        if (index_id is None) == (bucket is None or name is None):
            raise ValueError("drop_index takes an id, or a bucket and a name")
        return self._run(_plan_drop(index_id, bucket, name, expected_cas, request_id))

    def alter_index(
        self,
        index_id: str | int | None = None,
        changes: Mapping[str, Any] | None = None,
        *,
        bucket: str | None = None,
        name: str | None = None,
        dry_run: bool = False,
        expected_cas: int | None = None,
        request_id: str | None = None,
    ) -> R:
        """Change the index with this id, or this bucket and name; answer `{"index", "cas", "txn"}`.

        `changes` is the body of `PATCH /v1/indexes/{id}`: only the fields that are to change. If
        the answer has another id, a second index was built and has replaced the first. With
        `dry_run` nothing is changed, and the answer has `"change"`: `none`, `in_place` or
        `rebuild`.
        """
        if (index_id is None) == (bucket is None or name is None):
            raise ValueError("alter_index takes an id, or a bucket and a name")
        asked = _Alter({**(changes or {})}, dry_run, expected_cas, request_id)
        return self._run(_plan_alter(index_id, bucket, name, asked))

    def build_indexes(
        self,
        *,
        ids: Sequence[str | int] = (),
        bucket: str = "",
        names: Sequence[str] = (),
        request_id: str | None = None,
    ) -> R:
        """Order the build of indexes: those with these `ids`, or those of `bucket` with these
        `names`; with a bucket alone, all its deferred ones. Answer `{"indexes", "cas", "txn"}`.

        The answer comes when the order is committed. `get_index` shows the progress; `wait_until`
        waits for the end.
        """
        body = {"indexes": [str(index_id) for index_id in ids], "bucket": bucket, "names": [*names]}
        return self._run(_plan_write("POST", "/v1/indexes/build", body, None, request_id))

    def transact(
        self,
        compare: Sequence[Mapping[str, Any]] = (),
        then: Sequence[Mapping[str, Any]] = (),
        otherwise: Sequence[Mapping[str, Any]] = (),
        request_id: str | None = None,
    ) -> R:
        """Execute all operations of `then` if all comparisons hold, else all of `otherwise`.

        The operations are one transaction: all take effect, or none. A comparison is
        `{"key", "cas"}` or `{"bucket", "name", "cas"}`; CAS 0 means that the entity does not exist.
        An operation is `{"put": {"key": "config/…", "value"}}`, `{"delete": {"key"}}`,
        `{"create_index": …}` as for `create_index`, `{"alter_index": {"id", "changes"}}` of what is
        changed in place, or `{"drop_index": {"id"}}`.
        Answers `{"succeeded", "compared", "results": [{"key", "cas"}], "cas", "txn"}`.
        """
        body = {"compare": [*compare], "then": [*then], "else": [*otherwise]}
        return self._run(_plan_write("POST", "/v1/txn", body, None, request_id))

    def undo(
        self,
        to: int,
        only: Sequence[str] = (),
        *,
        dry_run: bool = False,
        expected_cas: int | None = None,
        in_steps: bool = False,
        request_id: str | None = None,
    ) -> R:
        """Take the state back to CAS `to`; with `only`, just the entities under these keys.

        `dry_run` changes nothing and answers what would change. Give the `cas` of that answer as
        `expected_cas`: the undo is then refused (`cas_mismatch`) if it would change anything else.
        `in_steps` allows several transactions, if the changes exceed one. Answers `{"dry_run",
        "to", "changes", "kept", "cas"}`, and `"undo"` and `"txns"` if it was done.
        """
        body = {
            "to": to,
            "only": [*only],
            "dry_run": dry_run,
            "expected_cas": expected_cas,
            "in_steps": in_steps,
        }
        return self._run(_plan_write("POST", "/v1/undo", body, None, request_id))

    def list_indexes(
        self,
        bucket: str | None = None,
        name: str | None = None,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"indexes", "cas"}`: all indexes, or those of a bucket, or of a name."""
        query = {"bucket": bucket, "name": name}
        return self._run(_plan_read("/v1/indexes", query, consistency, at_least))

    def get_index(
        self,
        index_id: str | int,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"index", "cas"}`."""
        return self._run(_plan_read(_index_path(index_id), {}, consistency, at_least))

    def state(
        self,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
        node: str | None = None,
        cas: int | None = None,
        at_ms: int | None = None,
    ) -> R:
        """Answer the whole state, with CAS and digest. `node`: the URL of the node to ask.

        With `cas` or `at_ms` (ms since 1970): the state after the last transaction at or before
        that CAS or time.
        """
        query = {"cas": cas, "at_ms": at_ms}
        return self._run(_plan_read("/v1/state", query, consistency, at_least, node))

    def history(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        consistency: Consistency | None = None,
        at_least: int | None = None,
        **filters: Filter,
    ) -> R:
        """Answer `{"events", "next", "cas"}`: at most `limit` changes above CAS `after`.

        The oldest is first. `cas` is that of the newest change that the node knows.

        For the next page, call again with `after` set to `next`, until that is None; a page may be
        empty. `filters` are `kind`, `bucket`, `index`, `indexer`, `state`, `key`, `principal`,
        `request` and `txn`, each one value or a list of which one must match, and `from_ms` and
        `to_ms`.
        """
        query = {"after": after, "until": until, "limit": limit, **filters}
        return self._run(_plan_read("/v1/history", query, consistency, at_least))

    def diff(
        self,
        before: int,
        after: int | None = None,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"from", "to", "changes"}`: how the states at two CAS differ, by key.

        `after` is the newest CAS by default. Each change is `{"key", "kind", "before", "after"}`.
        An entity that is the same again at `after` is left out.
        """
        query = {"from": before, "to": after}
        return self._run(_plan_read("/v1/diff", query, consistency, at_least))

    def topology(self, *, consistency: Consistency | None = None, at_least: int | None = None) -> R:
        """Answer `{"cas", "indexes"}`: where the slices of each index are."""
        return self._run(_plan_read("/v1/topology", {}, consistency, at_least))

    def transactions(self, limit: int | None = None) -> R:
        """Answer `{"transactions"}`, newest first."""
        return self._run(_plan_read("/v1/transactions", {"limit": limit}))

    @property
    def nodes(self) -> list[str]:
        """The URLs of the nodes that the client knows, the one that answered last before others."""
        return self._route.nodes(for_write=False)

    def members(self, *, node: str | None = None) -> R:
        """Answer `{"node", "epoch", "master", "members"}`; the client remembers the addresses.

        The answer is what one node knows (the one at URL `node`, if given). After a failover
        another node may know more.
        """
        if node is not None:
            return self._run(_plan_read("/v1/members", node=node))
        return self._run(_plan_members(self._route))

    def step_down(
        self, successor: int | None = None, *, epoch: int | None = None, reason: str = ""
    ) -> R:
        """Have the master hand over, to node `successor` if given; answer the new master.

        `epoch` names the mastership that is to end, by default the current one. So a repeat of the
        request does not depose the successor.
        """
        return self._run(_plan_step_down(self._route, successor, epoch, reason))

    def leave(self, node: int) -> R:
        """Have a replica leave the cluster; answer `{"roster", "active", "minimum"}`."""
        return self._run(_plan_post(f"/v1/members/{int(node)}/leave", {}))

    def reform(
        self,
        minimum: int,
        forget: Sequence[int] = (),
        *,
        reason: str = "",
        node: str | None = None,
    ) -> R:
        """Lower the minimum of copies, and remove the nodes `forget` from the roster; answer
        `{"roster", "active", "minimum"}`.

        If there is no master, the node at URL `node` claims the mastership; by default the live
        node with the highest CAS.
        """
        body = {"minimum": minimum, "forget": list(forget), "reason": reason}
        return self._run(_plan_reform(self._route, body, node))

    def projectors(self) -> R:
        """Answer `{"projectors"}`, with liveness."""
        return self._run(_plan_read("/v1/projectors"))

    def indexers(self) -> R:
        """Answer `{"indexers"}`, with load and liveness."""
        return self._run(_plan_read("/v1/indexers"))

    def remove_indexer(self, indexer: int, request_id: str | None = None) -> R:
        """Remove an indexer that is stopped and holds nothing; answer `{"kind", "id"}`.

        Raises CoordinatorError `indexer_not_found`, `indexer_alive`, `indexer_in_use`.
        """
        path = f"/v1/indexers/{indexer}"
        return self._run(_plan_write("DELETE", path, _NOTHING, None, request_id))

    def remove_projector(self, projector: int, request_id: str | None = None) -> R:
        """Remove a projector that is stopped; answer `{"kind", "id"}`.

        Raises CoordinatorError `projector_not_found`, `projector_alive`.
        """
        path = f"/v1/projectors/{projector}"
        return self._run(_plan_write("DELETE", path, _NOTHING, None, request_id))

    def rebalance(
        self,
        *,
        drain: Sequence[int] = (),
        max_moves: int | None = None,
        moves: Sequence[Mapping[str, Any]] | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> R:
        """Move copies of slices between indexers, so that all bear the same load.

        `drain`: indexers that are emptied. `max_moves`: at most so many. `moves`, instead of a
        plan: `{"index", "slice", "from", "to"}` each. `dry_run` only answers what would move.
        Answers `{"rebalance", "impossible", "cas", "txn"}`. Raises CoordinatorError
        `rebalance_running`, `rebalance_outdated`, `indexer_away`.
        """
        body: dict[str, Any] = {"drain": [*drain], "dry_run": dry_run}
        body |= {} if max_moves is None else {"max_moves": max_moves}
        body |= {} if moves is None else {"moves": [dict(move) for move in moves]}
        return self._run(_plan_write("POST", "/v1/rebalance", body, None, request_id))

    def cancel_rebalance(self, rebalance_id: str | int, request_id: str | None = None) -> R:
        """Cancel a rebalance: what does not serve at its target yet changes nothing.

        Answers `{"rebalance", "cas", "txn"}`. Raises CoordinatorError `rebalance_not_found`.
        """
        path = f"/v1/rebalance/{_segment(str(rebalance_id))}"
        return self._run(_plan_write("DELETE", path, _NOTHING, None, request_id))

    def list_rebalances(
        self,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
        node: str | None = None,
    ) -> R:
        """Answer `{"rebalances", "cas"}`: the last ones, newest first, with their moves."""
        return self._run(_plan_read("/v1/rebalance", {}, consistency, at_least, node))

    def list_rollbacks(
        self,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
        node: str | None = None,
    ) -> R:
        """Answer `{"rollbacks", "cas"}`: how buckets go back to what the store still has.

        There is the last rollback of each bucket that had one, newest first. `ended_ms` is None
        while it goes on. `indexers` says how far each indexer is, and is None unless the master
        answers: ask with `consistency="linearizable"`, or with the master's URL as `node`.
        """
        return self._run(_plan_read("/v1/rollbacks", {}, consistency, at_least, node))

    def stability(self, bucket: str | None = None, *, node: str | None = None) -> R:
        """Answer the newest stability timestamp of `bucket`, or those of all buckets.

        Of one bucket: `{"bucket", "number", "at_ms", "age_ms", "digest", "vbuckets": {"0":
        [vbuuid, seqno]}}`, vbuuid and seqno as decimal strings. Raises CoordinatorError
        `no_stability_timestamp` if there is none. Of all: `{"node", "buckets"}`, without vectors.
        `node`: the URL of the node to ask; only the master knows the lags.
        """
        path = "/v1/stability" if bucket is None else f"/v1/stability/{_segment(bucket)}"
        return self._run(_plan_read(path, node=node))

    def stability_history(
        self,
        bucket: str,
        *,
        before: int | None = None,
        limit: int | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> R:
        """Answer `{"bucket", "timestamps", "next"}`: the stability timestamps that the bucket had
        between `from_ms` and `to_ms`, newest first.

        Each is `{"bucket", "number", "at_ms", "hash", "seqnos"}`. For the next page, call again
        with `before` set to `next`, until that is None; a page may be empty.
        """
        path = f"/v1/stability/{quote(bucket, safe='')}/history"
        query = {"before": before, "limit": limit, "from_ms": from_ms, "to_ms": to_ms}
        return self._run(_plan_read(path, query))

    def restart(self, bucket: str, limit: int | None = None) -> R:
        """Answer `{"bucket", "restarts", "enquiries"}`: a bucket's last restart timestamps and
        rollback enquiries, at most `limit` of each, newest first."""
        path = f"/v1/restart/{_segment(bucket)}"
        return self._run(_plan_read(path, {"limit": limit}))

    def scan(
        self,
        index_id: str | int | None = None,
        *,
        bucket: str | None = None,
        name: str | None = None,
        scan: Mapping[str, Any] | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
        count: bool = False,
        consistency: ScanConsistency | None = None,
        timeout_ms: int | None = None,
        after: str | None = None,
    ) -> R:
        """Scan the index with this id, or this bucket and name; answer one page of it.

        `scan` and the rest are the body of `POST /v1/scan`. Answers `{"index", "rows", "next",
        "consistency", "cas"}`. For the next page, give `next` as `after`; it is None on the last
        page. With `count`, the answer has `count` instead of `rows` and `next`.
        """
        asked = {
            "bucket": bucket,
            "name": name,
            "scan": None if scan is None else dict(scan),
            "limit": limit,
            "order": order,
            "count": count or None,
            "consistency": consistency,
            "timeout_ms": timeout_ms,
            "after": after,
        }
        return self._run(_plan_scan(_scan_body(index_id, asked)))

    def list_config(
        self, *, consistency: Consistency | None = None, at_least: int | None = None
    ) -> R:
        """Answer `{"config": {key: {"value", "cas"}}, "cas"}`."""
        return self._run(_plan_read("/v1/config", {}, consistency, at_least))

    def get_config(
        self,
        key: str,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"key", "value", "cas", "txn"}`."""
        return self._run(_plan_read(_config_path(key), {}, consistency, at_least))

    def put_config(
        self,
        key: str,
        value: Any,
        expected_cas: int | None = None,
        request_id: str | None = None,
    ) -> R:
        """Set `key` to any JSON value; answer `{"key", "value", "cas", "txn"}`."""
        path = _config_path(key)
        return self._run(_plan_write("PUT", path, value, expected_cas, request_id))

    def delete_config(
        self, key: str, expected_cas: int | None = None, request_id: str | None = None
    ) -> R:
        """Delete `key`; answer its CAS and transaction."""
        path = _config_path(key)
        return self._run(_plan_write("DELETE", path, _NOTHING, expected_cas, request_id))

    def add_bucket(
        self,
        name: str,
        *,
        topic: str,
        format: str = "json",
        registry: str | None = None,
        request_id: str | None = None,
    ) -> R:
        """Add a bucket whose documents are the records of a Kafka topic.

        `format` is `json`, `avro`, `debezium-json` or `debezium-avro`; `registry` is the URL of the
        schema registry, for Avro. Answers `{"bucket", "cas", "txn"}`. Raises CoordinatorError
        `bucket_exists`, `kafka_topic_not_found` and `kafka_topic_unfit`.
        """
        source = {"topic": topic, "format": format, "registry": registry}
        body = {"name": name, "source": source}
        return self._run(_plan_write("POST", "/v1/buckets", body, None, request_id))

    def buckets(self, *, consistency: Consistency | None = None, at_least: int | None = None) -> R:
        """Answer `{"buckets", "cas"}`; of a topic each tells what its `projectors` say."""
        return self._run(_plan_read("/v1/buckets", {}, consistency, at_least))

    def bucket(
        self,
        name: str,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"bucket", "cas"}`. Raises CoordinatorError `bucket_not_found`."""
        return self._run(_plan_read(_bucket_path(name), {}, consistency, at_least))

    def remove_bucket(
        self, name: str, expected_cas: int | None = None, request_id: str | None = None
    ) -> R:
        """Remove a bucket of a topic; answer `{"bucket", "cas", "txn"}`.

        Raises CoordinatorError `bucket_in_use` if it has indexes.
        """
        path = _bucket_path(name)
        return self._run(_plan_write("DELETE", path, _NOTHING, expected_cas, request_id))

    def add_topic(self, name: str, request_id: str | None = None, **filters: Filter) -> R:
        """Add a topic: a named selection of the changes that match the filters of `history`.

        Answers `{"topic", "cas", "txn"}`. Raises CoordinatorError `topic_exists`.
        """
        body = {"name": name, "filter": _filters(filters)}
        return self._run(_plan_write("POST", "/v1/topics", body, None, request_id))

    def topics(self, *, consistency: Consistency | None = None, at_least: int | None = None) -> R:
        """Answer `{"topics", "cas"}`; each topic has its number of `subscriptions`."""
        return self._run(_plan_read("/v1/topics", {}, consistency, at_least))

    def remove_topic(
        self,
        name: str,
        *,
        with_subscriptions: bool = False,
        expected_cas: int | None = None,
        request_id: str | None = None,
    ) -> R:
        """Remove a topic. Raises CoordinatorError `topic_in_use` if it has subscriptions, unless
        `with_subscriptions` removes them, too."""
        path = f"/v1/topics/{_segment(name)}"
        query = {"with_subscriptions": with_subscriptions or None}
        return self._run(
            _plan_write("DELETE", path, _NOTHING, expected_cas, request_id, query=query)
        )

    def subscribe(
        self,
        topic: str,
        subscriber: str,
        *,
        after: int | None = None,
        deliver_to: str | None = None,
        expires_after_ms: int | None = None,
        request_id: str | None = None,
        **filters: Filter,
    ) -> R:
        """Subscribe to a topic, under an id that no other subscriber of the topic has.

        The subscription brings the changes above CAS `after` (by default, those from now on) that
        match the topic's filters and these. `deliver_to` is the Kafka topic to which they are
        written, each exactly once; without it, `receive` yields them. The subscription expires if
        the subscriber neither receives nor acknowledges for `expires_after_ms`. Answers
        `{"subscription", "cas", "txn"}`. Raises CoordinatorError `subscriber_exists`.
        """
        body = {
            "id": subscriber,
            "filter": _filters(filters),
            "after": after,
            "deliver_to": deliver_to,
            "expires_after_ms": expires_after_ms,
        }
        path = f"/v1/topics/{_segment(topic)}/subscriptions"
        return self._run(_plan_write("POST", path, body, None, request_id))

    def unsubscribe(
        self,
        topic: str,
        subscriber: str,
        *,
        expected_cas: int | None = None,
        request_id: str | None = None,
    ) -> R:
        """End a subscription: no change above the CAS of the answer is delivered."""
        path = _subscription_path(topic, subscriber)
        return self._run(_plan_write("DELETE", path, _NOTHING, expected_cas, request_id))

    def subscriptions(
        self,
        topic: str,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"subscriptions", "cas"}`: each with its position (`acknowledged`) and `lag`."""
        path = f"/v1/topics/{_segment(topic)}/subscriptions"
        return self._run(_plan_read(path, {}, consistency, at_least))

    def subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        consistency: Consistency | None = None,
        at_least: int | None = None,
    ) -> R:
        """Answer `{"subscription", "cas"}`."""
        path = _subscription_path(topic, subscriber)
        return self._run(_plan_read(path, {}, consistency, at_least))

    def acknowledge(self, topic: str, subscriber: str, cas: int) -> R:
        """Acknowledge all changes up to a CAS; answer the position, `{"acknowledged"}`, which never
        goes back."""
        return self._run(
            _plan_post(f"{_subscription_path(topic, subscriber)}/ack", {"cas": cas}, reads=True)
        )

    def _stream_request(self, pages: Pages) -> httpx.Request:
        node = self._route.nodes(for_write=False)[0]
        call = _scan_call(pages.begin_stream())
        return _streaming_request(call, node, LINES, pages.read_timeout_s)

    def _watch_request(self, node: str, watch: Watch) -> httpx.Request:
        call = Call(method="GET", path=watch.path, query=watch.query)
        return _streaming_request(call, node, "text/event-stream", SILENCE_S)

    def ready(self, node: str | None = None) -> R:
        """Answer `{"ready": bool, "reason"}` of `node`, or of the node that answered last, without
        a retry."""
        return self._run(_plan_ready(node or self._route.nodes(for_write=False)[0]))


_NOTHING = object()
_FRESH = (
    *("/v1/state", "/v1/indexes", "/v1/config", "/v1/topology", "/v1/history"),
    *("/v1/diff", "/v1/topics", "/v1/rollbacks", "/v1/buckets"),
)
"""What `at_least` is for."""


def _index_path(index_id: str | int) -> str:
    return f"/v1/indexes/{_segment(str(index_id))}"


def _bucket_path(name: str) -> str:
    return f"/v1/buckets/{_segment(name)}"


def _config_path(key: str) -> str:
    return f"/v1/config/{_segment(key)}"


def _subscription_path(topic: str, subscriber: str) -> str:
    return f"/v1/topics/{_segment(topic)}/subscriptions/{_segment(subscriber)}"


def _filters(given: Mapping[str, Filter]) -> dict[str, Any]:
    """Return filters as JSON can have them."""
    return {
        name: value if isinstance(value, str | int) else [*value]
        for name, value in given.items()
        if value is not None
    }


def _segment(text: str) -> str:
    """Return a part of a path that means `text`: `.` and `..` by themselves mean other paths."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def _plan_read(
    path: str,
    query: Mapping[str, Any] | None = None,
    consistency: Consistency | None = None,
    at_least: int | None = None,
    node: str | None = None,
) -> Plan:
    barrier = {"consistency": consistency, "at_least": at_least}
    return (
        yield Call(
            method="GET",
            path=path,
            query={**(query or {}), **barrier},
            node=node,
            sees_own_writes=consistency is None and at_least is None and path.startswith(_FRESH),
        )
    )


def _plan_write(
    method: str,
    path: str,
    value: Any,
    expected_cas: int | None,
    request_id: str | None,
    query: Mapping[str, Any] | None = None,
) -> Plan:
    headers = {"Idempotency-Key": request_id or new_request_id()}
    if expected_cas is not None:
        headers["If-Match"] = str(expected_cas)
    content = None
    if value is not _NOTHING:
        headers["Content-Type"] = "application/json"
        content = json.dumps(value, allow_nan=False).encode()
    call = Call(method=method, path=path, query=query or {}, headers=headers, content=content)
    return (yield call)


class _Alter(NamedTuple):
    """How an index is to be altered."""

    changes: Body
    dry_run: bool
    expected_cas: int | None
    request_id: str | None


def _plan_alter(
    index_id: str | int | None, bucket: str | None, name: str | None, asked: _Alter
) -> Plan:
    if index_id is None:
        index_id = yield from _plan_find(bucket, name)
    query = {"dry_run": "true"} if asked.dry_run else {}
    terms = (asked.expected_cas, asked.request_id, query)
    return (yield from _plan_write("PATCH", _index_path(index_id), asked.changes, *terms))


def _plan_find(bucket: str | None, name: str | None) -> Generator[Call, Body, str]:
    """Return the id of the index that has a name."""
    query = {"bucket": bucket, "name": name}
    found = yield from _plan_read("/v1/indexes", query, "linearizable")
    if not found["indexes"]:
        raise error_of("index_not_found", f"there is no index {name} on {bucket}", query)
    # One that is being dropped has given its name back; another one may have it by now.
    order = sorted(found["indexes"], key=lambda index: index.get("state") == "dropping")
    index_id: str = order[0]["id"]
    return index_id


def _plan_drop(
    index_id: str | int | None,
    bucket: str | None,
    name: str | None,
    expected_cas: int | None,
    request_id: str | None,
) -> Plan:
    if index_id is None:
        index_id = yield from _plan_find(bucket, name)
    path = _index_path(index_id)
    return (yield from _plan_write("DELETE", path, _NOTHING, expected_cas, request_id))


def _plan_members(route: _Route) -> Plan:
    body = yield MEMBERS
    route.learn_from(body)
    return body


def _plan_post(
    path: str, body: Mapping[str, Any], node: str | None = None, *, reads: bool = False
) -> Plan:
    content = json.dumps(body, allow_nan=False).encode()
    headers = {"Content-Type": "application/json"}
    return (
        yield Call(
            method="POST", path=path, headers=headers, content=content, node=node, reads=reads
        )
    )


def _scan_body(index_id: str | int | None, asked: Mapping[str, Any]) -> Body:
    body = {"index": None if index_id is None else str(index_id), **asked}
    return {name: value for name, value in body.items() if value is not None}


def _scan_call(content: bytes) -> Call:
    headers = {"Content-Type": "application/json"}
    return Call(method="POST", path="/v1/scan", headers=headers, content=content, reads=True)


def _plan_scan(body: Mapping[str, Any]) -> Plan:
    return (yield _scan_call(json.dumps(body, allow_nan=False).encode()))


def _plan_step_down(route: _Route, successor: int | None, epoch: int | None, reason: str) -> Plan:
    if epoch is None:
        members = yield from _plan_members(route)
        epoch = members["epoch"]
    body = {"successor": successor, "epoch": epoch, "reason": reason}
    return (yield from _plan_post("/v1/members/step-down", body))


def _plan_reform(route: _Route, body: Mapping[str, Any], node: str | None) -> Plan:
    if node is None:
        members = yield from _plan_members(route)
        if members["mastership"]["state"] != "elected":
            alive = [m for m in members["members"] if m["alive"] and m["address"]]
            node = max(alive, key=lambda m: m["cas"])["address"] if alive else None
    return (yield from _plan_post("/v1/members/reform", body, node))


def _plan_ready(node: str) -> Plan:
    try:
        body = yield Call(method="GET", path="/readyz", node=node)
    except CoordinatorError as error:
        return {"ready": False, "reason": error.message, "url": node}
    return {"ready": True, "reason": "", "url": node, **body}


def _returned(done: StopIteration) -> Body:
    """Return what a plan or a round returned."""
    body: Body = done.value
    return body


class Client(_Api[Body]):
    """The blocking client. Use it in a `with`, or `close` it; threads may share it."""

    def _open(self) -> None:
        self._http = httpx.Client(**self._settings)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scan_all(
        self, index_id: str | int | None = None, *, limit: int = SCAN_PAGE, **asked: Any
    ) -> Iterator[Body]:
        """Yield all rows of a scan. Takes what `scan` takes, but `count`.

        The first page, of `limit` rows, is an ordinary scan. The others come as a stream: the node
        reads on meanwhile. Where a stream breaks, the scan goes on behind the last row.
        """
        pages = Pages(_scan_body(index_id, {**asked, "limit": limit}))
        while not pages.has_ended:
            yield from pages.take(self._run(_plan_scan(pages.body)))
            if not pages.has_ended:
                with closing(self._streamed(pages)) as streamed:
                    for rows in streamed:
                        yield from rows

    def _streamed(self, pages: Pages) -> Generator[list[Body], None, None]:
        """Yield the rows of the pages that a stream brings, as long as it does."""
        request = self._stream_request(pages)
        with suppress(httpx.TransportError), closing(self._http.send(request, stream=True)) as got:
            if got.headers.get("content-type") == LINES:
                for chunk in got.iter_bytes():
                    yield from pages.receive(chunk)
                    if pages.has_broken:
                        return

    def history_all(self, *, after: int = 0, **asked: Any) -> Iterator[Body]:
        """Yield the changes of all pages, oldest first. Takes what `history` takes."""
        following: int | None = after
        while following is not None:
            page = self.history(after=following, **asked)
            yield from page["events"]
            following = page["next"]

    def wait_until(
        self, index_id: str | int, state: str = "maintenance", *, timeout_s: float | None = None
    ) -> Body:
        """Wait until an index has this state; answer `{"index", "cas"}`.

        It follows every change, so it does not miss a state that lasts only briefly. Raises
        CoordinatorError: `index_failed`, if the index comes to the state `error` instead;
        `index_not_found`, if it was dropped; `timeout`, some seconds after `timeout_s`, or, while
        no node answers, up to the deadline of one call after it. Without `timeout_s` it has no
        limit.
        """
        waiting = StateWait(index_id, state, timeout_s)
        found = self.get_index(index_id, consistency="linearizable")
        answer = waiting.check(found["index"], found["cas"])
        if answer is not None:
            return answer
        with closing(self._follow(Watch(found["cas"], waiting.filters))) as events:
            for event in events:
                answer = waiting.receive(event)
                if answer is not None:
                    return answer
        raise AssertionError("a watch has no end")

    def watch(self, after: int | str = "now", **filters: Filter) -> Generator[Body, None, None]:
        """Yield changes as they happen, for ever, in order of CAS: each once, without a gap.

        `after` is `now`, `snapshot` or a CAS. Each event is `{"type", …}`. The types: `change`;
        with `after="snapshot"` first a `snapshot` for each entity that exists, then `snapshot_end`
        (if a `snapshot_restart` comes before that, discard the entities so far); `bookmark`, with
        the CAS up to which all changes were sent. `filters` are those of `history`; `kind` may
        also be `stability` or `members`. If a node dies, the watch resumes at another one. Raises
        CoordinatorError: a refusal; `compacted`; `unreachable`, if no node answers at the
        beginning.
        """
        with closing(self._follow(Watch(after, filters))) as events:
            for event in events:
                if event is not None:
                    yield event

    def receive(
        self, topic: str, subscriber: str, *, acknowledge: bool = True
    ) -> Generator[Body, None, None]:
        """Yield the changes of a subscription as they happen, above what was acknowledged.

        Yields the events of `watch`. When the subscription ends, the last event is `unsubscribed`
        or `expired`, with the CAS above which nothing is delivered. A change is acknowledged some
        time after the caller has asked for the next one. So delivery is at least once: after a
        crash a change may come again, under the same CAS. Raises CoordinatorError
        `subscription_not_found` or `subscription_expired`, if it had ended before.
        """
        receiving = Receiving(_subscription_path(topic, subscriber), acknowledge)
        with closing(self._follow(receiving.watch)) as events:
            try:
                for event in events:
                    if event is not None:
                        yield event
                        if (due := receiving.handled(event)) is not None:
                            with suppress(CoordinatorError):
                                self.acknowledge(topic, subscriber, due)
                                receiving.acknowledged(due)
                        if receiving.has_ended:
                            return
            finally:
                if (due := receiving.unacknowledged()) is not None:
                    with suppress(CoordinatorError):
                        self.acknowledge(topic, subscriber, due)
                        receiving.acknowledged(due)

    def _follow(self, watch: Watch) -> Generator[Body | None, None, None]:
        """Yield what is to be told, and None each time that the watch was cut off."""
        turn = 0
        while True:
            nodes = self._route.nodes(for_write=False)
            request = self._watch_request(nodes[turn % len(nodes)], watch)
            try:
                with closing(self._http.send(request, stream=True)) as response:
                    if response.status_code == 200:
                        if again := watch.begin():
                            yield again
                        for event in EventSource(response).iter_sse():
                            received = watch.receive(event)
                            if received is not None:
                                yield received
                    elif error := refusal_of(response.status_code, response.read()):
                        raise error
            except (httpx.TransportError, SSEError):
                pass
            yield None
            turn += 1
            try:
                self._run(_plan_members(self._route))
            except CoordinatorError:
                if not watch.has_received:
                    raise
            time.sleep(watch.pause_s())

    def _run(self, plan: Plan) -> Body:
        attempts = self._attempts()
        try:
            call = next(plan)
            while True:
                try:
                    body = tenacity.Retrying(**attempts.policy(call))(self._round, attempts, call)
                except _Transient as transient:
                    call = plan.throw(attempts.failure(transient))
                except CoordinatorError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(body)
        except StopIteration as done:
            return _returned(done)

    def _round(self, attempts: _Attempts, call: Call) -> Body:
        steps = self._route.round(call)
        try:
            request = next(steps)
            while True:
                request = steps.send(self._outcome(attempts.prepare(request)))
        except StopIteration as done:
            return _returned(done)

    def _outcome(self, request: httpx.Request) -> Outcome:
        try:
            return self._http.send(request)
        except httpx.TransportError as error:
            return error


class AsyncClient(_Api[Awaitable[Body]]):
    """The client for asyncio. Use it in an `async with`, or `aclose` it."""

    def _open(self) -> None:
        self._http = httpx.AsyncClient(**self._settings)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def scan_all(
        self, index_id: str | int | None = None, *, limit: int = SCAN_PAGE, **asked: Any
    ) -> AsyncIterator[Body]:
        """Yield the rows of all pages of a scan: see `Client.scan_all`."""
        pages = Pages(_scan_body(index_id, {**asked, "limit": limit}))
        while not pages.has_ended:
            for row in pages.take(await self._run(_plan_scan(pages.body))):
                yield row
            if not pages.has_ended:
                async with aclosing(self._streamed(pages)) as streamed:
                    async for rows in streamed:
                        for row in rows:
                            yield row

    async def _streamed(self, pages: Pages) -> AsyncGenerator[list[Body], None]:
        """Yield the rows of the pages that a stream brings, as long as it does."""
        request = self._stream_request(pages)
        with suppress(httpx.TransportError):
            got = await self._http.send(request, stream=True)
            async with aclosing(got):
                if got.headers.get("content-type") == LINES:
                    async for chunk in got.aiter_bytes():
                        for rows in pages.receive(chunk):
                            yield rows
                        if pages.has_broken:
                            return

    async def history_all(self, *, after: int = 0, **asked: Any) -> AsyncIterator[Body]:
        """Yield the changes of all pages, oldest first. Takes what `history` takes."""
        following: int | None = after
        while following is not None:
            page = await self.history(after=following, **asked)
            for event in page["events"]:
                yield event
            following = page["next"]

    async def wait_until(
        self, index_id: str | int, state: str = "maintenance", *, timeout_s: float | None = None
    ) -> Body:
        """Wait until an index has this state: see `Client.wait_until`."""
        waiting = StateWait(index_id, state, timeout_s)
        found = await self.get_index(index_id, consistency="linearizable")
        answer = waiting.check(found["index"], found["cas"])
        if answer is not None:
            return answer
        async with aclosing(self._follow(Watch(found["cas"], waiting.filters))) as events:
            async for event in events:
                answer = waiting.receive(event)
                if answer is not None:
                    return answer
        raise AssertionError("a watch has no end")

    async def watch(
        self, after: int | str = "now", **filters: Filter
    ) -> AsyncGenerator[Body, None]:
        """Yield changes as they happen: see `Client.watch`."""
        async with aclosing(self._follow(Watch(after, filters))) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def receive(
        self, topic: str, subscriber: str, *, acknowledge: bool = True
    ) -> AsyncGenerator[Body, None]:
        """Yield the changes of a subscription as they happen: see `Client.receive`."""
        receiving = Receiving(_subscription_path(topic, subscriber), acknowledge)
        async with aclosing(self._follow(receiving.watch)) as events:
            try:
                async for event in events:
                    if event is not None:
                        yield event
                        if (due := receiving.handled(event)) is not None:
                            with suppress(CoordinatorError):
                                await self.acknowledge(topic, subscriber, due)
                                receiving.acknowledged(due)
                        if receiving.has_ended:
                            return
            finally:
                if (due := receiving.unacknowledged()) is not None:
                    with suppress(CoordinatorError):
                        await self.acknowledge(topic, subscriber, due)
                        receiving.acknowledged(due)

    async def _follow(self, watch: Watch) -> AsyncGenerator[Body | None, None]:
        """Yield what is to be told, and None each time that the watch was cut off."""
        turn = 0
        while True:
            nodes = self._route.nodes(for_write=False)
            request = self._watch_request(nodes[turn % len(nodes)], watch)
            try:
                response = await self._http.send(request, stream=True)
                try:
                    if response.status_code == 200:
                        if again := watch.begin():
                            yield again
                        async for event in EventSource(response).aiter_sse():
                            received = watch.receive(event)
                            if received is not None:
                                yield received
                    elif error := refusal_of(response.status_code, await response.aread()):
                        raise error
                finally:
                    await response.aclose()
            except (httpx.TransportError, SSEError):
                pass
            yield None
            turn += 1
            try:
                await self._run(_plan_members(self._route))
            except CoordinatorError:
                if not watch.has_received:
                    raise
            await asyncio.sleep(watch.pause_s())

    async def _run(self, plan: Plan) -> Body:
        attempts = self._attempts()
        try:
            call = next(plan)
            while True:
                try:
                    retrying = tenacity.AsyncRetrying(**attempts.policy(call))
                    body: Body = await retrying(self._round, attempts, call)
                except _Transient as transient:
                    call = plan.throw(attempts.failure(transient))
                except CoordinatorError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(body)
        except StopIteration as done:
            return _returned(done)

    async def _round(self, attempts: _Attempts, call: Call) -> Body:
        steps = self._route.round(call)
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._outcome(attempts.prepare(request)))
        except StopIteration as done:
            return _returned(done)

    async def _outcome(self, request: httpx.Request) -> Outcome:
        try:
            return await self._http.send(request)
        except httpx.TransportError as error:
            return error

"""`POST /v1/scan`: the entries of an index within bounds, from any node.

The node looks the index up in its own applied state; `cas` in the answer is that of this state. The
scan itself is in `coordinator.http.scatter`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

import orjson
from confluent_kafka import KafkaException
from fastapi import FastAPI
from prometheus_client import Histogram
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.inputs import StabilityRequired
from coordinator.core.keys.key_order import KeyOrder, order_of
from coordinator.core.keys.rows import rows_of
from coordinator.core.keys.scan_pages import ENTRIES_MAX
from coordinator.core.keys.scans import Cursor, ScanError, cover_of, scan_digest, slices_of
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    ERROR,
    MAINTENANCE,
    PENDING,
    Bucket,
    Index,
    Slice,
)
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Cas
from coordinator.core.model.vectors import Places
from coordinator.core.timestamps import board as boards
from coordinator.http import views
from coordinator.http.aside import BODIES, POSITIONS
from coordinator.http.calls import Calls
from coordinator.http.errors import ApiError
from coordinator.http.lines import MEDIA_TYPE, Lines
from coordinator.http.reading import model_of
from coordinator.http.scatter import Asked, ScanFailed, ScanResult, Scatter, aside
from coordinator.http.shared import APPLIED_CAS, explained
from coordinator.kafka.document_topics import TopicError
from coordinator.kafka.failover_log_ends import Ends
from coordinator.node.shell import Shell
from coordinator.runtime.http_guard import error_body

log = logging.getLogger("coordinator")

LIMIT_MAX = 10_000
LIMIT = 100
TIMEOUT_MS = 10_000
TIMEOUT_MS_MAX = 60_000
SCANS_MAX = 64
"""So many scans at once; more are refused, so that the node keeps up with what it is for."""

BLOCK = 512
STREAM_ROWS = ENTRIES_MAX
"""So many rows a line of a stream has by default: what an indexer answers at once."""

STREAMS_MAX = 16
"""So many streams at once: each may hold two pages."""

LIGHT_MAX = 100
"""Values of so many parts are dealt with in the loop; handing them over would cost more."""

FAULT = "a fault of this node: see its log"

ASK_PAUSE_S = 1.0
"""A scan that waits for a timestamp says so each second."""

ARRIVAL_S, ARRIVAL_PAUSE_S = 3.0, 0.05
"""So long a scan waits for an indexer that is heard to be registered: the master does that at once,
unless it waits for a restart timestamp."""

LAST_GOOD = "last_good"
REPLACED_S = 1.0
"""So long a scan waits to learn that another index took the place of one that is released."""

SCAN_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2, 4, 8, 16)

Text = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=0, lt=2**64)]
Offset = Annotated[int, Field(ge=0, lt=2**63 - 1)]
Vbucket = Annotated[int, Field(ge=0, lt=2**16)]


ANSWERS: dict[str, Any] = {
    "description": "A page of the scan. With `stream`, a line for each page; the last one is an "
    "error, if the scan cannot go on",
    "content": {"application/json": {}, MEDIA_TYPE: {}},
}


class VectorModel(BaseModel):
    """For some vbuckets, by number: a vbuuid (the branch) and a seqno. Or, for a bucket of a Kafka
    topic, for some partitions the offset of a record: that, and all before it."""

    model_config = ConfigDict(extra="forbid")

    vbuckets: dict[Vbucket, tuple[Number, Number]] = Field(default_factory=dict)
    offsets: dict[Vbucket, Offset] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("vbuckets, or offsets")
        if self.vbuckets and self.offsets:
            raise ValueError("either vbuckets or offsets")
        return self


class FreshModel(BaseModel):
    """`at_least`: positions to include. `consistent`: a timestamp by its number, or 0 for the
    newest one; with `at_least`, 0 for one that includes these positions."""

    model_config = ConfigDict(extra="forbid")

    consistent: Number | None = None
    at_least: VectorModel | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.consistent is None and self.at_least is None:
            raise ValueError("consistent, at_least, or both")
        if self.consistent and self.at_least:
            raise ValueError("one timestamp by its number, or with 0 any that has at_least")
        return self


def _kind(value: Any) -> str:
    return "word" if isinstance(value, str) else "object"


Consistency = Annotated[
    Annotated[Literal["any", "consistent", "last_good"], Tag("word")]
    | Annotated[FreshModel, Tag("object")],
    Discriminator(_kind),
]


class ScanBody(BaseModel):
    """A scan of the index with the id `index`, or of the index `name` of `bucket`.

    `stream`: all pages are answered, each of `limit` rows, by default as many as an indexer sends
    at once; each may take `timeout_ms`.
    """

    model_config = ConfigDict(extra="forbid")

    index: int | Text | None = None
    bucket: Text | None = None
    name: Text | None = None
    scan: dict[str, Any] = Field(default_factory=dict)
    limit: int = Field(LIMIT, ge=1, le=LIMIT_MAX)
    order: Literal["asc", "desc"] = "asc"
    count: bool = False
    consistency: Consistency = "any"
    timeout_ms: int = Field(TIMEOUT_MS, ge=1, le=TIMEOUT_MS_MAX)
    after: str | None = None
    stream: bool = False

    @model_validator(mode="after")
    def _has_pages(self) -> Self:
        if self.stream and self.count:
            raise ValueError("a count is no stream")
        if self.stream and "limit" not in self.model_fields_set:
            self.limit = STREAM_ROWS
        return self


class _Plan(NamedTuple):
    asked: Asked
    order: KeyOrder
    digest: bytes
    cas: Cas


class _Terms(NamedTuple):
    """What whoever answers must have done, read and by when it is of use, as `Asked` says it."""

    rollback: int
    failover_log: Ends
    deadline: float


def add_scans(app: FastAPI, shell: Shell) -> None:
    """Add the route of scans; who stops the server closes `app.state.calls`."""
    calls = app.state.calls = Calls()
    seconds = Histogram(
        "coordinator_scan_seconds",
        "Time of a scan, or of a page of a stream, by outcome: ok, or the code of the error",
        ["outcome"],
        buckets=SCAN_SECONDS,
        registry=shell.metrics.registry,
    )
    running = streams = 0

    async def scan_directly(request: Request) -> Response:
        return await scan(await model_of(request, ScanBody))

    # It has to be fast, without the framework's resolving of parameters: it comes first and
    # answers, and the one below describes it.
    app.router.routes.append(Route("/v1/scan", scan_directly, methods=["POST"]))

    @app.post("/v1/scan", responses={200: ANSWERS})
    async def scan(body: ScanBody) -> Response:
        """Scan an index: the entries within bounds, in the order of the index, or their number.

        With `stream` the answer has a line for each page, until the last one.
        """
        nonlocal running
        running += 1
        try:
            if running > SCANS_MAX:
                raise ApiError("overloaded", f"{SCANS_MAX} scans run already: retry")
            paging = _Paging(shell, calls, body)
            found = await timed(paging)
            page = await found.page()
            headers = {APPLIED_CAS: str(found.plan.cas)}
            if body.stream:
                return Lines(lines(paging, found, page), headers)
        finally:
            running -= 1
        return Response(page, 200, headers, "application/json")

    async def lines(paging: _Paging, found: _Found, page: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the pages of a stream. The next one is gathered while one is sent."""
        nonlocal running, streams
        if streams >= STREAMS_MAX:
            # The client has a page, and knows where to go on.
            yield page + b"\n"
            yield _error_line(ApiError("overloaded", f"{STREAMS_MAX} streams run already: retry"))
            return
        running += 1
        streams += 1
        following: asyncio.Task[_Found] | None = None
        try:
            while found.cursor is not None:
                following = asyncio.ensure_future(timed(paging, found))
                following.add_done_callback(_heeded)
                yield page + b"\n"
                found = await following
                page = await found.page()
            yield page + b"\n"
        except ApiError as error:
            yield _error_line(error)
        except Exception:
            log.exception("a stream of index %s has ended", found.plan.asked.index.id)
            yield _error_line(ApiError("internal", FAULT))
        finally:
            running -= 1
            streams -= 1
            if following is not None:
                following.cancel()

    async def timed(paging: _Paging, last: _Found | None = None) -> _Found:
        began, outcome = time.monotonic(), "internal"
        try:
            found = await paging.next(last)
            outcome = "ok"
        except ApiError as error:
            outcome = error.code
            raise
        finally:
            seconds.labels(outcome).observe(time.monotonic() - began)
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """A page of a scan: what was asked for, and what there was."""

    body: ScanBody
    plan: _Plan
    result: ScanResult

    @property
    def cursor(self) -> Cursor | None:
        """Where the next page begins; None: there is none."""
        found = self.result
        if self.body.count or not found.more or not found.entries:
            return None
        plan, last = self.plan, found.entries[-1]
        return Cursor(plan.asked.index.id, plan.digest, found.number, plan.cas, last)

    async def page(self) -> bytes:
        """Return it as JSON."""
        size = sum(map(len, self.result.entries))
        return await aside(size, lambda: _answer(self))


class _Paging:
    """One scan, a page at a time. What was fetched for a page, and has no room in it, stays for the
    next one."""

    def __init__(self, shell: Shell, calls: Calls, body: ScanBody) -> None:
        self._shell = shell
        self._calls = calls
        self._body = body
        self._failover_log: Ends | None = None
        self._scatter: Scatter | None = None

    async def next(self, last: _Found | None = None) -> _Found:
        """Return the first page, or the one after the `last` one. Raises ApiError."""
        began = time.monotonic()
        if last is None:
            self._body = await _with_positions(self._shell, self._body)
        else:
            self._body = self._body.model_copy(update={"after": str(last.cursor)})
        body = self._body
        if self._failover_log is None:
            # What is readable there from now on need not be known: the scan has begun before it.
            is_any = _wanted(body) is None
            self._failover_log = () if is_any else await _failover_log(self._shell, body)
        plan = await _plan(self._shell, body, began, self._failover_log)
        try:
            try:
                result = await self._gathered(plan)
            except ScanFailed as failure:
                if not failure.is_gone or not await _has_moved_on(self._shell, body, plan.asked):
                    raise
                plan = await _plan(self._shell, body, began, self._failover_log)
                self._scatter = None
                result = await self._gathered(plan)
        except ScanFailed as failure:
            text = failure.message
            if failure.code == "no_stability_timestamp":
                text = explained(self._shell, plan.asked.index.bucket, text)
            raise ApiError(failure.code, text, failure.details) from failure
        return _Found(body, plan, result)

    async def _gathered(self, plan: _Plan) -> ScanResult:
        await _arrived(self._shell, plan.asked)
        scatter = self._scatter
        if scatter is None or not scatter.go_on(plan.asked):
            scatter = self._scatter = Scatter(
                calls=self._calls, asked=plan.asked, address=self._address, is_heard=self._is_heard
            )
        async with _hurrying(self._shell, self._body, plan.asked):
            return await (scatter.count() if self._body.count else scatter.rows())

    def _address(self, indexer: int) -> str | None:
        return views.scan_address(self._shell.node, indexer)

    def _is_heard(self, indexer: int) -> bool:
        return self._shell.node.peers.indexer_alive(indexer)


def _heeded(done: asyncio.Future[_Found]) -> None:
    """See what became of a page, also where nobody waits for it any more."""
    if not done.cancelled():
        done.exception()


def _error_line(error: ApiError) -> bytes:
    """Return what ends a stream that cannot go on."""
    return orjson.dumps(error_body(error.code, error.message, error.details)) + b"\n"


async def _failover_log(shell: Shell, body: ScanBody) -> Ends:
    """Return where `failover-log` ends: nothing if Kafka does not say so soon."""
    return await shell.failover_log_ends.now(within_s=body.timeout_ms / 1000) or ()


async def _with_positions(shell: Shell, body: ScanBody) -> ScanBody:
    """Return a scan that names positions where it named offsets of a topic. Raises ApiError."""
    wanted = _wanted(body)
    if wanted is None or wanted.at_least is None or not wanted.at_least.offsets:
        return body
    offsets = wanted.at_least.offsets
    name = _index(shell, body).bucket
    held = shell.node.state.bucket(name)
    bucket = held.entity if held is not None else None
    if not isinstance(bucket, Bucket) or not bucket.topic:
        text = f"bucket {name} is of the key-value store: it has vbuckets, and no offsets"
        raise ApiError("invalid_request", text)
    if (last := max(offsets)) >= bucket.vbuckets:
        text = f"topic {bucket.topic} has {bucket.vbuckets} partitions, and no {last}"
        raise ApiError("invalid_request", text)
    partitions = sorted(offsets)
    try:
        branches = await POSITIONS.run(lambda: shell.positions.branches(bucket, partitions))
    except (KafkaException, TopicError) as error:
        raise ApiError("unavailable", f"topic {bucket.topic} cannot be asked: {error}") from error
    places = {p: (int(branches[p]), offset + 1) for p, offset in offsets.items()}
    at_least = VectorModel(vbuckets=places)
    fresh = FreshModel(consistent=wanted.consistent, at_least=at_least)
    return body.model_copy(update={"consistency": fresh})


async def _has_moved_on(shell: Shell, body: ScanBody, asked: Asked) -> bool:
    """Tell whether what is scanned lies elsewhere now: a slice has moved, or another index has the
    name, as an ALTER has replaced the first.

    Indexers may release the storage before this node has read that. A page that continues cannot
    go on at another index: its cursor belongs to the first.
    """
    is_named = body.index is None and body.after is None
    until_s = min(asked.deadline, time.monotonic() + REPLACED_S)
    while True:
        state = shell.node.state
        if is_named:
            held = state.index_named(body.bucket or "", body.name or "")
            if held is not None and held.entity.key != asked.index.key:
                return True
        same = state.named_by_id(asked.index.id)
        index = same.entity if same is not None else None
        if (
            isinstance(index, Index)
            and index.state != DROPPING
            and _places(state.holders_of(index)) != _places(asked.holders)
        ):
            return True
        if time.monotonic() >= until_s:
            return False
        await asyncio.sleep(ARRIVAL_PAUSE_S)


def _places(holders: Iterable[Index]) -> list[tuple[Any, ...]]:
    """Return where the copies of slices are, and what they are called there."""
    return [(one.id, one.build, one.slices, one.shards) for one in holders]


async def _arrived(shell: Shell, asked: Asked) -> None:
    """Wait briefly, if the only live host of a slice is an indexer that has just started.

    Its heartbeats arrive before it is registered, and only registered indexers are asked.
    """
    until_s = min(asked.deadline, time.monotonic() + ARRIVAL_S)
    pieces = [piece for piece in asked.index.slices if piece.number in asked.slices]
    while time.monotonic() < until_s and any(_is_arriving(shell, piece) for piece in pieces):
        await asyncio.sleep(ARRIVAL_PAUSE_S)


def _is_arriving(shell: Shell, piece: Slice) -> bool:
    node = shell.node
    heard = [host for host in piece.hosts if node.peers.indexer_alive(host)]
    return bool(heard) and not any(views.scan_address(node, host) for host in heard)


async def _plan(shell: Shell, body: ScanBody, began: float, failover_log: Ends) -> _Plan:
    """Return what is to be scanned. Raises ApiError.

    Whoever answers has read `failover_log` up to there. What is covered may be large, and is made
    into bytes beside the loop then.
    """
    state = shell.node.state
    index = _ready(shell, _index(shell, body))
    _check_vbuckets(shell, index, body)
    terms = _Terms(_rollback(shell, index), failover_log, began + body.timeout_ms / 1000)
    if _is_light(body.scan):
        return _planned(state, index, body, terms)
    return await BODIES.run(lambda: _planned(state, index, body, terms))


def _rollback(shell: Shell, index: Index) -> int:
    """Return the number of the rollback that indexers must have done. Raises ApiError.

    Until it is known to where, nobody can tell what of an index still counts.
    """
    held = shell.node.state.rollback(index.bucket)
    if held is not None and held.stops_streams:
        text = f"the store has lost documents of bucket {index.bucket}: its indexes roll back"
        lost = len(held.vbuckets)
        details = {"bucket": index.bucket, "state": held.state, "vbuckets": lost}
        raise ApiError("index_rolling_back", text, details)
    return held.number if held is not None else 0


def _is_light(value: Any) -> bool:
    """Tell whether a value is quickly encoded; finding out takes no longer than that."""
    waiting, weight = [value], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            weight += len(item)
            if weight <= LIGHT_MAX:
                waiting.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, str):
            weight += len(item) // 64
        if weight > LIGHT_MAX:
            return False
    return True


def _planned(state: StateContext, index: Index, body: ScanBody, terms: _Terms) -> _Plan:
    order = order_of(index)
    descending = body.order == "desc"
    try:
        cover = cover_of(body.scan, order)
        digest = scan_digest(index.id, cover.bounds, descending)
        cursor = None if body.after is None else Cursor.read(body.after)
        if cursor is not None:
            if cursor.scan != digest:
                _check_reached(state, cursor)
            _check_is_there(state, index, cursor)
            _check_goes_on(body, cursor, digest)
        slices = slices_of(index, cover)
    except ScanError as error:
        raise ApiError("invalid_request", str(error)) from error
    asked = Asked(
        index=state.whole(index),
        holders=tuple(state.holders_of(index)),
        slices=slices,
        bounds=cover.bounds,
        after=cursor.entry if cursor else None,
        descending=descending,
        limit=body.limit,
        consistency=_consistency(body, cursor),
        deadline=terms.deadline,
        rollback=terms.rollback,
        last_good=body.consistency == LAST_GOOD,
        failover_log=terms.failover_log,
        reads_on=body.stream,
    )
    return _Plan(asked, order, digest, state.cas)


def _consistency(body: ScanBody, cursor: Cursor | None) -> Any:
    """Return the consistency for the indexers: a later page stays at the scan's timestamp."""
    wanted = _wanted(body)
    if wanted is None:
        return "any"
    at_least = {} if wanted.at_least is None else {"at_least": _wire(wanted.at_least)}
    if wanted.consistent is None:
        return at_least
    return {"consistent": wanted.consistent or (cursor.number if cursor else 0), **at_least}


def _check_reached(state: StateContext, cursor: Cursor) -> None:
    """Refuse to say what became of an index since, on a node that is behind the one that answered
    the page before: it may not know that index yet. Raises ApiError."""
    if cursor.cas > state.cas:
        raise ApiError("not_ready", f"this node is not at CAS {cursor.cas} yet: ask another one")


def _check_is_there(state: StateContext, index: Index, cursor: Cursor) -> None:
    """Refuse to go on in an index that was dropped, or replaced by an ALTER. Raises ApiError."""
    if cursor.index_id == index.id:
        return
    held = state.named_by_id(cursor.index_id)
    first = held.entity if held is not None else None
    if not isinstance(first, Index) or first.state == DROPPING or first.key == index.key:
        now = f"{index.bucket}.{index.name} is index {index.id} now"
        text = f"index {cursor.index_id}, in which the scan began, is gone, and {now}"
        raise ApiError("index_not_found", f"{text}: scan from the start")


def _check_goes_on(body: ScanBody, cursor: Cursor, digest: bytes) -> None:
    """Refuse to go on with another scan, or another consistency, than the page before had. Raises
    ScanError."""
    if cursor.scan != digest:
        raise ScanError("after: the cursor is of another scan")
    wanted = _wanted(body)
    number = None if wanted is None else wanted.consistent
    if (number is None) != (cursor.number == 0) or (number and number != cursor.number):
        read_at = f"timestamp {cursor.number}" if cursor.number else "no timestamp"
        raise ScanError(f"after: the cursor is of a scan at {read_at}: repeat its `consistency`")


def _wanted(body: ScanBody) -> FreshModel | None:
    """Return the positions or timestamp that a scan requires; None: none, `any`."""
    if isinstance(body.consistency, FreshModel):
        return body.consistency
    is_newest = body.consistency in ("consistent", LAST_GOOD)
    return FreshModel(consistent=0) if is_newest else None


def _check_vbuckets(shell: Shell, index: Index, body: ScanBody) -> None:
    """Refuse a vector that is none of the bucket's. Raises ApiError."""
    wanted = _wanted(body)
    bucket = shell.node.state.bucket(index.bucket)
    if wanted is None or wanted.at_least is None:
        return
    if bucket is None or not isinstance(bucket.entity, Bucket):
        return
    odd = [vbucket for vbucket in wanted.at_least.vbuckets if vbucket >= bucket.entity.vbuckets]
    if odd:
        text = f"bucket {index.bucket} has {bucket.entity.vbuckets} vbuckets, and no {min(odd)}"
        raise ApiError("invalid_request", text)


def _wire(vector: VectorModel) -> dict[str, Any]:
    return {"vbuckets": {str(vb): place for vb, place in vector.vbuckets.items()}}


@asynccontextmanager
async def _hurrying(shell: Shell, body: ScanBody, asked: Asked) -> AsyncIterator[None]:
    """Have stability timestamps published more often while the scan waits for one."""
    wanted = _wanted(body)
    if wanted is None or wanted.at_least is None or wanted.consistent is None:
        yield
        return
    bucket, places = asked.index.bucket, Places.of(wanted.at_least.vbuckets)

    async def ask() -> None:
        while not boards.has(_newest(shell, bucket), places):
            left_s = asked.deadline - time.monotonic()
            shell.feed(StabilityRequired(bucket, max(0, int(left_s * 1000))))
            await asyncio.sleep(ASK_PAUSE_S)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()


def _newest(shell: Shell, bucket: str) -> StabilityTimestamp | None:
    stable = boards.of(shell.node.timestamps, bucket).stability
    return stable.record if stable else None


def _index(shell: Shell, body: ScanBody) -> Index:
    """Return the index that is meant. Raises ApiError."""
    state = shell.node.state
    named = body.bucket is not None and body.name is not None
    if named == (body.index is not None) or (not named and (body.bucket or body.name)):
        raise ApiError("invalid_request", "a scan names an index by its id, or by bucket and name")
    if body.index is not None:
        text = str(body.index)
        held = state.named_by_id(int(text)) if text.isascii() and text.isdecimal() else None
        what = f"there is no index {text}"
    else:
        held = state.index_named(body.bucket or "", body.name or "")
        what = f"there is no index {body.name} on {body.bucket}"
    if held is None and not shell.node.is_following:
        raise ApiError("not_ready", f"this node has not caught up: {shell.node.why_not_ready}")
    if held is None or not isinstance(held.entity, Index) or held.entity.state == DROPPING:
        if body.after is not None:
            with suppress(ScanError):
                _check_reached(state, Cursor.read(body.after))
        raise ApiError("index_not_found", what)
    return held.entity


def _ready(shell: Shell, index: Index) -> Index:
    """Return an index that can be scanned. Raises ApiError."""
    if index.state == MAINTENANCE:
        return index
    details: dict[str, Any] = {"id": str(index.id), "state": index.state}
    name = f"index {index.name} on {index.bucket}"
    if index.state in (PENDING, BACKFILL):
        details["build"] = index.build
        details["progress"] = views.index(index, shell.node.peers.progress.all())["progress"]
        raise ApiError("index_building", f"{name} is being built", details)
    if index.state == ERROR:
        raise ApiError("index_failed", f"{name} cannot be built: {index.reason}", details)
    text = f"{name} is not built (its state is {index.state}): build it first"
    raise ApiError("index_not_ready", text, details)


def _answer(page: _Found) -> bytes:
    """Return the answer as JSON. Rows are dealt with in blocks: nothing may hold the interpreter
    for long, not even in a thread."""
    body, plan, found = page.body, page.plan, page.result
    rest: dict[str, Any] = {}
    if body.count:
        rest["count"] = found.counted
    else:
        rest["next"] = None if page.cursor is None else str(page.cursor)
    rest["consistency"] = _given(body, found)
    rest["cas"] = plan.cas
    blocks = [
        _json(rows_of(found.entries[at : at + BLOCK], plan.order))[1:-1]
        for at in range(0, len(found.entries), BLOCK)
    ]
    rows = b"" if body.count else b'"rows":[%b],' % b",".join(blocks)
    return b'{"index":"%d",%b%b' % (plan.asked.index.id, rows, _json(rest)[1:])


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        # Whole numbers of more than 64 bits, or half a surrogate pair.
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")


def _given(body: ScanBody, found: ScanResult) -> dict[str, Any]:
    wanted = _wanted(body)
    if wanted is None:
        return {"mode": "any"}
    if wanted.consistent is None:
        return {"mode": "at_least"}
    mode = LAST_GOOD if body.consistency == LAST_GOOD else "consistent"
    return {"mode": mode, "number": found.number, "hash": f"{found.hash:016x}"}

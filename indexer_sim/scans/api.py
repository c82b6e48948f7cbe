"""Scans over HTTP: `POST /v1/slices/scan` answers one page of some slices of one index.

Beside the indexer's own work: the server has a thread with a loop, which reads small pages itself;
larger ones are read in a few others. What is read is never more than a page, so that nobody waits
for a scan. What is read, and what is refused, says a `Reading`; here are the protocol, the waiting
and the cutting into pages.

A request, JSON; bytes are hexadecimal:

    indexer, index, shard, build      who is meant, and which life of the index
    slices                            their numbers; one, for a count
    begin, end, after, order, limit   entries from `begin` on and before `end`, after an entry
    count                             only how many there are, up to a bound
    consistency                       "any", {"at_least": vector}, {"consistent": number or 0},
                                      or both
    rollback                          the number of the last rollback of the bucket, 0 for none
    failover_log                      up to which offset of each of its partitions it must have
                                      been read; none, for none of them
    last_good                         whether a snapshot that it has left will do, meanwhile
    timeout_ms                        how long it may wait for that

The answer is a `coordinator.core.keys.scan_pages.Page`; a refusal is JSON with a stable code.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.core.catalog.ddl import SLICES_MAX
from coordinator.core.keys.collation import Bounds
from coordinator.core.keys.scan_pages import BYTES_MAX, ENTRIES_MAX, MEDIA_TYPE, Page, pack
from coordinator.core.keys.scans import Gathering, Part, rest_of
from coordinator.core.model.vectors import Places
from coordinator.runtime.asgi import bound, server
from coordinator.runtime.http_guard import Guard, error_body, own_hosts
from coordinator.runtime.request_bodies import BodyTooLongError, read_body
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.transfers import Giving, TransferRefused, given_bytes, read_ask
from indexer_sim.scans.waiting import Waiting

READERS = 2
"""Threads that read pages: more would only take the interpreter from the one that applies."""

WAITING_MAX = 256
"""So many scans may be waiting or reading at once."""

POLL_S, POLL_S_MAX, POLL_GROWTH = 0.005, 0.05, 1.25
"""A scan that waits looks again after this, and the longer it has waited, the less often; one of a
small page also when something was applied."""

SMALL = 128
"""Pages of so many entries are read in the loop: to hand one to a thread takes as long, and three
times as long where the interpreter is busy."""

SLOW_S, ASIDE_S = 0.005, 1.0
"""Where such a page took longer, for it lies among deleted entries or on a slow disk, threads read
all pages for a while: those who ask for others need not wait for it."""

TIMEOUT_MS = 10_000
CHUNK = 512
CHUNK_FIRST = 32
COUNT_MAX = 100_000
"""So many entries are counted at most for one answer."""

STOP_S = 1.0
KEEP_ALIVE_S = 60
"""Longer than nodes keep a connection: one that sends must know that it is gone."""

BACKLOG = 128
BODY_BYTES_MAX = 2 * 1024 * 1024
"""More than a node takes: a vector comes as it is, and cursors and bounds with it."""

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "index_not_found": 404,
    "slice_not_here": 409,
    "wrong_indexer": 409,
    "index_building": 503,
    "index_rolling_back": 503,
    "index_recovering": 503,
    "no_stability_timestamp": 503,
    "overloaded": 503,
    "timestamp_gone": 410,
    "transfer_gone": 410,
    "not_reached": 504,
    "recovering": 503,
    "timestamp_not_reached": 504,
    "internal": 500,
}
PASSING = frozenset({"no_stability_timestamp", "timestamp_not_reached"})
"""What a scan waits for, as long as it may: it may come yet."""


class ScanRefused(Exception):
    """A scan is not answered; `code` is one of `STATUS`."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}


class Unsettled(ScanRefused):
    """What a bucket holds changes at this moment, perhaps because of another index of it: what was
    looked up may not be what would be read. A scan looks again, as long as it may wait."""

    def __init__(self, message: str) -> None:
        super().__init__("index_recovering", message)


# -- what is scanned -----------------------------------------------------------------------------

NEWEST = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How fresh a scan must be: `at_least` a vector, or exactly at a `timestamp` (0: the newest).

    `at_least` are places of some vbuckets; with `timestamp`, that is to have them. Neither: as it
    is. The bucket must have done the `rollback` of this number, and have recovered from it; for
    the `last_good` snapshot it need not have recovered. Up to the offsets of `failover_log` it must
    be known here what the store has lost.
    """

    at_least: Places | None = None
    timestamp: int | None = None
    rollback: int = 0
    last_good: bool = False
    failover_log: tuple[int, ...] = ()


class View(Protocol):
    """Slices of an index as they were at one moment. Used by one thread, and closed by it.

    `number` and `hash` are those of the stability timestamp of that moment, 0 if it was not one;
    `held` are the numbers of all timestamps that could be had, ascending.
    """

    number: int
    hash: int
    held: tuple[int, ...]

    def entries(self, piece: int, bounds: Bounds, *, backwards: bool) -> Iterator[bytes]:
        """Yield the entries of a slice: the encoded key, and the document's id behind it."""
        ...

    def close(self) -> None: ...


class Reading(Protocol):
    """The storage of an indexer, for scans; used by several threads."""

    def view(
        self, index_id: int, slices: tuple[int, ...], *, shard: int, build: int, wanted: Wanted
    ) -> View:
        """Return what there is now. Does not wait. Raises ScanRefused.

        `shard` and `build` are what the coordinator knows, 0 for nothing: another shard here has
        lost what that one held, and an older build may lack entries. Only timestamps at which the
        index was whole here are `held`; a refusal for want of one tells them in its details.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One request."""

    index_id: int
    slices: tuple[int, ...]
    bounds: Bounds
    after: bytes | None
    descending: bool
    limit: int
    count: bool
    shard: int
    build: int
    wanted: Wanted
    timeout_ms: int


def read_scan(body: bytes, indexer: int) -> Scan:
    """Return the scan that a body asks for. Raises ScanRefused."""
    try:
        asked: dict[str, Any] = orjson.loads(body)
        if int(asked.get("indexer", indexer)) != indexer:
            raise ScanRefused("wrong_indexer", f"this is indexer {indexer}")
        after = asked.get("after")
        scan = Scan(
            index_id=int(asked["index"]),
            slices=tuple(map(int, asked["slices"])),
            bounds=Bounds(bytes.fromhex(asked["begin"]), bytes.fromhex(asked["end"])),
            after=None if after is None else bytes.fromhex(after),
            descending={"asc": False, "desc": True}[asked.get("order", "asc")],
            limit=min(max(int(asked.get("limit", ENTRIES_MAX)), 1), ENTRIES_MAX),
            count=bool(asked.get("count", False)),
            shard=int(asked.get("shard", 0)),
            build=int(asked.get("build", 0)),
            wanted=replace(
                _wanted(asked.get("consistency", "any")),
                rollback=int(asked.get("rollback", 0)),
                last_good=bool(asked.get("last_good", False)),
                failover_log=tuple(map(int, asked.get("failover_log", ()))),
            ),
            timeout_ms=min(max(int(asked.get("timeout_ms", TIMEOUT_MS)), 0), 60_000),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ScanRefused("invalid_request", f"no scan: {error}") from error
    if len(scan.slices) > SLICES_MAX or len(set(scan.slices)) < len(scan.slices):
        raise ScanRefused("invalid_request", f"at most {SLICES_MAX} slices, each once")
    if not scan.slices or (scan.count and len(scan.slices) > 1):
        raise ScanRefused("invalid_request", "a scan is of some slices, a count of one")
    return scan


def _wanted(consistency: Any) -> Wanted:
    if consistency == "any":
        return Wanted()
    if not consistency or consistency.keys() - {"consistent", "at_least"}:
        raise ValueError(f"consistency {consistency}")
    number, asked = consistency.get("consistent"), consistency.get("at_least")
    places = None
    if asked is not None:
        given = asked["vbuckets"].items()
        places = Places.of({int(vb): (int(uuid), int(seqno)) for vb, (uuid, seqno) in given})
    return Wanted(timestamp=None if number is None else int(number), at_least=places)


# -- pages ---------------------------------------------------------------------------------------


def read_page(scan: Scan, view: View) -> Page:
    """Return the page of a scan: at most `limit` entries, and not many more than `BYTES_MAX`."""
    bounds = rest_of(scan.bounds, scan.after, scan.descending)
    if scan.count:
        return _count(scan, view, bounds)
    if len(scan.slices) == 1:
        entries, more = _cut(view.entries(scan.slices[0], bounds, backwards=scan.descending), scan)
    else:
        entries, more = _merge(scan, view, bounds)
    return Page(entries, more, 0, view.number, view.hash, view.held)


def _cut(found: Iterator[bytes], scan: Scan) -> tuple[list[bytes], bool]:
    """Return what a page has room for, and whether something is left."""
    entries: list[bytes] = []
    size = 0
    while len(entries) < scan.limit and size < BYTES_MAX:
        chunk = list(islice(found, min(_chunk(len(entries), size), scan.limit - len(entries))))
        if not chunk:
            return entries, False
        entries += chunk
        size += sum(map(len, chunk))
    return entries, next(found, None) is not None


def _chunk(entries: int, size: int) -> int:
    """Return how many entries to read on, after so many of this size: no more than have room."""
    if not entries:
        return CHUNK_FIRST
    return min(CHUNK, max(1, (BYTES_MAX - size) * entries // size))


def _merge(scan: Scan, view: View, bounds: Bounds) -> tuple[list[bytes], bool]:
    """The same of several slices, merged."""
    gathering = Gathering(scan.limit, scan.descending)
    found: dict[int, Iterator[bytes]] = {}
    for piece in scan.slices:
        found[piece] = view.entries(piece, bounds, backwards=scan.descending)
        gathering.parts.append(Part((piece,)))
    share = max(CHUNK_FIRST, scan.limit // len(scan.slices))
    released = gathering.released
    size = measured = 0
    while (missing := gathering.missing()) and size < BYTES_MAX:
        size += sum(map(len, islice(released, measured, None)))
        measured = len(released)
        most = min(_chunk(measured, size), share)
        for part in missing:
            chunk = list(islice(found[part.slices[0]], most))
            gathering.add(part, chunk, len(chunk) == most)
    left = any(
        part.waiting or (part.more and next(found[part.slices[0]], None) is not None)
        for part in gathering.parts
    )
    return released, left


def _count(scan: Scan, view: View, bounds: Bounds) -> Page:
    """Return how many entries there are, up to `COUNT_MAX`, and the last one to go on from."""
    found = view.entries(scan.slices[0], bounds, backwards=scan.descending)
    counted, last = 0, []
    while counted < COUNT_MAX and (chunk := list(islice(found, CHUNK))):
        counted += len(chunk)
        last = chunk[-1:]
    more = counted >= COUNT_MAX and next(found, None) is not None
    return Page(last if more else [], more, counted, view.number, view.hash, view.held)


# -- the server ----------------------------------------------------------------------------------


class ScanServer:
    """Serves the scans of one indexer, from a thread of its own, until it is stopped."""

    def __init__(
        self,
        reading: Reading,
        indexer: int,
        threads: Threads,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Iterable[str] = (),
        giving: Giving | None = None,
    ) -> None:
        """Take the port (0: any that is free). Raises OSError.

        With `giving`, other indexers get from here what they are to hold, too.
        """
        self.waiting = Waiting()
        """Is to be told of each change."""
        self._reading = reading
        self._giving = giving
        self._indexer = indexer
        self._readers = ThreadPoolExecutor(READERS, "scan")
        self._busy = 0
        self._aside_until_s = 0.0
        self._here = threading.Lock()
        """Held while a page is read in the loop: who stops waits for that one."""

        self._socket = bound(host, port, BACKLOG)
        bound_host, bound_port = self._socket.getsockname()
        self.address = f"http://{bound_host}:{bound_port}"
        app = Guard(
            Starlette(
                routes=[
                    Route("/v1/slices/scan", self._answer, methods=["POST"]),
                    Route("/v1/slices/transfer", self._give, methods=["POST"]),
                ]
            ),
            own_hosts(host, bound_host, *allowed_hosts),
        )
        self._server = server(
            app,
            date_header=False,
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._stopping = threading.Event()
        self._thread = threads.make("scan-server", self._serve, self._stopping)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop answering. What is being read is finished first: its database may be closed then."""
        self._stopping.set()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        with self._here:
            pass  # No other page is read in the loop any more.
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._socket.close()

    def _serve(self) -> None:
        import uvloop

        uvloop.run(self._serve_here())

    async def _serve_here(self) -> None:
        self.waiting.begin()
        await self._server.serve(sockets=[self._socket])

    async def _answer(self, request: Request) -> Response:
        try:
            body = await read_body(request, BODY_BYTES_MAX)
            page = await self._page(read_scan(body, self._indexer))
        except BodyTooLongError as error:
            refused = _refusal(ScanRefused("invalid_request", str(error)))
            refused.headers["connection"] = "close"
            return refused
        except ScanRefused as refusal:
            return _refusal(refusal)
        return Response(page, media_type=MEDIA_TYPE)

    async def _give(self, request: Request) -> Response:
        """Answer another indexer, which fills slices of its own."""
        giving = self._giving
        if giving is None:
            return _refusal(ScanRefused("slice_not_here", "nothing is given from here"))
        try:
            ask = read_ask(await read_body(request, BODY_BYTES_MAX))
            page = await self._aside(lambda: given_bytes(giving.answer(ask)))
        except BodyTooLongError as error:
            refused = _refusal(ScanRefused("invalid_request", str(error)))
            refused.headers["connection"] = "close"
            return refused
        except (ScanRefused, TransferRefused) as refusal:
            return _refusal(ScanRefused(refusal.code, refusal.message))
        return Response(page, media_type="application/vnd.msgpack")

    async def _page(self, scan: Scan) -> bytes:
        """Return the page of a scan, once it can be had. Raises ScanRefused."""
        if self._busy >= WAITING_MAX:
            raise ScanRefused("overloaded", "too many scans wait")
        deadline = time.monotonic() + scan.timeout_ms / 1000
        pause_s = POLL_S
        self._busy += 1
        try:
            while True:
                seen = self.waiting.changes
                is_small = not (scan.limit > SMALL or scan.count or self._is_slow())
                try:
                    if is_small:
                        return self._read_here(scan)
                    return await self._aside(lambda: self._read(scan))
                except ScanRefused as refusal:
                    left_s = deadline - time.monotonic()
                    passes = refusal.code in PASSING or isinstance(refusal, Unsettled)
                    if not passes or left_s < POLL_S:
                        raise
                if is_small:
                    await self.waiting.wait(seen, min(pause_s, left_s))
                else:
                    # There are few threads for it: these look again every now and then only.
                    await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * POLL_GROWTH, POLL_S_MAX)
        finally:
            self._busy -= 1

    def _is_slow(self) -> bool:
        return time.monotonic() < self._aside_until_s

    def _read_here(self, scan: Scan) -> bytes:
        began = time.monotonic()
        try:
            with self._here:
                self._check_goes_on()
                return _checked(lambda: self._read(scan))
        finally:
            ended = time.monotonic()
            if ended - began > SLOW_S:
                self._aside_until_s = ended + ASIDE_S

    async def _aside(self, work: Callable[[], bytes]) -> bytes:
        self._check_goes_on()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: _checked(work))

    def _check_goes_on(self) -> None:
        """Begin to read nothing more once this is stopped: the threads for that end. Raises
        ScanRefused."""
        if self._stopping.is_set():
            raise ScanRefused("overloaded", "this indexer stops")

    def _read(self, scan: Scan) -> bytes:
        try:
            view = self._reading.view(
                scan.index_id, scan.slices, shard=scan.shard, build=scan.build, wanted=scan.wanted
            )
        except ScanRefused as refusal:
            held = refusal.details.get("held") or [0]
            number = scan.wanted.timestamp
            if refusal.code == "no_stability_timestamp" and number and number < max(held):
                message = f"stability timestamp {number} is not held any more: scan from the start"
                raise ScanRefused("timestamp_gone", message, refusal.details) from refusal
            raise
        with contextlib.closing(view):
            return pack(read_page(scan, view))


def _checked(work: Callable[[], bytes]) -> bytes:
    """Do it. Whatever goes wrong is a refusal."""
    try:
        return work()
    except (ScanRefused, TransferRefused):
        raise
    except Exception as error:
        raise ScanRefused("internal", f"{type(error).__name__}: {error}") from error


def _refusal(refusal: ScanRefused) -> Response:
    return Response(
        orjson.dumps(error_body(refusal.code, refusal.message, refusal.details)),
        STATUS.get(refusal.code, 500),
        media_type="application/json",
    )

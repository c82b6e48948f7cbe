"""What indexes cost: to build them, to keep them up to date, to scan them, against baselines.

One bucket of generated documents and three indexes for all three. `build` loads the documents
before the clock starts; `scan` reads what was built, `maintenance` changes it. How many documents:
BENCH_DOCUMENTS, a million if that is not set.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from itertools import count, islice
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.baselines import IndexSpec, Sqlite, bulk_write
from benchmarks.cluster import Cluster, rss_mib
from benchmarks.commit import quantile_ms
from coordinator.client.client import Client
from coordinator.client.scanning import LineBuffer
from coordinator.core.keys.key_order import order_of_expressions
from coordinator.core.keys.scan_pages import ENTRIES_MAX, unpack
from coordinator.core.keys.scans import cover_of
from projector_sim.kv.generator import Generator
from projector_sim.kv.layout import Change
from tests.support.limits import file_size_limit

DOCUMENTS = int(os.environ.get("BENCH_DOCUMENTS", "1000000"))
SEED = 15
BUCKET = "people"
BY_PRICE = IndexSpec("by_price", ("price",))
BY_CITY = IndexSpec("by_city_age", ("city", "age"), where="active = TRUE")
BY_EMAIL = IndexSpec("by_email", ("LOWER(email)",), slices=3)
INDEXES = (BY_PRICE, BY_CITY, BY_EMAIL)
BY_AGE = IndexSpec("by_age", ("age", "city", "name"), slices=3)
BUILDS_BESIDE = 3
"""So often it is built while single documents are written."""

LINES, LOAD_LINES = 1_000, 20_000
BUILD_TIMEOUT_S = 1_800.0
CALL_TIMEOUT_S = 120.0

SUSTAINED_S = 20.0
AHEAD_S = float(os.environ.get("BENCH_AHEAD_S", "60"))
SKEW = 0.8
PREPARED = 200_000
"""So many changes are made before the clock starts; then they begin again."""

WRITERS, WAIT_S = 8, 0.01
LAG_MAX_S = 1.0
PROBE_S = 0.2
MODEST_PER_SECOND, MODEST_ROUNDS = 2_000, 500
BLOCK_LINES, SMALL_BLOCK_LINES = 100, 25
"""A modest load comes 20 times a second, or 80 times."""

RANGES, RANGE_ROWS, WARM_UP = 500, 10, 50
PAGE_ROWS = 10_000
PIECE_BYTES = 256 * 1024


class Caller:
    """One connection that is kept; faster than a client that can do more."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=CALL_TIMEOUT_S)

    def __call__(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return the body of the answer, whatever its status below 300; else RuntimeError."""
        headers = {"Content-Type": "application/json"}
        for attempt in (1, 2):
            try:
                self._connection.request(method, path, body, headers)
                answer = self._connection.getresponse()
                content = answer.read()
                break
            except (HTTPException, ConnectionError):
                # The other side lets a connection go that was not used for a while.
                self._connection.close()
                if attempt == 2:
                    raise
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content

    def lines(self, path: str, body: bytes) -> Iterator[bytes]:
        """Yield the lines of an answer that is a stream."""
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        buffer = LineBuffer()
        while piece := answer.read1(PIECE_BYTES):
            yield from buffer.receive(piece)

    def json(self, method: str, path: str, body: Any = None) -> Any:
        return orjson.loads(self(method, path, None if body is None else orjson.dumps(body)))


def line_of(change: Change) -> bytes:
    """Return a change as the store loads it."""
    return b'{"id":"%b","doc":%b}\n' % (change.key, change.value or b"null")


def blocks(changes: Iterator[Change], lines: int) -> Iterator[bytes]:
    """Yield changes as lines, so many at a time."""
    while block := list(islice(changes, lines)):
        yield b"".join(map(line_of, block))


class DataPlane:
    """The documents and the indexes on a cluster."""

    def __init__(self, cluster: Cluster, documents: int = DOCUMENTS) -> None:
        self.cluster = cluster
        self.generator = Generator(SEED, documents)
        self.store = Caller(cluster.store)
        self.node = Caller(cluster.nodes[0])
        self.loaded: dict[str, Any] = {}
        self.built: dict[str, Any] = {}

    def load(self) -> None:
        """Load the documents into the store, over HTTP."""
        if self.loaded:
            return
        self.store.json("PUT", f"/v1/buckets/{BUCKET}", {})
        began, size = time.perf_counter(), 0
        for block in blocks(self.generator.load(), LOAD_LINES):
            self.write(block)
            size += len(block)
        seconds = time.perf_counter() - began
        self.loaded = {
            "documents": self.generator.documents,
            "bytes_each": size // self.generator.documents,
            "documents_per_second": round(self.generator.documents / seconds),
        }

    def write(self, lines: bytes, store: Caller | None = None) -> None:
        """Write lines of the store."""
        store = store or self.store
        answer = orjson.loads(store("POST", f"/v1/buckets/{BUCKET}/documents", lines))
        if answer["failed"]:
            raise RuntimeError(f"the store refuses lines: {answer['errors']}")

    def ready(self) -> None:
        """Load and build, if that has not been done."""
        if not self.built:
            self.build()

    def build(self) -> dict[str, Any]:
        """Build all indexes, and return what that took."""
        self.load()
        master = Caller(self.cluster.master)
        for spec in INDEXES:
            master.json("POST", "/v1/indexes", spec.body(BUCKET))
        cpu = self.cluster.cpu_s()
        began = time.perf_counter()
        master.json("POST", "/v1/indexes/build", {"bucket": BUCKET})
        self._wait_built(master)
        seconds = time.perf_counter() - began
        documents = self.generator.documents
        self.built = {
            "seconds": round(seconds, 1),
            "documents_per_second": round(documents / seconds),
            "cpu": cpu_between(cpu, self.cluster.cpu_s(), documents),
            "entries": {spec.name: self.count(spec) for spec in INDEXES},
        }
        return self.built

    def _wait_built(self, master: Caller) -> None:
        end = time.monotonic() + BUILD_TIMEOUT_S
        while time.monotonic() < end:
            states = [i["state"] for i in master.json("GET", "/v1/indexes")["indexes"]]
            if states == ["maintenance"] * len(INDEXES):
                return
            if "error" in states:
                raise RuntimeError("an index could not be built")
            time.sleep(0.05)
        raise RuntimeError("the indexes were not built in time")

    # -- scans -------------------------------------------------------------------------------

    def scan(self, spec: IndexSpec, asked: dict[str, Any], caller: Caller | None = None) -> Any:
        """Scan an index through a node."""
        body = {"bucket": BUCKET, "name": spec.name, "timeout_ms": 60_000, **asked}
        return (caller or self.node).json("POST", "/v1/scan", body)

    def count(self, spec: IndexSpec) -> int:
        return int(self.scan(spec, {"count": True})["count"])

    def vector(self, store: Caller) -> dict[str, list[int]]:
        """Return how far the store is now, as a scan wants it."""
        shown = store.json("GET", f"/v1/buckets/{BUCKET}/vbuckets")
        pairs = zip(shown["vbuuids"], shown["high_seqnos"], strict=True)
        return {str(vb): [int(vbuuid), int(seqno)] for vb, (vbuuid, seqno) in enumerate(pairs)}

    def holder(self, spec: IndexSpec) -> tuple[Caller, dict[str, Any]]:
        """Return the indexer that has an index of one slice, and what names the index there."""
        shown = next(
            i for i in self.node.json("GET", "/v1/indexes")["indexes"] if i["name"] == spec.name
        )
        (piece,) = shown["topology"]["slices"]
        indexers = self.node.json("GET", "/v1/indexers")["indexers"]
        address = next(i["address"] for i in indexers if i["id"] == piece["master"])
        return Caller(address), {"index": shown["id"], "slices": [piece["slice"]]}


def cpu_between(
    before: dict[str, float], after: dict[str, float], documents: int
) -> dict[str, dict[str, float]]:
    """Return the processor seconds of each kind of process, and the microseconds a document."""
    return {
        kind: {
            "seconds": round(after[kind] - seconds, 1),
            "us_each": round((after[kind] - seconds) / documents * 1e6, 1),
        }
        for kind, seconds in before.items()
    }


# -- build ---------------------------------------------------------------------------------------


def build(plane: DataPlane) -> dict[str, Any]:
    """Build three indexes over all documents; the same entries written to RocksDB in bulk."""
    built = plane.build()
    baseline = bulk_write(INDEXES, plane.generator)
    found = sum(built["entries"].values())
    if found != baseline["entries"]:
        raise AssertionError(f"the indexes have {found} entries, not {baseline['entries']}")
    ours, theirs = built["documents_per_second"], baseline["documents_per_second"]
    return {
        "loaded": plane.loaded,
        **built,
        "rocksdb": baseline,
        "ratio_to_rocksdb": round(ours / theirs, 3),
    }


# -- maintenance ---------------------------------------------------------------------------------


class Probe:
    """Scans again and again, at least at the newest vector: how long indexers take to have it."""

    def __init__(self, plane: DataPlane) -> None:
        self.lags_s: list[float] = []
        self._plane = plane
        self._node, self._store = Caller(plane.cluster.nodes[-1]), Caller(plane.cluster.store)
        self._since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def waits_s(self) -> float:
        """How long the scan has waited that has no answer yet."""
        since = self._since
        return 0.0 if since is None else time.perf_counter() - since

    def once(self) -> float:
        """Return how long a scan took at the vector that is the newest now."""
        vector = self._plane.vector(self._store)
        self._since = began = time.perf_counter()
        # Its three slices are on three indexers: so all of them have come as far.
        asked = {"limit": 1, "consistency": {"at_least": {"vbuckets": vector}}}
        self._plane.scan(BY_EMAIL, asked, self._node)
        self._since = None
        return time.perf_counter() - began

    def _run(self) -> None:
        while not self._stopping.wait(PROBE_S):
            self.lags_s.append(self.once())

    def stop(self) -> None:
        """Stop once the scan that waits is answered."""
        self._stopping.set()
        self._thread.join()


def maintenance(plane: DataPlane) -> dict[str, Any]:
    """Change documents as fast as indexers keep up, then now and then; see how late they are."""
    plane.ready()
    return {
        "sustained": sustained(plane),
        "latency": latency(plane, BLOCK_LINES),
        "latency_beside_small_blocks": latency(plane, SMALL_BLOCK_LINES),
    }


def changes(plane: DataPlane, count: int, seed: int) -> Iterator[Change]:
    return Generator(seed, plane.generator.documents, skew=SKEW).changes(count)


def sustained(plane: DataPlane) -> dict[str, Any]:
    """Write changes for a while, waiting where a scan lags; then until all of it is held."""
    prepared = list(blocks(changes(plane, PREPARED, SEED + 1), LINES))
    cpu = plane.cluster.cpu_s()
    probe = Probe(plane)
    numbers, waits = count(), list[float]()
    began = time.perf_counter()

    def write() -> None:
        store = Caller(plane.cluster.store)
        while time.perf_counter() - began < SUSTAINED_S:
            if probe.waits_s > LAG_MAX_S:
                time.sleep(WAIT_S)
                waits.append(WAIT_S)
            else:
                plane.write(prepared[next(numbers) % len(prepared)], store)

    try:
        with ThreadPoolExecutor(WRITERS) as writers:
            for writing in [writers.submit(write) for _ in range(WRITERS)]:
                writing.result()
    finally:
        written_s = time.perf_counter() - began
        probe.stop()
    probe.once()
    seconds = time.perf_counter() - began
    written = next(numbers) * LINES
    return {
        "mutations": written,
        "written_per_second": round(written / written_s),
        "held_per_second": round(written / seconds),
        "held_after_s": round(seconds - written_s, 2),
        "waited_s": round(sum(waits) / WRITERS, 1),
        "lag_p50_ms": quantile_ms(probe.lags_s, 0.5),
        "lag_max_ms": quantile_ms(probe.lags_s, 1.0),
        "cpu": cpu_between(cpu, plane.cluster.cpu_s(), written),
    }


class Background:
    """Changes at a modest rate, until it is stopped."""

    def __init__(self, plane: DataPlane, lines: int) -> None:
        self.count = 0
        self._lines = lines
        made = changes(plane, PREPARED, SEED + 2)
        self._prepared = list(blocks((c for c in made if not _is_probed(c.key)), lines))
        self._store = Caller(plane.cluster.store)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        pause_s = self._lines / MODEST_PER_SECOND
        due = time.perf_counter()
        while not self._stopping.wait(max(0.0, due - time.perf_counter())):
            block = self._prepared[self.count // self._lines % len(self._prepared)]
            self._store("POST", f"/v1/buckets/{BUCKET}/documents", block)
            self.count += self._lines
            due += pause_s

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def latency(plane: DataPlane, lines: int) -> dict[str, Any]:
    """Write one document and scan for it, at least where it was written; and scan it as it is."""
    seen = Writes(plane)
    background = Background(plane, lines)
    cpu = plane.cluster.cpu_s()
    began = time.perf_counter()
    try:
        seen.rounds()
    finally:
        background.stop()
    seconds = time.perf_counter() - began
    return {
        "background_per_second": round(background.count / seconds),
        "cpu": cpu_between(cpu, plane.cluster.cpu_s(), background.count),
        "put_until_seen": _quantiles(seen.visible),
        "scan_at_least": _quantiles(seen.waiting),
        "scan_any": _quantiles(seen.plain),
        "ratio_p50": round(quantile_ms(seen.waiting, 0.5) / quantile_ms(seen.plain, 0.5), 1),
    }


def _is_probed(key: bytes) -> bool:
    """Tell whether single writes may be of this document: then nothing else changes it."""
    return key[-1] % 2 == 1


class Writes:
    """Single writes, each followed by a scan that has to see it; seconds of each."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._chance = random.Random(SEED)
        self._version = 1_000_000
        self.visible: list[float] = []
        """From before the write until it is seen."""
        self.waiting: list[float] = []
        """The scan alone."""
        self.plain: list[float] = []
        """The same scan, as whatever is there."""

    def once(self) -> None:
        plane = self._plane
        self._version += 1
        number = self._chance.randrange(1, plane.generator.documents, 2)
        value = plane.generator.document(number, self._version)
        key, email = plane.generator.key(number).decode(), orjson.loads(value)["email"].lower()
        started = time.perf_counter()
        put = orjson.loads(plane.store("PUT", f"/v1/buckets/{BUCKET}/documents/{key}", value))
        written = time.perf_counter()
        place = {str(put["vbucket"]): [int(put["vbuuid"]), int(put["seqno"])]}
        fresh = {"at_least": {"vbuckets": place}}
        asked: dict[str, Any] = {"scan": {"equals": [email]}}
        found = plane.scan(BY_EMAIL, {**asked, "consistency": fresh})
        answered = time.perf_counter()
        if [row["id"] for row in found["rows"]] != [key]:
            raise AssertionError(f"{key} is not where it should be: {found['rows']}")
        plane.scan(BY_EMAIL, asked)
        self.visible.append(answered - started)
        self.waiting.append(answered - written)
        self.plain.append(time.perf_counter() - answered)

    def rounds(self) -> None:
        """Write as often as a latency is measured; what comes first only warms up."""
        for number in range(WARM_UP + MODEST_ROUNDS):
            if number == WARM_UP:
                for seconds in (self.visible, self.waiting, self.plain):
                    seconds.clear()
            self.once()


def beside_build(plane: DataPlane) -> dict[str, Any]:
    """Single writes and scans for them: while nothing else happens, and while an index is built."""
    plane.ready()
    alone, beside = Writes(plane), Writes(plane)
    alone.rounds()
    master = Caller(plane.cluster.master)
    seconds, failed = 0.0, 0
    for _ in range(BUILDS_BESIDE):
        built = master.json("POST", "/v1/indexes", {**BY_AGE.body(BUCKET), "defer_build": False})[
            "index"
        ]
        began = time.perf_counter()
        while master.json("GET", f"/v1/indexes/{built['id']}")["index"]["state"] != "maintenance":
            try:
                beside.once()
            except RuntimeError:
                failed += 1
        seconds += time.perf_counter() - began
        master.json("DELETE", f"/v1/indexes/{built['id']}")
    return {
        "alone": _quantiles(alone.visible),
        "beside": {**_quantiles(beside.visible), "writes": len(beside.visible), "failed": failed},
        "documents_per_second": round(BUILDS_BESIDE * plane.generator.documents / seconds),
        "ratio_p50": round(quantile_ms(beside.visible, 0.5) / quantile_ms(alone.visible, 0.5), 1),
        "ratio_p99": round(quantile_ms(beside.visible, 0.99) / quantile_ms(alone.visible, 0.99), 1),
    }


# -- projectors ahead of an indexer --------------------------------------------------------------


def run_ahead(plane: DataPlane) -> dict[str, Any]:
    """Change documents while one indexer can apply nothing: its memory, and how it catches up.

    It can write nothing, as on a full disk, and reads on.
    """
    plane.ready()
    prepared = list(blocks(changes(plane, PREPARED, SEED + 3), LINES))
    indexer = plane.cluster.of_kind("indexer")[0]
    before, numbers = rss_mib(indexer), count()
    memory: list[float] = []
    began = time.perf_counter()

    def write() -> None:
        store = Caller(plane.cluster.store)
        while time.perf_counter() - began < AHEAD_S:
            plane.write(prepared[next(numbers) % len(prepared)], store)

    with file_size_limit(0, indexer.pid), ThreadPoolExecutor(2) as writers:
        writing = [writers.submit(write) for _ in range(2)]
        while not all(one.done() for one in writing):
            time.sleep(PROBE_S)
            memory.append(rss_mib(indexer))
        for one in writing:
            one.result()
    written, lifted = next(numbers) * LINES, time.perf_counter()
    vector = plane.vector(plane.store)
    asked = {"limit": 1, "consistency": {"at_least": {"vbuckets": vector}}}
    while True:
        try:
            plane.scan(BY_EMAIL, asked)
            break
        except RuntimeError:
            if time.perf_counter() - lifted > BUILD_TIMEOUT_S:
                raise
    caught_up_s = time.perf_counter() - lifted
    third = len(memory) // 3
    return {
        "stalled_s": round(lifted - began, 1),
        "mutations": written,
        "rss_mib": {
            "before": before,
            "most_in_the_first_third": max(memory[:third]),
            "most": max(memory),
            "afterwards": rss_mib(indexer),
        },
        "caught_up_s": round(caught_up_s, 1),
        "caught_up_per_second": round(written / caught_up_s),
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": quantile_ms(list(seconds), 0.5),
        "p99_ms": quantile_ms(list(seconds), 0.99),
    }


# -- scan ----------------------------------------------------------------------------------------


def scan(plane: DataPlane) -> dict[str, Any]:
    """Scan through a node, at the indexer, and the same in SQLite."""
    plane.ready()
    sqlite = Sqlite(plane.generator)
    try:
        chance = random.Random(SEED)
        lows = [round(chance.uniform(0, 990), 2) for _ in range(WARM_UP + RANGES)]
        indexer, named = plane.holder(BY_PRICE)
        order = order_of_expressions(BY_PRICE.expressions)

        def by_node(low: float) -> int:
            asked = {"scan": {"range": {"low": [low]}}, "limit": RANGE_ROWS}
            return len(plane.scan(BY_PRICE, asked)["rows"])

        def by_indexer(low: float) -> int:
            bounds = cover_of({"range": {"low": [low]}}, order).bounds
            return len(_page(indexer, named, bounds, None, RANGE_ROWS).entries)

        def by_sqlite(low: float) -> int:
            return len(sqlite.range(low, RANGE_ROWS))

        ranges = _ranges(lows, {"node": by_node, "indexer": by_indexer, "sqlite": by_sqlite})
        full = {
            "node": _rate(_all_rows(plane, BY_PRICE)),
            "node_three_slices": _rate(_all_rows(plane, BY_EMAIL)),
            "node_stream": _rate(_streamed_rows(plane, BY_PRICE)),
            "node_three_slices_stream": _rate(_streamed_rows(plane, BY_EMAIL)),
            "client": _rate(_rows_of_client(plane, BY_PRICE)),
            "indexer": _rate(_all_entries(indexer, named)),
            "sqlite": _rate(1 for _ in sqlite.all()),
        }
    finally:
        sqlite.close()
    return {
        "range_of_10": ranges,
        "ratio_of_node_to_indexer_p50": _ratio(ranges["node"], ranges["indexer"], "p50_ms"),
        "ratio_of_node_to_sqlite_p50": _ratio(ranges["node"], ranges["sqlite"], "p50_ms"),
        "all_rows_per_second": full,
        "ratio_of_node_to_sqlite_rows": round(full["node_stream"] / full["sqlite"], 3),
        "ratio_of_indexer_to_sqlite_rows": round(full["indexer"] / full["sqlite"], 3),
    }


def _ranges(
    lows: Sequence[float], ways: dict[str, Callable[[float], int]]
) -> dict[str, dict[str, float]]:
    """Time each way in turn, so that all of them see the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number, low in enumerate(lows):
        for name, read in ways.items():
            began = time.perf_counter()
            if read(low) != RANGE_ROWS:
                raise AssertionError(f"{name}: not {RANGE_ROWS} rows from {low} on")
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - began)
    return {name: _quantiles(seconds) for name, seconds in taken.items()}


def _page(
    indexer: Caller, named: dict[str, Any], bounds: Any, after: bytes | None, rows: int
) -> Any:
    body = {
        **named,
        "begin": bounds.begin.hex(),
        "end": bounds.end.hex(),
        "after": None if after is None else after.hex(),
        "limit": rows,
    }
    return unpack(indexer("POST", "/v1/slices/scan", orjson.dumps(body)))


def _all_rows(plane: DataPlane, spec: IndexSpec) -> Iterator[int]:
    """Yield how many rows each page has, through a node."""
    after = None
    while True:
        page = plane.scan(spec, {"limit": PAGE_ROWS, "after": after})
        yield len(page["rows"])
        after = page["next"]
        if after is None:
            return


def _streamed_rows(plane: DataPlane, spec: IndexSpec) -> Iterator[int]:
    """Yield how many rows each page of a stream has."""
    body = {"bucket": BUCKET, "name": spec.name, "timeout_ms": 60_000, "stream": True}
    for line in plane.node.lines("/v1/scan", orjson.dumps(body)):
        page = orjson.loads(line)
        if "error" in page:
            raise RuntimeError(f"the stream has ended: {page}")
        yield len(page["rows"])


def _rows_of_client(plane: DataPlane, spec: IndexSpec) -> Iterator[int]:
    """Yield 1 for each row that the client yields."""
    with Client(plane.cluster.nodes[0]) as client:
        for _ in client.scan_all(bucket=BUCKET, name=spec.name):
            yield 1


def _all_entries(indexer: Caller, named: dict[str, Any]) -> Iterator[int]:
    """Yield how many entries each page has, at the indexer."""
    bounds = cover_of({}, order_of_expressions(BY_PRICE.expressions)).bounds
    after = None
    while True:
        page = _page(indexer, named, bounds, after, ENTRIES_MAX)
        yield len(page.entries)
        if not page.more:
            return
        after = page.entries[-1]


def _rate(counts: Iterator[int]) -> int:
    """Return how many rows a second come of that."""
    began = time.perf_counter()
    count = sum(counts)
    return round(count / (time.perf_counter() - began))


def _ratio(ours: dict[str, float], theirs: dict[str, float], name: str) -> float:
    return round(ours[name] / max(theirs[name], 0.001), 1)

"""The data plane for tests: documents in, indexes out, compared with an oracle slice by slice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from confluent_kafka import Producer

from coordinator import codec
from coordinator.core.keys.key_order import DESCENDING, KeyOrder
from coordinator.core.keys.rows import row_of
from coordinator.core.keys.scan_pages import unpack
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import STABILITY
from tests.integration.cluster import DEADLINE_S, LINES, Cluster, wait_until
from tests.support.oracle import ABSENT, Document, Row, Spec, rows

PAGE = 5_000
SCAN_MS = 60_000
PROJECTORS = "/v1/projectors"
LOG_CHARACTERS = 2_000


class DataPlane:
    """One bucket of a cluster with a key-value store, and indexes on it."""

    def __init__(self, cluster: Cluster, bucket: str, vbuckets: int) -> None:
        self.cluster = cluster
        self.bucket = bucket
        self.specs: dict[str, Spec] = {}
        assert cluster.kv is not None
        self.kv = cluster.kv
        self.path = f"{self.kv.url}/v1/buckets/{bucket}"
        made = cluster.http.put(self.path, json={"vbuckets": vbuckets})
        assert made.status_code in (200, 201), made.text

    # -- documents ---------------------------------------------------------------------------

    def write(self, changes: Mapping[str, Document | None]) -> None:
        """Write documents; those that are None are deleted."""
        lines = [
            {"id": name, "deleted": True} if document is None else {"id": name, "doc": document}
            for name, document in changes.items()
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        answer = self.cluster.http.post(f"{self.path}/documents", content=content, headers=LINES)
        assert answer.status_code == 200, answer.text
        assert not answer.json()["failed"], answer.text

    def documents(self) -> dict[str, Document]:
        """Return all documents that the store has."""
        text = self.cluster.http.get(f"{self.path}/documents").text
        lines = [json.loads(line) for line in text.split("\n") if line]
        return {line["id"]: line["doc"] for line in lines}

    def vector(self) -> dict[str, list[int]]:
        """Return where every vbucket stands: what a scan must have reached to see all of it."""
        shown = self.cluster.http.get(f"{self.path}/vbuckets").json()
        pairs = zip(shown["vbuuids"], shown["high_seqnos"], strict=True)
        return {str(v): [int(u), int(s)] for v, (u, s) in enumerate(pairs) if int(s)}

    def publish_timestamp(self, number: int) -> dict[str, Document]:
        """Publish where the store stands as a stability timestamp; return its documents then.

        Nothing may be written meanwhile.
        """
        documents = self.documents()
        shown = self.cluster.http.get(f"{self.path}/vbuckets").json()
        vector = Vector(map(int, shown["vbuuids"]), map(int, shown["high_seqnos"]))
        record = StabilityTimestamp(self.bucket, number, *vector.to_bytes(), at_ms=0)
        producer = Producer({"bootstrap.servers": self.cluster.servers, "enable.idempotence": True})
        topic = self.cluster.topic(STABILITY)
        producer.produce(topic, codec.encode(record), key=self.bucket.encode())
        assert producer.flush(DEADLINE_S) == 0
        return documents

    # -- indexes -----------------------------------------------------------------------------

    def create(self, *specs: Spec, build: bool = True) -> None:
        """Create indexes, and wait until they take scans, if they are to be built."""
        with self.cluster.client() as client:
            for spec in specs:
                self.specs[spec.name] = spec
                client.create_index(spec.body(self.bucket, defer_build=True))
            if build:
                client.build_indexes(bucket=self.bucket, names=[s.name for s in specs])
        if build:
            self.built(*(s.name for s in specs))

    def events(self, kind: str) -> list[str]:
        """Return what the history tells of one kind of entities of this bucket, oldest first."""
        with self.cluster.client() as client:
            found = client.history(kind=kind, bucket=self.bucket, limit=1000)["events"]
        return [one["event"] for one in found]

    def drop(self, name: str) -> None:
        """Drop an index."""
        del self.specs[name]
        with self.cluster.client() as client:
            client.drop_index(bucket=self.bucket, name=name)

    def index(self, name: str) -> dict[str, Any]:
        """Return an index as any node shows it."""
        with self.cluster.client() as client:
            found = client.list_indexes(self.bucket, name)["indexes"]
        shown: dict[str, Any] = next(one for one in found if one["state"] != "dropping")
        return shown

    def in_the_middle(self, name: str) -> None:
        """Wait until some of a build was sent, and not all."""

        def middle() -> bool:
            shown = self.index(name)
            assert shown["state"] != "maintenance", f"{name} was built before anybody looked"
            progress = shown["progress"] if shown["state"] == "backfill" else None
            return progress is not None and 0 < progress["sent"] < progress["total"]

        wait_until(middle, f"{name} is in the middle of its build")

    def delay_backfills(self, delay_ms: int) -> int:
        """Have each piece of a backfill come late; return the number of that fault."""
        fault = {"kind": "mutations", "action": "delay", "stream": "backfill"}
        body = {**fault, "bucket": self.bucket, "delay_ms": delay_ms}
        answer = self.cluster.http.post(f"{self.kv.url}/v1/faults", json=body)
        assert answer.is_success, answer.text
        return int(answer.json()["id"])

    def end_fault(self, number: int) -> None:
        answer = self.cluster.http.delete(f"{self.kv.url}/v1/faults/{number}")
        assert answer.is_success, answer.text

    def built(self, *names: str, deadline_s: float = 2 * DEADLINE_S) -> None:
        """Wait until indexes take scans."""
        wanted = names or tuple(self.specs)

        def all_built() -> bool:
            with self.cluster.client() as client:
                shown = {i["name"]: i for i in client.list_indexes(self.bucket)["indexes"]}
            states = Counter(shown[name]["state"] for name in wanted)
            assert not states["error"], [shown[name]["reason"] for name in wanted]
            seen[:] = [shown[name] for name in wanted]
            return states == {"maintenance": len(wanted)}

        seen: list[dict[str, Any]] = []
        try:
            wait_until(all_built, f"{wanted} are built", deadline_s)
        except AssertionError as error:
            error.add_note(f"the indexes: {seen}")
            node = self.cluster.running()[0]
            error.add_note(f"the projectors: {self.cluster.ask(node, 'GET', PROJECTORS).text}")
            for one in (*self.cluster.projectors.values(), *self.cluster.indexers.values()):
                error.add_note(f"{one.name} last said: {one.said[-LOG_CHARACTERS:]}")
            raise

    # -- scans -------------------------------------------------------------------------------

    def scan(self, name: str, *, at: dict[str, list[int]] | None = None, **more: Any) -> list[Row]:
        """Return all rows of an index, page by page, at any node."""
        body: dict[str, Any] = {"bucket": self.bucket, "name": name, "limit": PAGE, **more}
        body["timeout_ms"] = SCAN_MS
        if at is not None:
            body["consistency"] = {"at_least": {"vbuckets": at}}
        node = self.cluster.running()[0]
        found: list[Row] = []
        while True:
            answer = self.cluster.ask(node, "POST", "/v1/scan", json=body, timeout=90.0)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += [_row(row) for row in page["rows"]]
            if page.get("next") is None:
                return found
            body["after"] = page["next"]

    def agrees(self, *names: str) -> None:
        """Require that indexes equal their oracles: as a whole, and copy by copy of each slice.

        Nothing may be written meanwhile. Scans wait until all that the store has is there.
        """
        documents, at = self.documents(), self.vector()
        for name in names or tuple(self.specs):
            spec = self.specs[name]
            wanted = rows(spec, documents)
            assert_rows(self.scan(name, at=at), wanted, name)
            self._agrees_slice_by_slice(spec, wanted, at)

    def _agrees_slice_by_slice(
        self, spec: Spec, wanted: Sequence[Row], at: dict[str, list[int]]
    ) -> None:
        """Every copy of a slice holds the same; no entry is lost, and none is in two slices."""
        index = self.index(spec.name)
        together: list[Row] = []
        for piece in index["topology"]["slices"]:
            copies = [
                self.slice_rows(index, piece["slice"], host, at)
                for host in (piece["master"], *piece["replicas"])
            ]
            for copy in copies:
                assert_rows(copy, copies[0], f"a copy of slice {piece['slice']} of {spec.name}")
            together += copies[0]
        assert Counter(map(canonical, together)) == Counter(map(canonical, wanted)), spec.name

    def slice_rows(
        self, index: Mapping[str, Any], piece: int, host: int, at: dict[str, list[int]]
    ) -> list[Row]:
        """Return what one indexer holds of one slice."""
        body: dict[str, Any] = {
            "indexer": host,
            "index": self._holder(index, piece, host),
            "shard": 0,
            "build": 0,
            "slices": [piece],
            "begin": "",
            "end": "ff",
            "order": "asc",
            "limit": PAGE,
            "consistency": {"at_least": {"vbuckets": at}},
            "timeout_ms": SCAN_MS,
        }
        texts = index["expressions"] or [""]
        order = KeyOrder(tuple(text.endswith(DESCENDING) for text in texts))
        found: list[Row] = []
        while True:
            answer = wait_until(lambda: self._ask_indexer(host, body), f"indexer {host} answers")
            assert answer.status_code == 200, answer.text
            page = unpack(answer.content)
            found += [_row(row_of(entry, order)) for entry in page.entries]
            if not page.more:
                return found
            body["after"] = page.entries[-1].hex()

    def _holder(self, index: Mapping[str, Any], piece: int, host: int) -> int:
        """Return the id under which an indexer holds a copy: its own where it was moved there."""
        node = self.cluster.running()[0]
        copy = index["id"], piece, str(host)
        for one in self.cluster.get(node, "/v1/rebalance")["rebalances"]:
            for move in one["moves"]:
                there = (move["index"], move["slice"], move["to"]) == copy
                if there and move["part"] and move["state"] in ("catchup", "done"):
                    return int(move["part"])
        return int(index["id"])

    def _ask_indexer(self, host: int, body: Mapping[str, Any]) -> Any:
        """Ask an indexer where it is now: one that was started again is soon known elsewhere."""
        indexers = self.cluster.get(self.cluster.running()[0], "/v1/indexers")["indexers"]
        address = next(row["address"] for row in indexers if row["id"] == host)
        return self.cluster.http.post(f"{address}/v1/slices/scan", json=body, timeout=90.0)


def _row(row: Mapping[str, Any]) -> Row:
    missing = set(row.get("missing", ()))
    key = tuple(ABSENT if place in missing else v for place, v in enumerate(row["key"]))
    return key, row["id"]


def canonical(value: Any) -> str:
    """Return one text for equal values: names in order, numbers by value."""
    if isinstance(value, dict):
        inner = ", ".join(f"{name!r}: {canonical(value[name])}" for name in sorted(value))
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(canonical, value))}]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(Fraction(value))
    return repr(value)


def assert_rows(found: Sequence[Row], wanted: Sequence[Row], what: str) -> None:
    """Require the same rows in the same order, and say what differs, briefly."""
    seen, due = [canonical(row) for row in found], [canonical(row) for row in wanted]
    if seen == due:
        return
    lost, more = Counter(due) - Counter(seen), Counter(seen) - Counter(due)
    raise AssertionError(
        f"{what}: {len(found)} rows, not {len(wanted)}; lost {_some(lost)}; too many {_some(more)}"
        + ("" if lost or more else "; the order differs")
    )


def _some(counted: Iterable[str]) -> list[str]:
    return sorted(counted)[:5]

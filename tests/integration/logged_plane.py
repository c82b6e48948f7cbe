"""A bucket whose every change is noted with its seqno: what it was at any timestamp can be told."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from coordinator import codec
from coordinator.core.model.stream_records import (
    MAINTENANCE,
    ConnectionClosed,
    FailoverBranch,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
)
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import is_shared
from coordinator.core.timestamps.bucket_state import TimestampState, unpack
from coordinator.kafka.topics import (
    STABILITY_HISTORY,
    STREAM_BEGIN,
    STREAM_END,
    STREAM_PARTITIONS,
    TIMESTAMP_STATE,
)
from streaming.stability.fold import Owner, owners
from tests.integration.cluster import Cluster, in_parallel, value_of, wait_until
from tests.integration.data_plane import PAGE, SCAN_MS, DataPlane, _row, assert_rows
from tests.support.oracle import Document, Row, Spec, rows

WRITE_PAUSE_S = 0.05


class Noted(NamedTuple):
    """A change of a document, as the store has numbered it; None: it was deleted.

    `vbuuid` is that of its branch; 0: it is of the first one.
    """

    vbucket: int
    seqno: int
    name: str
    document: Document | None
    vbuuid: int = 0


class Scanned(NamedTuple):
    """What a consistent scan of an index has shown, and at which timestamp."""

    name: str
    number: int
    hash: str
    rows: list[Row]


def loaded_plane(
    plant: Cluster,
    bucket: str,
    vbuckets: int,
    specs: Iterable[Spec],
    documents: int,
    limits: Mapping[str, int],
) -> LoggedPlane:
    """Return a bucket with up to so many documents, and these indexes of it, built; `limits` are
    the settings of timestamps."""
    chance = random.Random(1)
    made = LoggedPlane(plant, bucket, vbuckets)
    with plant.client() as client:
        client.put_config("timestamps", dict(limits))
    changes = (some_change(chance, documents) for _ in range(500))
    made.load({name: document for name, document in changes if document})
    made.create(*specs)
    return made


def drop_all(plant: Cluster) -> None:
    """Drop every index: those of the next module are placed as if there had been none."""
    with plant.client() as client:
        for index in client.list_indexes()["indexes"]:
            client.drop_index(index["id"])

        def are_empty() -> bool:
            held = client.indexers()["indexers"]
            return not any(int(one["slices"]) + int(one["allocated"]) for one in held)

        wait_until(are_empty, "all is dropped")


class LoggedPlane(DataPlane):
    """A bucket whose documents are written one by one, but for those that it begins with."""

    def __init__(self, cluster: Cluster, bucket: str, vbuckets: int) -> None:
        super().__init__(cluster, bucket, vbuckets)
        self.noted: list[Noted] = []

    # -- documents ---------------------------------------------------------------------------

    def load(self, documents: Mapping[str, Document]) -> None:
        """Write what the bucket begins with, before there is an index."""
        self.write(documents)
        text = self.cluster.http.get(f"{self.path}/documents").text
        for line in map(json.loads, filter(None, text.split("\n"))):
            self.noted.append(Noted(line["vbucket"], int(line["seqno"]), line["id"], line["doc"]))

    def put(self, name: str, document: Document | None) -> None:
        """Write one document, or delete it, and note it. One thread does so at a time."""
        path = f"{self.path}/documents/{name}"
        if document is None:
            answer = self.cluster.http.delete(path)
            if answer.status_code == 404:
                return
        else:
            answer = self.cluster.http.put(path, content=json.dumps(document))
        assert answer.status_code == 200, answer.text
        placed = answer.json()
        vbucket, seqno, vbuuid = placed["vbucket"], int(placed["seqno"]), int(placed["vbuuid"])
        self.noted.append(Noted(vbucket, seqno, name, document, vbuuid))

    def forget_lost(self) -> None:
        """Note that what the store has lost was never there."""
        shown = self.cluster.http.get(f"{self.path}/vbuckets?failover_logs=true").json()
        logs = [
            [FailoverBranch(Vbuuid(int(b["vbuuid"])), Seqno(int(b["seqno"]))) for b in log]
            for log in shown["failover_logs"]
        ]
        self.noted = [
            noted
            for noted in self.noted
            if is_shared(
                logs[noted.vbucket],
                Vbuuid(noted.vbuuid or logs[noted.vbucket][-1].vbuuid),
                Seqno(noted.seqno),
            )
        ]

    def documents_at(self, seqnos: Sequence[int]) -> dict[str, Document]:
        """Return the documents as they were where each vbucket was at its seqno."""
        last: dict[str, Noted] = {}
        for noted in self.noted:
            if noted.seqno <= seqnos[noted.vbucket]:
                last[noted.name] = noted
        return {n: noted.document for n, noted in last.items() if noted.document is not None}

    @contextmanager
    def being_written(self, change: Callable[[], tuple[str, Document | None]]) -> Iterator[None]:
        """Have documents written and deleted all the time meanwhile."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def write() -> None:
            try:
                while not stop.wait(WRITE_PAUSE_S):
                    self.put(*change())
            except BaseException as error:
                failed.append(error)

        writer = threading.Thread(target=write, name="writer")
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
        assert not failed, failed

    # -- timestamps --------------------------------------------------------------------------

    def high(self) -> Vector:
        """Return where the store stands."""
        shown = self.cluster.http.get(f"{self.path}/vbuckets").json()
        return Vector(map(int, shown["vbuuids"]), map(int, shown["high_seqnos"]))

    def stability(self) -> tuple[int, dict[str, list[str]]]:
        """Return number and places of the newest stability timestamp; 0 if there is none."""
        node = self.cluster.running()[0]
        answer = self.cluster.ask(node, "GET", f"/v1/stability/{self.bucket}")
        if answer.status_code != 200:
            return 0, {}
        shown = answer.json()
        return shown["number"], shown["vbuckets"]

    def stable(self, deadline_s: float) -> int:
        """Wait until the store as it stands is stable; return the timestamp's number."""
        high = self.high()
        due = {v: int(s) for v, s in enumerate(high.seqnos) if int(s)}

        def reached() -> int:
            number, places = self.stability()
            there = {v: int(places.get(str(v), (0, 0))[1]) for v in due}
            return number if there == due else 0

        try:
            return wait_until(reached, f"{self.bucket} is stable as it stands", deadline_s)
        except AssertionError as error:
            _, places = self.stability()
            lacks = {v: (places.get(str(v)), s) for v, s in due.items()}
            behind = {v: two for v, two in lacks.items() if not two[0] or int(two[0][1]) != two[1]}
            raise AssertionError(f"{error}; not stable: {behind}") from None

    def history(self) -> dict[int, StabilityTimestamp]:
        """Return all stability timestamps by their numbers: each was published once."""
        found = [r for r in self.cluster.records(STABILITY_HISTORY) if r.bucket == self.bucket]
        numbers = [record.number for record in found]
        assert numbers == list(range(1, len(found) + 1)), numbers
        vectors = [Vector.from_bytes(record.vbuuids, record.seqnos) for record in found]
        for number, (before, after) in enumerate(pairwise(vectors), 2):
            same = before.vbuuids == after.vbuuids
            assert (~same | (before.seqnos <= after.seqnos)).all(), number
        return {record.number: record for record in found}

    def scanned(
        self,
        name: str,
        number: int = 0,
        timeout_ms: int = SCAN_MS,
        required: Mapping[str, Sequence[int]] | None = None,
    ) -> Scanned:
        """Scan an index at one timestamp: at the newest that all of its slices have, if 0.

        With `required`, at one that has these places: by vbucket, vbuuid and seqno.
        """
        body = {"bucket": self.bucket, "name": name, "limit": PAGE, "timeout_ms": timeout_ms}
        consistency: Any = {"consistent": number} if number or required else "consistent"
        if required:
            consistency["at_least"] = {"vbuckets": required}
        node = self.cluster.running()[0]
        answer = self.cluster.ask(
            node, "POST", "/v1/scan", json={**body, "consistency": consistency}, timeout=90.0
        )
        assert answer.status_code == 200, f"{name} at {number}: {answer.text}"
        page = answer.json()
        assert page["next"] is None
        at = page["consistency"]
        assert number in (0, at["number"])
        return Scanned(name, at["number"], at["hash"], [_row(row) for row in page["rows"]])

    def is_exact(self, *scans: Scanned) -> None:
        """Require of scans what the documents were at exactly their timestamps."""
        history = self.history()
        for scan in scans:
            record = history[scan.number]
            vector = Vector.from_bytes(record.vbuuids, record.seqnos)
            assert scan.hash == f"{vector.digest():016x}", scan.number
            documents = self.documents_at(vector.seqnos.tolist())
            what = f"{scan.name} at timestamp {scan.number}"
            assert_rows(scan.rows, rows(self.specs[scan.name], documents), what)

    # -- streams -----------------------------------------------------------------------------

    def streaming(self) -> dict[int, set[tuple[int, int]]]:
        """Return who streams each vbucket: projector and connection, of the highest number.

        A connection that broke with its projector has no END; a higher number ends it.
        """
        begins, overs = in_parallel(
            lambda: self.control(STREAM_BEGIN), lambda: self.control(STREAM_END)
        )
        begun: dict[int, dict[int, StreamBegin]] = defaultdict(dict)
        for record in begins:
            begun[record.vbucket][record.connection] = record
        highest = {v: max(b.number for b in found.values()) for v, found in begun.items()}
        ends: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        for record in overs:
            if isinstance(record, StreamEnd):
                over = [record.vbucket]
            else:
                assert isinstance(record, ConnectionClosed)
                over = list(begun)
            for vbucket in over:
                where = vbucket, record.connection
                ends[where] = max(ends[where], record.ordinal)
        return {
            vbucket: {
                (begin.projector, begin.connection)
                for begin in found.values()
                if begin.number == highest[vbucket]
                and ends[vbucket, begin.connection] < begin.ordinal
            }
            for vbucket, found in begun.items()
        }

    def control(self, topic: str) -> list[Any]:
        """Return what was said of this bucket's maintenance streams on a topic."""
        read = (partial(self.cluster.read, topic, p) for p in range(STREAM_PARTITIONS))
        found = [codec.decode(value_of(m)) for part in in_parallel(*read) for m in part]
        return [r for r in found if r.bucket == self.bucket and r.kind == MAINTENANCE]

    def owners(self) -> list[Owner]:
        """Return who owns the vbuckets, as far as the application on Spark knows."""
        last: TimestampState | None = None
        for message in self.cluster.read(TIMESTAMP_STATE):
            if message.value():
                record = codec.decode(value_of(message))
                if isinstance(record, TimestampState) and record.bucket == self.bucket:
                    last = record
        return owners(unpack(last.state)) if last is not None else []

    def is_single_owner(self, deadline_s: float) -> None:
        """Require one stream of each vbucket, of the node that owns it, as Spark knows."""
        shown = self.cluster.http.get(f"{self.path}/vbuckets").json()
        wanted = dict(enumerate(shown["owners"]))

        due: dict[int, tuple[int, int]] = {}

        def single() -> bool:
            found = self.streaming()
            due.update((v, next(iter(who), (-1, -1))) for v, who in found.items())
            return all(len(found.get(v, ())) == 1 and due[v][0] == o for v, o in wanted.items())

        def known() -> bool:
            """Streams may be renewed meanwhile: so both are looked at."""
            found = {v: (o.projector, o.connection) for o in self.owners() for v in o.vbuckets}
            return single() and found == due

        for condition, what in ((single, "each vbucket has one stream"), (known, "Spark knows")):
            try:
                wait_until(condition, what, deadline_s)
            except AssertionError as error:
                raise AssertionError(f"{error}: {wanted}, {due}, {self.owners()}") from None

    def connections(self) -> list[str]:
        """Return the ids of the store's connections that keep this bucket up to date."""
        found = self.cluster.http.get(f"{self.kv.url}/v1/connections").json()["connections"]
        mine = [c for c in found if c["bucket"] == self.bucket and c["kind"] == MAINTENANCE]
        return [connection["id"] for connection in mine]


def some_change(chance: random.Random, of: int) -> tuple[str, Document | None]:
    """Return the name of one of so many documents, and what it becomes; None: it goes."""
    name = f"d{chance.randrange(of)}"
    if chance.random() < 0.15:
        return name, None
    return name, {
        "country": chance.choice("ABFGRSZ"),
        "city": chance.choice("xyz"),
        "name": f"Port {chance.randrange(50)}",
        "elevation": chance.randrange(-100, 14_000),
        "tags": chance.choices(("Hub", "Sea", "no", "Air"), k=chance.randrange(4)),
    }

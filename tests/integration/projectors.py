"""What tests of projectors need: a key-value store, projectors, the state, and a reader of items.

The reader keeps what an indexer would: of each document in each index the newest item, and what
was promised by BEGIN, ATTACH, SYNC and END; it checks the laws of the stream while it reads.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import TopicPartition

from coordinator import codec
from coordinator.core.keys.key_versions import (
    ATTACH,
    BEGIN,
    END,
    OF_MUTATIONS,
    SYNC,
    UPSERT,
    begun,
    unpack,
)
from coordinator.core.model.entities import BACKFILL, Entity, Index, Source, Stream
from coordinator.core.model.records import Mutation, ProjectorHeartbeat
from coordinator.core.model.stream_records import MAINTENANCE, KeyVersions
from coordinator.core.model.vectors import Vector
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    FAILOVER_LOG,
    HEARTBEAT,
    MUTATIONS,
    STREAM_BEGIN,
    STREAM_END,
    STREAM_PARTITIONS,
    topic_name,
)
from coordinator.kafka.topics import SYNC as SYNC_TOPIC
from coordinator.language.expressions import compile_index
from tests.integration.cluster import LINES
from tests.integration.indexer_process import DEADLINE_S, Cluster, until
from tests.integration.preloaded import PRELOADED
from tests.support.indexes import make_index
from tests.support.items import told

BUCKET = "travel"
VBUCKETS = 16


def an_index(index_id: int, state: str = BACKFILL, build: int = 1, **more: Any) -> Index:
    """Return an index on `city`, in two slices on the indexers 1 and 2; `more` changes it."""
    fields = {"expressions": ("city",), "defer_build": True, "state": state, "build": build}
    return make_index(index_id, 1, 2, **(fields | more))


class State:
    """The coordinator's side: writes entities to `statecontext`, and streams as the master does."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.numbers: dict[str, int] = defaultdict(int)
        self.sources: dict[str, dict[int, Source]] = defaultdict(dict)

    def write(self, *entities: Entity | str) -> None:
        """Write entities in one transaction; a text is the key of one that is gone."""
        self.cluster.commit(
            [
                Mutation("Dropped", one, None, None)
                if isinstance(one, str)
                else Mutation("Changed", one.key, codec.encode(one), one)
                for one in entities
            ]
        )

    def renew(
        self,
        lives: Iterable[tuple[int, int]],
        bucket: str = BUCKET,
        vector: tuple[bytes, bytes] = (b"", b""),
    ) -> int:
        """Give projectors (number, incarnation) a new generation of streams; return its number."""
        self.numbers[bucket] = number = self.numbers[bucket] + 1
        for projector, incarnation in lives:
            self.sources[bucket][projector] = Source(projector, incarnation, number)
        sources = tuple(self.sources[bucket].values())
        self.write(Stream(bucket, number, sources, *vector, reason="test"))
        return number


class Store:
    """One key-value store process."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self._announce = folder.with_name(f"{folder.name}.json")
        argv = [sys.executable, "-m", "projector_sim", "kv", "--port", "0", "--nodes", str(nodes)]
        argv += ["--data-dir", str(folder), "--announce-file", str(self._announce)]
        self.process = PRELOADED.spawn(argv)
        self.url = json.loads(until("the store answers", self._announced))["kv"]
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def _announced(self) -> str:
        return self._announce.read_text() if self._announce.exists() else ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.client.request(method, path, json=body).raise_for_status().json()

    def load(self, documents: Iterable[tuple[str, Any]], bucket: str = BUCKET) -> None:
        """Write documents; None deletes one."""
        lines = "".join(
            json.dumps({"id": i, "deleted": True} if d is None else {"id": i, "doc": d}) + "\n"
            for i, d in documents
        )
        url = f"/v1/buckets/{bucket}/documents"
        answer = self.client.post(url, content=lines.encode(), headers=LINES)
        said = answer.raise_for_status().json()
        assert not said["errors"], said

    def documents(self, bucket: str = BUCKET) -> dict[str, Any]:
        """Return all documents with their places."""
        text = self.client.get(f"/v1/buckets/{bucket}/documents").raise_for_status().text
        return {line["id"]: line for line in map(json.loads, text.splitlines())}

    def delay(self, delay_ms: int, count: int | None = None, stream: str = "backfill") -> None:
        """Have mutations come late."""
        body = {"kind": "mutations", "action": "delay", "stream": stream, "delay_ms": delay_ms}
        self.call("POST", "/v1/faults", body if count is None else {**body, "count": count})

    def connections(self, kind: str = "maintenance") -> list[dict[str, Any]]:
        found = self.call("GET", "/v1/connections")["connections"]
        return [one for one in found if one["kind"] == kind]

    def close(self) -> None:
        self.client.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(DEADLINE_S)


class ProjectorProcess:
    """One `python -m projector_sim projector`."""

    def __init__(self, cluster: Cluster, kv: str, number: int, log: Path) -> None:
        self.number = number
        self.log = log
        argv = [sys.executable, "-m", "projector_sim", "projector", "--projector", str(number)]
        argv += ["--cluster", cluster.name, "--bootstrap-servers", cluster.bootstrap_servers]
        argv += ["--kv", kv, "--heartbeat-ms", "100"]
        with log.open("ab") as stderr:
            self.process = PRELOADED.spawn(argv, output=stderr)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def stop(self) -> float:
        """Ask it to stop; return the seconds that it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0, self.said
        return time.monotonic() - begin

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass
class Held:
    """What an indexer has of one index: documents with seqno, slice and key, and what it knows."""

    documents: dict[str, tuple[int, int, bytes | None]] = field(default_factory=dict)
    attached: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, bytes]:
        return {i: key for i, (_, _, key) in self.documents.items() if key is not None}


class Items:
    """Reads `mutations` from its start, as all indexers at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = consumer(cluster.bootstrap_servers, "items")
        topic = topic_name(cluster.name, MUTATIONS)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(STREAM_PARTITIONS)])
        self.held: dict[tuple[int, int, int], Held] = defaultdict(Held)
        self.records: list[KeyVersions] = []
        self.synced: dict[tuple[int, int], int] = {}
        self.reached: dict[tuple[int, int], tuple[int, int]] = {}
        self._last: dict[tuple[int, int, int], int] = defaultdict(int)
        self._begun: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}
        self._branch: dict[int, int] = {}

    def __enter__(self) -> Items:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self) -> None:
        """Take what there is."""
        for message in self._consumer.consume(500, 0.05):
            assert message.error() is None, message.error()
            record = codec.decode(message.value() or b"")
            indexer = int(dict(message.headers() or ())["indexer"])
            self.records.append(record)
            self._take(indexer, int(message.partition() or 0), record)

    def _take(self, indexer: int, partition: int, record: KeyVersions) -> None:
        assert len(record.indexes) == len(record.builds)
        builds = list(zip(record.indexes, record.builds, strict=True))
        for item in unpack(record.items):
            vbucket, seqno = item.vbucket, item.seqno
            assert vbucket % STREAM_PARTITIONS == partition
            place = (indexer, record.connection, vbucket)
            if item.kind == BEGIN:
                vbuuid, places = begun(item)
                self._last[place] = seqno
                self._branch[vbucket] = vbuuid
                self._begun[place] = tuple(builds[p] for p in places)
                if record.kind == MAINTENANCE:
                    for p in places:
                        self.held[(indexer, *builds[p])].attached.setdefault(vbucket, seqno)
                continue
            assert place in self._begun, "nothing comes before the BEGIN"
            assert seqno >= self._last[place], "seqnos never descend"
            self._last[place] = seqno
            if record.kind == MAINTENANCE:
                before = self.reached.get((indexer, vbucket), (0, 0))[1]
                self.reached[indexer, vbucket] = self._branch[vbucket], max(seqno, before)
            if item.kind in OF_MUTATIONS:
                for one in told(item, record.indexes):
                    held = self.held[(indexer, *builds[one.place])]
                    document = one.document.decode()
                    if seqno > held.documents.get(document, (0,))[0]:
                        key = one.payload if one.kind == UPSERT else None
                        held.documents[document] = (seqno, one.slice, key)
                    if record.kind != MAINTENANCE:
                        assert one.kind == UPSERT or record.kind == "catch-up"
            elif item.kind == ATTACH:
                self.held[(indexer, *builds[item.place])].attached.setdefault(vbucket, seqno)
            elif item.kind == SYNC:
                self.synced[indexer, vbucket] = max(seqno, self.synced.get((indexer, vbucket), 0))
            elif item.kind == END and record.kind == "backfill":
                for build in self._begun[place]:
                    if build in builds:
                        self.held[(indexer, *build)].done[vbucket] = seqno

    def vector(self, vbuckets: int = VBUCKETS) -> tuple[bytes, bytes]:
        """Return the restart timestamp: of each vbucket what all indexers have."""
        self.poll()
        least: dict[int, tuple[int, int]] = {}
        for (_, v), (vbuuid, seqno) in self.reached.items():
            if v not in least or seqno < least[v][1]:
                least[v] = (vbuuid, seqno)
        found = [least.get(v, (0, 0)) for v in range(vbuckets)]
        return Vector((a for a, _ in found), (b for _, b in found)).to_bytes()

    def of(self, kind: str) -> list[KeyVersions]:
        """Return what has come of one kind of streams."""
        return [record for record in self.records if record.kind == kind]

    def built(self, index: Index) -> None:
        """Wait until all hosts of an index have all that its backfill brings."""
        until(f"index {index.id} is built", lambda: self.is_built(index))

    def is_built(self, index: Index) -> bool:
        """Tell whether the backfill of each vbucket has ended above where it was attached."""
        self.poll()
        return all(
            held.done.get(v, -1) >= held.attached.get(v, 2**63)
            for held in (self.held[host, index.id, index.build] for host in index.hosts)
            for v in range(VBUCKETS)
        )

    def agree(self, index: Index, store: Store) -> None:
        """Wait until the items say of an index what the documents of the store do."""
        try:
            until("the items are those of the documents", lambda: self.do_agree(index, store))
        except AssertionError:
            wanted, found = self._wanted(index, store), self._keys(index)
            missing = sorted(wanted.keys() - found.keys())
            more = sorted(found.keys() - wanted.keys())
            other = sorted(i for i in wanted.keys() & found.keys() if wanted[i] != found[i])
            raise AssertionError(
                f"missing {missing[:3]}, too many {more[:3]}, different {other[:3]}"
            ) from None

    def do_agree(self, index: Index, store: Store) -> bool:
        """Tell whether they do now, each document being in one slice only."""
        wanted = self._wanted(index, store)
        self.poll()
        count = sum(len(self.held[host, index.id, index.build].keys) for host in index.hosts)
        return count == len(wanted) and self._keys(index) == wanted

    def _wanted(self, index: Index, store: Store) -> dict[str, bytes]:
        evaluate = compile_index(index)
        documents = store.documents(index.bucket)
        keys = {i: evaluate(i, line["doc"]) for i, line in documents.items()}
        return {i: key for i, key in keys.items() if key is not None}

    def _keys(self, index: Index) -> dict[str, bytes]:
        """Return the keys on all hosts; right for indexes whose slices have one host each."""
        found: dict[str, bytes] = {}
        for host in sorted(index.hosts):
            found |= self.held[host, index.id, index.build].keys
        return found


class Master:
    """Does what the master does about streams: who waits has a new generation."""

    def __init__(self, state: State, items: Items) -> None:
        self._state = state
        self._items = items
        self._listener = state.cluster.listen(HEARTBEAT)
        self._beats: dict[int, ProjectorHeartbeat] = {}

    def __enter__(self) -> Master:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    def serve(self, for_s: float = 0.0) -> None:
        """Hear who waits, for a while, and renew their streams."""
        end = time.monotonic() + for_s
        while True:
            self._listener.poll()
            for beat in self._listener.records:
                if isinstance(beat, ProjectorHeartbeat):
                    self._beats[beat.projector] = beat
            self._listener.records.clear()
            self._renew()
            if time.monotonic() >= end:
                return

    def _renew(self) -> None:
        sources = self._state.sources[BUCKET]
        lives = []
        for beat in self._beats.values():
            mine = sources.get(beat.projector)
            number = mine.number if mine and mine.incarnation == beat.incarnation else 0
            if any((w.bucket, w.number) == (BUCKET, number) for w in beat.waiting):
                lives.append((beat.projector, beat.incarnation))
        if lives:
            vector = self._items.vector()
            is_first = not self._items.reached
            self._state.renew(lives, vector=(b"", b"") if is_first else vector)


class Beats:
    """Hears the heartbeats of projectors."""

    def __init__(self, cluster: Cluster) -> None:
        self._listener = cluster.listen(HEARTBEAT)
        self._told: set[tuple[int, int, int]] = set()

    def __enter__(self) -> Beats:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    def hears(
        self, what: str, number: int, fits: Callable[[ProjectorHeartbeat], object] = bool
    ) -> ProjectorHeartbeat:
        def is_it(record: Any) -> bool:
            is_beat = isinstance(record, ProjectorHeartbeat) and record.projector == number
            return is_beat and bool(fits(record))

        found: ProjectorHeartbeat = self._listener.hears(what, is_it)
        return found

    def waits(self, number: int, under: int, but_not: Sequence[int] = ()) -> tuple[int, int]:
        """Wait until a life of a projector cannot stream under a number; return who it is.

        It says so until it has heard of a new one: of each life and number it is told once.
        """
        beat = self.hears(
            f"projector {number} waits under {under}",
            number,
            lambda beat: (
                beat.incarnation not in but_not
                and (number, beat.incarnation, under) not in self._told
                and any((w.bucket, w.number) == (BUCKET, under) for w in beat.waiting)
            ),
        )
        self._told.add((number, beat.incarnation, under))
        return number, beat.incarnation


class Control:
    """Reads the topics that tell of streams, from their start; `seen` is all that was read."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = consumer(cluster.bootstrap_servers, "control")
        self._consumer.assign(
            [
                TopicPartition(topic_name(cluster.name, name), p, 0)
                for name in (STREAM_BEGIN, STREAM_END, SYNC_TOPIC, FAILOVER_LOG)
                for p in range(STREAM_PARTITIONS)
            ]
        )
        self.seen: list[Any] = []
        self._checked = 0

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def hears(self, what: str, fits: Callable[[Any], bool]) -> Any:
        """Return the first record, from the one after the last that was returned, that fits."""

        def probe() -> Any:
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.seen.append(codec.decode(message.value() or b""))
            while self._checked < len(self.seen):
                self._checked += 1
                if fits(self.seen[self._checked - 1]):
                    return self.seen[self._checked - 1]
            return None

        return until(what, probe)

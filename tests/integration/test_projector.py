"""Projectors as real processes, against a real broker and a real key-value store."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from coordinator import codec
from coordinator.core.keys.key_versions import BEGIN, DOCUMENT, END, unpack
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    MAINTENANCE,
    PENDING,
    Bucket,
    Index,
    Setting,
    Slice,
    Stream,
)
from coordinator.core.model.records import BucketSeen
from coordinator.core.model.stream_records import (
    CatchUpRequested,
    ConnectionClosed,
    ConnectionRead,
    FailoverLog,
    IndexRouted,
    StreamBegin,
    StreamEnd,
    SyncVector,
)
from coordinator.core.model.vectors import Vector
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import (
    ACKS,
    HW,
    MESSAGE_BYTES_MAX,
    MUTATIONS,
    STREAM_PARTITIONS,
    STREAM_REQUEST,
    topic_name,
)
from projector_sim.kv.store import KvStore
from projector_sim.projector.credits import FIRST_BYTES, PATIENCE_MS
from projector_sim.projector.router import RECORD_BYTES_MAX
from tests.integration.indexer_process import Cluster, Listener, until
from tests.integration.projectors import (
    BUCKET,
    VBUCKETS,
    Beats,
    Control,
    Items,
    Master,
    ProjectorProcess,
    State,
    Store,
    an_index,
)
from tests.support.indexes import make_watermarks, syncs_of

pytestmark = pytest.mark.integration

STOP_S = 15.0
CITIES = ("Athens", "Berlin", "Cairo", "Delhi", "Essen")
Start = Callable[..., ProjectorProcess]


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    made = Cluster(broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def state(cluster: Cluster) -> State:
    return State(cluster)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two nodes, with a bucket whose vbuckets belong to node 0."""
    made = Store(tmp_path / "kv")
    made.call("PUT", f"/v1/buckets/{BUCKET}", {"vbuckets": VBUCKETS, "nodes": [0]})
    yield made
    made.close()


@pytest.fixture
def start_with(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[Store], Start]]:
    """Start projectors of a store; what still runs is killed; none has shown a traceback."""
    started: list[ProjectorProcess] = []

    def of(store: Store) -> Start:
        def begin(number: int = 0) -> ProjectorProcess:
            log = tmp_path / f"projector-{number}"
            started.append(ProjectorProcess(cluster, store.url, number, log))
            return started[-1]

        return begin

    yield of
    for process in started:
        process.kill()
        assert "Traceback" not in process.said, process.said


@pytest.fixture
def start(start_with: Callable[[Store], Start], store: Store) -> Start:
    return start_with(store)


@pytest.fixture
def beats(cluster: Cluster) -> Iterator[Beats]:
    with Beats(cluster) as listening:
        yield listening


@pytest.fixture
def items(cluster: Cluster) -> Iterator[Items]:
    with Items(cluster) as reading:
        yield reading


@pytest.fixture
def acks(cluster: Cluster) -> Iterator[Listener]:
    with cluster.listen(ACKS) as listener:
        yield listener


def documents(begin: int, end: int, version: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"d{n}", {"city": CITIES[(n + version) % len(CITIES)], "n": n}) for n in range(begin, end)
    ]


def hears_routed(acks: Listener, index_id: int, build: int = 1) -> IndexRouted:
    return acks.hears(
        f"index {index_id} is routed",
        lambda r: isinstance(r, IndexRouted) and (r.index_id, r.build) == (index_id, build),
    )


def test_everything_in_the_store_arrives_as_items(
    state: State, store: Store, start: Start, beats: Beats, items: Items, acks: Listener
) -> None:
    store.load(documents(0, 500))
    index = an_index(1, PENDING)
    state.write(Bucket(BUCKET, VBUCKETS), index)
    projector = start()
    state.renew([beats.waits(0, under=0)])
    assert hears_routed(acks, 1).reason == ""
    store.load(documents(400, 600, version=1))
    state.write(replace(index, state=BACKFILL))
    items.built(index)
    items.agree(index, store)
    state.write(replace(index, state=MAINTENANCE))
    store.load([*documents(0, 50, version=2), *((f"d{n}", None) for n in range(50, 80))])
    items.agree(index, store)
    beat = beats.hears("no one waits", 0, lambda beat: not beat.waiting)
    assert [(b.name, b.vbuckets) for b in beat.buckets] == [(BUCKET, VBUCKETS)]
    assert beat.kv == store.url
    assert projector.stop() < STOP_S


def begin(
    state: State, start: Start, beats: Beats, *indexes: Index, number: int = 0
) -> ProjectorProcess:
    """Start a projector, and give it its first generation of streams."""
    state.write(Bucket(BUCKET, VBUCKETS), *indexes)
    projector = start(number)
    state.renew([beats.waits(number, under=0)])
    return projector


def test_a_restart_goes_on_where_the_indexers_are(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 200))
    index = an_index(1)
    projector = begin(state, start, beats, index)
    items.built(index)
    projector.stop()
    store.load([*documents(150, 300, version=1), ("d3", None)])
    vector = items.vector()
    count = len(items.of("maintenance"))
    start()
    state.renew([beats.waits(0, under=0)], vector=vector)
    items.agree(index, store)
    again = items.of("maintenance")[count:]
    assert {record.number for record in again} == {2}
    begun = {i.vbucket: i.seqno for r in again for i in unpack(r.items) if i.kind == BEGIN}
    assert [begun[v] for v in range(VBUCKETS)] == Vector.from_bytes(*vector).seqnos.tolist()


def test_a_projector_that_is_killed_in_a_backfill_does_it_again(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 400))
    store.delay(100)
    index = an_index(1)
    projector = begin(state, start, beats, index)
    until_some(items, "backfill")
    projector.kill()
    store.call("DELETE", "/v1/faults")
    store.load(documents(100, 200, version=1))
    start()
    state.renew([beats.waits(0, under=0)], vector=items.vector())
    items.built(index)
    items.agree(index, store)


def until_some(items: Items, kind: str) -> None:
    def some() -> bool:
        items.poll()
        return any(item.placed for record in items.of(kind) for item in unpack(record.items))

    until(f"items of a {kind}", some)


def test_the_items_of_an_index_that_is_dropped_stop_and_those_of_others_go_on(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 400))
    store.delay(100)
    dropped, kept = an_index(1), an_index(2, expressions=("n",))
    begin(state, start, beats, dropped, kept)
    until_some(items, "backfill")
    passes = {record.connection for record in items.of("backfill")}
    state.write(replace(dropped, state=DROPPING), "index/1")
    items.built(kept)
    items.agree(kept, store)
    assert {record.connection for record in items.of("backfill")} == passes, "the pass goes on"
    held = [items.held[host, 1, 1] for host in (1, 2)]
    assert sum(len(one.keys) for one in held) < 400


def test_a_build_that_is_begun_anew_has_a_pass_of_its_own(
    state: State, store: Store, start: Start, beats: Beats, items: Items, acks: Listener
) -> None:
    store.load(documents(0, 400))
    store.delay(50)
    first, second = an_index(1), an_index(1, build=2)
    begin(state, start, beats, first)
    until_some(items, "backfill")
    state.write(replace(second, state=PENDING))
    hears_routed(acks, 1, build=2)
    store.call("DELETE", "/v1/faults")
    state.write(second)
    items.built(second)
    items.agree(second, store)
    assert not items.held[1, 1, 1].done.keys() & items.held[1, 1, 2].done.keys() or (
        len({record.connection for record in items.of("backfill")}) > 1
    )


def test_a_copy_that_moves_is_filled_no_faster_than_a_setting_says(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    count, per_s = 8_000, 4_000
    store.load(documents(0, count))
    state.write(Setting("rebalance", f'{{"documents_per_s": {per_s}}}'))
    part = an_index(2, part_of=1)
    begin(state, start, beats, an_index(1, MAINTENANCE), part)
    items.built(part)
    at = [record.at_ms for record in items.of("backfill") if 2 in record.indexes]
    assert max(at) - min(at) >= 1_000 * count / per_s / 2
    items.agree(part, store)


def test_a_vbucket_that_moves_is_streamed_by_its_new_owner(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 300))
    index = an_index(1)
    begin(state, start, beats, index)
    start(1)
    items.built(index)
    store.call("POST", f"/v1/buckets/{BUCKET}/move", {"count": 6, "to": 1})
    store.load(documents(200, 400, version=1))
    state.renew([beats.waits(1, under=0)], vector=items.vector())
    items.agree(index, store)
    streaming = {one["node"]: one["vbuckets"] for one in store.connections()}
    assert streaming == {0: VBUCKETS - 6, 1: 6}
    store.call("POST", f"/v1/buckets/{BUCKET}/move", {"count": 2, "to": 0})
    store.load(documents(0, 400, version=2))
    state.renew([beats.waits(0, under=1)], vector=items.vector())
    items.agree(index, store)
    assert {record.projector for record in items.of("maintenance")} == {0, 1}


def test_a_connection_that_breaks_waits_for_a_new_number(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    index = an_index(1)
    begin(state, start, beats, index)
    items.built(index)
    (connection,) = store.connections()
    store.call("DELETE", f"/v1/connections/{connection['id']}")
    life = beats.waits(0, under=1)
    store.load(documents(0, 100))
    assert not store.connections()
    state.renew([life], vector=items.vector())
    items.agree(index, store)


def test_an_indexer_that_lacks_something_has_it_streamed_again(
    cluster: Cluster, state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    index = an_index(1)
    begin(state, start, beats, index)
    items.built(index)
    vector = items.vector()
    store.load([*documents(0, 200), ("d7", None)])
    items.agree(index, store)
    whole = Vector.from_bytes(*vector)
    chosen = Vector(whole.vbuuids[:4], whole.seqnos[:4]).to_bytes()
    request = codec.encode(CatchUpRequested(2, 5, BUCKET, (0, 1, 2, 3), *chosen, 1))
    cluster.write_raw(STREAM_REQUEST, request)
    cluster.write_raw(STREAM_REQUEST, request)
    ended: dict[int, int] = {}

    def is_caught_up() -> bool:
        items.poll()
        for record in items.of("catch-up"):
            ended.update((i.vbucket, i.seqno) for i in unpack(record.items) if i.kind == END)
        return ended.keys() == {0, 1, 2, 3}

    until("the catch-up ends", is_caught_up)
    sent = [item for record in items.of("catch-up") for item in unpack(record.items)]
    wanted = [d for d in store.documents().values() if d["vbucket"] < 4]
    assert {i.document.decode() for i in sent if i.kind == DOCUMENT} >= {
        line["id"] for line in wanted
    }
    slices = {piece for item in sent for _, piece, _ in item.placed}
    assert slices == {1}, "for the one indexer only"


def test_what_cannot_be_routed_is_answered_with_the_reason(
    state: State, store: Store, start: Start, acks: Listener
) -> None:
    state.write(
        Bucket(BUCKET, VBUCKETS),
        Bucket("other", 32),
        # Something was streamed of it: the master does not take the store's number any more.
        Stream("other", 1, (), b"", b"", ""),
        an_index(1, PENDING, expressions=("no (such",)),
        an_index(2, PENDING, bucket="other"),
    )
    store.call("PUT", "/v1/buckets/other", {"vbuckets": 64})
    start()
    assert hears_routed(acks, 1).reason
    assert "64 vbuckets" in hears_routed(acks, 2).reason


def test_a_bucket_that_the_store_lacks_is_made(
    state: State, store: Store, start: Start, beats: Beats
) -> None:
    state.write(Bucket("fresh", 32), an_index(1, PENDING, bucket="fresh"))
    start()
    beat = beats.hears("a fresh bucket", 0, lambda beat: len(beat.buckets) == 2)
    assert BucketSeen("fresh", 32) in beat.buckets


def test_a_vbucket_that_has_to_roll_back_is_reported_and_not_streamed(
    cluster: Cluster, state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 200))
    index = an_index(1)
    projector = begin(state, start, beats, index)
    items.built(index)
    store.load(documents(0, 200, version=1))
    items.agree(index, store)
    vector = items.vector()
    store.call("POST", "/v1/nodes/0/crash", {"lose": 3, "vbuckets": [5]})
    state.renew([beats.waits(0, under=1)], vector=vector)
    until("it is reported", lambda: "they need a rollback" in projector.said)
    with Control(cluster) as control:
        control.hears(
            "an end of the vbucket",
            lambda r: isinstance(r, StreamEnd) and (r.vbucket, r.reason) == (5, "rollback"),
        )
    with Control(cluster) as control:
        log = control.hears(
            "its histories",
            lambda r: isinstance(r, FailoverLog) and r.vbucket == 5 and len(r.branches) == 2,
        )
        had = int(Vector.from_bytes(*vector).seqnos[5])
        assert log.branches[0].seqno == had - 3
    until("the others stream", lambda: [c["vbuckets"] for c in store.connections()] == [15])


def test_control_records_tell_of_each_connection_without_a_gap(
    cluster: Cluster, state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    store.load(documents(0, 100))
    index = an_index(1)
    projector = begin(state, start, beats, index)
    items.built(index)
    store.load(documents(0, 100, version=1))
    items.agree(index, store)
    assert projector.stop() < STOP_S
    with Control(cluster) as control:
        for _ in range(2):
            control.hears("a connection's end", lambda r: isinstance(r, ConnectionClosed))
        seen = [r for r in control.seen if not isinstance(r, FailoverLog)]
    items.poll()
    for kind in ("maintenance", "backfill"):
        keyed = items.of(kind)
        connection = keyed[0].connection
        ordinals = [r.ordinal for r in (*seen, *keyed) if r.connection == connection]
        assert sorted(ordinals) == list(range(1, len(ordinals) + 1))
        begun = {r.vbucket for r in seen if isinstance(r, StreamBegin) and r.kind == kind}
        ended = {r.vbucket for r in seen if isinstance(r, StreamEnd) and r.kind == kind}
        assert begun == ended == set(range(VBUCKETS))
    vectors = (r for r in seen if isinstance(r, SyncVector))
    synced = {one.vbucket: one.seqno for vector in vectors for one in syncs_of(vector)}
    assert synced.items() <= {v: seqno for (_, v), seqno in items.synced.items()}.items()


def test_documents_that_are_no_json_are_absent_and_counted(
    cluster: Cluster,
    state: State,
    start_with: Callable[[Store], Start],
    beats: Beats,
    items: Items,
    tmp_path: Path,
) -> None:
    folder = KvStore(tmp_path / "garbage")
    bucket = folder.create(BUCKET, VBUCKETS, (0,))
    bucket.write([(b"bad", b"{", 0), (b"worse", b"\xff", 0), (b"odd", b"7", 0)])
    bucket.write([(b"good", b'{"city":"Oslo"}', 0)])
    folder.close()
    store = Store(tmp_path / "garbage")
    try:
        index = an_index(1)
        projector = begin(state, start_with(store), beats, index)
        items.built(index)
        assert {i for host in (1, 2) for i in items.held[host, 1, 1].keys} == {"good"}
        assert projector.stop() < STOP_S
        assert "2 more documents are no JSON" in projector.said
    finally:
        store.close()


@pytest.mark.matrix
def test_the_broker_may_go_away_and_come_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, store: Store
) -> None:
    with Broker(tmp_path_factory.mktemp("own-kafka")) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        state = State(cluster)
        projector = ProjectorProcess(cluster, store.url, 0, tmp_path / "log")
        try:
            index = an_index(1)
            with Beats(cluster) as beats, Items(cluster) as items:
                state.write(Bucket(BUCKET, VBUCKETS), index)
                state.renew([beats.waits(0, under=0)])
                items.built(index)
            broker.stop()
            store.load(documents(0, 500))
            store.load(documents(100, 200, version=1))
            broker.start()
            with Items(cluster) as items:
                items.agree(index, store)
            broker.stop()
            store.load(documents(0, 500, version=2))
            assert projector.stop() < STOP_S, "a stop needs no broker"
            assert "Traceback" not in projector.said
            broker.start()
        finally:
            projector.kill()
            cluster.close()


def test_what_kafka_refuses_ends_the_streams_and_nothing_comes_after_the_gap(
    cluster: Cluster, state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    index = an_index(1)
    projector = begin(state, start, beats, index)
    items.built(index)
    limit_message_bytes(cluster, 200)
    store.load(documents(0, 300))
    life = beats.waits(0, under=1)
    assert "all streams begin anew" in projector.said
    limit_message_bytes(cluster, MESSAGE_BYTES_MAX)
    state.renew([life], vector=items.vector())
    items.agree(index, store)


def test_a_mutation_whose_keys_fit_into_no_message_arrives(
    state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    """Of each such document an indexer is sent more than 4 MiB."""
    slices = (Slice(0, 1),)
    many = [an_index(n, MAINTENANCE, slices=slices) for n in range(1, 1_051)]
    for at in range(0, len(many), 100):
        state.write(*many[at : at + 100])
    projector = begin(state, start, beats)

    def has_begun() -> bool:
        items.poll()
        return len(items.held[1, 1, 1].attached) == VBUCKETS

    until("all vbuckets are streamed", has_begun)
    store.load([(f"d{n}", {"city": str(n) * 4_000}) for n in range(3)])
    store.load([("small", {"city": "Rome"})])
    for index in (many[0], many[524], many[-1]):
        items.agree(index, store)
    assert any(record.continued for record in items.records)
    assert max(len(record.items) for record in items.records) <= RECORD_BYTES_MAX
    assert "begin anew" not in projector.said
    assert projector.stop() < STOP_S


def limit_message_bytes(cluster: Cluster, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    topic = topic_name(cluster.name, MUTATIONS)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()

    def is_set() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = admin.describe_configs([asked]).values()
        return found.result()["max.message.bytes"].value == str(size)

    until("the limit is set", is_set)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_whatever_happens_the_items_are_those_of_the_documents(
    cluster: Cluster, state: State, store: Store, start: Start, items: Items, seed: int
) -> None:
    """Kills, moves, broken connections, lost control frames; the master does its part."""
    chance = random.Random(seed)
    built, late = an_index(1), an_index(2, PENDING, expressions=("n",))
    state.write(Bucket(BUCKET, VBUCKETS), built)
    running = {number: start(number) for number in (0, 1)}
    version = itertools.count(1)

    def write() -> None:
        first = chance.randrange(400)
        store.load(documents(first, first + chance.randrange(1, 120), next(version)))
        store.load([(f"d{chance.randrange(500)}", None) for _ in range(5)])

    def kill() -> None:
        number = chance.choice((0, 1))
        running[number].kill()
        running[number] = start(number)

    def move() -> None:
        count = chance.randrange(1, VBUCKETS // 2)
        body = {"count": count, "to": chance.choice((0, 1))}
        store.call("POST", f"/v1/buckets/{BUCKET}/move", body)

    def disturb() -> None:
        """Break a connection, or have a few control frames lost."""
        connections = [*store.connections(), *store.connections("backfill")]
        if connections and chance.random() < 0.5:
            chosen = chance.choice(connections)["id"]
            with suppress(httpx.HTTPStatusError):
                store.call("DELETE", f"/v1/connections/{chosen}")
        else:
            kind = chance.choice(("begin", "end", "sync"))
            store.call("POST", "/v1/faults", {"kind": kind, "action": "drop", "count": 2})

    with Master(state, items) as master:
        for step in range(40):
            chance.choices((write, move, disturb, kill), (6, 2, 2, 1))[0]()
            master.serve(chance.uniform(0, 0.6))
            if step == 15:
                state.write(late)
            if step == 18:
                late = replace(late, state=BACKFILL)
                state.write(late)
        store.call("DELETE", "/v1/faults")
        for index in (built, late):
            until(f"index {index.id} is built", lambda i=index: master.serve() or items.is_built(i))
            until(
                f"index {index.id} agrees",
                lambda i=index: master.serve() or items.do_agree(i, store),
            )


class Readers:
    """Says of both indexers, again and again, how far they have read maintenance."""

    def __init__(self, cluster: Cluster, items: Items) -> None:
        self.ordinal = 0
        self._items = items
        self._topic = topic_name(cluster.name, HW)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        nothing = Vector((), ()).to_bytes()
        while not self._over.wait(0.1):
            known = {r.connection for r in self._items.of("maintenance")}
            ordinals = (self.ordinal,) * STREAM_PARTITIONS
            read = tuple(ConnectionRead(0, one, ordinals) for one in known)
            for indexer in (1, 2):
                record = make_watermarks(indexer, nothing, bucket=BUCKET, read=read)
                self._producer.produce(self._topic, codec.encode(record), BUCKET)
            self._producer.flush(1)


def test_a_backfill_does_not_run_ahead_of_its_indexers(
    cluster: Cluster, state: State, store: Store, start: Start, beats: Beats, items: Items
) -> None:
    large = "x" * 2_000
    for first in range(0, 24_000, 1_000):
        store.load((f"d{n}", {"city": f"{large}{n}"}) for n in range(first, first + 1_000))
    index = an_index(1)

    def sent() -> int:
        items.poll()
        return sum(len(record.items) for record in items.of("backfill"))

    with Readers(cluster, items) as readers:
        begin(state, start, beats, index)
        until("the window is spent", lambda: sent() >= FIRST_BYTES)
        ends = time.monotonic() + PATIENCE_MS / 2_000
        until("it has had the time to send more", lambda: sent() and time.monotonic() > ends)
        assert sent() < 2 * FIRST_BYTES
        readers.ordinal = 2**40
        items.built(index)
    assert sent() > 20 * FIRST_BYTES
    items.agree(index, store)

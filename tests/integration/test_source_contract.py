"""The contract of a source, kept by the key-value store and by Kafka topics alike, both real."""

from __future__ import annotations

import itertools
import json
import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.core.model.entities import Bucket
from coordinator.core.model.stream_records import BACKFILL, MAINTENANCE
from coordinator.kafka import document_topics
from coordinator.kafka.document_topics import DocumentTopics
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.state_follower import StatusLog
from coordinator.runtime.threads import Threads
from projector_sim.protocol import frames
from projector_sim.protocol.frames import HEAD, Decoder, Reason
from projector_sim.protocol.source import Logs, Source, SourceBucket, SourceStream
from projector_sim.sources import topic_source, topic_stream
from projector_sim.sources.kv_source import KvSource
from projector_sim.sources.topic_source import TopicSource
from tests.integration.cluster import DEADLINE_S, wait_until
from tests.integration.kafka_proxy import FORGETFUL, KafkaProxy, as_without_brokers
from tests.integration.kv import KvProcess

pytestmark = pytest.mark.integration

VBUCKETS = 4
ALL = tuple(range(VBUCKETS))
SYNC_MS = 20
NOWHERE = 0xDEAD

connections = itertools.count(1)


@dataclass
class Asked:
    """A request for a stream."""

    bucket: str
    kind: str = MAINTENANCE
    vbuckets: tuple[int, ...] = ALL
    starts: Mapping[int, tuple[int, int]] | None = None
    until: Mapping[int, int] = field(default_factory=dict)
    connection: int = field(default_factory=lambda: next(connections))


class Bench:
    """A source, and a writer beside it."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.seen: Mapping[str, SourceBucket] = {}
        self.source: Source
        self.threads = Threads(self.stopping.set)
        self.log = StatusLog("bench")

    def see(self, found: Mapping[str, SourceBucket] | None) -> None:
        self.seen = found or {}

    def make(self, bucket: str) -> None:
        raise NotImplementedError

    def write(self, bucket: str, changes: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def change_writer(self, *, in_transactions: bool) -> None:
        """Write in a transaction each time, where there are transactions."""

    def close(self) -> None:
        self.stopping.set()
        self.source.close()

    def owned(self, bucket: str) -> None:
        """Wait until this source owns all of a bucket."""
        whole = SourceBucket(VBUCKETS, frozenset(ALL))
        wait_until(lambda: self.seen.get(bucket) == whole, f"{bucket} is owned")


class KvBench(Bench):
    def __init__(self, store: KvProcess) -> None:
        super().__init__()
        self.store = store
        self.source = KvSource(
            *(store.url, 0, SYNC_MS, self.see, self.log, self.stopping, self.threads)
        )

    def make(self, bucket: str) -> None:
        self.store.ask("PUT", f"/buckets/{bucket}", {"vbuckets": VBUCKETS, "nodes": [0]})
        self.owned(bucket)

    def write(self, bucket: str, changes: Mapping[str, Any]) -> None:
        lines: list[dict[str, Any]] = [
            {"id": name, "deleted": True} if document is None else {"id": name, "doc": document}
            for name, document in changes.items()
        ]
        self.store.load(bucket, *lines)


class TopicBench(Bench):
    def __init__(self, servers: str) -> None:
        super().__init__()
        self.settings = {"bootstrap.servers": servers, "log_level": 2}
        self.change_writer(in_transactions=False)
        self.buckets: dict[str, Bucket] = {}
        self.letters: list[Any] = []
        cluster = f"c{secrets.token_hex(4)}"
        self.prefix = f"{cluster}-documents"
        self.topics = TopicSource(
            *(servers, cluster, SYNC_MS, self.see, self.letters.append),
            *(self.log, self.stopping, self.threads),
        )
        self.source = self.topics

    def make(self, bucket: str) -> None:
        topic = f"{self.prefix}-{bucket}"
        wanted = NewTopic(topic, VBUCKETS, 1, config={"cleanup.policy": "compact"})
        admin = AdminClient(self.settings)
        admin.create_topics([wanted])[topic].result(30)
        self.buckets[bucket] = Bucket(bucket, VBUCKETS, topic, "json")
        self.topics.follow(self.buckets)
        self.owned(bucket)

    def change_writer(self, *, in_transactions: bool) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 0}
        self.in_transactions = in_transactions
        if in_transactions:
            self.producer = Producer({**self.settings, **settings, "transactional.id": self.prefix})
            self.producer.init_transactions(30)
        else:
            self.producer = Producer({**self.settings, **settings})

    def write(self, bucket: str, changes: Mapping[str, Any]) -> None:
        if self.in_transactions:
            self.producer.begin_transaction()
        for name, document in changes.items():
            text = None if document is None else json.dumps(document)
            self.producer.produce(self.buckets[bucket].topic, text, name)
        if self.in_transactions:
            self.producer.commit_transaction(30)
        assert self.producer.flush(30) == 0

    def close(self) -> None:
        super().close()
        self.topics.join(10)


@pytest.fixture(scope="module", params=["key-value store", "topics"])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    if request.param == "topics":
        made: Bench = TopicBench(request.getfixturevalue("broker").bootstrap_servers)
        yield made
        made.close()
        return
    with KvProcess(Path(tmp_path_factory.mktemp("kv")) / "store", nodes=2) as store:
        made = KvBench(store)
        yield made
        made.close()


@pytest.fixture
def bucket(bench: Bench) -> str:
    name = f"b{secrets.token_hex(4)}"
    bench.make(name)
    return name


class Reading:
    """What a stream brings; the laws that hold for each are checked while it is read."""

    def __init__(self, stream: SourceStream) -> None:
        self.stream = stream
        self.begun: dict[int, frames.Begin] = {}
        self.rolled_back: dict[int, int] = {}
        self.ended: dict[int, frames.End] = {}
        self.synced: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self.documents: dict[int, dict[bytes, bytes | None]] = defaultdict(dict)
        self.whole: dict[int, int] = {}
        """No snapshot ends before these."""
        self.decoder = Decoder()

    def read(self, until: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < deadline, f"not in time: {what}"
            taken = self.stream.poll()
            if taken is None:
                assert not self.stream.is_over, f"{what}: over ({self.stream.reason})"
                time.sleep(0.002)
                continue
            for kind, body in taken:
                for frame in self.decoder.feed(HEAD.pack(len(body) + 1, kind) + body):
                    self.take(frame)

    def take(self, frame: Any) -> None:
        if isinstance(frame, frames.Begin):
            assert frame.vbucket not in self.ended
            self.begun[frame.vbucket] = frame
            self.at[frame.vbucket] = frame.seqno
            assert frame.failover_log[0].vbuuid == frame.vbuuid
            seqnos = [branch.seqno for branch in frame.failover_log]
            assert seqnos == sorted(seqnos, reverse=True)
        elif isinstance(frame, frames.Mutated):
            assert frame.seqno > self.at[frame.vbucket], "seqnos ascend"
            self.at[frame.vbucket] = frame.seqno
            self.documents[frame.vbucket][frame.key] = frame.document
        elif isinstance(frame, frames.Sync):
            for vbucket, seqno in frame.seqnos:
                assert seqno == self.at[vbucket], "the end of a snapshot is where the vbucket is"
                assert seqno >= self.whole.get(vbucket, 0)
                self.synced[vbucket] = seqno
        elif isinstance(frame, frames.End):
            assert frame.vbucket not in self.ended
            self.ended[frame.vbucket] = frame
            self.at.pop(frame.vbucket, None)
        elif isinstance(frame, frames.Rollback):
            self.rolled_back[frame.vbucket] = frame.seqno

    @property
    def held(self) -> dict[str, Any]:
        return {
            key.decode(): json.loads(document)
            for one in self.documents.values()
            for key, document in one.items()
            if document is not None
        }

    def has_begun(self) -> None:
        self.read(lambda: self.begun.keys() == set(ALL), "all have begun")

    def has(self, wanted: Mapping[str, Any]) -> None:
        self.read(lambda: self.held == wanted, "all documents are here")


@pytest.fixture
def opened(bench: Bench) -> Iterator[Callable[..., Reading]]:
    streams: list[SourceStream] = []

    def open_(bucket: str, **asked: Any) -> Reading:
        stream = bench.source.open(Asked(bucket, **asked), lambda: None)
        streams.append(stream)
        return Reading(stream)

    yield open_
    for stream in streams:
        stream.close()
        wait_until(lambda stream=stream: drained(stream), "a closed stream is over")


def drained(stream: SourceStream) -> bool:
    while stream.poll() is not None:
        pass
    return stream.is_over


def some(chance: random.Random, count: int = 200) -> dict[str, Any]:
    return {f"d{chance.randrange(150)}": {"n": chance.randrange(1_000)} for _ in range(count)}


def from_zero(reading: Reading) -> dict[int, tuple[int, int]]:
    return {v: (int(one.vbuuid), 0) for v, one in reading.begun.items()}


def test_what_is_written_comes_with_ends_of_snapshots(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    chance = random.Random(1)
    reading = opened(bucket)
    reading.has_begun()
    wanted: dict[str, Any] = {}
    for _ in range(5):
        changes = some(chance)
        bench.write(bucket, changes)
        wanted |= changes
        gone = dict.fromkeys(chance.sample(sorted(wanted), 10))
        bench.write(bucket, gone)
        wanted = {name: doc for name, doc in wanted.items() if name not in gone}
        reading.has(wanted)
        reading.read(lambda: reading.synced.items() >= reading.at.items(), "each is told of")


def test_who_begins_with_what_comes_next_gets_nothing_older(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    bench.write(bucket, {f"old{n}": {"n": n} for n in range(100)})
    reading = opened(bucket)
    reading.has_begun()
    reading.read(lambda: len(reading.synced) == VBUCKETS, "where it begins is a snapshot's end")
    bench.write(bucket, {"new": {"n": 1}})
    reading.has({"new": {"n": 1}})


def test_no_snapshot_ends_before_all_that_there_was_has_come(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    """An older mutation may be gone whose document comes later: what is before is none."""
    written = {f"d{n}": {"n": n, "text": "x" * 200} for n in range(12_000)}
    bench.write(bucket, written)
    newest = opened(bucket)
    newest.has_begun()
    reading = opened(bucket, starts=from_zero(newest))
    reading.whole = {v: int(one.seqno) for v, one in newest.begun.items()}
    reading.has(written)
    reading.read(lambda: reading.synced.items() >= reading.at.items(), "each is told of")


def test_a_stream_ends_at_a_snapshot_at_or_after_what_was_asked(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    chance = random.Random(2)
    written = some(chance, 500)
    bench.write(bucket, written)
    newest = opened(bucket)
    newest.has_begun()
    until = {v: int(one.seqno) for v, one in newest.begun.items()}
    for goal in (until, {v: seqno // 2 for v, seqno in until.items()}, dict.fromkeys(ALL, 0)):
        asked = {"kind": BACKFILL, "starts": from_zero(newest), "until": goal}
        reading = opened(bucket, **asked)
        reading.read(lambda reading=reading: len(reading.ended) == VBUCKETS, "all have ended")
        assert {one.reason for one in reading.ended.values()} == {Reason.DONE}
        assert all(one.seqno >= goal[v] for v, one in reading.ended.items())
        if goal is until:
            assert reading.held == written


def test_who_goes_on_misses_nothing(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    chance = random.Random(3)
    first = some(chance)
    bench.write(bucket, first)
    reading = opened(bucket)
    reading.has_begun()
    starts = {v: (int(one.vbuuid), int(one.seqno)) for v, one in reading.begun.items()}
    later = {f"later{n}": {"n": n} for n in range(50)}
    bench.write(bucket, later)
    again = opened(bucket, starts=starts)
    again.has(later)


def test_who_was_on_a_branch_that_nobody_knows_goes_back_to_nothing(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    bench.write(bucket, {f"d{n}": {"n": n} for n in range(100)})
    reading = opened(bucket, starts=dict.fromkeys(ALL, (NOWHERE, 5)))
    reading.read(lambda: reading.rolled_back.keys() == set(ALL), "all are refused")
    assert set(reading.rolled_back.values()) == {0}


def test_who_has_read_more_than_there_is_goes_back_to_what_there_is(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    bench.write(bucket, {f"d{n}": {"n": n} for n in range(100)})
    newest = opened(bucket)
    newest.has_begun()
    beyond = {v: (int(one.vbuuid), int(one.seqno) + 7) for v, one in newest.begun.items()}
    reading = opened(bucket, starts=beyond)
    reading.read(lambda: reading.rolled_back.keys() == set(ALL), "all are refused")
    assert reading.rolled_back == {v: int(one.seqno) for v, one in newest.begun.items()}


def test_failover_logs_are_those_of_the_streams(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    bench.write(bucket, {"d": {"n": 1}})
    reading = opened(bucket)
    reading.has_begun()
    found: list[Logs] = []
    bench.source.fetch_logs(bucket, ALL, found.append)
    wait_until(lambda: found, "the logs are here")
    wanted = {
        v: [(int(b.vbuuid), int(b.seqno)) for b in one.failover_log]
        for v, one in reading.begun.items()
    }
    told = {v: [(int(b.vbuuid), int(b.seqno)) for b in log] for v, log in found[0].items()}
    assert told == wanted


def test_who_reads_slowly_holds_the_source_back_and_gets_all(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    newest = opened(bucket)
    newest.has_begun()
    reading = opened(bucket, starts=from_zero(newest))
    reading.has_begun()
    large = {f"d{n}": {"text": "x" * 10_000, "n": n} for n in range(1_000)}
    bench.write(bucket, large)
    time_to_fill = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > time_to_fill, "the queue is full")
    reading.has(large)


def test_a_stream_does_not_end_before_it_has_come_to_what_was_asked(
    bench: Bench, bucket: str, opened: Callable[..., Reading]
) -> None:
    bench.write(bucket, {f"d{n}": {"n": n} for n in range(40)})
    newest = opened(bucket)
    newest.has_begun()
    until = {v: int(one.seqno) + 1 for v, one in newest.begun.items()}
    reading = opened(bucket, kind=BACKFILL, starts=from_zero(newest), until=until)
    reading.read(lambda: len(reading.synced) == VBUCKETS, "all that there is was sent")
    assert not reading.ended
    bench.write(bucket, {f"more{n}": {"n": n} for n in range(40)})
    reading.read(lambda: len(reading.ended) == VBUCKETS, "all have ended")
    assert all(one.seqno >= until[v] for v, one in reading.ended.items())


@pytest.mark.parametrize("in_transactions", [False, True])
def test_snapshots_end_also_where_something_is_written_all_the_time(
    bench: Bench, bucket: str, opened: Callable[..., Reading], *, in_transactions: bool
) -> None:
    """The ends of transactions take offsets, so that the last record is never at the log's end."""
    bench.write(bucket, {f"d{n}": {"n": n} for n in range(40)})
    newest = opened(bucket)
    newest.has_begun()
    until = {v: int(one.seqno) for v, one in newest.begun.items()}
    over = threading.Event()
    written: list[int] = []

    def load() -> None:
        bench.change_writer(in_transactions=in_transactions)
        for number in itertools.count():
            if over.wait(0.005 if in_transactions else 0.02):
                return
            bench.write(bucket, {"load": {"n": number}})
            written.append(number)

    writer = threading.Thread(target=load)
    writer.start()
    try:
        newest.read(lambda: len(newest.synced) == VBUCKETS, "all are told of")
        wait_until(lambda: len(written) > 10, "something is written")
        reading = opened(bucket, kind=BACKFILL, starts=from_zero(newest), until=until)
        reading.read(lambda: len(reading.ended) == VBUCKETS, "all have ended")
    finally:
        over.set()
        writer.join()
        bench.change_writer(in_transactions=False)
    assert all(one.seqno >= until[v] for v, one in reading.ended.items())


def forgetful(*place: str, **more: Any) -> Consumer:
    return consumer(*place, **{**more, **FORGETFUL})


def test_a_stream_whose_client_was_told_of_no_broker_goes_on_where_it_was(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So says a broker that is about to stop. The client forgets all addresses without a word."""
    monkeypatch.setattr(topic_stream, "consumer", forgetful)
    monkeypatch.setattr(topic_stream, "StallDetector", partial(StallDetector, silence_s=1.0))
    with closing(TopicBench(proxy.bootstrap_servers)) as bench:
        bench.make("orders")
        stream = bench.source.open(Asked("orders"), lambda: None)
        reading = Reading(stream)
        reading.has_begun()
        bench.write("orders", {"a": {"n": 1}, "b": {"n": 2}})
        reading.has({"a": {"n": 1}, "b": {"n": 2}})
        told: list[bytes] = []
        proxy.alter = as_without_brokers(proxy, told)
        # Others ask more rarely than the stream does.
        reading.read(lambda: len(told) >= 3, "it was told")
        proxy.reset()
        bench.write("orders", {"a": {"n": 3}, "c": {"n": 4}})
        reading.has({"a": {"n": 3}, "b": {"n": 2}, "c": {"n": 4}})
        assert reading.ended == {}
        stream.close()


def test_a_client_for_questions_that_was_told_of_no_broker_is_replaced(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether topics are there would never be known again, and no partition would be dealt."""
    monkeypatch.setattr(document_topics, "TIMEOUT_S", 2.0)
    servers = proxy.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    topic = f"orders-{secrets.token_hex(4)}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    del admin
    asking = DocumentTopics(servers)
    asking._settings.update(FORGETFUL)
    asking.renew(asking.admin)

    def is_answered() -> bool:
        with suppress(KafkaException):
            return topic in asking.facts([topic])
        return False

    wait_until(is_answered, "it is answered")
    lost = asking.admin
    told: list[bytes] = []
    proxy.alter = as_without_brokers(proxy, told)
    wait_until(lambda: not is_answered(), "it has lost all brokers")
    proxy.reset()
    wait_until(is_answered, "it is answered again", 60.0)
    assert told
    assert asking.admin is not lost


def test_a_member_that_was_told_of_no_broker_is_replaced(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of another topic would never be dealt to it."""
    monkeypatch.setattr(topic_source, "consumer", forgetful)
    monkeypatch.setattr(topic_source, "SILENCE_S", 1.0)
    with closing(TopicBench(proxy.bootstrap_servers)) as bench:
        bench.make("orders")
        told: list[bytes] = []
        proxy.alter = as_without_brokers(proxy, told)
        wait_until(lambda: len(told) > 0, "it was told")
        proxy.reset()
        bench.make("more")
        bench.owned("orders")

"""Spark in this process, on a real broker: what is read, decoded, folded, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from coordinator import codec
from coordinator.core.model.entities import Setting
from coordinator.core.model.stream_records import StreamBegin, Sync, Tick
from coordinator.core.timestamps.progress import TimestampProgress
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import (
    HW,
    RESTART,
    STABILITY_HISTORY,
    STREAM_BEGIN,
    STREAM_PARTITIONS,
    SYNC,
    TIMESTAMP_STATE,
    topic_name,
)
from schemas.registry import FOLDER, MAGIC, Registry, Schema, registry
from streaming.spark.crash_points import Crasher
from streaming.spark.queries import end_session
from streaming.spark.session import SparkOptions, start
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.query_state import NOTHING_READ, Record, keys_of
from streaming.timestamps.rows import layouts, rows_of
from streaming.timestamps.source import columns
from streaming.timestamps.state_store import FencedError, RefusedError, StateStore
from tests.integration.cluster import wait_until
from tests.integration.streaming import (
    NOW_MS,
    VBUCKETS,
    Streams,
    Topics,
    a_long_input,
    checked,
    outcome,
    read_through,
    seqnos,
)
from tests.support.indexes import make_sync
from tests.support.ports import reserve_port

pytestmark = pytest.mark.integration

Make = Callable[[str], SparkSession]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Return Spark with a master; one JVM serves all tests, and one session at a time."""
    folder = tmp_path_factory.mktemp("spark")
    running: dict[str, SparkSession] = {}

    def make(master: str) -> SparkSession:
        if master not in running:
            for other in running.values():
                other.stop()
            running.clear()
            running[master] = start(SparkOptions("test", master, folder))
        return running[master]

    yield make
    for session in running.values():
        end_session(session)


@pytest.fixture
def spark(sessions: Make) -> SparkSession:
    return sessions("local[2]")


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker.bootstrap_servers)


def test_syncs_become_stability_and_bad_records_dead_letters(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    streams = topics.bucket().begin()
    streams.sync(5)
    topics.put(SYNC, b"garbage", 2)
    topics.put(SYNC, MAGIC + bytes(8) + b"of a schema that nobody knows", 3)
    topics.put(
        SYNC,
        codec.encode(make_sync(1, bucket="travel"))[:-3],
        1,
    )
    topics.put(STREAM_BEGIN, Tick(1, 1), 1)
    topics.put(HW, b"", 0)
    topics.put(
        SYNC,
        make_sync(VBUCKETS, bucket="travel"),
        0,
    )
    streams.sync(7)
    topics.tick(NOW_MS)
    read_through(spark, topics, tmp_path)
    streams.sync(9)
    topics.tick(NOW_MS + 5_000)
    read_through(spark, topics, tmp_path)
    checked(topics.history())
    assert set(seqnos(topics.history()[-1])) == {9}
    letters = {letter.topic.partition(".")[2]: [] for letter in topics.dead_letters()}
    for letter in topics.dead_letters():
        letters[letter.topic.partition(".")[2]].append((letter.partition, letter.reason))
    assert {topic: sorted(p for p, _ in found) for topic, found in letters.items()} == {
        SYNC: [0, 1, 2, 3],
        STREAM_BEGIN: [1],
        HW: [0],
    }
    reasons = dict(letters[SYNC])
    assert "not_avro" in reasons[2]
    assert "unknown_schema" in reasons[3]
    assert "bad_body" in reasons[1]


def test_what_was_aborted_is_no_input(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    streams = topics.bucket().begin()
    streams.sync(5)
    producer = Producer(
        {
            "bootstrap.servers": topics.servers,
            "transactional.id": f"{topics.name}.stranger",
            "log_level": 2,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for vbucket in range(VBUCKETS):
        record = codec.encode(streams.a_sync(vbucket, 99))
        for partition in range(STREAM_PARTITIONS):
            producer.produce(topic_name(topics.name, SYNC), record, partition=partition)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    streams.sync(7)
    topics.tick(NOW_MS)
    read_through(spark, topics, tmp_path)
    checked(topics.history())
    assert set(seqnos(topics.history()[-1])) == {7}
    assert topics.dead_letters() == []


def test_writers_of_an_older_and_a_newer_version_are_read_side_by_side(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The newer version has one field more, the older one lacks one of today's."""
    current = json.loads((FOLDER / "Sync.avsc").read_text())
    newer = {**current, "fields": [*current["fields"], _field("zone", "string", "")]}
    *first, last = current["fields"]
    known = {**current, "fields": [*first, {**last, "default": 0}]}
    older = {**current, "fields": first}
    folder = tmp_path / "schemas"
    (folder / "released").mkdir(parents=True)
    (folder / "Sync.avsc").write_text(json.dumps(known))
    for name, schema in (("Sync.1", older), ("Sync.2", newer), ("Sync.3", current)):
        (folder / "released" / f"{name}.avsc").write_text(json.dumps(schema))
    values = [
        _encoded(
            schema,
            make_sync(
                n, projector=1, connection=2, ordinal=n, vbuuid=2**64 - 1, seqno=2**63 + n, at_ms=4
            ),
        )
        for n, schema in enumerate((older, newer, current))
    ]
    names = [topic_name("c", name) for name in INPUTS]
    rows = [(names[0], 0, n, None, bytearray(value)) for n, value in enumerate(values)]
    raw = spark.createDataFrame(
        rows, "topic string, partition int, offset long, key binary, value binary"
    )
    found = rows_of(columns(raw, names).toArrow(), {}, layouts(Registry(folder)))
    assert found.raw == ()
    (syncs,) = found.syncs
    assert [record for *_, record in syncs.records()] == [
        make_sync(n, projector=1, connection=2, ordinal=n, vbuuid=2**64 - 1, seqno=2**63 + n)
        for n in range(3)
    ]


def test_streams_of_older_and_of_todays_writers_are_read_side_by_side(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    versions = registry().versions(StreamBegin.__name__)
    assert len(versions) > 1
    to_avro = codec.TO_AVRO[StreamBegin]
    for version in versions:
        streams = topics.bucket(f"b{version.fingerprint}")
        streams.begin(lambda begin, version=version: version.encode(to_avro(begin))).sync(5)
    topics.tick(NOW_MS)
    read_through(spark, topics, tmp_path)
    for version in versions:
        assert set(seqnos(topics.history(f"b{version.fingerprint}")[-1])) == {5}
    assert topics.dead_letters() == []


def _field(name: str, kind: str, default: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "default": default}


def _encoded(schema: dict[str, Any], record: Sync) -> bytes:
    fields = dict(codec.TO_AVRO[Sync](record), zone="z")
    made = Schema("Sync", fastavro.parse_schema(schema, _force=True))
    return made.encode({field["name"]: fields[field["name"]] for field in schema["fields"]})


@pytest.mark.matrix
def test_the_same_input_gives_the_same_output_wherever_it_is_reduced(
    sessions: Make, broker: Broker, tmp_path: Path
) -> None:
    """In the driver with one thread; in executors with two, among more tasks than partitions."""
    outcomes = []
    for master, more in (
        ("local[1]", {"executors_from": NEVER}),
        ("local[2]", {"executors_from": 0, "partitions_min": 24}),
    ):
        topics = Topics(broker.bootstrap_servers)
        a_long_input(topics)
        read_through(sessions(master), topics, tmp_path / master, offsets_max=400, **more)
        assert len(progresses(topics)) > 2, "there were several batches"
        outcomes.append(outcome(topics))
    assert all(len(history) > 2 for history in outcomes[0][:2])
    told = {(type(one).__name__, one.reason) for one in outcomes[0][2]}
    assert told >= {
        ("RestartTimestamp", "a question"),
        ("RestartTimestamp", "no_owner"),
        ("RollbackEnquiry", "seqno_regressed"),
        ("RollbackEnquiry", "sync_missing"),
    }
    assert outcomes[0] == outcomes[1]


NEVER = 10**9


def progresses(topics: Topics) -> list[TimestampProgress]:
    """Return how far it had come after each batch."""
    kept = topics.read(TIMESTAMP_STATE)
    return [one for one in kept if isinstance(one, TimestampProgress)]


@pytest.fixture
def read_halfway(spark: SparkSession, topics: Topics, tmp_path: Path) -> Streams:
    """Streams of which an application has read the first half."""
    streams = topics.bucket().begin().sync(5)
    topics.tick(NOW_MS)
    read_through(spark, topics, tmp_path)
    streams.sync(7)
    topics.tick(NOW_MS + 5_000)
    return streams


def test_every_query_goes_on_where_the_state_stands_and_leaves_nothing(
    spark: SparkSession, topics: Topics, tmp_path: Path, read_halfway: Streams
) -> None:
    before = progresses(topics)
    read_through(spark, topics, tmp_path)
    checked(topics.history())
    assert len(progresses(topics)) == len(before) + 1
    assert set(seqnos(topics.history()[-1])) == {7}
    assert len(topics.history()) == 2
    read_through(spark, topics, tmp_path)
    assert len(progresses(topics)) == len(before) + 1, "there was nothing to read"
    assert not list((tmp_path / "checkpoints").glob("*")), "nobody needs what Spark has noted"


def test_a_state_that_lost_its_end_goes_on_from_there(
    spark: SparkSession, topics: Topics, tmp_path: Path, read_halfway: Streams
) -> None:
    """As if Kafka had lost the end of the state with the power: nothing that was read is lost."""
    behind = topics.progress()
    assert behind is not None
    read_through(spark, topics, tmp_path)
    read_halfway.sync(9)
    topics.tick(NOW_MS + 10_000)
    read_through(spark, topics, tmp_path)
    topics.put(TIMESTAMP_STATE, behind, key="*")
    topics.flush()
    read_halfway.sync(11)
    topics.tick(NOW_MS + 15_000)
    read_through(spark, topics, tmp_path)
    assert set(seqnos(topics.history()[-1])) == {11}
    checked(topics.history())


def test_without_its_state_it_goes_on_above_what_it_told(
    spark: SparkSession, topics: Topics, tmp_path: Path, read_halfway: Streams
) -> None:
    read_halfway.ask(1, ())
    topics.tick(NOW_MS + 6_000)
    read_through(spark, topics, tmp_path)
    told = len(topics.history()), len(topics.read(RESTART))
    assert told == (2, 1)
    topics.erase(TIMESTAMP_STATE)
    read_halfway.sync(9)
    topics.tick(NOW_MS + 12_000)
    read_through(spark, topics, tmp_path)
    checked(topics.history())
    assert (len(topics.history()), set(seqnos(topics.history()[-1]))) == (3, {9})
    assert [one.number for one in topics.read(RESTART)] == [1, 2]


def test_what_is_deleted_unread_is_told_of_and_reading_goes_on(
    spark: SparkSession, topics: Topics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read_through(spark, topics, tmp_path)
    assert topics.progress() is None, "there is nothing to read"
    topics.delete(SYNC)
    streams = topics.bucket().begin().sync(5)
    topics.tick(NOW_MS)
    read_through(spark, topics, tmp_path)
    streams.sync(7)
    topics.tick(NOW_MS + 5_000)
    assert "_lost]" not in capfd.readouterr().err
    topics.delete(SYNC)
    read_through(spark, topics, tmp_path)
    assert capfd.readouterr().err.count("[offsets_lost]") == STREAM_PARTITIONS
    streams.sync(9)
    topics.tick(NOW_MS + 10_000)
    read_through(spark, topics, tmp_path)
    assert "_lost]" not in capfd.readouterr().err
    checked(topics.history())
    assert [set(seqnos(one)) for one in topics.history()] == [{5}, {9}]


def test_what_kafka_refuses_ends_it_and_is_written_when_kafka_takes_it(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.bucket().begin().sync(5)
    topics.put(SYNC, b"x" * 990_000, 2)
    topics.tick(NOW_MS)
    topics.let_through(STABILITY_HISTORY, 100)
    with pytest.raises(RefusedError, match=r"stability-history: MSG_SIZE_TOO_LARGE.*\[output_ref"):
        read_through(spark, topics, tmp_path)
    assert (topics.history(), topics.stability(), topics.dead_letters()) == ([], None, [])
    assert topics.progress() is None
    topics.let_through(STABILITY_HISTORY, 1_048_588)
    read_through(spark, topics, tmp_path)
    checked(topics.history())
    assert set(seqnos(topics.history()[-1])) == {5}
    (letter,) = topics.dead_letters()
    assert letter.partition == 2
    assert topics.progress() is not None


def test_settings_change_while_it_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    streams = topics.bucket(period_ms=3_600_000).begin().sync(5)
    for at_ms in (NOW_MS, NOW_MS + 5_000):
        streams.sync(at_ms - NOW_MS + 6)
        topics.tick(at_ms)
        read_through(spark, topics, tmp_path)
    quiet = len(topics.history())
    topics.write(Setting("timestamps/travel", '{"period_ms": 100}'))
    topics.tick(NOW_MS + 6_000)
    read_through(spark, topics, tmp_path)
    assert len(topics.history()) == quiet + 1


def test_applications_share_the_buckets_and_the_parts_may_change(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """From one application to three parts, and back; nothing is lost, doubled or told by two."""
    names = [f"b{number}" for number in range(6)]
    streams = [topics.bucket(name, 4).begin() for name in names]
    halves = [[BucketShard(number, 3) for number in (1, 2, 3)], [WHOLE]]
    seqno, at_ms = 5, NOW_MS
    for turn in ([WHOLE], *halves, halves[0]):
        for shard in turn:
            topics.tick(at_ms, shard)
        for one in streams:
            one.sync(seqno)
        topics.put(SYNC, b"garbage")
        topics.flush()
        for shard in turn:
            topics.tick(at_ms + 2_000, shard)
        for shard in turn:
            read_through(spark, topics, tmp_path, shard=shard)
        for name in names:
            checked(topics.history(name))
            assert set(seqnos(topics.history(name)[-1])) == {seqno}, (turn, name)
        seqno, at_ms = seqno + 1, at_ms + 10_000
    assert [len(topics.history(name)) for name in names] == [4] * len(names)
    assert len({letter.offset for letter in topics.dead_letters()}) == 4


def test_who_divides_the_buckets_otherwise_fences_who_did_before(
    topics: Topics,
) -> None:
    first, second = BucketShard(1, 2), BucketShard(2, 2)
    stores = {
        shard: StateStore(topics.servers, topics.name, Crasher(""), shard)
        for shard in (WHOLE, first, second)
    }
    for shard in (WHOLE, first):
        query_state = stores[shard].open()
        stores[shard].commit([Record(TIMESTAMP_STATE, keys_of(shard).progress, NOTHING_READ)])
        assert query_state.shard == shard
    with pytest.raises(FencedError):
        stores[WHOLE].commit([Record(TIMESTAMP_STATE, "*", NOTHING_READ)])
    assert stores[second].open().obsolete == ()
    stores[second].commit([Record(TIMESTAMP_STATE, keys_of(second).progress, NOTHING_READ)])
    stores[first].commit([Record(TIMESTAMP_STATE, keys_of(first).progress, NOTHING_READ)])
    assert stores[second].open().obsolete == ("*",)
    for store in stores.values():
        store.close()


def test_spark_tells_the_metrics_how_its_batches_went(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.bucket().begin().sync(5)
    topics.tick(NOW_MS)
    made = read_through(spark, topics, tmp_path, metrics_port=reserve_port())
    found = made._metrics.registry.get_sample_value

    def heard() -> bool:
        return bool(found("timestamps_phase_seconds_count", {"phase": "spark_addBatch"}))

    wait_until(heard, "Spark has told of its batch")
    for phase in ("read", "fold", "transaction"):
        assert (found("timestamps_phase_seconds_count", {"phase": phase}) or 0) >= 1
    assert (found("timestamps_records_total") or 0) > VBUCKETS
    assert (found("timestamps_stability_age_seconds", {"bucket": "travel"}) or 0) > 0

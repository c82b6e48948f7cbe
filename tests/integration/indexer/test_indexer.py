"""The indexer as a real process, against a real broker, a real disk and real signals."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
from confluent_kafka.admin import AdminClient
from rocksdict import WriteBatch

from coordinator import codec
from coordinator.core.consensus.effects import OpenProducer
from coordinator.core.keys.collation import encode
from coordinator.core.keys.scan_pages import unpack
from coordinator.core.model.entities import DROPPING, READY, Index, Shard, Slice
from coordinator.core.model.records import (
    ALLOCATED,
    ClusterFormed,
    DeadLetter,
    Event,
    Holding,
    HoldingsReported,
    HoldingsRequested,
    IndexerHeartbeat,
    Mutation,
)
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.producers import TransactionalProducer
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DEAD_LETTER,
    HEARTBEAT,
    STATECONTEXT,
    topic_name,
)
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import INDEX_KEY, STATE, State, entries_prefix, pack_state
from indexer_sim.bucket.names import folder_name
from indexer_sim.bucket.storage import Storage
from tests.integration.cluster import JSON
from tests.integration.indexer_process import (
    DEADLINE_S,
    INDEXER,
    Cluster,
    Listener,
    Process,
    Start,
    an_index,
    until,
)

pytestmark = pytest.mark.integration

STOP_S = 15.0


@pytest.fixture
def acks(cluster: Cluster) -> Iterator[Listener]:
    with cluster.listen(ACKS) as listener:
        yield listener


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left on a file system."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast


def test_an_index_is_allocated_answered_and_released(
    cluster: Cluster, start: Start, acks: Listener, tmp_path: Path
) -> None:
    process = start()
    cluster.write(an_index(7, bucket="Tra.vel#1"))
    allocated = acks.answer(7, "allocated")
    assert allocated.slices == (0, 1)
    assert allocated.indexer == INDEXER
    folder = tmp_path / "indexer" / "buckets" / folder_name("Tra.vel#1")
    assert folder.is_dir()
    assert acks.answer(7, "allocated") == allocated, "an answer is repeated"
    cluster.write(an_index(7, DROPPING, bucket="Tra.vel#1"))
    released = acks.answer(7, "released")
    assert released.slices == (0, 1)
    assert not folder.exists()
    assert acks.answer(7, "released") == released
    cluster.write(7)
    cluster.write(an_index(8))
    acks.answer(8, "allocated")
    acks.drain()
    assert acks.answer(8, "allocated")
    assert not any(record.index_id == 7 for record in acks.records)
    assert process.stop() < STOP_S


def test_heartbeats_say_what_is_held(cluster: Cluster, start: Start) -> None:
    cluster.write_raw(
        COMMIT,
        codec.encode(
            ClusterFormed(
                cluster_id="id",
                cas_base=5_000,
                roster=(1, 2, 3),
                minimum=2,
                log_capacity=100,
                request_window_ms=1,
                at_ms=1,
            )
        ),
    )
    process = start()
    with cluster.listen(HEARTBEAT) as beats:
        first: IndexerHeartbeat = beats.hears("a heartbeat", lambda _: True)
        assert (first.indexer, first.zone, first.slices) == (INDEXER, "z1", 0)
        assert first.address.startswith("http://127.0.0.1:")
        assert first.pid == process.process.pid
        cluster.write(an_index(1), an_index(2, bucket="other"))
        # `commit` and `statecontext` are read side by side: what is held may be known before the
        # base of all CAS is, and no CAS is told without it.
        beat = beats.hears("a heartbeat of both", lambda beat: beat.slices == 4 and beat.cas)
        assert beat.incarnation == first.incarnation
        assert beat.cas == 5_001
        beats.hears("a heartbeat with bytes", lambda beat: beat.bytes > 0)


def test_what_was_never_committed_is_not_allocated(
    cluster: Cluster, start: Start, acks: Listener
) -> None:
    start()
    cluster.write(an_index(1), abort=True)
    cluster.write(an_index(2))
    acks.answer(2, "allocated")
    with cluster.listen(HEARTBEAT) as beats:
        beats.hears("the slices of one index", lambda beat: beat.slices == 2)


def test_a_killed_indexer_finds_what_it_had_and_repeats_its_answers(
    cluster: Cluster, start: Start, acks: Listener
) -> None:
    process = start()
    cluster.write(an_index(1), an_index(2, READY), an_index(3, DROPPING))
    before = acks.answer(1, "allocated")
    acks.answer(3, "released")
    with cluster.listen(HEARTBEAT) as beats:
        beats.hears("that it holds both", lambda beat: beat.slices == 4)
    process.kill()
    cluster.write(an_index(4))
    acks.drain()
    start()
    again = acks.answer(1, "allocated")
    assert again.incarnation != before.incarnation
    assert again.slices == before.slices
    acks.answer(3, "released")
    acks.answer(4, "allocated")
    with cluster.listen(HEARTBEAT) as beats:
        fresh = beats.hears("a new heartbeat", lambda beat: beat.incarnation == again.incarnation)
        assert fresh.slices in (4, 6)
        beats.hears("all slices", lambda beat: beat.slices == 6)


def test_a_full_disk_is_a_refusal_and_space_is_enough_to_recover(
    cluster: Cluster, start: Start, acks: Listener, small_disk: Path
) -> None:
    process = start(small_disk / "indexer")
    cluster.write(an_index(1))
    acks.answer(1, "allocated")
    ballast = fill(small_disk)
    cluster.write(an_index(2, bucket="elsewhere"))
    refused = acks.answer(2, "refused")
    assert "No space left on device" in refused.reason
    assert str(small_disk) not in refused.reason
    ballast.unlink()
    acks.drain()
    assert acks.answer(2, "refused"), "a refusal is final: the coordinator may have acted on it"
    cluster.write(2)
    cluster.write(an_index(3, bucket="elsewhere"), an_index(4))
    acks.answer(3, "allocated")
    acks.answer(4, "allocated")
    process.kill()
    start(small_disk / "indexer")
    acks.drain()
    acks.answer(1, "allocated")
    acks.answer(3, "allocated")


def test_on_a_full_disk_indexes_can_be_dropped(
    cluster: Cluster, start: Start, acks: Listener, small_disk: Path
) -> None:
    folder = small_disk / "indexer"
    process = start(folder)
    reserve = folder / "reserve"
    until("a reserve", reserve.exists)
    cluster.write(an_index(1), an_index(2), an_index(3))
    acks.answer(3, "allocated")
    ballast = fill(small_disk)
    refused = _allocate_until_refused(cluster, acks)
    fill(small_disk)
    cluster.write(an_index(1, DROPPING))
    acks.answer(1, "released")
    assert not reserve.exists()
    fill(small_disk)
    process.kill()
    cluster.write(*range(10, refused + 1))
    ballast.unlink()
    start(folder)
    cluster.write(an_index(2, DROPPING))
    acks.answer(2, "released")
    until("a reserve again", reserve.exists)


def _allocate_until_refused(cluster: Cluster, acks: Listener) -> int:
    """Allocate until the bucket's log has filled the page that it has; return the last index."""
    for index_id in range(10, 60):
        cluster.write(an_index(index_id))
        answer = acks.hears("an answer", lambda r, wanted=index_id: r.index_id == wanted)
        if answer.answer == "refused":
            return index_id
    raise AssertionError("a full disk took everything")


def test_a_file_size_limit_is_a_refusal_too(cluster: Cluster, start: Start, acks: Listener) -> None:
    process = start()
    cluster.write(an_index(1))
    acks.answer(1, "allocated")
    process.limit_file_size(0)
    cluster.write(an_index(2), an_index(3, bucket="elsewhere"))
    assert "File too large" in acks.answer(2, "refused").reason
    acks.answer(3, "refused")
    assert process.process.poll() is None
    process.limit_file_size(resource.RLIM_INFINITY)
    cluster.write(2, 3)
    cluster.write(an_index(4), an_index(5, bucket="elsewhere"))
    acks.answer(4, "allocated")
    acks.answer(5, "allocated")
    process.kill()
    acks.drain()
    start()
    acks.answer(1, "allocated")
    acks.answer(5, "allocated")


def test_what_cannot_be_read_is_a_dead_letter_and_reading_goes_on(
    cluster: Cluster, start: Start, acks: Listener
) -> None:
    start()
    cluster.write(an_index(1))
    acks.answer(1, "allocated")
    garbage = {
        cluster.write_raw(STATECONTEXT, b"garbage", b"index/1"),
        cluster.write_raw(STATECONTEXT, codec.encode(an_index(1)), b"index/1"),
        cluster.write_raw(STATECONTEXT, codec.encode(_event(an_index(5))), b"index/6"),
    }
    cluster.write(an_index(2))
    acks.answer(2, "allocated")
    acks.answer(1, "allocated")
    with cluster.listen(DEAD_LETTER) as dead_letters:
        for _ in range(len(garbage)):
            letter: DeadLetter = dead_letters.hears("a dead letter", lambda _: True)
            assert letter.topic == topic_name(cluster.name, STATECONTEXT)
            garbage.remove(letter.offset)
            assert letter.reason


def _event(index: Index) -> Event:
    mutation = Mutation("IndexCreated", index.key, codec.encode(index), index)
    return Event(mutation, TxnId(1, 1), 0, 1)


def test_slices_come_and_go_with_the_topology(cluster: Cluster, start: Start) -> None:
    start()
    with cluster.listen(HEARTBEAT) as beats:
        one = an_index(1, READY)
        cluster.write(one)
        beats.hears("two slices", lambda beat: beat.slices == 2)
        cluster.write(replace(one, slices=tuple(Slice(n, INDEXER) for n in range(5))))
        beats.hears("five slices", lambda beat: beat.slices == 5)
        cluster.write(replace(one, slices=(Slice(0, 2), Slice(1, 2), Slice(4, 2, (INDEXER,)))))
        beats.hears("one slice", lambda beat: beat.slices == 1)
        cluster.write(replace(one, slices=(Slice(0, 2),)))
        beats.hears("none", lambda beat: beat.slices == 0)


def test_after_a_long_absence_drops_that_the_log_forgot_are_found(
    cluster: Cluster, start: Start, acks: Listener, tmp_path: Path
) -> None:
    process = start()
    cluster.write(an_index(1), an_index(2, READY))
    acks.answer(1, "allocated")
    process.stop()
    storage = Storage(tmp_path / "indexer", f"indexer {INDEXER} of cluster {cluster.name}")
    position, _ = storage.position() or (0, 0)
    forgotten = codec.encode(an_index(99, READY))
    storage.allocate("travel", 99, frozenset({0, 1}), forgotten)
    storage.save(position, {99: forgotten}, at_ms=0)
    storage.close()
    again = start()
    until("the index is released", lambda: "index 99: released 2 slices" in again.said)
    with cluster.listen(HEARTBEAT) as beats:
        beats.hears("the others", lambda beat: beat.slices == 4)


def test_an_indexer_that_is_told_to_read_the_state_again_keeps_what_it_has(
    cluster: Cluster, start: Start, acks: Listener
) -> None:
    """What it has was written after it came: the log's end of then is not the end to read to."""
    cluster.write_raw(
        COMMIT,
        codec.encode(
            ClusterFormed(
                cluster_id="c",
                cas_base=1,
                roster=(1,),
                minimum=1,
                log_capacity=10,
                request_window_ms=5,
                at_ms=6,
            )
        ),
    )
    process = start()
    with cluster.listen(HEARTBEAT) as beats:
        beat = beats.hears("a heartbeat", lambda r: isinstance(r, IndexerHeartbeat))
    cluster.write(an_index(1))
    answer = acks.answer(1, ALLOCATED)
    shards = (Shard(INDEXER, answer.shard),)
    cluster.write(replace(an_index(1, READY), shards=shards))

    def ask(number: int, *, reread: bool) -> None:
        asked = HoldingsRequested(1, INDEXER, beat.incarnation, number, reread)
        cluster.write_raw(HEARTBEAT, codec.encode(asked), str(INDEXER).encode())

    for number, reread in ((1, False), (2, True), (4, False)):
        if number == 4:  # Right behind another one, which has it read the state again.
            ask(3, reread=True)
        ask(number, reread=reread)
        reported = acks.hears(
            "a report",
            lambda r, n=number: isinstance(r, HoldingsReported) and r.round == n,
        )
        assert reported.holdings == (Holding(1, answer.shard, answer.slices),)
    assert "released" not in process.said


@pytest.mark.parametrize("foreign", [{"id": 2}, {"name": "other"}])
def test_the_folder_of_another_indexer_is_refused(
    cluster: Cluster, start: Start, acks: Listener, foreign: dict[str, Any]
) -> None:
    process = start()
    cluster.write(an_index(1))
    acks.answer(1, "allocated")
    process.stop()
    said = process.said
    other = start(**foreign)
    assert other.process.wait(DEADLINE_S) == 78
    assert re.fullmatch(r"indexer \d: .* belongs to .*\n", other.said[len(said) :])


def test_a_log_that_was_replaced_is_refused(
    cluster: Cluster, start: Start, acks: Listener, tmp_path: Path, broker: Broker
) -> None:
    process = start()
    cluster.write(an_index(1), an_index(2))
    acks.answer(2, "allocated")
    _delete_topic(broker.bootstrap_servers, topic_name(cluster.name, STATECONTEXT))
    until("the topic is back", cluster.ensure_topics_exist)
    assert process.process.wait(DEADLINE_S) == 78
    assert "the log was lost or replaced" in process.said
    again = start()
    assert again.process.wait(DEADLINE_S) == 78
    assert (tmp_path / "indexer" / "buckets" / "travel").is_dir()


def _delete_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    for future in admin.delete_topics([topic], operation_timeout=10).values():
        future.result()
    until("the topic is gone", lambda: topic not in admin.list_topics(timeout=5).topics)


def test_a_busy_folder_is_one_line(cluster: Cluster, start: Start, acks: Listener) -> None:
    start()
    cluster.write(an_index(1))
    acks.answer(1, "allocated")
    second = start()
    assert second.process.wait(DEADLINE_S) == 1
    assert "lock" in second.said.splitlines()[-1]


@pytest.mark.matrix
def test_the_broker_may_go_away_and_come_back(tmp_path: Path, tmp_path_factory: Any) -> None:
    with Broker(tmp_path_factory.mktemp("own-kafka")) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        process = Process(cluster, tmp_path / "indexer")
        stranded = Process(cluster, tmp_path / "stranded", id=2)
        try:
            with cluster.listen(ACKS) as acks:
                cluster.write(an_index(1))
                acks.answer(1, "allocated")
                until("the other follows", lambda: "following" in stranded.said)
                cluster.close()
            broker.stop()
            assert stranded.stop() < STOP_S, "a stop needs no broker"
            broker.start()
            cluster = _again(cluster)
            with cluster.listen(ACKS) as acks:
                acks.drain()
                cluster.write(an_index(2))
                acks.answer(2, "allocated")
                acks.answer(1, "allocated")
            assert process.stop() < STOP_S
        finally:
            process.kill()
            stranded.kill()
            cluster.close()


def _again(cluster: Cluster) -> Cluster:
    """Return the coordinator's side of the same topics, connected anew."""
    made = Cluster(cluster.bootstrap_servers)
    made.close()
    made.name = cluster.name
    made._writer = TransactionalProducer(
        made.bootstrap_servers, made.name, made._completions.append
    )
    made._writer.order(OpenProducer(1))
    return made


def test_an_idle_indexer_takes_next_to_nothing(
    cluster: Cluster, start: Start, acks: Listener
) -> None:
    process = start()
    cluster.write(*(an_index(n, READY, f"b{n % 4}") for n in range(2, 30)), an_index(1))
    acks.answer(1, "allocated")
    cluster.write(an_index(1, READY))
    seen = psutil.Process(process.process.pid)
    with cluster.listen(HEARTBEAT) as beats:
        beats.hears("all slices", lambda beat: beat.slices == 58)
        before, begin = sum(seen.cpu_times()[:2]), time.monotonic()
        for _ in range(20):
            beats.hears("a heartbeat", lambda beat: beat.incarnation)
        share = (sum(seen.cpu_times()[:2]) - before) / (time.monotonic() - begin)
    print(f"RSS {seen.memory_info().rss / 2**20:.0f} MiB, CPU {share:.1%}")
    assert seen.memory_info().rss < 150 * 2**20
    assert share < 0.25


def scanned(address: str, **asked: Any) -> httpx.Response:
    body = {"begin": "", "end": "ff", "slices": [0, 1], **asked}
    url = f"{address}/v1/slices/scan"
    return httpx.post(url, content=orjson.dumps(body), headers=JSON, trust_env=False)


def test_scans_are_answered_where_heartbeats_say(
    cluster: Cluster, start: Start, acks: Listener, tmp_path: Path
) -> None:
    process = start()
    cluster.write(an_index(7))
    acks.answer(7, "allocated")
    with cluster.listen(HEARTBEAT) as beats:
        address = beats.hears("a heartbeat with slices", lambda beat: beat.slices == 2).address
        early = scanned(address, index=7)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "index_building")
        assert scanned(address, index=8).json()["error"]["code"] == "index_not_found"
        assert process.stop() < STOP_S

        bucket = Bucket("travel", tmp_path / "indexer" / "buckets" / "travel")
        batch = WriteBatch(raw_mode=True)
        for piece, key in ((0, 3), (1, 2), (1, 4)):
            batch.put(entries_prefix(7, piece) + encode(key) + b"doc", b"")
        batch.put(STATE + INDEX_KEY.pack(7), pack_state(State(1, complete=True)))
        bucket.write(batch)
        bucket.database.close()

        beats.drain()
        restarted = start()
        pid = restarted.process.pid
        address = beats.hears("a heartbeat again", lambda beat: beat.pid == pid).address
        page = unpack(scanned(address, index=7, build=1).content)
        assert page.entries == [encode(key) + b"doc" for key in (2, 3, 4)]
        assert scanned(address, index=7, build=2).json()["error"]["code"] == "index_building"
        assert restarted.stop() < STOP_S, "connections that idle keep nobody"

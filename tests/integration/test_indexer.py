"""The indexer as a real process, against a real broker, a real disk and real signals."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

from coordinator import codec
from coordinator.core.effects import Abandon, Conclude, OpenProducer, WriteEvents
from coordinator.core.entities import DROPPING, INIT, Index, Slice, index_key
from coordinator.core.inputs import Ended, ProducerFailed
from coordinator.core.records import (
    Event,
    Mutation,
    SliceAnswered,
)
from coordinator.core.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.producers import TransactionalProducer
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    ACKS,
    ensure_topics,
    topic_name,
)
from indexer_sim.storage import folder_name

pytestmark = pytest.mark.integration

DEADLINE_S = 20.0
STOP_S = 2.0
INDEXER = 1
Found = TypeVar("Found")


def until(what: str, probe: Callable[[], Found | None], deadline_s: float = DEADLINE_S) -> Found:
    """Return what `probe` finds, as soon as it finds something."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {deadline_s} s: {what}")


def an_index(index_id: int, state: str = INIT, bucket: str = "travel", **more: Any) -> Index:
    slices = more.pop("slices", (Slice(0, INDEXER), Slice(1, 2, (INDEXER,)), Slice(2, 2)))
    return Index(
        index_id, f"i{index_id}", bucket, ("a",), None, False, "gsi", False, state, None, slices,
        f"r{index_id}", 1,
    )  # fmt: skip


class Cluster:
    """The topics of a cluster of its own, and the coordinator's side of them."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.name = f"t{uuid.uuid4().hex[:8]}"
        ensure_topics(bootstrap_servers, self.name, durable=False)
        self._completions: list[Any] = []
        self._writer = TransactionalProducer(bootstrap_servers, self.name, self._completions.append)
        self._writer.order(OpenProducer(1))
        self._tokens = itertools.count(2)
        self._sequence = itertools.count(1)

    def close(self) -> None:
        self._writer.close()

    def write(self, *indexes: Index | int, abort: bool = False) -> None:
        """Write index states in one transaction; a number is the index that is gone."""
        txn = TxnId(1, next(self._sequence))
        mutations = []
        for index in indexes:
            if isinstance(index, int):
                mutations.append(Mutation("IndexDropped", index_key(index), None, None))
            else:
                value = codec.encode(index)
                mutations.append(Mutation("IndexChanged", index.key, value, index))
        events = tuple(
            Event(mutation, txn, place, len(mutations)) for place, mutation in enumerate(mutations)
        )
        token = next(self._tokens)
        self._writer.order(WriteEvents(0, events))
        self._writer.order(Abandon(token) if abort else Conclude(token, ()))
        until("the transaction ends", lambda: Ended(token) in self._completions)
        assert not any(isinstance(one, ProducerFailed) for one in self._completions)

    def write_raw(self, topic: str, value: bytes, key: bytes | None = None) -> int:
        """Write a record as it is; return its offset."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        producer.produce(
            topic_name(self.name, topic),
            value,
            key,
            partition=0,
            on_delivery=lambda error, message: offsets.append(message.offset()),
        )
        producer.flush(10)
        return offsets[0]

    def listen(self, topic: str) -> Listener:
        return Listener(self, topic)


class Listener:
    """Reads a topic from its start, and keeps all that it has read."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        from confluent_kafka import TopicPartition

        self._consumer = consumer(cluster.bootstrap_servers, "listener")
        self._consumer.assign([TopicPartition(topic_name(cluster.name, topic), 0, 0)])
        self.records: list[Any] = []

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self) -> None:
        for message in self._consumer.consume(100, 0.05):
            if message.error() is None:
                self.records.append(codec.decode(message.value() or b""))

    def hears(self, what: str, fits: Callable[[Any], bool]) -> Any:
        """Return the first record from here on that fits; what came before it is forgotten."""

        def probe() -> Any:
            self.poll()
            while self.records:
                record = self.records.pop(0)
                if fits(record):
                    return record
            return None

        return until(what, probe)

    def answer(self, index_id: int, answer: str) -> SliceAnswered:
        return self.hears(
            f"{answer} for index {index_id}",
            lambda r: isinstance(r, SliceAnswered) and (r.index_id, r.answer) == (index_id, answer),
        )

    def drain(self) -> None:
        """Forget all that is there now."""
        self.poll()
        self.records.clear()


class Process:
    """One `python -m indexer_sim`."""

    def __init__(self, cluster: Cluster, folder: Path, **more: Any) -> None:
        argv = [sys.executable, "-m", "indexer_sim", "--id", str(more.pop("id", INDEXER))]
        argv += ["--cluster", more.pop("cluster", cluster.name), "--data-dir", str(folder)]
        argv += ["--bootstrap-servers", more.pop("servers", cluster.bootstrap_servers)]
        argv += ["--zone", "z1", "--heartbeat-ms", "100"]
        self.stderr_path = folder.with_name(f"{folder.name}.stderr")
        with self.stderr_path.open("ab") as stderr:
            self.process = subprocess.Popen(argv, stderr=stderr, stdin=subprocess.DEVNULL, **more)

    @property
    def said(self) -> str:
        return self.stderr_path.read_text()

    def limit_file_size(self, limit_bytes: int) -> None:
        """Limit what the process may write to one file, as the kernel does for a full disk."""
        _, most = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (limit_bytes, most))

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


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    made = Cluster(broker.bootstrap_servers)
    yield made
    made.close()


Start = Callable[..., Process]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Start indexers; whatever still runs at the end is killed, and none has shown a traceback."""
    started: list[Process] = []

    def begin(folder: Path = tmp_path / "indexer", **more: Any) -> Process:
        started.append(Process(cluster, folder, **more))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
    for process in started:
        assert "Traceback" not in process.said, process.said


@pytest.fixture
def acks(cluster: Cluster) -> Iterator[Listener]:
    with cluster.listen(ACKS) as listener:
        yield listener


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)]
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

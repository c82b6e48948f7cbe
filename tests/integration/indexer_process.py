"""An indexer as a process, with the topics that it reads and writes."""

from __future__ import annotations

import itertools
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer, TopicPartition

from coordinator import codec
from coordinator.core.consensus.effects import Abandon, Conclude, OpenProducer, WriteEvents
from coordinator.core.consensus.inputs import Ended, ProducerFailed
from coordinator.core.model.entities import INIT, Index, Slice, index_key
from coordinator.core.model.records import (
    Event,
    Mutation,
    SliceAnswered,
)
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.producers import TransactionalProducer
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    ensure_topics,
    topic_name,
)
from tests.integration.preloaded import PRELOADED
from tests.support import limits
from tests.support.indexes import make_index

DEADLINE_S = 90.0

COMMITS_MAX = 5
"""So often a transaction is tried."""

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
    return make_index(index_id, bucket=bucket, state=state, slices=slices, **more)


class Cluster:
    """The topics of a cluster of its own, and the coordinator's side of them."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.name = f"t{uuid.uuid4().hex[:8]}"
        until("the topics are there", self.ensure_topics_exist)
        self._completions: list[Any] = []
        self._writer = TransactionalProducer(bootstrap_servers, self.name, self._completions.append)
        self._writer.order(OpenProducer(1))
        self._tokens = itertools.count(2)
        self._sequence = itertools.count(1)

    def ensure_topics_exist(self) -> bool:
        try:
            ensure_topics(self.bootstrap_servers, self.name, durable=False)
        except KafkaRefusal as refusal:
            # Brokers hear of new topics a little later than the controller.
            if "is not there" in refusal.message:
                return False
            raise
        return True

    def close(self) -> None:
        self._writer.close()

    def write(self, *indexes: Index | int, abort: bool = False) -> None:
        """Write index states in one transaction; a number is the index that is gone."""
        mutations = []
        for index in indexes:
            if isinstance(index, int):
                mutations.append(Mutation("IndexDropped", index_key(index), None, None))
            else:
                value = codec.encode(index)
                mutations.append(Mutation("IndexChanged", index.key, value, index))
        self.commit(mutations, abort=abort)

    def commit(self, mutations: Sequence[Mutation], *, abort: bool = False) -> None:
        """Write mutations in one transaction.

        A busy broker may end it too late for the producer's taste. What became of it is unknown
        then, and it is written again under a new producer, as a master does under a new claim.
        """
        for _ in range(COMMITS_MAX):
            txn, token = TxnId(1, next(self._sequence)), next(self._tokens)
            events = tuple(Event(m, txn, n, len(mutations)) for n, m in enumerate(mutations))
            self._writer.order(WriteEvents(0, events))
            self._writer.order(Abandon(token) if abort else Conclude(token, ()))
            if until("the transaction ends", partial(self._end_of, token)) == Ended(token):
                return
            self._writer.order(OpenProducer(next(self._tokens)))
        raise AssertionError(f"no transaction ends in time: {self._completions[-2:]}")

    def _end_of(self, token: int) -> Ended | ProducerFailed | None:
        ends = (one for one in self._completions if isinstance(one, Ended | ProducerFailed))
        return next((one for one in ends if one.token == token), None)

    def write_raw(self, topic: str, value: bytes, key: bytes | None = None) -> int:
        """Write a record as it is; return its offset."""
        offsets: list[int] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 2,
                "enable.idempotence": True,
            }
        )
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

    def __init__(
        self, cluster: Cluster, folder: Path, log: Path | None = None, **more: Any
    ) -> None:
        argv = [sys.executable, "-m", "indexer_sim", "--id", str(more.pop("id", INDEXER))]
        argv += ["--cluster", more.pop("name", cluster.name), "--data-dir", str(folder)]
        argv += ["--bootstrap-servers", more.pop("servers", cluster.bootstrap_servers)]
        argv += ["--zone", "z1", "--heartbeat-ms", "100", *more.pop("arguments", ())]
        self.stderr_path = log or folder.with_name(f"{folder.name}.stderr")
        with self.stderr_path.open("ab") as stderr:
            self.process = PRELOADED.spawn(argv, output=stderr, **more)

    @property
    def said(self) -> str:
        return self.stderr_path.read_text()

    def limit_file_size(self, limit_bytes: int) -> None:
        """Limit what the process may write to one file, as the kernel does for a full disk."""
        limits.limit_file_size(self.process.pid, limit_bytes)

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
        started.append(Process(cluster, folder, tmp_path / "stderr", **more))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
    for process in started:
        assert "Traceback" not in process.said, process.said

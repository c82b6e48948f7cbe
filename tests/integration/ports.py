"""The ports of a node, each twice: the simulator's, and the real one, behind one face.

The laws in `test_ports.py` and `test_store_ports.py` hold for both. What the simulator assumes of
Kafka and of RocksDB is thereby checked on Kafka and on RocksDB.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from coordinator import codec
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import TxnId
from coordinator.kafka.producers import PlainProducer, TransactionalProducer
from coordinator.kafka.readers import consumer, watermarks
from coordinator.kafka.settings import EVENT_HEADER
from coordinator.kafka.topics import ensure_topics, topic_name, transactional_id
from coordinator.node.store import StoreError
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.kernel.broker import Broker as SimulatedLog
from tests.simulation.kernel.clock import Clock
from tests.simulation.producer import ProducerThread
from tests.support.observed_store import ObservedStore

WAIT_S = 90.0
POLL_S = 0.02


def event(number: int, name: str = "") -> Event:
    """Return the write of a setting: by default of one of its own."""
    setting = Setting(name or f"s{number}", str(number))
    mutation = Mutation("SettingWritten", setting.key, codec.encode(setting), setting)
    return Event(mutation, TxnId(1, number), 0, 1)


class Desk(Protocol):
    """A process that has the cluster's transactional producer, until another one has it."""

    def order(self, effect: fx.Effect) -> inp.Input:
        """Have an effect carried out, and return what comes back for it."""
        ...


class Log(Protocol):
    """A cluster's topics."""

    def open(self) -> Desk:
        """Start a process that initialises the transactional producer."""
        ...

    def hang(self, record: Any, timeout_ms: int = 60_000) -> None:
        """Start a process that writes this to `commit` in a transaction, and says no more."""
        ...

    def append(self, record: Any) -> None:
        """Write a plain record to `commit`, and wait until the broker has it."""
        ...

    def read(self, topic: str) -> list[tuple[int, Any]]:
        """Return what a reader of committed records sees now, with offsets."""
        ...

    def stable(self, topic: str) -> int:
        """Return the last stable offset."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        ...

    def compact(self) -> None:
        """Have superseded records of `statecontext` taken away, at once or in a while."""
        ...


# -- simulated -----------------------------------------------------------------------------------


class SimulatedDesk:
    """The simulator's producer thread, in a process that nothing befalls."""

    def __init__(self, log: SimulatedBroker, number: int) -> None:
        self.clock, self.broker = log.clock, log.broker
        self.world: Any = log
        self.number = number
        self.paused = self.deaf = self.mute = False
        self.heard: list[inp.Input] = []
        self.producer = ProducerThread(self)  # type: ignore[arg-type]

    @property
    def mono_ms(self) -> int:
        return self.clock.now

    def feed(self, heard: inp.Input) -> None:
        self.heard.append(heard)

    def later(self, delay_ms: int, heard: inp.Input) -> None:
        self.clock.at(delay_ms, self.feed, heard)

    def slow(self) -> int:
        return 0

    def loses(self, probability: float) -> bool:
        return False

    def order(self, effect: fx.Effect) -> inp.Input:
        self.heard.clear()
        orders: dict[type, Callable[[Any], None]] = {
            fx.OpenProducer: self.producer.open,
            fx.WriteEvents: self.producer.write_events,
            fx.WriteHistory: self.producer.write_history,
            fx.Conclude: self.producer.conclude,
            fx.Abandon: self.producer.abandon,
        }
        orders[type(effect)](effect)
        if not isinstance(effect, fx.WriteHistory):
            self.world.until(lambda: bool(self.heard))
            return self.heard[-1]
        return inp.Tick()


class SimulatedBroker:
    """The simulator's broker under a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock(1)
        self.broker = SimulatedLog(self.clock)
        self.faults = Faults()
        self.judge = self
        self._desks = 0

    def concluding(self, *anything: Any) -> None:
        """No judge sits here."""

    def open(self) -> SimulatedDesk:
        self._desks += 1
        desk = SimulatedDesk(self, self._desks)
        assert isinstance(desk.order(fx.OpenProducer(1)), inp.ProducerOpened)
        return desk

    def hang(self, record: Any, timeout_ms: int = 60_000) -> None:
        self.broker.transaction_timeout_ms = timeout_ms
        session = self.open().producer.session
        assert session is not None
        self.broker.send(session, "commit", record)

    def append(self, record: Any) -> None:
        self.broker["commit"].append(record, None, self.clock.now)

    def read(self, topic: str) -> list[tuple[int, Any]]:
        return [(r.offset, r.value) for r in self.broker[topic].read(0)]

    def stable(self, topic: str) -> int:
        return self.broker[topic].stable

    def until(self, condition: Callable[[], bool]) -> None:
        limit = self.clock.now + 120_000
        while not condition():
            assert self.clock.now < limit
            self.clock.run(self.clock.now + 10)

    def compact(self) -> None:
        self.broker.compact(0)


# -- real ----------------------------------------------------------------------------------------


class KafkaDesk:
    """The shell's transactional producer, on Kafka."""

    def __init__(self, servers: str, cluster: str) -> None:
        self._heard: queue.SimpleQueue[inp.Input] = queue.SimpleQueue()
        self._producer = TransactionalProducer(servers, cluster, self._heard.put)

    def order(self, effect: fx.Effect) -> inp.Input:
        self._producer.order(effect)
        if isinstance(effect, fx.WriteHistory):
            return inp.Tick()
        return self._heard.get(timeout=WAIT_S)

    def close(self) -> None:
        self._producer.close()


class KafkaBroker:
    """A cluster's topics on a real broker."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._cluster = f"ports-{uuid.uuid4().hex[:8]}"
        ensure_topics(servers, self._cluster)
        self._plain = PlainProducer(servers, self._cluster, lambda heard: None)
        self._desks: list[KafkaDesk] = []
        self._hung: list[Producer] = []

    def open(self) -> KafkaDesk:
        desk = KafkaDesk(self._servers, self._cluster)
        self._desks.append(desk)
        assert isinstance(desk.order(fx.OpenProducer(1)), inp.ProducerOpened)
        return desk

    def hang(self, record: Any, timeout_ms: int = 60_000) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": transactional_id(self._cluster),
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic_name(self._cluster, "commit"), codec.encode(record), partition=0)
        assert producer.flush(WAIT_S) == 0
        self._hung.append(producer)

    def append(self, record: Any) -> None:
        self._plain.append(fx.Append(1, record))
        self._plain.flush(WAIT_S)

    def read(self, topic: str) -> list[tuple[int, Any]]:
        name = topic_name(self._cluster, topic)
        reader = consumer(self._servers, "ports", **{"enable.partition.eof": True})
        try:
            reader.assign([TopicPartition(name, 0, self.bounds(topic)[0])])
            found: list[tuple[int, Any]] = []
            while True:
                message = reader.poll(WAIT_S)
                assert message is not None, f"{name} does not end"
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                value = message.value() or dict(message.headers())[EVENT_HEADER]
                found.append((message.offset(), codec.decode(value)))
        finally:
            reader.close()

    def bounds(self, topic: str) -> tuple[int, int]:
        return watermarks(self._servers, topic_name(self._cluster, topic))

    def stable(self, topic: str) -> int:
        return self.bounds(topic)[1]

    def until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < limit, "it did not come about"
            time.sleep(POLL_S)

    def compact(self) -> None:
        """Have the cleaner look at small segments; the newest is never touched, so roll it."""
        wanted = {
            "segment.ms": "50",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "1",
            "min.cleanable.dirty.ratio": "0.0",
        }
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in wanted.items()
        ]
        topic = topic_name(self._cluster, "statecontext")
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self._servers})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(WAIT_S)
        desk = self.open()
        desk.order(fx.WriteEvents(99, (event(99, "rolls"),)))
        desk.order(fx.Abandon(99))

    def close(self) -> None:
        for desk in self._desks:
            threading.Thread(target=desk.close, daemon=True).start()
        for producer in self._hung:
            producer.purge()


# -- stores --------------------------------------------------------------------------------------


class StorePort(Protocol):
    """A node's store."""

    def save(self, effect: fx.Save) -> bool:
        """Write a batch; False: the store refuses."""
        ...

    def probe(self) -> bool:
        """Tell whether the store takes writes again."""
        ...

    def crashed(self) -> list[StorePort]:
        """Return the store as several crashes at this moment could leave it."""
        ...

    def restore(self) -> inp.Restored | None:
        """Return what a starting node finds."""
        ...

    def fill(self) -> None:
        """Let the disk be full from now on."""
        ...

    def free(self) -> None:
        """Let the disk have space again."""
        ...


class SimulatedStore:
    """The simulator's disk."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()

    def save(self, effect: fx.Save) -> bool:
        if self.disk.full or self.disk.refusing:
            self.disk.refusing = True
            return False
        batch = self.disk.write(effect)
        if effect.sync:
            self.disk.synced(batch)
        return True

    def probe(self) -> bool:
        self.disk.refusing = self.disk.full
        return not self.disk.full

    def crashed(self) -> list[StorePort]:
        found: list[StorePort] = []
        for kept in range(len(self.disk.unsynced) + 1):
            disk = Disk()
            disk.durable, disk.unsynced = self.disk.durable, list(self.disk.unsynced)
            disk.crash(kept)
            found.append(SimulatedStore(disk))
        return found

    def restore(self) -> inp.Restored | None:
        return self.disk.restore()

    def fill(self) -> None:
        self.disk.full = True

    def free(self) -> None:
        self.disk.full = False


class RocksStore:
    """RocksDB in a folder; a crash leaves some prefix of what was appended to its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ObservedStore(folder)
        self._synced: dict[str, int] = {}
        self._ballast = folder.parent / "ballast"
        self._copies: list[RocksStore] = []

    def save(self, effect: fx.Save) -> bool:
        before = self.store.all_syncs
        try:
            self.store.save(effect)
        except StoreError:
            return False
        if self.store.all_syncs > before:
            self._synced = {log.name: log.stat().st_size for log in self.folder.glob("*.log")}
        return True

    def probe(self) -> bool:
        try:
            self.store.probe()
        except StoreError:
            return False
        return True

    def crashed(self) -> list[StorePort]:
        log = max(self.folder.glob("*.log"), key=lambda path: path.name)
        size, safe = log.stat().st_size, self._synced.get(log.name, 0)
        step = max(1, (size - safe) // 12)
        found: list[StorePort] = []
        for kept in (*range(safe, size, step), size):
            folder = self.folder.with_name(f"{self.folder.name}-crash-{len(self._copies)}")
            shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("LOCK"))
            with (folder / log.name).open("r+b") as cut:
                cut.truncate(kept)
            copy = RocksStore(folder)
            self._copies.append(copy)
            found.append(copy)
        return found

    def restore(self) -> inp.Restored | None:
        return self.store.restore()

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        ballast.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        self.store.close()
        for copy in self._copies:
            copy.close()

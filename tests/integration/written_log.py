"""The topics of a cluster as a master writes them, without any node: quick, and with any fault."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator import codec
from coordinator.core.catalog import state as states
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import fold
from coordinator.core.model.records import ClusterFormed, Event, Mutation
from coordinator.core.model.types import Cas, Offset, TxnId
from coordinator.kafka.history_tail import NEEDED
from coordinator.kafka.producers import statecontext_record
from coordinator.kafka.settings import BASE_HEADER, Base
from coordinator.kafka.topics import COMMIT, HISTORY, SNAPSHOTS, STATECONTEXT, topic_name
from tests.integration.cluster import ORDERED

CAS_BASE = 7
WAIT_S = 90.0


class WrittenLog:
    """What a master has committed, and what it has not."""

    def __init__(self, servers: str, base: StateContext = states.EMPTY) -> None:
        """`base` is what the history begins with, as after the restore of a part of another."""
        self.servers = servers
        self.name = f"w{uuid.uuid4().hex[:8]}"
        self.state: StateContext = base
        self.committed: list[Event] = []
        self._headers: dict[str, bytes] | None = None
        self._seq = 0
        self._turn = threading.Lock()
        topics = [NewTopic(self.topic(name), 1, 1) for name in NEEDED]
        admin = AdminClient({"bootstrap.servers": servers})
        for future in admin.create_topics(topics).values():
            future.result(WAIT_S)
        self._plain = Producer({"bootstrap.servers": servers, **ORDERED})
        self._master = self._producer("master")
        formed = ClusterFormed(
            cluster_id="c",
            cas_base=CAS_BASE,
            roster=(1,),
            minimum=1,
            log_capacity=10,
            request_window_ms=1_000,
            at_ms=0,
        )
        self.publish(COMMIT, codec.encode(formed))
        if base.cas:
            begins = Base(base.cas, 1, Offset(self.copy(base, 1)))
            self._headers = {BASE_HEADER: begins.encode()}

    def topic(self, name: str) -> str:
        return topic_name(self.name, name)

    def _producer(self, who: str) -> Producer:
        made = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": f"{self.name}.{who}"}
        )
        made.init_transactions(WAIT_S)
        return made

    def publish(self, name: str, value: bytes) -> int:
        """Write a plain record, as anybody can; return its offset."""
        offsets: list[int] = []
        self._plain.produce(self.topic(name), value, partition=0, on_delivery=_noting(offsets))
        assert self._plain.flush(WAIT_S) == 0
        return offsets[0]

    def commit(self, *mutations: Mutation) -> list[Event]:
        """Commit a transaction, and return its events."""
        with self._turn:
            events = self._write(self._master, mutations)
            self._master.commit_transaction(WAIT_S)
            self.state, _ = fold(self.state, events)
            self.committed += events
            return events

    def abort(self, *mutations: Mutation) -> list[Event]:
        """Write a transaction, and abort it; return the events that nobody may see."""
        with self._turn:
            events = self._write(self._master, mutations)
            self._master.abort_transaction(WAIT_S)
            return events

    def _write(self, producer: Producer, mutations: tuple[Mutation, ...]) -> list[Event]:
        self._seq += 1
        producer.begin_transaction()
        txn, count = TxnId(1, self._seq), len(mutations)
        offsets: list[int] = []
        for number, mutation in enumerate(mutations):
            value, headers = statecontext_record(Event(mutation, txn, number, count))
            producer.produce(
                self.topic(STATECONTEXT),
                value,
                mutation.key.encode(),
                partition=0,
                headers=headers,
                on_delivery=_noting(offsets),
            )
        assert producer.flush(WAIT_S) == 0
        events = [
            Event(mutation, txn, number, count, Cas(CAS_BASE + offsets[number]))
            for number, mutation in enumerate(mutations)
        ]
        for event in events:
            key = event.mutation.key.encode()
            headers, self._headers = self._headers, None
            producer.produce(
                self.topic(HISTORY), codec.encode(event), key, partition=0, headers=headers
            )
        assert producer.flush(WAIT_S) == 0
        return events

    def copy(self, state: StateContext, number: int) -> int:
        """Write a copy of a state, as a master does now and then; return where it begins."""
        return min(self.publish(SNAPSHOTS, codec.encode(one)) for one in chunks(number, state))

    def hold_back(self) -> Callable[[], None]:
        """Have nothing committed become visible on `statecontext`; return what ends that."""
        other = self._producer(f"other{self._seq}")
        other.begin_transaction()
        other.produce(self.topic(STATECONTEXT), b"", b"", partition=0)
        assert other.flush(WAIT_S) == 0
        return lambda: other.abort_transaction(WAIT_S)


def _noting(offsets: list[int]) -> Callable[[KafkaError | None, Message], Any]:
    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(int(message.offset() or 0))

    return delivered

"""Where a node finds the state on real topics, when some of them are damaged or trimmed."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from coordinator import codec
from coordinator.client.errors import CoordinatorError
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.full_sync import COPY, HISTORY, SNAPSHOT
from coordinator.core.model.records import (
    AuthoritySnapshot,
    Event,
    SnapshotKept,
    TransactionCommitted,
)
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import watermarks
from coordinator.kafka.state_sources import SnapshotLost, Sources
from coordinator.kafka.topics import (
    COMMIT,
    SNAPSHOTS,
    STATECONTEXT,
    delete_records,
    ensure_topics,
    topic_name,
)
from coordinator.kafka.topics import (
    HISTORY as HISTORY_TOPIC,
)
from coordinator.node.shell import EXIT_FAILED
from tests.integration.cluster import Cluster, shown, value_of, wait_until
from tests.integration.ports import KafkaDesk, event

Make = Callable[..., Cluster]


def put(servers: str, topic: str, key: bytes, value: bytes) -> None:
    """Write a plain record to partition 0, and see that it is there."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    producer.produce(
        topic, value, key, partition=0, on_delivery=lambda error, _: failed.append(error)
    )
    assert producer.flush(30) == 0
    assert failed == [None]


class Log:
    """The topics of a cluster without nodes, written by the shell's producer."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.cluster = f"sources-{uuid.uuid4().hex[:8]}"
        ensure_topics(servers, self.cluster)
        self.told: list[tuple[str, int]] = []
        self.state = EMPTY
        self.at: list[StateContext] = []
        self._desk = KafkaDesk(servers, self.cluster)
        assert isinstance(self._desk.order(fx.OpenProducer(1)), inp.ProducerOpened)
        self.sources = Sources(servers, self.cluster, threading.Event(), self._bad)

    def _bad(self, message: Message, reason: str) -> None:
        self.told.append((str(message.topic()), int(message.offset() or 0)))

    def commit(self, *events: Event) -> None:
        """Commit a transaction with these events."""
        written = self._desk.order(fx.WriteEvents(2, events))
        assert isinstance(written, inp.Written)
        cas = tuple(offset + 1 for offset in written.offsets)
        dated = tuple(replace(e, cas=at) for e, at in zip(events, cas, strict=True))
        self._desk.order(fx.WriteHistory(dated))
        verdict = TransactionCommitted(
            txn=TxnId(1, 1), proposal_offset=0, accepted=(1,), cas=cas, state_digest=0, at_ms=0
        )
        assert isinstance(self._desk.order(fx.Conclude(2, (verdict,))), inp.Ended)
        self.state = states.evolve(self.state, [(e.mutation, e.cas) for e in dated])
        self.at.append(self.state)

    def write(self, topic: str, value: bytes) -> None:
        put(self.servers, topic_name(self.cluster, topic), b"foreign", value)

    def read(self, source: str, **where: Any) -> StateContext:
        """Return the state that a source comes to, to the last event of all."""
        held: dict[str, Any] = {}
        found: list[tuple[Any, int]] = []
        place = {"offset": 0, "copy": 0, **where}
        for batch in self.sources.read(source, cas_base=1, at_least=self.state.cas, **place):
            held.update(batch.held)
            found += [(e.mutation, e.cas) for e in batch.events]
        begin = states.restore(max((v.cas for v in held.values()), default=0), held.items())
        return states.evolve(begin, [pair for pair in found if pair[1] > begin.cas])

    def close(self) -> None:
        self._desk.close()


@pytest.fixture
def log(broker: Broker) -> Any:
    made = Log(broker.bootstrap_servers)
    yield made
    made.close()


def test_a_copy_and_its_tail_are_the_state_wherever_the_copy_was_made(log: Log) -> None:
    """Transactions leave gaps in the offsets; the tail begins between two of them."""
    for number in range(12):
        log.commit(*(event(number * 3 + n, f"s{(number + n) % 5}") for n in range(number % 3 + 1)))
    for number, state in enumerate(log.at):
        copy = 100 + number
        offset = log.sources.write_copy(copy, state)
        assert log.read(SNAPSHOT, offset=offset, copy=copy).digest == log.state.digest
        assert log.read(COPY, offset=offset, copy=copy).digest == state.digest
    assert log.read(HISTORY).digest == log.state.digest


def test_what_is_no_record_of_a_topic_is_told_and_passed_over(log: Log) -> None:
    log.commit(event(1))
    for topic in (STATECONTEXT, HISTORY_TOPIC, SNAPSHOTS):
        log.write(topic, b"foreign bytes")
    offset = log.sources.write_copy(7, log.state)
    log.commit(event(2))
    assert log.read(SNAPSHOT, offset=0, copy=7).digest == log.state.digest
    assert log.read(HISTORY).digest == log.state.digest
    seen = [e.cas for batch in log.sources.events(1, 0, log.state.cas) for e in batch]
    assert len(seen) == 2
    told = {topic.rpartition(".")[2] for topic, _ in log.told}
    assert told == {STATECONTEXT, HISTORY_TOPIC, SNAPSHOTS}
    assert offset > 0


def test_a_copy_that_is_not_the_state_is_no_copy(log: Log) -> None:
    """It is read back before the log tells of it, and before anything is trimmed behind it."""
    log.commit(event(1))
    spoilt = log.state._replace(digest=log.state.digest ^ 1)
    with pytest.raises(SnapshotLost, match="read back"):
        log.sources.write_copy(7, spoilt)


def test_a_copy_that_is_not_there_is_not_waited_for_without_end(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.kafka.state_sources.READ_TIMEOUT_S", 0.5)
    log.commit(event(1))
    log.sources.write_copy(7, log.state)
    with pytest.raises(SnapshotLost):
        log.read(SNAPSHOT, offset=0, copy=8)


# -- clusters ------------------------------------------------------------------------------------


def fill(cluster: Cluster, count: int, size: int = 10) -> None:
    with cluster.client() as client:
        for number in range(count):
            client.put_config(f"s/{number % 7}", "x" * size + str(number))


def empty(cluster: Cluster, *nodes: int) -> None:
    """Start nodes again with empty folders."""
    for number in nodes:
        cluster.nodes[number].kill()
        shutil.rmtree(cluster.nodes[number].folder)
    for number in nodes:
        cluster.nodes[number].start()


def metrics_of_master(cluster: Cluster) -> dict[str, float]:
    found = cluster.http.get(cluster.nodes[cluster.master()].url + "/metrics").text
    lines = (line.rsplit(maxsplit=1) for line in found.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def await_first_comparison(cluster: Cluster) -> None:
    """Wait until the new master has compared `statecontext`: the next time is after minutes."""
    wait_until(
        lambda: metrics_of_master(cluster)["coordinator_scrubs_total"] >= 1, "it has compared"
    )


def stray(cluster: Cluster, topic: str, key: str) -> None:
    """Somebody who is no master writes an older version of an entity again."""
    found = [m for m in cluster.read(topic) if m.key() == key.encode()]
    put(cluster.servers, cluster.topic(topic), key.encode(), value_of(found[0]))


def values(state: dict[str, Any]) -> dict[str, Any]:
    """What clients put there, without CAS: an entity that a master mends gets a new one."""
    return {key: entry["value"] for key, entry in state["config"].items()}


def some_synchronised_from(cluster: Cluster, nodes: list[int], source: str) -> None:
    """One of them is enough: with it there is a master, who mends the topic for the others."""
    said = f"synchronised from {source}:"
    wait_until(lambda: any(said in cluster.nodes[n].said for n in nodes), said, 90)


def test_two_wiped_nodes_find_the_state_beside_a_damaged_topic(make_cluster: Make) -> None:
    cluster = make_cluster(indexers=0).start()
    fill(cluster, 20)
    await_first_comparison(cluster)
    stray(cluster, STATECONTEXT, "config/s/3")
    fill(cluster, 3)
    before = cluster.settled()
    victims = [n for n in cluster.nodes if n != cluster.master()]
    empty(cluster, *victims)
    some_synchronised_from(cluster, victims, "history")
    assert values(cluster.settled()) == values(before)


def test_a_peer_gives_a_copy_where_the_topics_are_damaged(make_cluster: Make) -> None:
    cluster = make_cluster(indexers=0).start()
    fill(cluster, 20)
    await_first_comparison(cluster)
    stray(cluster, STATECONTEXT, "config/s/3")
    fill(cluster, 3)
    before = cluster.settled()
    history = cluster.topic(HISTORY_TOPIC)
    delete_records(cluster.servers, history, watermarks(cluster.servers, history)[1] // 2)
    victims = [n for n in cluster.nodes if n != cluster.master()]
    empty(cluster, *victims)
    some_synchronised_from(cluster, victims, "copy")
    assert values(cluster.settled()) == values(before)


def test_what_does_not_belong_on_statecontext_is_found_and_mended(make_cluster: Make) -> None:
    cluster = make_cluster(indexers=0, options=("--scrub-ms", "1000")).start()
    fill(cluster, 20)
    for key in ("config/s/3", "config/s/5"):
        stray(cluster, STATECONTEXT, key)

    def mended() -> bool:
        return metrics_of_master(cluster)["coordinator_strays_found_total"] == 2

    wait_until(mended, "both strays are found")
    state = cluster.settled()
    wait_until(
        lambda: cluster.digest_by_statecontext(state["cas"]) == shown(cluster.settled()),
        "statecontext is whole",
    )
    rewritten = [e for e in cluster.history() if e.mutation.event == "EntityRewritten"]
    assert {e.mutation.key for e in rewritten} == {"config/s/3", "config/s/5"}


TRIMMED_OFTEN = ("--snapshot-bytes", "60000", "--request-window-ms", "1500")


def await_trims(cluster: Cluster, times: int) -> None:
    """Write until the log was trimmed so many times."""
    commit = cluster.topic(COMMIT)
    seen = {watermarks(cluster.servers, commit)[0]}

    def trimmed() -> bool:
        try:
            fill(cluster, 40, 300)
        except CoordinatorError as error:
            # It was older than the short window by the time that it was looked at.
            if error.code != "request_expired":
                raise
        seen.add(watermarks(cluster.servers, commit)[0])
        return len(seen) > times

    wait_until(trimmed, f"the log is trimmed {times} times", 120)


def test_the_log_is_trimmed_behind_a_copy_and_who_was_away_synchronises(
    make_cluster: Make,
) -> None:
    cluster = make_cluster(indexers=0, options=TRIMMED_OFTEN).start()
    away = cluster.nodes[cluster.replicas()[0]]
    away.stop()
    await_trims(cluster, 2)
    first = codec.decode(value_of(cluster.read(COMMIT)[0]))
    assert isinstance(first, AuthoritySnapshot)
    kept = [r for r in cluster.records(COMMIT) if isinstance(r, SnapshotKept)]
    assert kept
    said = len(away.said)
    away.start()
    state = cluster.settled()
    assert "synchronised from" in away.said[said:]
    assert cluster.digest_by_history() == shown(state)
    empty(cluster, *cluster.nodes)
    assert shown(cluster.settled()) == shown(state)
    with cluster.client() as client:
        client.put_config("after", 1)


@pytest.mark.matrix
def test_a_node_that_a_trim_overtakes_ends_and_synchronises_when_started_again(
    make_cluster: Make,
) -> None:
    cluster = make_cluster(indexers=0, options=TRIMMED_OFTEN).start()
    frozen = cluster.nodes[cluster.replicas()[0]]
    frozen.supervised = False
    frozen.pause()
    await_trims(cluster, 2)
    frozen.resume()
    assert frozen.wait() == EXIT_FAILED
    assert "it was trimmed, or lost [offset_gone]" in frozen.said
    said = len(frozen.said)
    frozen.supervised = True
    state = cluster.settled()
    assert "synchronised from" in frozen.said[said:]
    assert cluster.digest_by_history() == shown(state)

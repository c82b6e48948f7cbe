"""Publishing DDL with the client: every command is answered once, whatever dies or is late."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from coordinator import codec
from coordinator.client import ddl_outbox
from coordinator.client.errors import (
    ConflictError,
    CoordinatorError,
    NotFoundError,
    UnavailableError,
)
from coordinator.client.publisher import AsyncPublisher, Order, Published, Publisher
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import CreateIndex, DropIndex, Position, PutSetting, Transact
from coordinator.core.model.types import Offset
from coordinator.kafka.topics import DDL, DDL_PARTITIONS, ensure_topics, topic_name
from tests.integration.cluster import Cluster, read_partition, value_of, wait_until
from tests.integration.kafka_proxy import (
    DELIVER_AND_CUT,
    HOLD,
    PASS,
    KafkaProxy,
    only_once,
)

pytestmark = pytest.mark.integration

PRODUCE = 0
SMALL_S = 0.5


@pytest.fixture(scope="module")
def publisher(cluster: Cluster) -> Iterator[Publisher]:
    with Publisher(cluster.servers, cluster.name, principal="etl") as made:
        yield made


def request_ids(cluster: Cluster, event: str) -> list[str]:
    return [e.mutation.request for e in cluster.history() if e.mutation.event == event]


def test_a_statement_is_answered_as_over_http(cluster: Cluster, publisher: Publisher) -> None:
    published = publisher.publish(
        'CREATE INDEX by_zone ON published(tz, name) WITH {"replicas": 1}'
    )
    answer = published.wait()
    with cluster.client() as client:
        again = client.create_index(
            {
                "name": "by_zone",
                "bucket": "published",
                "expressions": ["tz", "name"],
                "replicas": 1,
            },
            request_id=published.request_id,
        )
        [change, *_] = client.history_all(request=published.request_id)
    assert answer == again
    assert change["principal"] == "etl"
    assert published.partition is not None
    [record] = [m for m in cluster.read(DDL, published.partition) if m.offset() == published.offset]
    assert record.key() == b"published"


def test_refusals_are_of_the_same_classes_as_over_http(publisher: Publisher) -> None:
    create = "CREATE INDEX taken ON published(a)"
    made = publisher.publish(create).wait()["index"]
    with pytest.raises(ConflictError) as exists:
        publisher.publish(create).wait()
    assert (exists.value.code, exists.value.details["id"]) == ("index_exists", made["id"])
    with pytest.raises(NotFoundError) as missing:
        publisher.publish("DROP INDEX nobody ON published").wait()
    assert missing.value.code == "index_not_found"
    with pytest.raises(ConflictError) as mismatch:
        publisher.publish(DropIndex(bucket="published", name="taken"), expected_cas=1).wait()
    assert mismatch.value.code == "cas_mismatch"
    with pytest.raises(CoordinatorError) as invalid:
        publisher.publish("CREATE INDEX bad ON published(SUM(a)")
    assert invalid.value.code == "invalid_statement"


def test_a_repeat_from_another_publisher_gets_the_first_outcome(
    cluster: Cluster, publisher: Publisher
) -> None:
    create, request = "CREATE INDEX again ON published(a)", new_request_id()
    first = publisher.publish(create, request_id=request).wait()
    publisher.publish("DROP INDEX again ON published").wait()
    with Publisher(cluster.servers, cluster.name) as other:
        second = other.publish(create, request_id=request).wait()
    assert (second["cas"], second["txn"]) == (first["cas"], first["txn"])
    assert request_ids(cluster, "IndexProposed").count(request) == 1
    held = publisher.publish(create, request_id=request)
    with pytest.raises(CoordinatorError) as mismatch:
        publisher.publish("DROP INDEX other ON published", request_id=request)
    assert mismatch.value.code == "request_mismatch"
    assert held.wait()["cas"] == first["cas"]


def test_a_batch_keeps_the_order_of_its_bucket_and_no_more_than_it_may(
    publisher: Publisher,
) -> None:
    """Each DROP finds what the CREATE before it made. Settings go with them, in transactions."""
    taken = 0
    orders: list[str | Transact] = []
    for number in range(8):
        orders += [f"CREATE INDEX seq ON ordered(a{number})", "DROP INDEX seq ON ordered"]
        orders.append(Transact(then=(PutSetting("step", json.dumps(number)),)))

    def counted() -> Iterator[str | Transact]:
        nonlocal taken
        for order in orders:
            taken += 1
            yield order

    answers = []
    for ended in publisher.publish_all(counted(), in_flight_max=5):
        answers.append(ended.wait(0.0))
        assert taken - len(answers) < 5
    assert len(answers) == len(orders)
    made, dropped, put = (answers[kind::3] for kind in range(3))
    assert [one["index"]["id"] for one in made] == [one["index"]["id"] for one in dropped]
    assert len({one["index"]["id"] for one in made}) == 8
    assert [one["cas"] for one in put] == sorted(one["cas"] for one in put)


def test_what_fails_in_a_batch_fails_alone(publisher: Publisher) -> None:
    orders = ["DROP INDEX nobody ON published", "CREATE", "CREATE INDEX fine ON published(a)"]
    ends = [*publisher.publish_all([Order(one, f"batch-{one[:14]}") for one in orders])]
    codes = []
    for ended in ends:
        try:
            ended.wait(0.0)
            codes.append("")
        except CoordinatorError as error:
            codes.append(error.code)
    assert codes == ["index_not_found", "invalid_statement", ""]
    assert [one.request_id for one in ends] == [f"batch-{one[:14]}" for one in orders]


def test_nothing_is_kept_for_whoever_does_not_wait(publisher: Publisher) -> None:
    gc.collect()
    before = len(publisher._replies._expected)
    for number in range(20):
        publisher.publish(Transact(then=(PutSetting(f"forgotten{number}", "1"),)))
    gc.collect()
    assert len(publisher._replies._expected) == before


def test_the_asynchronous_one_does_the_same(cluster: Cluster) -> None:
    async def publish() -> list[int]:
        async with AsyncPublisher(cluster.servers, cluster.name) as publisher:
            one = await publisher.publish("CREATE INDEX aio ON published(a)")
            found = [int((await one.wait())["index"]["id"])]
            with pytest.raises(NotFoundError):
                await (await publisher.publish("DROP INDEX nobody ON published")).wait()
            orders = [f"CREATE INDEX aio{number} ON published(a)" for number in range(4)]
            async for ended in publisher.publish_all(orders, in_flight_max=2):
                found.append(int((await ended.wait())["index"]["id"]))
            return found

    # Ids ascend as indexes are made. Which of them is ready first is up to the indexers.
    found = asyncio.run(publish())
    assert len(found) == 5
    assert found == sorted(set(found))


def test_the_wrong_name_of_a_cluster_is_said(cluster: Cluster) -> None:
    with pytest.raises(CoordinatorError) as raised:
        Publisher(cluster.servers, "nobody")
    assert raised.value.code == "topics_missing"


def test_without_a_master_there_is_no_reply_and_one_later(
    cluster: Cluster, publisher: Publisher
) -> None:
    for node in cluster.nodes.values():
        node.kill()
    published = publisher.publish("CREATE INDEX late ON published(a)")
    began_s = time.monotonic()
    with pytest.raises(UnavailableError) as raised:
        published.wait(SMALL_S)
    assert SMALL_S <= time.monotonic() - began_s < SMALL_S + 20
    assert raised.value.code == "no_reply"
    assert raised.value.details == {
        "request": published.request_id,
        "partition": published.partition,
        "offset": published.offset,
    }
    cluster.start()
    assert published.wait(30.0)["index"]["name"] == "late"


def test_whoever_waits_hears_that_the_publisher_was_closed(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.kill()
    with Publisher(cluster.servers, cluster.name) as closed:
        published = closed.publish("CREATE INDEX unheard ON published(a)")
    with pytest.raises(UnavailableError) as raised:
        published.wait(30.0)
    assert raised.value.code == "no_reply"
    cluster.start()


# -- Kafka is late, or gone ------------------------------------------------------------------------


@pytest.fixture
def proxy(proxy: KafkaProxy) -> KafkaProxy:
    ensure_topics(proxy.bootstrap_servers, "alone", durable=False)
    return proxy


def names_on(proxy: KafkaProxy, bucket: str) -> list[str]:
    """Return the names of the indexes that commands for a bucket create, in their order."""
    found: list[Message] = []
    for partition in range(DDL_PARTITIONS):
        found += read_partition(proxy.bootstrap_servers, topic_name("alone", DDL), partition)
    place = Position(0, Offset(0))
    commands = (codec.decode_ddl(value_of(one), place).command for one in found)
    return [c.name for c in commands if isinstance(c, CreateIndex) and c.bucket == bucket]


def test_a_command_whose_acknowledgement_is_lost_is_there_once(proxy: KafkaProxy) -> None:
    with Publisher(proxy.bootstrap_servers, "alone") as publisher:
        publisher.publish("CREATE INDEX first ON lost(a)")
        proxy.rule = only_once(PRODUCE, DELIVER_AND_CUT)
        publisher.publish("CREATE INDEX second ON lost(a)")
    assert len(proxy.times(PRODUCE)) >= 3
    assert names_on(proxy, "lost") == ["first", "second"]


def test_commands_are_sent_again_in_order_where_their_producer_hears_nothing(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first producer's connection is dead, and nothing says so; what it sent arrives late."""
    proxy.reset()
    monkeypatch.setattr(ddl_outbox, "STALL_S", 1.0)
    names = [f"i{number}" for number in range(10)]
    with Publisher(proxy.bootstrap_servers, "alone") as publisher:
        publisher.publish("CREATE INDEX before ON stalled(a)")
        first = publisher._outbox._producer
        proxy.rule = only_once(PRODUCE, HOLD)
        open_: list[Published] = [
            publisher._begun(Order(f"CREATE INDEX {name} ON stalled(a)")) for name in names
        ]
        for published in open_:
            publisher._settle(published)
            assert published._error is None
            assert published.partition is not None
        assert publisher._outbox._producer is not first
        proxy.rule = lambda api: PASS
        proxy.release()
    wait_until(lambda: len(names_on(proxy, "stalled")) > len(names), "all is there")
    assert list(dict.fromkeys(names_on(proxy, "stalled"))) == ["before", *names]


def test_a_broker_that_is_silent_is_unreachable_by_the_deadline(
    proxy: KafkaProxy, tmp_path: Path
) -> None:
    with Publisher(proxy.bootstrap_servers, "alone", deadline_s=1.5) as publisher:
        proxy.rule = lambda api: HOLD if api == PRODUCE else PASS
        request, began_s = new_request_id(), time.monotonic()
        with pytest.raises(UnavailableError) as raised:
            publisher.publish("CREATE INDEX never ON silent(a)", request_id=request)
        assert time.monotonic() - began_s < 30
        assert raised.value.code == "unreachable"
        assert raised.value.details["request"] == request
        [ended] = publisher.publish_all(["CREATE INDEX nor ON silent(a)"])
        with pytest.raises(UnavailableError):
            ended.wait(0.0)
        assert ended.partition is None
        proxy.reset()
        again = publisher.publish("CREATE INDEX never ON silent(a)", request_id=request)
        assert again.request_id == request
    with pytest.raises(UnavailableError) as nobody:
        Publisher("127.0.0.1:9", "alone", first_contact_s=SMALL_S)
    assert nobody.value.code == "unreachable"

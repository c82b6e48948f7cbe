"""What commands about buckets of topics yield, as tables: each case is one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog.buckets import TOPIC_BUCKETS_MAX
from coordinator.core.catalog.decisions import Unchanged
from coordinator.core.model.commands import (
    AddBucket,
    AdoptBucket,
    Command,
    CreateIndex,
    DropIndex,
    ForgetIndex,
    MarkReady,
    ReadTopicAgain,
    RemoveBucket,
)
from coordinator.core.model.entities import Bucket, Shard, bucket_key
from tests.support.catalog_bench import Bench

ADD = AddBucket("orders", "shop.orders", 6, "json")
AVRO = replace(ADD, format="avro", registry="http://registry:8081")
CREATE = CreateIndex(name="by_city", bucket="orders", expressions=("city",))


@pytest.fixture
def added(bench: Bench) -> Bench:
    """There is a bucket of a topic."""
    bench.apply(ADD)
    return bench


def bucket_of(bench: Bench, name: str = "orders") -> Bucket:
    held = bench.state.bucket(name)
    assert held is not None
    assert isinstance(held.entity, Bucket)
    return held.entity


def test_partitions_are_vbuckets_also_for_its_indexes(added: Bench) -> None:
    assert bucket_of(added) == Bucket("orders", 6, "shop.orders", "json", "", 0, added.wall_ms)
    added.apply(CREATE)
    assert bucket_of(added).vbuckets == 6


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(ADD, name="1st"), "invalid_request"),
        (replace(ADD, topic="a/b"), "invalid_request"),
        (replace(ADD, topic="__consumer_offsets"), "invalid_request"),
        (replace(ADD, format="xml"), "invalid_request"),
        (replace(ADD, partitions=0), "invalid_request"),
        (replace(ADD, partitions=1_025), "invalid_request"),
        (replace(ADD, format="avro"), "invalid_request"),
        (replace(ADD, registry="http://registry"), "invalid_request"),
        (replace(AVRO, registry="ftp://registry"), "invalid_request"),
        (replace(AVRO, registry="http://"), "invalid_request"),
        (replace(AVRO, registry="http://[::1"), "invalid_request"),
        (replace(AVRO, registry="http://me:secret@registry"), "invalid_request"),
        (replace(AVRO, registry="http://r/" + "a" * 1_024), "invalid_request"),
        (ADD, "bucket_exists"),
        (RemoveBucket("none"), "bucket_not_found"),
    ],
)
def test_what_is_refused(added: Bench, command: Command, code: str) -> None:
    if isinstance(command, AddBucket) and code != "bucket_exists":
        command = replace(command, name=command.name if command.name != "orders" else "other")
    assert added.refusal(command) == code


def test_a_bucket_of_the_store_is_nobodys_to_add_or_to_remove(bench: Bench) -> None:
    bench.apply(replace(CREATE, bucket="travel"))
    assert bench.refusal(replace(ADD, name="travel")) == "bucket_exists"
    assert bench.refusal(RemoveBucket("travel")) == "bucket_of_store"


def test_a_bucket_goes_when_its_last_index_is_gone(added: Bench) -> None:
    added.apply(CREATE)
    assert added.refusal(RemoveBucket("orders")) == "bucket_in_use"
    ((index, _),) = added.state.indexes()
    added.apply(MarkReady(index.id, (Shard(1, 7),)))
    added.apply(DropIndex(bucket="orders", name="by_city"))
    assert added.refusal(RemoveBucket("orders")) == "bucket_in_use"
    added.apply(ForgetIndex(index.id))
    added.apply(RemoveBucket("orders"))


def test_a_removed_bucket_leaves_nothing(added: Bench) -> None:
    added.apply(RemoveBucket("orders"))
    assert added.state.get(bucket_key("orders")) is None
    added.apply(replace(ADD, partitions=3))
    assert bucket_of(added).vbuckets == 3


def test_the_stores_number_of_vbuckets_is_not_taken_over(added: Bench) -> None:
    assert isinstance(added.decide(AdoptBucket("orders", 64)), Unchanged)
    assert bucket_of(added).vbuckets == 6


def test_an_index_and_the_end_of_its_bucket_do_not_go_together(added: Bench) -> None:
    create = ddl.footprint(added.state, CREATE)
    remove = ddl.footprint(added.state, RemoveBucket("orders"))
    assert create & remove
    elsewhere = ddl.footprint(added.state, replace(CREATE, bucket="travel"))
    assert not elsewhere & remove


def test_a_topic_is_read_again_once_for_each_reading_that_missed_something(added: Bench) -> None:
    added.wall_ms += 5
    added.apply(ReadTopicAgain("orders", 0))
    assert bucket_of(added) == Bucket("orders", 6, "shop.orders", "json", "", 1, added.wall_ms)
    for stale in (ReadTopicAgain("orders", 0), ReadTopicAgain("none", 0)):
        assert isinstance(added.decide(stale), Unchanged)
    added.apply(ReadTopicAgain("orders", 1))
    assert bucket_of(added).reading == 2


def test_a_bucket_of_the_store_is_not_read_again(bench: Bench) -> None:
    bench.apply(replace(CREATE, bucket="travel"))
    assert isinstance(bench.decide(ReadTopicAgain("travel", 0)), Unchanged)


def test_there_is_a_bound_on_buckets(bench: Bench) -> None:
    for number in range(TOPIC_BUCKETS_MAX):
        bench.apply(replace(ADD, name=f"b{number}"))
    assert bench.refusal(ADD) == "too_many_buckets"

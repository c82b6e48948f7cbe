"""What Spark reads: all inputs in one stream, as they came. `rows` makes records of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from coordinator.core.entities import bucket_key, setting_key
from coordinator.core.timestamp_settings import PREFIX
from coordinator.kafka.topics import STATECONTEXT, topic_name
from streaming.inputs import INPUTS

BEGINNING = -2
TIMEOUT_MS = 10_000

KAFKA: Mapping[str, str] = {
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "kafka.request.timeout.ms": str(TIMEOUT_MS),
    "kafka.default.api.timeout.ms": str(TIMEOUT_MS),
    "kafka.reconnect.backoff.max.ms": "1000",
    "kafkaConsumer.pollTimeoutMs": str(TIMEOUT_MS),
    "failOnDataLoss": "false",
}
"""Offsets that vanished are looked for and told of by the application: Spark would stop for good,
or go on in silence."""


def rows(
    spark: SparkSession,
    bootstrap_servers: str,
    cluster: str,
    starting: Mapping[tuple[str, int], int],
    *,
    offsets_max: int,
) -> DataFrame:
    """Return the stream of inputs as `columns` says.

    `starting` has every partition of every topic, by full name: where a new query begins. A batch
    has at most `offsets_max` records.
    """
    names = [topic_name(cluster, name) for name in INPUTS]
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", ",".join(names))
        .option("startingOffsets", starting_offsets(starting))
        .option("maxOffsetsPerTrigger", offsets_max)
        .options(**KAFKA)
        .load()
    )
    return columns(raw, names)


def starting_offsets(starting: Mapping[tuple[str, int], int]) -> str:
    """Return the option of Spark that names the first offset of each partition."""
    named: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(starting.items()):
        named.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(named)


def columns(raw: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return flat rows: place, partition, offset, key, value.

    `place` is that of the topic in `names`. `key` is there only for `statecontext`, of which only
    buckets and settings are rows.
    """
    of_context = f.col("topic") == names[INPUTS.index(STATECONTEXT)]
    key = f.col("key").cast("string")
    known = key.startswith(bucket_key("")) | key.startswith(setting_key(PREFIX))
    own_key = f.when(of_context, f.col("key")).alias("key")
    chosen = raw.where(~of_context | known)
    return chosen.select(place_in(names), "partition", "offset", own_key, "value")


def place_in(names: Sequence[str]) -> Column:
    """Return the column `place`: that of a record's topic in `names`."""
    topics = (f.when(f.col("topic") == name, f.lit(place)) for place, name in enumerate(names))
    return f.coalesce(*topics).alias("place")

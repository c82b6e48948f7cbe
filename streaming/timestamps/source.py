"""What Spark reads: all inputs in one stream, as they came. `rows` makes records of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from coordinator.core.model.entities import bucket_key, setting_key
from coordinator.core.timestamps.settings import PREFIX
from coordinator.kafka.topics import STATECONTEXT, topic_name
from streaming.spark.kafka_source import KAFKA, connection, starting_offsets
from streaming.timestamps.inputs import INPUTS


def rows(
    spark: SparkSession,
    bootstrap_servers: str,
    cluster: str,
    starting: Mapping[tuple[str, int], int],
    *,
    offsets_max: int,
    partitions_min: int = 0,
) -> DataFrame:
    """Return the stream of inputs as `columns` says.

    `starting` has every partition of every topic, by full name: where a new query begins. A batch
    has at most `offsets_max` records; Spark divides it among `partitions_min` tasks at least, if
    that is not 0.
    """
    names = [topic_name(cluster, name) for name in INPUTS]
    raw = (
        spark.readStream.format("kafka")
        .options(**connection(bootstrap_servers))
        .option("subscribe", ",".join(names))
        .option("startingOffsets", starting_offsets(starting))
        .option("maxOffsetsPerTrigger", offsets_max)
        .options(**KAFKA)
        .options(**({"minPartitions": str(partitions_min)} if partitions_min else {}))
        .load()
    )
    return columns(raw, names)


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

"""What Spark reads: all inputs in one stream, SYNC decoded in the JVM, the rest as it came.

SYNC is nearly all of it, so its fields travel as columns. A writer's schema is found by the
fingerprint in each record: writers of several released versions are read side by side. Records of
the other topics are rare, and decoded on the driver; so is a SYNC that Spark could not decode, to
learn why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import fastavro
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from coordinator.core.entities import bucket_key, setting_key
from coordinator.core.timestamp_settings import PREFIX
from coordinator.kafka.topics import STATECONTEXT, SYNC, topic_name
from schemas.registry import FOLDER, HEAD_BYTES, Schema
from streaming.inputs import INPUTS, SYNC_FIELDS

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
    schemas: Path = FOLDER,
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
    return columns(raw, names, schemas)


def starting_offsets(starting: Mapping[tuple[str, int], int]) -> str:
    """Return the option of Spark that names the first offset of each partition."""
    named: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(starting.items()):
        named.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(named)


def columns(raw: DataFrame, names: Sequence[str], schemas: Path = FOLDER) -> DataFrame:
    """Return flat rows: place, partition, offset, key, value, and the fields of SYNC.

    `place` is that of the topic in `names`. `key` is there only for `statecontext`, of which only
    buckets and settings are rows. `value` is null where the fields of SYNC are not.
    """
    sync, context = names[INPUTS.index(SYNC)], names[INPUTS.index(STATECONTEXT)]
    head = f.substring("value", 1, HEAD_BYTES)
    body = f.substring(f.col("value"), HEAD_BYTES + 1, 2**30)
    decoded = _decoded(f.col("topic") == sync, head, body, sync_schemas(schemas))
    of_context = f.col("topic") == context
    key = f.col("key").cast("string")
    known = key.startswith(bucket_key("")) | key.startswith(setting_key(PREFIX))
    place = f.coalesce(
        *(f.when(f.col("topic") == name, f.lit(number)) for number, name in enumerate(names))
    )
    return (
        raw.where(~of_context | known)
        .withColumn("sync", decoded)
        .select(
            place.alias("place"),
            "partition",
            "offset",
            f.when(of_context, f.col("key")).alias("key"),
            f.when(f.col("sync.connection").isNull(), f.col("value")).alias("value"),
            *(f.col(f"sync.{name}").alias(name) for name in SYNC_FIELDS),
        )
    )


def _decoded(is_sync: Column, head: Column, body: Column, schemas: Mapping[bytes, str]) -> Column:
    """Return the struct of a SYNC, with the writer's schema that its head names, else null."""
    reader = current_schema(schemas)
    options = {"avroSchema": reader, "mode": "PERMISSIVE"}
    result: Any = None
    for fingerprint, writer in schemas.items():
        condition = is_sync & (head == f.lit(bytearray(fingerprint)))
        read = from_avro(body, writer, options)
        result = f.when(condition, read) if result is None else result.when(condition, read)
    assert result is not None, "there is no schema of SYNC"
    return cast("Column", result)


def sync_schemas(folder: Path = FOLDER) -> dict[bytes, str]:
    """Return the text of every version of SYNC by the head of its records, the current one last."""
    current = folder / "Sync.avsc"
    found: dict[bytes, str] = {}
    for path in (*sorted((folder / "released").glob("Sync.*.avsc")), current):
        text = path.read_text()
        head = Schema("Sync", fastavro.parse_schema(json.loads(text), _force=True)).head
        found.pop(head, None)
        found[head] = text
    return found


def current_schema(schemas: Mapping[bytes, str]) -> str:
    """Return the schema into which all versions are read."""
    return tuple(schemas.values())[-1]

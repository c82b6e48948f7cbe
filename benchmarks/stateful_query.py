"""What was not chosen: the fold as state of Spark, by `transformWithStateInPandas`.

Run as a process: the same records, decoder and fold as the application's, with the state in Spark's
RocksDB and the outputs through Spark's sink, which writes at least once. It lacks the rest:
settings, limits while nothing comes (these take timers), dead letters, offsets with the state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from coordinator import codec
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.timestamps.bucket_state import BucketState
from coordinator.core.timestamps.settings import TimestampSettings
from coordinator.kafka.topics import FAILOVER_LOG, STREAM_BEGIN, STREAM_END, SYNC, topic_name
from streaming.spark.kafka_source import KAFKA
from streaming.spark.session import SparkOptions, start
from streaming.stability.fold import Batch, fold, pack, unpack
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.rows import SyncRows, rows_of
from streaming.timestamps.source import place_in

TOPICS = (SYNC, STREAM_BEGIN, STREAM_END, FAILOVER_LOG)
SETTINGS = TimestampSettings(period_ms=1_000, sync_missing_ms=3_600_000)
STATE = "org.apache.spark.sql.execution.streaming.state"
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.arrow.transformWithStateInPySpark.maxRecordsPerBatch": "100000",
}


class Buckets(StatefulProcessor):
    """Folds what a batch has of each bucket."""

    def __init__(self, vbuckets: int) -> None:
        self.vbuckets = vbuckets

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("state", "packed binary")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Return the bucket's next stability timestamp, if it is due."""
        (bucket,) = key
        table = pa.Table.from_pandas(pd.concat(list(rows)), preserve_index=False)
        found = rows_of(table, {bucket: self.vbuckets})
        syncs = SyncRows.joined(bucket, found.syncs)
        batch = Batch(
            syncs.columns,
            [codec.decode(row.value or b"") for row in found.raw],
            timerValues.getCurrentProcessingTimeInMs(),
            ticked=True,
        )
        before = (
            unpack(self.state.get()[0])
            if self.state.exists()
            else BucketState.new(bucket, self.vbuckets)
        )
        done = fold(before, batch, SETTINGS)
        self.state.update((pack(done.state),))
        told = [codec.encode(o) for o in done.outputs if isinstance(o, StabilityTimestamp)]
        yield pd.DataFrame({"key": [bucket.encode()] * len(told), "value": told})

    def close(self) -> None: ...


def main() -> None:
    servers, cluster, vbuckets, target, trigger_ms, folder = sys.argv[1:]
    spark = start(SparkOptions("stateful", "local[2]", Path(folder), conf=CONF))
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", ",".join(topic_name(cluster, name) for name in TOPICS))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400_000)
        .options(**KAFKA)
        .load()
    )
    place = place_in([topic_name(cluster, name) for name in INPUTS])
    bucket = f.split(f.col("key").cast("string"), "/")[0]
    key = f.lit(None).cast("binary")
    query = (
        raw.select(
            bucket.alias("bucket"),
            place,
            "partition",
            "offset",
            key.alias("key"),
            "value",
        )
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=Buckets(int(vbuckets)),
            outputStructType="key binary, value binary",
            outputMode="Append",
            timeMode="ProcessingTime",
        )
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime=f"{trigger_ms} milliseconds")
        .outputMode("append")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

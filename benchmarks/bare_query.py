"""The baseline of `freshness`: Spark copies one topic of Kafka to another, and does nothing else.

Run as a process: the same Spark, settings, trigger and reader as the application's, without its
decoding, its fold and its transaction.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streaming.spark.kafka_source import KAFKA, starting_offsets
from streaming.spark.session import SparkOptions, start


def main() -> None:
    servers, source, target, partitions, trigger_ms, folder = sys.argv[1:]
    spark = start(SparkOptions("bare", "local[2]", Path(folder)))
    starting = {(source, partition): 0 for partition in range(int(partitions))}
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", starting_offsets(starting))
        .options(**KAFKA)
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime=f"{trigger_ms} milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

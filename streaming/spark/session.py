"""The Spark session: which settings make a small, prompt micro-batch engine of it.

The settings are those that measurements asked for. A batch of the default Spark spends most of its
time forking `chmod` for the checkpoint's files, planning shuffles that are not there, and drawing
its plans. A start takes as long as its classes take to load and to compile: with the optimising
compiler waiting for methods that are called ten times as often as usual, it takes a quarter less
processor time, and as many records a second. The first compiler alone (`-XX:TieredStopAtLevel=1`)
would save a sixth more, and halve the throughput.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession, functions

from coordinator.runtime.java import find_java
from streaming.spark.jars import spark_classpath

LOOPBACK = "127.0.0.1"
HEAP_MB = 1_000
LOGGING = Path(__file__).with_name("log4j2.properties")

REDACTED = "(?i)secret|password|token|access[.]?key|jaas|keystore"
"""What Spark shows to nobody."""

TUNED: Mapping[str, str] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.debug.maxToStringFields": "3",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.stopTimeout": "5000",
    "spark.shuffle.service.enabled": "false",
    "spark.redaction.regex": REDACTED,
    "spark.sql.redaction.options.regex": f"{REDACTED}|url",
    "spark.python.daemon.module": "streaming.spark.daemon",
}

COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

LOCAL: Mapping[str, str] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}
"""For a master within the driver's own process."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs, and what for; `conf` goes before everything else."""

    name: str
    master: str
    folder: Path
    """For what Spark keeps while it runs."""
    heap_mb: int = HEAP_MB
    conf: Mapping[str, str] = field(default_factory=dict)


def start(options: SparkOptions, *, with_delta: bool = False) -> SparkSession:
    """Return a running session; the JVM ends with this process. It takes some seconds.

    Raises EmbeddedError: no Java, or no jars.
    """
    java = find_java()
    if os.environ.get("JAVA_HOME") and not java.path.is_relative_to(os.environ["JAVA_HOME"]):
        del os.environ["JAVA_HOME"]  # Spark's script would take it, too old as it is.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    jars = spark_classpath(with_delta=with_delta)
    local = options.master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    scratch = options.folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        **TUNED,
        **(LOCAL if local else {"spark.jars": jars.replace(os.pathsep, ",")}),
        "spark.driver.memory": f"{options.heap_mb}m",
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": " ".join(
            (
                "-XX:+UseSerialGC",
                *COMPILER,
                f"-Dlog4j2.configurationFile={LOGGING}",
                f"-Djava.io.tmpdir={scratch}",
            )
        ),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **options.conf,
    }
    builder = SparkSession.builder.master(options.master).appName(options.name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def warm_up(spark: SparkSession) -> None:
    """Have Spark load what a batch needs, beside the start of the first query: it takes seconds.

    The query's own planning is one thread's work, and leaves a core free.
    """

    def run() -> None:
        with suppress(Exception):  # The query meets the same, and tells of it.
            number = functions.col("id")
            text = number.cast("string").cast("binary").alias("text")
            place = functions.when(number == 1, functions.lit(1)).alias("place")
            spark.range(2).where(number >= 0).select(text, place).toArrow()

    Thread(target=run, name="warm-up", daemon=True).start()

"""The Spark session: which settings make a small, prompt micro-batch engine of it.

Under `spark-submit` what its user says wins: master, memory, packages and settings of the command
line and of `spark-defaults.conf`. The rest is set here.

The settings are those that measurements asked for. A batch of the default Spark spends most of its
time forking `chmod` for the checkpoint's files, planning shuffles that are not there, and drawing
its plans. A start takes as long as its classes take to load and to compile: with the optimising
compiler waiting for methods that are called ten times as often as usual, it takes a quarter less
processor time, and as many records a second. The first compiler alone (`-XX:TieredStopAtLevel=1`)
would save a sixth more, and halve the throughput.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession, functions

from coordinator.runtime import class_archive
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.java import find_java
from streaming.spark.jars import DELTA_VERSION, VERSION, spark_classpath
from streaming.spark.submission import is_submitted

LOOPBACK = "127.0.0.1"
MASTER_S = 5.0
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
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
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
    """Empty: as `spark-submit` says."""
    folder: Path
    """For what Spark keeps while it runs."""
    heap_mb: int = HEAP_MB
    conf: Mapping[str, str] = field(default_factory=dict)
    classes_to: Path | None = None
    """Have the JVM write a class archive to this file when it ends; that takes some seconds."""


def start(options: SparkOptions, *, with_delta: bool = False) -> SparkSession:
    """Return a running session; the JVM ends with this process. It takes some seconds.

    Raises EmbeddedError: no Java, no jars, no folder, or nobody who is a master of Spark there.
    """
    scratch = options.folder / "scratch"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{scratch} cannot be made: {error.strerror}"
        raise EmbeddedError("data_folder_unusable", text) from error
    require_master(options.master)
    if is_submitted():
        return _in_submitted(options, scratch, with_delta=with_delta)
    java = find_java()
    if os.environ.get("JAVA_HOME") and not java.path.is_relative_to(os.environ["JAVA_HOME"]):
        del os.environ["JAVA_HOME"]  # Spark's script would take it, too old as it is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    jars = spark_classpath(with_delta=with_delta)
    local = options.master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    settings = {
        **TUNED,
        **(LOCAL if local else {"spark.jars": jars.replace(os.pathsep, ",")}),
        "spark.driver.memory": f"{options.heap_mb}m",
        "spark.driver.extraClassPath": jars,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **options.conf,
    }
    builder = SparkSession.builder.master(options.master).appName(options.name)
    flags = (
        *("-XX:+UseSerialGC", *COMPILER, f"-XX:ErrorFile={scratch / 'jvm-crash.log'}"),
        *(f"-Dlog4j2.configurationFile={LOGGING}", f"-Djava.io.tmpdir={scratch}"),
    )

    def started(*more: str) -> SparkSession:
        """Start a JVM with these flags, unless `conf` has others."""
        written = {"spark.driver.extraJavaOptions": java_options((*flags, *more)), **settings}
        for name, value in written.items():
            builder.config(name, value)
        return builder.getOrCreate()

    if options.classes_to is not None:
        return started(*class_archive.flags_to_write(options.classes_to))
    archive = class_archive_of(java.path, jars)
    try:
        return started(*class_archive.flags_with(archive))
    except PySparkRuntimeError:
        if archive is None or not archive.exists():
            raise
    session = started()
    class_archive.forget(archive)  # It was damaged: without it the JVM starts.
    return session


def require_master(master: str) -> None:
    """Raise EmbeddedError if nobody listens where a standalone master should be.

    Spark would look for it for a minute, in silence. `master` names one, or several that are one
    another's reserve: `spark://HOST:PORT,HOST:PORT`.
    """
    scheme, _, hosts = master.partition("://")
    if scheme != "spark":
        return
    for place in hosts.split(","):
        host, _, port = place.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), port), MASTER_S):
            return
    raise EmbeddedError("spark_unreachable", f"no master of Spark answers at {master}")


def java_options(flags: Iterable[str]) -> str:
    """Return flags as Spark reads them from one setting: a path may have spaces."""
    return " ".join('"{}"'.format(flag.replace("\\", "\\\\").replace('"', '\\"')) for flag in flags)


def class_archive_of(java: Path, connectors: str) -> Path | None:
    """Return where the class archive of Spark's JVM is kept: of one without Delta Lake."""
    of_spark = sorted(map(str, Path(pyspark.__file__).parent.glob("jars/*.jar")))
    return class_archive.archive_path(java, os.pathsep.join((connectors, *of_spark)))


def _in_submitted(options: SparkOptions, scratch: Path, *, with_delta: bool) -> SparkSession:
    """Return the session of `spark-submit`; EmbeddedError `spark_packages_missing`."""
    given = SparkConf()
    wanted = {
        **TUNED,
        "spark.app.name": options.name,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **({"spark.master": options.master} if options.master else {}),
    }
    for name, value in wanted.items():
        if not given.contains(name):
            given.set(name, value)
    for name, value in options.conf.items():
        given.set(name, value)
    session = SparkSession.builder.config(conf=given).getOrCreate()
    gateway: Any = session.sparkContext._jvm
    needed = {KAFKA_SOURCE: KAFKA_PACKAGE, **({DELTA_SOURCE: DELTA_PACKAGE} if with_delta else {})}
    missing = [package for name, package in needed.items() if not _is_there(gateway, name)]
    if missing:
        session.stop()
        text = f"spark-submit needs --packages {','.join(missing)}"
        raise EmbeddedError("spark_packages_missing", text)
    return session


KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}"
DELTA_SOURCE = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_PACKAGE = f"io.delta:delta-spark_4.1_2.13:{DELTA_VERSION}"


def _is_there(gateway: Any, name: str) -> bool:
    loader = gateway.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        gateway.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


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

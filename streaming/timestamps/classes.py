"""A run of the application for its classes alone: its JVM writes them to the class archive.

Later starts of Spark with the same Java and jars map that archive into memory, and take about half
the processor time.
"""

from __future__ import annotations

import threading
from pathlib import Path

from coordinator.runtime import class_archive
from coordinator.runtime.java import find_java
from streaming.spark.jars import spark_classpath
from streaming.spark.queries import end_session
from streaming.spark.session import SparkOptions, class_archive_of, start
from streaming.timestamps.application import Application, Options

WRITING_S = 60.0


def keep_classes(bootstrap_servers: str, cluster: str, folder: Path) -> None:
    """Run the application over what the topics of `cluster` have now, and keep its classes.

    Does nothing where there is an archive already, or can be none. Raises as `Application` does.
    """
    archive = class_archive_of(find_java().path, spark_classpath())
    if archive is None or archive.exists():
        return
    written = folder / archive.name
    options = Options(
        cluster=cluster, bootstrap_servers=bootstrap_servers, data_dir=folder, until_read=True
    )
    spark = start(SparkOptions("classes", options.spark_master, folder, classes_to=written))
    try:
        Application(options, threading.Event(), threading.Event()).compute(spark)
    finally:
        end_session(spark, jvm_stop_s=WRITING_S)
    class_archive.keep(written, archive)

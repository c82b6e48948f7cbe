"""Tells the operator when Spark has no executor: its tasks wait then, and Spark says nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coordinator.kafka.state_follower import StatusLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 5.0
ABOUT = "Spark's executors"


class ExecutorWatch:
    """Looks now and then. One look in vain is none: executors come some seconds after their
    tasks."""

    def __init__(self, spark: SparkSession, status_log: StatusLog) -> None:
        self._context: Any = spark.sparkContext
        self._status_log = status_log
        self._in_vain = 0

    def check(self) -> None:
        """Complain of tasks that nobody runs, and say when somebody does."""
        try:
            waits = bool(self._context.statusTracker().getActiveStageIds())
            others = self._context._jsc.sc().getExecutorMemoryStatus().size() - 1
        except Exception:
            return  # Without a JVM; whoever waits for the query hears of that.
        self._in_vain = self._in_vain + 1 if waits and not others else 0
        if self._in_vain > 1:
            text = f"{self._context.master} has given none, and tasks wait"
            self._status_log.problem(ABOUT, text)
        elif others:
            self._status_log.resolved(ABOUT)


@contextmanager
def executors_watched(spark: SparkSession, status_log: StatusLog) -> Iterator[None]:
    """Watch the executors of a session; where tasks run in the driver, there are none."""
    if str(spark.sparkContext.master).startswith("local"):
        yield
        return
    watch, ending = ExecutorWatch(spark, status_log), threading.Event()

    def run() -> None:
        while not ending.wait(LOOK_S):
            watch.check()

    threading.Thread(target=run, name="executors", daemon=True).start()
    try:
        yield
    finally:
        ending.set()

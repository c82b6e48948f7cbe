"""How a query of Spark is waited for, judged and ended, and a session, with its JVM, after it.

Calls of Spark may hang or fail when its JVM does: none is waited for without a bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FAILURES_MAX = 20
"""So often in a row a query may fail without finishing a batch."""

BATCH_STOP_S = 5.0
QUERY_STOP_S = 5.0
JVM_STOP_S = 5.0
SAID_MAX = 300


class StoppedError(Exception):
    """The application stops; the batch is computed at the next start."""


class LostError(Exception):
    """Nothing works any more in this process; a new one may do better."""


def wait_for(query: StreamingQuery, stopping: threading.Event, wake: threading.Event) -> None:
    """Wait until the query has ended, which sets `wake`, or until the application is to stop."""
    ended = threading.Event()

    def watch() -> None:
        with suppress(Exception):  # What it ended with is asked for again.
            query.awaitTermination()
        ended.set()
        wake.set()

    threading.Thread(target=watch, name="query", daemon=True).start()
    while not (ended.is_set() or stopping.is_set()):
        wake.wait()
        wake.clear()


def error_of(query: StreamingQuery) -> Exception | None:
    """Return what the query ended with. LostError: there is no JVM to ask."""
    try:
        return query.exception()
    except Exception as gone:
        raise LostError(f"Spark's JVM is gone ({type(gone).__name__})") from gone


def unpaced(spark: SparkSession, writer: DataStreamWriter, poll_ms: int) -> DataStreamWriter:
    """Have a query begin a batch as soon as it has records; it looks for them each `poll_ms`.

    Who computes the batch paces it. Spark's own trigger waits for a time of the wall clock: where
    that steps back by an hour, the query stands still for an hour.
    """
    spark.conf.set("spark.sql.streaming.pollingDelay", f"{poll_ms}ms")
    return writer.trigger(processingTime="0 seconds")


def end_query(query: StreamingQuery, busy: threading.Lock) -> None:
    """Stop the query: after the batch that holds `busy`, if that ends soon."""
    if busy.acquire(timeout=BATCH_STOP_S):
        busy.release()
    _bounded(query.stop, QUERY_STOP_S)


def end_session(spark: SparkSession, *, jvm_stop_s: float = JVM_STOP_S) -> None:
    """Stop Spark, and end its JVM, by force after `jvm_stop_s`."""
    gateway: Any = spark.sparkContext._gateway
    _bounded(spark.stop, JVM_STOP_S)
    with suppress(Exception):
        gateway.shutdown()
    jvm = getattr(gateway, "proc", None)
    if jvm is None:
        return
    with suppress(OSError):
        jvm.stdin.close()
    try:
        jvm.wait(jvm_stop_s)
    except Exception:
        jvm.kill()
        jvm.wait()


def first_line(error: object) -> str:
    """Return what Spark says, without the stack of its JVM."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # An error of the JVM asks the JVM for its text, which may be gone.
        lines = []
    said = lines[:1] or [type(error).__name__]
    said += [line for line in lines[1:2] if line.startswith(": ")]  # Its class and its message.
    return "".join(said)[:SAID_MAX]


def _bounded(call: Callable[[], object], timeout_s: float) -> None:
    """Make a call of Spark that may hang or fail, and wait for it no longer than that."""

    def run() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(timeout_s)

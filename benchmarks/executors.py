"""Where the work of timestamps is done: in the driver's Python, in the workers, in the JVMs.

The application catches up with the same records each time, in batches of a million: as the driver
alone reads them, reduced in the executors of one process, and on a Spark cluster of this machine
with 1, 2 and 4 executors of one core. With more executors than cores only processor time counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import psutil
from confluent_kafka import Producer

from benchmarks.timestamps import (
    SYNCS,
    WAIT_S,
    Load,
    Process,
    Reader,
    application,
    is_through,
    read_of,
    scratch,
)
from coordinator.core.timestamps.progress import TimestampProgress
from coordinator.kafka.topics import STABILITY, TIMESTAMP_STATE, topic_name
from tests.integration.spark_cluster import SparkCluster

OFFSETS_MAX = 1_000_000
NEVER = 10_000_000
EXECUTORS = (1, 2, 4)
TASKS = 4


def executors(servers: str, syncs: int = SYNCS, rounds: int = 3) -> dict[str, Any]:
    """Catch up in each way in turn; microseconds of processor time a record, and records a second.

    Of each way the median of some rounds. `efficiency` is the processor time a record of one
    executor, by that of so many: 1 where dividing the work costs nothing.
    """
    load = Load(servers, f"executors{time.time_ns() % 10**6}", 4, 1_024)
    load.begin()
    with scratch() as folder, application(load, folder, "--until-read") as running:
        running.wait(WAIT_S)
    state = _kept(load, TIMESTAMP_STATE)
    load.syncs(syncs)
    load.flush()
    in_driver = ["--executors-from", str(NEVER)]
    in_executors = ["--executors-from", "0"]
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        found.setdefault("driver", []).append(_caught_up(load, state, in_driver, None))
        found.setdefault("local", []).append(_caught_up(load, state, in_executors, None))
    for number in EXECUTORS:
        with scratch() as folder, SparkCluster(folder / "spark", number) as spark:
            more = [*in_executors, "--partitions-min", str(TASKS), *spark.options()]
            name = f"{number} executors"
            found[name] = [_caught_up(load, state, more, spark) for _ in range(rounds)]
    seen: dict[str, Any] = {name: _median(runs) for name, runs in found.items()}
    one = _in_all(seen["1 executors"])
    for number in EXECUTORS:
        whole = seen[f"{number} executors"]
        whole["efficiency"] = round(one / _in_all(whole), 2)
    ratios = zip(found["local"], found["driver"], strict=True)
    seen["local_by_driver"] = _middle([a["records_s"] / b["records_s"] for a, b in ratios])
    return {"records": load.records, "batch": OFFSETS_MAX, **seen}


def _in_all(run: dict[str, float]) -> float:
    return sum(value for name, value in run.items() if name.endswith("_us"))


def _caught_up(
    load: Load,
    state: dict[bytes, bytes | None],
    options: Sequence[str],
    spark: SparkCluster | None,
) -> dict[str, float]:
    """Have all SYNCs read again; return what a record took after the first batch."""
    end = _rewind(load, state)
    topic = topic_name(load.name, TIMESTAMP_STATE)
    begun: dict[str, float] = {}
    first: list[int] = []

    def is_last(record: Any) -> bool:
        if not isinstance(record, TimestampProgress):
            return False
        if not first and read_of(record) >= min(OFFSETS_MAX, load.records // 2):
            first.append(read_of(record))
            begun.update(_cpu_s(running, spark), at=time.monotonic())
        return is_through(record, load.records)

    with (
        scratch() as folder,
        application(load, folder, "--offsets-max", str(OFFSETS_MAX), *options) as running,
        Reader(load.servers, topic, begin=end) as reader,
    ):
        reader.until(running, is_last)
        ended = {**_cpu_s(running, spark), "at": time.monotonic()}
    records = load.records - first[0]
    took = {f"{name}_us": (ended[name] - begun[name]) / records * 1e6 for name in PARTS}
    return {"records_s": records / (ended["at"] - begun["at"]), **took}


PARTS = ("driver_python", "workers_python", "driver_jvm", "executors_jvm")


def _cpu_s(running: Process, spark: SparkCluster | None) -> dict[str, float]:
    """Return the processor seconds of each part of it, up to now."""
    own = running.processes()
    found = dict.fromkeys(PARTS, 0.0)
    for place, one in enumerate(own):
        name = "driver_jvm" if one.name() == "java" else "workers_python"
        found[name if place else "driver_python"] += _time_of(one)
    for worker in spark.workers if spark else []:
        for executor in worker.executors():
            found["executors_jvm"] += _time_of(executor)
            found["workers_python"] += sum(map(_time_of, executor.children(recursive=True)))
    return found


def _time_of(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _kept(load: Load, name: str) -> dict[bytes, bytes | None]:
    """Return the last value of each key of a topic."""
    found: dict[bytes, bytes | None] = {}
    with Reader(load.servers, topic_name(load.name, name)) as reader:
        while batch := reader.read(2.0):
            found.update((message.key() or b"", message.value()) for _, message in batch)
    return found


def _rewind(load: Load, state: dict[bytes, bytes | None]) -> int:
    """Put the application back to a state that it had, and forget what it has told since.

    Return where the topic of its state ends.
    """
    topic = topic_name(load.name, TIMESTAMP_STATE)
    producer = Producer(
        {"bootstrap.servers": load.servers, "log_level": 2, "enable.idempotence": True}
    )
    for key, value in state.items():
        producer.produce(topic, value, key, partition=0)
    for key in _kept(load, STABILITY):
        producer.produce(topic_name(load.name, STABILITY), None, key, partition=0)
    if producer.flush(30):
        raise RuntimeError("the broker does not take the state")
    with Reader(load.servers, topic) as reader:
        return reader.end(topic)


def _median(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: _middle([run[name] for run in runs]) for name in runs[0]}


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return round(ordered[len(ordered) // 2], 3)

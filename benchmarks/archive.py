"""The archive on Spark: how fast a backlog is archived, and how many files a year leaves.

The job is a process of its own. `BENCH_EVENTS` is how long the backlog is, a million events if it
is not set, and `BENCH_DAYS` how many days the year has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks.fold import mutations
from benchmarks.history import KEYS
from benchmarks.timestamps import broker
from coordinator import codec
from coordinator.cli.sql import ask
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, TxnId
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.topics import HISTORY, ensure_topics, topic_name
from streaming.archive.place import ARCHIVE

EVENTS = int(os.environ.get("BENCH_EVENTS", "1000000"))
DAYS = int(os.environ.get("BENCH_DAYS", "365"))
EVENTS_A_DAY = 200
DAY_MS = 86_400_000
FIRST_DAY_MS = 1_735_689_600_000
"""2025-01-01."""

PORTION = 5_000


def archive() -> dict[str, Any]:
    """Archive a backlog and a year, each into a folder of its own."""
    with broker() as servers:
        return {"backlog": backlog(servers), "year": year(servers)}


def backlog(servers: str) -> dict[str, Any]:
    """Archive events that are there already. The baseline reads them and does nothing else."""
    cluster = write(servers, EVENTS, EVENTS)
    topic = topic_name(cluster, HISTORY)
    began_s = time.perf_counter()
    assert sum(1 for _ in read_to_end(servers, topic, "bench")) == EVENTS
    bare_s = time.perf_counter() - began_s
    with archived(servers, cluster) as (folder, seen):
        took_s = seen["took_s"] - seen["until_ready_s"]
        began_s = time.perf_counter()
        assert ask(folder, "SELECT count(DISTINCT cas) FROM history").rows == [(EVENTS,)]
        query_s = time.perf_counter() - began_s
        held = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        return {
            "events": EVENTS,
            "bare_read_s": round(bare_s, 1),
            "ratio_to_bare_read": round(took_s / bare_s, 1),
            "events_per_second": round(EVENTS / took_s),
            "bytes_per_event": round(held / EVENTS, 1),
            "distinct_count_by_sql_s": round(query_s, 2),
            **seen,
        }


def year(servers: str) -> dict[str, Any]:
    """Archive a year, a batch a day; tell which files count, and how many lie about."""
    cluster = write(servers, DAYS * EVENTS_A_DAY, EVENTS_A_DAY)
    with archived(servers, cluster, "--offsets-max", str(EVENTS_A_DAY)) as (folder, seen):
        table = DeltaTable(folder / "history")
        assert table.count() == DAYS * EVENTS_A_DAY
        return {
            "days": DAYS,
            "events": DAYS * EVENTS_A_DAY,
            "batch_s": round((seen["took_s"] - seen["until_ready_s"]) / DAYS, 2),
            "files": len(table.file_uris()),
            "files_on_disk": len(list((folder / "history").rglob("*.parquet"))),
            "files_of_the_log": len(list((folder / "history" / "_delta_log").iterdir())),
            "versions": table.version(),
            **seen,
        }


@contextmanager
def archived(servers: str, cluster: str, *options: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run the job until all is read; yield the archive, and what the run cost."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, ready = Path(name), Path(name) / "ready"
        command = [
            *(sys.executable, "-m", "streaming", "archive", "--cluster", cluster),
            *("--bootstrap-servers", servers, "--data-dir", name, "--ready-file", str(ready)),
            *("--until-read", *options),
        ]
        began_s = time.perf_counter()
        log = Path(name) / "log"
        with log.open("wb") as out, subprocess.Popen(command, stderr=out) as job:
            process = psutil.Process(job.pid)
            until_ready_s, peak = 0.0, 0
            while job.poll() is None:
                if not until_ready_s and ready.exists():
                    until_ready_s = time.perf_counter() - began_s
                peak = max(peak, _resident(process))
                time.sleep(0.2)
        assert job.returncode == 0, log.read_text()
        yield (
            folder / ARCHIVE,
            {
                "until_ready_s": round(until_ready_s, 1),
                "took_s": round(time.perf_counter() - began_s, 1),
                "peak_mib": round(peak / 2**20),
            },
        )


def _resident(process: psutil.Process) -> int:
    """Return the resident memory of a process and those that it has started."""
    found = 0
    for one in (process, *process.children(recursive=True)):
        try:
            found += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


def write(servers: str, count: int, a_day: int) -> str:
    """Write a history of single changes, so many a day; return the name of its cluster."""
    cluster = f"bench{uuid.uuid4().hex[:8]}"
    ensure_topics(servers, cluster, durable=False)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True})
    topic = topic_name(cluster, HISTORY)
    for begin in range(0, count, PORTION):
        for number, made in enumerate(mutations(min(PORTION, count - begin), KEYS), begin):
            cas = Cas(number + 1)
            mutation = replace(made, at_ms=FIRST_DAY_MS + number * DAY_MS // a_day)
            event = Event(mutation, TxnId(1, cas), 0, 1, cas)
            producer.produce(topic, codec.encode(event), mutation.key, partition=0)
        producer.flush(60)
    return cluster

"""What Prometheus is told of the application."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx

from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.vectors import Vector
from streaming.timestamps.metrics import Metrics
from tests.support.ports import reserve_port


def test_ages_phases_and_what_is_behind_are_served() -> None:
    published = {"b": StabilityTimestamp("b", 3, *Vector([1], [9]).to_bytes(), 40_000)}
    metrics = Metrics(lambda: published, lambda: 42_500)
    with metrics.phase("fold"):
        metrics.records.inc(7)
    metrics.batches.labels("driver").inc()
    metrics.lost.inc(4)
    source = SimpleNamespace(metrics={"maxOffsetsBehindLatest": "12"})
    progress: Any = SimpleNamespace(durationMs={"addBatch": 80}, sources=[source])
    metrics.listener.onQueryProgress(SimpleNamespace(progress=progress))
    port = reserve_port()
    stop = metrics.serve(port)
    try:
        said = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        stop()
    for line in (
        "timestamps_records_total 7.0",
        'timestamps_batches_total{reduced_by="driver"} 1.0',
        "timestamps_offsets_lost_total 4.0",
        'timestamps_phase_seconds_count{phase="fold"} 1.0',
        'timestamps_phase_seconds_sum{phase="spark_addBatch"} 0.08',
        "timestamps_offsets_behind 12.0",
        'timestamps_stability_age_seconds{bucket="b"} 2.5',
    ):
        assert line in said


def test_a_query_without_metrics_of_its_sources_is_behind_by_nothing() -> None:
    metrics = Metrics(dict, lambda: 0)
    progress: Any = SimpleNamespace(durationMs={}, sources=[SimpleNamespace(metrics={})])
    metrics.listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert metrics.registry.get_sample_value("timestamps_offsets_behind") == 0

"""What the application counts and measures, for Prometheus.

Spark's own part comes by a `StreamingQueryListener`: how long each phase of a batch took, and how
many records Kafka has beyond it. The rest is counted here, where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from coordinator.core.model.stream_records import StabilityTimestamp

LOOPBACK = "127.0.0.1"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BEHIND = "maxOffsetsBehindLatest"

Published = Mapping[str, StabilityTimestamp]


class Metrics:
    """The metrics of one application."""

    def __init__(self, published: Callable[[], Published], now_ms: Callable[[], int]) -> None:
        """`published` returns the last stability timestamp of each bucket, `now_ms` the time."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.records = Counter(
            "timestamps_records_total", "Records that were read", registry=self.registry
        )
        self.batches = Counter(
            "timestamps_batches_total",
            "Batches, and whether executors have reduced them",
            ["reduced_by"],
            registry=self.registry,
        )
        self.lost = Counter(
            "timestamps_offsets_lost_total",
            "Records that Kafka had deleted before they were read",
            registry=self.registry,
        )
        self.seconds = Histogram(
            "timestamps_phase_seconds",
            "Time of a batch by phase",
            ["phase"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._progress = _Progress(published, now_ms)
        self.registry.register(self._progress)
        self.listener = _Listener(self._progress, self.seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase of a batch."""
        begun_s = monotonic()
        yield
        self.seconds.labels(name).observe(monotonic() - begun_s)

    def serve(self, port: int, host: str = LOOPBACK) -> Callable[[], None]:
        """Answer `GET /metrics` from now on; return what ends that. Raises OSError."""
        server, thread = start_http_server(port, host, self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


class _Progress(Collector):
    """What is asked for when somebody looks."""

    def __init__(self, published: Callable[[], Published], now_ms: Callable[[], int]) -> None:
        self._published, self._now_ms = published, now_ms
        self.behind = 0.0

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "timestamps_offsets_behind",
            "Records that the topic farthest ahead has beyond the last batch",
            self.behind,
        )
        age = GaugeMetricFamily(
            "timestamps_stability_age_seconds",
            "Age of the newest stability timestamp",
            labels=["bucket"],
        )
        now_ms = self._now_ms()
        for bucket, last in sorted(self._published().items()):
            age.add_metric([bucket], max(0, now_ms - last.at_ms) / 1000)
        yield age


class _Listener(StreamingQueryListener):
    """Hears from Spark how each batch went."""

    def __init__(self, progress: _Progress, seconds: Histogram) -> None:
        self._progress, self._seconds = progress, seconds

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        for phase, duration_ms in event.progress.durationMs.items():
            self._seconds.labels(f"spark_{phase}").observe(duration_ms / 1000)
        behind = (source.metrics.get(BEHIND) for source in event.progress.sources)
        self._progress.behind = max((float(one) for one in behind if one), default=0.0)

    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

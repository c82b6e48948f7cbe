"""What a node shows to Prometheus. Values are read from the node when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.core.consensus.election import MASTERSHIPS
from coordinator.core.node import Node
from coordinator.node.retention import Retention, RetentionStatus

STAGE_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2)


class SubscriberRow(NamedTuple):
    """What is shown of one subscription."""

    topic: str
    subscriber: str
    behind_cas: int
    has_problem: bool


class SubscriptionMetrics(Collector):
    """How far behind subscribers are; the master shows it, so that each is there once."""

    def __init__(self, rows: Callable[[], Iterable[SubscriberRow]]) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Metric]:
        labels = ["topic", "subscriber"]
        behind = GaugeMetricFamily(
            "coordinator_subscription_behind_cas", "CAS since the oldest that waits", labels=labels
        )
        problem = GaugeMetricFamily(
            "coordinator_subscription_problem", "1 if nothing can be delivered", labels=labels
        )
        for row in self._rows():
            behind.add_metric([row.topic, row.subscriber], row.behind_cas)
            problem.add_metric([row.topic, row.subscriber], row.has_problem)
        yield behind
        yield problem


class NodeMetrics(Collector):
    """The registry of one node's process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.retention: Retention | None = None
        """What lets records of `history` go; None: they stay for ever."""
        self.registry = CollectorRegistry()
        self.stages = Histogram(
            "coordinator_transaction_stage_seconds",
            "Time of a transaction by stage, on the master that proposed it",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        node = self._node
        authority = node.authority
        yield GaugeMetricFamily("coordinator_cas", "Applied CAS", node.state.cas)
        yield GaugeMetricFamily("coordinator_epoch", "Epoch", authority.epoch if authority else 0)
        yield GaugeMetricFamily("coordinator_applied_offset", "Applied offset", node.applied)
        yield GaugeMetricFamily("coordinator_entities", "Entities held", len(node.state.entities))
        yield GaugeMetricFamily("coordinator_ready", "1 if ready", not node.why_not_ready)
        yield GaugeMetricFamily("coordinator_is_master", "1 if master", node.master is not None)
        yield GaugeMetricFamily(
            "coordinator_is_stalled", "1 if stalled", bool(node.liveness.trouble)
        )
        standing = GaugeMetricFamily(
            "coordinator_mastership", "1 for how the mastership stands now", labels=["state"]
        )
        for state in MASTERSHIPS:
            standing.add_metric([state], node.mastership.state == state)
        yield standing
        waiting = len(node.master.requests.queue) if node.master else 0
        yield GaugeMetricFamily("coordinator_commands_waiting", "Commands in the queue", waiting)
        yield GaugeMetricFamily(
            "coordinator_outcomes_remembered", "Outcomes of requests", len(node.outcomes)
        )
        members = len(authority.members) if authority else 0
        yield GaugeMetricFamily("coordinator_active_members", "Length of the active list", members)
        yield from _of_timestamps(node)
        if self.retention is not None:
            yield from _of_retention(self.retention.status)
        for item in fields(node.counters):
            name = f"coordinator_{item.name}"
            yield CounterMetricFamily(
                name, item.name.replace("_", " "), getattr(node.counters, item.name)
            )


def _of_timestamps(node: Node) -> Iterable[Metric]:
    """Yield what the applications on Spark have told, and how long ago."""
    alive = GaugeMetricFamily(
        "coordinator_timestamps_alive",
        "1 if the application that computes the timestamps of a bucket is heard",
        labels=["bucket"],
    )
    age = GaugeMetricFamily(
        "coordinator_stability_age_seconds",
        "Age of the newest stability timestamp",
        labels=["bucket"],
    )
    for bucket, board in sorted(node.timestamps.items()):
        alive.add_metric([bucket], node.peers.application_of(bucket) is not None)
        if board.stability is not None:
            age_ms = node.now.wall_ms - board.stability.record.at_ms
            age.add_metric([bucket], max(0, age_ms) / 1000)
    yield alive
    yield age


def _of_retention(status: RetentionStatus) -> Iterable[Metric]:
    yield CounterMetricFamily(
        "coordinator_history_archived_records_total", "Records of history archived", status.archived
    )
    yield CounterMetricFamily(
        "coordinator_history_retention_failures_total", "Passes that have failed", status.failures
    )
    if status.oldest_cas is not None:
        yield GaugeMetricFamily(
            "coordinator_history_oldest_cas", "First CAS in the topic history", status.oldest_cas
        )

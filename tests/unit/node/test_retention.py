"""When a master lets history go, and what it makes of a failure."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.history_retention import Passed
from coordinator.node import retention as retentions
from coordinator.node.retention import Retention, RetentionStatus

HOUR_MS = 3_600_000
DAMAGED = ArchiveError("history_archive_damaged", "damaged", "file")
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))
NOTHING: Any = None


class Passes:
    """Passes that end as a test says, in order."""

    def __init__(self, *ends: Passed | Exception) -> None:
        self._ends = list(ends)

    def run(self, authority: Any, now_ms: int) -> Passed:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test moves; it begins at 1,000 s."""
    now = [1_000.0]
    monkeypatch.setattr(retentions.time, "monotonic", lambda: now[0])
    return now


def made(*ends: Passed | Exception, retention_ms: int = 24 * HOUR_MS) -> Retention:
    passes: Any = Passes(*ends)
    return Retention(passes, retention_ms, threading.Event())


def passed(archived: int = 0, *, wants_copy: bool = False) -> Passed:
    return Passed(archived, Offset(5), Cas(9), wants_copy)


@pytest.mark.parametrize(
    ("retention_ms", "period_s"),
    [(1_000, 1), (20 * 60_000, 60), (30 * 24 * HOUR_MS, 3_600)],
)
def test_it_looks_often_for_a_short_retention_and_hourly_for_a_long_one(
    clock: list[float], retention_ms: int, period_s: float
) -> None:
    one = made(passed(), retention_ms=retention_ms)
    assert one.is_due()
    one.begun()
    assert not one.is_due(), "there is one pass at a time"
    one.run(NOTHING)
    clock[0] += period_s - 0.1
    assert not one.is_due()
    clock[0] += 0.2
    assert one.is_due()


@pytest.mark.parametrize("failure", [DAMAGED, AWAY, TimeoutError()])
def test_a_failure_is_counted_and_tried_again_within_a_minute(
    clock: list[float], failure: Exception
) -> None:
    one = made(passed(3), failure, passed(4, wants_copy=True))
    assert not one.run(NOTHING)
    assert not one.run(NOTHING)
    error = str(failure) or type(failure).__name__
    assert one.status == RetentionStatus(archived=3, failures=1, error=error, oldest_cas=Cas(9))
    clock[0] += 60
    assert one.is_due()
    assert one.run(NOTHING), "a copy is wanted"
    assert (one.status.archived, one.status.error) == (7, "")
    clock[0] += 60
    assert not one.is_due()


def test_what_ends_with_the_node_is_no_failure(clock: list[float]) -> None:
    stopping = threading.Event()
    stopping.set()
    passes: Any = Passes(AWAY)
    one = Retention(passes, HOUR_MS, stopping)
    one.run(NOTHING)
    assert one.status.failures == 0

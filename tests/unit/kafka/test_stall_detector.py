"""A reader to which nothing comes although there is something is noticed, be it one record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from coordinator.kafka import stall_detector as stall_detectors
from coordinator.kafka.stall_detector import StallDetector


@pytest.mark.parametrize(("end", "stands_still"), [(7, False), (8, True)])
def test_one_record_that_does_not_come_is_enough(
    monkeypatch: pytest.MonkeyPatch, end: int, stands_still: bool
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stall_detectors.time, "monotonic", lambda: now_s[0])
    client: Any = SimpleNamespace(get_watermark_offsets=lambda *_: (0, end))
    stall_detector = StallDetector(client, 1.0)
    stall_detector.assigned([TopicPartition("t", 0)])
    message: Any = SimpleNamespace(
        topic=lambda: "t", partition=lambda: 0, offset=lambda: 6, error=lambda: None
    )
    stall_detector.note(message)
    now_s[0] = 2.0
    stall_detector.check()
    now_s[0] = 4.0
    if stands_still:
        with pytest.raises(KafkaException):
            stall_detector.check()
    else:
        stall_detector.check()


def silent_for_long(patch: pytest.MonkeyPatch, partitions: int) -> tuple[StallDetector, list[int]]:
    """Return a detector of so many silent partitions, and which a slow broker was asked about: each
    answer takes half a second."""
    now_s, asked = [0.0], list[int]()
    patch.setattr(stall_detectors.time, "monotonic", lambda: now_s[0])

    def slow(place: TopicPartition, _: float) -> tuple[int, int]:
        now_s[0] += 0.5
        asked.append(place.partition)
        return 0, -1

    client: Any = SimpleNamespace(get_watermark_offsets=slow)
    stall_detector = StallDetector(client, 10.0)
    stall_detector.assigned([TopicPartition("t", p) for p in range(partitions)])
    now_s[0] = 10.0
    return stall_detector, asked


def test_a_slow_broker_is_asked_about_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All silent partitions were asked about in one go: who reads sent no heartbeat meanwhile."""
    stall_detector, asked = silent_for_long(monkeypatch, 6)
    for count in range(1, 7):
        stall_detector.check()
        assert len(asked) == count
    stall_detector.check()
    assert sorted(asked) == list(range(6))


def test_what_is_given_up_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a slow broker has left it for the next look."""
    stall_detector, asked = silent_for_long(monkeypatch, 2)
    stall_detector.check()
    stall_detector.unassigned([TopicPartition("t", 1 - asked[0])])
    stall_detector.check()
    assert len(asked) == 1

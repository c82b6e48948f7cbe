"""Who asks where a topic ends is answered by its leader of now, also where the one before hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from coordinator.kafka import readers
from coordinator.kafka.readers import LogProbe

PLACE = TopicPartition("t", 3)


class Reader:
    """A client that knows a leader which hangs, until it has looked for another one."""

    def __init__(self, *, knows: bool = False, finds: bool = True) -> None:
        self.knows, self.finds = knows, finds
        self.asked: list[tuple[str, int, float]] = []
        self.looked: list[str] = []

    def get_watermark_offsets(self, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
        self.asked.append((place.topic, place.partition, timeout_s))
        if not self.knows:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 1, 42

    def list_topics(self, topic: str, timeout: float) -> None:
        self.looked.append(topic)
        if not self.finds:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        self.knows = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Reader]]:
    """Have these clients made, one after the other; return those that were."""

    def of(*planned: Reader) -> list[Reader]:
        left, found = [*planned], []

        def make(*_: Any, **__: Any) -> Reader:
            found.append(left.pop(0))
            return found[-1]

        monkeypatch.setattr(readers, "consumer", make)
        return found

    return of


def test_who_is_not_answered_looks_for_the_leader_and_asks_it() -> None:
    reader = Reader()
    assert readers.bounds(reader, PLACE) == (1, 42)  # type: ignore[arg-type]
    assert reader.looked == ["t"]
    assert [at[:2] for at in reader.asked] == [("t", 3)] * 2


def test_one_attempt_leaves_time_for_another_one() -> None:
    reader = Reader()
    readers.bounds(reader, PLACE, 10.0)  # type: ignore[arg-type]
    assert max(timeout_s for *_, timeout_s in reader.asked) < 5.0


def test_where_no_leader_is_found_it_ends_when_its_time_is_over() -> None:
    reader = Reader(finds=False)
    with pytest.raises(KafkaException):
        readers.bounds(reader, PLACE, 0.1)  # type: ignore[arg-type]
    assert len(reader.asked) == len(reader.looked) + 1 > 1


def test_a_probe_that_failed_asks_over_a_new_connection(
    made: Callable[..., list[Reader]],
) -> None:
    found = made(Reader(), Reader(knows=True))
    probe = LogProbe("127.0.0.1:1")
    with pytest.raises(KafkaException):
        probe.end("t", 1.0, 3)
    assert probe.end("t", 1.0, 3) == 42
    assert probe.end("t", 1.0, 3) == 42
    assert [len(one.asked) for one in found] == [1, 2]


def test_a_failure_of_an_older_connection_leaves_a_newer_one_alone(
    made: Callable[..., list[Reader]],
) -> None:
    """Of two threads that failed over the same one, the second comes late."""
    probe = LogProbe("127.0.0.1:1")

    class Late(Reader):
        def get_watermark_offsets(self, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
            if not self.asked:
                self.asked.append((place.topic, place.partition, timeout_s))
                with pytest.raises(KafkaException):
                    probe.end("t", 1.0)
                assert probe.end("t", 1.0) == 42
            return super().get_watermark_offsets(place, timeout_s)

    found = made(Late(), Reader(knows=True))
    with pytest.raises(KafkaException):
        probe.end("t", 1.0)
    assert probe.end("t", 1.0) == 42
    assert len(found) == 2

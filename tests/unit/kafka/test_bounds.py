"""Who asks where a topic ends is answered by its leader of now, also where the one before hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from coordinator.core.model.types import Offset
from coordinator.kafka import log_reader, readers
from coordinator.kafka.log_reader import LogReader
from coordinator.kafka.readers import LogProbe
from coordinator.kafka.stall_detector import StallDetector

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


class Silent(Reader):
    """A client that does not recover, and tells what it was given to read."""

    def __init__(self, *, knows: bool = False, says: KafkaError | None = None) -> None:
        super().__init__(knows=knows, finds=False)
        self.says, self.closed = says, False
        self.assigned: list[int] = []

    def assign(self, places: list[TopicPartition]) -> None:
        assert not self.closed
        self.assigned.append(places[0].offset)

    def poll(self, _: float) -> Any:
        return None if self.says is None else Error(self.says)

    def consume(self, *_: object) -> list[Any]:
        return []

    def offsets_for_times(self, *_: object) -> Any:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        self.closed = True


class Error:
    """A message that only says what is wrong."""

    def __init__(self, said: KafkaError) -> None:
        self.said = said

    def error(self) -> KafkaError:
        return self.said

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


UNKNOWN = KafkaError(KafkaError._UNKNOWN_PARTITION)
END = KafkaError(KafkaError._PARTITION_EOF)


@pytest.mark.parametrize(
    "fail",
    [
        pytest.param(lambda log: log.end_of("other", 0.1), id="bounds"),
        pytest.param(lambda log: log.offset_at(1), id="a time"),
        pytest.param(lambda log: next(log.read(Offset(3))), id="a reading"),
        pytest.param(lambda log: next(log.read(Offset(3), patience_s=-1.0)), id="silence"),
    ],
)
def test_a_reader_that_failed_asks_and_reads_with_a_new_client(
    made: Callable[..., list[Silent]], request: pytest.FixtureRequest, fail: Callable[..., object]
) -> None:
    """One did not recover for minutes after the only broker was started again."""
    is_silent = "silence" in request.node.name
    found = made(Silent(says=None if is_silent else UNKNOWN), Silent(knows=True, says=END))
    log = LogReader("127.0.0.1:1", "t", "tests")
    with pytest.raises(KafkaException):
        fail(log)
    assert log.bounds() == (1, 42)
    assert next(log.read(Offset(5))).at_end
    assert len(found) == 2
    assert found[0].closed
    assert found[1].assigned == [5]


def test_a_reader_that_is_answered_keeps_its_client(made: Callable[..., list[Silent]]) -> None:
    found = made(Silent(knows=True, says=END))
    log = LogReader("127.0.0.1:1", "t", "tests")
    assert log.bounds() == (1, 42)
    assert next(log.read(Offset(5))).at_end
    assert log.bounds() == (1, 42)
    assert len(found) == 1
    assert not found[0].closed


def test_who_follows_after_a_failure_watches_the_client_that_reads(
    made: Callable[..., list[Silent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stall is told of the client that reads, and not of one that was given up."""
    found = made(Silent(), Silent(knows=True, says=END))
    log = LogReader("127.0.0.1:1", "t", "tests")
    with pytest.raises(KafkaException):
        log.end_of("t", 0.1)
    watched: list[object] = []

    class Watching(StallDetector):
        def __init__(self, reader: Any) -> None:
            watched.append(reader)
            super().__init__(reader)

    monkeypatch.setattr(log_reader, "StallDetector", Watching)
    assert next(log.follow(Offset(5), threading.Event())).at_end
    assert watched == [found[1]]
    assert found[0].assigned == []
    assert found[1].assigned == [5]

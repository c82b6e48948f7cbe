"""A reader of a log whose broker is away: it says so, and does not wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.model.types import Offset
from coordinator.kafka.log_reader import LogReader
from tests.support.ports import reserve_port


@pytest.fixture
def log() -> Iterator[LogReader]:
    """A reader at an address where no broker listens."""
    reader = LogReader(f"127.0.0.1:{reserve_port()}", "t", "test")
    yield reader
    reader.close()


def test_a_record_that_nobody_sends_is_not_waited_for_for_ever(log: LogReader) -> None:
    with pytest.raises(KafkaException) as caught:
        log.first(Offset(0), threading.Event(), patience_s=0.1)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT

"""What a node logs of a broker that is away."""

from __future__ import annotations

import logging

from coordinator.kafka.agents import REPEAT_S, Sparing


def record_of(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", logging.ERROR, "", 0, message, arguments, None)


def test_a_fault_that_lasts_is_told_once_in_a_while() -> None:
    now_s = 0.0
    sparing = Sparing(lambda: now_s)
    assert sparing.filter(record_of("no answer from %d", 1))
    assert not sparing.filter(record_of("no answer from %d", 2))
    assert sparing.filter(record_of("another fault"))
    now_s = REPEAT_S
    assert sparing.filter(record_of("no answer from %d", 1))
    assert not sparing.filter(record_of("no answer from %d", 1))

"""Who follows the log of history: where it goes on after a connection has broken."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Message

from coordinator import codec
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.history_tail import HistoryTail, LogReplaced
from coordinator.kafka.log_reader import Read, ignore
from tests.support.changes import ONE, THREE, TWO, flat

EVENTS = flat(ONE, TWO, THREE)


class Log:
    """A log of these events, one for each offset, of which each wait brings one."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events

    def bounds(self) -> tuple[Offset, Offset]:
        return Offset(0), Offset(len(self.events))

    def follow(self, begin: Offset, _: threading.Event) -> Iterator[Read]:
        for offset in range(begin, len(self.events)):
            value = codec.encode(self.events[offset])
            one = Message(topic="c.history", partition=0, offset=offset, value=value)
            yield Read([one], Offset(offset + 1), offset + 1 == len(self.events))

    def close(self) -> None:
        """Nothing is open."""


def a_tail(events: Sequence[Event] = EVENTS) -> HistoryTail:
    made = HistoryTail("127.0.0.1:1", "c", threading.Event(), ignore)
    made.close()
    log: Any = Log(events)
    made._log, made._newest = log, events[-1].cas
    return made


@pytest.mark.parametrize("waits", range(1, len(EVENTS)))
def test_who_comes_back_gets_whole_transactions_wherever_the_connection_broke(waits: int) -> None:
    broken, found = a_tail(), []
    following = broken.follow(Cas(0), Offset(0))
    for _ in range(waits):
        found += next(following).transactions
    after = found[-1][-1].cas if found else Cas(0)
    for one in a_tail().follow(after, broken.position):
        found += one.transactions
    assert found == [ONE, TWO, THREE]


def test_a_log_that_ends_before_what_was_read_is_another_one() -> None:
    assert [*a_tail().follow(EVENTS[-1].cas, Offset(len(EVENTS)))] == []
    with pytest.raises(LogReplaced):
        next(a_tail().follow(EVENTS[-1].cas, Offset(len(EVENTS) + 1)))

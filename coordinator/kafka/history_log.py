"""Reads `history`: the transactions above a CAS, and where a moment is.

CAS ascend with the offset, and so do times as long as the clocks of masters agree: a place is
found by bisection. One consumer is kept for all questions, so only one thread may ask at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator import codec
from coordinator.core.history.changes import transactions
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.log_reader import BadRecord, LogReader
from coordinator.kafka.topics import HISTORY, topic_name
from schemas.registry import SchemaError

END_WAIT_S = 5.0
"""So long the last events may take to become visible after their verdict: the markers of one Kafka
transaction become visible partition by partition."""


def ignore(_: Message, __: str) -> None:
    """Pass over a record that is no event: whoever copies the history has told of it."""


class HistoryLog:
    """The topic `history` of one cluster. The caller closes it."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        stopping: threading.Event | None = None,
        bad: BadRecord = ignore,
    ) -> None:
        self._log = LogReader(bootstrap_servers, topic_name(cluster, HISTORY), "history")
        self._stopping = stopping if stopping is not None else threading.Event()
        self._bad = bad

    def close(self) -> None:
        self._log.close()

    def oldest(self, newest: Cas) -> Cas:
        """Return the CAS of the first event where older ones are gone, else 0."""
        low, _ = self._log.bounds()
        if low == 0:
            return Cas(0)
        found = self._first(low, newest)
        return found[0].cas if found is not None else Cas(0)

    def transactions(self, above: Cas, up_to: Cas) -> Iterator[tuple[Event, ...]]:
        """Yield the transactions above one CAS, which ends one, up to that which has another.

        `up_to` has been committed: the log is waited for where it does not show it yet. Raises
        KafkaException, also where it never does.
        """
        return transactions(self._events(above, up_to))

    def _events(self, above: Cas, up_to: Cas) -> Iterator[Event]:
        begin = self._log.bounds()[0]
        if above:
            begin, _ = self._bisect(lambda event: event.cas > above, up_to)
        heard_s, seen = time.monotonic(), above
        for found in self._log.read(begin, self._stopping):
            for event in self._decoded(found.records):
                # What is above is newer than what was asked for, or a stranger's.
                if seen < event.cas <= up_to:
                    seen = event.cas
                    yield event
            if seen >= up_to:
                return
            if found.records:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > END_WAIT_S:
                text = f"history shows nothing above CAS {seen}, though {up_to} was committed"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))

    def cas_at(self, at_ms: int, newest: Cas) -> Cas:
        """Return the CAS of the last event that a master made at this time or before, else 0.

        `newest` is the last CAS that has been committed. Where the clock of a later master is
        behind, either answer of that while is given.
        """
        _, last = self._bisect(lambda event: event.mutation.at_ms > at_ms, newest)
        return last.cas if last is not None else Cas(0)

    def _bisect(
        self, is_beyond: Callable[[Event], bool], up_to: Cas
    ) -> tuple[Offset, Event | None]:
        """Return an offset from which on all events are beyond, and the last one before it.

        Looks at none above `up_to`: that may be a stranger's.
        """
        low, high = self._log.bounds()
        last: Event | None = None
        while low < high and not self._stopping.is_set():
            middle = Offset((low + high) // 2)
            found = self._first(middle, up_to)
            if found is None or is_beyond(found[0]):
                high = middle
            else:
                last, low = found[0], Offset(found[1] + 1)
        return low, last

    def _first(self, offset: Offset, up_to: Cas) -> tuple[Event, Offset] | None:
        """Return the first event at or above an offset that is not above a CAS, and where."""
        while not self._stopping.is_set():
            message = self._log.first(offset, self._stopping)
            if message is None:
                return None
            offset = Offset(int(message.offset() or 0))
            for event in self._decoded([message]):
                if event.cas <= up_to:
                    return event, offset
            offset = Offset(offset + 1)
        return None

    def _decoded(self, messages: Iterable[Message]) -> Iterator[Event]:
        for message in messages:
            try:
                record = codec.decode(message.value() or b"")
            except SchemaError as error:
                self._bad(message, str(error))
                continue
            if isinstance(record, Event):
                yield record
            else:
                self._bad(message, f"{type(record).__name__} does not belong here")

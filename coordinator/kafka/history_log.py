"""Reads `history`: the transactions above a CAS, and where a moment is.

CAS ascend with the offset, and so do times as long as the clocks of masters agree: a place is
found by looking at a few records. One consumer is kept for all questions, so only one thread may
ask at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import transactions
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.history_archive import HistoryArchive, history_reader
from coordinator.kafka.log_reader import BadRecord, decoded, ignore, stopped
from coordinator.kafka.settings import BASE_HEADER, Base, decode_base
from coordinator.kafka.state_sources import SnapshotLost, Sources

END_WAIT_S = 5.0
"""So long the last events may take to become visible after their verdict: the markers of one Kafka
transaction become visible partition by partition."""


SHORT_READS = {"queued.max.messages.kbytes": 2_048}
"""Most reads are of a few records: the client must not fetch megabytes ahead."""

NEAR = 500
"""So many records are rather read than a place found more precisely."""


log = logging.getLogger("coordinator")


class Mark(NamedTuple):
    """An event's CAS, and its offset."""

    cas: int
    offset: int


class HistoryLog:
    """The topic `history` of one cluster. The caller closes it."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        stopping: threading.Event | None = None,
        bad: BadRecord = ignore,
        archive: HistoryArchive | None = None,
    ) -> None:
        """`archive` has what the topic has no more."""
        self._log = history_reader(bootstrap_servers, cluster, "history", archive, **SHORT_READS)
        self._servers, self._cluster = bootstrap_servers, cluster
        self._stopping = stopping if stopping is not None else threading.Event()
        self._bad = bad
        self._begins: tuple[Offset, Base | None] | None = None
        """Where the log begins, and above what, as its first record says."""
        self._base_state: tuple[Offset, StateContext] | None = None
        self._marks: list[Mark] = []
        """What was seen where, in order: the next question looks at fewer records."""

    def close(self) -> None:
        self._log.close()

    def oldest(self, newest: Cas) -> Cas:
        """Return the CAS of the first event where older ones are gone, else 0."""
        low, high = self._log.bounds()
        base = self._base(low)
        if base.cas == 0 if base is not None else low == 0:
            return Cas(0)
        return self._first_from(low, high, newest)

    def leads_on_from(self, newest: Cas) -> Cas:
        """Return the lowest CAS of a state that the events lead on from; 0: the empty one."""
        base = self._base(self._log.bounds()[0])
        return base.cas if base is not None else self.oldest(newest)

    def oldest_in_topic(self, newest: Cas) -> Cas:
        """Return the CAS of the first event that is in the topic, where older ones have gone into
        the archive, else 0."""
        low, high = self._log.topic_bounds()
        if low == self._log.bounds()[0]:
            return Cas(0)
        return self._first_from(low, high, newest)

    def _first_from(self, low: Offset, high: Offset, newest: Cas) -> Cas:
        found = self._between(low, Mark(0, low - 1), Mark(newest + 1, high))
        return found[0].cas if found is not None else Cas(0)

    def base(self) -> StateContext | None:
        """Return the state that the first event follows, where a backup brought both, and the copy
        is there. Raises KafkaException.
        """
        low = self._log.bounds()[0]
        base = self._base(low)
        if base is None or base.cas == 0:
            return None
        if self._base_state is None or self._base_state[0] != low:
            sources = Sources(self._servers, self._cluster, self._stopping, self._bad)
            try:
                self._base_state = low, sources.read_copy(base.copy, base.offset)
            except SnapshotLost as error:
                log.error("what history begins with is lost: %s", error)
                return None
        return self._base_state[1]

    def _base(self, low: Offset) -> Base | None:
        """Return what the first record says of what came before it; None: it says nothing."""
        if self._begins is None or self._begins[0] != low:
            message = self._log.first(low, self._stopping, END_WAIT_S)
            if message is None:
                return None
            headers: dict[str, Any] = dict(message.headers() or ())
            self._begins = low, decode_base(headers.get(BASE_HEADER) or b"")
        return self._begins[1]

    def transactions(self, above: Cas, up_to: Cas) -> Iterator[tuple[Event, ...]]:
        """Yield the transactions above one CAS, which ends one, up to that which has another.

        `up_to` has been committed: the log is waited for where it does not show it yet. Raises
        KafkaException, also where it never does.
        """
        return transactions(self._events(above, up_to))

    def _events(self, above: Cas, up_to: Cas) -> Iterator[Event]:
        begin = self.place_above(above, up_to)
        heard_s, seen = time.monotonic(), above
        for found in self._log.read(begin, self._stopping):
            for number, (message, event) in enumerate(decoded(found.records, Event, self._bad)):
                # What is above is newer than what was asked for, or a stranger's.
                if seen < event.cas <= up_to:
                    seen = event.cas
                    if number == 0:
                        self._mark(Mark(event.cas, int(message.offset() or 0)))
                    yield event
            if seen >= up_to:
                return
            if found.records:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > END_WAIT_S:
                text = f"history shows nothing above CAS {seen}, though {up_to} was committed"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
        raise stopped()

    def cas_at(self, at_ms: int, newest: Cas) -> Cas:
        """Return the CAS of the last event that a master made at this time or before, else 0.

        `newest` is the last CAS that has been committed. Where the clock of a later master is
        behind, either answer of that while is given.
        """
        low, high = self._log.bounds()
        below, beyond = Mark(0, low - 1), Mark(newest + 1, high)
        while beyond.offset - below.offset > 1 and not self._stopping.is_set():
            middle = (below.offset + beyond.offset) // 2
            found = self._between(middle, below, beyond)
            if found is None:
                beyond = Mark(beyond.cas, middle)
            elif found[0].mutation.at_ms > at_ms:
                beyond = Mark(found[0].cas, middle)
            else:
                below = Mark(found[0].cas, found[1])
        if self._stopping.is_set():
            raise stopped()
        return Cas(below.cas)

    def place_above(self, cas: Cas, up_to: Cas) -> Offset:
        """Return an offset below which all events are at or below a CAS, not far from the next.

        `up_to` has been committed. Looks where the event should be, if the CAS were spread evenly;
        every other time in the middle, so that it cannot take long where they are not.
        """
        low, high = self._log.bounds()
        if not cas:
            return low
        at = bisect_right(self._marks, (cas, high))
        below = self._marks[at - 1] if at else Mark(0, low - 1)
        beyond = self._marks[at] if at < len(self._marks) else Mark(up_to + 1, high)
        turn = 0
        while beyond.offset - below.offset > NEAR and not self._stopping.is_set():
            distance = beyond.offset - below.offset
            share = (cas - below.cas) / (beyond.cas - below.cas) if turn % 2 == 0 else 0.5
            aim = below.offset + int(share * distance) - NEAR // 4
            place = min(max(aim, below.offset + 1), beyond.offset - 1)
            turn += 1
            found = self._between(place, below, beyond)
            if found is None:
                beyond = Mark(beyond.cas, place)
                continue
            self._mark(Mark(found[0].cas, found[1]))
            if found[0].cas > cas:
                beyond = Mark(found[0].cas, place)
            else:
                below = Mark(found[0].cas, found[1])
        return Offset(max(low, below.offset + 1))

    def _mark(self, mark: Mark) -> None:
        """Remember a place, unless one near it is known: there are no more than the log is long."""
        at = bisect_right(self._marks, mark)
        around = self._marks[max(0, at - 1) : at + 1]
        if all(abs(mark.offset - known.offset) >= NEAR for known in around):
            self._marks.insert(at, mark)

    def _between(self, place: int, below: Mark, beyond: Mark) -> tuple[Event, Offset] | None:
        """Return the first event from an offset on that has its CAS between those of two marks.

        Any other, such as a stranger's, is passed over. None: there is none up to `beyond`.
        """
        offset = Offset(place)
        while offset < beyond.offset and not self._stopping.is_set():
            message = self._log.first(offset, self._stopping, END_WAIT_S)
            if message is None:
                return None
            offset = Offset(int(message.offset() or 0))
            if offset >= beyond.offset:
                return None
            for _, event in decoded([message], Event, self._bad):
                if below.cas < event.cas < beyond.cas:
                    return event, offset
            offset = Offset(offset + 1)
        return None

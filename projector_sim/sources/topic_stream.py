"""One connection to a topic: a client of Kafka reads some partitions, and `TopicReading` says what
that means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator.core.model.topic_logs import Cleaning
from coordinator.kafka.document_topics import TopicFacts
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.state_follower import wall_ms
from coordinator.kafka.topic_histories import TopicHistories
from projector_sim.protocol.frames import Reason
from projector_sim.protocol.source import StreamRequest
from projector_sim.sources.deletions import DeletionWatch
from projector_sim.sources.queued_stream import QueuedStream
from projector_sim.sources.topic_reading import Record, TopicBranches, TopicReading
from projector_sim.sources.topic_records import Decoder, RecordError

POLL_S = 0.1
LOOK_S = 2.0
"""So often it is looked who leads."""

LOG_END_S = 5.0
"""For so long Kafka has not removed what was there when something was fetched: it waits for longer
between two rounds."""

BATCH_MAX = 2_000
FETCH_KBYTES = 8_192

LOST = frozenset(
    {
        KafkaError._LOG_TRUNCATION,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
PARTITION_END = KafkaError._PARTITION_EOF
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION})


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """The topic that a stream reads, and how; in which reading, and since when."""

    servers: str
    group: str
    facts: TopicFacts
    cleaning: Cleaning
    histories: TopicHistories
    reading: int = 0
    read_from_ms: int = 0

    @property
    def branches(self) -> TopicBranches:
        return TopicBranches(self.facts.id, self.reading)


class TopicStream(QueuedStream):
    """One connection to a topic; `unreadable` is told of each record that is no document."""

    def __init__(
        self,
        place: TopicPlace,
        request: StreamRequest,
        decoder: Callable[[Callable[[float], bool]], Decoder],
        owned: Callable[[], frozenset[int]],
        unreadable: Callable[[Record, RecordError], None],
        forgotten: Callable[[int], bool],
        is_slow: Callable[[int], None],
        failed: Callable[[str], None],
        sync_ms: int,
        wake: Callable[[], None],
    ) -> None:
        """`decoder` makes the decoder, given what waits for so long and tells whether to give up;
        `owned` returns the partitions that may be read at present; `forgotten` is told of one of
        which deletions may be forgotten that came after the position that was asked for, or that it
        was held back at, and tells whether to begin it all the same; `is_slow` of one of which that
        is so in its first reading; `failed` hears what has ended the stream that should not."""
        self._place = place
        self._request = request
        self._make_decoder = decoder
        self._owned = owned
        self._unreadable = unreadable
        self._forgotten, self._is_slow, self._failed = forgotten, is_slow, failed
        self._deletions = DeletionWatch(place.cleaning, place.read_from_ms)
        self._sync_s = sync_ms / 1000
        self._synced_s = 0.0
        self._looked_s = time.monotonic()
        self._unanswered_s = -LOOK_S
        """When Kafka did not say last where the partitions end."""
        self._log_ends: dict[int, tuple[int, float]] = {}
        """The end of each log, and since when it may have been known."""
        self._turned_s = time.monotonic()
        super().__init__(f"{request.kind} {request.bucket}", wake)

    # -- the beginning -----------------------------------------------------------------------

    def _read(self) -> None:
        place = self._place
        reading = TopicReading(
            place.branches,
            lambda partitions: place.histories.histories(place.facts, partitions),
            self._make_decoder(self._stopping.wait),
            self._unreadable,
            until=self._request.until,
            is_compacted=place.cleaning.is_compacted,
        )
        self._begin_all(reading)
        if not self._flush(reading) or not reading.partitions:
            return
        while self._reads(reading):
            pass

    def _has_failed(self, reason: str) -> None:
        if not self._stopping.is_set():
            self._failed(reason)

    def _reads(self, reading: TopicReading) -> bool:
        """Read by one client, from where the partitions are; True: it stands still, and another
        one may not."""
        place = self._place
        reader = consumer(
            place.servers,
            place.group,
            **{"enable.partition.eof": True, "queued.max.messages.kbytes": FETCH_KBYTES},
        )
        stall_detector = StallDetector(reader)
        try:
            starts = [
                TopicPartition(place.facts.topic, p, partition.next_offset)
                for p, partition in reading.partitions.items()
            ]
            reader.assign(starts)
            stall_detector.assigned(starts)
            return self._follow(reading, reader, stall_detector)
        finally:
            reader.close()

    def _begin_all(self, reading: TopicReading) -> None:
        request, place = self._request, self._place
        owned = self._owned()
        mine = [p for p in request.vbuckets if p in owned]
        histories = place.histories.histories(place.facts, mine) if mine else {}
        kept_from = self._kept_from(mine)
        for p in request.vbuckets:
            start = request.starts[p] if request.starts is not None else None
            if p not in histories:
                reading.refuse(p, start[1] if start is not None else 0)
                continue
            hides = self._deletions.begin(p, histories[p], start, kept_from.get(p), wall_ms())
            # Nothing that follows is sent: else the next one to begin would not see what is missed.
            reading.begin(p, histories[p], start, partial(self._is_refused, p, hides))

    def _is_refused(self, p: int, hides: bool) -> bool:
        return hides and not self._forgotten(p)

    def _kept_from(self, partitions: list[int]) -> dict[int, int]:
        """Return from where on no deletion has been forgotten, where Kafka forgets them."""
        place, starts = self._place, self._request.starts
        begun = [p for p in partitions if starts is not None and starts[p][1]]
        since_ms = self._deletions.kept_since_ms(wall_ms())
        if not begun or since_ms is None:
            return {}
        return place.histories.first_since(place.facts.topic, begun, since_ms)

    # -- what follows ------------------------------------------------------------------------

    def _follow(
        self, reading: TopicReading, reader: Consumer, stall_detector: StallDetector
    ) -> bool:
        read = set(reading.partitions)
        while reading.partitions and not self._stopping.is_set():
            turn_s = time.monotonic()
            first = reader.poll(self._patience_s(reading))
            if first is not None:
                self._doubt_log_ends(reading)
                for message in (first, *reader.consume(BATCH_MAX, 0)):
                    if self._take(reading, message):
                        stall_detector.note(message)
            for p in tuple(reading.partitions):
                self._note_log_end(reading, reader, p)
                reading.end_portion(p)
            self._turned_s = turn_s
            for p in reading.partitions.keys() - self._owned():
                reading.end(p, Reason.MOVED)
            self._look_for_leaders(reading)
            self._look_for_deletions(reading)
            if time.monotonic() >= self._synced_s + self._sync_s:
                self._synced_s = time.monotonic()
                reading.sync()
            over = read - reading.partitions.keys()
            if over:
                topic = self._place.facts.topic
                ended = [TopicPartition(topic, p) for p in over]
                reader.incremental_unassign(ended)
                stall_detector.unassigned(ended)
                read -= over
            self._begin_anew(reading, reader)
            if not self._flush(reading):
                return False
            try:
                stall_detector.check()
            except KafkaException:
                return True
        self.reason = self.reason or "all that was asked for was sent"
        return False

    def _begin_anew(self, reading: TopicReading, reader: Consumer) -> None:
        """Have the client drop what it has fetched of partitions that have gone over to another
        branch, and read them from where they are."""
        topic = self._place.facts.topic
        for p in tuple(reading.gone_over):
            start = reading.partitions[p].next_offset
            reader.incremental_unassign([TopicPartition(topic, p)])
            reader.incremental_assign([TopicPartition(topic, p, start)])
            reading.begin_anew(p)

    def _note_log_end(self, reading: TopicReading, reader: Consumer, p: int) -> None:
        """Tell up to where the client knows that there is something."""
        if reading.partitions[p].waits:
            place = TopicPartition(self._place.facts.topic, p)
            _, end = reader.get_watermark_offsets(place, cached=True) or (0, -1)
            if self._log_ends.get(p, (-1, 0.0))[0] != end:
                self._log_ends[p] = end, self._turned_s
            reading.note_log_end(p, end)

    def _doubt_log_ends(self, reading: TopicReading) -> None:
        """Forget what was known for too long: what is polled now may have been fetched just now."""
        since_s = time.monotonic() - LOG_END_S
        for p, (_, known_s) in self._log_ends.items():
            if known_s < since_s:
                reading.doubt_log_end(p)

    def _patience_s(self, reading: TopicReading) -> float:
        if not reading.pending:
            return POLL_S
        return min(POLL_S, max(0.0, self._synced_s + self._sync_s - time.monotonic()))

    def _take(self, reading: TopicReading, message: Message) -> bool:
        """Take a record, or what the client says instead of one; tell whether a partition that goes
        on has reached this place."""
        error = message.error()
        if error is None:
            reading.take(message)
        else:
            self._hear(reading, error, message.partition(), message.offset())
        is_place = error is None or error.code() == PARTITION_END
        p = message.partition()
        return is_place and p in reading.partitions and p not in reading.gone_over

    def _hear(
        self, reading: TopicReading, error: KafkaError, p: int | None, offset: int | None
    ) -> None:
        """Hear what the client says. Raises KafkaException: the connection cannot go on."""
        code = error.code()
        if code == PARTITION_END:
            reading.reach_end(p, offset)
            if p is not None:
                self._deletions.reach_end(p, offset or 0, wall_ms())
        elif code in LOST:
            if p in reading.partitions:
                reading.end(p, Reason.CRASHED)
        elif code in GONE:
            for one in tuple(reading.partitions):
                reading.end(one, Reason.DROPPED)
        elif not passes_by_itself(error):
            raise KafkaException(error)

    def _look_for_leaders(self, reading: TopicReading) -> None:
        """Look now and then who leads: not for what is to end."""
        if self._request.until or time.monotonic() < self._looked_s + LOOK_S:
            return
        if not reading.partitions:
            return
        self._looked_s = time.monotonic()
        place = self._place
        try:
            newest = place.histories.newest(place.facts, sorted(reading.partitions))
        except KafkaException:
            return  # Kafka is away.
        reading.note_leaders(newest)

    def _look_for_deletions(self, reading: TopicReading) -> None:
        """Look now and then whether what was held back has missed something."""
        now_ms = wall_ms()
        if time.monotonic() < self._unanswered_s + LOOK_S or not self._deletions.is_due(now_ms):
            return
        places = {p: one.reached for p, one in reading.partitions.items()}
        if not places:
            return
        place = self._place
        try:
            ends = place.histories.ends(place.facts.topic, sorted(places))
        except KafkaException:
            self._unanswered_s = time.monotonic()  # Kafka is away: it is not asked in each turn.
            return
        missed, slow = self._deletions.look(places, ends, now_ms)
        for p in sorted(missed):
            self._forgotten(p)
        for p in sorted(slow):
            self._is_slow(p)

    def _flush(self, reading: TopicReading) -> bool:
        """Hand over what has come together; False: nobody wants it any more."""
        frames = reading.drain()
        return not frames or self._put(frames)

"""One connection to a topic: the mutations of some partitions, as frames.

A partition is a vbucket, and the seqno of a record its offset and one. A branch is a leader epoch:
where a record has a newer one, the vbucket goes on under a new branch, and END and BEGIN say so. A
partition that has lost what was read of it ends: whoever asks for it again is told to roll back.

Where Kafka removes older records of a key, a record that is not there may have been replaced by one
that is still to come. So snapshots end only where all records have been read that there are; where
nothing is removed, after each portion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.kafka.document_topics import Cleaning, TopicFacts
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.topic_histories import History, TopicHistories, vbuuid_of
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch, FailoverLog, rollback_seqno
from projector_sim.protocol.frames import Kind, Reason
from projector_sim.protocol.source import Frame, StreamRequest
from projector_sim.sources.queued_stream import QueuedStream
from projector_sim.sources.schema_registry import RegistryClosed
from projector_sim.sources.topic_records import Decoder, RecordError

POLL_S = 0.1
LOOK_S = 2.0
"""So often it is looked who leads."""

BATCH_MAX = 2_000
FETCH_KBYTES = 8_192
FRAME_BYTES = 256 * 1024
HEAD_SIZE = frames.HEAD.size

LOST = frozenset(
    {
        KafkaError._LOG_TRUNCATION,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
PARTITION_END = KafkaError._PARTITION_EOF
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION})


def failover_log_of(topic_id: str, reading: int, partition: int, history: History) -> FailoverLog:
    """Return the epochs of a partition as a failover log; a seqno is an offset and one."""
    return tuple(
        Branch(vbuuid_of(topic_id, partition, epoch.number, reading), Seqno(epoch.start))
        for epoch in history.branches()
    )


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


@dataclass(slots=True, kw_only=True)
class _Partition:
    """How far a partition was read: `at` is the seqno of the last record, `reached` of what is
    behind it and has none, if that was told; `epoch` and `vbuuid` are of the branch."""

    at: int
    reached: int
    epoch: int
    vbuuid: Vbuuid
    until: int | None
    waits: list[bytes] = field(default_factory=list)
    size: int = 0
    is_at_end: bool = False


class TopicStream(QueuedStream):
    """One connection to a topic; `unreadable` is told of each record that is no document.

    Large because each thing that Kafka says of a partition is one method, and all of them end, or
    go on with, the same streams.
    """

    def __init__(
        self,
        place: TopicPlace,
        request: StreamRequest,
        decoder: Callable[[Callable[[float], bool]], Decoder],
        owned: Callable[[], frozenset[int]],
        unreadable: Callable[[Message, RecordError], None],
        forgotten: Callable[[int], None],
        sync_ms: int,
        wake: Callable[[], None],
    ) -> None:
        """`decoder` makes the decoder, given what waits for so long and tells whether to give up;
        `owned` returns the partitions that may be read at present; `forgotten` is told of one of
        which deletions may be forgotten that came after the position that was asked for."""
        self._place = place
        self._request = request
        self._make_decoder = decoder
        self._owned = owned
        self._unreadable = unreadable
        self._forgotten = forgotten
        self._sync_s = sync_ms / 1000
        self._synced_s = 0.0
        self._looked_s = time.monotonic()
        self._pending: dict[int, int] = {}
        """Ends of snapshots to tell of."""
        self._partitions: dict[int, _Partition] = {}
        self._offsets: dict[int, int] = {}
        """Where each begins; older records may be gone, with all that they meant."""
        self._out: list[Frame] = []
        super().__init__(f"{request.kind} {request.bucket}", wake)

    # -- the beginning -----------------------------------------------------------------------

    def _read(self) -> None:
        decode = self._make_decoder(self._stopping.wait)
        self._begin_all()
        if not self._flush() or not self._partitions:
            return
        while self._reads(decode):
            pass

    def _reads(self, decode: Decoder) -> bool:
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
                TopicPartition(place.facts.topic, p, max(partition.at, self._offsets[p]))
                for p, partition in self._partitions.items()
            ]
            reader.assign(starts)
            stall_detector.assigned(starts)
            return self._follow(reader, stall_detector, decode)
        finally:
            reader.close()

    def _begin_all(self) -> None:
        request, place = self._request, self._place
        owned = self._owned()
        mine = [p for p in request.vbuckets if p in owned]
        histories = place.histories.histories(place.facts, mine) if mine else {}
        since = self._kept_since(mine)
        for p in request.vbuckets:
            vbuuid, seqno = request.starts[p] if request.starts is not None else (0, 0)
            if p not in histories:
                self._emit(frames.end(p, Seqno(seqno), Reason.MOVED))
                continue
            history = histories[p]
            log = failover_log_of(place.facts.id, place.reading, p, history)
            if request.starts is None:
                seqno = history.stable
            elif (to := self._rolls_back(history, log, vbuuid, seqno)) is not None:
                self._emit(frames.rollback(p, to))
                continue
            if self._has_forgotten(history, seqno, since.get(p)):
                self._forgotten(p)
            self._begin(p, history, log, seqno)
            self._offsets[p] = max(seqno, history.low)

    def _kept_since(self, partitions: list[int]) -> dict[int, int]:
        """Return from where on no deletion has been forgotten, where Kafka forgets them."""
        place, starts = self._place, self._request.starts
        begun = [p for p in partitions if starts is not None and starts[p][1]]
        since_ms = place.cleaning.kept_since_ms(int(time.time() * 1000), place.read_from_ms)
        if not begun or since_ms is None:
            return {}
        return place.histories.first_since(place.facts.topic, begun, since_ms)

    def _has_forgotten(self, history: History, seqno: int, since: int | None) -> bool:
        """Tell whether something that was deleted after this position may be forgotten by now."""
        return 0 < seqno < max(history.low, min(since or 0, history.stable))

    def _rolls_back(
        self, history: History, log: FailoverLog, vbuuid: int, seqno: int
    ) -> Seqno | None:
        """Return to where one who has this position must go back; None: nowhere."""
        to = rollback_seqno(log, Seqno(history.end), Vbuuid(vbuuid), Seqno(seqno))
        return Seqno(0) if to is not None and to < history.low else to

    def _begin(self, p: int, history: History, log: FailoverLog, seqno: int) -> None:
        """Begin one partition, or begin it again on another branch."""
        until = self._request.until.get(p)
        vbuuid = log[0].vbuuid
        self._emit(frames.begin(p, vbuuid, Seqno(seqno), log))
        self._partitions[p] = _Partition(
            at=seqno, reached=seqno, epoch=history.epochs[0].number, vbuuid=vbuuid, until=until
        )
        if until is not None and seqno >= until:
            self._end(p, Reason.DONE)
        elif seqno >= history.stable:
            self._pending[p] = seqno

    # -- what follows ------------------------------------------------------------------------

    def _follow(self, reader: Consumer, stall_detector: StallDetector, decode: Decoder) -> bool:
        read = set(self._partitions)
        while self._partitions and not self._stopping.is_set():
            first = reader.poll(self._patience_s())
            if first is not None:
                for message in (first, *reader.consume(BATCH_MAX, 0)):
                    self._take(message, decode)
                    if self._is_place_reached(message):
                        stall_detector.note(message)
            for p in tuple(self._partitions):
                self._note_end(reader, p)
                self._end_portion(p)
            for p in self._partitions.keys() - self._owned():
                self._end(p, Reason.MOVED)
            self._look_for_leaders()
            if self._pending and time.monotonic() >= self._synced_s + self._sync_s:
                self._sync()
            over = read - self._partitions.keys()
            if over:
                topic = self._place.facts.topic
                ended = [TopicPartition(topic, p) for p in over]
                reader.incremental_unassign(ended)
                stall_detector.unassigned(ended)
                read -= over
            if not self._flush():
                return False
            try:
                stall_detector.check()
            except KafkaException:
                return True
        self.reason = self.reason or "all that was asked for was sent"
        return False

    def _is_place_reached(self, message: Message) -> bool:
        """Tell whether this is a record, or an end, of a partition that is read still."""
        error = message.error()
        return message.partition() in self._partitions and (
            error is None or error.code() == PARTITION_END
        )

    def _note_end(self, reader: Consumer, p: int) -> None:
        """Note that a partition was read to its end, as of when Kafka was last asked.

        While something is written all the time, Kafka's client never says so.
        """
        partition = self._partitions[p]
        if partition.waits and not partition.is_at_end:
            place = TopicPartition(self._place.facts.topic, p)
            _, end = reader.get_watermark_offsets(place, cached=True) or (0, -1)
            partition.is_at_end = end == partition.at

    def _patience_s(self) -> float:
        if not self._pending:
            return POLL_S
        return min(POLL_S, max(0.0, self._synced_s + self._sync_s - time.monotonic()))

    def _take(self, message: Message, decode: Decoder) -> None:
        """Take one record, or what the client says instead of one."""
        p = message.partition()
        partition = self._partitions.get(p) if p is not None else None
        error = message.error()
        if error is not None:
            self._hear(error, p, message.offset())
            return
        if p is None or partition is None:
            return
        epoch, offset = message.leader_epoch(), message.offset()
        assert offset is not None
        if epoch is not None and epoch > partition.epoch:
            self._branch({p: epoch})
            partition = self._partitions.get(p)
            if partition is None:
                return
        self._add(partition, message, offset + 1, decode)
        partition.at = partition.reached = offset + 1
        partition.is_at_end = False
        if partition.size >= FRAME_BYTES:
            self._emit_mutations(p, partition)

    def _add(self, partition: _Partition, message: Message, seqno: int, decode: Decoder) -> None:
        """Add the mutation that a record is; one that is no document is its deletion."""
        key, value = message.key(), message.value()
        try:
            found = decode(_bytes(key), _bytes(value))
            id, body = found if found is not None else (b"", None)
        except RecordError as error:
            self._unreadable(message, error)
            id, body = error.id, None
        except RegistryClosed:
            raise
        except Exception as error:
            # Whatever a record does to who reads it: others follow.
            text = f"{type(error).__name__}: {error}"
            self._unreadable(message, RecordError("bad_record", text))
            id, body = _id_in(key, decode), None
        if id:
            packed = frames.pack_mutation(Seqno(seqno), id, body)
            partition.waits.append(packed)
            partition.size += len(packed)

    def _hear(self, error: KafkaError, p: int | None, offset: int | None) -> None:
        """Hear what the client says. Raises KafkaException: the connection cannot go on."""
        code = error.code()
        partition = self._partitions.get(p) if p is not None else None
        if code == PARTITION_END:
            if partition is not None:
                partition.is_at_end = True
                partition.reached = max(partition.reached, offset or 0)
        elif code in LOST:
            if p is not None and partition is not None:
                self._end(p, Reason.CRASHED)
        elif code in GONE:
            for one in tuple(self._partitions):
                self._end(one, Reason.DROPPED)
        elif not passes_by_itself(error):
            raise KafkaException(error)

    def _look_for_leaders(self) -> None:
        """Go over to the branches of new leaders also where nothing is written.

        Kafka forgets an epoch without records in the end, and whoever was on it would begin anew.
        """
        if self._request.until or time.monotonic() < self._looked_s + LOOK_S:
            return
        if not self._partitions:
            return
        self._looked_s = time.monotonic()
        try:
            newest = self._place.histories.newest(self._place.facts, sorted(self._partitions))
        except KafkaException:
            return  # Kafka is away.
        led = {p: epoch for p, epoch in newest.items() if epoch > self._partitions[p].epoch}
        self._branch(led)
        for p in newest.keys() - led.keys():
            partition = self._partitions[p]
            if partition.reached > partition.at and not partition.waits:
                # What ends transactions, and what was aborted, is no record: it is passed.
                partition.at = self._pending[p] = partition.reached

    def _branch(self, led: Mapping[int, int]) -> None:
        """Other leaders have begun these epochs: go on under their branches, where they have all
        that was read."""
        if led:
            place = self._place
            found = place.histories.histories(place.facts, sorted(led))
            for p, epoch in led.items():
                self._go_over(p, epoch, found[p].up_to(epoch))

    def _go_over(self, p: int, epoch: int, history: History) -> None:
        partition = self._partitions[p]
        log = failover_log_of(self._place.facts.id, self._place.reading, p, history)
        at, end = Seqno(partition.at), Seqno(history.end)
        has_changed = not history.epochs or history.epochs[0].number != epoch
        if has_changed or rollback_seqno(log, end, partition.vbuuid, at) is not None:
            self._end(p, Reason.CRASHED)
            return
        self._emit_mutations(p, partition)
        is_end = self._pending.pop(p, None) is not None
        if is_end or not self._place.cleaning.is_compacted:
            # Nothing is held back then: what was read so far goes over as it is.
            self._emit(frames.sync([(p, partition.at)]))
        self._emit(frames.end(p, Seqno(partition.at), Reason.MOVED))
        self._begin(p, history, log, partition.at)
        if (again := self._partitions.get(p)) is not None:
            again.reached = max(again.reached, partition.reached)

    # -- what is told ------------------------------------------------------------------------

    def _end_portion(self, p: int) -> None:
        """Send what there is of a partition; tell of the end of a snapshot where this is one."""
        partition = self._partitions[p]
        had_any = bool(partition.waits)
        self._emit_mutations(p, partition)
        is_end = partition.is_at_end or (had_any and not self._place.cleaning.is_compacted)
        if not is_end:
            return
        partition.is_at_end = False
        self._pending[p] = partition.at
        if partition.until is not None and partition.reached >= partition.until:
            partition.at = max(partition.at, partition.until)
            self._end(p, Reason.DONE)

    def _emit_mutations(self, p: int, partition: _Partition) -> None:
        if partition.waits:
            # A snapshot's end that was not told of yet is none any more.
            self._pending.pop(p, None)
            head = frames.mutations_head(p, partition.size)
            self._out.append((Kind.MUTATIONS, head[HEAD_SIZE:] + b"".join(partition.waits)))
            partition.waits, partition.size = [], 0

    def _end(self, p: int, reason: Reason) -> None:
        partition = self._partitions[p]
        self._emit_mutations(p, partition)
        if self._pending.pop(p, None) is not None and reason != Reason.DONE:
            self._emit(frames.sync([(p, partition.at)]))
        del self._partitions[p]
        self._emit(frames.end(p, Seqno(partition.at), reason))

    def _sync(self) -> None:
        """Tell at which ends of snapshots the partitions are."""
        self._synced_s = time.monotonic()
        pending, self._pending = self._pending, {}
        self._emit(frames.sync(pending.items()))

    def _emit(self, frame: bytes) -> None:
        self._out.append((frame[HEAD_SIZE - 1], frame[HEAD_SIZE:]))

    def _flush(self) -> bool:
        """Hand over what has come together; False: nobody wants it any more."""
        out, self._out = self._out, []
        return not out or self._put(out)


def _id_in(key: str | bytes | None, decode: Decoder) -> bytes:
    """Return the id that a key says, empty if it says none."""
    with suppress(Exception):
        found = decode(_bytes(key), None)
        return found.id if found is not None else b""
    return b""


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text

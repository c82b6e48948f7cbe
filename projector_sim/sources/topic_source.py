"""Kafka topics as a source: which there are, who reads which partitions, and streams of them.

The projectors of a cluster are one consumer group. It does not read and commits nothing: it only
deals the partitions out, and takes those of a projector that has died away from it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from coordinator.core.catalog.buckets import needs_registry
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import DeadLetter, TopicSeen
from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.topic_logs import Cleaning
from coordinator.core.model.types import Offset
from coordinator.kafka.broken_batches import BrokenBatch
from coordinator.kafka.document_topics import TopicError, TopicFacts
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import CALL_TIMEOUT_S, SILENCE_S
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topic_histories import TopicHistories
from coordinator.runtime.threads import Threads
from projector_sim.protocol.source import Logs, SourceBucket, SourceStream, StreamRequest, mismatch
from projector_sim.sources.queued_stream import EndedStream
from projector_sim.sources.schema_registry import SchemaRegistry
from projector_sim.sources.topic_reading import Record, TopicBranches
from projector_sim.sources.topic_records import Decoder, RecordError, decoder_of
from projector_sim.sources.topic_stream import TopicPlace, TopicStream

POLL_S = 0.2
LOOK_S = 1.0
PAUSE_S = 0.5
CLEANED_S = 5.0
"""So often it is looked what Kafka removes from the topics."""

SESSION_MS = 6_000
"""The partitions of a projector that is silent for so long are dealt out anew."""

FORGOTTEN = (
    "read on from before what Kafka keeps of deletions (delete.retention.ms): some may have been "
    "missed, so the bucket goes back to nothing, and the topic is read from its beginning"
)

SLOW = (
    "the first reading of the topic takes longer than Kafka keeps deletions (delete.retention.ms): "
    "some may be missed, and documents that are gone stay in indexes; raise it, and rebuild these"
)

FAILED_S, FAILED_LENGTH_MAX = 30.0, 300
"""For so long it is told that a stream has failed, and so much of the reason."""

TOLD_S = 10.0
"""A stream that would hide what was missed does not begin before that was said for so long."""

Seen = Mapping[str, SourceBucket]


class Noted(NamedTuple):
    """A bucket as it was when something was noted of it, and what."""

    bucket: Bucket
    since_s: float
    text: str


class TopicSource:
    """A `Source` of the buckets that `follow` names.

    Large because it is two things at once: a member of a group, and what opens streams of what the
    group has dealt to it.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        sync_ms: int,
        seen: Callable[[Seen], None],
        unreadable: Callable[[DeadLetter], None],
        status_log: StatusLog,
        stopping: threading.Event,
        threads: Threads,
    ) -> None:
        """`seen` is called with the buckets whose topics are there, whenever that changes;
        `unreadable` with each record that is no document, and why."""
        self._servers = bootstrap_servers
        self._group = f"{cluster}.projectors"
        self._sync_ms = sync_ms
        self._seen = seen
        self._pass_on_unreadable = unreadable
        self._status_log = status_log
        self._stopping = stopping
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self._kafka = TopicHistories(bootstrap_servers)
        self._orders = ThreadPoolExecutor(1, "topic-orders")
        self._buckets: Mapping[str, Bucket] = {}
        self._topics: dict[str, tuple[TopicFacts, Cleaning]] = {}
        self._dealt: dict[str, frozenset[int]] = {}
        self._asked_s = 0.0
        self._is_unanswered = False
        """Whether the member of the group got no answer when it was last asked to get one."""
        self._is_dealt_anew = False
        """What comes next is all that this member has."""
        self._told: dict[str, SourceBucket] = {}
        self._problems: dict[str, str] = {}
        self._troubles: dict[str, str] = {}
        """What is wrong with schema registries, by bucket."""
        self._forgotten: dict[str, Noted] = {}
        """Buckets of which deletions may have been missed, each in the reading that it had."""
        self._slow: dict[str, Noted] = {}
        """Buckets of which deletions may have been missed, and would be again."""
        self._failed: dict[str, Noted] = {}
        """Why a stream of a bucket has failed last."""
        self._cleaned_s = 0.0
        self._unreadable: Counter[str] = Counter()
        self._changed = threading.Event()
        self._thread = threads.start("topics", self._run, stopping)

    def follow(self, buckets: Mapping[str, Bucket]) -> None:
        """Follow the topics of these buckets from now on, and no others."""
        self._buckets = dict(buckets)
        self._forgotten = _those_of(self._forgotten, buckets)
        self._slow = _those_of(self._slow, buckets)
        self._failed = _those_of(self._failed, buckets)
        self._changed.set()

    def open(self, request: StreamRequest, wake: Callable[[], None]) -> SourceStream:
        bucket = self._buckets.get(request.bucket)
        known = self._topics.get(bucket.topic) if bucket is not None else None
        if bucket is None or known is None:
            return EndedStream(f"there is no topic of bucket {request.bucket}", wake)
        facts, cleaning = known
        place = TopicPlace(
            *(self._servers, self._group, facts, cleaning, self._kafka),
            *(bucket.reading, bucket.read_from_ms),
        )
        return TopicStream(
            place,
            request,
            partial(self._decoder, bucket),
            partial(self._owned, bucket, known),
            partial(self._note_unreadable, bucket.name),
            partial(self._note_forgotten, bucket),
            partial(self._note_slow, bucket),
            partial(self._note_failed, bucket),
            self._sync_ms,
            wake,
        )

    def fetch_logs(
        self, bucket: str, vbuckets: Sequence[int], done: Callable[[Logs], None]
    ) -> None:
        def order() -> None:
            entity = self._buckets.get(bucket)
            known = self._topics.get(entity.topic) if entity is not None else None
            if entity is None or known is None:
                return
            facts, _ = known
            about = f"the history of {facts.topic}"
            try:
                histories = self._kafka.histories(facts, vbuckets)
            except TopicError as error:
                # It is asked for again for as long as it is wanted.
                self._status_log.problem(about, str(error))
                return
            self._status_log.resolved(about)
            branches = TopicBranches(facts.id, entity.reading)
            logs = {p: branches.log(p, history) for p, history in histories.items()}
            done({p: tuple(FailoverBranch(*b) for b in log) for p, log in logs.items()})

        self._orders.submit(order)

    def status(self) -> tuple[TopicSeen, ...]:
        """Return what there is to tell of each bucket."""
        return tuple(
            TopicSeen(
                name,
                len(self._owned_of(bucket)),
                self._unreadable[name],
                self._problem(bucket),
                self._forgetful(bucket),
            )
            for name, bucket in sorted(self._buckets.items())
        )

    def _problem(self, bucket: Bucket) -> str:
        known = self._problems.get(bucket.name) or self._troubles.get(bucket.name, "")
        if known:
            return known
        if self._forgetful(bucket) >= 0:
            return FORGOTTEN
        failed = _noted(self._failed, bucket)
        if failed is not None and time.monotonic() < failed.since_s + FAILED_S:
            return failed.text
        slow = _noted(self._slow, bucket)
        return slow.text if slow is not None else ""

    def _forgetful(self, bucket: Bucket) -> int:
        """Return the reading of a bucket, if deletions may have been missed in it; else -1."""
        return bucket.reading if _noted(self._forgotten, bucket) is not None else -1

    def close(self) -> None:
        self._changed.set()
        self._orders.shutdown(wait=False, cancel_futures=True)

    def join(self, timeout_s: float) -> None:
        """Wait until the partitions are given back."""
        self._thread.join(timeout_s)

    # -- for streams -------------------------------------------------------------------------

    def _decoder(self, bucket: Bucket, wait: Callable[[float], bool]) -> Decoder:
        if not needs_registry(bucket.format):
            return decoder_of(bucket.format)
        about = f"the schema registry of {bucket.name}"

        def problem(text: str) -> None:
            self._troubles[bucket.name] = f"the schema registry: {text}"
            self._status_log.problem(about, text)

        def resolved() -> None:
            self._troubles.pop(bucket.name, None)
            self._status_log.resolved(about)

        return decoder_of(bucket.format, SchemaRegistry(bucket.registry, wait, problem, resolved))

    def _owned(self, bucket: Bucket, known: tuple[TopicFacts, Cleaning]) -> frozenset[int]:
        """Return which partitions a stream may read. It is another stream for a topic that was made
        anew or is cleaned in another way, and for a bucket that was added again."""
        is_same = self._buckets.get(bucket.name) == bucket
        if not is_same or self._topics.get(bucket.topic) != known:
            return frozenset()
        return self._owned_of(bucket)

    def _owned_of(self, bucket: Bucket) -> frozenset[int]:
        """Return what the group has dealt: it may know of partitions that are not there now."""
        known = self._topics.get(bucket.topic)
        there = range(known[0].partitions) if known is not None else ()
        return self._dealt.get(bucket.topic, frozenset()) & frozenset(there)

    def _note_forgotten(self, bucket: Bucket, partition: int) -> bool:
        """Hear that deletions in a partition may have been missed, and say so in this reading.

        Returns whether that has been said for long: a master may have to end a rollback first.
        """
        if self._buckets.get(bucket.name) != bucket:
            return False  # It is read again already, or gone.
        noted = self._note(self._forgotten, bucket, partition, FORGOTTEN)
        return time.monotonic() >= noted.since_s + TOLD_S

    def _note_slow(self, bucket: Bucket, partition: int) -> None:
        """Hear that reading takes so long that deletions may be missed, and say so."""
        if self._buckets.get(bucket.name) == bucket:
            self._note(self._slow, bucket, partition, SLOW)

    def _note(self, noted: dict[str, Noted], bucket: Bucket, partition: int, text: str) -> Noted:
        """Note something of a bucket, and say so once; return what is noted."""
        found = _noted(noted, bucket)
        if found is None:
            self._status_log.info(f"bucket {bucket.name}, partition {partition}: {text}")
            found = noted[bucket.name] = Noted(bucket, time.monotonic(), text)
        return found

    def _note_failed(self, bucket: Bucket, reason: str) -> None:
        """Hear why a stream has failed: it is begun again, and may fail again."""
        text = f"a stream has failed: {reason[:FAILED_LENGTH_MAX]}"
        self._failed[bucket.name] = Noted(bucket, time.monotonic(), text)

    def _note_unreadable(self, name: str, record: Record, error: RecordError) -> None:
        offset, value = record.offset(), record.value()
        text = value.encode() if isinstance(value, str) else value or b""
        if isinstance(record, BrokenBatch):
            error = RecordError("broken_batch", text.decode())
        self._bury(name, record.partition() or 0, offset or 0, f"{error.code}: {error}", text)

    def note_garbage(self, name: str, vbucket: int, seqno: int, text: bytes) -> None:
        """Hear that the document with this seqno is no JSON."""
        self._bury(name, vbucket, seqno - 1, "bad_json: the document is no JSON", text)

    def _bury(self, name: str, partition: int, offset: int, reason: str, text: bytes) -> None:
        self._unreadable[name] += 1
        if self._unreadable[name].bit_count() == 1:
            self._status_log.info(
                f"bucket {name}: {self._unreadable[name]} records since the start were no "
                f"documents, and are dead letters; partition {partition}, offset {offset}: {reason}"
            )
        bucket = self._buckets.get(name)
        topic = bucket.topic if bucket is not None else name
        self._pass_on_unreadable(
            DeadLetter(topic, partition, Offset(offset), reason, text, wall_ms())
        )

    # -- which topics there are --------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow_all()
            except KafkaException as error:
                self._status_log.problem("topics", error.args[0].str())
                self._stopping.wait(PAUSE_S)
        self._kafka.close()

    def _follow_all(self) -> None:
        """Be a member of the group for as long as there is any bucket."""
        while not self._buckets:
            self._changed.wait(POLL_S)
            if self._stopping.is_set():
                return
        member = consumer(
            self._servers,
            self._group,
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "topic.metadata.refresh.interval.ms": int(1000 * LOOK_S),
                "auto.offset.reset": "latest",
                "queued.max.messages.kbytes": 1,
            },
        )
        self._asked_s, self._is_unanswered = time.monotonic(), False
        try:
            subscribed: list[str] = []
            due_s = 0.0
            while self._buckets and not self._stopping.is_set():
                if self._changed.is_set():
                    self._changed.clear()
                    due_s = 0.0
                subscribed = self._subscribe(member, subscribed)
                message = member.poll(POLL_S)
                if message is not None and (error := message.error()) is not None:
                    self._hear(error)
                if time.monotonic() >= due_s:
                    due_s = time.monotonic() + LOOK_S
                    if self._look_if_possible():
                        self._require_member(member, subscribed)
                self._tell()
        finally:
            self._is_dealt_anew = True
            with suppress(KafkaException, RuntimeError):
                member.close()
        self._dealt = {}
        self._tell()

    def _subscribe(self, member: Consumer, subscribed: list[str]) -> list[str]:
        wanted = sorted({bucket.topic for bucket in self._buckets.values()})
        if wanted != subscribed:
            member.subscribe(
                wanted, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
            )
        return wanted

    def _assign(self, member: Consumer, places: list[TopicPartition]) -> None:
        member.incremental_assign(places)
        member.pause(places)
        if self._is_dealt_anew:
            self._is_dealt_anew = False
            self._dealt = {}
        for place in places:
            mine = self._dealt.get(place.topic, frozenset())
            self._dealt[place.topic] = mine | {place.partition}

    def _revoke(self, member: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            mine = self._dealt.get(place.topic, frozenset())
            self._dealt[place.topic] = mine - {place.partition}
        with suppress(KafkaException):
            member.incremental_unassign(places)
        self._tell()

    def _lose(self, member: Consumer, places: list[TopicPartition]) -> None:
        """The group does not count on this member any more: Kafka was away, say.

        What it had is read on until all is dealt out anew. If another reads it, too, meanwhile,
        both send the same.
        """
        self._is_dealt_anew = True
        with suppress(KafkaException):
            member.incremental_unassign(places)

    def _hear(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART):
            return
        if error.fatal():
            raise KafkaException(error)
        self._status_log.problem("topics", error.str())

    def _look_if_possible(self) -> bool:
        """Look which topics there are; tell whether Kafka has answered."""
        try:
            self._look()
        except KafkaException as error:
            self._status_log.problem("topics", error.args[0].str())
            return False
        return True

    def _require_member(self, member: Consumer, topics: list[str]) -> None:
        """Require that the member gets answers, as others do. Raises KafkaException.

        One that was told of no broker may never find one again, and says nothing. To others it has
        left the group by then.
        """
        if not topics or time.monotonic() < self._asked_s + SILENCE_S:
            return
        self._asked_s = time.monotonic()
        try:
            member.list_topics(topics[0], timeout=CALL_TIMEOUT_S)
        except KafkaException:
            if self._is_unanswered:
                raise
            self._is_unanswered = True
        else:
            self._is_unanswered = False

    def _look(self) -> None:
        """Look which topics there are, and whether they are what they were."""
        buckets = self._buckets
        is_due = time.monotonic() >= self._cleaned_s + CLEANED_S
        if is_due:
            self._cleaned_s = time.monotonic()
        facts = self._kafka.facts(bucket.topic for bucket in buckets.values())
        known: dict[str, tuple[TopicFacts, Cleaning]] = {}
        for topic, fact in facts.items():
            held = self._topics.get(topic)
            if held is not None and held[0] == fact and not is_due:
                known[topic] = held
            else:
                known[topic] = (fact, self._kafka.cleaning(topic))
        self._troubles = {n: t for n, t in self._troubles.items() if n in buckets}
        self._topics = known
        self._problems = {
            name: problem
            for name, bucket in buckets.items()
            if (problem := _problem_of(bucket, known.get(bucket.topic)))
        }
        self._status_log.resolved("topics")

    def _tell(self) -> None:
        """Pass on what has changed."""
        found: dict[str, SourceBucket] = {}
        for name, bucket in self._buckets.items():
            known = self._topics.get(bucket.topic)
            if known is not None:
                found[name] = SourceBucket(known[0].partitions, self._owned_of(bucket))
        if found != self._told:
            self._told = found
            self._seen(found)


def _problem_of(bucket: Bucket, known: tuple[TopicFacts, Cleaning] | None) -> str:
    """Return why a bucket's topic cannot be read, if it cannot."""
    if known is None:
        return f"there is no topic {bucket.topic}"
    if known[1].is_truncated:
        return f"topic {bucket.topic} forgets documents: Kafka deletes what is old"
    return mismatch(bucket, known[0].partitions)


def _noted(noted: Mapping[str, Noted], bucket: Bucket) -> Noted | None:
    """Return what was noted of a bucket as it is, None if nothing was."""
    found = noted.get(bucket.name)
    return found if found is not None and found.bucket == bucket else None


def _those_of(noted: Mapping[str, Noted], buckets: Mapping[str, Bucket]) -> dict[str, Noted]:
    """Return what was noted of buckets that are as they were then."""
    return {name: one for name, one in list(noted.items()) if buckets.get(name) == one.bucket}

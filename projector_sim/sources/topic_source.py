"""Kafka topics as a source: which there are, who reads which partitions, and streams of them.

The projectors of a cluster are one consumer group. It does not read and commits nothing: it only
deals the partitions out, and takes those of a projector that has died away from it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator.core.catalog.buckets import needs_registry
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import DeadLetter, TopicSeen
from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Offset
from coordinator.kafka.document_topics import Cleaning, TopicError, TopicFacts
from coordinator.kafka.readers import consumer
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topic_histories import TopicHistories
from coordinator.runtime.threads import Threads
from projector_sim.protocol.source import Logs, SourceBucket, StreamRequest
from projector_sim.sources.schema_registry import SchemaRegistry
from projector_sim.sources.topic_records import Decoder, RecordError, decoder_of
from projector_sim.sources.topic_stream import TopicPlace, TopicStream, failover_log_of

POLL_S = 0.2
LOOK_S = 1.0
PAUSE_S = 0.5
CLOSE_S = 1.0
SESSION_MS = 6_000
"""The partitions of a projector that is silent for so long are dealt out anew."""

Seen = Mapping[str, SourceBucket]


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
        self._is_dealt_anew = False
        """What comes next is all that this member has."""
        self._told: dict[str, SourceBucket] = {}
        self._problems: dict[str, str] = {}
        self._unreadable: Counter[str] = Counter()
        self._changed = threading.Event()
        self._thread = threads.start("topics", self._run, stopping)

    def follow(self, buckets: Mapping[str, Bucket]) -> None:
        """Follow the topics of these buckets from now on, and no others."""
        self._buckets = dict(buckets)
        self._changed.set()

    def open(self, request: StreamRequest, wake: Callable[[], None]) -> TopicStream:
        bucket = self._buckets[request.bucket]
        facts, cleaning = self._topics[bucket.topic]
        place = TopicPlace(self._servers, self._group, facts, cleaning, self._kafka)
        return TopicStream(
            place,
            request,
            partial(self._decoder, bucket),
            partial(self._owned, bucket.name, facts),
            partial(self._note_unreadable, bucket.name),
            self._sync_ms,
            wake,
        )

    def fetch_logs(
        self, bucket: str, vbuckets: Sequence[int], done: Callable[[Logs], None]
    ) -> None:
        def order() -> None:
            facts, _ = self._topics[self._buckets[bucket].topic]
            about = f"the history of {facts.topic}"
            try:
                histories = self._kafka.histories(facts, vbuckets)
            except TopicError as error:
                # It is asked for again for as long as it is wanted.
                self._status_log.problem(about, str(error))
                return
            self._status_log.resolved(about)
            logs = {p: failover_log_of(facts.id, p, one) for p, one in histories.items()}
            done({p: tuple(FailoverBranch(*b) for b in log) for p, log in logs.items()})

        self._orders.submit(order)

    def status(self) -> tuple[TopicSeen, ...]:
        """Return what there is to tell of each bucket."""
        return tuple(
            TopicSeen(
                name,
                len(self._owned_of(bucket)),
                self._unreadable[name],
                self._problems.get(name, ""),
            )
            for name, bucket in sorted(self._buckets.items())
        )

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
        registry = SchemaRegistry(
            bucket.registry,
            wait,
            partial(self._status_log.problem, about),
            partial(self._status_log.resolved, about),
        )
        return decoder_of(bucket.format, registry)

    def _owned(self, name: str, facts: TopicFacts) -> frozenset[int]:
        """Return which partitions a stream may read; of a topic made anew it is another stream."""
        bucket = self._buckets.get(name)
        known = self._topics.get(facts.topic)
        if bucket is None or bucket.topic != facts.topic or known is None or known[0] != facts:
            return frozenset()
        return self._owned_of(bucket)

    def _owned_of(self, bucket: Bucket) -> frozenset[int]:
        return self._dealt.get(bucket.topic, frozenset())

    def _note_unreadable(self, name: str, message: Message, error: RecordError) -> None:
        self._unreadable[name] += 1
        offset, value = message.offset(), message.value()
        text = value.encode() if isinstance(value, str) else value or b""
        self._bury(name, message.partition() or 0, offset or 0, f"{error.code}: {error}", text)

    def note_garbage(self, name: str, vbucket: int, seqno: int, text: bytes) -> None:
        """Hear that the document with this seqno is no JSON."""
        self._unreadable[name] += 1
        self._bury(name, vbucket, seqno - 1, "bad_json: the document is no JSON", text)

    def _bury(self, name: str, partition: int, offset: int, reason: str, text: bytes) -> None:
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
            except (KafkaException, TopicError) as error:
                said = error.args[0]
                text = said.str() if isinstance(said, KafkaError) else str(error)
                self._status_log.problem("topics", text)
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
        try:
            subscribed: list[str] = []
            due_s = 0.0
            while self._buckets and not self._stopping.is_set():
                self._changed.clear()
                subscribed = self._subscribe(member, subscribed)
                message = member.poll(POLL_S)
                if message is not None and (error := message.error()) is not None:
                    self._hear(error)
                due_s -= POLL_S
                if due_s <= 0 or self._changed.is_set():
                    due_s = LOOK_S
                    self._look_if_possible()
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

    def _look_if_possible(self) -> None:
        try:
            self._look()
        except (KafkaException, FutureTimeoutError) as error:
            said = error.args[0] if error.args else "no answer"
            text = said.str() if isinstance(said, KafkaError) else str(said)
            self._status_log.problem("topics", text)

    def _look(self) -> None:
        """Look which topics there are, and whether they are what they were."""
        buckets = self._buckets
        facts = self._kafka.facts(bucket.topic for bucket in buckets.values())
        known: dict[str, tuple[TopicFacts, Cleaning]] = {}
        for topic, fact in facts.items():
            held = self._topics.get(topic)
            is_same = held is not None and held[0] == fact
            known[topic] = held if held and is_same else (fact, self._kafka.cleaning(topic))
        self._topics = known
        self._problems = {
            name: f"there is no topic {bucket.topic}"
            for name, bucket in buckets.items()
            if bucket.topic not in known
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

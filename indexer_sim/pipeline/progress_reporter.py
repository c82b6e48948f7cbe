"""What an indexer tells of its buckets: high watermarks, gaps, finished builds, loads of slices.

All of it is repeated for as long as it holds, and sent at once when it changes: whoever missed it
hears it again. A thread of its own, so that neither a long batch nor a full disk silences it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, Producer

from coordinator import codec
from coordinator.core.model.entities import BACKFILL, Index
from coordinator.core.model.stream_records import (
    BuildProgress,
    CatchUpRequested,
    HwHeartbeat,
    IndexBuilt,
)
from coordinator.core.model.vectors import Vector
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import ACKS, HEARTBEAT, HW, STREAM_REQUEST, topic_name
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import State
from indexer_sim.bucket.storage import Storage
from indexer_sim.pipeline.late_beats import LateBeats
from indexer_sim.pipeline.mutation_reader import MutationQueue
from indexer_sim.pipeline.slice_loads import SliceLoadMeter

REQUEST_PERIOD_S = 1.0
SOON_S = 0.02
"""News of one batch and of the next go together."""

MESSAGE_TIMEOUT_MS = 5_000
INT_MAX = 2**31 - 1
SENDING = "telling of high watermarks and builds"


class ProgressReporter:
    """Tells what there is to tell, until it is stopped."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        process_id: tuple[int, int],
        period_s: float,
        storage: Storage,
        queue: MutationQueue,
        status_log: StatusLog,
        threads: Threads,
        are_filled: Callable[[], Collection[int]],
        late_beats: LateBeats,
    ) -> None:
        """`process_id` is the indexer and its incarnation; `are_filled` tells which indexes need no
        backfill, as other indexers give what they need; `late_beats` tells which heartbeat is
        to be repeated, if the next one is late."""
        self._are_filled = are_filled
        self._late_beats = late_beats
        self._settings = plain_settings(
            bootstrap_servers,
            **{"enable.idempotence": True, "message.timeout.ms": MESSAGE_TIMEOUT_MS},
        )
        self._topics = {
            name: topic_name(cluster, name) for name in (HW, STREAM_REQUEST, ACKS, HEARTBEAT)
        }
        self._indexer, self._incarnation = process_id
        self._period_s = period_s
        self._storage = storage
        self._queue = queue
        self._status_log = status_log
        self._indexes: Mapping[int, Index] = {}
        self._branched: dict[str, tuple[int, ...]] = {}
        self._requests_due_s = 0.0
        self._loads = SliceLoadMeter(process_id)
        self._producer: Producer | None = None
        self._is_well = True
        """All that was told last was sent."""
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._thread = threads.make("progress-reporter", self._run, self._stopping)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._news.set()

    def join(self) -> None:
        self._thread.join()

    def news(self) -> None:
        """Something may have to be told."""
        self._news.set()

    def know(self, indexes: Mapping[int, Index]) -> None:
        """These are the states of the indexes that are held, as the log has them."""
        self._indexes = indexes
        self._news.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if (beat := self._late_beats.due(time.monotonic(), wall_ms())) is not None:
                self._send(HEARTBEAT, beat, str(self._indexer), partition=0)
            if self._storage.buckets():
                self._tell()
            if self._news.wait(self._period_s):
                self._news.clear()
                self._stopping.wait(SOON_S)

    def _tell(self) -> None:
        indexes = self._indexes
        self._is_well = True
        ask = time.monotonic() >= self._requests_due_s
        if ask:
            self._requests_due_s = time.monotonic() + REQUEST_PERIOD_S
        for bucket in self._storage.buckets():
            if bucket.vbuckets and not bucket.stale:
                self._tell_of(bucket, ask)
            for index_id, state in bucket.published.states.items():
                index = indexes.get(index_id)
                if index is not None and _is_built(index, state):
                    built = IndexBuilt(self._indexer, self._incarnation, index_id, index.build)
                    self._send(ACKS, built, str(self._indexer), partition=0)
        loads = self._loads.due(self._storage.buckets(), time.monotonic(), wall_ms())
        if loads is not None:
            self._send(HEARTBEAT, loads, str(self._indexer), partition=0)
        try:
            if self._producer is not None:
                self._producer.poll(0)
        except KafkaException as error:
            self._failed(error)
        if self._is_well:
            self._status_log.resolved(SENDING)

    def _failed(self, error: KafkaException) -> None:
        """Say that something was not sent; a client that has failed for good is made anew."""
        self._is_well = False
        cause = error.args[0]
        self._status_log.problem(SENDING, cause.str())
        if cause.fatal():
            self._producer = None

    def _tell_of(self, bucket: Bucket, ask: bool) -> None:
        """Send a bucket's high watermarks, and what it lacks."""
        are_filled = self._are_filled()  # First: what is full by then, the builds tell.
        published = bucket.published
        gaps, branched = published.gaps, published.branched
        vbuuids, seqnos = published.vector.to_bytes()
        beat = HwHeartbeat(
            indexer=self._indexer,
            incarnation=self._incarnation,
            bucket=bucket.name,
            indexes=tuple(sorted(published.states)),
            vbuuids=vbuuids,
            seqnos=seqnos,
            last_persistence=bucket.last_persistence,
            last_stability=bucket.last_stability,
            mutation_queue=min(self._queue.waiting, INT_MAX),
            free=self._queue.free,
            builds=_told(published.builds, are_filled),
            at_ms=wall_ms(),
            read=published.read,
            taken=published.taken,
            branched=branched,
            rollback=published.rollback,
            recovering=published.recovering,
        )
        self._send(HW, beat, bucket.name)
        if gaps and ask:
            self._request(bucket.name, gaps, published.vector)
        if branched != self._branched.get(bucket.name, ()):
            self._branched[bucket.name] = branched
            if branched:
                self._status_log.info(
                    f"bucket {bucket.name}: {len(branched)} vbuckets left what is held"
                )

    def _request(self, bucket: str, gaps: tuple[int, ...], vector: Vector) -> None:
        """Ask for what is missing after the high watermarks of these vbuckets."""
        places = list(gaps)
        lacking = Vector(vector.vbuuids[places], vector.seqnos[places])
        request = CatchUpRequested(
            self._indexer, self._incarnation, bucket, gaps, *lacking.to_bytes(), wall_ms()
        )
        self._send(STREAM_REQUEST, request, str(self._indexer), partition=0)

    def _send(self, topic: str, record: Any, key: str, **more: Any) -> None:
        if self._producer is None:
            self._producer = Producer(self._settings)
        try:
            self._producer.produce(self._topics[topic], codec.encode(record), key.encode(), **more)
        except BufferError:
            self._producer.poll(0)  # Kafka is away; this is said again.
        except KafkaException as error:
            self._failed(error)


def _told(
    builds: tuple[BuildProgress, ...], are_filled: Collection[int]
) -> tuple[BuildProgress, ...]:
    """Return builds with those marked that are filled."""
    if not are_filled:
        return builds
    return tuple(replace(b, transfers=True) if b.index_id in are_filled else b for b in builds)


def _is_built(index: Index, state: State) -> bool:
    """Tell whether the master waits for this build, and it is here."""
    return index.state == BACKFILL and state.complete and state.build == index.build

"""The data plane of an indexer: reading, applying, telling, and filling; one thread each.

The control loop owns it: it says which indexes there are, and asks where `mutations` ends before
the first index of a bucket is allocated. What goes wrong here is reported and tried again.
What nobody has thought of ends the thread, and with it the process (`coordinator.runtime.threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import Message

from coordinator import codec
from coordinator.core.catalog.rebalance_settings import RebalanceSettings
from coordinator.core.model.entities import Index
from coordinator.core.model.records import DeadLetter
from coordinator.kafka.producers import DeadLetters
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import MUTATIONS
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.storage import Storage
from indexer_sim.pipeline.applier import Applier
from indexer_sim.pipeline.filler import Filler
from indexer_sim.pipeline.late_beats import LateBeats
from indexer_sim.pipeline.mutation_reader import (
    Delivery,
    MutationQueue,
    MutationReader,
    Needed,
    Stand,
)
from indexer_sim.pipeline.progress_reporter import ProgressReporter

KAFKA = "Kafka, for mutations"


class DataPlane:
    """What runs beside the control loop from the moment that the log was read to its end."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        process_id: tuple[int, int],
        heartbeat_s: float,
        checkpoint_s: float,
        storage: Storage,
        status_log: StatusLog,
        threads: Threads,
        dead_letters: DeadLetters,
        late_beats: LateBeats,
        applied: Callable[[], None],
    ) -> None:
        """`applied` is called after each batch, in a thread of its own."""
        self._storage = storage
        self._status_log = status_log
        self._started = False
        self._dead_letters = dead_letters
        self.queue = MutationQueue()
        self.documents_per_s = RebalanceSettings().documents_per_s
        """So many documents a second may be taken over from other indexers; 0: all."""
        self.filler = Filler(storage, lambda: self.documents_per_s, self._tell, status_log, threads)
        self.reporter: ProgressReporter = ProgressReporter(
            bootstrap_servers,
            cluster,
            process_id,
            heartbeat_s,
            storage,
            self.queue,
            status_log,
            threads,
            self.filler.fillings.are_filled,
            late_beats,
        )
        self.applier = Applier(
            *(storage, self.queue, self.reporter.news, status_log.problem, status_log.resolved),
            *(self._dead_letter_delivery, checkpoint_s, threads, status_log.info, applied),
        )
        self.reader = MutationReader(
            bootstrap_servers,
            cluster,
            process_id[0],
            self.queue,
            self._needed,
            self._dead_letter,
            lambda message: status_log.problem(KAFKA, message),
            lambda: status_log.resolved(KAFKA),
            threads,
        )

    def know(self, indexes: Mapping[int, Index]) -> None:
        """These are the indexes that are to be here; begin, if that has not been said before."""
        self.reporter.know(dict(indexes))
        self.filler.know(dict(indexes))
        if not self._started:
            self._started = True
            self.filler.start()
            self.reader.start()
            self.applier.start()
            self.reporter.start()

    def _tell(self) -> None:
        self.reporter.news()

    def end(self) -> None:
        """Take up nothing new."""
        for part in (self.reader, self.applier, self.reporter, self.filler):
            part.end()
        self.queue.clear()

    def stop(self) -> None:
        """Stop; what is being applied is finished."""
        self.end()
        if self._started:
            for part in (self.filler, self.applier, self.reporter, self.reader):
                part.join()

    def _needed(self) -> Needed:
        """Return where the buckets go on; those that have to be loaded first are waited for."""
        epoch = self._storage.epoch
        stands = {b.name: Stand(b.offsets, b.epochs, b.topic) for b in self._storage.buckets()}
        return Needed(epoch, stands)

    def _dead_letter(self, message: Message, reason: str) -> None:
        """Put what is no record where somebody can look at it."""
        self._status_log.info(
            f"offset {message.offset()} of partition {message.partition()} cannot be read and is a "
            f"dead letter: {reason}"
        )
        self._dead_letters.add_message(message, reason)

    def _dead_letter_delivery(self, one: Delivery, reason: str) -> None:
        """Put a record that cannot be applied where somebody can look at it."""
        self._status_log.info(
            f"offset {one.offset} of partition {one.partition} cannot be applied and is a dead "
            f"letter: {reason}"
        )
        value = codec.encode(one.head)
        letter = DeadLetter(MUTATIONS, one.partition, one.offset, reason, value, wall_ms())
        self._dead_letters.add(letter)

"""What Kafka says of the partitions of a topic whose documents are a bucket: bounds and history.

What a history is, `coordinator.core.model.topic_logs` says. Where epochs end is asked by a request
of `requests.py`; all others are confluent-kafka's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from tenacity import Retrying, stop_before_delay, wait_fixed

from coordinator.core.model.topic_logs import EPOCHS_MAX, Epoch, History
from coordinator.kafka.address import aiokafka_settings
from coordinator.kafka.document_topics import (
    TIMEOUT_S,
    DocumentTopics,
    TopicError,
    TopicFacts,
    answer_of,
)
from coordinator.kafka.requests import EpochEndsRequest

T = TypeVar("T")

PAUSE_S = 0.2
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class TopicHistories(DocumentTopics):
    """Asks about partitions, too."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._epoch_ends = _EpochEnds(bootstrap_servers)

    def close(self) -> None:
        self._epoch_ends.close()

    def histories(
        self, facts: TopicFacts, partitions: Sequence[int], timeout_s: float = TIMEOUT_S
    ) -> dict[int, History]:
        """Return the history of each of these partitions.

        Waits, until `timeout_s`, for those that are without a leader. Raises TopicError
        `topic_unavailable`.
        """
        attempts = Retrying(
            wait=wait_fixed(PAUSE_S), stop=stop_before_delay(timeout_s), reraise=True
        )
        try:
            return attempts(self._histories, facts, partitions)
        except Exception as error:
            text = f"topic {facts.topic}: {type(error).__name__}: {error}"
            raise TopicError("topic_unavailable", text) from error

    def _histories(self, facts: TopicFacts, partitions: Sequence[int]) -> dict[int, History]:
        lows = self._offsets(facts.topic, partitions, EARLIEST)
        stable = self._offsets(facts.topic, partitions, LATEST)
        newest = {p: epoch for p, (_, epoch) in stable.items()}
        leaders = self._leaders(facts.topic, partitions)
        ends = self._epoch_ends.of(facts.topic, newest, leaders)
        found = {
            p: History(lows[p][0], stable[p][0], max(ends[p][1], stable[p][0]), ())
            for p in partitions
        }
        return {
            p: replace(found[p], epochs=epochs)
            for p, epochs in self._epochs(facts, newest, lows, leaders).items()
        }

    def _epochs(
        self,
        facts: TopicFacts,
        newest: Mapping[int, int],
        lows: Mapping[int, tuple[int, int]],
        leaders: Mapping[int, int],
    ) -> dict[int, tuple[Epoch, ...]]:
        """Return the epochs of each partition: one begins where the one before it ends."""
        found: dict[int, list[Epoch]] = {p: [] for p in newest}
        left = dict(newest)
        while left:
            older = {p: number - 1 for p, number in left.items() if number > 0}
            answers = self._epoch_ends.of(facts.topic, older, leaders) if older else {}
            for p, number in tuple(left.items()):
                before, start = answers.get(p, (-1, lows[p][0]))
                found[p].append(Epoch(number, start))
                if before < 0 or start <= lows[p][0] or len(found[p]) >= EPOCHS_MAX:
                    del left[p]
                else:
                    left[p] = before
        return {p: tuple(epochs) for p, epochs in found.items()}

    def _leaders(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return who leads each partition. Raises TopicError, KafkaException."""
        with self.asking() as admin:
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)
            said = answer_of(asked[topic])
        found = {one.id: one.leader for one in said.partitions}
        if any(found.get(p) is None for p in partitions):
            raise TopicError("topic_unavailable", f"a partition of {topic} has no leader")
        return {p: found[p].id for p in partitions}

    def newest(self, facts: TopicFacts, partitions: Sequence[int]) -> dict[int, int]:
        """Return the newest epoch of each partition. Raises KafkaException."""
        return {
            p: epoch for p, (_, epoch) in self._offsets(facts.topic, partitions, LATEST).items()
        }

    def first_since(self, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
        """Return the first offset of each partition that is not older; none: its last stable one.

        Raises KafkaException.
        """
        found = self._offsets(topic, partitions, OffsetSpec.for_timestamp(at_ms))
        missing = [p for p, (offset, _) in found.items() if offset < 0]
        ends = self._offsets(topic, missing, LATEST) if missing else {}
        return {p: ends[p][0] if p in ends else offset for p, (offset, _) in found.items()}

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset of each partition. Raises KafkaException."""
        found = self._offsets(topic, partitions, LATEST)
        return {p: offset for p, (offset, _) in found.items()}

    def _offsets(
        self, topic: str, partitions: Sequence[int], spec: OffsetSpec
    ) -> dict[int, tuple[int, int]]:
        """Return an offset of each partition and its leader epoch. Raises KafkaException.

        Of a leader that does not answer the client says an offset that there is not, and an epoch
        that is none. It would ask that leader again, also when there is another.
        """
        with self.asking() as admin:
            asked = admin.list_offsets(
                {TopicPartition(topic, p): spec for p in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=TIMEOUT_S,
            )
            answers = {place.partition: answer_of(future) for place, future in asked.items()}
            silent = [p for p, said in answers.items() if said.offset == OFFSET_INVALID]
            if silent:
                text = f"the leader of {topic} [{min(silent)}] does not answer"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
        return {p: (said.offset, max(0, said.leader_epoch or 0)) for p, said in answers.items()}


class _EpochEnds:
    """Asks for the ends of epochs, in a loop and a thread of its own."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._client: AIOKafkaClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._making = threading.Lock()

    def of(
        self, topic: str, epochs: Mapping[int, int], leaders: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        """Return, by partition, the last epoch up to the one asked for, and where it ends.

        `leaders` are the brokers to ask. The client of this must not ask for them: where brokers
        make topics by themselves, it would make one that was deleted.
        """
        return self._run(self._ask(topic, epochs, leaders))

    def close(self) -> None:
        with self._making:
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._close(), self._loop)
                self._loop = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._making:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="epoch-ends", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
        asyncio.get_running_loop().stop()

    async def _connected(self) -> AIOKafkaClient:
        if self._client is None:
            client = AIOKafkaClient(
                bootstrap_servers=str(self._servers), **aiokafka_settings(self._servers)
            )
            await client.bootstrap()
            self._client = client
        return self._client

    async def _ask(
        self, topic: str, epochs: Mapping[int, int], leaders: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        client = await self._connected()
        if any(client.cluster.broker_metadata(leaders[p]) is None for p in epochs):
            await client.force_metadata_update()
        found: dict[int, tuple[int, int]] = {}
        for leader in sorted({leaders[p] for p in epochs}):
            asked = {p: epoch for p, epoch in epochs.items() if leaders[p] == leader}
            said = await client.send(leader, EpochEndsRequest(topic, asked))
            for _, answers in said.topics:
                for error_code, partition, epoch, end in answers:
                    if error_code:
                        await client.force_metadata_update()
                        raise for_code(error_code)(f"partition {partition} of {topic}")
                    found[partition] = (epoch, end)
        return found

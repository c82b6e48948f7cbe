"""What tests of an indexer's data plane need: streams written by hand, and what it then holds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import httpx
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from coordinator import codec
from coordinator.core.keys.collation import EVERYTHING, encode_key
from coordinator.core.keys.key_versions import (
    ABSENT,
    END,
    NO_SLICE,
    SYNC,
    UPSERT,
    Item,
    attach,
    begin,
    pack,
)
from coordinator.core.keys.scan_pages import unpack
from coordinator.core.model.entities import BACKFILL, Index
from coordinator.core.model.records import IndexerHeartbeat
from coordinator.core.model.stream_records import BACKFILL as BACKFILL_KIND
from coordinator.core.model.stream_records import (
    CATCHUP,
    MAINTENANCE,
    NOT_SAID,
    HwHeartbeat,
    KeyVersions,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import HW, MUTATIONS, STABILITY, STREAM_PARTITIONS, topic_name
from tests.integration.cluster import ORDERED
from tests.integration.indexer_process import INDEXER, Cluster, until
from tests.support.indexes import make_index

BUCKET = "travel"
VBUCKETS = 8
BRANCH = 2**63 + 5


def an_index(index_id: int = 1, state: str = BACKFILL, build: int = 1, **more: Any) -> Index:
    """Return an index of which the indexer has the slices 0 and 1; `more` changes it."""
    fields = {"expressions": ("city",), "defer_build": True, "state": state, "build": build}
    return make_index(index_id, INDEXER, INDEXER, INDEXER + 1, **(fields | more))


def key_of(text: str) -> bytes:
    return encode_key((text,))


class Sender:
    """A projector's hand: it writes records to `mutations`, and remembers nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = topic_name(cluster.name, MUTATIONS)
        self._stability = topic_name(cluster.name, STABILITY)
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "linger.ms": 2,
                "log_level": 2,
                **ORDERED,
            }
        )

    def send(self, record: KeyVersions, partition: int, indexer: int = INDEXER) -> None:
        headers: Any = [("indexer", str(indexer).encode())]
        self.send_raw(codec.encode(record), partition, headers)

    def send_raw(self, value: bytes, partition: int, headers: Any = None) -> None:
        self._producer.produce(
            self._topic, value, BUCKET.encode(), partition=partition, headers=headers
        )

    def stable(self, number: int, seqnos: Iterable[int]) -> StabilityTimestamp:
        """Write a stability timestamp."""
        wanted = list(seqnos)
        vector = Vector([BRANCH] * len(wanted), wanted)
        record = StabilityTimestamp(BUCKET, number, *vector.to_bytes(), 0)
        self._producer.produce(self._stability, codec.encode(record), BUCKET.encode(), partition=0)
        self.flush()
        return record

    def drop_all(self) -> None:
        """Make Kafka drop all that is there now."""
        self.flush()
        ends = [TopicPartition(self._topic, p, OFFSET_END) for p in range(STREAM_PARTITIONS)]
        for future in self._admin.delete_records(ends).values():
            future.result(10)

    def flush(self) -> None:
        assert self._producer.flush(10) == 0


class Connection:
    """One connection of a projector, about indexes of these builds."""

    numbers = itertools.count(1)

    def __init__(
        self, sender: Sender, kind: str, builds: Mapping[int, int], number: int = 1
    ) -> None:
        self.sender = sender
        self.kind = kind
        self.builds = dict(builds)
        self.number = number
        self.connection = next(self.numbers)
        self.is_linked = True
        """Its records name the ones before them."""
        self._ordinals = itertools.count(1)
        self._last: dict[int, int] = {}

    def send(self, *items: Item, lost: Collection[int] = ()) -> None:
        """Send items, each to the partition of its vbucket, in order; not to those `lost`."""
        for partition in range(STREAM_PARTITIONS):
            ours = [pack(item) for item in items if item.vbucket % STREAM_PARTITIONS == partition]
            if ours:
                self._send(partition, b"".join(ours), lost)
        self.sender.flush()

    def _send(self, partition: int, items: bytes, lost: Collection[int]) -> None:
        ordinal = next(self._ordinals)
        previous = self._last.get(partition, 0) if self.is_linked else NOT_SAID
        record = KeyVersions(
            bucket=BUCKET,
            kind=self.kind,
            projector=1,
            connection=self.connection,
            ordinal=ordinal,
            number=self.number,
            indexes=tuple(self.builds),
            builds=tuple(self.builds.values()),
            items=items,
            at_ms=0,
            previous=previous,
        )
        self._last[partition] = ordinal
        if partition not in lost:
            self.sender.send(record, partition)

    def probe(self) -> None:
        """Send a record of no items on each partition."""
        for partition in range(STREAM_PARTITIONS):
            self._send(partition, b"", lost=())
        self.sender.flush()

    def begin(self, seqno: int = 0, vbuuid: int = BRANCH) -> Connection:
        places = range(len(self.builds))
        self.send(*(begin(v, seqno, vbuuid, list(places)) for v in range(VBUCKETS)))
        return self

    def attach(self, index_id: int, build: int, seqno: int) -> None:
        self.builds[index_id] = build
        place = list(self.builds).index(index_id)
        self.send(*(attach(v, seqno, BRANCH, place) for v in range(VBUCKETS)))

    def put(
        self,
        seqno: int,
        documents: Mapping[int, tuple[str, str]],
        index_id: int = 1,
        lost: Collection[int] = (),
    ) -> None:
        """Say of one document in each of these vbuckets which key it has; "" for none."""
        place = list(self.builds).index(index_id)
        items = []
        for vbucket, (document, text) in documents.items():
            name = document.encode()
            if text:
                piece = len(text) % 2
                items.append(Item(UPSERT, vbucket, seqno, place, piece, name, key_of(text)))
            else:
                items.append(Item(ABSENT, vbucket, seqno, place, NO_SLICE, name))
        self.send(*items, lost=lost)

    def sync(self, seqno: int) -> None:
        self.send(*(Item(SYNC, v, seqno) for v in range(VBUCKETS)))

    def end(self, seqno: int, vbuckets: Iterable[int] = range(VBUCKETS)) -> None:
        self.send(*(Item(END, v, seqno) for v in vbuckets))


def maintenance(sender: Sender, builds: Mapping[int, int], number: int = 1) -> Connection:
    return Connection(sender, MAINTENANCE, builds, number)


def backfill(sender: Sender, builds: Mapping[int, int]) -> Connection:
    return Connection(sender, BACKFILL_KIND, builds)


def catchup(sender: Sender, builds: Mapping[int, int], number: int = 1) -> Connection:
    """Return a catch-up of who sends maintenance under this number."""
    return Connection(sender, CATCHUP, builds, number)


class Watermarks:
    """Hears what the indexer says of its buckets."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = consumer(cluster.bootstrap_servers, "watermarks")
        topic = topic_name(cluster.name, HW)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(STREAM_PARTITIONS)])
        self.last: HwHeartbeat | None = None

    def close(self) -> None:
        self._consumer.close()

    def poll(self) -> HwHeartbeat | None:
        for message in self._consumer.consume(100, 0.05):
            if message.error() is None:
                self.last = codec.decode(message.value() or b"")
        return self.last

    def reach(self, *seqnos: int) -> HwHeartbeat:
        """Wait until each vbucket is at least so far; one number stands for all."""
        wanted = list(seqnos) if len(seqnos) > 1 else list(seqnos) * VBUCKETS

        def reached() -> HwHeartbeat | None:
            beat = self.poll()
            if beat is None:
                return None
            held = Vector.from_bytes(beat.vbuuids, beat.seqnos).seqnos.tolist()
            return beat if all(a >= b for a, b in zip(held, wanted, strict=True)) else None

        return until(f"high watermarks of {seqnos}", reached)


class Scans:
    """Reads slices over HTTP, as a node does."""

    def __init__(self, beat: IndexerHeartbeat) -> None:
        self._client = httpx.Client(base_url=beat.address, trust_env=False, timeout=10)

    def refusal(self, index_id: int, **more: Any) -> str:
        answer = self._ask(index_id, 0, **more)
        return str(answer.json()["error"]["code"])

    def _ask(self, index_id: int, piece: int, **more: Any) -> httpx.Response:
        body = {
            "index": index_id,
            "slices": [piece],
            "begin": EVERYTHING.begin.hex(),
            "end": EVERYTHING.end.hex(),
            "timeout_ms": 0,
            **more,
        }
        return self._client.post("/v1/slices/scan", json=body)

    def entries(self, index_id: int = 1, **more: Any) -> set[tuple[int, bytes]]:
        """Return all entries of the two slices, with the slice that each is in."""
        found: set[tuple[int, bytes]] = set()
        for piece in (0, 1):
            answer = self._ask(index_id, piece, **more)
            assert answer.status_code == 200, answer.text
            page = unpack(answer.content)
            assert not page.more
            found |= {(piece, entry) for entry in page.entries}
        return found


def entry(document: str, text: str) -> tuple[int, bytes]:
    """Return where a document must be, and as what."""
    return len(text) % 2, key_of(text) + document.encode()

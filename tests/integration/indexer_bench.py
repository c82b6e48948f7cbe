"""What drives an indexer with mutations, and looks at what it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.core.model.entities import (
    BACKFILL,
    INIT,
    MAINTENANCE,
    PENDING,
    READY,
    Bucket,
)
from coordinator.core.model.records import IndexerHeartbeat
from coordinator.core.model.stream_records import (
    IndexBuilt,
)
from coordinator.kafka.topics import ACKS, HEARTBEAT
from tests.integration.indexer_process import Cluster, Listener, Process, Start
from tests.integration.indexing import (
    BUCKET,
    VBUCKETS,
    Connection,
    Scans,
    Sender,
    Watermarks,
    an_index,
    backfill,
    maintenance,
)
from tests.integration.projectors import State


class Bench:
    """One indexer with one bucket, the state and the streams that it hears of."""

    def __init__(self, topics: Cluster, begin: Start) -> None:
        self.cluster = topics
        self.start = begin
        self.state = State(topics)
        self.sender = Sender(topics)
        self.acks = Listener(topics, ACKS)
        self.beats = Listener(topics, HEARTBEAT)
        self.watermarks = Watermarks(topics)
        self.process: Process = begin()

    def close(self) -> None:
        self.acks.__exit__()
        self.beats.__exit__()
        self.watermarks.close()

    def allocate(self, *indexes: int) -> None:
        self.state.write(Bucket(BUCKET, VBUCKETS), *(an_index(i, INIT, 0) for i in indexes))
        for index_id in indexes:
            self.acks.answer(index_id, "allocated")
        self.state.write(*(an_index(i, READY, 0) for i in indexes))

    def scans(self) -> Scans:
        """Return what reads from the life of the indexer that is now."""
        pid = self.process.process.pid
        beat: IndexerHeartbeat = self.beats.hears(
            "a heartbeat", lambda r: isinstance(r, IndexerHeartbeat) and r.pid == pid
        )
        return Scans(beat)

    def built(self, index_id: int = 1, build: int = 1) -> IndexBuilt:
        return self.acks.hears(
            f"index {index_id} is built",
            lambda r: isinstance(r, IndexBuilt) and (r.index_id, r.build) == (index_id, build),
        )

    def build(self, documents: dict[int, tuple[str, str]] | None = None) -> Connection:
        """Build index 1 from these documents, at seqno 10; return its maintenance."""
        self.allocate(1)
        self.state.write(an_index(1, PENDING))
        stream = maintenance(self.sender, {1: 1}).begin(10)
        self.state.write(an_index(1, BACKFILL))
        filling = backfill(self.sender, {1: 1}).begin()
        if documents:
            filling.put(3, documents)
        filling.end(10)
        self.built()
        self.state.write(an_index(1, MAINTENANCE))
        return stream

    def restart(self, *more: str) -> None:
        self.process.kill()
        self.process = self.start(arguments=more)


@pytest.fixture
def bench(cluster: Cluster, start: Start) -> Iterator[Bench]:
    made = Bench(cluster, start)
    yield made
    made.close()

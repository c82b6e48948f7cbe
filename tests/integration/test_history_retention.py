"""Old records of `history` leave the topic for the archive, and nobody who asks can tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.errors import CoordinatorError
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.model.authority_state import AuthorityState, SnapshotInfo
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.embedded.broker import Broker
from coordinator.kafka import history_retention
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.history_log import HistoryLog
from coordinator.kafka.history_retention import HistoryRetention, Passed
from coordinator.kafka.readers import watermarks
from coordinator.kafka.topics import HISTORY, SNAPSHOTS
from tests.integration.cluster import Cluster, wait_until
from tests.integration.written_log import CAS_BASE, WrittenLog
from tests.support.changes import deleted, written

pytestmark = pytest.mark.integration

Told = dict[str, Any]
HOUR_MS = 3_600_000


class Kept:
    """A log that is written by hand, its archive, and a master of it that may die anywhere."""

    def __init__(self, log: WrittenLog, folder: Path) -> None:
        self.log = log
        self.archive = HistoryArchive(folder, log.name, lambda: "c")
        self.snapshots: tuple[SnapshotInfo, ...] = ()

    def some(self, count: int) -> None:
        """Commit transactions of several changes, with aborted ones and strangers' records."""
        for number in range(count):
            self.log.commit(written("a", str(number)), written("b", str(number)), deleted("a"))
            self.log.abort(written("never", "0"))
            self.log.publish(HISTORY, b"of a stranger")
            self.log.commit(written(f"c{number}", f"[{number}]"))

    def copy(self) -> SnapshotInfo:
        """Write a copy of the state, as a master does, and have the Authority tell of it."""
        state, number = self.log.state, len(self.snapshots) + 1
        offsets = [self.log.publish(SNAPSHOTS, codec.encode(one)) for one in chunks(number, state)]
        info = SnapshotInfo(number, state.cas, state.digest, Offset(offsets[0]), Offset(0), 0)
        self.snapshots = (*self.snapshots, info)
        return info

    @property
    def authority(self) -> AuthorityState:
        return AuthorityState(
            cluster_id="c",
            cas_base=CAS_BASE,
            roster=(1,),
            minimum=1,
            log_capacity=10,
            request_window_ms=1_000,
            last_cas=self.log.state.cas,
            digest=self.log.state.digest,
            snapshots=self.snapshots,
        )

    def run(self, *, writer: str = "node-1", older_ms: int = -HOUR_MS) -> Passed:
        """Let go what is older than `older_ms`; by default all that there is."""
        passes = HistoryRetention(
            self.log.servers,
            self.archive,
            retention_ms=older_ms,
            writer=writer,
            stopping=threading.Event(),
        )
        return passes.run(self.authority, time.time_ns() // 1_000_000)

    @property
    def low(self) -> int:
        """Return the first offset of the topic."""
        return watermarks(self.log.servers, self.log.topic(HISTORY))[0]

    def read(self, *, archived: bool = True) -> list[Event]:
        """Return all events, as a reader finds them."""
        archive = HistoryArchive(self.archive.folder, self.log.name) if archived else None
        log = HistoryLog(self.log.servers, self.log.name, archive=archive)
        with closing(log):
            found = log.transactions(Cas(0), self.log.state.cas)
            return [event for transaction in found for event in transaction]

    @property
    def archived(self) -> int:
        """Return how many records the archive has."""
        return sum(header.count for header in self.archive.headers())

    @property
    def files(self) -> list[Path]:
        return sorted(self.archive.folder.iterdir())


@pytest.fixture
def kept(broker: Broker, tmp_path: Path) -> Kept:
    folder = tmp_path / "archived"
    made = Kept(WrittenLog(broker.bootstrap_servers), folder)
    made.archive.check_writable()
    return made


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_retention, "SEGMENT_BYTES", 100)


@pytest.mark.usefixtures("small_segments")
def test_what_has_left_the_topic_is_read_as_if_it_had_not(kept: Kept) -> None:
    kept.some(3)
    before = kept.read()
    assert before == kept.log.committed
    copy = kept.copy()
    kept.some(1)
    assert kept.run() == Passed(kept.archived, kept.low, wants_copy=False)
    left = kept.read(archived=False)
    assert left == kept.log.committed[-len(left) :]
    assert left[0].cas <= copy.cas < left[-1].cas
    assert len(kept.files) > 3
    assert kept.read() == kept.log.committed
    assert kept.run() == Passed(0, kept.low, wants_copy=True)
    kept.copy()
    assert kept.run().low == kept.low
    assert len(kept.read(archived=False)) == 1, "the newest transaction stays"
    assert kept.read() == kept.log.committed


def test_without_a_copy_above_it_nothing_goes_and_a_copy_is_wanted(kept: Kept) -> None:
    kept.some(2)
    assert kept.run().wants_copy
    assert kept.low == 0
    kept.copy()
    passed = kept.run()
    assert not passed.wants_copy
    assert passed.low == kept.low > 0


def test_what_is_younger_than_the_retention_stays(kept: Kept) -> None:
    kept.some(2)
    kept.copy()
    assert kept.run(older_ms=HOUR_MS) == Passed(0, Offset(0), wants_copy=False)
    assert kept.files == []
    assert kept.low == 0


# -- a cluster -----------------------------------------------------------------------------------


def archiving(make_cluster: Callable[..., Cluster], folder: Path, **more: Any) -> Cluster:
    """Start a cluster whose master lets go of all that is older than a second."""
    options = ("--history-archive", str(folder), "--history-retention", "1s")
    return make_cluster(options=options, indexers=1, **more).start()


def first_in_topic(cluster: Cluster) -> int:
    return watermarks(cluster.servers, cluster.topic(HISTORY))[0]


def told(cluster: Cluster, node: int, cas: int) -> list[Told]:
    """Return all that the node tells of the past, up to a CAS."""
    pages = [cluster.get(node, f"/v1/history?until={cas}&limit=1000&at_least={cas}")]
    found = pages[0]["events"]
    moments = [0, *(event["cas"] for event in found)]
    pages += [cluster.get(node, f"/v1/state?cas={moment}") for moment in moments]
    pages += [cluster.get(node, f"/v1/diff?from={moment}&to={cas}") for moment in moments]
    return [{k: v for k, v in page.items() if k not in ("node", "next")} for page in pages]


def changed(cluster: Cluster, count: int) -> int:
    """Change settings, and return the last CAS."""
    with cluster.client() as client:
        for number in range(count):
            cas = client.put_config(f"n/{number % 3}", {"number": number})["cas"]
    return int(cas)


def test_a_node_tells_the_same_past_before_and_after_it_has_left_the_topic(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(indexers=1).start()
    last = changed(cluster, 8)
    before = told(cluster, 1, last)
    for node in cluster.nodes.values():
        node.stop()
        folder = str(tmp_path / "archived")
        node.more = ("--history-archive", folder, "--history-retention", "1s")
    cluster.start()
    changed(cluster, 2)
    wait_until(lambda: first_in_topic(cluster) > 8, "the records have left the topic")
    for node in cluster.nodes:
        strip = [{k: v for k, v in one.items() if k != "cas"} for one in before[:1]]
        now = told(cluster, node, last)
        assert [{k: v for k, v in one.items() if k != "cas"} for one in now[:1]] == strip
        assert now[1:] == before[1:]
    oldest = min(event.cas for event in cluster.records(HISTORY))
    with cluster.client() as client, pytest.raises(CoordinatorError) as caught:
        next(event for event in client.watch(after=1) if event["type"] == "change")
    assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": oldest})

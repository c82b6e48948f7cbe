"""Old records of `history` leave the topic for the archive, and nobody who asks can tell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from typer.testing import CliRunner

from coordinator import codec
from coordinator.cli import status
from coordinator.cli.main import app
from coordinator.client.errors import CoordinatorError
from coordinator.client.kafka_watch import KafkaWatch
from coordinator.core.catalog import state as states
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.authority import SNAPSHOTS_MAX
from coordinator.core.consensus.full_sync import HISTORY as FROM_HISTORY
from coordinator.core.model.authority_state import AuthorityState, SnapshotInfo
from coordinator.core.model.records import AuthoritySnapshot, Event
from coordinator.core.model.types import Cas, Epoch, Offset
from coordinator.embedded.broker import Broker
from coordinator.kafka import history_retention, state_sources
from coordinator.kafka.archive_segments import ArchiveError, path_of, write_segment
from coordinator.kafka.history_archive import HistoryArchive, history_reader
from coordinator.kafka.history_log import HistoryLog
from coordinator.kafka.history_retention import HistoryRetention, Passed
from coordinator.kafka.log_reader import decoded, ignore
from coordinator.kafka.readers import watermarks
from coordinator.kafka.settings import BASE_HEADER, Base
from coordinator.kafka.state_sources import Sources
from coordinator.kafka.topics import HISTORY, SNAPSHOTS, delete_records
from tests.integration.cluster import Cluster, error_of, in_parallel, wait_until
from tests.integration.dying_archivist import STEPS
from tests.integration.written_log import CAS_BASE, WrittenLog
from tests.support.changes import deleted, written

pytestmark = pytest.mark.integration

Told = dict[str, Any]
HOUR_MS = 3_600_000
UNAVAILABLE = "history_archive_unavailable"


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


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

    def copy(self, at_ms: int = 0) -> SnapshotInfo:
        """Write a copy of the state, as a master does, and have the Authority tell of it."""
        info = replace(self.copy_of(self.log.state), at_ms=at_ms)
        self.snapshots = (*self.snapshots, info)
        return info

    def copy_of(self, state: StateContext) -> SnapshotInfo:
        number = len(self.snapshots) + 1
        offsets = [self.log.publish(SNAPSHOTS, codec.encode(one)) for one in chunks(number, state)]
        return SnapshotInfo(number, state.cas, state.digest, Offset(offsets[0]), Offset(0), 0)

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

    def run(
        self,
        *,
        writer: str = "node-1",
        older_ms: int = -HOUR_MS,
        now_ms: int | None = None,
        authority: AuthorityState | None = None,
    ) -> Passed:
        """Let go what is older than `older_ms`; by default all that there is."""
        passes = HistoryRetention(
            self.log.servers,
            self.archive,
            retention_ms=older_ms,
            writer=writer,
            stopping=threading.Event(),
        )
        return passes.run(authority or self.authority, now_ms or wall_ms())

    @property
    def low(self) -> int:
        """Return the first offset of the topic."""
        return watermarks(self.log.servers, self.log.topic(HISTORY))[0]

    def reader(self, *, archived: bool = True) -> HistoryLog:
        """Return a reader that remembers nothing of the archive."""
        archive = HistoryArchive(self.archive.folder, self.log.name) if archived else None
        return HistoryLog(self.log.servers, self.log.name, archive=archive)

    def read(self, *, archived: bool = True) -> list[Event]:
        """Return all events, as a reader finds them."""
        with closing(self.reader(archived=archived)) as log:
            found = log.transactions(Cas(0), self.log.state.cas)
            return [event for transaction in found for event in transaction]

    @property
    def archived(self) -> int:
        """Return how many records the archive has."""
        return sum(header.count for header in self.archive.headers())

    @property
    def begins(self) -> list[Offset]:
        return self.archive.begins()

    @property
    def files(self) -> list[Path]:
        return sorted(self.archive.folder.iterdir())


@pytest.fixture
def kept(broker: Broker, tmp_path: Path) -> Kept:
    log = WrittenLog(broker.bootstrap_servers)
    made = Kept(log, tmp_path / log.name)
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
    passed = kept.run()
    left = kept.read(archived=False)
    assert passed == Passed(kept.archived, kept.low, left[0].cas, wants_copy=False)
    assert left == kept.log.committed[-len(left) :]
    assert left[0].cas <= copy.cas < left[-1].cas
    assert len(kept.files) > 3
    assert kept.read() == kept.log.committed
    assert kept.run() == Passed(0, kept.low, left[0].cas, wants_copy=True)
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


def test_who_was_away_for_less_than_the_retention_goes_on_by_the_topic(kept: Kept) -> None:
    """To go on, it needs a state from before it left, and all that has changed since."""
    kept.some(2)
    middle = wall_ms() + 1
    wait_until(lambda: wall_ms() > middle, "what comes now is later")
    kept.some(1)
    left = kept.log.state.cas
    kept.some(1)
    copy = kept.copy(wall_ms())
    kept.some(1)
    now = wall_ms()
    passed = kept.run(older_ms=now - middle, now_ms=now)
    assert (passed.archived > 0, passed.wants_copy) == (True, False)
    with (
        KafkaWatch(kept.log.servers, kept.log.name) as watch,
        closing(watch.watch(left)) as watching,
    ):
        first = next(event for event in watching if event["type"] == "change")
    assert first["cas"] == next(e.cas for e in kept.log.committed if e.cas > left)
    assert kept.run(older_ms=0, now_ms=copy.at_ms + 1).low > 0


def test_a_copy_of_a_master_whose_clock_was_ahead_is_not_waited_for(kept: Kept) -> None:
    kept.some(2)
    kept.copy(wall_ms() + HOUR_MS)
    assert kept.run(older_ms=-1).wants_copy
    assert kept.low == 0


def test_where_copies_come_faster_than_the_retention_each_of_them_will_do(kept: Kept) -> None:
    """The Authority knows of so many only, and older ones stand on the topic."""
    kept.some(2)
    for count in range(1, SNAPSHOTS_MAX + 1):
        kept.copy(wall_ms() + HOUR_MS)
        assert (kept.run(older_ms=-1).low > 0) == (count == SNAPSHOTS_MAX)


def test_what_is_younger_than_the_retention_stays(kept: Kept) -> None:
    kept.some(2)
    kept.copy()
    first = kept.log.committed[0].cas
    assert kept.run(older_ms=HOUR_MS) == Passed(0, Offset(0), first, wants_copy=False)
    assert kept.files == []
    assert kept.low == 0


def test_what_is_not_committed_yet_holds_up_all_behind_it(kept: Kept) -> None:
    kept.some(1)
    end = watermarks(kept.log.servers, kept.log.topic(HISTORY))[1]
    late = kept.log._producer("late")
    late.begin_transaction()
    late.produce(kept.log.topic(HISTORY), b"perhaps", partition=0)
    assert late.flush(20) == 0
    kept.some(2)
    kept.copy()
    kept.run()
    assert kept.archive.end() == kept.low <= end
    late.abort_transaction(20)
    wait_until(lambda: kept.run().low > end, "the rest goes, too")
    assert kept.read() == kept.log.committed


def test_all_of_history_is_a_source_of_the_state_wherever_its_records_are(kept: Kept) -> None:
    kept.some(3)
    kept.copy()
    assert kept.run().low > 0
    for archive, is_all in ((kept.archive, True), (None, False)):
        sources = Sources(
            kept.log.servers, kept.log.name, threading.Event(), ignore, archive=archive
        )
        batches = sources.read(
            FROM_HISTORY, cas_base=CAS_BASE, at_least=kept.log.state.cas, offset=Offset(0), copy=0
        )
        events = [event for batch in batches for event in batch.events]
        assert (events == kept.log.committed) is is_all


def test_what_a_restored_history_begins_with_is_archived_with_its_first_record(
    kept: Kept,
) -> None:
    base = kept.copy_of(states.EMPTY)
    first = Base(Cas(5), base.copy, base.offset)
    restore = kept.log._producer("restore")
    restore.begin_transaction()
    headers: Any = [(BASE_HEADER, first.encode())]
    restore.produce(kept.log.topic(HISTORY), b"first", partition=0, headers=headers)
    restore.commit_transaction(20)
    kept.some(2)
    with closing(kept.reader()) as log:
        before = log.oldest(kept.log.state.cas), log.base()
    kept.copy()
    assert kept.run().low > 0
    with closing(kept.reader()) as log:
        assert (log.oldest(kept.log.state.cas), log.base()) == before
        assert before == (kept.log.committed[0].cas, states.EMPTY)


@pytest.mark.usefixtures("small_segments")
def test_a_reader_goes_on_where_records_leave_the_topic_while_it_reads(kept: Kept) -> None:
    kept.some(3)
    kept.copy()
    with closing(history_reader(kept.log.servers, kept.log.name, "test", kept.archive)) as reader:
        assert reader.bounds()[0] == 0
        assert kept.run().low > 0
        found: list[Message] = []
        for read in reader.read(Offset(0), patience_s=20):
            found += read.records
            if read.at_end:
                break
        assert [event for _, event in decoded(found, Event)] == kept.log.committed
        assert reader.bounds()[0] == 0


# -- what keeps records in the topic -------------------------------------------------------------


def refused(kept: Kept) -> ArchiveError:
    """Let a master try, which must not delete anything; return why it does not."""
    low = kept.low
    with pytest.raises(ArchiveError) as caught:
        kept.run()
    assert kept.low == low
    return caught.value


def test_a_segment_that_is_damaged_before_it_is_read_back_lets_nothing_go(kept: Kept) -> None:
    kept.some(2)
    assert kept.run().wants_copy
    [file] = kept.files
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    kept.copy()
    error = refused(kept)
    assert (error.code, error.file) == ("history_archive_damaged", file.name)
    file.unlink()
    assert kept.run().low > 0
    assert kept.read() == kept.log.committed


@pytest.mark.parametrize("what", ["value", "key", "headers", "timestamp"])
def test_a_segment_with_another_record_than_the_topic_lets_nothing_go(
    kept: Kept, what: str
) -> None:
    kept.some(1)
    assert kept.run().wants_copy
    [file] = kept.files
    header, messages, _ = kept.archive.read_back(Offset(0))
    one = messages[1]
    parts: dict[str, Any] = {
        name: getattr(one, name)() for name in ("offset", "value", "key", "headers", "timestamp")
    }
    other = {"value": b"x", "key": b"x", "headers": [("x", b"")], "timestamp": (1, 1)}
    changed = Message(**{**parts, what: other[what]}, topic=one.topic(), partition=0)
    file.unlink()
    write_segment(kept.archive.folder, "x", header, [messages[0], changed, *messages[2:]])
    kept.copy()
    assert refused(kept).file == file.name
    assert "other records than the topic" in str(refused(kept))


@pytest.mark.parametrize("wrong", [{"digest": 1}, {"offset": Offset(10_000)}, {"copy": 77}])
def test_a_copy_that_is_not_what_commit_says_lets_nothing_go(
    kept: Kept, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_sources, "READ_TIMEOUT_S", 0.5)
    kept.some(1)
    info = kept.copy()
    kept.some(1)
    kept.snapshots = (replace(info, cas=kept.log.state.cas, **wrong),)
    passed = kept.run()
    assert (kept.low, passed.wants_copy) == (0, True)
    kept.copy()
    assert kept.run().low == kept.low > 0


def test_a_topic_whose_beginning_is_in_no_archive_is_left_alone(kept: Kept) -> None:
    kept.some(2)
    delete_records(kept.log.servers, kept.log.topic(HISTORY), Offset(3))
    kept.copy()
    assert refused(kept).file == path_of(kept.archive.folder, 0).name
    assert kept.files == []


def test_an_archive_of_another_cluster_is_left_alone(kept: Kept) -> None:
    kept.some(1)
    kept.run()
    kept.archive = HistoryArchive(kept.archive.folder, kept.log.name, lambda: "another")
    kept.copy()
    assert refused(kept).code == "history_archive_foreign"


# -- masters that die, and masters at once -------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.usefixtures("small_segments")
def test_a_master_that_is_killed_at_any_step_loses_nothing(kept: Kept, step: str) -> None:
    kept.some(2)
    kept.copy()
    record = AuthoritySnapshot(Epoch(1), kept.authority)
    script = [sys.executable, "-m", "tests.integration.dying_archivist"]
    argv = [*script, kept.log.servers, str(kept.archive.folder), step]
    died = subprocess.run(argv, input=codec.encode(record), check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert kept.read() == kept.log.committed
    kept.run(writer="node-2")
    kept.run(writer="node-1")
    assert kept.low == kept.archive.end() > 0
    assert kept.read() == kept.log.committed
    assert {file.suffix for file in kept.files} == {".segment"}


@pytest.mark.usefixtures("small_segments")
def test_a_master_that_was_deposed_in_the_middle_does_no_harm(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.some(2)
    kept.copy()
    deposed = kept.authority
    reached, goes_on = threading.Event(), threading.Event()

    def late(*given: Any) -> None:
        reached.set()
        assert goes_on.wait(30)
        delete_records(*given)

    monkeypatch.setattr(history_retention, "delete_records", late)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(kept.run, authority=deposed)
        assert reached.wait(30)
        monkeypatch.setattr(history_retention, "delete_records", delete_records)
        kept.some(1)
        kept.copy()
        low = kept.run(writer="node-2").low
        assert kept.low == low == kept.archive.end()
        goes_on.set()
        slow.result(30)
    assert kept.low == low
    assert kept.read() == kept.log.committed


@pytest.mark.usefixtures("small_segments")
def test_masters_that_archive_at_once_agree_on_what_there_is(kept: Kept) -> None:
    kept.some(3)
    kept.copy()
    masters = [lambda n=n: kept.run(writer=f"node-{n}") for n in range(4)]
    in_parallel(*masters)
    assert kept.run().low == kept.archive.end() == kept.low > 0
    assert kept.read() == kept.log.committed
    assert kept.archived == sum(len(kept.archive.read_back(b).messages) for b in kept.begins)


# -- a cluster -----------------------------------------------------------------------------------


def first_in_topic(cluster: Cluster) -> int:
    return watermarks(cluster.servers, cluster.topic(HISTORY))[0]


def told(cluster: Cluster, node: int, cas: int) -> list[Told]:
    """Return all that the node tells of the past, up to a CAS."""
    pages = [cluster.get(node, f"/v1/history?until={cas}&limit=1000&at_least={cas}")]
    found = pages[0]["events"]
    moments = [0, *(event["cas"] for event in found)]
    pages += [cluster.get(node, f"/v1/state?cas={moment}") for moment in moments]
    pages += [cluster.get(node, f"/v1/diff?from={moment}&to={cas}") for moment in moments]
    del pages[0]["cas"]  # That of now.
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
    cluster = make_cluster(nodes=2, indexers=1).start()
    last = changed(cluster, 8)
    before = told(cluster, 1, last)
    for node in cluster.nodes.values():
        node.stop()
        folder = str(tmp_path / "archived")
        node.more = ("--history-archive", folder, "--history-retention", "1s")
    cluster.start()
    newest = changed(cluster, 2)
    wait_until(lambda: len(cluster.records(HISTORY)) == 1, "all but the newest has left the topic")
    for node in cluster.nodes:
        assert told(cluster, node, last) == before
    with cluster.client() as client, pytest.raises(CoordinatorError) as by_node:
        next(event for event in client.watch(after=1) if event["type"] == "change")
    with (
        KafkaWatch(cluster.servers, cluster.name) as watch,
        pytest.raises(CoordinatorError) as by_kafka,
    ):
        next(watch.watch(after=1))
    for caught in (by_node.value, by_kafka.value):
        assert (caught.code, caught.details) == ("compacted", {"oldest": newest})
    wait_until(lambda: f"history_oldest_cas {newest:.1f}" in metrics(cluster), "it is measured")
    assert "coordinator_history_retention_failures_total 0.0" in metrics(cluster)
    with cluster.client() as client, cluster.client() as probe:
        shown = status.gather(client, probe)["history_retention"]
    assert (shown["retention_ms"], shown["oldest_cas"], shown["error"]) == (1_000, newest, "")
    assert shown["archived"] > 0
    later = changed(cluster, 1)
    with cluster.client() as client, closing(client.watch(after=newest)) as watching:
        first = next(event for event in watching if event["type"] == "change")
        assert first["cas"] == later


def metrics(cluster: Cluster) -> str:
    return cluster.ask(cluster.master(), "GET", "/metrics").text


def indexctl(*arguments: object, code: int = 0) -> Any:
    """Run a command with --json; return its last line, or the error that it ends with."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    found = json.loads(result.output.splitlines()[-1])
    return found["error"] if code else found


def test_a_backup_has_what_is_archived_and_a_damaged_segment_is_told_with_its_file(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    folder, file = tmp_path / "archived", tmp_path / "cluster.backup"
    options = ("--history-archive", str(folder), "--history-retention", "1s")
    cluster = make_cluster(nodes=1, indexers=1, options=options).start()
    last = changed(cluster, 4)
    wait_until(lambda: first_in_topic(cluster) > 3, "records have left the topic")
    expected = cluster.get(1, f"/v1/history?until={last}")["events"]
    backup = ("backup", file, "--bootstrap-servers", cluster.servers, "--cluster", cluster.name)
    assert indexctl(*backup, code=1)["code"] == "history_damaged"
    assert indexctl(*backup, "--history-archive", folder)["backup"]["history_after"] == 0
    checked = indexctl("restore", file, "--check")["checked"]
    assert (checked["history_after"], checked["changes"] >= len(expected) > 3) == (0, True)

    cluster.nodes[1].stop()
    first = path_of(folder, 0)
    whole = first.read_bytes()
    first.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    cluster.start()
    for path in ("/v1/history", f"/v1/state?cas={expected[1]['cas']}", "/v1/diff?from=0"):
        response = cluster.ask(1, "GET", path)
        assert (response.status_code, error_of(response)) == (500, "history_archive_damaged")
        assert response.json()["error"]["details"] == {"file": first.name}
    refused = indexctl(*backup, "--force", "--history-archive", folder, code=1)
    assert refused["code"] == "history_archive_damaged"
    first.write_bytes(whole)
    assert cluster.get(1, f"/v1/history?until={last}")["events"] == expected


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        (("--history-retention", "1s"), "usage", 78),
        (("--history-retention", "1s", "--history-archive", "/proc/none"), UNAVAILABLE, 1),
    ],
)
def test_a_node_refuses_a_retention_without_a_folder_that_takes_files(
    make_cluster: Callable[..., Cluster], options: tuple[str, ...], code: str, status: int
) -> None:
    node = make_cluster(nodes=1, indexers=0, options=options).nodes[1]
    node.start()
    assert node.wait() == status
    assert f"[{code}]" in node.said

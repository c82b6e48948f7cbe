"""The archive on a real broker and real processes: killed at every point, and read by SQL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from coordinator import codec
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import HISTORY, STABILITY_HISTORY, topic_name
from streaming.archive.place import ARCHIVE
from streaming.spark.crash_points import AFTER, BEFORE
from tests.integration.cluster import Child, read_partition, value_of, wait_until
from tests.integration.streaming import NOW_MS, Topics, jvm_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

EX_CONFIG, KILLED = 78, -9
START_S = 240.0
KILLS_MAX = 4


class History:
    """What a master writes to `history`: transactions of two events, and some that are aborted."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.cas = 0
        self._producer = Producer(
            {
                "bootstrap.servers": topics.servers,
                "transactional.id": f"{topics.name}.master",
                "log_level": 2,
            }
        )
        self._producer.init_transactions(30)

    def commit(self, transactions: int) -> None:
        for _ in range(transactions):
            self._producer.begin_transaction()
            self._put(self.cas)
            self._producer.commit_transaction(30)
            self.cas += 2

    def repeat(self) -> None:
        """Write the first transaction once more, as no master does."""
        self._producer.begin_transaction()
        self._put(0)
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.begin_transaction()
        self._put(1_000_000)
        self._producer.flush(30)
        self._producer.abort_transaction(30)

    def _put(self, cas: int) -> None:
        bucket = Bucket(f"b{cas}", 64)
        for index, entity in enumerate((bucket, None)):
            value = None if entity is None else codec.encode(entity)
            at_ms = NOW_MS + cas * 3_600_000
            mutation = Mutation("Changed", bucket.key, value, entity, "r", "ann", at_ms)
            event = Event(mutation, TxnId(1, cas), index, 2, cas + 1 + index)
            self._producer.produce(topic_name(self.topics.name, HISTORY), codec.encode(event))


class Job(Child):
    """The job as a process of its own."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        super().__init__("archive", folder / "data", folder)
        self.topics = topics
        self.options: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        return [
            *(sys.executable, "-m", "streaming", "archive", "--cluster", self.topics.name),
            *("--bootstrap-servers", self.topics.servers, "--data-dir", str(self.folder)),
            *("--trigger-ms", "1000", *self.options),
        ]

    def begin(self, *options: str) -> None:
        self.options = options
        self.start()

    def table(self, name: str = "history") -> DeltaTable | None:
        """Return a table as a reader of Delta Lake finds it, that has no Spark."""
        try:
            return DeltaTable(self.folder / ARCHIVE / name)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            # The folder goes while it is looked at: the job begins anew where none is complete.
            if "does not exist" in str(error):
                return None
            raise

    @property
    def count(self) -> int:
        """Return how many rows count."""
        found = self.table()
        return found.count() if found else 0

    def is_compact(self) -> bool:
        """Tell whether each month is one file."""
        found = self.table()
        assert found is not None
        files = found.file_uris()
        return len(files) == len({Path(file).parent for file in files})

    def unnamed(self) -> set[str]:
        """Return the files of a batch that is being written: no version names them yet."""
        there = {str(path) for path in (self.folder / ARCHIVE / "history").rglob("*.parquet")}
        found = self.table()
        return there - set(found.file_uris() if found else ())

    def cases(self) -> list[int]:
        """Return all CASes in the archive, in order, as SQL finds them."""
        return [row["cas"] for row in self.sql("SELECT cas FROM history ORDER BY cas")]

    def sql(self, statement: str) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "coordinator.cli.main", "sql", statement, "--json"]
        done = subprocess.run(
            [*command, "--data-dir", str(self.folder)], capture_output=True, check=True, text=True
        )
        rows: list[dict[str, object]] = json.loads(done.stdout)["rows"]
        return rows


@contextmanager
def job(broker: Broker, folder: Path) -> Iterator[tuple[Job, History]]:
    topics = Topics(broker.bootstrap_servers)
    made = Job(topics, folder)
    try:
        yield made, History(topics)
    finally:
        made.kill()


WITHIN = "within"
"""The files of a batch are there, and its transaction is not."""


def kill_within(archiver: Job, history: History) -> None:
    """Kill it while it writes a batch that is not its first.

    It may have written all by the time that it dies: then there is more to write, and once more.
    """
    for _ in range(KILLS_MAX):
        archiver.begin("--offsets-max", "9")
        wait_until(lambda: archiver.count and archiver.unnamed(), "a batch", START_S)
        archiver.kill()
        if len(archiver.cases()) < history.cas:
            return
        history.commit(12)


@pytest.mark.matrix
def test_whatever_is_killed_when_every_event_is_archived_once(
    broker: Broker, tmp_path: Path
) -> None:
    """What is killed before a batch is written leaves less behind than what is killed within it."""
    with job(broker, tmp_path) as (archiver, history):
        for point in (BEFORE, WITHIN, AFTER):
            history.commit(12)
            history.abort()
            # The second batch of this life, so that there is one before and one after it.
            if point == WITHIN:
                kill_within(archiver, history)
            else:
                archiver.begin("--crash-at", f"{point}:2", "--offsets-max", "17")
                assert archiver.wait(START_S) == KILLED, archiver.said[-2000:]
            seen = archiver.cases()
            assert seen == list(range(1, len(seen) + 1)), "a beginning of history, each once"
            assert len(seen) < history.cas
        history.commit(3)
        # A checkpoint from elsewhere does no harm: none is read.
        for name in ("metadata", "offsets/0", "commits/0"):
            file = archiver.folder / "archiver" / "checkpoint" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("what")
        archiver.begin("--until-read")
        assert archiver.wait(START_S) == 0, archiver.said[-2000:]
        assert archiver.cases() == list(range(1, history.cas + 1))
        assert archiver.topics.dead_letters() == []


@pytest.mark.parametrize(
    "is_killed", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["runs", "killed"]
)
def test_what_is_no_event_is_a_dead_letter_and_nobody_else_writes(
    broker: Broker, tmp_path: Path, is_killed: bool
) -> None:
    """Also where it was killed, and where something was aborted."""
    with job(broker, tmp_path) as (archiver, history):
        history.commit(2)
        history.abort()
        archiver.topics.put(HISTORY, b"no event")
        vector = np.array([7, 2**64 - 1], "<u8").tobytes()
        archiver.topics.put(STABILITY_HISTORY, StabilityTimestamp("b", 3, vector, vector, NOW_MS))
        archiver.topics.flush()
        history.commit(2)
        # Somebody was killed while Delta Lake made the table: it would take this for damage.
        (archiver.folder / ARCHIVE / "history/_delta_log/_staged_commits").mkdir(parents=True)
        if is_killed:
            archiver.begin("--offsets-max", "3")
            wait_until(lambda: archiver.count, "a batch, and perhaps half of another one", START_S)
            archiver.kill()
            seen = archiver.cases()
            assert seen == list(range(1, len(seen) + 1)), "a beginning of history, each once"
        archiver.begin("--compact-every", "2")
        wait_until(lambda: archiver.count == 8, "all is read", START_S)
        # Who is killed behind it, and before the batch, puts it there again, under the same key.
        [(of, value, offset)] = {
            (one.topic, one.value, one.offset) for one in archiver.topics.dead_letters()
        }
        topic = topic_name(archiver.topics.name, HISTORY)
        assert (of, value) == (topic, b"no event")
        # The marker of a transaction may come after what was written behind its answer.
        written = read_partition(broker.bootstrap_servers, topic)
        assert [one.offset() for one in written if value_of(one) == b"no event"] == [offset]
        second = Job(archiver.topics, tmp_path)
        second.log = tmp_path / "second.log"
        second.begin()
        assert second.wait(START_S) == EX_CONFIG
        assert "another process" in second.said
        assert "[archive_in_use]" in second.said
        history.repeat()
        history.commit(1)
        wait_until(lambda: archiver.count == 10, "it goes on", START_S)
        wait_until(archiver.is_compact, "small files are one", START_S)
        found = archiver.sql("SELECT cas, kind, value->>'name' AS name FROM history ORDER BY cas")
        assert [one["cas"] for one in found] == list(range(1, 11))
        assert {one["kind"] for one in found} == {"bucket"}
        assert [one["cas"] for one in found if one["name"] == "b2"] == [3]
        assert archiver.sql("SELECT bucket, number, seqnos[2] AS s FROM stability") == [
            {"bucket": "b", "number": 3, "s": str(2**64 - 1)}
        ]
        jvm = jvm_of(archiver)
        archiver.stop()
        assert not jvm.is_running()


@pytest.mark.matrix
def test_what_was_a_dead_letter_stays_one_and_another_history_is_refused(
    broker: Broker, tmp_path: Path
) -> None:
    with job(broker, tmp_path) as (archiver, history):
        history.commit(2)
        archiver.topics.put(HISTORY, b"the last")
        archiver.topics.flush()
        for _ in range(2):
            archiver.begin("--until-read")
            assert archiver.wait(START_S) == 0, archiver.said[-2000:]
        assert [one.value for one in archiver.topics.dead_letters()] == [b"the last"]
        other = Job(Topics(broker.bootstrap_servers), tmp_path)
        other.begin()
        assert other.wait(START_S) == EX_CONFIG
        assert "another history" in other.said

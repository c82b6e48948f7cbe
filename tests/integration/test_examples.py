"""The examples, as a reader of the documentation would run them."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.client import Client
from coordinator.kafka.topics import HISTORY
from tests.integration.cluster import Cluster, an_index, wait_until

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"
SEED = 14


def rows_of(file: Path) -> dict[str, tuple[int, str]]:
    with closing(sqlite3.connect(file, timeout=20)) as copy:
        found = copy.execute("SELECT key, cas, value FROM entities").fetchall()
    return {key: (cas, value) for key, cas, value in found}


def position_of(file: Path) -> int:
    with closing(sqlite3.connect(file, timeout=20)) as copy:
        try:
            row = copy.execute("SELECT cas FROM position").fetchone()
        except sqlite3.OperationalError:  # It has not made its tables yet.
            return 0
    return int(row[0]) if row else 0


def test_a_copy_in_sqlite_is_the_state_of_its_cas_whatever_dies(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(indexers=2).start()
    file = tmp_path / "topology.db"
    chance = random.Random(SEED)
    environment = {**os.environ, "INDEXCTL_URL": ",".join(cluster.urls)}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLES / "topology_copy.py"), str(file)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)

    exporter = start()
    try:
        with cluster.client() as client:
            made: list[str] = []
            for number in range(30):
                client.put_config(f"k{number % 5}", {"n": number})
                if number % 6 == 0:
                    index = client.create_index(an_index(f"i{number}", "travel"))["index"]
                    made.append(index["id"])
                if number % 10 == 9:
                    client.drop_index(made.pop())
                if chance.random() < 0.2:
                    exporter.kill()
                    exporter.wait()
                    exporter = start()
                if number == 15:
                    cluster.nodes[cluster.master()].kill()
        cluster.start()
        state = cluster.settled()
        wait_until(lambda: position_of(file) >= state["cas"], "the copy has the newest CAS")
    finally:
        exporter.kill()
        exporter.wait()
    held = rows_of(file)
    settings = {
        key[7:]: {"value": json.loads(value), "cas": cas}
        for key, (cas, value) in held.items()
        if key.startswith("config/")
    }
    assert settings == state["config"]
    indexes = {key[6:]: cas for key, (cas, _) in held.items() if key.startswith("index/")}
    assert indexes == {key: index["cas"] for key, index in state["indexes"].items()}
    with closing(sqlite3.connect(file)) as copy:
        slices = copy.execute("SELECT name, indexer FROM slices ORDER BY name").fetchall()
    placed = [
        (index["name"], piece["master"])
        for index in state["indexes"].values()
        for piece in index["topology"]["slices"]
    ]
    assert sorted(slices) == sorted(placed)


def test_a_statement_is_published_and_answered(cluster: Cluster) -> None:
    command = [sys.executable, str(EXAMPLES / "publish_ddl.py"), cluster.servers, cluster.name]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    published, outcome, index = first.stdout.splitlines()
    assert published.startswith("published ")
    assert outcome.startswith("ok, cas ")
    assert json.loads(index)["name"] == "by_zone"
    assert second.returncode == 1
    assert "[index_exists]" in second.stderr


# -- a lock ----------------------------------------------------------------------------------------


class Contender:
    """One who wants the lock, as a process of its own; `said` is what it has printed."""

    def __init__(self, cluster: Cluster, folder: Path, who: str) -> None:
        self.who = who
        self.file = folder / f"{who}.out"
        # Whoever started the tests may have them ignore Ctrl-C, and so this process.
        program = (
            "import runpy, signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"runpy.run_path({str(EXAMPLES / 'lock.py')!r}, run_name='__main__')"
        )
        command = [sys.executable, "-c", program, "nightly", who]
        environment = {**os.environ, "INDEXCTL_URL": ",".join(cluster.urls)}
        with self.file.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, env=environment)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def contenders(cluster: Cluster, folder: Path, *names: str) -> Iterator[list[Contender]]:
    made = [Contender(cluster, folder, name) for name in names]
    try:
        yield made
    finally:
        for one in made:
            one.end()


def leader_of(cluster: Cluster, *, other_than: str = "") -> str:
    """Return who has worked last."""

    def worker() -> str:
        last = [who for who, _, _ in work_of(cluster)[-1:]]
        return last[0] if last != [other_than] and last else ""

    return wait_until(worker, f"somebody leads, and not {other_than!r}")


def work_of(cluster: Cluster) -> list[tuple[str, int, str]]:
    """Return who has done what in which transaction, by the history."""
    with cluster.client() as client:
        changes = [*client.history_all(key="config/jobs/nightly", consistency="linearizable")]
    return [(one["principal"], one["value"], one["txn"]) for one in changes]


def test_one_leads_at_a_time_and_is_followed_when_it_dies_or_sleeps(
    cluster: Cluster, tmp_path: Path
) -> None:
    with contenders(cluster, tmp_path, "ada", "ben", "cy") as all_:
        by_name = {one.who: one for one in all_}
        killed = leader_of(cluster)
        by_name[killed].end()
        paused = leader_of(cluster, other_than=killed)
        by_name[paused].process.send_signal(signal.SIGSTOP)
        third = leader_of(cluster, other_than=paused)
        assert third not in (killed, paused)
        # Who was paused still believes that it leads, until its next transaction fails.
        by_name[paused].process.send_signal(signal.SIGCONT)
        told = f"{paused} does not lead any more"
        wait_until(lambda: told in by_name[paused].said, "it is told")
        before = len(work_of(cluster))
        victim = cluster.master()
        cluster.nodes[victim].kill()
        wait_until(lambda: len(work_of(cluster)) > before + 2, "the work goes on")
        cluster.nodes[victim].start()
        cluster.settled_members()
    work = work_of(cluster)
    # Nothing was done twice, and nothing was overwritten by one who did not lead.
    assert [count for _, count, _ in work] == [*range(1, len(work) + 1)]
    leaders = [
        who for number, (who, _, _) in enumerate(work) if number == 0 or work[number - 1][0] != who
    ]
    assert leaders[:3] == [killed, paused, third]
    with cluster.client() as client:
        renewals = [*client.history_all(key="config/locks/nightly", consistency="linearizable")]
    by_txn = {one["txn"]: one for one in renewals}
    for who, _, txn in work:
        assert by_txn[txn]["value"]["holder"] == who
    tokens = [one["cas"] for one in renewals]
    assert tokens == sorted(set(tokens))


def test_a_leader_that_ends_gives_the_lock_up(cluster: Cluster, tmp_path: Path) -> None:
    with contenders(cluster, tmp_path, "dee") as [dee]:
        wait_until(lambda: "dee leads" in dee.said, "it leads")
        dee.process.send_signal(signal.SIGINT)
        assert dee.process.wait(30) == 130
    assert "locks/nightly" not in cluster.settled()["config"]


# -- an auditor ------------------------------------------------------------------------------------


def audit(cluster: Cluster, *arguments: str) -> str:
    environment = {**os.environ, "INDEXCTL_URL": ",".join(cluster.urls), "COLUMNS": "200"}
    command = [sys.executable, str(EXAMPLES / "auditor.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_auditor_sees_who_changed_what_and_what_is_different(cluster: Cluster) -> None:
    with Client(cluster.urls, principal="ada") as ada, Client(cluster.urls) as nobody:
        begin = ada.put_config("audited", 1)["cas"]
        ada.put_config("audited", 2)
        nobody.put_config("audited", 1)
        ada.put_config("more", {"a": "é"})
        end = ada.create_index(an_index("audit", "travel"))["cas"]
        [made] = [
            one
            for one in ada.history_all(after=begin, until=end, kind="setting")
            if one["key"] == "config/more"
        ]
        nobody.put_config("more", "after the end")
    lines = [
        json.loads(line) for line in audit(cluster, str(begin), str(end), "--json").splitlines()
    ]
    seen = [(one["principal"], one["key"], one["before"], one["value"]) for one in lines[:3]]
    assert seen == [
        ("ada", "config/audited", 1, 2),
        ("", "config/audited", 2, 1),
        ("ada", "config/more", None, {"a": "é"}),
    ]
    assert [one["event"] for one in lines[3:]] == ["IndexProposed", "IndexReady"]
    changes, _, differences = audit(cluster, str(begin), str(end)).partition("Different in the end")
    assert [line.split()[3] for line in changes.splitlines()[2:5]] == ["ada", "?", "ada"]
    assert "travel.audit ready" in changes
    assert "config/more" in differences
    assert "config/audited" not in differences
    at = datetime.fromtimestamp(made["at_ms"] / 1000, UTC).isoformat()
    [same] = [json.loads(line) for line in audit(cluster, at, at, "--json").splitlines()]
    assert same == made


# -- a watch on Kafka ------------------------------------------------------------------------------


def changes_in(file: Path) -> list[dict[str, Any]]:
    whole, _, _ = file.read_bytes().rpartition(b"\n") if file.exists() else (b"", b"", b"")
    return [json.loads(line) for line in whole.splitlines()]


def test_a_file_has_every_change_once_whatever_dies(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "changes.jsonl"
    command = [sys.executable, str(EXAMPLES / "kafka_watch.py"), cluster.servers, cluster.name]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(file)], stdout=subprocess.DEVNULL)

    watcher = start()
    try:
        with cluster.client() as client:
            for number in range(4):
                written = client.put_config("watched", number)["cas"]
                wait_until(lambda: file.exists() and changes_in(file), "it writes")
                watcher.kill()
                watcher.wait()
                client.transact(
                    then=[
                        {"put": {"key": f"config/{key}", "value": number}} for key in ("one", "two")
                    ]
                )
                if number == 2:
                    # As a crash leaves it: in the middle of a line, or of a transaction.
                    os.truncate(file, file.stat().st_size - 10)
                watcher = start()
            written = client.put_config("watched", "last")["cas"]
        wait_until(lambda: changes_in(file)[-1]["cas"] >= written, "all is there")
    finally:
        watcher.kill()
        watcher.wait()
    history = [event.cas for event in cluster.records(HISTORY)]
    assert [one["cas"] for one in changes_in(file)] == history

"""The examples, as a reader of the documentation would run them."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

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

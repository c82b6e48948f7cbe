"""The image and the compose project, for real: the README's tour, and deaths of containers.

`make docker-test` runs it. It needs a Docker engine, 10 GB of its disk, and 8 GB of memory; with a
storage driver that copies layers (`vfs`), 4 GB of disk for each container.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.docker.engine import CallError, Project, missing, running

pytestmark = [pytest.mark.docker, pytest.mark.timeout(7_200)]

NAME = f"index-coordinator-test-{os.getpid()}"
AIRPORTS, FRENCH = 28_298, 462
READY_S, DEADLINE_S, POLL_S = 600.0, 240.0, 1.0
ENDS = "example"


def eventually(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Return the first true value of a condition; a command that fails is not true yet."""
    end_s = time.monotonic() + deadline_s
    last: object = None
    while time.monotonic() < end_s:
        try:
            last = condition()
        except CallError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(POLL_S)
    raise AssertionError(f"not within {deadline_s:g} s: {what} (last: {last!s:.2000})")


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """The whole cluster, healthy, with the airports loaded. Nothing of it is left afterwards."""
    if missing():
        pytest.skip(missing())
    with running(NAME, NAME) as found:
        try:
            eventually(lambda: all_healthy(found), "all containers are healthy", READY_S)
            yield found
        finally:
            print(found.logs())


def all_healthy(project: Project) -> bool:
    lacking = [one for one in project.services if not is_well(project, one)]
    if lacking:
        raise CallError(f"not healthy: {', '.join(lacking)}")
    return True


def is_well(project: Project, service: str) -> bool:
    if service != ENDS:
        return project.healthy(service)
    state = project.state(service)
    return state["Status"] == "exited" and state["ExitCode"] == 0


# -- what the tour does --------------------------------------------------------------------------


def status(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = project.indexctl("status")
    return found


def agreeing(project: Project) -> bool:
    """Tell whether all three nodes answer, with the same digest."""
    found = status(project)
    alive = [node for node in found["nodes"] if node["digest"] is not None]
    return found["digests"] == "agree" and len(alive) == 3


def stability(project: Project) -> dict[str, Any]:
    """Return what the cluster says of the bucket's newest stability timestamp."""
    buckets = project.indexctl("timestamps")["buckets"]
    found: dict[str, Any] = next(one for one in buckets if one["bucket"] == "travel")
    return found


def snapshots(project: Project) -> int:
    """Return how many indexers have a snapshot at the newest timestamp."""
    return sum(one["has_snapshot"] for one in stability(project)["lag"]["indexers"])


def write(project: Project, name: str) -> None:
    """Load a document of Iceland's, whose name is the first of all of them."""
    place = {"type": "airport", "name": name, "country": "IS", "city": "Aaa", "elevation": 1}
    line = json.dumps({"id": f"airport::{name}", "doc": place})
    project.feed(line, "indexctl", "load", "travel", "-")


def names(project: Project, consistency: str) -> list[str]:
    """Return the names of Iceland's first airports, by a scan."""
    scanned = project.indexctl(
        *("scan", "travel.by_city", "--prefix", '"IS"', "--limit", "20"),
        *("--consistency", consistency),
    )
    return [row["key"][2] for row in scanned["rows"]]


def archived(project: Project) -> int:
    """Return the highest CAS of the archive."""
    answer = project.indexctl("sql", "SELECT coalesce(max(cas), 0) AS cas FROM history")
    return int(answer["rows"][0]["cas"])


def serves(project: Project, mark: str) -> None:
    """Change a document and a setting: scans, timestamps and the archive follow."""
    write(project, mark)
    eventually(lambda: mark in names(project, "any"), f"a scan has {mark}")
    eventually(lambda: mark in names(project, "consistent"), f"a timestamp covers {mark}")
    written = project.indexctl("config", "set", f"mark-{mark}", "1")
    eventually(lambda: archived(project) >= int(written["cas"]), f"the archive has {mark}")


# -- the tests, in this order --------------------------------------------------------------------


def test_the_tour_of_the_readme_works(project: Project) -> None:
    applied = project.run("indexctl", "apply", "examples/travel.sql")
    assert "8 statements: 8 created" in applied
    project.run("indexctl", "build", "--bucket", "travel", "--wait", timeout_s=READY_S)
    counted = project.indexctl("scan", "travel.by_country", "--prefix", '"FR"', "--count")
    assert counted["count"] == FRENCH
    assert project.indexctl("scan", "travel.#primary", "--count")["count"] == AIRPORTS

    created = project.run(
        *("indexctl", "create"),
        'CREATE INDEX by_tz ON travel(tz) WITH {"slices": 2, "replicas": 1}',
    )
    assert created.startswith("created by_tz on travel")
    with pytest.raises(CallError, match="this parenthesis is not closed"):
        project.run("indexctl", "create", "CREATE INDEX by_tz ON travel(tz")
    published = project.run("python", "examples/publish_ddl.py", "kafka-1:9092")
    assert "\nok, cas " in published

    serves(project, "Home")
    eventually(lambda: snapshots(project) == 3, "all indexers have the newest timestamp's snapshot")
    eventually(lambda: agreeing(project), "all nodes answer, and agree")


@pytest.mark.parametrize("kind", ["node", "broker", "worker", "indexer"])
def test_a_container_that_is_killed_costs_nothing(project: Project, kind: str) -> None:
    """Its work goes on while it is dead, and it is healthy again after a start."""
    victim = {
        "node": lambda: f"node-{status(project)['master']}",
        "broker": lambda: "kafka-2",
        "worker": lambda: "spark-worker-1",
        "indexer": lambda: "indexer-3",
    }[kind]()
    epoch = status(project)["epoch"]
    project.kill(victim)
    assert not project.healthy(victim)
    if kind != "indexer":  # What it hosts alone is away as long as it is.
        serves(project, f"without-{kind}")
    assert kind != "node" or status(project)["epoch"] > epoch
    project.start(victim)
    eventually(lambda: all_healthy(project), f"{victim} is healthy again")
    serves(project, f"again-{kind}")
    eventually(lambda: agreeing(project), "all nodes answer, and agree")


@pytest.mark.parametrize("victim", ["node-2", "kafka-3", "spark-worker-2", "timestamps", "archive"])
def test_a_container_whose_processes_die_is_started_again(project: Project, victim: str) -> None:
    before = project.state(victim)["RestartCount"]
    project.crash(victim)
    eventually(lambda: project.state(victim)["RestartCount"] > before, f"{victim} is started again")
    eventually(lambda: all_healthy(project), f"{victim} is healthy again")
    serves(project, f"after-{victim}")

"""A part that stops without any error is noticed, said, and mended by starting again."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from coordinator.client.errors import CoordinatorError
from coordinator.embedded.broker import Broker
from tests.integration.cluster import Cluster, NodeChild, in_parallel, wait_until

pytestmark = pytest.mark.integration

STALL_MS = 3_000
STALLING = "tests.integration.stalling_node"


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes of which a part can be stopped."""
    with stallable(tmp_path_factory.mktemp("cluster"), broker, STALL_MS) as running:
        yield running


@contextmanager
def stallable(folder: Path, broker: Broker, stall_ms: int) -> Iterator[Cluster]:
    """Run a cluster of such nodes, each of which ends when a part was stopped for so long."""
    options = ("--stall-ms", str(stall_ms))
    with Cluster(folder, broker.bootstrap_servers, indexers=1, options=options) as running:
        for child in running.nodes.values():
            module, *rest = child.argv()[2:]
            assert module == "coordinator.process"
            argv = [sys.executable, "-m", STALLING, str(part_file(child)), *rest]
            child.supervised = False
            child.argv = functools.partial(list, argv)  # type: ignore[method-assign]
        yield running.start()


def part_file(child: NodeChild) -> Path:
    """Return the file that says which part of a node is to stop."""
    return child.log.with_suffix(".part")


def stall(child: NodeChild, part: str) -> None:
    """Stop a part of a node."""
    part_file(child).write_text(part)
    os.kill(child.pid, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("role", "part", "code", "said"),
    [
        *(
            pytest.param("replica", *stalled, marks=pytest.mark.matrix)
            for stalled in (
                ("reader", "reader_stalled", "nothing was read after offset"),
                ("heartbeats", "heartbeat_stalled", "heartbeats have not come back"),
                ("producer", "heartbeat_stalled", "heartbeats have not come back"),
            )
        ),
        ("master", "reader", "reader_stalled", "nothing was read after offset"),
    ],
)
def test_a_part_that_stops_silently_is_noticed(
    cluster: Cluster, role: str, part: str, code: str, said: str
) -> None:
    node = cluster.replicas()[0]
    child = cluster.nodes[node]
    if role == "master":
        with cluster.client() as client:
            client.put_config("accepted", node)  # Only who accepted the last may follow.
            client.step_down(node)
    began = len(child.said)
    stall(child, part)
    others = [n for n in cluster.roster if n != node]
    unready: list[str] = []

    def ended() -> bool:
        if not child.runs:
            return True
        response = cluster.ask(node, "GET", "/readyz")
        if response.status_code == 503:
            unready.append(response.json()["reason"])
        with cluster.client(*others, deadline_s=1.0) as client:
            client.put_config("load", len(unready))
        return False

    wait_until(lambda: _tried(ended), f"node {node} ends", 60)
    assert child.process is not None
    assert child.process.returncode == 1
    assert f"[{code}]" in child.said[began:]
    assert any(said in reason for reason in unready), unready
    child.start()
    cluster.settled()
    cluster.settled_members()


def _tried(ended: Callable[[], bool]) -> bool:
    """Ask again where the cluster is between two masters, or the node has just gone."""
    try:
        return ended()
    except CoordinatorError:
        return False


LINEARIZABLE = ["/v1/config/held", "/v1/config/held?consistency=linearizable", "/v1/state"]


def test_a_master_that_cannot_read_the_log_answers_no_linearizable_read(cluster: Cluster) -> None:
    """It may have been deposed since. What it has applied it still shows, to who asks for that."""
    master = cluster.master()
    child = cluster.nodes[master]
    written = cluster.put("held", 1).json()["cas"]
    for path in LINEARIZABLE:
        assert cluster.ask(master, "GET", path).status_code == 200
    stall(child, "reader")
    local = cluster.ask(master, "GET", "/v1/config/held?consistency=local")
    assert (local.status_code, local.json()["cas"]) == (200, written)

    def read(path: str) -> int:
        """Return the status, 0 where the connection ends without any."""
        try:
            return cluster.ask(master, "GET", path, timeout=60.0).status_code
        except httpx.TransportError:
            return 0

    statuses = in_parallel(*(functools.partial(read, path) for path in LINEARIZABLE))
    assert set(statuses) <= {0, 503, 504}
    assert child.wait(60) == 1
    child.start()
    cluster.settled()
    cluster.settled_members()


READS = (
    *("/v1/config", "/v1/config/held", "/v1/indexes", "/v1/state", "/v1/topology", "/v1/topics"),
    *("/v1/history?key=config/held", "/v1/diff?from=0"),
)


@pytest.mark.matrix
def test_a_follower_that_is_behind_answers_only_as_each_level_allows(
    broker: Broker, tmp_path: Path
) -> None:
    """It runs, and reads its log no more; nobody waits for it, and the others go on."""
    with stallable(tmp_path, broker, 600_000) as cluster:
        first = cluster.put("held", "old").json()["cas"]
        stale = cluster.replicas()[0]
        child = cluster.nodes[stale]
        assert cluster.ask(stale, "GET", f"/v1/state?at_least={first}").status_code == 200
        stall(child, "reader")
        others = [node for node in cluster.roster if node != stale]
        with cluster.client(*others, deadline_s=60.0) as client:
            client.put_config("fence", 0)  # It was stopped somewhere before this one.
            behind = int(cluster.ask(stale, "GET", "/v1/state").headers["X-Applied-Cas"])
            newest = client.put_config("held", "new")["cas"]
        assert first <= behind < newest
        master = cluster.nodes[cluster.master()].url
        for path in READS:
            query = "&" if "?" in path else "?"
            for level in ("", f"{query}consistency=local", f"{query}at_least={behind}"):
                answer = cluster.ask(stale, "GET", path + level)
                assert (answer.status_code, answer.headers["X-Applied-Cas"]) == (200, str(behind))
                assert '"new"' not in answer.text
            asked = f"{path}{query}consistency=linearizable"
            redirected = cluster.ask(stale, "GET", asked)
            assert (redirected.status_code, redirected.headers["Location"]) == (307, master + asked)
            fresh = cluster.http.get(redirected.headers["Location"])
            assert (fresh.status_code, fresh.headers["X-Applied-Cas"]) == (200, str(newest))
        late = [f"{path}{'&' if '?' in path else '?'}at_least={newest}" for path in READS]
        late += [f"/v1/state?cas={newest}", f"/v1/diff?from=0&to={newest}"]
        asking = [functools.partial(cluster.ask, stale, "GET", path, timeout=60.0) for path in late]
        for answer in in_parallel(*asking):
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        child.kill()
        child.start()
        cluster.settled()
        found = cluster.ask(stale, "GET", f"/v1/config/held?at_least={newest}").json()
        assert (found["value"], found["cas"]) == ("new", newest)


def test_a_store_that_hangs_ends_the_process(cluster: Cluster) -> None:
    node = cluster.replicas()[0]
    child = cluster.nodes[node]
    began = len(child.said)
    stall(child, "store")
    others = [n for n in cluster.roster if n != node]
    with cluster.client(*others) as client:
        client.put_config("load", "store")
    assert child.wait(60) == 1
    said = child.said[began:]
    assert "[loop_stalled]" in said
    stack = said[said.index("[loop_stalled]") :]
    assert re.search(r"stalling_node\.py.* in <lambda>", stack), "the stack says where it hangs"
    child.start()
    cluster.settled()

"""A power cut at every node at once: what was acknowledged was on the disks, and is there after it.

The disks are those of the last sync that RocksDB has counted; what was only written is gone.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.integration.cluster import Cluster, NodeChild, shown

Make = Callable[..., Cluster]
WRITES = 25


def watched(cluster: Cluster, folder: Path) -> None:
    """Have every node's process checked."""
    for number, node in cluster.nodes.items():
        notes = folder / f"node-{number}"
        notes.mkdir()
        arguments = NodeChild.argv(node)[3:]
        command = [sys.executable, "-m", "tests.integration.observed_node", str(notes), *arguments]
        node.argv = lambda command=command: command  # type: ignore[method-assign, misc]


def lines(folder: Path, name: str) -> list[str]:
    return [line for path in folder.glob(f"*/{name}") for line in path.read_text().splitlines()]


def test_what_was_accepted_is_on_the_disk_and_outlives_a_power_cut(
    make_cluster: Make, tmp_path: Path
) -> None:
    cluster = make_cluster(indexers=0)
    watched(cluster, tmp_path)
    cluster.start()
    with cluster.client() as client:
        for number in range(WRITES):
            client.put_config(f"k/{number % 7}", number)
    before = cluster.settled()
    assert lines(tmp_path, "violations") == []
    assert len(lines(tmp_path, "checked")) >= 3 * WRITES, "each node, for each write"
    for node in cluster.nodes.values():
        node.kill()
        durable = node.folder.with_name(f"{node.folder.name}-durable")
        shutil.rmtree(node.folder)
        durable.rename(node.folder)
    for node in cluster.nodes.values():
        restored = node.restored()
        assert restored is not None
        assert restored.prepared is not None or restored.state.cas == before["cas"]
        if restored.prepared is not None:
            assert restored.state.cas == restored.prepared.proposal.prev_cas
        node.start()
    assert shown(cluster.settled()) == shown(before)
    with cluster.client() as client:
        client.put_config("after", 1)
    assert lines(tmp_path, "violations") == []

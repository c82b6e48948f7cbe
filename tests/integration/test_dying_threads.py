"""No thread dies unheard: the process says which, and ends with a failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.embedded.broker import Broker
from tests.integration.indexer_process import DEADLINE_S, Cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Iterator[Cluster]:
    made = Cluster(broker.bootstrap_servers)
    yield made
    made.close()


def ends(thread: str, *arguments: str) -> str:
    """Run a process of which a thread dies; return what it said before it ended."""
    argv = [sys.executable, "-m", "tests.integration.dying_thread", thread, *arguments]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert found.returncode == 1, found.stderr
    return found.stderr


@pytest.mark.parametrize("thread", ["mutations", "applier", "progress-reporter", "scan-server"])
def test_an_indexer_ends_when_a_thread_of_it_dies(
    topics: Cluster, tmp_path: Path, thread: str
) -> None:
    arguments = ["--id", "1", "--cluster", topics.name, "--data-dir", str(tmp_path / "indexer")]
    said = ends(thread, *arguments, "--bootstrap-servers", topics.bootstrap_servers)
    assert said.splitlines()[-1] == f"indexer 1: the thread {thread} has ended: Odd: planted"


@pytest.mark.parametrize("thread", ["following", "kv-watch", "kv-orders"])
def test_a_projector_ends_when_a_thread_of_it_dies(topics: Cluster, thread: str) -> None:
    arguments = ["--projector", "0", "--cluster", topics.name, "--kv", "http://127.0.0.1:9"]
    said = ends(thread, *arguments, "--bootstrap-servers", topics.bootstrap_servers)
    assert said.splitlines()[-1] == f"projector 0: the thread {thread} has ended: Odd: planted"


@pytest.mark.matrix
def test_the_application_on_spark_ends_when_it_ticks_no_more(
    topics: Cluster, tmp_path: Path
) -> None:
    arguments = ["timestamps", "--cluster", topics.name, "--data-dir", str(tmp_path / "timestamps")]
    said = ends("ticks", *arguments, "--bootstrap-servers", topics.bootstrap_servers)
    assert said.splitlines()[-1] == "timestamps: the thread ticks has ended: Odd: planted"


def test_the_store_ends_when_documents_expire_no_more(tmp_path: Path) -> None:
    said = ends("expiry", "--port", "0", "--data-dir", str(tmp_path / "kv"))
    assert "documents expire no more: the store ends" in said
    assert "RuntimeError: planted" in said

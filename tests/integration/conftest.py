"""Fixtures of the integration tests: one real broker for the whole run, clusters on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from coordinator.embedded.broker import Broker
from tests.conftest import MATRIX
from tests.integration.cluster import Cluster, delete_topics
from tests.integration.indexctl_run import end_runs

if TYPE_CHECKING:
    from tests.integration.scans import Fleet

BRIEF_JVM = "-XX:TieredStopAtLevel=1"
"""A JVM of Spark that ends after some batches: with both compilers a start takes a third more of
processor time, and what the second one makes comes too late."""

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""Spark's queries are not written as Java and compiled, which takes a quarter of a small batch.
`make chaos` has Spark as the product has it."""

for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, BRIEF_JVM if MATRIX else f"{BRIEF_JVM} {INTERPRETED}")

LONG = (
    *("test_faults", "test_stable_scans", "test_streaming", "test_cluster_recovery"),
    *("test_indexer", "test_embedded_brokers", "test_archive", "test_stalls"),
    *("test_data_plane", "test_projector", "test_sources", "test_streaming_batches"),
    *("test_cluster_membership", "test_cluster_faults", "test_rollback", "test_rebalance"),
    *("test_history_tail", "test_watch", "test_embedded", "test_examples", "test_backup"),
    *("test_lost_mutations", "test_history_retention", "test_topics_of_changes"),
)
"""The modules that take the longest, in order: of one that begins last, all would wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest modules begin first; the tests of each stay together, in their order."""
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    yield
    end_runs()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three indexers and a node that scans them."""
    from tests.integration.scans import Fleet

    made = Fleet(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    """A client of that node."""
    with httpx.Client(base_url=fleet.url, trust_env=False, timeout=90) as client:
        yield client


SHARED: list[Broker] = []
"""The broker of this run, once there is one."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One embedded Kafka broker per test run; use `.bootstrap_servers`, and a topic of your own."""
    with Broker(tmp_path_factory.mktemp("kafka")) as running:
        SHARED.append(running)
        yield running
        SHARED.clear()


@pytest.fixture(scope="module", autouse=True)
def _no_topic_is_left() -> Iterator[None]:
    yield
    for running in SHARED:
        delete_topics(running.bootstrap_servers)


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes and three indexers that the tests of a module share and leave intact."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, broker.bootstrap_servers) as running:
        yield running.start()


@pytest.fixture(scope="module")
def plant(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node, three indexers and two projectors with their store, that the tests of a module
    share: of each module that has no other plant of its own."""
    folder = tmp_path_factory.mktemp("plant")
    with Cluster(folder, broker.bootstrap_servers, nodes=1, indexers=3, projectors=2) as running:
        yield running.start()


@pytest.fixture
def make_cluster(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Cluster]]:
    """Make clusters that one test has for itself; they are ended with it. Not started yet."""
    with ExitStack() as stack:

        def make(servers: str = "", **options: Any) -> Cluster:
            folder = tmp_path_factory.mktemp("cluster")
            made = Cluster(folder, servers or broker.bootstrap_servers, **options)
            return stack.enter_context(made)

        yield make

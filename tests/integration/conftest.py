"""Fixtures of the integration tests: one real broker for the whole run, clusters on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from coordinator.embedded.broker import Broker
from tests.conftest import MATRIX, TOGETHER
from tests.integration.cluster import Cluster, Keep, delete_topics
from tests.integration.indexctl_run import end_runs
from tests.integration.kafka_proxy import KafkaProxy, proxied_broker

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
    *("test_faults", *TOGETHER[0], "test_streaming", "test_cluster_recovery", *TOGETHER[1]),
    *("test_indexer", "test_embedded_brokers", "test_archive", "test_stalls"),
    *("test_projector", "test_sources", "test_streaming_batches", *TOGETHER[2]),
    *("test_cluster_membership", "test_cluster_faults"),
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
def _proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, KafkaProxy]]:
    with proxied_broker(tmp_path_factory.mktemp("kafka")) as both:
        SHARED.append(both[0])
        yield both
        SHARED.clear()


@pytest.fixture(scope="session")
def broker(_proxied: tuple[Broker, KafkaProxy]) -> Broker:
    """One embedded Kafka broker per test run; use `.bootstrap_servers`, and a topic of your own."""
    return _proxied[0]


@pytest.fixture
def proxy(_proxied: tuple[Broker, KafkaProxy]) -> Iterator[KafkaProxy]:
    """Another way to that broker, which a test may obstruct; afterwards everything passes."""
    yield _proxied[1]
    _proxied[1].reset()


@pytest.fixture
def mortal_broker(broker: Broker) -> Iterator[Broker]:
    """That broker, for a test that stops or kills it; afterwards it runs again."""
    yield broker
    if not broker.alive:
        broker.start()


class Kept:
    """The plant that the modules share which are tested together, until others have their turn."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()
        self._stack = ExitStack()
        self._plant: Cluster | None = None

    def have_turn(self, name: str) -> None:
        """It is a module's turn. If the plant is not its own, that ends."""
        if name not in self.names:
            self._stack.close()
            self._plant = None
            self.names = next((names for names in TOGETHER if name in names), ())

    def plant(self, make: Callable[[], Cluster]) -> Cluster:
        if self._plant is None:
            self._plant = self._stack.enter_context(make()).start()
        return self._plant


@pytest.fixture(scope="session")
def _kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.have_turn("")


@pytest.fixture(scope="module", autouse=True)
def _no_topic_is_left(request: pytest.FixtureRequest, _kept: Kept) -> Iterator[None]:
    """Nothing is left of what no other module uses."""
    _kept.have_turn(request.path.stem)
    yield
    for running in () if _kept.names else SHARED:
        delete_topics(running.bootstrap_servers)


@pytest.fixture(scope="module")
def keep(broker: Broker, tmp_path_factory: pytest.TempPathFactory, _kept: Kept) -> Iterator[Keep]:
    """Starts the plant of a module, or gives it the one that it shares."""
    with ExitStack() as stack:

        def start(prepare: Callable[[Cluster], None] = lambda _: None, **options: Any) -> Cluster:
            def make() -> Cluster:
                folder = tmp_path_factory.mktemp("cluster")
                made = Cluster(folder, broker.bootstrap_servers, **options)
                prepare(made)
                return made

            if _kept.names:
                return _kept.plant(make)
            return stack.enter_context(make()).start()

        yield start


@pytest.fixture(scope="module")
def cluster(keep: Keep) -> Cluster:
    """Three nodes and three indexers that the tests of a module share and leave intact."""
    return keep()


@pytest.fixture(scope="module")
def plant(keep: Keep) -> Cluster:
    """One node, three indexers and two projectors with their store, that the tests of a module
    share: of each module that has no other plant of its own."""
    return keep(nodes=1, indexers=3, projectors=2)


@pytest.fixture(scope="module")
def stable_plant(keep: Keep) -> Cluster:
    """Three nodes and indexers, two projectors and Spark. Each module writes its own bucket."""

    def prepare(made: Cluster) -> None:
        for indexer in made.indexers.values():
            indexer.more = ("--checkpoint-s", "1")
        for projector in made.projectors.values():
            projector.more = ("--repeat-ms", "2000")

    return keep(prepare, projectors=2, timestamps=True)


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

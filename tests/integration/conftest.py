"""Fixtures of the integration tests: one real broker for the whole run, clusters on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from coordinator.embedded.broker import Broker
from tests.integration.cluster import Cluster
from tests.integration.indexctl_run import end_runs


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    yield
    end_runs()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One embedded Kafka broker per test run; use `.bootstrap_servers`, and a topic of your own."""
    with Broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes and three indexers that the tests of a module share and leave intact."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, broker.bootstrap_servers) as running:
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

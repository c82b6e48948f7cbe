"""Fixtures of the integration tests: one real broker for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.embedded.broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One embedded Kafka broker per test run; use `.bootstrap_servers`, and a topic of your own."""
    with Broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running

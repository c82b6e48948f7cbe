"""Fixtures of the fault tests: brokers that may be hurt, and one cluster on them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

from coordinator.embedded.brokers import Brokers
from tests.faults.cluster import FaultCluster, require_means


class Arena(NamedTuple):
    """A cluster to hurt, and numbers for the rounds on it."""

    cluster: FaultCluster
    numbers: Iterator[int]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Three nodes and three indexers on a broker of their own, shared by the tests of a module."""
    require_means()
    with (
        Brokers(tmp_path_factory.mktemp("kafka")) as brokers,
        FaultCluster(tmp_path_factory.mktemp("cluster"), brokers) as cluster,
    ):
        yield Arena(cluster.start(), count())

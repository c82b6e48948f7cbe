"""States that commands are decided against."""

from __future__ import annotations

import pytest

from coordinator.core.model.commands import MarkReady
from tests.support.catalog_bench import CREATE, Bench


@pytest.fixture
def bench() -> Bench:
    """Nothing was created yet."""
    return Bench()


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """One index is ready."""
    bench.apply(CREATE)
    bench.apply(MarkReady(bench.index().id))
    return bench

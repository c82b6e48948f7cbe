"""What all tests share: how thoroughly laws are tried; none fails because a machine is slow.

`make quick` tries fewer examples of a law than `make chaos`. It leaves out what is marked
`thorough`, tests that take a third of a second or more: `make test` has them, beside those that
need a broker, with twice the examples, and so has what is marked `fuzz`. What is marked
`matrix` takes up to a minute, and is a further combination of what others test: `make chaos` runs
it, and sets MATRIX for that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

TOGETHER = (
    ("test_stable_scans", "test_rebalance", "test_rollback"),
    ("test_data_plane", "test_topic_source"),
    (
        *("test_publisher", "test_cluster_ddl", "test_cluster_api", "test_ddl_topic"),
        *("test_transactions", "test_undo", "test_poisoned_nodes"),
    ),
)
"""Modules that share a plant: one process runs them, one behind the other."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

EXAMPLES = {"quick": 20, "thorough": 40, "exhaustive": 100}
for _name, _number in EXAMPLES.items():
    settings.register_profile(_name, UNTIMED, max_examples=_number)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "thorough")
settings.load_profile(PROFILE)
MATRIX = os.environ.get("MATRIX")


def examples(number: int) -> settings:
    """Try a law with this many examples in `make chaos`, and with the same share as others else."""
    return settings(max_examples=max(1, number * EXAMPLES[PROFILE] // EXAMPLES["exhaustive"]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: takes seconds; `make quick` leaves it out")
    config.addinivalue_line("markers", "worlds: many seeds of the simulator, beside other tests")
    config.addinivalue_line("markers", "matrix: a further combination; `make chaos` runs it")
    config.addinivalue_line("markers", "docker: needs an engine; `make docker-test` runs it")
    config.addinivalue_line("markers", "fuzz: a law of any input; `make chaos` tries it for long")


class Scheduling(LoadFileScheduling):
    """The tests of a module stay together, and so do modules that share a plant."""

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        return next((names[0] for names in TOGETHER if Path(path).stem in names), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow ones to `make test`, the slowest to `make chaos`, Docker to `docker-test`."""
    left = {"thorough"} if PROFILE == "quick" else set()
    left |= set() if MATRIX else {"matrix"}
    left |= set() if os.environ.get("DOCKER_TEST") else {"docker"}
    slow = [item for item in items if any(map(item.get_closest_marker, left))]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]

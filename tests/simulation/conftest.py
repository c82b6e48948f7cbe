"""The base of the worlds that nobody has run before, drawn once a run, and printed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

from tests.conftest import PROFILE
from tests.simulation.kernel.runs import SeedReport
from tests.simulation.scenes import world  # noqa: F401

FIRST, LAST = 1_000_000, 9_000_000
"""Below are the seeds that are run always, above those made for a pair of step and fault."""

BASE = int(os.environ.get("SIMULATION_BASE") or random.randrange(FIRST, LAST))
os.environ["SIMULATION_BASE"] = str(BASE)


ENOUGH_FOR_EACH = 100
"""From so many seeds on a run is held to every fault and every step."""

BATCH = 5
QUICK_SHARE, THOROUGH_SHARE = 0.05, 0.4
SHARE = QUICK_SHARE if PROFILE == "quick" else THOROUGH_SHARE
PLANE_SEEDS = max(BATCH, int(int(os.environ.get("SIMULATION_SEEDS", "200")) * SHARE))
"""A world with a data plane takes twice as long as one without: a quick run has few. So many are
run always, and as many that nobody has run."""

ENOUGH = 40
"""From so many of each on all faults must have struck."""


def portion(first: int, base: int = 0) -> range:
    """Return a batch of the seeds of worlds with a data plane, from `first` on above `base`."""
    return range(base + first, base + min(first + BATCH, PLANE_SEEDS))


def require_met(met: SeedReport, faults: Iterable[str]) -> None:
    """Require that worlds with a data plane, always the same and new ones, have met all of these
    faults, and no other."""
    if met.coverage.worlds < 2 * PLANE_SEEDS or PLANE_SEEDS < ENOUGH:
        pytest.skip("too few seeds")
    assert set(met.coverage.strikes) == set(faults)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"SIMULATION_BASE={BASE}")

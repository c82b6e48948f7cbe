"""Many seeds in one or several processes: which of them fail, and what all of them met."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.kernel.coverage import Coverage

if TYPE_CHECKING:
    from tests.simulation.kernel.world import World

CHUNK = 25


@dataclass
class SeedReport:
    """The seeds that fail, each with what is wrong and how to repeat it, and what all met."""

    bad: dict[int, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, other: SeedReport) -> None:
        """Add what other seeds found."""
        self.bad.update(other.bad)
        self.coverage.add(other.coverage)

    def require_all(self) -> None:
        """Fail if a seed does."""
        assert not self.bad, "\n".join(self.bad.values())


def hold(met: SeedReport, make: Callable[[int], World], seeds: Iterable[int]) -> None:
    """Run worlds, and note what they met; fail if one breaks an invariant, and say how to repeat
    it."""
    found = run_seeds(make, seeds)
    met.add(found)
    found.require_all()


def run_seeds(make: Callable[[int], World], seeds: Iterable[int]) -> SeedReport:
    """Run the worlds of some seeds, one after the other."""
    found = SeedReport()
    for seed in seeds:
        world = make(seed)
        what = ""
        try:
            world.run()
        except AssertionError as error:
            what = f"{type(error).__name__} {error}"
        except Exception as error:
            what = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        if what:
            found.bad[seed] = f"seed {seed}: {what}\n  {world.repeat}"
        found.coverage.add(world.coverage)
    return found


def run(make: Callable[[int], World], seeds: Iterable[int], jobs: int) -> SeedReport:
    """Run the seeds in `jobs` processes."""
    wanted = list(seeds)
    if jobs == 1:
        return run_seeds(make, wanted)
    found = SeedReport()
    chunks = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_seeds, make, chunk) for chunk in chunks]):
            found.add(future.result())
    return found


def ends_in_processes(make: type[World], seed: int) -> set[str]:
    """Run a seed in processes that order sets otherwise; return how it ends, in each of them."""
    script = (
        f"from {make.__module__} import {make.__name__} as made\n"
        f"w = made({seed})\nw.run()\nprint(w.hash, w.steps, w.clock.now)"
    )
    return {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }

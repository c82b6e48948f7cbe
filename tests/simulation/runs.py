"""Many seeds in one or several processes: which of them fail, and what all of them met."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from tests.simulation.coverage import Coverage
from tests.simulation.requirements import empty_cells
from tests.simulation.schedule import directed
from tests.simulation.world import World

CHUNK = 50
TRIES_MAX = 80


@dataclass
class SeedReport:
    """The seeds that fail, each with what is wrong, and what the seeds met."""

    bad: dict[int, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, other: SeedReport) -> None:
        """Add what other seeds found."""
        self.bad.update(other.bad)
        self.coverage.add(other.coverage)


def run_seeds(seeds: Iterable[int]) -> SeedReport:
    """Run some seeds, one after the other."""
    found = SeedReport()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            found.bad[seed] = f"{type(error).__name__} {error}"
        except Exception as error:
            trace = traceback.format_exc(limit=-3)
            found.bad[seed] = f"{type(error).__name__}: {error}\n{trace}"
        found.coverage.add(world.coverage)
    return found


def run(seeds: Iterable[int], jobs: int) -> SeedReport:
    """Run the seeds in `jobs` processes."""
    wanted = list(seeds)
    found = SeedReport()
    if jobs == 1:
        return run_seeds(wanted)
    chunks = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_seeds, chunk) for chunk in chunks]):
            found.add(future.result())
    return found


def meet_pairs(found: SeedReport, tries_max: int = TRIES_MAX) -> None:
    """Run worlds made for the pairs that were never met, until each is met or given up."""
    for pair in empty_cells(found.coverage)[1]:
        for attempt in range(tries_max):
            if found.coverage.pairs[pair]:
                break
            found.add(run_seeds([directed(pair, attempt)]))


def repeat(seed: int) -> str:
    """Return the command that repeats a seed, with its trace."""
    return f"python -m tests.simulation --from {seed} --seeds 1 --trace"

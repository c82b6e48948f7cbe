"""Many seeds of worlds with a data plane: which of them fail, how often each fault struck."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from tests.simulation.plane.world import PlaneWorld

CHUNK = 25


@dataclass
class SeedReport:
    """The seeds that fail, each with what is wrong, and what the seeds met."""

    worlds: int = 0
    checks: int = 0
    bad: dict[int, str] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)

    def add(self, other: SeedReport) -> None:
        self.worlds += other.worlds
        self.checks += other.checks
        self.bad.update(other.bad)
        self.struck += other.struck


def run_seeds(seeds: Iterable[int]) -> SeedReport:
    """Run some seeds, one after the other."""
    found = SeedReport()
    for seed in seeds:
        world = PlaneWorld(seed)
        try:
            world.run()
        except AssertionError as error:
            found.bad[seed] = f"{type(error).__name__} {error}"
        except Exception as error:
            trace = traceback.format_exc(limit=-3)
            found.bad[seed] = f"{type(error).__name__}: {error}\n{trace}"
        found.worlds += 1
        found.checks += world.witness.checks
        found.struck += world.struck
    return found


def run(seeds: Iterable[int], jobs: int) -> SeedReport:
    """Run the seeds in `jobs` processes."""
    wanted = list(seeds)
    if jobs == 1:
        return run_seeds(wanted)
    found = SeedReport()
    chunks = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_seeds, chunk) for chunk in chunks]):
            found.add(future.result())
    return found


def repeat(seed: int) -> str:
    """Return the command that repeats a seed, with its trace."""
    return f"python -m tests.simulation --plane --from {seed} --seeds 1 --trace"


def tell(found: SeedReport, took_s: float) -> str:
    """Return how fast it went, and what struck."""
    struck = ", ".join(f"{name} {count:,}" for name, count in sorted(found.struck.items()))
    per_hour = found.worlds / took_s * 3600
    return (
        f"{found.worlds:,} seeds in {took_s:.1f} s: {per_hour:,.0f} seeds/hour, "
        f"{found.checks:,} comparisons of a vbucket with the store\nfaults: {struck}"
    )

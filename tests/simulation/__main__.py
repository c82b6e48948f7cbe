"""Run as many seeds as asked: `python -m tests.simulation --seeds 100000 --jobs 4`.

A seed that fails is run once more with a trace, which is printed with the one command that
repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.world import World

CHUNK = 50
LINES_SHOWN = 80


def fails(seed: int) -> str:
    """Run one seed; return what is wrong with it, or an empty text."""
    try:
        World(seed).run()
    except AssertionError as error:
        return f"{type(error).__name__} {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return ""


def run_chunk(seeds: list[int]) -> list[tuple[int, str]]:
    """Run some seeds; return those that fail."""
    return [(seed, what) for seed in seeds if (what := fails(seed))]


def show(seed: int, lines: int) -> None:
    """Print the trace of a seed, its last `lines` lines (0: all), and how to repeat it."""
    world = World(seed, tracing=True)
    what = ""
    try:
        world.run()
    except Exception as error:
        what = f"{type(error).__name__} {error}"
    print("\n".join(world.lines[-lines:]))
    print(f"seed {seed}: {what or 'holds'}; trace {world.hash:08x}, {world.steps} steps")
    print(f"python -m tests.simulation --from {seed} --seeds 1 --trace")


def run(seeds: Iterable[int], jobs: int) -> list[tuple[int, str]]:
    """Run the seeds, in `jobs` processes, and return those that fail, lowest first."""
    wanted = list(seeds)
    chunks = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
    if jobs == 1:
        return [bad for chunk in chunks for bad in run_chunk(chunk)]
    found: list[tuple[int, str]] = []
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run_chunk, chunk) for chunk in chunks]):
            found += future.result()
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of each seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.trace:
        for seed in seeds:
            show(seed, 0)
        return 0
    began = time.monotonic()
    bad = run(seeds, options.jobs)
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds in {took:.1f} s: {len(seeds) / took * 3600:,.0f} seeds/hour")
    for seed, what in bad:
        print(f"FAILED {what}\n  python -m tests.simulation --from {seed} --seeds 1 --trace")
    if bad:
        show(bad[0][0], LINES_SHOWN)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

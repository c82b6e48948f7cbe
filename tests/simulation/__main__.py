"""Run as many seeds as asked: `python -m tests.simulation --seeds 100000`.

It tells how fast that went, which faults struck, and which pairs of step and fault never met. A
seed that fails is run once more with a trace, which is printed with the one command that repeats
it. With `--plane` the worlds are those in which documents are indexed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.coverage import Coverage
from tests.simulation.plane import runs as plane
from tests.simulation.plane.world import PlaneWorld
from tests.simulation.requirements import empty_cells
from tests.simulation.runs import meet_pairs, repeat, run
from tests.simulation.world import World

LINES_SHOWN = 80
NAMED_MAX = 40
"""So many pairs that never met are named; a small run has them all."""


def show(seed: int, lines: int, *, with_data: bool = False) -> None:
    """Print the trace of a seed, its last `lines` lines (0: all), and how to repeat it."""
    world = (PlaneWorld if with_data else World)(seed, tracing=True)
    what = ""
    try:
        world.run()
    except Exception as error:
        what = f"{type(error).__name__} {error}"
    print("\n".join(world.lines[-lines:]))
    print(f"seed {seed}: {what or 'holds'}; trace {world.hash:08x}, {world.steps} steps")
    print(plane.repeat(seed) if with_data else repeat(seed))


def tell(coverage: Coverage, took_s: float) -> None:
    """Print how fast it went, and what was met."""
    worlds = coverage.worlds
    print(
        f"{worlds:,} seeds in {took_s:.1f} s: {worlds / took_s * 3600:,.0f} seeds/hour, "
        f"{coverage.events / took_s:,.0f} steps/s, {coverage.operations:,} operations of clients"
    )
    print("faults: " + ", ".join(f"{name} {n:,}" for name, n in sorted(coverage.faults.items())))
    cells, empty = empty_cells(coverage)
    print(f"pairs of step and fault: {cells - len(empty)} of {cells} that are possible")
    for step, fault in empty[:NAMED_MAX]:
        print(f"  never met: {fault!r} at {step!r}")


def run_plane(seeds: range, jobs: int) -> int:
    """Run worlds with a data plane, and print what came of them."""
    began = time.monotonic()
    found = plane.run(seeds, jobs)
    print(plane.tell(found, time.monotonic() - began))
    for seed, what in sorted(found.bad.items()):
        print(f"FAILED seed {seed}: {what}\n  {plane.repeat(seed)}")
    if found.bad:
        show(min(found.bad), LINES_SHOWN, with_data=True)
    return 1 if found.bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, help="processes (one for each core)")
    parser.add_argument("--pairs", action="store_true", help="make worlds for pairs never met")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of each seed")
    parser.add_argument(
        "--plane", action="store_true", help="worlds in which documents are indexed"
    )
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.trace:
        for seed in seeds:
            show(seed, 0, with_data=options.plane)
        return 0
    if options.plane:
        return run_plane(seeds, options.jobs)
    began = time.monotonic()
    found = run(seeds, options.jobs)
    if options.pairs:
        meet_pairs(found)
    tell(found.coverage, time.monotonic() - began)
    for seed, what in sorted(found.bad.items()):
        print(f"FAILED seed {seed}: {what}\n  {repeat(seed)}")
    if found.bad:
        show(min(found.bad), LINES_SHOWN)
    return 1 if found.bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run as many seeds as asked: `python -m tests.simulation --seeds 100000`.

It tells how fast that went, which faults struck, and which pairs of step and fault never met. A
seed that fails is run once more with a trace, which is printed with the one command that repeats
it. From 400 seeds on all pairs must meet: worlds are made for those that did not. With `--plane`
the worlds are those in which documents are indexed, with `--losses` those in which the store loses
some, too, with `--moves` those in which slices move between indexers, and with `--topics` those in
which documents are the records of topics.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.cluster import Cluster
from tests.simulation.kernel.coverage import Coverage
from tests.simulation.kernel.runs import run
from tests.simulation.plane.losing import LosingWorld
from tests.simulation.plane.moving import MovingWorld
from tests.simulation.plane.reading_topics import TopicWorld
from tests.simulation.plane.world import PlaneWorld
from tests.simulation.requirements import (
    ENOUGH_FOR_PAIRS,
    empty_cells,
    meet_pairs,
    shortcomings,
)
from tests.simulation.world import World

LINES_SHOWN = 80
NAMED_MAX = 40
"""So many pairs that never met are named; a small run has them all."""


def show(world: Cluster, lines: int) -> None:
    """Print a world's trace, its last `lines` lines (0: all), and how to repeat it."""
    what = ""
    try:
        world.run()
    except Exception as error:
        what = f"{type(error).__name__} {error}"
    print("\n".join(world.lines[-lines:]))
    print(f"seed {world.seed}: {what or 'holds'}; trace {world.hash:08x}, {world.steps} steps")
    print(world.repeat)


def tell(coverage: Coverage, took_s: float, *, with_data: bool) -> None:
    """Print how fast it went, and what was met."""
    worlds = coverage.worlds
    print(
        f"{worlds:,} seeds in {took_s:.1f} s: {worlds / took_s * 3600:,.0f} seeds/hour, "
        f"{coverage.events / took_s:,.0f} steps/s, {coverage.operations:,} operations of clients"
        + (f", {coverage.checks:,} comparisons of a vbucket with the store" if with_data else "")
    )
    struck = coverage.strikes if with_data else coverage.faults
    print("faults: " + ", ".join(f"{name} {n:,}" for name, n in sorted(struck.items())))
    if with_data:
        return
    cells, empty = empty_cells(coverage)
    print(f"pairs of step and fault: {cells - len(empty)} of {cells} that are possible")
    for step, fault in empty[:NAMED_MAX]:
        print(f"  never met: {fault!r} at {step!r}")


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
    parser.add_argument(
        "--losses", action="store_true", help="such worlds, with a store that loses changes"
    )
    parser.add_argument(
        "--moves", action="store_true", help="such worlds, in which slices move between indexers"
    )
    parser.add_argument(
        "--topics", action="store_true", help="such worlds, in which topics are read, and no store"
    )
    options = parser.parse_args()
    with_data = options.plane or options.losses or options.moves or options.topics
    make: type[World | PlaneWorld] = PlaneWorld if options.plane else World
    make = LosingWorld if options.losses else make
    make = MovingWorld if options.moves else make
    make = TopicWorld if options.topics else make
    seeds = range(options.first, options.first + options.seeds)
    if options.trace:
        for seed in seeds:
            show(make(seed, tracing=True), 0)
        return 0
    began = time.monotonic()
    found = run(make, seeds, options.jobs)
    every_pair = not with_data and (options.pairs or options.seeds >= ENOUGH_FOR_PAIRS)
    if every_pair:
        meet_pairs(found)
    tell(found.coverage, time.monotonic() - began, with_data=with_data)
    for _, what in sorted(found.bad.items()):
        print(f"FAILED {what}")
    if found.bad:
        show(make(min(found.bad), tracing=True), LINES_SHOWN)
    missed = shortcomings(found.coverage, every_pair=True) if every_pair else []
    for text in missed:
        print(f"FAILED {text}")
    return 1 if found.bad or missed else 0


if __name__ == "__main__":
    sys.exit(main())

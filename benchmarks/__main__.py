"""Measure the coordinator: `make bench`, or `python -m benchmarks latency throughput …`.

Prints what it saw as it goes, and writes it to `benchmarks/results/`: ratios within one run are
what counts, since machines differ and are busy in different ways.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    archive,
    commit,
    data_plane,
    eventsourced,
    executors,
    failover,
    fold,
    history,
    many_indexes,
    moves,
    planning,
    rollback,
    size,
    timestamps,
    topic_source,
    watchers,
)
from benchmarks.cluster import cluster

RESULTS = Path(__file__).parent / "results"
ALL = (
    "fold",
    "size",
    "simulator",
    "planning",
    "many_indexes",
    "latency",
    "throughput",
    "memory",
    "synchronisation",
    "bootstrap",
    "history",
    "watchers",
    "failover",
    "failover_with_outcomes",
    "build",
    "scan",
    "maintenance",
    "beside_build",
    "run_ahead",
    "topic_source",
    "rollback",
    "moves",
    "catch_up",
    "freshness",
    "idle",
    "restart",
    "executors",
    "growth",
    "archive",
)
ALONE = (
    "fold",
    "size",
    "simulator",
    "planning",
    "many_indexes",
    "failover_with_outcomes",
    "archive",
    "topic_source",
    "rollback",
    "moves",
)
"""These need no cluster, or one of their own."""

DATA_PLANE: dict[str, Callable[[data_plane.DataPlane], Any]] = {
    "build": data_plane.build,
    "scan": data_plane.scan,
    "maintenance": data_plane.maintenance,
    "beside_build": data_plane.beside_build,
    "run_ahead": data_plane.run_ahead,
}
TIMESTAMPS: dict[str, Callable[[str], Any]] = {
    "catch_up": timestamps.catch_up,
    "freshness": timestamps.freshness,
    "idle": timestamps.idle,
    "restart": timestamps.restart,
    "executors": executors.executors,
    "growth": timestamps.growth,
    "stateful": timestamps.stateful,
}


def main() -> int:
    wanted = sys.argv[1:] or list(ALL)
    known = [*ALL, *(name for name in TIMESTAMPS if name not in ALL)]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"error: unknown benchmarks {unknown}; known are {known}", file=sys.stderr)
        return 2
    seen: dict[str, Any] = {"machine": _machine()}
    if "fold" in wanted:
        _show(seen, "fold", fold.rates)
    if "simulator" in wanted:
        _show(seen, "simulator", simulator)
    if "planning" in wanted:
        _show(seen, "planning", planning.planning)
    if "many_indexes" in wanted:
        _show(seen, "many_indexes", many_indexes.many_indexes)
    if "size" in wanted:
        _show(seen, "size", size.size)
    if set(wanted) - {*ALONE, *DATA_PLANE, *TIMESTAMPS}:
        with cluster() as running:
            if "latency" in wanted:
                _show(seen, "latency", lambda: commit.latency(running))
            if "throughput" in wanted:
                _show(seen, "throughput", lambda: commit.throughput(running))
                _show(seen, "by_connections", lambda: commit.by_connections(running))
            if "memory" in wanted:
                _show(seen, "rss_mib", running.rss_mib)
            if "synchronisation" in wanted:
                servers = running.bootstrap_servers
                _show(seen, "synchronisation", lambda: fold.synchronisation(servers))
            if "bootstrap" in wanted:
                servers = running.bootstrap_servers
                _show(seen, "bootstrap", lambda: fold.bootstrap(servers))
            if "watchers" in wanted:
                _show(seen, "watchers", lambda: watchers.watchers(running))
                _show(seen, "watchers_of_etcd", watchers.etcd)
            if "history" in wanted:
                servers = running.bootstrap_servers
                _show(seen, "history", lambda: history.history(servers))
                _show(seen, "eventsourcing", eventsourced.replayed)
            if "failover" in wanted:
                _show(seen, "failover", lambda: failover.failover(running))
                _show(seen, "hand_over", lambda: failover.hand_over(running))
    if "failover_with_outcomes" in wanted:
        _show(seen, "failover_with_outcomes", failover.with_outcomes)
    if "throughput" in wanted:
        _compare_with_etcd(seen)
    if set(wanted) & set(DATA_PLANE):
        _data_plane(seen, wanted)
    if "topic_source" in wanted:
        with timestamps.broker() as servers:
            _show(seen, "topic_source", lambda: topic_source.topic_source(servers))
    if "rollback" in wanted:
        _show(seen, "rollback", rollback.rollback)
    if "moves" in wanted:
        _show(seen, "moves", moves.moves)
    if set(wanted) & set(TIMESTAMPS):
        with timestamps.broker() as servers:
            for name, measure in TIMESTAMPS.items():
                if name in wanted:
                    _show(seen, name, partial(measure, servers))
    if "archive" in wanted:
        _show(seen, "archive", archive.archive)
    path = RESULTS / "latest.json"
    if set(wanted) != set(ALL) and path.exists():
        seen = {**json.loads(path.read_text()), **seen}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(seen, indent=2) + "\n")
    print(f"written to {path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else path)
    return 0


def simulator(seeds: int = 500) -> dict[str, Any]:
    """Run seeds of the simulator on one core."""
    from tests.simulation.world import World

    steps = 0
    began = time.process_time()
    for seed in range(seeds):
        world = World(seed)
        world.run()
        steps += world.steps
    took_s = time.process_time() - began
    return {
        "seeds": seeds,
        "steps_per_second": round(steps / took_s),
        "seeds_per_hour": round(seeds / took_s * 3600),
    }


def _data_plane(seen: dict[str, Any], wanted: list[str]) -> None:
    """All of them on one cluster, in the order in which each needs the one before it."""
    with cluster(projectors=2) as running:
        plane = data_plane.DataPlane(running)
        for name, measure in DATA_PLANE.items():
            if name in wanted:
                _show(seen, name, partial(measure, plane))


def _compare_with_etcd(seen: dict[str, Any]) -> None:
    """The same loads on etcd, when it is installed, and the ratios."""
    _show(seen, "etcd", commit.etcd)
    if seen["etcd"] and seen["by_connections"]:
        for ids, rows in seen["by_connections"].items():
            ratios = {
                ours["connections"]: round(ours["per_second"] / theirs["per_second"], 2)
                for ours, theirs in zip(rows, seen["etcd"]["by_connections"], strict=True)
            }
            seen[f"ratio_to_etcd_{ids}"] = ratios
            print(f"ratio to etcd by connections, {ids}: {ratios}")
    if seen["etcd"]:
        ours = seen["throughput"]["committed_per_second"]
        seen["ratio_to_etcd"] = round(ours / seen["etcd"]["committed_per_second"], 2)
        print(f"ratio to etcd: {seen['ratio_to_etcd']}")


def _show(seen: dict[str, Any], name: str, measure: Callable[[], Any]) -> None:
    began = time.perf_counter()
    seen[name] = measure()
    print(f"{name} ({time.perf_counter() - began:.0f} s): {json.dumps(seen[name], indent=2)}")
    sys.stdout.flush()


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    sys.exit(main())

"""How long the plan of a rebalance takes, and how good it is: 10,000 slices on 250 indexers.

Beside each plan stands a bound that no plan can beat: the mean load of the indexers, or what the
heaviest copy weighs, if that is more. HiGHS gets the same clusters, smaller ones, where scipy is
installed: it is no dependency. It is asked for the largest load alone, not for the bytes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import Any

from coordinator.core.catalog.layouts import Machine, Piece
from coordinator.core.catalog.loads import WHOLE, Load, weigh
from coordinator.core.catalog.planning import Plan, carry_out, plan

SLICES, INDEXERS, ZONES, COPIES = 10_000, 250, 3, 2
SKEW = 0.3
"""The part of all slices that has its master on one indexer, in the skewed cluster."""

SMALLER = ((20, 8), (60, 10), (200, 20))
"""Slices and indexers of what a solver gets."""

SOLVER_LIMIT_S = 20


def planning() -> dict[str, Any]:
    """Plan what happens to a balanced cluster, and to one that never was."""
    rng = Random(1)
    machines = _machines(INDEXERS)
    scattered = _pieces(rng, SLICES, machines, 0)
    balanced = carry_out(scattered, plan(scattered, machines).moves)
    skewed = _pieces(rng, SLICES, machines, SKEW)
    added = [replace(piece, copies=COPIES + 1) for piece in balanced]
    drained = [machines[0]._replace(takes=False), *machines[1:]]
    return {
        "scattered": _measured(scattered, machines),
        "balanced": _measured(balanced, machines),
        "new_indexer": _measured(balanced, _machines(INDEXERS + 1)),
        "lost_indexer": _measured(balanced, machines[1:]),
        "drained_indexer": _measured(balanced, drained),
        "skewed": _measured(skewed, machines),
        "one_more_replica": _measured(added, machines),
        "beside_highs": [_beside_highs(*size) for size in SMALLER],
    }


def _machines(count: int) -> list[Machine]:
    return [Machine(number, f"z{number % ZONES}") for number in range(count)]


def _pieces(
    rng: Random, count: int, machines: list[Machine], skew: float, copies: int = COPIES
) -> list[Piece]:
    """Slices anywhere, their copies in different zones; a few of them weigh much more."""
    made = []
    for number in range(count):
        master = 0 if rng.random() < skew else rng.randrange(len(machines))
        hosts = [master]
        while len(hosts) < copies:
            other = rng.randrange(len(machines))
            if machines[other].zone not in {machines[host].zone for host in hosts}:
                hosts.append(other)
        entries = int(rng.lognormvariate(12, 1))
        mutations = int(rng.paretovariate(3) * 10)
        load = Load(entries, int(entries * rng.uniform(50, 400)), mutations)
        made.append(Piece(1 + number // 16, number % 16, tuple(hosts), load, copies))
    return made


def _measured(pieces: list[Piece], machines: list[Machine]) -> dict[str, Any]:
    began = time.process_time()
    found = plan(pieces, machines)
    took_s = time.process_time() - began
    return {
        "processor_seconds": round(took_s, 2),
        "moves": len(found.moves),
        "bytes_moved_of_all": round(found.bytes / sum(p.load.bytes * p.copies for p in pieces), 4),
        "largest_load_to_bound_before": round(
            max(found.load_before.values()) / _bound(pieces, machines), 3
        ),
        "largest_load_to_bound": round(_largest(found) / _bound(pieces, machines), 3),
        "impossible": len(found.impossible),
    }


def _largest(found: Plan) -> float:
    return max(found.load_after.values())


def _bound(pieces: list[Piece], machines: list[Machine]) -> float:
    heaviest = max(_weights(pieces)) / WHOLE
    return max(heaviest, 1 / sum(machine.takes for machine in machines))


def _weights(pieces: list[Piece]) -> list[int]:
    return weigh([piece.load for piece in pieces], [piece.copies for piece in pieces])


def _beside_highs(slices: int, indexers: int) -> dict[str, Any]:
    machines = [Machine(number) for number in range(indexers)]
    pieces = _pieces(Random(slices), slices, machines, 0, copies=1)
    began = time.process_time()
    ours = _largest(plan(pieces, machines))
    took_s = time.process_time() - began
    seen = {"slices": slices, "indexers": indexers, "processor_seconds": round(took_s, 2)}
    try:
        best, bound, solver_s = _solve(pieces, machines)
    except ImportError:
        return {**seen, "largest_load_to_bound": round(ours / _bound(pieces, machines), 4)}
    return {
        **seen,
        "seconds_of_highs": round(solver_s, 2),
        "largest_load_to_highs": round(ours / best, 4),
        "largest_load_to_its_bound": round(ours / bound, 4),
    }


def _solve(pieces: list[Piece], machines: list[Machine]) -> tuple[float, float, float]:
    """Return the largest load that HiGHS finds, its bound, and the seconds that it took."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_matrix

    count, width = len(pieces), len(machines)
    weights = np.array(_weights(pieces)) / WHOLE
    rows = lil_matrix((count + width, count * width + 1))
    low, high = np.zeros(count + width), np.zeros(count + width)
    for piece in range(count):
        rows[piece, piece * width : (piece + 1) * width] = 1
        low[piece] = high[piece] = 1
    for machine in range(width):
        rows[count + machine, machine : count * width : width] = weights
        rows[count + machine, count * width] = -1
        low[count + machine] = -np.inf
    began = time.perf_counter()
    found = milp(
        np.r_[np.zeros(count * width), 1],
        constraints=LinearConstraint(rows.tocsr(), low, high),
        integrality=np.r_[np.ones(count * width), 0],
        bounds=Bounds(0, 1),
        options={"time_limit": SOLVER_LIMIT_S, "mip_rel_gap": 0.001},
    )
    return found.fun, max(found.mip_dual_bound, 1 / width), time.perf_counter() - began

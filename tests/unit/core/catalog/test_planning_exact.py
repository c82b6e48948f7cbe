"""Plans beside the exact optimum: the largest load is within a few hundredths of the smallest."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.core.catalog.planning import carry_out, plan
from tests.unit.core.catalog.clusters import random_cluster
from tests.unit.core.catalog.exact_plans import largest, smallest_below

CLUSTERS = 1_000
WITHIN = 1.05
NO_BOUND = 2**62


@pytest.mark.thorough
def test_the_largest_load_of_every_small_cluster_is_near_the_exact_optimum() -> None:
    """And what is told to be impossible is."""
    optimal = impossible = 0
    for seed in range(CLUSTERS):
        pieces, machines = random_cluster(Random(seed))
        found = plan(pieces, machines)
        if found.impossible:
            assert smallest_below(NO_BOUND, pieces, machines) is None, seed
            impossible += 1
            continue
        ours = largest(carry_out(pieces, found.moves), machines)
        best = smallest_below(ours, pieces, machines)
        assert best is None or ours <= WITHIN * best, (seed, ours / best)
        optimal += best is None
    assert impossible < CLUSTERS / 5
    assert optimal > CLUSTERS * 0.8

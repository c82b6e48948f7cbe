"""What a run of seeds must have met, or it proves nothing."""

from __future__ import annotations

from tests.simulation.coverage import STEPS, Coverage
from tests.simulation.faults import KINDS

IMPOSSIBLE: dict[tuple[str, str], str] = {}


def empty_cells(coverage: Coverage) -> tuple[int, list[tuple[str, str]]]:
    """Return how many pairs are possible, and those of them that never occurred."""
    possible = [(s, k) for s in STEPS for k in KINDS if (s, k) not in IMPOSSIBLE]
    return len(possible), [pair for pair in possible if not coverage.pairs[pair]]

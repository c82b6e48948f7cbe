"""What a run of seeds must have met, or it proves nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.coverage import STEPS
from tests.simulation.faults import KINDS
from tests.simulation.kernel.coverage import Coverage
from tests.simulation.kernel.runs import SeedReport, run_seeds
from tests.simulation.schedule import directed
from tests.simulation.world import World

AT_ONCE = "another step follows at the same instant; a crash between the two counts as such"
NEW_MASTER = "whoever was master is fenced, and the new one has not written anything yet"
OVER = "the transaction has just ended, and the next one begins with another step"
OVER_AND_SAVED = "the record's transaction is over, and to save it is another step, at once"
NO_DISK = "a node that synchronises has nothing on its disk that could be flipped"

OF_TRANSACTIONS = ("transaction timeout", "late commit", "late abort")

SAVED = "expiry read; registration read; snapshot read; resignation read; departure read"


def _never(reason: str, kinds: Iterable[str], steps: str) -> dict[tuple[str, str], str]:
    return {(step, kind): reason for step in steps.split("; ") for kind in kinds}


IMPOSSIBLE: dict[tuple[str, str], str] = {
    **_never(
        AT_ONCE,
        ["crash"],
        f"started; producer opened; producer failed; verdict read; {SAVED}; "
        "full synchronisation read; events placed; tail read; events written",
    ),
    **_never(
        NEW_MASTER,
        OF_TRANSACTIONS,
        "producer opened; fenced, reading on; claim read back; tail asked for; tail read; "
        "ddl reading begun",
    ),
    **_never(OVER, OF_TRANSACTIONS, "end of transaction heard"),
    **_never(OVER_AND_SAVED, OF_TRANSACTIONS, SAVED),
    **_never(AT_ONCE, OF_TRANSACTIONS, "events written; started"),
    **_never(NO_DISK, ["bit flip"], "full synchronisation begun; full synchronisation read"),
}
"""The pairs that cannot occur, each with the reason."""

ENOUGH_FOR_PAIRS = 400
"""From so many seeds on a run is held to all pairs. Of fewer, the worlds made for what they have
missed cost more than they do."""

TRIES_MAX = 80
"""So many worlds are made for a pair that was never met, before it is given up."""

OPERATIONS_PER_SEED_MIN = 20
"""How many operations of clients a run must have reached, on average."""


def empty_cells(coverage: Coverage) -> tuple[int, list[tuple[str, str]]]:
    """Return how many pairs are possible, and those of them that never occurred."""
    possible = [(s, k) for s in STEPS for k in KINDS if (s, k) not in IMPOSSIBLE]
    return len(possible), [pair for pair in possible if not coverage.pairs[pair]]


def meet_pairs(found: SeedReport) -> None:
    """Run worlds made for the pairs that were never met, until each is met or given up."""
    for pair in empty_cells(found.coverage)[1]:
        for attempt in range(TRIES_MAX):
            if found.coverage.pairs[pair]:
                break
            found.add(run_seeds(World, [directed(pair, attempt)]))


def shortcomings(coverage: Coverage, *, every_pair: bool) -> list[str]:
    """Say what a run of seeds should have met and did not; nothing if it is good enough."""
    found = []
    if coverage.operations < OPERATIONS_PER_SEED_MIN * coverage.worlds:
        found.append(f"{coverage.operations} operations in {coverage.worlds} worlds are too few")
    found += [f"the fault {kind!r} never struck" for kind in KINDS if not coverage.faults[kind]]
    found += [f"the step {step!r} was never taken" for step in STEPS if not coverage.steps[step]]
    if every_pair:
        found += [f"{kind!r} never met {step!r}" for step, kind in empty_cells(coverage)[1]]
    return found

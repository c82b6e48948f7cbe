"""Which faults a seed arms at which steps, so that a run of many seeds meets all the pairs.

The pairs are dealt out to the seeds in turn. A step that is rare gets a world in which it happens:
the fault that leads to it strikes there as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.coverage import STEPS
from tests.simulation.faults import KINDS

if TYPE_CHECKING:
    from tests.simulation.world import World

ARMS = 5
STRIDE = 617


@dataclass(slots=True)
class Arm:
    """A fault that waits until a step was taken `wait` times more."""

    fault: str
    wait: int


CAUSES: dict[str, tuple[str, ...]] = {
    "claim written": ("crash_the_master", "step_down"),
    "claim read back": ("crash_the_master", "step_down"),
    "claim of another read": ("crash_the_master",),
    "claim look": ("crash_the_master",),
    "fenced, reading on": ("crash_the_master",),
    "producer asked for": ("crash_the_master",),
    "producer opened": ("crash_the_master", "step_down"),
    "producer given up": ("pause_the_master",),
    "producer failed": ("mute_the_master", "time_out"),
    "tail asked for": ("crash_the_master", "step_down"),
    "tail read": ("crash_the_master", "step_down"),
    "ddl reading begun": ("crash_the_master",),
    "full synchronisation begun": ("crash_and_wipe", "crash_and_wipe"),
    "full synchronisation read": ("crash_and_wipe", "crash_and_wipe"),
    "store refused": ("full_disk", "full_disk"),
    "store probed": ("full_disk", "full_disk"),
    "proposal refused": ("full_disk", "full_disk"),
    "transaction abandoned": ("full_disk", "full_disk"),
    "rollback written": ("full_disk", "full_disk"),
    "rollback read": ("full_disk", "full_disk"),
    "admission asked for": ("crash",),
    "admission written": ("crash",),
    "admission read": ("crash",),
    "catching up": ("crash",),
    "started": ("crash",),
    "expiry written": ("cut", "crash", "cut"),
    "expiry read": ("cut", "crash", "cut"),
    "append failed": ("mute_the_master", "lossy_network"),
    "registration written": ("indexer_loses_storage",),
    "registration read": ("indexer_loses_storage",),
    "resignation written": ("step_down", "step_down"),
    "resignation read": ("step_down", "step_down"),
    "departure written": ("leave", "leave"),
    "departure read": ("leave", "leave"),
    "holdings asked for": ("step_down", "indexer_loses_storage"),
    "holdings reported": ("step_down", "indexer_loses_storage"),
}

PRIMES: dict[str, tuple[str, str]] = {
    "end of the log asked for": ("verdict written", "zombie"),
    "end of the log heard": ("verdict written", "zombie"),
}
"""Steps that follow a fault at another step: a master that stops inside a transaction."""

PAIRS: tuple[tuple[str, str], ...] = tuple((step, kind) for kind in KINDS for step in STEPS)

DIRECTED = 10_000_000
TRIES = 1_000


def directed(pair: tuple[str, str], attempt: int) -> int:
    """Return the seed of a world made for one pair: its busy clients meet nothing else."""
    return DIRECTED + PAIRS.index(pair) * TRIES + attempt


def pair_of(seed: int) -> tuple[str, str] | None:
    """Return the pair that a seed's world is made for; None for an ordinary one."""
    number = (seed - DIRECTED) // TRIES
    return PAIRS[number] if 0 <= number < len(PAIRS) else None


def arm(world: World) -> None:
    """Arm the pairs that fall to this seed."""
    pair = pair_of(world.seed)
    if pair is not None:
        _arm(world, *pair)
    elif world.seed % 8:
        for number in range(ARMS):
            _arm(world, *PAIRS[(world.seed * ARMS + number) * STRIDE % len(PAIRS)])


def _arm(world: World, step: str, fault: str) -> None:
    chance = world.clock.chance
    causes = CAUSES.get(step, ())
    rare = causes or step in PRIMES
    wait = chance.choice((0, 0, 1)) if rare else chance.randint(0, 12)
    world.arms.setdefault(step, []).append(Arm(fault, wait))
    if step in PRIMES:
        before, prime = PRIMES[step]
        world.arms.setdefault(before, []).append(Arm(prime, chance.randint(0, 8)))
    for cause in causes:
        world.clock.at(chance.randint(1_200, 6_000), world.strike, cause)
    if step.startswith("snapshot"):
        world.config["snapshot_bytes"] = 64 * 15

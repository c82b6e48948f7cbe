"""The faults, by kind: each strikes a process, a disk, a network or a folder, and can be healed.

A kind is a function that strikes and returns a `Strike`, which knows how to undo it. Which victim
is hit, and how, is drawn from the nemesis' own chance, so that a seed gives the same sequence; the
timing of real processes it does not give.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from coordinator.client.errors import CoordinatorError
from coordinator.embedded.broker import Broker
from tests.faults import damage
from tests.faults.cluster import DISK, INDEXER_ON_DISK, NETWORK, FaultCluster, not_here
from tests.integration.cluster import Child, NodeChild, in_parallel, wait_until

ZOMBIE_S = 10.5
"""Past the election (1.5 s and 1.5 s for each that goes first) and past the verdict's 8 s."""

SILENT_S = 3.0
CUT_S = 7.0
FULL_S = 4.0
BRIEF_S = 1.0
NEW_MASTER_S = 40.0
PRESSED = "x" * 60_000
PRESSED_MAX = 400
REFUSES = "the store refuses writes"

MASTER, BROKER, OTHER = "master", "broker", "other"


@dataclass(eq=False)
class Strike:
    """A fault in force. `on` is what it hits; `epoch` the mastership that it met.

    `hold_s` is how long it lasts at least, and `until` what must have come about before it heals.
    """

    kind: str
    victim: str
    at: float
    heal: Callable[[], None]
    on: str = OTHER
    epoch: int = 0
    hold_s: float = 0.0
    until: Callable[[], Any] | None = None
    healed: float | None = None

    def since(self, begin: float) -> str:
        """Say what it was, and when, counted from `begin`."""
        until = "…" if self.healed is None else f"{self.healed - begin:.2f}"
        return f"[{self.at - begin:.2f}, {until}] {self.kind} of {self.victim}"


@dataclass
class Nemesis:
    """Strikes a cluster; `strikes` is what it did so far. Times are on the monotonic clock."""

    cluster: FaultCluster
    rng: random.Random
    strikes: list[Strike] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Nodes with certain damage, and how much they had said before."""

    def strike(self, kind: str) -> Strike:
        """Strike by a fault of `kind`."""
        made = KINDS[kind](self)
        self.strikes.append(made)
        return made

    def heal(self, made: Strike) -> None:
        """Undo a strike once its time has come."""
        left_s = made.at + made.hold_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        try:
            if made.until is not None:
                wait_until(made.until, f"what {made.kind} of {made.victim} leads to", NEW_MASTER_S)
        finally:
            made.heal()
            made.healed = time.monotonic()

    # -- who -----------------------------------------------------------------------------------

    def master(self) -> tuple[NodeChild, int]:
        """Return the master and its epoch; where there is none now, any node and epoch 0."""
        found: list[int] = []

        def look() -> bool:
            found[:] = self._master_now()
            return bool(found)

        with suppress(AssertionError):
            wait_until(look, "a master to strike", 5.0)
        if found:
            return self.cluster.nodes[found[0]], found[1]
        return self.cluster.nodes[self.rng.choice(sorted(self.cluster.nodes))], 0

    def _master_now(self) -> list[int]:
        """Return the node that serves as master and its epoch, if there is one.

        One that is being replaced may say the first of itself, and then the epoch of another.
        """
        for number in self.cluster.running():
            with suppress(httpx.HTTPError):
                ready = self.cluster.ask(number, "GET", "/readyz", timeout=1.0)
                if ready.status_code == 200 and ready.json()["role"] == "master":
                    body = self.cluster.ask(number, "GET", "/v1/members", timeout=1.0).json()
                    if any(m["node"] == number and m["role"] == "master" for m in body["members"]):
                        return [number, body["epoch"]]
        return []

    def replica(self) -> NodeChild:
        master, _ = self.master()
        others = [node for node in self.cluster.nodes.values() if node is not master]
        return self.rng.choice(others)

    def indexer(self) -> Child:
        return self.rng.choice(list(self.cluster.indexers.values()))

    def broker(self) -> Broker:
        return self.rng.choice(self.cluster.brokers.members)

    def fill(self, victim: NodeChild) -> Strike:
        """Fill the disk of a node, and write until that is felt."""
        at, said = time.monotonic(), len(victim.said)
        victim.fill_disk()
        self._press(lambda: REFUSES in victim.said[said:])
        filler = victim.folder / "filler"
        heal = partial(filler.unlink, missing_ok=True)
        return Strike("full-disk-node", victim.name, at, heal, hold_s=FULL_S)

    def _press(self, enough: Callable[[], bool]) -> None:
        """Write large settings until `enough`: RocksDB has allocated some room ahead."""
        left = iter(range(PRESSED_MAX))

        def write() -> None:
            with self.cluster.client(deadline_s=5.0) as client:
                for number in left:
                    if enough():
                        return
                    with suppress(CoordinatorError):
                        client.put_config(f"pressed/{number % 4}", PRESSED)

        in_parallel(*[write] * 4)

    def another_than(self, victim: NodeChild, epoch: int) -> Callable[[], bool]:
        """Return the condition that another node serves as master."""

        def elected() -> bool:
            found = self._master_now()
            return bool(found) and found[0] != victim.node and found[1] > epoch

        return elected


# -- processes ------------------------------------------------------------------------------------


def _kill_master(n: Nemesis) -> Strike:
    victim, epoch = n.master()
    at = time.monotonic()
    n.cluster.kill(victim)
    made = Strike("kill-master", victim.name, at, lambda: n.cluster.revive(victim), MASTER, epoch)
    if n.rng.random() < 0.7:
        made.until = n.another_than(victim, epoch)
    return made


def _killed(n: Nemesis, kind: str, victim: Child) -> Strike:
    at = time.monotonic()
    n.cluster.kill(victim)
    hold_s = n.rng.uniform(0.0, SILENT_S)
    return Strike(kind, victim.name, at, lambda: n.cluster.revive(victim), hold_s=hold_s)


def _kill_all(n: Nemesis) -> Strike:
    victims, (_, epoch) = list(n.cluster.nodes.values()), n.master()
    at = time.monotonic()
    for victim in victims:
        n.cluster.kill(victim)

    def heal() -> None:
        for victim in victims:
            n.cluster.revive(victim)

    return Strike("kill-all", "all nodes", at, heal, MASTER, epoch)


def _stop_master(n: Nemesis) -> Strike:
    """The zombie: it sleeps past every timeout, and wakes up as a master that was replaced."""
    victim, epoch = n.master()
    at = time.monotonic()
    n.cluster.pause(victim)
    return Strike(
        "stop-master",
        victim.name,
        at,
        lambda: n.cluster.resume(victim),
        MASTER,
        epoch,
        ZOMBIE_S,
        n.another_than(victim, epoch) if epoch else None,
    )


def _stopped(n: Nemesis, kind: str, victim: Child, hold_s: float) -> Strike:
    at = time.monotonic()
    n.cluster.pause(victim)
    return Strike(kind, victim.name, at, lambda: n.cluster.resume(victim), hold_s=hold_s)


# -- brokers --------------------------------------------------------------------------------------


def _broker(n: Nemesis, kind: str, hurt: Callable[[Broker], None], hold_s: float) -> Strike:
    victim, (_, epoch) = n.broker(), n.master()
    at = time.monotonic()
    hurt(victim)
    name, heal = f"broker {victim.node}", lambda: n.cluster.heal_broker(victim)
    return Strike(kind, name, at, heal, BROKER, epoch, hold_s)


# -- by request -----------------------------------------------------------------------------------


def _step_down(n: Nemesis) -> Strike:
    victim, epoch = n.master()
    at = time.monotonic()
    said = _asked(n, lambda client: client.step_down(epoch=epoch or None))
    name = victim.name + (f" (refused: {said})" if said else "")
    return Strike("step-down", name, at, lambda: None, OTHER if said else MASTER, epoch, BRIEF_S)


def _leave(n: Nemesis) -> Strike:
    victim = n.replica()
    at = time.monotonic()
    said = _asked(n, lambda client: client.leave(victim.node))
    name = victim.name + (f" (refused: {said})" if said else "")

    def heal() -> None:
        n.cluster.kill(victim)
        n.cluster.revive(victim)

    return Strike("leave", name, at, heal, hold_s=BRIEF_S)


def _asked(n: Nemesis, call: Callable[[Any], Any]) -> str:
    """Ask the cluster; return what it refused, or that it did not answer."""
    try:
        with n.cluster.client(deadline_s=10.0) as client:
            call(client)
    except CoordinatorError as error:
        return error.code
    return ""


# -- networks -------------------------------------------------------------------------------------


def _cut(n: Nemesis, kind: str, way: str) -> Strike:
    """Cut a node off from Kafka: mostly the master."""
    (victim, epoch), on = n.master(), MASTER
    if n.rng.random() < 0.3:
        victim, epoch, on = n.replica(), 0, OTHER
    network = n.cluster.networks[victim.node]
    at = time.monotonic()
    network.cut(way)
    return Strike(kind, victim.name, at, network.heal, on, epoch, CUT_S)


# -- disks and folders ----------------------------------------------------------------------------


def _full_indexer(n: Nemesis) -> Strike:
    victim = next(c for c in n.cluster.indexers.values() if c.name == INDEXER_ON_DISK)
    at = time.monotonic()
    victim.fill_disk()
    filler = victim.folder / "filler"
    heal = partial(filler.unlink, missing_ok=True)
    return Strike("full-disk-indexer", victim.name, at, heal, hold_s=FULL_S)


def _damage(n: Nemesis) -> Strike:
    """Damage the folder of a node that was killed."""
    victim = n.master()[0] if n.rng.random() < 0.3 else n.replica()
    how = n.rng.choice((*damage.CERTAIN, *damage.POSSIBLE))
    at = time.monotonic()
    n.cluster.kill(victim)
    how(victim.folder, n.rng)
    if how in damage.CERTAIN:
        n.damaged.append((victim.node, len(victim.said)))
    name = f"{victim.name} ({how.__name__})"
    return Strike("damage", name, at, lambda: n.cluster.revive(victim))


KINDS: dict[str, Callable[[Nemesis], Strike]] = {
    "kill-master": _kill_master,
    "kill-replica": lambda n: _killed(n, "kill-replica", n.replica()),
    "kill-indexer": lambda n: _killed(n, "kill-indexer", n.indexer()),
    "kill-broker": lambda n: _broker(n, "kill-broker", n.cluster.kill_broker, BRIEF_S),
    "kill-all": _kill_all,
    "stop-master": _stop_master,
    "stop-replica": lambda n: _stopped(n, "stop-replica", n.replica(), SILENT_S),
    "stop-indexer": lambda n: _stopped(n, "stop-indexer", n.indexer(), SILENT_S),
    "stop-broker": lambda n: _broker(n, "stop-broker", n.cluster.pause_broker, ZOMBIE_S),
    "step-down": _step_down,
    "leave": _leave,
    "cut": lambda n: _cut(n, "cut", "both"),
    "cut-out": lambda n: _cut(n, "cut-out", "out"),
    "cut-in": lambda n: _cut(n, "cut-in", "in"),
    "full-disk-node": lambda n: n.fill(n.rng.choice(list(n.cluster.nodes.values()))),
    "full-disk-indexer": _full_indexer,
    "damage": _damage,
}

NEEDS = {
    **dict.fromkeys(("cut", "cut-out", "cut-in"), NETWORK),
    **dict.fromkeys(("full-disk-node", "full-disk-indexer"), DISK),
}

BESIDE = ("kill-indexer", "stop-indexer", "kill-broker", "kill-replica", "step-down")
"""Kinds that may strike while another one is in force: any two leave enough to heal."""


def possible_kinds() -> list[str]:
    """Return the kinds that can be tried on this machine."""
    missing = not_here()
    return [kind for kind in KINDS if NEEDS.get(kind) not in missing]


def plan(rng: random.Random, kinds: Sequence[str], steps: int) -> list[tuple[str, ...]]:
    """Return what to strike with, step by step; some steps strike twice at once.

    Each kind comes once before any comes again.
    """
    drawn: list[str] = []
    while len(drawn) < steps:
        drawn += rng.sample(list(kinds), len(kinds))
    made: list[tuple[str, ...]] = []
    for kind in drawn[:steps]:
        beside = [k for k in BESIDE if k in kinds and k != kind]
        twice = bool(beside) and rng.random() < 0.2
        made.append((kind, rng.choice(beside)) if twice else (kind,))
    return made

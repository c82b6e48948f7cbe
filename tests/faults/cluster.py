"""A cluster that can be hurt in every way: brokers of its own, networks, disks, a supervisor.

As under `indexctl run`, a node that ends by itself is started again; which did, and how, is kept.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coordinator.embedded.broker import Broker
from coordinator.embedded.brokers import Brokers
from tests.faults.network import Network, Relays, why_no_networks
from tests.integration.cluster import CRASHED, Child, Cluster, can_mount

OPTIONS = ("--ddl-timeout-ms", "4000")
NODES, INDEXERS = 3, 3
INDEXER_ON_DISK = "indexer-1"
NETWORK, DISK = "network", "disk"
CODED = re.compile(r"\[[a-z_]+\]$")


def waived() -> frozenset[str]:
    """Return what `CHAOS_WAIVE` excuses from being tried here: `network`, `disk`."""
    return frozenset(filter(None, os.environ.get("CHAOS_WAIVE", "").split(",")))


def not_here() -> dict[str, str]:
    """Return which means of hurting a cluster this machine does not give, and why."""
    found = {NETWORK: why_no_networks(), DISK: "" if can_mount() else "mounting needs root"}
    return {what: why for what, why in found.items() if why}


def require_means() -> None:
    """Fail where a fault cannot be tried and is not waived; say loudly which one is."""
    for what, why in not_here().items():
        assert what in waived(), f"{what}: {why}. To go without it, set CHAOS_WAIVE={what}"
        print(f"!!! WAIVED: faults of the {what} are NOT tried here: {why}", flush=True)


class Exit(NamedTuple):
    """A process that ended by itself."""

    at: float
    name: str
    code: int
    said: str
    is_fault: bool
    """Whether no fault from outside explains it."""

    def __str__(self) -> str:
        return f"{self.name} ended by itself with {self.code}: {self.said}"


def _last_words(lines: Sequence[str]) -> str:
    """Return the last line that ends with an error code, or else the last one."""
    coded = [line for line in lines if CODED.search(line)]
    return (coded or lines or [""])[-1]


def _is_fault(code: int, said: str) -> bool:
    """Tell whether a process ended by a fault of its own: it gave up for good, or crashed."""
    return code not in (0, 1) or any(mark in said for mark in CRASHED)


class FaultCluster(Cluster):
    """Three nodes, each in a network and on a disk of its own, and three indexers."""

    def __init__(self, folder: Path, brokers: Brokers, *, options: Sequence[str] = OPTIONS) -> None:
        copies = min(3, len(brokers.members))
        more = ("--replication-factor", str(copies)) if copies > 1 else ()
        disks = [f"node-{n}" for n in range(1, NODES + 1)] + [INDEXER_ON_DISK]
        missing = not_here()
        super().__init__(
            folder,
            brokers.bootstrap_servers,
            nodes=NODES,
            indexers=INDEXERS,
            options=(*options, *more),
            own_disks=() if DISK in missing else disks,
        )
        self.brokers = brokers
        self.disks = frozenset(() if DISK in missing else disks)
        self.networks: dict[int, Network] = {}
        self.exits: list[Exit] = []
        self._has_networks = NETWORK not in missing
        self._down: set[str] = set()
        self._told: dict[str, int] = {}

    def start(self) -> FaultCluster:
        if self._has_networks and not self.networks:
            self._build_networks()
        super().start()
        return self

    def _build_networks(self) -> None:
        ports = [broker.port for broker in self.brokers.members]
        legs = []
        for number, node in self.nodes.items():
            network = Network(number, self.logs / "networks.log")
            self._stack.callback(network.close)
            self.networks[number] = network
            node.prefix = network.prefix
            legs += network.legs(ports, node.port)
        relays = Relays(legs, self.logs / "relays.log")
        self._stack.callback(relays.close)

    # -- what a supervisor does --------------------------------------------------------------

    def _is_kept(self, child: Child) -> bool:
        return child.name not in self._down

    def _note_end(self, child: Child, at: float) -> None:
        assert child.process is not None
        said = child.said[self._told.get(child.name, 0) :]
        code = child.process.returncode
        last = _last_words(said.strip().splitlines())
        self.exits.append(Exit(at, child.name, code, last, _is_fault(code, said)))
        self._told[child.name] = len(child.said)

    def kill(self, child: Child) -> None:
        """Kill a process; it stays dead until `revive`."""
        with self._lock:
            self._down.add(child.name)
            child.kill()
            self._told[child.name] = len(child.said)

    def revive(self, child: Child) -> None:
        """Start a process that was killed."""
        with self._lock:
            if not child.runs:
                child.start()
            self._down.discard(child.name)

    def pause(self, child: Child) -> None:
        with self._lock, suppress(ProcessLookupError):
            if child.runs:
                child.pause()

    def resume(self, child: Child) -> None:
        with self._lock, suppress(ProcessLookupError):
            if child.runs:
                child.resume()

    # -- brokers -----------------------------------------------------------------------------

    @staticmethod
    def kill_broker(broker: Broker) -> None:
        broker.kill()

    @staticmethod
    def pause_broker(broker: Broker) -> None:
        if broker.pid is not None:
            os.kill(broker.pid, signal.SIGSTOP)

    @staticmethod
    def heal_broker(broker: Broker) -> None:
        """Have the broker run, whatever was done to it."""
        if broker.pid is None:
            broker.start()
        else:
            os.kill(broker.pid, signal.SIGCONT)

    # -- all at once -------------------------------------------------------------------------

    def heal(self) -> None:
        """Undo every fault that may be in force, and start what is down."""
        for broker in self.brokers.members:
            self.heal_broker(broker)
        for network in self.networks.values():
            network.heal()
        for child in self.children:
            self.resume(child)
            if child.name in self.disks:
                (child.folder / "filler").unlink(missing_ok=True)
            self.revive(child)

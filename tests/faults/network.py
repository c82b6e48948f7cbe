"""A network of its own for a node, which can be cut off from Kafka: namespaces, veth, tc.

A node in its namespace sees Kafka at the address at which everybody sees it, loopback: there a
relay listens, whose way on leads over a veth pair. That pair is what is cut, and packets are lost,
not refused. Clients reach the node by a relay that does not use the pair, so a node that Kafka
cannot hear still hears clients.

Nothing can be left behind: a namespace lives as long as the process that holds it, which ends with
the test's; its end of the veth pair takes the other one along.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from coordinator.embedded.ports import LOOPBACK
from coordinator.embedded.processes import spawn
from tests.faults.relay import End
from tests.integration.cluster import wait_until

LINK_LOCAL = ipaddress.ip_network("169.254.0.0/16")
CUTS = ("both", "out", "in")


def why_no_networks() -> str:
    """Say why no namespace can be made here, or return an empty text."""
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    try:
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return error.stderr.decode(errors="replace").strip()
    return ""


class Network:
    """The namespace of one node, joined to the test's by a veth pair."""

    def __init__(self, number: int, log: Path) -> None:
        with log.open("ab") as output:
            self._holder = spawn(["unshare", "--net", "sleep", "infinity"], output=output)
        self.pid = self._holder.pid
        tag = f"{os.getpid() % 0xFFFFF:05x}{number}"
        self._near, self._far = f"cx{tag}", f"cy{tag}"
        self.address, self._inner = _free_pair()
        self.cut_now = ""
        try:
            wait_until(self._is_made, "a network namespace")
            self._wire()
        except BaseException:
            self.close()
            raise

    def _is_made(self) -> bool:
        own = os.readlink("/proc/self/ns/net")
        return os.readlink(f"/proc/{self.pid}/ns/net") != own and self._holds()

    def _holds(self) -> bool:
        """Tell whether the holder is there for good: `unshare` has become `sleep`."""
        return Path(f"/proc/{self.pid}/comm").read_text().strip() == "sleep"

    def _wire(self) -> None:
        peer = ["peer", "name", self._far, "netns", str(self.pid)]
        _run("ip", "link", "add", self._near, "type", "veth", *peer)
        _run("ip", "address", "add", f"{self.address}/30", "dev", self._near)
        _run("ip", "link", "set", self._near, "up")
        inside = [*self.prefix]
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "address", "add", f"{self._inner}/30", "dev", self._far)
        _run(*inside, "ip", "link", "set", self._far, "up")

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that shall run in the namespace."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net")

    def legs(self, brokers: Sequence[int], port: int) -> list[tuple[End, End]]:
        """Return the relays of a node whose API is on `port`: Kafka's ports in, its own out."""
        found: list[tuple[End, End]] = [((0, LOOPBACK, port), (self.pid, LOOPBACK, port))]
        for broker in brokers:
            found.append(((self.pid, LOOPBACK, broker), (self.pid, self.address, broker)))
            found.append(((0, self.address, broker), (0, LOOPBACK, broker)))
        return found

    def cut(self, way: str) -> None:
        """Lose every packet: from the node (`out`), to it (`in`), or `both`."""
        assert way in CUTS, way
        self.cut_now = way
        if way in ("both", "out"):
            _run(*self.prefix, *_loss("add", self._far))
        if way in ("both", "in"):
            _run(*_loss("add", self._near))

    def heal(self) -> None:
        """Let packets through again."""
        way, self.cut_now = self.cut_now, ""
        if way in ("both", "out"):
            _run(*self.prefix, *_loss("delete", self._far))
        if way in ("both", "in"):
            _run(*_loss("delete", self._near))

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


def _loss(what: str, device: str) -> list[str]:
    """A queue without room takes no packet: the one way to lose all that every kernel has."""
    return ["tc", "qdisc", what, "dev", device, "root", "pfifo", "limit", "0"]


class Relays:
    """The process that relays for all nodes of a cluster."""

    def __init__(self, legs: Sequence[tuple[End, End]], log: Path) -> None:
        command = [sys.executable, "-m", "tests.faults.relay", json.dumps(legs)]
        root = Path(__file__).parents[2]
        with log.open("wb") as output:
            self._process = spawn(command, output=output, cwd=root)
        try:
            wait_until(lambda: "ready" in log.read_text(), "the relays listen")
        except AssertionError as error:
            self.close()
            raise AssertionError(f"{error}: {log.read_text()[-2000:]}") from None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _free_pair() -> tuple[str, str]:
    """Return two neighbouring link-local addresses that nobody here has."""
    shown = subprocess.run(["ip", "-o", "-4", "address"], capture_output=True, text=True).stdout
    for _ in range(100):
        third, fourth = random.randrange(1, 255), 4 * random.randrange(64)
        if f"169.254.{third}." not in shown:
            first = LINK_LOCAL.network_address + 256 * third + fourth
            return str(first + 1), str(first + 2)
    raise AssertionError("no free link-local addresses")

"""Loopback TCP ports: is one free, and which one shall it be."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"

# Below the range from which systems take the ports of outgoing connections (from 32768 on Linux,
# from 49152 elsewhere): a port found free here is not taken by a mere client a moment later.
PICK_FROM = range(20_000, 30_000)
PICKS_MAX = 200


def is_free(port: int) -> bool:
    """Return whether a server could listen on the loopback `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts(port: int, *, timeout_s: float = 1.0) -> bool:
    """Return whether something accepts connections on the loopback `port`."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def pick_free(*, avoid: Collection[int] = ()) -> int:
    """Return a free port that is none of `avoid`."""
    for _ in range(PICKS_MAX):
        port = random.choice(PICK_FROM)
        if port not in avoid and is_free(port):
            return port
    raise OSError(f"no free port in {PICK_FROM.start}..{PICK_FROM.stop - 1}")

"""What all routes share: how long a request may take, and how a read is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from starlette.responses import Response

from coordinator.core.model.stream_records import HwHeartbeat
from coordinator.core.node import Node
from coordinator.http.aside import VIEWS
from coordinator.http.errors import json_response
from coordinator.node.shell import Shell

DEADLINE_MS = 15_000
MS_MAX = 2**53 - 1
"""The latest time that a request can name: JSON has no larger whole number."""

APPLIED_CAS = "X-Applied-Cas"
"""The header that tells which CAS the answering node has applied."""


Consistency = Literal["local", "linearizable"] | None
"""Of a read; None: linearizable on the master, local elsewhere."""


def explained(shell: Shell, bucket: str, message: str) -> str:
    """Return why there is no stability timestamp of a bucket, with what this node hears of the
    application that would compute one."""
    if shell.node.peers.application_of(bucket) is not None:
        return message
    return f"{message}; no application that computes timestamps for it is heard (does one run?)"


def watermarks(node: Node) -> dict[str, list[HwHeartbeat]] | None:
    """Return what the live indexers say that they hold, by bucket, in one pass over all that was
    heard; None: this node is not the master."""
    if node.master is None:
        return None
    found: dict[str, list[HwHeartbeat]] = {}
    peers = node.peers
    for (bucket, indexer), beat in sorted(peers.watermarks.items(), key=lambda item: item[0]):
        peer = peers.indexers.get(indexer)
        if peer is not None and peers.alive(peer) and peer.beat.incarnation == beat.incarnation:
            found.setdefault(bucket, []).append(beat)
    return found


def read_answer(shell: Shell, body: Any) -> Response:
    """Return what was read, with the CAS that this node has applied."""
    return json_response(body, 200, {APPLIED_CAS: str(shell.node.state.cas)})


async def read_aside(shell: Shell, build: Callable[[], Any]) -> Response:
    """Answer with something that may be large: built in a thread, from a state that cannot
    change, so that the node goes on meanwhile."""
    cas = shell.node.state.cas
    return await VIEWS.run(lambda: json_response(build(), 200, {APPLIED_CAS: str(cas)}))

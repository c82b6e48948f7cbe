"""What a node asks of the system: it says "accepted" only after the system has said "synced".

`strace` sees the process from outside: what it wrote to RocksDB's log, when `fdatasync` returned,
and what it sent after that.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pytest

from coordinator.core.model.records import ACCEPTED
from coordinator.node.store import CAS
from schemas.registry import HEAD_BYTES, registry
from tests.integration.cluster import Cluster, NodeChild, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.matrix,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]

Make = Callable[..., Cluster]
WRITES = 25

LINE = re.compile(r"^(\d+) +(<\.\.\. )?(\w+)(?:\(| resumed>)(.*)$")
FILE = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def traced(node: NodeChild, trace: Path) -> None:
    """Have the node watched by a process of its own, which ends when the node does."""
    calls = "write,pwrite64,writev,fdatasync,fsync,sendmsg,sendto"
    options = ["-D", "-f", "-y", "-xx", "-s", "4000000", "-e", f"trace={calls}", "-o", str(trace)]
    argv = ["strace", *options, *NodeChild.argv(node)]
    node.argv = lambda: argv  # type: ignore[method-assign]


def plain(text: str) -> bytes:
    """Return the bytes that `strace -xx` shows."""
    return bytes.fromhex(text.replace("\\x", ""))


def file_of(rest: str) -> str:
    """Return the name of the file that a call is about, or nothing."""
    found = FILE.match(rest)
    return plain(found[1]).decode() if found else ""


def records(payload: bytes, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where the records of this name begin, and their fields."""
    schema = registry().current[name]
    at = payload.find(schema.head)
    while at >= 0:
        body = io.BytesIO(payload[at + HEAD_BYTES :])
        fields: Any = fastavro.schemaless_reader(body, schema.parsed, None)
        yield at, fields
        at = payload.find(schema.head, at + 1)


@dataclass
class Trace:
    """What is known of one process while its trace is read, call by call."""

    node: int
    written: dict[str, set[int]] = field(default_factory=dict)
    """Offsets of the proposals that went into a file."""
    synced: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    early: list[int] = field(default_factory=list)
    """Proposals that were said to be accepted before they were synced."""
    _syncing: dict[str, set[int]] = field(default_factory=dict)

    def read(self, path: Path) -> Trace:
        with path.open() as file:
            for line in file:
                found = LINE.match(line)
                if found is None:
                    continue
                thread, resumed, call, rest = found.groups()
                if call in ("fdatasync", "fsync"):
                    self._sync(thread, rest, begins=not resumed)
                elif not resumed:
                    self._write(call, file_of(rest), plain("".join(TEXT.findall(rest))))
        return self

    def _write(self, call: str, file: str, payload: bytes) -> None:
        if call.startswith("send"):
            self._send(payload)
        elif file.endswith(".log"):
            for at, _ in records(payload, "TransactionProposed"):
                offset = CAS.unpack(payload[at - CAS.size : at])[0]
                self.written.setdefault(file, set()).add(offset)

    def _sync(self, thread: str, rest: str, *, begins: bool) -> None:
        """What was written before a sync began is durable when it has ended well."""
        if begins:
            self._syncing[thread] = set(self.written.get(file_of(rest), ()))
        if rest.endswith("= 0"):
            self.synced |= self._syncing.pop(thread, set())

    def _send(self, payload: bytes) -> None:
        said = [
            fields["proposal_offset"]
            for _, fields in records(payload, "ProposalAnswered")
            if fields["answer"] == ACCEPTED and fields["node"] == self.node
        ]
        for _, fields in records(payload, "TransactionCommitted"):
            if self.node in fields["accepted"]:
                said.append(fields["proposal_offset"])
        self.told.update(said)
        self.early += [offset for offset in said if offset not in self.synced]


def test_the_system_synced_what_a_node_says_it_has_accepted(
    make_cluster: Make, tmp_path: Path
) -> None:
    cluster = make_cluster(indexers=0)
    traces = {number: tmp_path / f"node-{number}" for number in cluster.nodes}
    for number, node in cluster.nodes.items():
        traced(node, traces[number])
    cluster.start()
    with cluster.client() as client:
        for number in range(WRITES):
            client.put_config(f"k/{number % 7}", number)
    cluster.settled()
    for node in cluster.nodes.values():
        node.stop()
    for number, path in traces.items():
        wait_until(lambda path=path: "+++ exited" in path.read_text()[-4000:], "the trace's end")
        seen = Trace(number).read(path)
        assert len(seen.told) >= WRITES, "each node has accepted each write"
        assert seen.early == []

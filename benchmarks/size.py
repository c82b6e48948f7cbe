"""How much the topics hold as time goes by: a simulated time of steady writes, with real records.

One node, in this process, with the core and the codec of production and no broker. What Kafka would
hold is counted by the bytes of keys and values, without the headers of batches. Time is simulated.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from coordinator import codec
from coordinator.client.request_ids import uuid7
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import PutSetting
from tests.support.lone_node import LoneNode

RATE = 10
"""Mutations a second."""

KEYS = 20_000
STEP_MS = 50
HOUR_MS = 3_600_000
MONTH_HOURS = 30 * 24
SEED = 7


class Topics(LoneNode):
    """A node whose topics are counted, and not kept beyond what the protocol keeps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.commit_bytes = self.written_bytes = self.history_bytes = self.copies_bytes = 0
        self.statecontext: dict[str, int] = {}
        """The bytes of each key's last record, as compaction leaves them."""
        self.copies = self.trims = 0
        self._counted = self._trimmed = 0
        self._settled = 0
        self.replaced |= {
            fx.WriteEvents: self._write,
            fx.WriteHistory: self._history,
            fx.TakeSnapshot: self._copy,
            fx.Trim: self._trim,
        }

    def count(self) -> None:
        """Count what came to `commit`."""
        new = sum(map(len, self.log[self._counted :]))
        self._counted = len(self.log)
        self.commit_bytes += new
        self.written_bytes += new

    def _write(self, effect: fx.WriteEvents) -> None:
        offsets = tuple(range(self._settled, self._settled + len(effect.events)))
        self._settled += len(offsets) + 1
        for event in effect.events:
            key = event.mutation.key
            self.statecontext[key] = len(key) + len(codec.encode(event))
        self._later(inp.Written(effect.token, offsets))

    def _history(self, effect: fx.WriteHistory) -> None:
        self.history_bytes += sum(
            len(event.mutation.key) + len(codec.encode(event)) for event in effect.events
        )

    def _copy(self, effect: fx.TakeSnapshot) -> None:
        self.copies += 1
        self.copies_bytes += sum(len(codec.encode(c)) for c in chunks(effect.copy, effect.state))
        self._later(inp.SnapshotTaken(effect.token, self.copies))

    def _trim(self, effect: fx.Trim) -> None:
        self.count()
        self.trims += 1
        for offset in range(self._trimmed, effect.offset):
            self.commit_bytes -= len(self.log[offset])
            self.log[offset] = b""
        self._trimmed = effect.offset


def size(hours: int = 6) -> dict[str, Any]:
    """Return what the topics hold after some hours of `RATE` writes a second, and the month's sum.

    `commit` is given by its most in the first and the second half: it must not grow. The writes go
    to `KEYS` settings of some 100 bytes, each with a request id, so that its outcome is kept.
    """
    began = time.monotonic()
    chance = random.Random(SEED)
    node = Topics()
    node.start()
    steps = hours * HOUR_MS // STEP_MS
    most = [0, 0]
    writes = 0
    for step in range(steps):
        node.run(STEP_MS)
        if step * STEP_MS % (1_000 // RATE) == 0:
            value = json.dumps({"n": writes, "s": "x" * 80})
            command = PutSetting(f"month/{chance.randrange(KEYS):05d}", value)
            print_ = codec.fingerprint(command, None)
            name = uuid7(node.wall_ms, chance.getrandbits(80))
            node.send(command, id=name, recorded=True, fingerprint=print_)
            writes += 1
        node.count()
        half = 2 * step // steps
        most[half] = max(most[half], node.commit_bytes)
    assert len(node.replies) == writes, "each was answered"
    times = MONTH_HOURS / hours
    mib = 1 / 2**20
    return {
        "hours": hours,
        "writes": writes,
        "commit_most_mib": [round(m * mib, 1) for m in most],
        "commit_written_mib": round(node.written_bytes * mib, 1),
        "statecontext_mib": round(sum(node.statecontext.values()) * mib, 1),
        "outcomes_remembered": len(node.node.outcomes),
        "copies": node.copies,
        "trims": node.trims,
        "month_mib": {
            "commit": round(max(most) * mib, 1),
            "statecontext": round(sum(node.statecontext.values()) * mib, 1),
            "snapshots": round(node.copies_bytes * mib * times),
            "history": round(node.history_bytes * mib * times),
        },
        "untrimmed_month_mib": round(node.written_bytes * mib * times),
        "took_s": round(time.monotonic() - began, 1),
    }

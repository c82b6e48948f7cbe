"""Faults of the key-value store on request: frames of its streams that are lost or late. Pure.

A fault matches frames of one kind, of a bucket and of vbuckets where it names them, `count` times
or for good. The first one that matches a frame has its effect; it is forgotten with its last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("begin", "end", "sync", "mutations")
DROP, DELAY = "drop", "delay"


@dataclass(kw_only=True)
class Fault:
    """`delay`: such a frame holds up its connection for `delay_ms`, with all that comes after."""

    id: int
    kind: str
    action: str
    bucket: str | None = None
    vbuckets: frozenset[int] | None = None
    stream: str | None = None
    """Only in streams of this kind."""
    count: int | None = None
    """How often from now on; None: for good."""
    delay_ms: int = 0
    hits: int = 0

    def matches(self, kind: str, bucket: str, vbucket: int, stream: str) -> bool:
        return (
            self.kind == kind
            and self.bucket in (None, bucket)
            and self.stream in (None, stream)
            and (self.vbuckets is None or vbucket in self.vbuckets)
        )

    def as_json(self) -> dict[str, Any]:
        vbuckets = None if self.vbuckets is None else sorted(self.vbuckets)
        return {**asdict(self), "vbuckets": vbuckets}


class Faults:
    """The faults that are asked for at present, in their order."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._next = 1

    def __bool__(self) -> bool:
        return bool(self._faults)

    def all(self) -> list[Fault]:
        return list(self._faults.values())

    def add(
        self,
        kind: str,
        action: str,
        *,
        bucket: str | None = None,
        vbuckets: Sequence[int] | None = None,
        stream: str | None = None,
        count: int | None = None,
        delay_ms: int = 0,
    ) -> Fault:
        """Ask for a fault. ValueError: that is none."""
        if kind not in KINDS or action not in (DROP, DELAY):
            raise ValueError(f"there is no fault {action} {kind}")
        if kind == "mutations" and action == DROP:
            raise ValueError("mutations can be delayed, not dropped")
        if (delay_ms > 0) != (action == DELAY):
            raise ValueError("delay needs delay_ms, and drop has none")
        only = None if vbuckets is None else frozenset(vbuckets)
        fault = Fault(
            id=self._next,
            kind=kind,
            action=action,
            bucket=bucket,
            vbuckets=only,
            stream=stream,
            count=count,
            delay_ms=delay_ms,
        )
        self._faults[fault.id] = fault
        self._next += 1
        return fault

    def clear(self) -> int:
        """Forget all of them; tell how many there were."""
        count = len(self._faults)
        self._faults.clear()
        return count

    def remove(self, fault: int) -> bool:
        return self._faults.pop(fault, None) is not None

    def trigger(self, kind: str, bucket: str, vbucket: int, stream: str) -> Fault | None:
        """Return what happens to a frame, and count it."""
        for fault in self._faults.values():
            if not fault.matches(kind, bucket, vbucket, stream):
                continue
            fault.hits += 1
            if fault.count is not None:
                fault.count -= 1
                if fault.count == 0:
                    del self._faults[fault.id]
            return fault
        return None

"""The prepare phase of DDL: what the master still waits for from indexers.

Pure. It follows from the StateContext alone, so a new master knows it as soon as it has the state:
every index in `init` waits for "allocated" from all its hosts, every index in `dropping` for
"released". Indexers repeat their answers until the state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.core.model.commands import Command, ForgetIndex, MarkReady, UndoIndex
from coordinator.core.model.entities import DROPPING, INIT, Index, Shard
from coordinator.core.model.records import ALLOCATED, REFUSED, RELEASED, SliceAnswered

REASON_LENGTH_MAX = 500
"""So much of an indexer's reason is kept: it becomes a part of the index."""


@dataclass(slots=True)
class Wait:
    """One index that hosting indexers must answer for; `answered` has their shards."""

    state: str
    hosts: frozenset[int]
    since_ms: int
    is_part: bool = False
    answered: dict[int, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def missing(self) -> frozenset[int]:
        """The hosts that have not answered: the index goes on only once there are none."""
        return self.hosts - self.answered.keys()


class Prepares:
    """All indexes that wait for their indexers, by id."""

    def __init__(self, indexes: Iterable[Index], now_ms: int) -> None:
        self._waits: dict[int, Wait] = {}
        for index in indexes:
            self.observe(index.id, index, now_ms)

    def __len__(self) -> int:
        return len(self._waits)

    def observe(self, index_id: int, index: Index | None, now_ms: int) -> None:
        """Take note of an index's new state; None when it is gone."""
        if index is None or index.state not in (INIT, DROPPING):
            self._waits.pop(index_id, None)
        else:
            self._waits[index_id] = Wait(index.state, index.hosts, now_ms, index.part_of != 0)

    def count(self, answer: SliceAnswered) -> Command | None:
        """Count an indexer's answer; return the command that it completes, if any."""
        wait = self._waits.get(answer.index_id)
        if wait is None or answer.indexer not in wait.hosts:
            return None
        if wait.state == INIT and answer.answer == REFUSED:
            wait.refusal = f"indexer {answer.indexer}: {answer.reason[:REASON_LENGTH_MAX]}"
        elif answer.answer == (ALLOCATED if wait.state == INIT else RELEASED):
            wait.answered[answer.indexer] = answer.shard
        return self._due(answer.index_id, wait)

    def overdue(
        self, now_ms: int, timeout_ms: int, is_lost: Callable[[int], bool]
    ) -> list[Command]:
        """Return what to do about indexes whose indexers stayed silent too long.

        One that is lost is not waited for where an index is dropped: if it comes back, it reads
        that the index is gone, and releases the storage. A part of an index that moves has nobody
        who waits for its answer: it is given up only when its indexer is lost.
        """
        found: list[Command] = []
        for index_id, wait in self._waits.items():
            if wait.state == DROPPING:
                wait.answered |= {host: 0 for host in wait.missing if is_lost(host)}
            elif not wait.refusal and now_ms - wait.since_ms > timeout_ms:
                wait.refusal = _refusal(wait, timeout_ms, is_lost)
            due = self._due(index_id, wait)
            if due is not None:
                found.append(due)
        return found

    @staticmethod
    def _due(index_id: int, wait: Wait) -> Command | None:
        if wait.refusal:
            return UndoIndex(index_id, wait.refusal)
        if not wait.missing:
            shards = tuple(Shard(i, shard) for i, shard in sorted(wait.answered.items()))
            return MarkReady(index_id, shards) if wait.state == INIT else ForgetIndex(index_id)
        return None


def _refusal(wait: Wait, timeout_ms: int, is_lost: Callable[[int], bool]) -> str:
    """Say why indexers are not waited for any more, or nothing."""
    silent = sorted(wait.missing)
    if not wait.is_part:
        return f"indexers {silent} did not answer within {timeout_ms} ms" if silent else ""
    lost = [host for host in silent if is_lost(host)]
    return f"indexer {lost[0]} is not alive" if lost else ""

"""All commands that a master has taken and not answered; those in flight are with the committer.

Pure. A command waits in the queue until a group takes it. It is parked while an index that it
depends on is being created. The creator of an index waits until the index is ready. Commands of the
master itself (`upkeep`) stand beside them, one for each key. Each caller is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from coordinator.core.catalog.state import StateContext
from coordinator.core.catalog.transactions import with_indexes
from coordinator.core.consensus.effects import Reply
from coordinator.core.consensus.signals import Result
from coordinator.core.leader.command_queue import CommandQueue
from coordinator.core.leader.transaction import Enlisted
from coordinator.core.leader.verdicts import Ending, dated, why_undone
from coordinator.core.model.commands import (
    REFUSED,
    Command,
    Outcome,
    Request,
    Transact,
    unknown,
)
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.entities import Index
from coordinator.core.model.records import TransactionCommitted

UNDER_WAY = unknown(
    "unavailable",
    "the index is being created, and the master is changing: repeat with the same id",
)

BACKLOG_MAX = 512
BACKLOG_BYTES_MAX = 16 * 1024 * 1024
"""Above this nothing is read from the `ddl` topic: it keeps for as long as it takes."""


@dataclass(slots=True, eq=False)
class Creator:
    """A caller whose request has created indexes, and who is told when the last of them is done.

    `outcome` is what a transaction comes to; a CREATE comes to what becomes of its index.
    """

    request: Request
    outcome: Outcome
    waits_for: tuple[int, ...]
    left: set[int]
    reasons: dict[int, str] = field(default_factory=dict)
    """Why indexes were undone."""


def is_unfinished(state: StateContext, index_id: int) -> bool:
    """Tell whether the request that made an index still waits for what becomes of it."""
    held = state.index_by_id(index_id)
    return held is not None and isinstance(held.entity, Index) and held.entity.is_unfinished


class RequestTable:
    """The commands that wait, by what they wait for."""

    def __init__(self) -> None:
        self.queue = CommandQueue()
        self.early = CommandQueue()
        """Those that wait until the master knows what they rest on."""
        self.upkeep: dict[str, Request] = {}
        self.parked: dict[int, list[Request]] = {}
        """By the index whose creation they wait for."""
        self.creators: dict[int, Creator] = {}
        """By an index that they have created."""
        self.callers = 0
        """How many callers wait for a command, in the table or in flight."""

    @property
    def is_long(self) -> bool:
        """Tell whether so many commands wait that none shall be read from the topic now."""
        return len(self.queue) > BACKLOG_MAX or self.queue.size_bytes > BACKLOG_BYTES_MAX

    # -- what comes in -----------------------------------------------------------------------

    def requested(
        self, config: NodeConfig, request: Request, *, is_early: bool = False
    ) -> list[Result]:
        """Queue a caller's command; the queue has bounds, and says so."""
        size_bytes = self.queue.size_bytes + self.early.size_bytes
        if self.callers >= config.queue_max or size_bytes > config.queue_bytes_max:
            overloaded = unknown("overloaded", "too many commands wait: retry")
            return [Reply(request.token, overloaded)]
        self.callers += 1
        (self.early if is_early else self.queue).append(request)
        return []

    def let_in(self) -> None:
        """What the early ones have waited for is known: they come first."""
        self.queue.push_front(self.early)
        self.early.clear()

    def want(self, key: str, command: Command) -> None:
        """Enter a command of the master's own into the next group, once."""
        if key not in self.upkeep:
            self.upkeep[key] = Request(command=command, principal="coordinator", key=key)

    # -- what becomes of them ----------------------------------------------------------------

    def decided(self, request: Request) -> None:
        """A command of the master's own has been decided for good."""
        if request.key and self.upkeep.get(request.key) is request:
            del self.upkeep[request.key]

    def park(self, index_id: int, request: Request) -> None:
        """Let a command wait for what becomes of an index."""
        self.parked.setdefault(index_id, []).append(request)

    def unpark(self, index_id: int) -> None:
        """The index is made or gone, or has changed since: those that waited for it come first."""
        self.queue.push_front(self.parked.pop(index_id, []))

    def reply(self, request: Request, outcome: Outcome) -> list[Result]:
        """Tell the caller, if there is one."""
        if not request.token:
            return []
        self.callers -= 1
        return [Reply(request.token, outcome)]

    def committed(
        self, state: StateContext, held: Enlisted, record: TransactionCommitted, is_deposed: bool
    ) -> list[Result]:
        """The verdict *commit* was read back: callers hear, creators wait for READY."""
        command = held.request.command
        outcome = dated(held, record.cas, str(record.txn))
        self.decided(held.request)
        told = [
            result
            for one in held.ends
            for result in self._tell_creator(state, one.index.id, one.outcome)
        ]
        if held.waits_for and is_deposed:
            return told + self.reply(held.request, UNDER_WAY)
        if held.waits_for:
            if held.request.token:
                waits_for = held.waits_for
                creator = Creator(held.request, outcome, waits_for, set(waits_for))
                self.creators.update(dict.fromkeys(waits_for, creator))
            return told
        if isinstance(command, Ending):
            if is_unfinished(state, command.index_id):
                return told
            undone = why_undone(command)
            return told + self._tell_creator(state, command.index_id, undone or outcome)
        return told + self.reply(held.request, outcome)

    def _tell_creator(self, state: StateContext, index_id: int, outcome: Outcome) -> list[Result]:
        creator = self.creators.pop(index_id, None)
        if creator is None:
            return []
        creator.left.discard(index_id)
        if not isinstance(creator.request.command, Transact):
            return self.reply(creator.request, outcome)
        if outcome.status == REFUSED:
            creator.reasons[index_id] = outcome.message
        if creator.left:
            return []
        whole = with_indexes(creator.outcome, state, creator.waits_for, creator.reasons)
        return self.reply(creator.request, whole)

    def rolled_back(
        self, config: NodeConfig, enlisted: Iterable[Enlisted], reason: str
    ) -> list[Result]:
        """The verdict *rollback* was read back: try again, within bounds."""
        found: list[Result] = []
        again: list[Request] = []
        for held in enlisted:
            request = replace(held.request, attempts=held.request.attempts + 1)
            if request.token and request.attempts >= config.attempts_max:
                found += self.reply(request, unknown("unavailable", f"rolled back: {reason}"))
            elif request.token or request.position:
                again.append(request)
        self.queue.push_front([*again, *self._unpark_published()])
        return found

    def _unpark_published(self) -> list[Request]:
        """Take published commands out of the parking: those before them are decided again."""
        published: list[tuple[int, int, Request]] = []
        for number, requests in list(self.parked.items()):
            places = ((r.position, r) for r in requests)
            published += [(p.partition, p.offset, r) for p, r in places if p is not None]
            self.parked[number] = [r for r in requests if r.position is None]
            if not self.parked[number]:
                del self.parked[number]
        return [request for *_, request in sorted(published, key=lambda row: row[:2])]

    def _creators(self) -> list[Creator]:
        """Return each creator once, however many indexes it waits for."""
        return list(dict.fromkeys(self.creators.values()))

    # -- the end of patience, and of the mastership ------------------------------------------

    def expire(self, now_ms: int, why: str) -> list[Result]:
        """Tell callers whose deadline has passed that the fate of their request is unknown."""
        late = [*self.early.take_late(now_ms), *self.queue.take_late(now_ms)]
        table = self.parked
        for number, requests in list(table.items()):
            late += [r for r in requests if r.token and r.deadline_ms <= now_ms]
            table[number] = [r for r in requests if not (r.token and r.deadline_ms <= now_ms)]
            if not table[number]:
                del table[number]
        creators = self._creators()
        late += [c.request for c in creators if c.request.deadline_ms <= now_ms]
        for number, creator in list(self.creators.items()):
            if creator.request.deadline_ms <= now_ms:
                del self.creators[number]
        outcome = unknown("timeout", why)
        return [result for request in late for result in self.reply(request, outcome)]

    def expire_enlisted(self, enlisted: Iterable[Enlisted], now_ms: int, why: str) -> list[Result]:
        """Tell those in the transaction as much; what it does with their requests stays open."""
        found: list[Result] = []
        for held in enlisted:
            if held.request.token and held.request.deadline_ms <= now_ms:
                found += self.reply(held.request, unknown("timeout", why))
                held.request = replace(held.request, token=0)
        return found

    def depose(self, answer: Outcome) -> list[Result]:
        """Answer everybody of whom nothing was proposed with this, and creators with what is."""
        found: list[Result] = []
        parked = (request for waiting in self.parked.values() for request in waiting)
        for request in (*self.early, *self.queue, *parked):
            found += self.reply(request, answer)
        for creator in self._creators():
            found += self.reply(creator.request, UNDER_WAY)
        self.early.clear()
        self.queue.clear()
        self.parked.clear()
        self.creators.clear()
        return found

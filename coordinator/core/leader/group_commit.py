"""Which commands go into one transaction: decided one by one against the committed state.

Pure. The footprint of a command is the set of keys that its decision depends on. The footprints of
a group are disjoint, so each command is decided as if it were alone. Forming a group costs what
goes into it, however many commands wait: the group ends at the first command that does not fit. If
a command has to wait, later commands with a common key wait behind it, so none overtakes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from coordinator.core.catalog import ddl, decisions
from coordinator.core.catalog.placement import Candidate
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.leader.request_table import RequestTable
from coordinator.core.leader.transaction import Enlisted
from coordinator.core.model.commands import (
    OK,
    Outcome,
    Request,
    RewriteEntities,
    SkipRecord,
    Transact,
    UndoIndex,
    refused,
)
from coordinator.core.model.entities import Consumed, Index, consumed_key, request_key
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas, Offset, TxnId, number_in

PLAIN_BYTES = 64
"""What a mutation weighs in a proposal beside its key and value."""


class UnchangedRequest(NamedTuple):
    """A command that changes nothing: its caller is told behind a read barrier."""

    request: Request
    outcome: Outcome


@dataclass(slots=True, kw_only=True)
class Group:
    """A group of commands while it is being formed."""

    txn: TxnId
    indexers: list[Candidate]
    vbuckets: dict[str, int]
    partitions: set[int]
    """Of `ddl`: in each a command waits, and whatever comes after it does, too."""
    enlisted: list[Enlisted] = field(default_factory=list)
    answered: list[UnchangedRequest] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    size_bytes: int = 0
    touched: set[str] = field(default_factory=set)
    consumed: dict[int, int] = field(default_factory=dict)
    load: dict[int, int] = field(default_factory=dict)
    is_closed: bool = False
    """The next command did not fit: nothing that came after it goes in, either."""

    @property
    def count(self) -> int:
        """How many mutations it comes to, one for each partition of `ddl` included."""
        return len(self.mutations) + len(self.consumed)

    def block(self, request: Request, keys: frozenset[str]) -> None:
        """Whatever comes after a command that waits, and meets it, waits behind it."""
        self.touched |= keys
        if request.position is not None:
            self.partitions.add(request.position.partition)


class GroupCommit:
    """Forms groups of the commands that wait in a table of requests."""

    def __init__(self, requests: RequestTable, codec: EntityCodec) -> None:
        self._requests = requests
        self._codec = codec
        self._waits_for_all = False
        """A command did not fit beside others: the next group is formed without upkeep."""

    def form(self, view: NodeView, txn: TxnId) -> Group:
        """Take what goes into the transaction `txn` out of the table, and decide it."""
        requests = self._requests
        parked = (r.position for waiting in requests.parked.values() for r in waiting)
        partitions = {position.partition for position in parked if position is not None}
        group = Group(
            txn=txn,
            indexers=_live_indexers(view),
            vbuckets=_buckets_seen(view),
            partitions=partitions,
        )
        rewrites = [r for r in requests.upkeep.values() if isinstance(r.command, RewriteEntities)]
        if rewrites:
            self._enlist(view, group, rewrites[0])
            return group
        upkeep = () if self._waits_for_all else requests.upkeep.values()
        for request in tuple(islice(upkeep, view.config.examined_max)):
            if not _has_room(view, group):
                break
            self._enlist(view, group, request)
        self._enlist_waiting(view, group)
        self._waits_for_all = group.is_closed and not self._waits_for_all
        for partition, offset in group.consumed.items():
            entity = Consumed(partition, Offset(offset))
            change = decisions.Change("DdlConsumed", consumed_key(partition), entity)
            group.mutations.append(
                self._mutation(view, change, Request(command=SkipRecord("", b"")))
            )
        return group

    def _enlist_waiting(self, view: NodeView, group: Group) -> None:
        """Go through the queue until the group is full, and not further than a bound.

        What cannot go in now stays where it was. A group thus costs what goes into it, however many
        wait. Those behind one that holds up its partition are passed over unseen: nobody else
        waits for them.
        """
        queue = self._requests.queue
        left: list[Request] = []
        examined = 0
        for _ in range(len(queue)):
            if examined >= view.config.examined_max or not _has_room(view, group):
                break
            request = queue.pop()
            if request.position is not None and request.position.partition in group.partitions:
                left.append(request)
                continue
            examined += 1
            if not self._enlist(view, group, request):
                left.append(request)
        queue.push_front(left)

    def _enlist(self, view: NodeView, group: Group, request: Request) -> bool:
        """Decide one command and put it into the group; False: it waits for a later group."""
        place = request.position
        if place is not None and place.partition in group.partitions:
            return False
        keys = ddl.footprint(view.state, request.command, request.id if request.recorded else "")
        if keys & group.touched:
            group.block(request, keys)
            return False
        decision = ddl.decide(view.state, request, _circumstances(view, group, request))
        if isinstance(decision, decisions.Parked):
            self._requests.park(decision.index_id, request)
            group.block(request, keys)
            return True
        if isinstance(decision, decisions.Unchanged):
            return self._enlist_answer(view, group, request, decision.outcome)
        return self._enlist_changes(view, group, request, decision, keys)

    def _enlist_answer(
        self, view: NodeView, group: Group, request: Request, outcome: Outcome
    ) -> bool:
        """Nothing changes: tell behind a barrier, or record it where the topic demands it.

        False: the reply does not fit into this group any more.
        """
        self._requests.decided(request)
        if request.position is None:
            if request.token:
                group.answered.append(UnchangedRequest(request, outcome))
            return True
        size = len(decisions.compact(outcome.details)) + len(decisions.compact(outcome.answer))
        if group.enlisted and group.size_bytes + size > view.config.group_bytes_max:
            group.block(request, frozenset())
            group.is_closed = True
            return False
        group.size_bytes += size
        record = None
        if request.id and not isinstance(request.command, SkipRecord):
            known = view.outcomes.find(request.id) is not None or request.id in view.state.pending
            record = None if known else decisions.recorded(request, outcome)
            group.touched.add(request_key(request.id))
        first = len(group.mutations)
        group.enlisted.append(Enlisted(request, outcome, first, -1, record=record))
        group.consumed[request.position.partition] = request.position.offset
        return True

    def _enlist_changes(
        self,
        view: NodeView,
        group: Group,
        request: Request,
        decision: decisions.Accepted,
        keys: frozenset[str],
    ) -> bool:
        mutations = [self._mutation(view, change, request) for change in decision.changes]
        size = weight(mutations) + _weight_of_results(decision)
        count_max, bytes_max = view.config.group_mutations_max, view.config.group_bytes_max
        count = len(mutations) + (request.position is not None)
        makes = decision.waits_for and decision.subject >= 0
        whole = size + _growth(view, mutations) if makes else size
        too_large = count > count_max or whole > bytes_max
        if too_large and not request.key:
            outcome = refused(
                "too_large" if isinstance(request.command, Transact) else "value_too_large",
                f"the command weighs {whole} bytes in {count} changes, more than a transaction may",
                limit=bytes_max,
            )
            return self._enlist_answer(view, group, request, outcome)
        if too_large:
            # What the master itself has to do is never dropped: it goes alone.
            full = bool(group.enlisted)
        else:
            full = group.count + count > count_max or group.size_bytes + size > bytes_max
        if full:
            group.block(request, keys)
            group.is_closed = True
            return False
        first = len(group.mutations)
        outcome = Outcome(OK, answer=decision.answer)
        group.enlisted.append(
            Enlisted(
                request,
                outcome,
                first,
                decision.subject,
                decision.waits_for,
                decision.record,
                decision.ends,
            )
        )
        group.mutations.extend(mutations)
        group.size_bytes += size
        group.touched |= keys
        if makes:
            _add_load(group, mutations)
        if request.position is not None:
            group.consumed[request.position.partition] = request.position.offset
        return True

    def _mutation(self, view: NodeView, change: decisions.Change, request: Request) -> Mutation:
        encoded = None
        if change.entity is not None:
            encoded = self._codec.encode_entity(change.entity)
        return Mutation(
            change.event,
            change.key,
            encoded,
            change.entity,
            request.id,
            request.principal,
            view.now.wall_ms,
            undoes=_undone_by(request),
        )


def _undone_by(request: Request) -> Cas | None:
    """Return the CAS to which a request leads back, None if it is no undo."""
    return request.command.undoes or None if isinstance(request.command, Transact) else None


def _has_room(view: NodeView, group: Group) -> bool:
    """Tell whether another command may go in: it may change two entities and consume."""
    limit = view.config.group_mutations_max
    return not group.is_closed and group.count + 2 <= limit and len(group.enlisted) < limit


def _circumstances(view: NodeView, group: Group, request: Request) -> decisions.Circumstances:
    authority = authority_of(view)
    return decisions.Circumstances(
        txn=group.txn,
        fresh_id=number_in(group.txn, len(group.mutations)),
        wall_ms=view.now.wall_ms,
        indexers=group.indexers,
        extra_load=group.load,
        request_window_ms=authority.request_window_ms,
        vbuckets=group.vbuckets,
        reported=view.peers.reported,
        remembered=view.outcomes.find(_remembered_as(view, request)),
        forgotten_ms=authority.outcomes_forgotten_ms,
    )


def _remembered_as(view: NodeView, request: Request) -> str:
    """Return the id under which an outcome matters to a decision; empty if none does."""
    if isinstance(request.command, UndoIndex):
        held = view.state.index_by_id(request.command.index_id)
        return held.entity.request if held and isinstance(held.entity, Index) else ""
    return request.id if request.recorded else ""


def _buckets_seen(view: NodeView) -> dict[str, int]:
    """Return how many vbuckets each bucket has that the key-value store has."""
    return {
        bucket.name: bucket.vbuckets
        for peer in view.peers.projectors.values()
        if view.peers.alive(peer)
        for bucket in peer.beat.buckets
    }


def _live_indexers(view: NodeView) -> list[Candidate]:
    registered = authority_of(view).indexers
    return [
        Candidate(number, peer.beat.zone)
        for number, peer in sorted(view.peers.indexers.items())
        if number in registered and view.peers.alive(peer)
    ]


def _add_load(group: Group, mutations: Iterable[Mutation]) -> None:
    """Count the slices of a new index, so that the next one of the group lies elsewhere."""
    for mutation in mutations:
        if isinstance(mutation.entity, Index):
            for piece in mutation.entity.slices:
                for host in piece.hosts:
                    group.load[host] = group.load.get(host, 0) + 1


def _weight_of_results(decision: decisions.Accepted) -> int:
    """Return how much of the verdict an outcome takes that is not small."""
    return len(decision.record.answer_json) if decision.record is not None else 0


def _growth(view: NodeView, mutations: Iterable[Mutation]) -> int:
    """Return by how much an index that is being created may still grow.

    One that is to replace another ends together with that: both have to fit then.
    """
    indexes = [m.entity for m in mutations if isinstance(m.entity, Index)]
    hosts = sum(len(index.hosts) for index in indexes)
    replaced = (view.state.index_by_id(index.replaces) for index in indexes if index.replaces)
    others = sum(len(held.value) + ddl.GROWTH_BYTES for held in replaced if held is not None)
    return ddl.GROWTH_BYTES + ddl.SHARD_BYTES * hosts + others


def weight(mutations: Iterable[Mutation]) -> int:
    """Return how much of a group's bytes these mutations take."""
    return sum(len(m.key) + len(m.value or b"") + PLAIN_BYTES for m in mutations)

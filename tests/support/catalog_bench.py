"""A state, and commands decided and applied to it one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.codec import Codec, encode
from coordinator.core.catalog import ddl
from coordinator.core.catalog.decisions import Accepted, Circumstances, Decision, Unchanged
from coordinator.core.catalog.loads import Reported, Reports
from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.placement import Candidate
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.model.commands import Command, CreateIndex, Request, UndoIndex
from coordinator.core.model.entities import Index
from coordinator.core.model.outcome_records import OutcomesRecorded
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas, Instant, TxnId

CREATE = CreateIndex(name="by_city", bucket="travel", expressions=("city",))
INDEXERS = [Candidate(1, ""), Candidate(2, "")]


IDS_OF_ONE = 1_000
"""So many ids a transaction may give, each to one entity only."""


class Bench:
    """A state, and commands decided and applied to it one after the other."""

    def __init__(self) -> None:
        self.state: StateContext = EMPTY
        self.window = OutcomeWindow(Codec())
        self.seq = 0
        self.wall_ms = 1_000_000
        self.forgotten_ms = 0
        self.indexers: list[Candidate] = INDEXERS
        self.extra_load: dict[int, int] = {}
        self.reported: dict[int, Reported] = {}

    def decide(self, command: Command, **terms: Any) -> Decision:
        self.seq += 1
        remembered = self.window.find(terms.get("id") or self._maker_of(command))
        given = Circumstances(
            txn=TxnId(1, self.seq),
            fresh_id=IDS_OF_ONE * self.seq,
            wall_ms=self.wall_ms,
            indexers=self.indexers,
            extra_load=self.extra_load,
            reported=Reports(self.reported),
            request_window_ms=600_000,
            remembered=remembered,
            forgotten_ms=self.forgotten_ms,
        )
        return ddl.decide(self.state, Request(command=command, **terms), given)

    def _maker_of(self, command: Command) -> str:
        """Return the request that made the index that is undone, as the master looks it up."""
        held = isinstance(command, UndoIndex) and self.state.index_by_id(command.index_id)
        return held.entity.request if held and isinstance(held.entity, Index) else ""

    def apply(self, command: Command, **terms: Any) -> Accepted:
        decision = self.decide(command, **terms)
        assert isinstance(decision, Accepted), decision
        changes = [
            Mutation(c.event, c.key, None if c.entity is None else encode(c.entity), c.entity)
            for c in decision.changes
        ]
        first = self.state.cas + 1
        self.state = evolve(self.state, [(m, first + n) for n, m in enumerate(changes)])
        found = (decision.record, *(one.record for one in decision.ends))
        at = Cas(first + decision.subject)
        records = tuple(replace(record, cas=at) for record in found if record is not None)
        if records:
            cas = self.state.cas
            group = OutcomesRecorded(TxnId(1, self.seq), cas, self.wall_ms, records)
            self.window.add(cas, Codec().encode_outcomes(group), Instant(0, self.wall_ms))
        return decision

    def refusal(self, command: Command, **terms: Any) -> str:
        decision = self.decide(command, **terms)
        assert isinstance(decision, Unchanged), decision
        return decision.outcome.code

    def index(self) -> Index:
        (index, _), *_ = self.state.indexes()
        return index

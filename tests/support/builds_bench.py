"""A state, and commands about builds, streams and rollbacks that are decided and applied to it."""

from __future__ import annotations

from typing import Any

from coordinator.codec import encode
from coordinator.core.catalog import ddl
from coordinator.core.catalog.decisions import Accepted, Circumstances
from coordinator.core.catalog.placement import Candidate
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.model.commands import Command, MarkReady, Request
from coordinator.core.model.entities import Index, Shard
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import TxnId

INDEXERS = [Candidate(1, ""), Candidate(2, "")]


class Bench:
    """A state, and commands decided and applied to it one after the other."""

    def __init__(self, *names: str, **more: Any) -> None:
        self.state: StateContext = EMPTY
        self.seq = 0
        for name in names:
            self.do(
                ddl.CreateIndex(
                    name=name, bucket="b", expressions=("x",), **{"defer_build": True, **more}
                )
            )
            self.do(MarkReady(self.index(name).id, (Shard(1, 11),)))

    def decide(self, command: Command, **terms: Any) -> Any:
        self.seq += 1
        given = Circumstances(
            txn=TxnId(1, self.seq),
            fresh_id=self.seq,
            wall_ms=1,
            indexers=INDEXERS,
            extra_load={},
            request_window_ms=10_000,
            vbuckets={"b": 4},
        )
        return ddl.decide(self.state, Request(command=command, **terms), given)

    def do(self, command: Command) -> Any:
        decision = self.decide(command)
        if isinstance(decision, Accepted):
            changes = [
                (Mutation(c.event, c.key, encode(c.entity) if c.entity else None, c.entity), cas)
                for cas, c in enumerate(decision.changes, self.state.cas + 1)
            ]
            self.state = evolve(self.state, changes)
        return decision

    def index(self, name: str) -> Index:
        held = self.state.index_named("b", name)
        assert held is not None
        assert isinstance(held.entity, Index)
        return held.entity

    def events(self, decision: Any) -> list[str]:
        assert isinstance(decision, Accepted), decision
        return [change.event for change in decision.changes]

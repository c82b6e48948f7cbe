"""What a decision is, and what all deciders share: nothing here decides anything.

Pure. `ddl` and `builds` decide; `Circumstances` are the values from outside that they may use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.core.commands import Outcome, Request, refused
from coordinator.core.entities import OUTCOME_DONE, TRANSITIONS, Entity, Index, RequestOutcome
from coordinator.core.placement import Candidate
from coordinator.core.state import StateContext
from coordinator.core.types import TxnId


@dataclass(frozen=True, slots=True)
class Change:
    """A mutation before its value is encoded: the event's name, the key, the new entity."""

    event: str
    key: str
    entity: Entity | None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a decision may use beside the state: values that come in from outside, as values."""

    txn: TxnId
    fresh_id: int
    wall_ms: int
    indexers: Sequence[Candidate]
    extra_load: Mapping[int, int]
    request_window_ms: int
    vbuckets: Mapping[str, int] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """A number that no other attempt at a transaction has, above those of all before it.

        Projectors and indexers read events that a late end of a transaction has let through,
        although no verdict ever counts them. What these call by a number must never be mistaken
        for what a later event calls by its own: so these numbers are not counted.
        """
        return self.txn.epoch << 32 | self.txn.seq


@dataclass(frozen=True, slots=True)
class Accepted:
    """The changes, in order; the answer's CAS is that of `changes[subject]`.

    `waits_for` is an index whose READY (or undoing) is the real end of the request.
    """

    changes: tuple[Change, ...]
    answer: dict[str, Any]
    subject: int = 0
    waits_for: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """Nothing has to change: the outcome stands already."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Parked:
    """The answer depends on an index whose creation is under way: decide again after it."""

    index_id: int


Decision = Accepted | Answered | Parked


def record_outcome(
    request: Request, given: Circumstances, status: str, outcome: Outcome, **more: int
) -> Change:
    """Return the change that remembers an outcome under the request's id."""
    recorded = RequestOutcome(
        id=request.id,
        status=status,
        fingerprint=request.fingerprint,
        index_id=more.get("index_id", 0),
        txn_epoch=given.txn.epoch,
        txn_seq=given.txn.seq,
        distance=more.get("distance", 0),
        answer_json=compact(outcome.answer),
        error_code=outcome.code,
        error_message=outcome.message,
        error_details_json=compact(outcome.details),
        by_topic=request.position is not None,
        at_ms=given.wall_ms,
    )
    return Change("RequestRecorded", recorded.key, recorded)


def compact(value: Any) -> str:
    """Return the one JSON text that stands for `value`."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def mismatch(expected: int, actual: int) -> Outcome:
    return refused(
        "cas_mismatch",
        f"expected CAS {expected}, found {actual}",
        expected=expected,
        actual=actual,
    )


def accepted(
    request: Request, given: Circumstances, changes: tuple[Change, ...], answer: dict[str, Any]
) -> Accepted:
    """Accept, and remember the outcome under the request's id where it has a durable one."""
    if request.recorded:
        done = record_outcome(
            request, given, OUTCOME_DONE, Outcome("ok", answer=answer), distance=len(changes)
        )
        changes = (*changes, done)
    return Accepted(changes, answer)


def moved(index: Index, to: str, reason: str | None) -> Index:
    """Return `index` in another state; the transition must be a legal one."""
    assert to in TRANSITIONS[index.state], f"{index.state} -> {to}"
    return replace(index, state=to, reason=reason)


def index_in(state: StateContext, index_id: int, *states: str) -> Index | None:
    """Return the index if it is there, in one of these states."""
    held = state.index_by_id(index_id)
    index = held.entity if held else None
    return index if isinstance(index, Index) and index.state in states else None


def describe_index(index: Index) -> dict[str, Any]:
    """Return an index as clients see it."""
    return {
        "id": str(index.id),
        "name": index.name,
        "bucket": index.bucket,
        "state": index.state,
        "reason": index.reason,
        "expressions": list(index.expressions),
        "where": index.where,
        "primary": index.primary,
        "using": index.using,
        "defer_build": index.defer_build,
        "created_ms": index.created_ms,
        "topology": {
            "slices": [
                {"slice": s.number, "master": s.master, "replicas": list(s.replicas)}
                for s in index.slices
            ],
            "shards": {str(s.indexer): s.number for s in index.shards},
            "partitioning": index.partitioning,
            "bounds": json.loads(index.bounds_json),
        },
        "build": index.build,
    }

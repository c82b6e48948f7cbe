"""What a decision is, and what all deciders share: nothing here decides anything.

Pure. `ddl` and `builds` decide; `Circumstances` are the values from outside that they may use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.core.catalog.loads import NOTHING as NOTHING_TOLD
from coordinator.core.catalog.loads import SLICE, Reported, Reports, borne
from coordinator.core.catalog.outcomes import RememberedOutcome
from coordinator.core.catalog.placement import MISSING_MAX, Candidate, Impossible, place
from coordinator.core.catalog.rebalance_settings import REBALANCE, rebalance_in
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.model import json_text
from coordinator.core.model.commands import OK, CreateIndex, Outcome, Request, refused
from coordinator.core.model.entities import DROPPING, TRANSITIONS, Entity, Index, Setting, Slice
from coordinator.core.model.outcome_records import (
    DETAILS_BYTES_MAX,
    DONE,
    EXISTED,
    INDEX,
    INDEXES,
    LITERAL,
    MESSAGE_LENGTH_MAX,
    NOTHING,
    REFUSED,
    SETTING,
    TRANSACTION,
    RecordedOutcome,
)
from coordinator.core.model.types import Cas, TxnId

GONE = "dropped"
"""How a repeat is told the state of an index that its first try made, and that is gone."""


EVENTS = frozenset(
    {
        *("SettingWritten", "SettingDeleted", "EntityRewritten", "DdlConsumed"),
        *("IndexProposed", "IndexReady", "IndexUndone", "IndexAltered", "IndexReplaced"),
        *("IndexDropped", "IndexForgotten", "ShardsMoved"),
        *("BuildRequested", "BuildRouted", "IndexBuilt", "BuildFailed"),
        *("BucketCreated", "BucketAdopted", "StreamRenewed"),
        *("BucketAdded", "BucketRemoved", "BucketForgotten", "BucketReadAgain"),
        *("RollbackStarted", "RollbackPrepared", "RollbackRestarted", "RollbackCommanded"),
        "RollbackEnded",
        *("RebalanceBegun", "RebalanceCancelled", "RebalanceForgotten"),
        *("MoveBegun", "MoveBuilt", "MoveEnded", "MoveFailed", "MoveCancelled"),
        *("PartDropped", "CopiesReleased"),
        *("TopicAdded", "TopicRemoved", "Subscribed", "Unsubscribed", "SubscriptionExpired"),
    }
)
"""What a change may be called: the names that the history tells."""


@dataclass(frozen=True, slots=True)
class Change:
    """A mutation before its value is encoded: the event's name, the key, the new entity."""

    event: str
    key: str
    entity: Entity | None

    def __post_init__(self) -> None:
        assert self.event in EVENTS, self.event


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a decision may use beside the state: values that come in from outside, as values.

    `reported` is what indexers have told of the weight of what they hold. `remembered` is what
    became of the same request before; of requests made at `forgotten_ms` or before, nothing is
    remembered.
    """

    txn: TxnId
    fresh_id: int
    wall_ms: int
    indexers: Sequence[Candidate]
    extra_load: Mapping[int, int]
    request_window_ms: int
    vbuckets: Mapping[str, int] = field(default_factory=dict)
    reported: Reports = field(default_factory=Reports)
    remembered: RememberedOutcome | None = None
    forgotten_ms: int = 0

    @property
    def number(self) -> int:
        """A number that no other attempt at a transaction has, above those of all before it.

        Projectors and indexers read events that a late end of a transaction has let through,
        although no verdict ever counts them. What these call by a number must never be mistaken
        for what a later event calls by its own: so these numbers are not counted.
        """
        return self.txn.epoch << 32 | self.txn.seq


def takers(state: StateContext, given: Circumstances) -> list[Candidate]:
    """Return the indexers that take the slices of new indexes: none that is emptied, or full."""
    drained, settings = state.drained, rebalance_in(state)
    capacities = {one.id: settings.capacity_of(one.id) for one in given.indexers}
    reported = reported_in(state, given) if any(capacities.values()) else {}

    def is_full(indexer: int) -> bool:
        return 0 < capacities[indexer] <= reported.get(indexer, NOTHING_TOLD).load.bytes

    return [
        candidate
        for candidate in given.indexers
        if candidate.id not in drained and not is_full(candidate.id)
    ]


def reported_in(state: StateContext, given: Circumstances) -> Mapping[int, Reported]:
    """Return what indexers have told of the indexes that are there, and do not go."""

    def stays(index_id: int) -> bool:
        index = state.find_index(index_id)
        return index is not None and index.state != DROPPING

    return given.reported.of_existing(stays)


@dataclass(frozen=True, slots=True)
class EndedAlter:
    """An ALTER that another request ends: the index that it has made goes, and its caller hears.

    `record` is what is to be remembered of it, but for its CAS.
    """

    index: Index
    outcome: Outcome
    record: RecordedOutcome | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The changes, in order; the answer's CAS is that of `changes[subject]`, of none at -1.

    `waits_for` are the indexes whose READY (or undoing) is the real end of the request. `record`
    is what is to be remembered with it, but for its CAS. `ends` are requests of others.
    """

    changes: tuple[Change, ...]
    answer: dict[str, Any]
    subject: int = 0
    waits_for: tuple[int, ...] = ()
    record: RecordedOutcome | None = None
    ends: tuple[EndedAlter, ...] = ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing has to change: the outcome stands already."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Parked:
    """The answer depends on an index whose creation is under way: decide again after it."""

    index_id: int


Decision = Accepted | Unchanged | Parked


def recorded(request: Request, outcome: Outcome) -> RecordedOutcome:
    """Return what is remembered of a request that ends with `outcome`, but for its CAS."""
    by_topic = request.position is not None
    if outcome.status != OK:
        return refusal(request.id, request.fingerprint, by_topic, outcome)
    answer, index_ids = _about(outcome.answer)
    return RecordedOutcome(
        id=request.id,
        status=DONE,
        fingerprint=request.fingerprint,
        answer=answer,
        index_ids=index_ids,
        cas=Cas(0),
        by_topic=by_topic,
        answer_json=compact(outcome.answer) if answer in (TRANSACTION, LITERAL) else "",
    )


def _about(answer: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return what kind of answer this is, and the indexes that it is about."""
    shown = answer.get("indexes") or ([answer["index"]] if answer.get("index") else [])
    index_ids = tuple(int(index["id"]) for index in shown)
    if "succeeded" in answer:
        return TRANSACTION, ()
    if "existed" in answer:
        return EXISTED, index_ids
    if "indexes" in answer:
        return INDEXES, index_ids
    if "index" in answer:
        return INDEX, index_ids
    if "topic" in answer or "subscription" in answer or "rebalance" in answer:
        return LITERAL, ()
    return (SETTING if "key" in answer else NOTHING), ()


def refusal(request_id: str, fingerprint: int, by_topic: bool, outcome: Outcome) -> RecordedOutcome:
    """Return what is remembered of a refusal; details that are long are not."""
    details = compact(outcome.details)
    return RecordedOutcome(
        id=request_id,
        status=REFUSED,
        fingerprint=fingerprint,
        by_topic=by_topic,
        error_code=outcome.code,
        error_message=outcome.message[:MESSAGE_LENGTH_MAX],
        error_details_json=details if len(details) <= DETAILS_BYTES_MAX else "{}",
    )


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


def clash(request: Request, held: Versioned | None) -> Outcome | None:
    """Refuse where the entity is not at the expected CAS (0: it must not exist)."""
    actual = held.cas if held else 0
    if request.expected_cas is None or request.expected_cas == actual:
        return None
    outcome = mismatch(request.expected_cas, actual)
    if held is not None and isinstance(held.entity, Setting):
        outcome.details["value"] = json_text.shown(held.entity.value_json)
    return outcome


def accepted(request: Request, changes: tuple[Change, ...], answer: dict[str, Any]) -> Accepted:
    """Accept, and remember the outcome under the request's id where it has a durable one."""
    record = recorded(request, Outcome(OK, answer=answer)) if request.recorded else None
    return Accepted(changes, answer, record=record)


def moved(index: Index, to: str, reason: str | None) -> Index:
    """Return `index` in another state; the transition must be a legal one."""
    assert to in TRANSITIONS[index.state], f"{index.state} -> {to}"
    return replace(index, state=to, reason=reason)


def placed(
    state: StateContext, given: Circumstances, slices: int, replicas: int, wanted: Sequence[int]
) -> tuple[Slice, ...] | Impossible:
    """Return where the slices of a new index lie, by what the indexers bear already."""
    candidates = takers(state, given)
    indexers = (candidate.id for candidate in candidates)
    load = borne(indexers, state.load, given.extra_load, reported_in(state, given))
    found = place(slices, replicas, wanted, candidates, load, SLICE)
    passed_over = {one.id for one in given.indexers} - {one.id for one in candidates}
    if not isinstance(found, Impossible) or not passed_over:
        return found
    emptied = sorted(passed_over & state.drained)[:MISSING_MAX]
    full = sorted(passed_over - state.drained)[:MISSING_MAX]
    text, details = found.message, dict(found.details)
    if emptied:
        text += f"; indexers {emptied} are drained, until another rebalance is begun"
        details["drained"] = emptied
    if full:
        text += f"; indexers {full} hold as much as the setting {REBALANCE} allows"
        details["full"] = full
    return Impossible(text, details)


def index_in(state: StateContext, index_id: int, *states: str) -> Index | None:
    """Return the index if it is there, in one of these states."""
    index = state.find_index(index_id)
    return index if index is not None and index.state in states else None


def describe_gone(index_id: int, request: Request) -> dict[str, Any]:
    """Return an index that is not there any more, as far as a repeat of its request tells."""
    command = request.command
    known = command if isinstance(command, CreateIndex) else None
    return {
        "id": str(index_id),
        "name": getattr(command, "name", ""),
        "bucket": getattr(command, "bucket", ""),
        "state": GONE,
        "reason": "it was dropped since",
        "expressions": list(known.expressions) if known else [],
        "where": known.where if known else None,
        "primary": known.primary if known else False,
        "using": known.using if known else "gsi",
        "defer_build": known.defer_build if known else False,
        "created_ms": 0,
        "topology": {"slices": [], "shards": {}, "partitioning": "hash", "bounds": []},
        "build": 0,
        "replaces": None,
    }


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
        "replaces": str(index.replaces) if index.replaces else None,
    }


SHORT = ("id", "name", "bucket", "state", "build")
"""What is left of an index in an answer in short: its length has a bound."""


def in_short(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with its indexes as `SHORT` says."""
    found = dict(answer)
    if found.get("index"):
        found["index"] = _index_in_short(found["index"])
    if "results" in found:
        found["results"] = [
            {**result, "index": _index_in_short(result["index"])} if result.get("index") else result
            for result in found["results"]
        ]
    if "indexes" in found:
        found["indexes"] = [_index_in_short(index) for index in found["indexes"]]
    return found


def _index_in_short(described: Mapping[str, Any]) -> dict[str, Any]:
    return {name: described[name] for name in SHORT if name in described}

"""What a client's transaction yields: it compares, and then changes several entities, or none.

Pure. Its operations are the commands that clients also give one by one. They are decided in their
order, each against the state that those before it leave, and become changes of one transaction of
the log. If one of them is refused, all are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    EndedAlter,
    Parked,
    Unchanged,
    compact,
    describe_gone,
    describe_index,
    index_in,
    recorded,
)
from coordinator.core.catalog.outcomes import RememberedOutcome
from coordinator.core.catalog.state import StateContext, evolve
from coordinator.core.model import json_text
from coordinator.core.model.commands import (
    OK,
    AlterIndex,
    Comparison,
    CreateIndex,
    DropIndex,
    Operation,
    Outcome,
    Request,
    Transact,
    refused,
)
from coordinator.core.model.entities import INIT, Index, index_key, setting_key
from coordinator.core.model.names import NAME_LENGTH_MAX, SETTING_NAME, is_name
from coordinator.core.model.outcome_records import RecordedOutcome
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import CAS_MAX, Cas

COMPARISONS_MAX = 256
OPERATIONS_MAX = 256
"""As many changes as a transaction of the log may have by default."""

INDEX_ID = re.compile(r"[0-9]{1,19}")

NAMES_LENGTH_MAX = 16 * 1024
"""So many characters all keys and names of a transaction may have together: its outcome has them,
which every node keeps for as long as a repeat may come."""

COPIES_MAX = 4_096
"""So many copies of slices the new indexes of a branch may have together: to place these takes some
20 ms of the master's loop. Others keep the copies that they have, which costs nothing for each."""

BOUNDS_LENGTH_MAX = 64 * 1024
"""So many characters the bounds of all indexes of a branch may have together."""

REASON_LENGTH_MAX = 200
"""So much of why an index was undone is remembered."""

NAMES = ("key", "bucket", "name", "new_name")

Decide = Callable[[StateContext, Request, Circumstances], Decision]
Deciders = Mapping[type, Decide]


@dataclass(slots=True)
class _Branch:
    """The operations of a branch while they are decided."""

    state: StateContext
    changes: list[Change] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    buckets: set[str] = field(default_factory=set)
    created: list[int] = field(default_factory=list)
    ends: list[EndedAlter] = field(default_factory=list)

    def add(self, decision: Accepted) -> None:
        """Take the changes of an operation; those after it are decided against what they leave.

        The state has what an entity is, and not the bytes that it will be written as.
        """
        for change in decision.changes:
            self.keys.add(change.key)
            if isinstance(change.entity, Index):
                self.buckets.add(change.entity.bucket)
        self.changes += decision.changes
        self.created += decision.waits_for
        self.ends += decision.ends
        cas = self.state.cas
        written = [
            (Mutation(c.event, c.key, None if c.entity is None else b"", c.entity), Cas(cas + n))
            for n, c in enumerate(decision.changes, 1)
        ]
        self.state = evolve(self.state, written)


def decide_transaction(
    state: StateContext, request: Request, given: Circumstances, deciders: Deciders
) -> Decision:
    """Return what a transaction yields: all changes of one branch, or none."""
    command = request.command
    assert isinstance(command, Transact)
    if problem := _invalid(request, command):
        # Whoever asks for an undo has not written what is too much: it can be done in steps.
        return Unchanged(refused("too_large" if command.undoes else "invalid_request", problem))
    compared = [_found(state, comparison) for comparison in command.compare]
    succeeded = all(
        found["cas"] == comparison.cas
        for found, comparison in zip(compared, command.compare, strict=True)
    )
    branch = _Branch(state)
    for number, operation in enumerate(command.then if succeeded else command.otherwise):
        stop = _decide_next(branch, number, operation, request, given, deciders)
        if stop is not None:
            return stop
    if len(branch.buckets) > 1 and not command.undoes:
        names = ", ".join(sorted(branch.buckets)[:3])
        text = f"a transaction changes indexes of one bucket, not of several ({names})"
        return Unchanged(refused("invalid_request", text))
    answer = {
        "succeeded": succeeded,
        "compared": compared,
        "results": branch.results,
        "changes": len(branch.changes),
    }
    if not branch.changes:
        return Unchanged(Outcome(OK, answer=dated_answer(answer, state.cas), cas=state.cas))
    remembered = recorded(request, Outcome(OK, answer=answer)) if request.recorded else None
    created = tuple(branch.created)
    return Accepted(
        tuple(branch.changes),
        answer,
        subject=len(branch.changes) - 1,
        waits_for=created,
        record=replace(remembered, index_ids=created) if remembered else None,
        ends=tuple(branch.ends),
    )


def _decide_next(
    branch: _Branch,
    number: int,
    operation: Operation,
    request: Request,
    given: Circumstances,
    deciders: Deciders,
) -> Decision | None:
    """Decide one operation of a branch; return what ends the whole transaction, if it does."""
    alone = replace(request, command=operation, recorded=False)
    circumstances = replace(given, fresh_id=given.fresh_id + len(branch.changes))
    decision = deciders[type(operation)](branch.state, alone, circumstances)
    if isinstance(decision, Parked):
        if decision.index_id in branch.created:
            return _objection(number, "it is about an index that this transaction creates")
        return decision
    if isinstance(decision, Unchanged):
        outcome = decision.outcome
        if outcome.status != OK:
            text = f"operation {number}: {outcome.message}"
            details = {**outcome.details, "operation": number}
            return Unchanged(replace(outcome, message=text, details=details))
        branch.results.append({"key": _key_of(operation, outcome.answer), "cas": outcome.cas})
        return None
    if isinstance(operation, AlterIndex) and decision.waits_for:
        return _objection(number, "it needs another index in its place: alter it by itself")
    clash = next((c.key for c in decision.changes if c.key in branch.keys), None)
    if clash is not None:
        return _objection(number, f"another operation changes {clash}, too")
    key = decision.changes[decision.subject].key
    branch.results.append({"key": key, "change": len(branch.changes) + decision.subject})
    branch.add(decision)
    return None


def _objection(number: int, text: str) -> Unchanged:
    return Unchanged(refused("invalid_request", f"operation {number}: {text}", operation=number))


def _key_of(operation: Operation, answer: Mapping[str, Any]) -> str:
    """Return the key of what an operation was about that changed nothing."""
    index = answer.get("index")
    if index:
        return index_key(int(index["id"]))
    if isinstance(operation, DropIndex):
        return index_key(operation.index_id) if operation.index_id else ""
    return setting_key(getattr(operation, "name", ""))


def _found(state: StateContext, comparison: Comparison) -> dict[str, Any]:
    """Return what a comparison finds: the key, and the CAS there is, 0 for none."""
    if comparison.key:
        return {"key": comparison.key, "cas": state.cas_of(comparison.key)}
    held = state.index_named(comparison.bucket, comparison.name)
    named = {"bucket": comparison.bucket, "name": comparison.name}
    if held is None:
        return {**named, "key": "", "cas": 0}
    index = held.entity
    assert isinstance(index, Index)
    return {**named, "key": index.key, "cas": held.cas}


def _invalid(request: Request, command: Transact) -> str:
    """Say what is wrong with a transaction, or return an empty text."""
    if request.expected_cas is not None:
        return "a transaction says itself what it compares"
    if command.undoes and request.position is not None:
        return "an undo is asked for over HTTP"
    if len(command.compare) > COMPARISONS_MAX:
        return f"at most {COMPARISONS_MAX} comparisons"
    branches = (command.then, command.otherwise)
    if max(map(len, branches)) > OPERATIONS_MAX:
        return f"at most {OPERATIONS_MAX} operations"
    if _length_of_names(command) > NAMES_LENGTH_MAX:
        return f"more than {NAMES_LENGTH_MAX} characters in all keys and names together"
    problems = (*map(_invalid_comparison, command.compare), *map(_too_much, branches))
    return next(filter(None, problems), "")


def _length_of_names(command: Transact) -> int:
    operations = (*command.then, *command.otherwise)
    return sum(map(length_of_names, (*command.compare, *operations)))


def length_of_names(one: Comparison | Operation) -> int:
    """Return how many characters the key or the names of a comparison or an operation have."""
    return sum(len(getattr(one, field, "") or "") for field in NAMES)


def _too_much(branch: Iterable[Operation]) -> str:
    """Say what of the indexes of a branch is too much to be decided, or return an empty text."""
    operations = [*branch]
    created = [one for one in operations if isinstance(one, CreateIndex)]
    altered = [one for one in operations if isinstance(one, AlterIndex)]
    copies = sum(copies_of(one) for one in created)
    if copies > COPIES_MAX:
        return f"{copies} copies of slices; at most {COPIES_MAX} are one transaction"
    if any(one.dry_run for one in altered):
        return "an ALTER of a transaction is no dry run"
    bounds = [*(one.bounds_json for one in created), *(one.bounds_json or "" for one in altered)]
    if sum(map(len, bounds)) > BOUNDS_LENGTH_MAX:
        return f"more than {BOUNDS_LENGTH_MAX} characters in all bounds together"
    return ""


def copies_of(command: CreateIndex) -> int:
    """Return how many copies of slices an index has; one with bounds has a slice for each."""
    slices = max(command.slices, command.bounds_json.count("[") - 1, 1)
    return slices * (max(command.replicas, 0) + 1)


def _invalid_comparison(comparison: Comparison) -> str:
    """Say what is wrong with a comparison, or return an empty text."""
    named = bool(comparison.bucket and comparison.name)
    if bool(comparison.key) == named or (comparison.key and comparison.bucket + comparison.name):
        return "a comparison has a key, or a bucket and a name"
    if comparison.key and not _is_comparable(comparison.key):
        return f"{comparison.key[:40]!r} is no key of a setting, an index or a bucket"
    if max(len(comparison.bucket), len(comparison.name)) > NAME_LENGTH_MAX:
        return f"a name has at most {NAME_LENGTH_MAX} characters"
    if not 0 <= comparison.cas <= CAS_MAX:
        return f"{comparison.cas} is no CAS"
    return ""


def _is_comparable(key: str) -> bool:
    """Tell whether a setting, an index or a bucket may have this key."""
    kind, _, name = key.partition("/")
    match kind:
        case "config":
            return SETTING_NAME.fullmatch(name) is not None
        case "index":
            return INDEX_ID.fullmatch(name) is not None
        case "bucket":
            return is_name(name)
    return False


def footprint_of(
    state: StateContext,
    command: Transact,
    footprint: Callable[[StateContext, Operation], frozenset[str]],
) -> set[str]:
    """Return the keys on which the decision about a transaction rests, whatever it compares."""
    keys: set[str] = set()
    for operation in (*command.then, *command.otherwise):
        keys |= footprint(state, operation)
    for comparison in command.compare:
        if comparison.key:
            keys.add(comparison.key)
        else:
            # A name is held by an index: the footprint of a DROP has both.
            keys |= footprint(state, DropIndex(0, comparison.bucket, comparison.name))
    return keys


# -- what is answered ----------------------------------------------------------------------------


def pending_of(state: StateContext, recorded: RecordedOutcome) -> int:
    """Return an index of a transaction that is still being created, 0 if there is none."""
    waiting = (i for i in recorded.index_ids if index_in(state, i, INIT) is not None)
    return next(waiting, 0)


def end_of(state: StateContext, found: RememberedOutcome) -> Outcome:
    """Return what is answered to a transaction whose indexes are all created, or undone."""
    recorded = found.outcome
    answer = json_text.parse(recorded.answer_json)
    cas, txn = _place_of(found, answer)
    outcome = Outcome(OK, answer=dated_answer(answer, cas), cas=cas, txn=txn)
    return with_indexes(outcome, state, recorded.index_ids, {})


def _place_of(found: RememberedOutcome, answer: Mapping[str, Any]) -> tuple[Cas, str]:
    """Return the CAS and the name of a transaction; one that changed nothing has no name."""
    if "txn" in answer:
        return answer["cas"], answer["txn"]
    return found.outcome.cas, str(found.txn) if answer.get("changes") else ""


def dated_answer(answer: Mapping[str, Any], cas: int) -> dict[str, Any]:
    """Return an answer with the CAS of each change; `cas` is that of the last one."""
    first = cas - answer.get("changes", 0) + 1
    return {
        "succeeded": answer["succeeded"],
        "compared": answer["compared"],
        "results": [
            {"cas": first + result["change"]} | {k: v for k, v in result.items() if k != "change"}
            if "change" in result
            else result
            for result in answer["results"]
        ],
    }


def with_error(found: RememberedOutcome, index: Index, reason: str) -> RecordedOutcome:
    """Return what is remembered of a transaction when one of its indexes is undone.

    That is recorded with another CAS: so the CAS of the transaction stands in the answer.
    """
    recorded = found.outcome
    answer = json_text.parse(recorded.answer_json)
    cas, txn = _place_of(found, answer)
    dated = dated_answer(answer, cas)
    for result in dated["results"]:
        if result["key"] == index.key:
            result["error"] = error_of(reason)
    return replace(recorded, answer_json=compact({**dated, "cas": cas, "txn": txn}))


def error_of(reason: str) -> dict[str, str]:
    """Return what a result says of an index that was undone."""
    return {"code": "indexer_refused", "message": reason[:REASON_LENGTH_MAX]}


def with_indexes(
    outcome: Outcome,
    state: StateContext,
    index_ids: Iterable[int],
    reasons: Mapping[int, str],
) -> Outcome:
    """Return an answer with the indexes that the transaction created, as they are now.

    `reasons` says why some were undone, if the answer does not.
    """
    created = {index_key(index_id): index_id for index_id in index_ids}
    if not created:
        return outcome
    results = []
    for result in outcome.answer["results"]:
        index_id = created.get(result["key"])
        if index_id is None:
            results.append(result)
            continue
        error = {"error": error_of(reasons[index_id])} if index_id in reasons else {}
        results.append({**result, **error, **_index_now(state, index_id)})
    cas = max(outcome.cas, *(result["cas"] for result in results))
    return replace(outcome, answer={**outcome.answer, "results": results}, cas=Cas(cas))


def _index_now(state: StateContext, index_id: int) -> dict[str, Any]:
    """Return what a result says of an index that was created: it as it is, and its CAS."""
    held = state.index_by_id(index_id)
    if held is None or not isinstance(held.entity, Index):
        return {"index": describe_gone(index_id, Request(command=Transact()))}
    return {"cas": held.cas, "index": describe_index(state.whole(held.entity))}

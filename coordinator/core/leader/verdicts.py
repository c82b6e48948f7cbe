"""What a master writes with the verdict on a transaction: outcomes, replies, dead letters.

Pure functions of what the node knows and of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coordinator.core.catalog import decisions, transactions
from coordinator.core.catalog.outcomes import RememberedOutcome
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.leader.transaction import Attempt, Enlisted
from coordinator.core.model.commands import (
    Command,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    Outcome,
    SkipRecord,
    Transact,
    UndoIndex,
    refused,
)
from coordinator.core.model.entities import Index
from coordinator.core.model.outcome_records import TRANSACTION, OutcomesRecorded
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import DdlReply, DeadLetter, TransactionCommitted
from coordinator.core.model.types import Cas

Ending = MarkReady | UndoIndex | MarkBuilt | MarkFailed
"""Commands of the master that may end the request which made an index."""

ANSWER_BYTES_MAX = 1_000_000
"""What an answer may weigh in a reply: a message on `ddl-replies` has 1 MiB at most. If a reply did
not fit, Kafka would refuse it together with its transaction, and each next master would write the
same again."""


FORGOTTEN = refused(
    "request_expired",
    "the transaction is committed, but its outcome was forgotten before its indexes were created: "
    "the history shows what it did",
)
"""The log of a cluster that stood still for longer than the window of outcomes may come to this."""


def commit_of(
    view: NodeView, codec: EntityCodec, attempt: Attempt, led_ms: int
) -> TransactionCommitted:
    """Return the verdict *commit*, with what is remembered of the requests and what forgotten.

    `led_ms` is for how long this master has led.
    """
    assert attempt.after is not None
    assert attempt.offset is not None
    outcomes = view.outcomes
    group = _outcomes_of(view, codec, attempt)
    forgotten = outcomes.due(view.now, authority_of(view).request_window_ms, led_ms)
    return TransactionCommitted(
        txn=attempt.proposal.txn,
        proposal_offset=attempt.offset,
        accepted=attempt.accepted,
        cas=attempt.cas,
        state_digest=attempt.after.digest,
        at_ms=view.now.wall_ms,
        outcomes=group,
        outcomes_forgotten=forgotten,
        outcomes_digest=outcomes.digest_after(attempt.cas[-1], group, forgotten),
        outcomes_forgotten_ms=outcomes.forgotten_ms(forgotten),
    )


def _outcomes_of(view: NodeView, codec: EntityCodec, attempt: Attempt) -> bytes:
    """Return what is remembered of the requests of this transaction, empty if nothing is."""
    found = tuple(
        replace(record, cas=dated(held, attempt.cas, "").cas)
        for held in attempt.enlisted
        for record in (held.record, *(one.record for one in held.ends))
        if record is not None
    )
    if not found:
        return b""
    txn, wall_ms = attempt.proposal.txn, view.now.wall_ms
    return codec.encode_outcomes(OutcomesRecorded(txn, attempt.cas[-1], wall_ms, found))


def dated(held: Enlisted, cas: tuple[Cas, ...], txn: str) -> Outcome:
    """Return the answer with the CAS and the transaction that the log gave it."""
    if held.subject < 0:
        return held.outcome
    at = cas[held.first + held.subject]
    answer = held.outcome.answer
    if isinstance(held.request.command, Transact):
        answer = transactions.dated_answer(answer, at)
    return replace(held.outcome, answer=answer, cas=at, txn=txn)


def ddl_replies(view: NodeView, attempt: Attempt) -> Iterator[DdlReply]:
    """Yield the replies that become visible with the commit, to commands from the topic."""
    txn = str(attempt.proposal.txn)
    ended: set[str] = set()
    for held in attempt.enlisted:
        request = held.request
        outcome = dated(held, attempt.cas, txn)
        for one in held.ends:
            if one.index.by_topic:
                yield _reply(view, one.index.request, one.outcome)
        if request.position is not None and not held.waits_for and request.id:
            yield _reply(view, request.id, outcome)
        elif isinstance(request.command, Ending):
            index = _created(view, request.command.index_id)
            if index is None or not _is_ended(attempt, request.command, index):
                continue
            made_by = view.outcomes.find(index.request)
            if made_by is None and not index.request_fingerprint:
                yield _reply(view, index.request, FORGOTTEN)
            elif made_by is not None and made_by.outcome.answer == TRANSACTION:
                # Several of its indexes may come to their end together.
                if index.request not in ended:
                    yield from _end_of_transaction(view, attempt, made_by)
                ended.add(index.request)
            else:
                yield _reply(view, index.request, why_undone(request.command) or outcome)


def why_undone(command: Command) -> Outcome | None:
    """Return what is told to whoever waits for an index that this command undoes."""
    match command:
        case UndoIndex():
            return refused("indexer_refused", command.reason)
        case MarkFailed():
            return refused("index_failed", command.reason)
    return None


def _is_ended(attempt: Attempt, command: Command, index: Index) -> bool:
    """Tell whether the request that made an index has waited for it, and does no more.

    One that is to replace another is waited for beyond READY, if that other one is built.
    """
    if not index.is_replacement:
        return isinstance(command, MarkReady | UndoIndex)
    assert attempt.after is not None
    held = attempt.after.index_by_id(index.id)
    return held is None or not isinstance(held.entity, Index) or not held.entity.is_replacement


def _end_of_transaction(
    view: NodeView, attempt: Attempt, found: RememberedOutcome
) -> Iterator[DdlReply]:
    """Yield the reply to a client's transaction, if this ends the last of its indexes."""
    assert attempt.after is not None
    # If an index is undone with it, what is remembered from now on says so.
    undone = [h.record for h in attempt.enlisted if h.record and h.record.id == found.outcome.id]
    found = found._replace(outcome=undone[0]) if undone else found
    if not transactions.pending_of(attempt.after, found.outcome):
        outcome = transactions.end_of(attempt.after, found)
        yield _reply(view, found.outcome.id, outcome)


def _created(view: NodeView, index_id: int) -> Index | None:
    """Return an index that a producer waits for on `ddl-replies`."""
    held = view.state.index_by_id(index_id)
    index = held.entity if held else None
    return index if isinstance(index, Index) and index.by_topic else None


def _reply(view: NodeView, request_id: str, outcome: Outcome) -> DdlReply:
    return DdlReply(
        request=request_id,
        status=outcome.status,
        answer_json=_answer_json(outcome),
        error_code=outcome.code,
        error_message=outcome.message,
        error_details_json=decisions.compact(outcome.details),
        cas=outcome.cas,
        txn=outcome.txn,
        at_ms=view.now.wall_ms,
    )


def _answer_json(outcome: Outcome) -> str:
    """Return the answer; if it is too long, what it is about, without the definitions."""
    whole = decisions.compact(outcome.answer)
    if len(whole) <= ANSWER_BYTES_MAX:
        return whole
    return decisions.compact(decisions.in_short(outcome.answer))


def dead_letters(view: NodeView, attempt: Attempt) -> Iterator[DeadLetter]:
    """Yield the records of `ddl` that could not be read, and are passed over."""
    for held in attempt.enlisted:
        command, place = held.request.command, held.request.position
        if isinstance(command, SkipRecord) and place is not None:
            yield DeadLetter(
                "ddl",
                place.partition,
                place.offset,
                command.reason,
                command.value,
                view.now.wall_ms,
            )

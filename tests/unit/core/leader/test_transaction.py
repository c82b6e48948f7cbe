"""One attempt at a commit: whose answers count, and what is written with the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.catalog.decisions import recorded
from coordinator.core.leader.transaction import (
    ABANDONING,
    CONCLUDING,
    MOVES,
    PROPOSED,
    UNDOING,
    Attempt,
    Enlisted,
)
from coordinator.core.leader.verdicts import commit_of, dated, ddl_replies, dead_letters
from coordinator.core.model.commands import (
    OK,
    DropIndex,
    MarkReady,
    Outcome,
    Position,
    PutSetting,
    Request,
    SkipRecord,
    UndoIndex,
    refused,
)
from coordinator.core.model.outcome_records import OutcomesRecorded
from coordinator.core.model.records import (
    ACCEPTED,
    BEHIND,
    REFUSED,
    DdlReply,
    DeadLetter,
    ProposalAnswered,
    TransactionCommitted,
)
from coordinator.core.model.types import Instant, TxnId
from tests.support.indexes import make_index
from tests.support.views import (
    CODEC,
    INCARNATIONS,
    MONO_MS,
    OWN_AUTHORITY,
    STATE,
    WALL_MS,
    a_proposal,
    a_state_of,
    a_view,
    writes,
)

TXN = TxnId(4, 8)
AT = 150
"""The offset at which the fold opens the proposal."""


def an_attempt(**fields: Any) -> Attempt:
    known = {"proposal": a_proposal(8), "enlisted": [], "began_ms": 0, "sent_ms": 0}
    return Attempt(**(known | {"incarnations": INCARNATIONS} | fields))


def an_answer(node: int, answer: str = ACCEPTED) -> ProposalAnswered:
    return ProposalAnswered(node, INCARNATIONS[node], TXN, AT, answer, "")


@pytest.mark.parametrize("before", MOVES)
@pytest.mark.parametrize("after", MOVES)
def test_an_attempt_is_concluded_or_abandoned_and_then_undone(before: str, after: str) -> None:
    legal = {(PROPOSED, CONCLUDING), (PROPOSED, ABANDONING), (ABANDONING, UNDOING)}
    attempt = an_attempt(state=before)
    if (before, after) in legal:
        attempt.move(after)
        assert attempt.state == after
    else:
        with pytest.raises(AssertionError):
            attempt.move(after)


# -- whose answers count -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"txn": TxnId(4, 9)}, False),
        ({"txn": TxnId(3, 8)}, False),
        ({"incarnation": 21}, False),
        ({"proposal_offset": AT + 1}, False),
        ({"proposal_offset": -1}, False),
        ({"node": 4, "incarnation": 40}, False),
    ],
    ids=["this", "number", "epoch", "incarnation", "offset", "no-offset", "no-participant"],
)
@pytest.mark.parametrize("early", [False, True])
def test_an_answer_counts_for_this_proposal_at_its_offset_by_a_participant_in_its_life(
    fields: dict[str, Any], counts: bool, early: bool
) -> None:
    """Also one that came before the master itself has read where its proposal stands."""
    attempt, answer = (
        an_attempt(incarnations={**INCARNATIONS, 4: 40}),
        replace(an_answer(2), **fields),
    )
    if early:
        attempt.count(answer)
        assert attempt.answers == {}
        attempt.open_at(AT)
    else:
        attempt.open_at(AT)
        attempt.count(answer)
    assert attempt.accepted == ((2,) if counts else ())
    assert attempt.early == []


ANSWERED_TWICE = list(product((ACCEPTED, BEHIND, REFUSED), repeat=2))


@pytest.mark.parametrize(("first", "then"), ANSWERED_TWICE)
def test_who_has_accepted_has_accepted_and_others_may_think_again(first: str, then: str) -> None:
    attempt = an_attempt()
    attempt.open_at(AT)
    for answer in (first, then):
        attempt.count(an_answer(2, answer))
    stands = ACCEPTED if ACCEPTED in (first, then) else then
    assert attempt.answers[2].answer == stands
    assert attempt.accepted == ((2,) if stands == ACCEPTED else ())
    assert [a.node for a in attempt.refusals] == ([2] if stands == REFUSED else [])
    assert attempt.missing == ((1, 3) if stands == ACCEPTED else (1, 2, 3))


def test_those_that_have_accepted_are_told_in_the_order_of_their_numbers() -> None:
    attempt = an_attempt()
    attempt.open_at(AT)
    for node in (3, 1, 2):
        attempt.count(an_answer(node))
    assert attempt.accepted == (1, 2, 3)


# -- what is written with the verdict ------------------------------------------------------------


def asked(command: Any, **fields: Any) -> Request:
    return Request(command=command, **fields)


def enlisted(request: Request, outcome: Outcome | None = None, **fields: Any) -> Enlisted:
    known: dict[str, Any] = {"first": 0, "subject": 0}
    return Enlisted(request, outcome or Outcome(OK), **(known | fields))


def concluded(*held: Enlisted, mutations: int = 2, **fields: Any) -> Attempt:
    """Return an attempt that nodes 1 and 3 have accepted; its mutations stand at CAS 61 and on."""
    proposal = a_proposal(8, *(writes(f"k{number}") for number in range(mutations)))
    cas = tuple(range(61, 61 + mutations))
    after = states.evolve(STATE, zip(proposal.mutations, cas, strict=True))
    attempt = an_attempt(
        proposal=proposal, enlisted=list(held), cas=cas, after=after, offset=AT, **fields
    )
    for node in (1, 3):
        attempt.count(an_answer(node))
    return attempt


def test_an_answer_has_the_cas_of_its_own_mutation_and_the_transaction() -> None:
    cas = (61, 62, 63)
    held = enlisted(asked(PutSetting("k", "1")), Outcome(OK, answer={"a": 1}), first=1, subject=1)
    assert dated(held, cas, "4-8") == Outcome(OK, answer={"a": 1}, cas=63, txn="4-8")
    whole = enlisted(asked(PutSetting("k", "1")), refused("no", "no"), first=1, subject=-1)
    assert dated(whole, cas, "4-8") == refused("no", "no")


def test_the_verdict_says_what_who_where_and_which_state_it_leads_to() -> None:
    attempt, view = concluded(), a_view(authority=OWN_AUTHORITY)
    assert attempt.after is not None
    assert commit_of(view, CODEC, attempt, 10**9) == TransactionCommitted(
        txn=TXN,
        proposal_offset=AT,
        accepted=(1, 3),
        cas=(61, 62),
        state_digest=attempt.after.digest,
        at_ms=WALL_MS,
        outcomes=b"",
        outcomes_forgotten=0,
        outcomes_digest=0,
        outcomes_forgotten_ms=0,
    )


def test_the_verdict_brings_the_outcomes_of_its_requests_and_forgets_those_that_are_due() -> None:
    first = asked(PutSetting("k0", "2"), id="r0", fingerprint=5)
    second = asked(PutSetting("k1", "2"), id="r1", fingerprint=6)
    records = [recorded(one, Outcome(OK, answer={"key": "k"})) for one in (first, second)]
    attempt = concluded(
        enlisted(first, first=0, record=records[0]),
        enlisted(asked(PutSetting("k9", "2")), first=0),
        enlisted(second, first=1, record=records[1]),
    )
    view = a_view(authority=OWN_AUTHORITY)
    old = OutcomesRecorded(TxnId(4, 1), 40, WALL_MS - 600_001, (replace(records[0], id="old"),))
    view.outcomes.add(40, CODEC.encode_outcomes(old), Instant(MONO_MS - 600_001, 0))
    verdict = commit_of(view, CODEC, attempt, 10**9)
    group = CODEC.decode_outcomes(verdict.outcomes)
    assert (group.txn, group.cas, group.at_ms) == (TXN, 62, WALL_MS)
    assert [(one.id, one.cas) for one in group.outcomes] == [("r0", 61), ("r1", 62)]
    assert verdict.outcomes_forgotten == 40
    view.outcomes.add(62, verdict.outcomes, view.now)
    assert view.outcomes.forget(40) == [40]
    assert verdict.outcomes_digest == view.outcomes.digest


def reply(request: str, outcome: Outcome) -> DdlReply:
    return DdlReply(
        request=request,
        status=outcome.status,
        answer_json=json.dumps(outcome.answer, separators=(",", ":")),
        error_code=outcome.code,
        error_message=outcome.message,
        error_details_json=json.dumps(outcome.details, separators=(",", ":")),
        cas=outcome.cas,
        txn=outcome.txn,
        at_ms=WALL_MS,
    )


PLACE = Position(0, 7)
DROP = DropIndex(bucket="b", name="x")
GONE = refused("index_not_found", "no such index", name="x")

REPLIES: list[tuple[str, Enlisted, list[DdlReply]]] = [
    (
        "an effect is told with its cas",
        enlisted(asked(DROP, id="r", position=PLACE), Outcome(OK, answer={"a": 1}), subject=1),
        [reply("r", Outcome(OK, answer={"a": 1}, cas=62, txn="4-8"))],
    ),
    (
        "a refusal is told as well",
        enlisted(asked(DROP, id="r", position=PLACE), GONE, subject=-1),
        [reply("r", GONE)],
    ),
    ("a caller hears otherwise", enlisted(asked(DROP, id="r", token=3)), []),
    ("who gave no id is told nothing", enlisted(asked(DROP, position=PLACE)), []),
    (
        "a creation is not at its end",
        enlisted(asked(DROP, id="r", position=PLACE), waits_for=(77,)),
        [],
    ),
    (
        "READY ends a creation that was published",
        enlisted(asked(MarkReady(77)), Outcome(OK, answer={"b": 2})),
        [reply("r77", Outcome(OK, answer={"b": 2}, cas=61, txn="4-8"))],
    ),
    (
        "so does its undoing",
        enlisted(asked(UndoIndex(77, "no room"))),
        [reply("r77", refused("indexer_refused", "no room"))],
    ),
    ("READY of one that a caller made tells no topic", enlisted(asked(MarkReady(78))), []),
    ("READY of one that is gone tells nobody", enlisted(asked(MarkReady(79))), []),
]


@pytest.mark.parametrize(("held", "told"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_what_came_by_the_topic_is_answered_on_the_topic_at_its_end(
    held: Enlisted, told: list[DdlReply]
) -> None:
    state = a_state_of(50, make_index(77, by_topic=True, request_fingerprint=5), make_index(78))
    view = a_view(authority=OWN_AUTHORITY, state=state)
    assert list(ddl_replies(view, concluded(held))) == told


def test_a_record_that_is_no_command_becomes_a_dead_letter() -> None:
    skipped = asked(SkipRecord("not_avro", b"\x00"), position=PLACE)
    attempt = concluded(
        enlisted(skipped, subject=-1),
        enlisted(asked(DROP, id="r", position=Position(0, 8))),
        enlisted(asked(SkipRecord("nowhere", b""))),
    )
    (letter,) = dead_letters(a_view(), attempt)
    assert letter == DeadLetter("ddl", 0, 7, "not_avro", b"\x00", WALL_MS)

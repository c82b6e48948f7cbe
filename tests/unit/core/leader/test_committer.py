"""The transaction in flight: from its proposal to the verdict, and every way there.

The part alone: inputs in, results out. `docs/protocol.md` has the same in words ("Commit in two
phases", "What may fail during a commit").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from immutables import Map

from coordinator import codec
from coordinator.core.catalog import state as states
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.effects import (
    Abandon,
    Answer,
    Append,
    Conclude,
    WriteEvents,
    WriteHistory,
)
from coordinator.core.consensus.inputs import AppendFailed, Ended, Written
from coordinator.core.consensus.signals import LoseMastership
from coordinator.core.consensus.view import Tokens
from coordinator.core.leader.committer import REASON_BYTES_MAX, Committer
from coordinator.core.leader.group_commit import Group
from coordinator.core.leader.transaction import CONCLUDING, PROPOSED, UNDOING, Enlisted
from coordinator.core.model.authority_state import ROLLBACK, TransactionStatus
from coordinator.core.model.commands import OK, Outcome, Position, PutSetting, Request, SkipRecord
from coordinator.core.model.records import (
    ACCEPTED,
    BEHIND,
    REFUSED,
    Event,
    MasterClaimed,
    MemberAdmitted,
    MemberExpired,
    ProposalAnswered,
    TransactionCommitted,
    TransactionRolledBack,
)
from coordinator.core.model.types import CAS_MAX, Cas, TxnId
from coordinator.kafka.topics import MESSAGE_BYTES_MAX
from coordinator.process import LOG_CAPACITY_MAX
from tests.support.views import (
    CODEC,
    INCARNATIONS,
    MONO_MS,
    OWN_AUTHORITY,
    STATE,
    WALL_MS,
    a_beat,
    a_proposal,
    a_view,
    members,
    some_peers,
    writes,
)

TXN, TOKEN, AT = TxnId(4, 1), 1, 150
"""The first transaction of epoch 4, its token, and the offset at which the fold opens it."""

MUTATIONS = (writes("a"), writes("b"))
OFFSETS, CAS = (60, 61), (61, 62)
"""Where the events stand on `statecontext`, and their CAS: the base is 1."""

ACK_MS, RETRIES, ATTEMPTS, VERDICT_MS = 500, 3, 3, 8_000

ALIVE = some_peers(5_000, [a_beat(1), a_beat(2), a_beat(3)])


def at(mono_ms: int = MONO_MS, **fields: Any) -> Any:
    """Return what the master, node 1, sees at a time; everybody's heartbeats are heard."""
    return a_view(mono_ms, **({"authority": OWN_AUTHORITY, "peers": ALIVE} | fields))


def a_group(*enlisted: Enlisted, seq: int = 1) -> Group:
    return Group(
        txn=TxnId(4, seq),
        indexers=[],
        vbuckets={},
        partitions=set(),
        enlisted=list(enlisted),
        mutations=list(MUTATIONS),
    )


def the_proposal(seq: int = 1, **fields: Any) -> Any:
    return a_proposal(seq, *MUTATIONS, **fields)


PROPOSAL = the_proposal()


def proposed(*enlisted: Enlisted, **fields: Any) -> Committer:
    """Return a committer that has sent its proposal, and knows nothing of it."""
    committer = Committer(4, Tokens(), CODEC, 0)
    committer.propose(at(**fields), a_group(*enlisted))
    return committer


def an_answer(node: int, answer: str = ACCEPTED, reason: str = "", seq: int = 1) -> Any:
    return ProposalAnswered(node, INCARNATIONS[node], TxnId(4, seq), AT, answer, reason)


def under_way(*accepted: int, **fields: Any) -> Committer:
    """Return a committer whose proposal is open, whose CAS are known, and that is heard itself."""
    committer = proposed(**fields)
    committer.opened(TXN, AT)
    committer.written(at(**fields), Written(TOKEN, OFFSETS))
    for node in accepted:
        committer.answered(an_answer(node))
    return committer


AFTER = states.evolve(STATE, zip(MUTATIONS, CAS, strict=True))


def commit(*accepted: int, at_ms: int = WALL_MS) -> TransactionCommitted:
    return TransactionCommitted(
        txn=TXN,
        proposal_offset=AT,
        accepted=accepted,
        cas=CAS,
        state_digest=AFTER.digest,
        at_ms=at_ms,
    )


def expired(node: int, reason: str = "silent", at_ms: int = WALL_MS) -> MemberExpired:
    return MemberExpired(4, node, reason, at_ms)


# -- the way of a change -------------------------------------------------------------------------


def test_a_group_is_proposed_written_accepted_by_all_and_committed() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    assert committer.next_txn == TXN
    events = tuple(Event(mutation, TXN, number, 2) for number, mutation in enumerate(MUTATIONS))
    assert committer.propose(at(), a_group()) == [
        WriteEvents(TOKEN, events),
        Append(TOKEN, PROPOSAL),
    ]
    assert committer.next_txn == TxnId(4, 2)
    dated = tuple(replace(event, cas=cas) for event, cas in zip(events, CAS, strict=True))
    assert committer.written(at(), Written(TOKEN, OFFSETS)) == [WriteHistory(dated)]
    committer.opened(TXN, AT)
    for node in (1, 2, 3):
        assert committer.advance(at()) == []
        committer.answered(an_answer(node))
    assert committer.advance(at()) == [Conclude(TOKEN, (commit(1, 2, 3),))]
    assert committer.advance(at()) == [], "the verdict is written once"
    assert committer.ended(at(), Ended(TOKEN)) == [], "what the producer says is no verdict"
    assert committer.computed_state(commit(1, 2, 3)) == AFTER
    attempt = committer.finish(TXN)
    assert attempt is not None
    assert attempt.state == CONCLUDING
    assert committer.attempt is None


def test_a_proposal_names_the_active_list_and_the_state_that_it_builds_on() -> None:
    two = replace(OWN_AUTHORITY, members=members(n1=10, n3=30))
    _, append = Committer(4, Tokens(), CODEC, 0).propose(at(authority=two), a_group())
    assert append == Append(TOKEN, the_proposal(participants=(1, 3)))


STEPS: dict[str, Callable[[Committer], Any]] = {
    "opened": lambda committer: committer.opened(TXN, AT),
    "written": lambda committer: committer.written(at(), Written(TOKEN, OFFSETS)),
    "1": lambda committer: committer.answered(an_answer(1)),
    "2": lambda committer: committer.answered(an_answer(2)),
    "3": lambda committer: committer.answered(an_answer(3)),
}


def test_the_verdict_is_written_when_all_of_it_is_there_in_whichever_order_it_comes() -> None:
    """The offset, the CAS and every answer: 120 orders."""
    for order in permutations(STEPS):
        committer = proposed()
        for step in order:
            assert committer.advance(at()) == [], (order, step)
            STEPS[step](committer)
        assert committer.advance(at()) == [Conclude(TOKEN, (commit(1, 2, 3),))], order


def test_replies_and_dead_letters_go_with_the_verdict() -> None:
    put = Request(command=PutSetting("a", "2"), id="r", position=Position(0, 7))
    skip = Request(command=SkipRecord("not_avro", b"\x00"), position=Position(0, 8))
    held = (Enlisted(put, Outcome(OK), 0, 0), Enlisted(skip, Outcome(OK), 2, -1))
    committer = proposed(*held)
    for step in STEPS.values():
        step(committer)
    (written,) = committer.advance(at())
    assert isinstance(written, Conclude)
    assert [(reply.request, reply.cas, reply.txn) for reply in written.replies] == [
        ("r", 61, "4-1")
    ]
    assert [(letter.reason, letter.offset) for letter in written.dead_letters] == [("not_avro", 8)]


# -- where the events stand ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "fields"),
    [
        ((60, 62), {}),
        ((61, 60), {}),
        ((60,), {}),
        ((60, 61, 62), {}),
        ((), {}),
        ((49, 50), {}),
        ((CAS_MAX - 1, CAS_MAX), {}),
        ((50, 51), {"authority": replace(OWN_AUTHORITY, cas_base=0)}),
    ],
    ids=["gap", "order", "few", "many", "none", "not-above", "too-large", "another-base"],
)
def test_events_that_are_not_one_after_the_other_above_the_state_end_the_mastership(
    offsets: tuple[int, ...], fields: dict[str, Any]
) -> None:
    committer = proposed()
    why = f"the events of {TXN} are not contiguous"
    assert committer.written(at(**fields), Written(TOKEN, offsets)) == [LoseMastership(why)]


@pytest.mark.parametrize("offsets", [(50, 51), (CAS_MAX - 2, CAS_MAX - 1)], ids=["first", "last"])
def test_a_cas_is_above_the_state_and_no_larger_than_json_can_say(offsets: tuple[int, ...]) -> None:
    (history,) = proposed().written(at(), Written(TOKEN, offsets))
    assert isinstance(history, WriteHistory)
    assert [event.cas for event in history.events] == [offset + 1 for offset in offsets]


def test_only_the_events_of_the_transaction_in_flight_count() -> None:
    assert Committer(4, Tokens(), CODEC, 0).written(at(), Written(0, OFFSETS)) == []
    assert proposed().written(at(), Written(TOKEN + 1, OFFSETS)) == []
    committer = under_way()
    committer.answered(an_answer(2, REFUSED, "full"))
    committer.advance(at())
    assert committer.written(at(), Written(TOKEN, OFFSETS)) == [], "it is being abandoned"


# -- what may be lost on the way -----------------------------------------------------------------


def test_a_proposal_whose_append_failed_is_sent_again_at_once() -> None:
    committer = proposed()
    assert committer.append_failed(at(), AppendFailed(TOKEN + 1, "another's")) == []
    assert committer.append_failed(at(), AppendFailed(TOKEN, "lost")) == [Append(TOKEN, PROPOSAL)]
    assert Committer(4, Tokens(), CODEC, 0).append_failed(at(), AppendFailed(0, "lost")) == []


def test_a_proposal_that_is_not_answered_is_sent_again_with_the_masters_own_answer() -> None:
    """So the master sees whether answers can be heard at all."""
    committer = under_way(1, 2)
    assert committer.tick(at(MONO_MS + ACK_MS)) == []
    again = [Answer(an_answer(1)), Append(TOKEN, PROPOSAL)]
    assert committer.tick(at(MONO_MS + ACK_MS + 1)) == again
    assert committer.tick(at(MONO_MS + 2 * ACK_MS + 1)) == [], "each waits as long"
    assert committer.tick(at(MONO_MS + 2 * ACK_MS + 2)) == again


def test_what_an_append_failed_for_after_the_verdict_is_not_proposed_again() -> None:
    committer = under_way(1, 2, 3)
    committer.advance(at())
    assert committer.append_failed(at(), AppendFailed(TOKEN, "late")) == [Answer(an_answer(1))]


def asked_in_vain(committer: Committer, echoes: bool = True, **fields: Any) -> int:
    """Let the silent be asked as often as they may be; return when the patience ends."""
    now_ms = MONO_MS
    for number in range(RETRIES):
        now_ms += ACK_MS + 1
        found = committer.tick(at(now_ms, **fields))
        assert found[-1] == Append(TOKEN, PROPOSAL), number
        if echoes:
            committer.echoed(now_ms)
    return now_ms + ACK_MS + 1


def wall(now_ms: int) -> int:
    return WALL_MS + now_ms - MONO_MS


def test_a_silent_replica_is_expired_by_the_commit_if_enough_copies_are_there() -> None:
    committer = under_way(1, 2)
    end_ms = asked_in_vain(committer)
    assert committer.tick(at(end_ms - 1)) == []
    verdict = commit(1, 2, at_ms=wall(end_ms))
    assert committer.tick(at(end_ms)) == [
        Conclude(TOKEN, (expired(3, at_ms=wall(end_ms)), verdict))
    ]
    assert committer.tick(at(end_ms + ACK_MS + 1)) == [], "it is concluded"


def test_a_replica_that_is_behind_is_no_copy_and_is_expired_as_a_silent_one() -> None:
    committer = under_way(1, 2)
    committer.answered(an_answer(3, BEHIND, "synchronising"))
    assert committer.advance(at()) == []
    end_ms = asked_in_vain(committer)
    verdict = commit(1, 2, at_ms=wall(end_ms))
    assert committer.tick(at(end_ms)) == [
        Conclude(TOKEN, (expired(3, at_ms=wall(end_ms)), verdict))
    ]


def test_too_few_copies_are_rolled_back_and_the_silent_expired() -> None:
    committer = under_way(1)
    end_ms = asked_in_vain(committer)
    reason = "nodes [2, 3] are silent, and 1 copies are too few"
    assert committer.tick(at(end_ms)) == [Abandon(TOKEN)]
    now = at(end_ms + 5)
    assert committer.ended(now, Ended(TOKEN + 1)) == [], "another Kafka transaction's end"
    records = (
        expired(2, reason, wall(end_ms + 5)),
        expired(3, reason, wall(end_ms + 5)),
        TransactionRolledBack(TXN, AT, reason, wall(end_ms + 5)),
    )
    assert committer.ended(now, Ended(TOKEN)) == [Conclude(TOKEN + 1, records)]
    assert committer.ended(now, Ended(TOKEN)) == [], "it is undone once"


def test_exactly_the_minimum_of_copies_is_enough() -> None:
    for minimum, enough in ((2, True), (3, False)):
        authority = replace(OWN_AUTHORITY, minimum=minimum)
        committer = under_way(1, 2, authority=authority)
        end_ms = asked_in_vain(committer, authority=authority)
        (found,) = committer.tick(at(end_ms, authority=authority))
        assert isinstance(found, Conclude if enough else Abandon), minimum


def test_while_not_even_its_own_answer_comes_back_the_master_blames_nobody() -> None:
    committer = under_way(1, 2)
    end_ms = asked_in_vain(committer, echoes=False)
    assert committer.tick(at(end_ms)) == [Answer(an_answer(1)), Append(TOKEN, PROPOSAL)]
    committer.echoed(end_ms + 1)
    (found,) = committer.tick(at(end_ms + ACK_MS + 1))
    assert isinstance(found, Conclude)


def test_an_echo_of_before_the_doubt_says_nothing() -> None:
    committer = under_way(1, 2)
    committer.echoed(MONO_MS + ACK_MS)
    end_ms = asked_in_vain(committer, echoes=False)
    assert committer.tick(at(end_ms)) == [Answer(an_answer(1)), Append(TOKEN, PROPOSAL)]


def test_one_echo_since_the_doubt_began_is_enough() -> None:
    committer = under_way(1, 2)
    committer.tick(at(MONO_MS + ACK_MS + 1))
    committer.echoed(MONO_MS + ACK_MS + 1)
    for number in (2, 3):
        committer.tick(at(MONO_MS + number * (ACK_MS + 1)))
    (found,) = committer.tick(at(MONO_MS + 4 * (ACK_MS + 1)))
    assert isinstance(found, Conclude)


def test_who_has_no_heartbeats_either_is_blamed_without_an_echo() -> None:
    committer = under_way(1, 2)
    end_ms = asked_in_vain(committer, echoes=False)
    stopped = some_peers(5_000, [a_beat(1), a_beat(2)], [a_beat(3)])
    (found,) = committer.tick(at(end_ms, peers=stopped))
    assert isinstance(found, Conclude)


@pytest.mark.parametrize(
    ("heard", "at_once"),
    [
        (some_peers(5_000, [a_beat(1), a_beat(2)], [a_beat(3)]), True),
        (some_peers(5_000, [a_beat(1), a_beat(2)]), True),
        (some_peers(5_000, [a_beat(1), a_beat(3)], [a_beat(2)]), False),
    ],
    ids=["stopped", "never-heard", "who-accepted-stopped"],
)
def test_a_silent_replica_whose_heartbeats_stopped_is_not_asked_again(
    heard: Any, at_once: bool
) -> None:
    committer = under_way(1, 2)
    assert committer.tick(at(MONO_MS + ACK_MS, peers=heard)) == []
    found = committer.tick(at(MONO_MS + ACK_MS + 1, peers=heard))
    late = WALL_MS + ACK_MS + 1
    verdict = Conclude(TOKEN, (expired(3, at_ms=late), commit(1, 2, at_ms=late)))
    assert found == ([verdict] if at_once else [Answer(an_answer(1)), Append(TOKEN, PROPOSAL)])


def test_as_long_as_one_of_the_silent_is_alive_all_are_asked_again() -> None:
    heard = some_peers(5_000, [a_beat(1), a_beat(2)], [a_beat(3)])
    committer = under_way(1)
    assert committer.tick(at(MONO_MS + ACK_MS + 1, peers=heard))[-1] == Append(TOKEN, PROPOSAL)


def test_a_proposal_that_nobody_read_back_is_abandoned_and_its_number_closed() -> None:
    committer = proposed()
    end_ms = asked_in_vain(committer)
    assert committer.tick(at(end_ms)) == [Abandon(TOKEN)]
    verdict = TransactionRolledBack(TXN, -1, "the proposal was not read back", wall(end_ms))
    assert committer.ended(at(end_ms), Ended(TOKEN)) == [Conclude(TOKEN + 1, (verdict,))]


def test_as_long_as_no_cas_is_known_nothing_is_decided() -> None:
    """The mastership ends with its producer, or when the verdict is overdue."""
    committer = proposed()
    committer.opened(TXN, AT)
    for node in INCARNATIONS:
        committer.answered(an_answer(node))
    assert committer.advance(at()) == []
    end_ms = asked_in_vain(committer)
    for number in range(3):
        found = committer.tick(at(end_ms + number * (ACK_MS + 1)))
        assert found == [Answer(an_answer(1)), Append(TOKEN, PROPOSAL)]


def test_a_master_whose_own_store_is_silent_gives_the_mastership_up() -> None:
    committer = under_way(2, 3)
    end_ms = asked_in_vain(committer)
    assert committer.tick(at(end_ms)) == [LoseMastership("this node's own store does not answer")]


def test_a_master_is_as_patient_with_its_own_store_while_a_replica_is_dead() -> None:
    dead = some_peers(5_000, [a_beat(1), a_beat(2)], [a_beat(3)])
    committer = under_way(2)
    end_ms = asked_in_vain(committer, peers=dead)
    found = committer.tick(at(end_ms, peers=dead))
    assert found == [LoseMastership("this node's own store does not answer")]


def test_a_proposal_of_another_number_opens_nothing_here() -> None:
    committer = proposed()
    committer.opened(TxnId(4, 2), AT)
    committer.opened(TxnId(3, 1), AT)
    assert committer.attempt is not None
    assert committer.attempt.offset is None


# -- refusals ------------------------------------------------------------------------------------


def refused_once(committer: Committer, seq: int, *refusing: int) -> tuple[Any, ...]:
    """Let one transaction be refused, and rolled back; return what is written with that."""
    began = at()
    committer.propose(began, a_group(seq=seq))
    assert committer.attempt is not None
    token = committer.attempt.token
    committer.opened(TxnId(4, seq), AT)
    committer.written(began, Written(token, OFFSETS))
    for node in INCARNATIONS:
        refuses = node in refusing
        answer = an_answer(node, REFUSED if refuses else ACCEPTED, "full" if refuses else "", seq)
        committer.answered(answer)
    assert committer.advance(began) == [Abandon(token)]
    (written,) = committer.ended(began, Ended(token))
    assert isinstance(written, Conclude)
    committer.read_back(written.records[-1])
    assert committer.finish(TxnId(4, seq)) is not None
    return written.records


def committed_once(committer: Committer, seq: int) -> None:
    committer.propose(at(), a_group(seq=seq))
    assert committer.attempt is not None
    committer.opened(TxnId(4, seq), AT)
    committer.written(at(), Written(committer.attempt.token, OFFSETS))
    for node in INCARNATIONS:
        committer.answered(an_answer(node, seq=seq))
    (written,) = committer.advance(at())
    assert isinstance(written, Conclude)
    committer.finish(TxnId(4, seq))


def rollback(seq: int, reason: str) -> TransactionRolledBack:
    return TransactionRolledBack(TxnId(4, seq), AT, reason, WALL_MS)


WHY = "node 3: full"


def test_one_refusal_rolls_back_at_once_and_tells_why() -> None:
    committer = under_way()
    committer.answered(an_answer(3, REFUSED, "full"))
    assert committer.advance(at()) == [Abandon(TOKEN)]
    assert committer.advance(at()) == []
    assert committer.tick(at(MONO_MS + ACK_MS + 1)) == [], "it is abandoned, nobody is asked"
    assert committer.ended(at(), Ended(TOKEN)) == [Conclude(TOKEN + 1, (rollback(1, WHY),))]
    assert committer.attempt is not None
    assert committer.attempt.state == UNDOING


@pytest.mark.parametrize("letter", ["y", "\u0434", "\U0001f600"])
def test_the_reason_of_a_rollback_is_kept_in_short(letter: str) -> None:
    """Each claim carries those of all transactions that the log of transactions has."""
    committer = under_way(1, 2)
    committer.answered(an_answer(3, REFUSED, letter * 900_000))
    assert committer.advance(at()) == [Abandon(TOKEN)]
    (written,) = committer.ended(at(), Ended(TOKEN))
    assert isinstance(written, Conclude)
    (record,) = written.records
    assert isinstance(record, TransactionRolledBack)
    assert REASON_BYTES_MAX - 4 < len(record.reason.encode()) <= REASON_BYTES_MAX
    assert ("node 3: " + letter * 900_000).startswith(record.reason)
    row = TransactionStatus(TXN, ROLLBACK, Cas(0), (1, 2, 3), record.reason)
    log = Map(dict.fromkeys(range(LOG_CAPACITY_MAX), row))
    whole = replace(OWN_AUTHORITY, log=log, log_next=len(log), log_capacity=len(log))
    claim = MasterClaimed(
        epoch=5,
        node=1,
        incarnation=INCARNATIONS[1],
        address="n1",
        cas=STATE.cas,
        digest=STATE.digest,
        snapshot=whole,
        at_ms=WALL_MS,
    )
    assert len(codec.encode(claim)) < MESSAGE_BYTES_MAX


def test_a_refusal_rolls_back_before_the_cas_are_known() -> None:
    committer = proposed()
    committer.answered(an_answer(3, REFUSED, "full"))
    assert committer.advance(at()) == [], "where it was opened must be known"
    committer.opened(TXN, AT)
    assert committer.advance(at()) == [Abandon(TOKEN)]


def test_a_replica_that_refuses_so_often_running_is_expired_with_the_rollback() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    for seq in range(1, ATTEMPTS):
        assert refused_once(committer, seq, 3) == (rollback(seq, WHY),)
    records = refused_once(committer, ATTEMPTS, 3)
    assert records == (expired(3, WHY), rollback(ATTEMPTS, WHY))


def test_only_who_refused_that_often_is_expired() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    for seq in range(1, ATTEMPTS):
        refused_once(committer, seq, 3)
    why = "node 2: full; node 3: full"
    records = refused_once(committer, ATTEMPTS, 2, 3)
    assert records == (expired(3, why), rollback(ATTEMPTS, why))


def test_a_replica_that_accepted_in_between_begins_anew() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    for seq in (1, 2):
        refused_once(committer, seq, 3)
    committed_once(committer, 3)
    for seq in (4, 5):
        assert refused_once(committer, seq, 3) == (rollback(seq, WHY),)
    assert refused_once(committer, 6, 3)[0] == expired(3, WHY)


def test_of_two_that_refuse_in_turn_each_is_expired_in_the_end() -> None:
    """An acceptance that another replica spoiled brings nobody on."""
    committer = Committer(4, Tokens(), CODEC, 0)
    for seq in range(1, 2 * ATTEMPTS - 1, 2):
        assert refused_once(committer, seq, 3) == (rollback(seq, WHY),)
        refused_once(committer, seq + 1, 2)
    assert refused_once(committer, 2 * ATTEMPTS - 1, 3)[0] == expired(3, WHY)


def test_who_left_the_active_list_begins_anew_and_nobody_else() -> None:
    for list_, left in ((members(n1=10, n2=20), True), (members(n1=10, n3=30), False)):
        committer = Committer(4, Tokens(), CODEC, 0)
        for seq in (1, 2):
            refused_once(committer, seq, 3)
        committer.membership_changed(replace(OWN_AUTHORITY, members=list_))
        records = refused_once(committer, 3, 3)
        assert (records[0] == expired(3, WHY)) is not left


def test_a_master_whose_own_store_refuses_gives_the_mastership_up() -> None:
    committer = under_way(2)
    committer.answered(an_answer(3, REFUSED, "full"))
    committer.answered(an_answer(1, REFUSED, "full"))
    assert committer.advance(at()) == [LoseMastership("this node's own store refuses writes")]


# -- the verdict, and what is not read back ------------------------------------------------------


@pytest.mark.parametrize("accepted", [(), (1, 2, 3)], ids=["proposed", "concluding"])
def test_a_transaction_whose_verdict_is_not_read_back_in_time_is_overdue(
    accepted: tuple[int, ...],
) -> None:
    """Nobody knows what became of it: the master gives its producer up, and claims anew."""
    committer = under_way(*accepted)
    committer.advance(at())
    assert not committer.is_overdue(at(MONO_MS + VERDICT_MS))
    assert committer.is_overdue(at(MONO_MS + VERDICT_MS + 1))
    committer.finish(TXN)
    assert not committer.is_overdue(at(MONO_MS + VERDICT_MS + 1))


def test_asking_again_does_not_put_the_end_off() -> None:
    committer = proposed()
    asked_in_vain(committer)
    assert committer.is_overdue(at(MONO_MS + VERDICT_MS + 1))


def admitted(node: int) -> MemberAdmitted:
    return MemberAdmitted(4, node, 1, "x", 50, 9, WALL_MS)


def test_what_is_written_for_the_authority_counts_once_the_last_of_it_is_read_back() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    assert not committer.is_writing
    records = (admitted(4), admitted(5))
    assert committer.write(at(), iter(records)) == [Conclude(TOKEN, records)]
    for record in (admitted(4), admitted(6), replace(admitted(5), at_ms=1)):
        committer.read_back(record)
        assert committer.is_writing
    committer.read_back(admitted(5))
    assert not committer.is_writing


def test_what_was_written_for_the_authority_and_is_not_read_back_in_time_is_overdue() -> None:
    committer = Committer(4, Tokens(), CODEC, 0)
    committer.write(at(), (admitted(4),))
    assert not committer.is_overdue(at(MONO_MS + VERDICT_MS))
    assert committer.is_overdue(at(MONO_MS + VERDICT_MS + 1))
    committer.read_back(admitted(4))
    assert not committer.is_overdue(at(MONO_MS + VERDICT_MS + 1))
    committer.write(at(MONO_MS + VERDICT_MS), (admitted(4),))
    assert not committer.is_overdue(at(MONO_MS + VERDICT_MS + 1)), "each has its own time"


def test_a_rollback_is_being_written_until_it_is_read_back() -> None:
    committer = under_way()
    committer.answered(an_answer(3, REFUSED, "full"))
    committer.advance(at())
    committer.ended(at(), Ended(TOKEN))
    assert committer.is_writing
    committer.read_back(rollback(1, WHY))
    assert not committer.is_writing


def test_only_the_transaction_in_flight_is_finished() -> None:
    committer = under_way()
    assert committer.finish(TxnId(4, 2)) is None
    assert committer.finish(TxnId(3, 1)) is None
    assert committer.attempt is not None
    assert committer.finish(TXN) is not None
    assert committer.finish(TXN) is None


@pytest.mark.parametrize(
    "fields", [{"txn": TxnId(4, 2)}, {"txn": TxnId(3, 1)}, {"cas": (62, 63)}, {"cas": (61,)}]
)
def test_a_master_trusts_what_it_computed_for_its_own_verdict_alone(
    fields: dict[str, Any],
) -> None:
    committer = under_way()
    assert committer.computed_state(commit()) == AFTER
    assert committer.computed_state(replace(commit(), **fields)) is None
    committer.finish(TXN)
    assert committer.computed_state(commit()) is None


def test_what_a_master_writes_counts_in_the_fold_and_a_second_verdict_is_an_alarm() -> None:
    committer = under_way(1, 2, 3)
    before = replace(OWN_AUTHORITY, last_seq=0)
    assert authorities.fold(OWN_AUTHORITY, AT, PROPOSAL).void, "a number of before is late"
    opened = authorities.fold(before, AT, PROPOSAL)
    (written,) = committer.advance(at())
    assert isinstance(written, Conclude)
    (verdict,) = written.records
    committed = authorities.fold(opened.state, AT + 1, verdict)
    assert (opened.void, committed.void) == ("", "")
    assert committed.state is not None
    assert (committed.state.last_cas, committed.state.acceptors) == (CAS[-1], (1, 2, 3))
    again = authorities.fold(committed.state, AT + 2, verdict)
    assert again.void
    assert authorities.is_alarming(verdict)
    assert not authorities.is_alarming(rollback(1, WHY))


def test_an_idle_committer_has_nothing_to_do() -> None:
    committer, late = Committer(4, Tokens(), CODEC, 0), at(10**9)
    committer.opened(TXN, AT)
    committer.answered(an_answer(2))
    committer.read_back(admitted(4))
    assert committer.advance(late) == committer.tick(late) == []
    assert committer.ended(late, Ended(0)) == []
    assert not committer.is_overdue(late)
    assert committer.attempt is None
    assert PROPOSAL.txn == committer.next_txn
    assert proposed().attempt is not None
    assert proposed().attempt.state == PROPOSED  # type: ignore[union-attr]

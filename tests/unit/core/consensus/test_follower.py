"""What a node makes of the log: a proposal is prepared, a verdict installs it or drops it.

The part alone, with the store's side that is its own: records in, results out. `docs/protocol.md`
has the same in words ("Commit in two phases", "What may fail during a commit").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Follow, Halt, Note, Publish, Save, Synchronise
from coordinator.core.consensus.follower import Follower
from coordinator.core.consensus.inputs import (
    Entry,
    PreparedTransaction,
    Restored,
    Started,
    Stored,
    StoreFailed,
    SyncRead,
)
from coordinator.core.consensus.signals import (
    AnswerProposal,
    ChainBroken,
    SendBarrier,
    Synchronised,
    TransactionInstalled,
)
from coordinator.core.consensus.view import CATCHING_UP, FOLLOWING, SYNCHRONISING, Tokens
from coordinator.core.model.authority_state import TransactionStatus
from coordinator.core.model.entities import RequestOutcome
from coordinator.core.model.outcome_records import DONE, OutcomesRecorded, RecordedOutcome
from coordinator.core.model.records import (
    ACCEPTED,
    BEHIND,
    REFUSED,
    AuthoritySnapshot,
    Event,
    OutcomesForgotten,
    OutcomesSeparated,
    ProposalAnswered,
    ReadBarrier,
    TransactionCommitted,
    TransactionRolledBack,
    Unreadable,
)
from coordinator.core.model.types import Instant, TxnId
from tests.support.views import (
    AUTHORITY,
    CODEC,
    INCARNATIONS,
    MONO_MS,
    STATE,
    WALL_MS,
    a_proposal,
    a_state,
    a_view,
    around,
    opened,
    writes,
)

APPLIED, AT = 100, 101
"""What the store has, and where the next record stands."""

PROPOSAL = a_proposal(8, writes("a"), writes("b"))
CAS = (61, 62)
EVENTS = tuple(
    Event(mutation, PROPOSAL.txn, number, 2, cas)
    for number, (mutation, cas) in enumerate(zip(PROPOSAL.mutations, CAS, strict=True))
)
AFTER = states.evolve(STATE, zip(PROPOSAL.mutations, CAS, strict=True))


def restored(**fields: Any) -> Restored:
    known = {"applied": APPLIED, "authority": AUTHORITY, "state": STATE, "prepared": None}
    return Restored(**(known | fields))


def a_follower() -> Follower:
    return Follower(CODEC, Tokens(), Counters())


def following(**fields: Any) -> Follower:
    """Return a follower that has all of the log up to offset 100, in its store, too."""
    follower = a_follower()
    assert follower.begin(around(), Started(restored(**fields), 0, AT)) == [Follow(AT)]
    assert follower.caught_up(around()) == [Note("caught up at offset 100, CAS 50")]
    follower.batch_ended(around())
    return follower


def newcomer(**fields: Any) -> Follower:
    """Return a follower without the state: it knows the log from a snapshot at offset 100 on."""
    follower = a_follower()
    follower.begin(around(), Started(None, APPLIED, AT))
    snapshot = AuthoritySnapshot(4, replace(AUTHORITY, **fields))
    assert follower.fold(Entry(APPLIED, snapshot)).void == ""
    return follower


def seen(follower: Follower, mono_ms: int = MONO_MS) -> Any:
    """Return the view that the store's side has of a follower."""
    names = ("phase", "applied", "authority", "state", "state_known", "prepared", "outcomes")
    return a_view(mono_ms, **{name: getattr(follower, name) for name in names})


def commit(**fields: Any) -> TransactionCommitted:
    known: dict[str, Any] = {"txn": PROPOSAL.txn, "proposal_offset": AT, "accepted": (1, 2, 3)}
    more = {"cas": CAS, "state_digest": AFTER.digest, "at_ms": WALL_MS}
    return TransactionCommitted(**(known | more | fields))


def propose(follower: Follower, offset: int = AT, proposal: Any = PROPOSAL) -> None:
    """Have a proposal folded, and prepared."""
    before, void = follower.fold(Entry(offset, proposal, b"raw"))
    assert void == ""
    follower.proposed(Entry(offset, proposal, b"raw"), before)


def conclude(follower: Follower, record: TransactionCommitted, offset: int = AT + 1) -> list[Any]:
    """Have a verdict folded, and installed."""
    assert follower.fold(Entry(offset, record)).void == ""
    return follower.committed(around(), record, None)


def saved(found: list[Any]) -> list[dict[str, Any]]:
    """Return what is said of each batch among results that are nothing else."""
    rows = []
    for save in found:
        assert isinstance(save, Save)
        row = {"applied": save.applied, "keys": sorted(key for key, _ in save.changes)}
        row |= {"prepared": save.prepared.proposal.txn.seq if save.prepared else 0}
        rows.append(row | {"cas": save.cas, "sync": save.sync, "wipe": save.wipe})
    return rows


def batch(applied: int, cas: int = 50, *keys: str, **fields: Any) -> dict[str, Any]:
    known = {"applied": applied, "cas": cas, "keys": list(keys), "prepared": 0}
    return known | {"sync": False, "wipe": False} | fields


def an_answer(answer: str = ACCEPTED, reason: str = "", **fields: Any) -> AnswerProposal:
    said = ProposalAnswered(1, INCARNATIONS[1], PROPOSAL.txn, AT, answer, reason)
    return AnswerProposal(replace(said, **fields))


def halt(digest: int, expected: int, what: str) -> Halt:
    message = f"{what} folds to digest {digest:032x}, not to {expected:032x}"
    return Halt("digest_mismatch", message, rebuild=True)


# -- a start -------------------------------------------------------------------------------------

LOST = "commit ends at offset 100, this node has applied 100: the log was lost or replaced"


def test_a_node_goes_on_behind_what_its_store_has() -> None:
    follower = a_follower()
    assert follower.begin(around(), Started(restored(), 0, AT)) == [Follow(AT)]
    assert (follower.applied, follower.authority, follower.state) == (APPLIED, AUTHORITY, STATE)
    assert (follower.state_known, follower.phase) == (True, CATCHING_UP)
    assert follower.durability.durable == APPLIED


@pytest.mark.parametrize(("log_start", "kept"), [(100, True), (101, True), (102, False)])
def test_a_store_is_of_use_if_the_log_goes_on_where_it_ends(log_start: int, kept: bool) -> None:
    follower = a_follower()
    found = follower.begin(around(), Started(restored(), log_start, 200))
    assert found == [Follow(AT if kept else log_start)]
    assert follower.state_known is kept
    assert follower.durability.unsaved.wipe is not kept
    assert (follower.authority is None) is not kept


@pytest.mark.parametrize(("log_end", "lost"), [(101, False), (100, True), (0, True)])
def test_a_log_that_ends_before_what_was_applied_is_lost_and_no_restart_helps(
    log_end: int, lost: bool
) -> None:
    found = a_follower().begin(around(), Started(restored(), 0, log_end))
    message = LOST.replace("offset 100", f"offset {log_end}")
    assert found == ([Halt("log_lost", message, final=True)] if lost else [Follow(AT)])


def test_a_node_without_a_store_begins_where_the_log_begins_and_wipes_what_is_there() -> None:
    follower = a_follower()
    assert follower.begin(around(), Started(None, 40, AT)) == [Follow(40)]
    assert (follower.applied, follower.state_known) == (39, False)
    assert follower.durability.unsaved.wipe


def test_a_store_that_folds_to_another_digest_stops_the_node_before_it_reads() -> None:
    other = a_state(50, k="2")
    found = a_follower().begin(around(), Started(restored(state=other), 0, AT))
    assert found == [halt(other.digest, STATE.digest, "the store")]
    authority = replace(AUTHORITY, outcomes_digest=7)
    found = a_follower().begin(around(), Started(restored(authority=authority), 0, AT))
    assert found == [halt(0, 7, "outcomes in the store")]


def test_a_store_of_before_there_was_a_cluster_is_of_use() -> None:
    found = a_follower()
    empty = restored(authority=None, state=StateContext())
    assert found.begin(around(), Started(empty, 0, AT)) == [Follow(AT)]
    assert found.state_known


def test_what_was_prepared_when_a_node_went_is_accepted_when_it_comes_back() -> None:
    authority = replace(AUTHORITY, open=opened(PROPOSAL, APPLIED), last_seq=8)
    prepared = PreparedTransaction(APPLIED, PROPOSAL, b"raw")
    follower = a_follower()
    found = follower.begin(
        around(), Started(restored(authority=authority, prepared=prepared), 0, AT)
    )
    assert found == [an_answer(proposal_offset=APPLIED), Follow(AT)]
    assert follower.prepared == prepared


def test_rows_that_the_store_has_are_not_written_again_but_the_newest() -> None:
    """The newest may have been open: its status has changed since."""
    rows = {n: TransactionStatus(TxnId(4, n), "commit", n, (1,), "") for n in range(3)}
    authority = replace(AUTHORITY, log=AUTHORITY.log.update(rows), log_next=3)
    follower = following(authority=authority)
    propose(follower)
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    assert [number for number, _ in save.rows] == [2, 3]
    assert save.rows[-1][1] == TransactionStatus(PROPOSAL.txn, "initial", 0, (1, 2, 3), "")


# -- prepare, verdict, install -------------------------------------------------------------------


def test_a_proposal_is_accepted_once_it_is_on_the_disk_and_shows_nothing_yet() -> None:
    follower = following()
    propose(follower)
    found = follower.batch_ended(around())
    assert saved(found) == [batch(AT, prepared=8, sync=True)]
    assert follower.holds(PROPOSAL.txn)
    assert not follower.holds(TxnId(4, 9))
    assert follower.state == STATE
    token = found[0].token  # type: ignore[union-attr]
    assert follower.durability.stored(seen(follower), Stored(token - 1)) == []
    assert follower.durability.stored(seen(follower), Stored(token)) == [an_answer()]
    assert follower.durability.durable == AT
    assert follower.durability.stored(seen(follower), Stored(token)) == [], "it is told once"
    assert follower.batch_ended(around()) == []


def test_a_commit_installs_what_was_prepared_in_one_batch_with_its_end() -> None:
    follower = following()
    propose(follower)
    follower.batch_ended(around())
    assert conclude(follower, commit()) == [
        Publish(STATE, EVENTS),
        TransactionInstalled(commit(), PROPOSAL.mutations),
    ]
    assert (follower.state, follower.prepared) == (AFTER, None)
    assert saved(follower.batch_ended(around())) == [batch(AT + 1, 62, "config/a", "config/b")]
    assert follower._counters.mutations_installed == 2
    assert follower._counters.transactions_committed == 1


def test_what_is_installed_is_what_the_master_computed_if_it_has_that_digest() -> None:
    follower = following()
    propose(follower)
    follower.fold(Entry(AT + 1, commit()))
    mine = AFTER._replace()
    assert follower.committed(around(), commit(), mine) != []
    assert follower.state is mine


def test_a_drop_is_installed_and_saved_as_one() -> None:
    gone = replace(writes("k"), value=None, entity=None)
    after = states.evolve(STATE, [(gone, 61)])
    follower = following()
    propose(follower, proposal=a_proposal(8, gone))
    follower.batch_ended(around())
    conclude(follower, commit(cas=(61,), state_digest=after.digest))
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    assert save.changes == (("config/k", None),)
    assert (follower.state.cas, follower.state.get("config/k")) == (61, None)


def test_a_rollback_drops_what_was_prepared_and_leaves_the_state_as_it_was() -> None:
    follower = following()
    propose(follower)
    follower.batch_ended(around())
    verdict = TransactionRolledBack(PROPOSAL.txn, AT, "full", WALL_MS)
    assert follower.fold(Entry(AT + 1, verdict)).void == ""
    follower.rolled_back(verdict.txn)
    assert (follower.prepared, follower.state) == (None, STATE)
    assert saved(follower.batch_ended(around())) == [batch(AT + 1)]
    assert follower._counters.transactions_rolled_back == 1


def test_the_rollback_of_another_number_leaves_what_is_prepared() -> None:
    follower = following()
    propose(follower)
    follower.rolled_back(TxnId(4, 9))
    assert follower.holds(PROPOSAL.txn)
    follower.drop_prepared()
    assert follower.prepared is None


def test_a_proposal_that_comes_with_the_verdict_before_it_is_saved_behind_that() -> None:
    """Two batches, each of one offset of the log: the second is what the answer waits for."""
    follower = following()
    propose(follower)
    follower.batch_ended(around())
    conclude(follower, commit())
    between = follower.authority
    next_ = a_proposal(9, writes("c"), prev_cas=62, prev_digest=AFTER.digest)
    propose(follower, AT + 2, next_)
    saves = follower.batch_ended(around())
    assert saved(saves) == [
        batch(AT + 1, 62, "config/a", "config/b"),
        batch(AT + 2, 62, prepared=9, sync=True),
    ]
    assert [save.authority for save in saves] == [between, follower.authority]  # type: ignore[union-attr]


def test_what_is_read_while_an_answer_waits_is_saved_with_what_is_prepared() -> None:
    follower = following()
    propose(follower)
    (save,) = follower.batch_ended(around())
    follower.fold(Entry(AT + 1, AuthoritySnapshot(4, follower.authority)))  # type: ignore[arg-type]
    assert saved(follower.batch_ended(around())) == [batch(AT + 1, prepared=8)]
    assert isinstance(save, Save)
    assert follower.durability.stored(seen(follower), Stored(save.token)) == [an_answer()]


# -- what is not ours ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state", [a_state(49, k="1"), a_state(51, k="1"), STATE._replace(digest=1)]
)
def test_a_proposal_that_builds_on_another_state_is_answered_behind(state: StateContext) -> None:
    """The fold opened it, so the log stands there: what this node shows is not that."""
    follower = following()
    propose(follower)
    (save,) = follower.batch_ended(around())
    follower.state = state
    assert isinstance(save, Save)
    why = f"this node stands at CAS {state.cas}"
    assert follower.durability.stored(seen(follower), Stored(save.token)) == [
        ChainBroken(f"4-8 follows CAS 50, not {state.cas}"),
        an_answer(BEHIND, why),
    ]


def test_who_does_not_take_part_keeps_a_proposal_and_answers_nothing() -> None:
    follower = following()
    propose(follower, proposal=replace(PROPOSAL, participants=(2, 3)))
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    assert follower.durability.stored(seen(follower), Stored(save.token)) == []
    assert follower.holds(PROPOSAL.txn)


def test_a_proposal_that_was_replaced_meanwhile_is_not_answered() -> None:
    follower = following()
    propose(follower)
    (save,) = follower.batch_ended(around())
    follower.fold(Entry(AT + 1, TransactionRolledBack(PROPOSAL.txn, AT, "full", 0)))
    assert isinstance(save, Save)
    assert follower.durability.stored(seen(follower), Stored(save.token)) == []


def test_the_answer_is_repeated_when_the_master_asks_again() -> None:
    follower = following()
    propose(follower)
    assert follower.durability.answer_again(seen(follower)) == [], "there is none yet"
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    follower.durability.stored(seen(follower), Stored(save.token))
    for _ in range(2):
        assert follower.durability.answer_again(seen(follower)) == [an_answer()]
    conclude(follower, commit())
    next_ = a_proposal(9, writes("c"), prev_cas=62, prev_digest=AFTER.digest)
    propose(follower, AT + 2, next_)
    assert follower.durability.answer_again(seen(follower)) == [], "that was of another one"


GAP = Halt("gap", f"a gap in the commit topic: the proposal of {PROPOSAL.txn} was not seen", True)


def test_a_verdict_on_a_proposal_that_was_not_seen_stops_the_node() -> None:
    follower = following()
    assert follower.committed(around(), commit(), None) == [GAP]
    other = following()
    propose(other)
    record = commit(txn=TxnId(4, 9))
    found = other.committed(around(), record, None)
    assert found == [replace(GAP, message=GAP.message.replace("4-8", "4-9"))]
    assert other.state == STATE


def test_a_verdict_with_another_digest_stops_the_node_and_installs_nothing() -> None:
    follower = following()
    propose(follower)
    assert conclude(follower, commit(state_digest=7)) == [halt(AFTER.digest, 7, "4-8")]
    assert follower.state == STATE
    assert follower.durability.unsaved.changes == {}


# -- records that change nothing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "void", "needs"),
    [
        (Unreadable("a flipped bit"), "a flipped bit", False),
        (ReadBarrier(4, 7), "", False),
        (a_proposal(7), "4-7 is late or doubled", False),
        (AuthoritySnapshot(4, AUTHORITY), "", True),
    ],
    ids=["unreadable", "barrier", "void", "counts"],
)
def test_reading_goes_on_behind_a_record_that_is_void_and_saves_nothing_for_it(
    record: Any, void: str, needs: bool
) -> None:
    follower = following()
    assert follower.fold(Entry(AT, record)) == (AUTHORITY, void)
    assert (follower.applied, follower.authority) == (AT, AUTHORITY)
    assert bool(follower.batch_ended(around())) is needs


# -- outcomes of requests ------------------------------------------------------------------------


def a_group(cas: int, *ids: str) -> bytes:
    """Return the outcomes that a transaction brings."""
    outcomes = tuple(RecordedOutcome(id=one, status=DONE, fingerprint=5, cas=cas) for one in ids)
    return CODEC.encode_outcomes(OutcomesRecorded(TxnId(4, cas), cas, WALL_MS, outcomes))


def windowed(*cas: int) -> Any:
    """Return a window that has these groups."""
    window = a_view().outcomes
    for one in cas:
        window.add(one, a_group(one, f"r{one}"), Instant(0, 0))
    return window


def test_a_commit_brings_the_outcomes_of_its_group_and_forgets_older_ones() -> None:
    held = windowed(40, 45)
    authority = replace(AUTHORITY, outcomes_digest=held.digest)
    follower = following(authority=authority, outcomes=tuple(held.kept()))
    propose(follower)
    follower.batch_ended(around())
    left = windowed(45, 62)
    record = commit(outcomes=a_group(62, "r62"), outcomes_forgotten=40, outcomes_digest=left.digest)
    assert conclude(follower, record) == [
        Publish(STATE, EVENTS),
        TransactionInstalled(record, PROPOSAL.mutations),
    ]
    assert follower.outcomes.find("r40") is None
    assert follower.outcomes.find("r62") is not None
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    kept = dict(save.outcomes)
    assert kept.keys() == {40, 62}
    assert kept[40] is None
    assert kept[62] is not None
    assert kept[62].ids == ("r62",)


def test_a_verdict_with_another_digest_of_the_outcomes_stops_the_node() -> None:
    follower = following()
    propose(follower)
    record = commit(outcomes=a_group(62, "r"), outcomes_digest=7)
    (found,) = conclude(follower, record)
    assert isinstance(found, Halt)
    assert (found.code, found.rebuild) == ("digest_mismatch", True)
    assert "outcomes from CAS 0 on" in found.message
    assert follower.state == STATE


def test_outcomes_of_before_this_nodes_time_are_missing_until_all_are_forgotten() -> None:
    """It began in the middle of the log: only then it can tell that what it has is all."""
    older = windowed(40)
    follower = newcomer(outcomes_digest=older.digest)
    assert not follower.outcomes.is_whole
    both = windowed(40, 62)
    propose(follower)
    follower.fold(Entry(AT + 1, commit()))
    record = commit(outcomes=a_group(62, "r62"), outcomes_digest=both.digest)
    assert follower.committed(around(), record, None) == []
    assert not follower.outcomes.is_whole
    late = OutcomesForgotten(4, 40, windowed(62).digest, 0)
    assert follower.forgotten(late) == []
    assert follower.outcomes.is_whole
    (found,) = follower.forgotten(OutcomesForgotten(4, 41, 7, 0))
    assert isinstance(found, Halt)


def test_an_idle_master_forgets_too_and_the_store_follows() -> None:
    held = windowed(40, 45)
    authority = replace(AUTHORITY, outcomes_digest=held.digest)
    follower = following(authority=authority, outcomes=tuple(held.kept()))
    record = OutcomesForgotten(4, 40, windowed(45).digest, 0)
    assert follower.fold(Entry(AT, record)).void == ""
    assert follower.forgotten(record) == []
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    assert save.outcomes == ((40, None),)


LEGACY = RequestOutcome(
    id="r40",
    status="done",
    fingerprint=5,
    index_id=0,
    txn_epoch=3,
    txn_seq=2,
    distance=0,
    answer_json="{}",
    error_code="",
    error_message="",
    error_details_json="{}",
    by_topic=False,
    at_ms=WALL_MS,
)


def test_outcomes_that_were_entities_leave_the_state_with_its_digest() -> None:
    legacy = Versioned(40, b"outcome", LEGACY)
    state = states.restore(50, [*STATE.entities.items(), (LEGACY.key, legacy)])
    authority = replace(AUTHORITY, outcomes_apart=False, digest=state.digest)
    for digest, halts in ((STATE.digest, False), (7, True)):
        follower = following(authority=authority, state=state)
        record = OutcomesSeparated(
            epoch=4,
            cas=50,
            digest=state.digest,
            state_digest=digest,
            groups=(a_group(40, "r40"),),
            outcomes_digest=windowed(40).digest,
            at_ms=WALL_MS,
        )
        assert follower.fold(Entry(AT, record)).void == ""
        found = follower.separated(around(), record)
        what = "the state without outcomes"
        assert found == ([halt(STATE.digest, 7, what)] if halts else [])
        assert follower.state == STATE
        assert follower.outcomes.find("r40") is not None
        (save,) = follower.batch_ended(around())
        assert isinstance(save, Save)
        assert save.changes == (("request/r40", None),)


# -- without the state ---------------------------------------------------------------------------


def test_a_node_that_has_no_state_looks_for_it_and_its_store_stays_unfinished() -> None:
    follower = newcomer()
    save, note, synchronise = follower.caught_up(around())
    assert isinstance(save, Save)
    assert (save.authority, save.wipe, save.applied, save.rows) == (None, True, APPLIED, ())
    assert note == Note("full synchronisation to CAS 50 from statecontext")
    assert isinstance(synchronise, Synchronise)
    assert (follower.phase, follower.state_known) == (SYNCHRONISING, False)
    assert follower._counters.full_synchronisations == 1
    assert follower.batch_ended(around()) == [], "nothing of it is saved meanwhile"
    follower.durability.stored(seen(follower), Stored(save.token))
    assert follower.durability.durable == -1, "it has nothing that could be trimmed away"


@pytest.mark.parametrize("fields", [{"last_cas": 0, "digest": 0}, None], ids=["empty", "no-log"])
def test_where_nothing_was_committed_there_is_no_state_to_look_for(fields: Any) -> None:
    follower = newcomer(**fields) if fields else a_follower()
    (note,) = follower.caught_up(around())
    assert isinstance(note, Note)
    assert (follower.phase, follower.state_known) == (FOLLOWING, True)
    assert saved(follower.batch_ended(around()))


def test_without_the_state_a_proposal_is_answered_behind_and_kept() -> None:
    follower = newcomer()
    propose(follower)
    assert follower.batch_ended(around()) == [an_answer(BEHIND, CATCHING_UP)]
    assert follower.holds(PROPOSAL.txn)


def test_without_the_state_a_commit_installs_nothing_and_a_gap_is_none() -> None:
    follower = newcomer()
    assert follower.committed(around(), commit(), None) == []
    propose(follower)
    assert conclude(follower, commit()) == []
    assert (follower.state_known, follower.state.cas, follower.prepared) == (False, 0, None)
    assert follower.chain_broken("whatever") == []


def test_commits_that_are_folded_while_the_state_is_looked_for_are_applied_on_top() -> None:
    """What a source holds may be ahead: it is believed once the commit is folded that it needs."""
    follower = newcomer()
    *_, reading = follower.caught_up(around())
    assert isinstance(reading, Synchronise)
    write = writes("k", "3")
    propose(follower, proposal=a_proposal(8, write))
    held = (Event(write, PROPOSAL.txn, 0, 1, 61),)
    after = states.evolve(STATE, [(write, 61)])
    read = follower.full_sync.read(seen(follower), SyncRead(reading.token, held, True))
    assert read == [SendBarrier()]
    record = commit(cas=(61,), state_digest=after.digest)
    assert follower.committed(around(), record, None) == []
    (found,) = follower.batch_ended(around())
    assert isinstance(found, Synchronised)
    assert (found.state.cas, found.state.digest) == (61, after.digest)


def test_a_search_for_the_state_begins_anew_where_outcomes_leave_it() -> None:
    """What was read so far has them, and would fold to another digest."""
    follower = newcomer(outcomes_apart=False)
    follower.caught_up(around())
    record = OutcomesSeparated(
        epoch=4,
        cas=50,
        digest=STATE.digest,
        state_digest=7,
        groups=(),
        outcomes_digest=0,
        at_ms=WALL_MS,
    )
    assert follower.fold(Entry(AT, record)).void == ""
    note, reading = follower.separated(around(), record)
    assert note == Note("full synchronisation to CAS 50 from statecontext")
    assert isinstance(reading, Synchronise)
    idle = newcomer(outcomes_apart=False)
    idle.fold(Entry(AT, record))
    assert idle.separated(around(), record) == [], "nothing is looked for yet"


def test_the_state_that_was_found_replaces_the_store_with_what_is_prepared_behind_it() -> None:
    held = windowed(40)
    follower = newcomer(outcomes_digest=0)
    follower.outcomes.add(40, a_group(40, "r40"), around().now)
    follower.caught_up(around())
    propose(follower)
    assert follower.batch_ended(around()) == [an_answer(BEHIND, SYNCHRONISING)]
    note, *saves = follower.synchronised(around(), Synchronised(STATE, "history"))
    assert note == Note("synchronised from history: 1 entities at CAS 50")
    assert (follower.phase, follower.state_known, follower.state) == (FOLLOWING, True, STATE)
    assert saved(saves) == [
        batch(AT, 50, "config/k", prepared=8, wipe=True),
        batch(AT, prepared=8, sync=True),
    ]
    first, second = saves
    assert isinstance(first, Save)
    assert isinstance(second, Save)
    assert dict(first.outcomes) == {40: next(held.kept())}
    assert follower.durability.stored(seen(follower), Stored(second.token)) == [an_answer()]


# -- a store that refuses ------------------------------------------------------------------------


def test_a_proposal_that_the_store_refused_is_refused_and_what_it_missed_comes_later() -> None:
    follower = following()
    propose(follower)
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    refused = StoreFailed(save.token, "full")
    assert follower.durability.store_failed(seen(follower), refused) == [
        Note("the store refuses writes: full"),
        an_answer(REFUSED, "full"),
    ]
    conclude(follower, commit())
    assert follower.batch_ended(around()) == [], "nothing is written to a store that refuses"
    assert follower.state == AFTER, "what is committed is shown all the same"
    (probe,) = follower.durability.tick(seen(follower, MONO_MS + 1_001))
    note, *saves = follower.durability.stored(seen(follower), Stored(probe.token))  # type: ignore[union-attr]
    assert note == Note("the store takes writes again")
    assert saved(saves) == [batch(AT + 1, 62, "config/a", "config/b")]


def test_while_the_store_refuses_every_proposal_is_refused_at_once() -> None:
    follower = following()
    follower.fold(Entry(AT, AuthoritySnapshot(4, AUTHORITY)))
    (save,) = follower.batch_ended(around())
    assert isinstance(save, Save)
    follower.durability.store_failed(seen(follower), StoreFailed(save.token, "full"))
    propose(follower, AT + 1)
    found = follower.batch_ended(around())
    assert found == [an_answer(REFUSED, "full", proposal_offset=AT + 1)]
    assert follower.batch_ended(around()) == []

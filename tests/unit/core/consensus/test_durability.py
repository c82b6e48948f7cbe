"""What is on the disk, and what is said of it: nothing is lost, undone, or told too early.

The part alone: the store's answers in, batches and answers out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.consensus.durability import UNSYNCED_SAVES_MAX, Durability, checkpoint
from coordinator.core.consensus.effects import Note, Probe, Save
from coordinator.core.consensus.inputs import PreparedTransaction, Stored, StoreFailed
from coordinator.core.consensus.signals import AnswerProposal
from coordinator.core.consensus.view import Tokens
from coordinator.core.model.authority_state import TransactionStatus
from coordinator.core.model.records import ACCEPTED, REFUSED, ProposalAnswered
from coordinator.core.model.types import TxnId
from tests.support.views import AUTHORITY, INCARNATIONS, MONO_MS, a_proposal, a_view, opened

FULL, PROBE_MS, AT = "full", 1_000, 101
PROPOSAL = a_proposal(8)
OPEN = replace(AUTHORITY, open=opened(PROPOSAL, AT), last_seq=8)
REFUSES = Note("the store refuses writes: full")


def preparing(mono_ms: int = MONO_MS, **fields: Any) -> Any:
    """Return a view of a node that has read a proposal at offset 101."""
    known = {
        "applied": AT,
        "authority": OPEN,
        "prepared": PreparedTransaction(AT, PROPOSAL, b"raw"),
    }
    return a_view(mono_ms, **(known | fields))


def save(durability: Durability, view: Any, **fields: Any) -> Save:
    return durability.save(checkpoint(view, view.prepared), **fields)


def prepare(durability: Durability) -> Save:
    """Have a proposal saved, and return its batch."""
    durability.opened(AUTHORITY)
    (saved,) = durability.save_prepared(preparing())
    assert isinstance(saved, Save)
    assert saved.sync
    return saved


def an_answer(answer: str = ACCEPTED, reason: str = "") -> AnswerProposal:
    return AnswerProposal(ProposalAnswered(1, INCARNATIONS[1], PROPOSAL.txn, AT, answer, reason))


def fail_to_save(durability: Durability, view: Any) -> list[Any]:
    return durability.store_failed(view, StoreFailed(save(durability, view).token, FULL))


def changed(durability: Durability, key: str, value: Any) -> None:
    changes: Any = durability.unsaved.changes
    changes[key] = value


# -- what is durable -----------------------------------------------------------------------------


def test_a_batch_is_durable_when_it_or_a_later_one_is_stored() -> None:
    durability = Durability(Tokens())
    first, second, third = (save(durability, a_view(applied=n)) for n in (101, 102, 103))
    assert durability.durable == -1
    assert durability.stored(a_view(applied=103), Stored(second.token)) == []
    assert durability.durable == 102
    durability.stored(a_view(applied=103), Stored(first.token))
    assert durability.durable == 102, "it does not go back"
    durability.stored(a_view(applied=103), Stored(third.token))
    assert durability.durable == 103


def test_of_what_is_only_installed_one_batch_in_so_many_is_synced() -> None:
    durability = Durability(Tokens())
    synced = [save(durability, a_view()).sync for _ in range(UNSYNCED_SAVES_MAX)]
    assert synced == [False] * (UNSYNCED_SAVES_MAX - 1) + [True]
    durability.stored(a_view(), Stored(UNSYNCED_SAVES_MAX))
    assert not save(durability, a_view()).sync


def test_a_proposal_is_accepted_when_its_own_batch_is_stored() -> None:
    durability = Durability(Tokens())
    before = save(durability, a_view())
    prepared = prepare(durability)
    assert durability.stored(preparing(), Stored(before.token)) == []
    after = save(durability, preparing())
    assert durability.stored(preparing(), Stored(prepared.token)) == [an_answer()]
    assert durability.stored(preparing(), Stored(after.token)) == []


def test_the_proposal_before_says_nothing_of_the_one_that_is_open() -> None:
    durability = Durability(Tokens())
    first = prepare(durability)
    second = prepare(durability)
    assert durability.stored(preparing(), Stored(first.token)) == []
    assert durability.stored(preparing(), Stored(second.token)) == [an_answer()]


@pytest.mark.parametrize("offset", [AT - 1, AT + 1])
def test_what_is_prepared_is_answered_only_where_the_fold_opened_it(offset: int) -> None:
    durability = Durability(Tokens())
    prepared = prepare(durability)
    view = preparing(prepared=PreparedTransaction(offset, PROPOSAL, b"raw"))
    assert durability.stored(view, Stored(prepared.token)) == []


ROWS = {n: TransactionStatus(TxnId(4, n), "commit", n, (1,), "") for n in range(8)}


def test_of_the_log_of_transactions_those_rows_are_written_that_it_still_has() -> None:
    """And the newest of before once more: its status may have changed."""
    durability, rows = Durability(Tokens()), []
    for first, end in ((0, 2), (0, 3), (3, 8)):
        log = AUTHORITY.log.update({n: ROWS[n] for n in range(first, end)})
        batch = save(durability, a_view(authority=replace(AUTHORITY, log=log, log_next=end)))
        rows.append([number for number, _ in batch.rows])
    assert rows == [[0, 1], [1, 2], [3, 4, 5, 6, 7]]


# -- a store that refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "lost"),
    [(1, True), (2, True), (3, False)],
    ids=["an-earlier-batch", "its-own", "a-later-batch"],
)
def test_a_proposal_is_refused_that_the_store_did_not_take(token: int, lost: bool) -> None:
    """A store that refused one batch takes none after it."""
    durability = Durability(Tokens())
    save(durability, a_view())
    assert prepare(durability).token == 2
    found = durability.store_failed(preparing(), StoreFailed(token, FULL))
    assert found == [REFUSES, *([an_answer(REFUSED, FULL)] if lost else [])]
    assert durability.store_failed(preparing(), StoreFailed(token, FULL)) == [], "it is told once"


def test_a_store_that_refuses_is_probed_now_and_then_until_it_takes_writes() -> None:
    durability = Durability(Tokens())
    assert durability.tick(a_view(10**9)) == []
    fail_to_save(durability, a_view())
    assert durability.tick(a_view(MONO_MS + PROBE_MS)) == []
    assert durability.tick(a_view(MONO_MS + PROBE_MS + 1)) == [Probe(2)]
    assert durability.tick(a_view(MONO_MS + 3 * PROBE_MS)) == [], "one at a time"
    again_ms = MONO_MS + 4 * PROBE_MS
    assert durability.store_failed(a_view(again_ms), StoreFailed(2, "broken")) == []
    assert durability.sick == "broken"
    assert durability.tick(a_view(again_ms + PROBE_MS)) == []
    assert durability.tick(a_view(again_ms + PROBE_MS + 1)) == [Probe(3)]
    note, missed = durability.stored(a_view(), Stored(3))
    assert note == Note("the store takes writes again")
    assert isinstance(missed, Save)
    assert durability.sick == ""
    assert durability.tick(a_view(10**9)) == []


def test_what_a_later_batch_made_durable_is_not_written_again() -> None:
    durability = Durability(Tokens())
    changed(durability, "config/old", "stored")
    save(durability, a_view())
    synced = save(durability, a_view(), sync=True)
    durability.stored(a_view(), Stored(synced.token))
    changed(durability, "config/new", "lost")
    fail_to_save(durability, a_view())
    assert durability.unsaved.changes == {"config/new": "lost"}


def test_what_failed_is_not_durable_whatever_is_stored_later() -> None:
    durability = Durability(Tokens())
    save(durability, a_view(applied=101))
    fail_to_save(durability, a_view(applied=102))
    durability.stored(a_view(applied=102), Stored(2))
    assert durability.durable == -1


def test_nothing_is_written_to_a_store_that_refuses() -> None:
    durability = Durability(Tokens())
    fail_to_save(durability, a_view())
    changed(durability, "config/k", None)
    assert durability.save_installed(a_view()) == []


# -- what could not be written is written with what comes next -----------------------------------


def test_of_two_batches_that_failed_the_newer_one_counts() -> None:
    durability, view = Durability(Tokens()), a_view()
    changed(durability, "config/k", "older")
    changed(durability, "config/a", "kept")
    durability.unsaved.outcomes = {40: None, 41: None}
    save(durability, view)
    changed(durability, "config/k", "newer")
    group: Any = "group"
    durability.unsaved.outcomes = {41: group}
    fail_to_save(durability, view)
    assert durability.unsaved.changes == {"config/k": "newer", "config/a": "kept"}
    assert durability.unsaved.outcomes == {40: None, 41: "group"}
    assert durability.unsaved.needed


def test_a_wipe_that_failed_is_not_forgotten() -> None:
    durability, view = Durability(Tokens()), a_view()
    durability.unsaved.wipe = True
    save(durability, view)
    changed(durability, "config/k", None)
    fail_to_save(durability, view)
    assert durability.unsaved.wipe


def test_what_a_wipe_would_delete_is_not_written_before_it() -> None:
    durability, view = Durability(Tokens()), a_view()
    changed(durability, "config/old", "older")
    save(durability, view)
    durability.unsaved.wipe = True
    changed(durability, "config/new", "newer")
    fail_to_save(durability, view)
    assert durability.unsaved.changes == {"config/new": "newer"}


def test_rows_that_failed_are_written_again() -> None:
    durability = Durability(Tokens())
    log = AUTHORITY.log.update({0: ROWS[0], 1: ROWS[1]})
    view = a_view(authority=replace(AUTHORITY, log=log, log_next=2))
    fail_to_save(durability, view)
    assert list(save(durability, view).rows) == [(0, ROWS[0]), (1, ROWS[1])]

"""A node looks for the state: in which order, of whom, and when what it read is believed.

The part alone. `docs/protocol.md` has the same in words ("Full synchronisation"); what makes a
state right is `Synchroniser`'s, with tests of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Beat, Note, Synchronise
from coordinator.core.consensus.full_sync import (
    COMPACTED,
    COPY,
    DOUBLED_MAX,
    HISTORY,
    SNAPSHOT,
    FullSync,
)
from coordinator.core.consensus.inputs import SyncRead
from coordinator.core.consensus.signals import SendBarrier, Synchronised
from coordinator.core.consensus.synchroniser import Sealed
from coordinator.core.consensus.view import SYNCHRONISING, Tokens
from coordinator.core.model.authority_state import SnapshotInfo
from coordinator.core.model.records import CopyOffered, CopyRequested, Event
from coordinator.core.model.types import TxnId
from tests.support.views import (
    AUTHORITY,
    INCARNATIONS,
    MONO_MS,
    STATE,
    a_beat,
    a_state,
    a_view,
    some_peers,
    writes,
)

KEPT = (SnapshotInfo(71, 30, 3, 300, 3_000, 0), SnapshotInfo(72, 40, 4, 400, 4_000, 0))
"""Two copies that the log knows of, the older first."""

WAIT_MS = 5_000
PEERS = some_peers(5_000, [a_beat(1), a_beat(2), a_beat(3)])


def at(mono_ms: int = MONO_MS, **fields: Any) -> Any:
    """Return what a node without the state sees; all others are alive, and have it."""
    known = {"phase": SYNCHRONISING, "state": StateContext(), "state_known": False, "peers": PEERS}
    return a_view(mono_ms, **(known | fields))


def a_sync(**fields: Any) -> tuple[FullSync, int]:
    """Return a synchronisation that reads its first source, and the token of that."""
    sync = FullSync(Tokens(), Counters())
    _, reading = sync.begin(at(**fields))
    assert isinstance(reading, Synchronise)
    return sync, reading.token


def event(cas: int, name: str = "k", value: str = "1") -> Event:
    return Event(writes(name, value), TxnId(4, 7), 0, 1, cas)


WHOLE = (event(50),)
"""What folds to the committed state, at CAS 50."""


def read(token: int, *events: Event, done: bool = True, held: Any = ()) -> SyncRead:
    return SyncRead(token, events, done, held)


def fails(sync: FullSync, view: Any, token: int) -> list[Any]:
    """Let a source be read that holds nothing, and return what is done then."""
    return sync.read(view, read(token))[1:]


def begins(kind: str, token: int, offset: int = 0, copy: int = 0) -> list[Any]:
    return [
        Note(f"full synchronisation to CAS 50 from {kind}"),
        Synchronise(token, kind, 50, offset, copy),
    ]


def rejects(kind: str) -> Note:
    why = f"it folds to digest {0:032x} at CAS 0, which no committed transaction has"
    return Note(f"not to be used: {kind}: {why}")


def asks(node: int, token: int) -> list[Any]:
    question = CopyRequested(1, INCARNATIONS[1], node, token, 50)
    return [Note(f"asking node {node} for a copy of the state"), Beat(question)]


def offered(token: int, **fields: Any) -> CopyOffered:
    return replace(CopyOffered(2, 1, INCARNATIONS[1], token, 99, 900), **fields)


# -- sources, in their order ---------------------------------------------------------------------


def test_each_source_is_tried_in_its_order_and_then_all_of_them_again() -> None:
    """Of copies the newest comes first. A master may mend `statecontext` meanwhile."""
    sync = FullSync(Tokens(), Counters())
    view = at(authority=replace(AUTHORITY, snapshots=KEPT))
    assert sync.begin(view) == begins(COMPACTED, 1)
    assert fails(sync, view, 1) == [rejects(COMPACTED), *begins(SNAPSHOT, 2, 400, 72)]
    assert fails(sync, view, 2) == [rejects(SNAPSHOT), *begins(SNAPSHOT, 3, 300, 71)]
    assert fails(sync, view, 3) == [rejects(SNAPSHOT), *begins(HISTORY, 4)]
    assert fails(sync, view, 4) == [rejects(HISTORY), *asks(2, 5)]
    assert sync.offered(view, offered(5)) == [
        Note("full synchronisation from the copy of node 2"),
        Synchronise(5, COPY, 0, 900, 99),
    ]
    assert fails(sync, view, 5) == [rejects(COPY), *begins(COMPACTED, 6)]
    assert sync._counters.sources_rejected == 5
    assert sync.problem.startswith("copy: it folds to digest")
    assert sync.is_active


def test_the_first_source_that_folds_to_the_committed_digest_is_taken() -> None:
    sync, token = a_sync()
    assert sync.is_active
    barrier, found = sync.read(at(), read(token, *WHOLE))
    assert barrier == SendBarrier()
    assert found == Synchronised(found.state, COMPACTED)  # type: ignore[union-attr]
    assert (found.state.cas, found.state.digest) == (STATE.cas, STATE.digest)  # type: ignore[union-attr]
    assert (sync.is_active, sync.problem) == (False, "")
    assert sync.read(at(), read(token, *WHOLE)) == [], "one that comes late is of no use"


def test_what_is_read_in_parts_is_provisional_until_the_last_part() -> None:
    """Even if it has the digest already: a source may say more."""
    sync, token = a_sync()
    assert sync.read(at(), read(token, *WHOLE, done=False)) == []
    assert sync.is_active
    barrier, found = sync.read(at(), read(token))
    assert barrier == SendBarrier()
    assert isinstance(found, Synchronised)


def test_only_the_source_that_is_being_read_counts() -> None:
    sync, token = a_sync()
    assert sync.read(at(), read(token + 1, *WHOLE)) == []
    assert sync.read(at(), read(token - 1, *WHOLE)) == []
    assert fails(sync, at(), token)[1:] == begins(HISTORY, 2)
    assert sync.read(at(), read(token, *WHOLE)) == [], "that of before says nothing more"
    _, found = sync.read(at(), read(2, *WHOLE))
    assert isinstance(found, Synchronised)
    assert found.source == HISTORY


def test_entities_of_a_copy_count_with_the_events_above_them() -> None:
    held = tuple(a_state(40, k="0").entities.items())
    sync, token = a_sync()
    _, found = sync.read(at(), read(token, event(39, value="9"), *WHOLE, held=held))
    assert isinstance(found, Synchronised)
    assert found.state.digest == STATE.digest


# -- commits that are folded meanwhile -----------------------------------------------------------

LATER = states.evolve(STATE, [(writes("a"), 61)])


def test_a_commit_that_was_folded_meanwhile_is_applied_on_top() -> None:
    sync, token = a_sync()
    sync.add_commit(Sealed((writes("a"),), (61,), LATER.digest))
    _, found = sync.read(at(), read(token, *WHOLE))
    assert isinstance(found, Synchronised)
    assert (found.state.cas, found.state.digest) == (61, LATER.digest)


def test_a_source_that_is_ahead_of_the_log_waits_for_the_commit() -> None:
    """It is compacted: what `k` was at CAS 50 is gone, and the verdict on CAS 61 not folded yet."""
    sync, token = a_sync()
    assert sync.read(at(), read(token, event(61, value="3"))) == [SendBarrier()]
    assert sync.is_active
    after = states.evolve(STATE, [(writes("k", "3"), 61)])
    sync.add_commit(Sealed((writes("k", "3"),), (61,), after.digest))
    (found,) = sync.resolve(at())
    assert isinstance(found, Synchronised)
    assert (found.state.cas, found.state.digest) == (61, after.digest)


def test_events_that_no_transaction_committed_are_left_out() -> None:
    sync, token = a_sync()
    _, found = sync.read(at(), read(token, *WHOLE, event(61, value="3"), event(62, "b")))
    assert isinstance(found, Synchronised)
    assert (found.state.cas, found.state.digest) == (50, STATE.digest)


def test_behind_the_barrier_a_source_that_no_commit_agrees_with_is_of_no_use() -> None:
    sync, token = a_sync()
    assert sync.read(at(), read(token, event(50, value="9"), event(61))) == [SendBarrier()]
    (note, *next_) = sync.barrier_read(at())
    assert isinstance(note, Note)
    assert "not to be used: statecontext: it folds to digest" in note.message
    assert next_ == begins(HISTORY, 2)


def test_a_barrier_before_the_end_of_the_source_says_nothing() -> None:
    sync, token = a_sync()
    sync.read(at(), read(token, event(50, value="9"), event(61), done=False))
    assert sync.barrier_read(at()) == []
    assert sync.read(at(), read(token)) == [SendBarrier()]
    assert len(sync.barrier_read(at())) == 3


def test_a_commit_that_leads_to_another_digest_makes_the_source_useless() -> None:
    sync, token = a_sync()
    sync.add_commit(Sealed((writes("a"),), (61,), 7))
    _, note, *next_ = sync.read(at(), read(token, *WHOLE))
    assert note == Note(
        "not to be used: statecontext: the digest at CAS 61 differs from the committed one"
    )
    assert next_ == begins(HISTORY, 2)


def test_without_all_outcomes_of_requests_no_state_is_taken() -> None:
    """A node that remembers less than the log would execute a repeat."""
    view = at()
    view.outcomes.is_whole = False
    sync, token = a_sync()
    assert sync.read(view, read(token, *WHOLE)) == [SendBarrier()]
    assert sync.problem == "outcomes of requests are missing that the log does not have"
    assert sync.is_active
    view.outcomes.is_whole = True
    (found,) = sync.resolve(view)
    assert isinstance(found, Synchronised)
    assert sync.problem == ""


@pytest.mark.parametrize("apart", [True, False])
def test_outcomes_that_are_entities_count_in_clusters_of_before_alone(apart: bool) -> None:
    legacy = ("request/r", Versioned(40, b"x", STATE.entities["config/k"].entity))
    whole = states.restore(50, [*STATE.entities.items(), legacy])
    authority = replace(AUTHORITY, outcomes_apart=apart, digest=(STATE if apart else whole).digest)
    sync, token = a_sync(authority=authority)
    _, found = sync.read(at(authority=authority), read(token, *WHOLE, held=(legacy,)))
    assert isinstance(found, Synchronised)
    assert found.state.digest == authority.digest


# -- a peer's copy -------------------------------------------------------------------------------


def asking(**fields: Any) -> tuple[FullSync, int]:
    """Return a synchronisation that has asked for a copy, and its token."""
    sync, token = a_sync()
    fails(sync, at(), token)
    fails(sync, at(**fields), 2)
    return sync, 3


def test_who_is_asked_is_alive_and_has_the_state() -> None:
    for heard, asked in (
        (some_peers(5_000, [a_beat(1), a_beat(2), a_beat(3)]), 2),
        (some_peers(5_000, [a_beat(1), a_beat(2, cas=49), a_beat(3)]), 3),
        (some_peers(5_000, [a_beat(1), a_beat(3, cas=51)], [a_beat(2)]), 3),
        (some_peers(5_000, [a_beat(1), a_beat(2, cas=49)], [a_beat(3)]), 0),
    ):
        sync, token = a_sync()
        fails(sync, at(), token)
        assert fails(sync, at(peers=heard), 2)[1:] == (asks(asked, 3) if asked else [])
        assert sync.is_active


def tired(sync: FullSync, token: int, now_ms: int, wait_ms: int, peer: int) -> int:
    """Let a copy not come: after that time and no sooner all other sources are tried once more, in
    vain, and this peer is asked. Return the token of that."""
    assert sync.tick(at(now_ms + wait_ms)) == []
    late = at(now_ms + wait_ms + 1)
    assert sync.tick(late) == begins(COMPACTED, token + 1)
    assert fails(sync, late, token + 1) == [rejects(COMPACTED), *begins(HISTORY, token + 2)]
    assert fails(sync, late, token + 2) == [rejects(HISTORY), *asks(peer, token + 3)]
    return token + 3


def test_a_copy_that_does_not_come_is_asked_for_of_another_peer_with_twice_the_patience() -> None:
    """Up to a bound: five minutes."""
    sync, token = asking()
    now_ms = MONO_MS
    for number in range(DOUBLED_MAX + 3):
        wait_ms = WAIT_MS << min(number, DOUBLED_MAX)
        token = tired(sync, token, now_ms, wait_ms, peer=(3, 2)[number % 2])
        now_ms += wait_ms + 1


def test_the_patience_with_a_copy_begins_when_it_is_asked_for() -> None:
    sync, token = a_sync()
    fails(sync, at(), token)
    assert sync.read(at(), read(2, event(50, value="9"), event(61))) == [SendBarrier()]
    asked_ms = MONO_MS + 2 * WAIT_MS
    assert sync.barrier_read(at(asked_ms))[1:] == asks(2, 3)
    assert sync.tick(at(asked_ms + WAIT_MS)) == []
    assert sync.tick(at(asked_ms + WAIT_MS + 1)) == begins(COMPACTED, 4)


def test_while_a_source_is_read_there_is_no_haste() -> None:
    sync, _ = a_sync()
    assert sync.tick(at(10**9)) == []
    assert FullSync(Tokens(), Counters()).tick(at(10**9)) == []


def test_a_copy_that_is_being_read_is_waited_for() -> None:
    sync, token = asking()
    late = MONO_MS + WAIT_MS
    assert len(sync.offered(at(late), offered(token))) == 2
    assert sync.tick(at(late + WAIT_MS)) == []
    sync.read(at(late + WAIT_MS), read(token, event(40), done=False))
    assert sync.tick(at(late + 2 * WAIT_MS)) == []
    assert sync.tick(at(late + 2 * WAIT_MS + 1)) == begins(COMPACTED, token + 1)


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({}, True),
        ({"node": 3}, True),
        ({"to": 2}, False),
        ({"incarnation": 11}, False),
        ({"round": 2}, False),
    ],
    ids=["asked-for", "by-whomever", "for-another", "for-another-life", "of-another-round"],
)
def test_a_copy_is_taken_that_was_asked_for(fields: dict[str, int], taken: bool) -> None:
    sync, token = asking()
    assert bool(sync.offered(at(), offered(token, **fields))) is taken


def test_a_copy_that_nobody_waits_for_any_more_is_not_read() -> None:
    sync, token = a_sync()
    assert sync.offered(at(), offered(token)) == [], "another source is being read"
    sync, token = asking()
    sync.offered(at(), offered(token))
    sync.read(at(), read(token, *WHOLE))
    assert not sync.is_active
    assert sync.offered(at(), offered(token)) == []

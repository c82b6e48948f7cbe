"""A synchronisation finds the committed state among events that are more, or fewer, than it."""

from __future__ import annotations

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.consensus.synchroniser import Mismatch, Sealed, Synchroniser
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import TxnId


def put(name: str, text: str) -> Mutation:
    entity = Setting(name, text)
    return Mutation("SettingWritten", entity.key, repr(entity).encode(), entity)


def drop(name: str) -> Mutation:
    return Mutation("SettingDeleted", Setting(name, "").key, None, None)


def event(mutation: Mutation, cas: int) -> Event:
    return Event(mutation, TxnId(1, cas), 0, 1, cas)


def folded(*mutations: tuple[Mutation, int]) -> StateContext:
    return states.evolve(EMPTY, mutations)


ONE, TWO, STRAY = (put("a", "1"), 1), (put("b", "2"), 2), (put("a", "stray"), 3)


def synchroniser(base: StateContext, *events: tuple[Mutation, int]) -> Synchroniser:
    made = Synchroniser(base_cas=base.cas, base_digest=base.digest)
    made.add_events(tuple(event(m, cas) for m, cas in events), True)
    return made


def test_events_of_no_transaction_are_left_out_where_they_can_be_told_apart() -> None:
    base = folded(ONE, TWO)
    for extra in ((STRAY,), ((drop("b"), 3),), ((put("c", "new"), 3), (drop("a"), 4))):
        assert synchroniser(base, ONE, TWO, *extra).resolve() == base


def test_commits_that_were_folded_meanwhile_come_on_top_of_it() -> None:
    base = folded(ONE, TWO)
    later = (put("c", "3"), 5)
    after = states.evolve(base, [later])
    made = synchroniser(base, ONE, TWO, STRAY)
    made.add_commit(Sealed((later[0],), (5,), after.digest))
    assert made.resolve() == after


def test_events_that_are_ahead_of_the_commits_read_so_far_are_waited_for() -> None:
    base = folded(ONE, TWO)
    later = (put("a", "3"), 3)
    after = states.evolve(base, [later])
    compacted = synchroniser(base, TWO, later)
    assert compacted.resolve() is None
    compacted.add_commit(Sealed((later[0],), (3,), after.digest))
    assert compacted.resolve() == after


def test_a_log_that_has_no_committed_state_is_a_mismatch() -> None:
    assert isinstance(synchroniser(folded(ONE, TWO), ONE).resolve(), Mismatch)


def test_two_strays_on_one_key_are_told_apart_from_what_was_committed() -> None:
    base = folded(ONE, TWO)
    assert synchroniser(base, ONE, TWO, STRAY, (put("a", "another stray"), 4)).resolve() == base

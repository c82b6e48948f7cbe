"""Changes with what was before them, transactions put together, and two states compared."""

from __future__ import annotations

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.history.changes import (
    Change,
    Difference,
    differences,
    fold,
    kind_of,
    transactions,
)
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas
from tests.support.changes import ONE, THREE, TWO, a_transaction, flat, written
from tests.support.views import a_state


def test_each_change_has_the_value_before_it_also_within_a_transaction() -> None:
    state, _ = fold(states.EMPTY, ONE)
    after, changes = fold(state, TWO)
    a, b = state.get("config/a"), state.get("config/b")
    assert changes == (Change(TWO[0], a), Change(TWO[1], b), Change(TWO[2], None))
    assert after == states.evolve(state, [(event.mutation, event.cas) for event in TWO])
    assert [change.sides for change in changes] == [
        (Setting("a", "1"), Setting("a", "2")),
        (Setting("b", "1"),),
        (Setting("b", "3"),),
    ]


def test_transactions_come_whole_and_in_order() -> None:
    assert list(transactions(flat(ONE, TWO, THREE))) == [ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (flat(ONE, ONE, TWO), [ONE, TWO]),
        (flat(ONE, TWO, ONE, THREE), [ONE, TWO, THREE]),
        (flat(ONE[1:], TWO), [TWO]),
        (flat(ONE, TWO[:2]), [ONE]),
        (flat(ONE[:1], TWO, THREE), [TWO, THREE]),
        (flat(TWO[:1], TWO[2:], THREE), [THREE]),
        (flat(ONE[:1], TWO[1:2], ONE[1:], THREE), [THREE]),
    ],
    ids=["twice", "late", "no-head", "no-end", "cut-off", "hole", "mixed"],
)
def test_what_is_not_a_whole_transaction_in_order_is_passed_over(
    events: list[Event], found: list[tuple[Event, ...]]
) -> None:
    assert list(transactions(events)) == found


def test_outcomes_that_old_versions_kept_as_entities_are_no_changes() -> None:
    old = Mutation("RequestRecorded", "request/x", b"x", Setting("x", "1"))
    both = a_transaction(1, 1, written("a", "1"), old)
    assert list(transactions(both)) == [both[:1]]


def test_states_differ_by_what_is_new_gone_or_another_and_not_by_what_was_changed_back() -> None:
    before = a_state(5, same="1", gone="1", other="1", back="1")
    after = a_state(5, same="1", new="1", back="2")
    again = states.evolve(after, [(written("other", "2"), Cas(9)), (written("back", "1"), Cas(10))])
    assert again.cas_of("config/back") != before.cas_of("config/back")
    assert differences(before, again) == [
        Difference("config/gone", before.get("config/gone"), None),
        Difference("config/new", None, again.get("config/new")),
        Difference("config/other", before.get("config/other"), again.get("config/other")),
    ]
    assert differences(before, before) == []


@pytest.mark.parametrize(
    ("key", "kind"),
    [("config/a/b", "setting"), ("index/7", "index"), ("consumed/0", "consumed"), ("new/1", "new")],
)
def test_a_kind_is_called_as_the_api_calls_it(key: str, kind: str) -> None:
    assert kind_of(key) == kind

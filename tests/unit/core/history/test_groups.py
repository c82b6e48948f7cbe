"""Who of many is handed a change: the same as if each were asked, and far fewer are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import Versioned
from coordinator.core.history.changes import Change, Seen
from coordinator.core.history.feed import Feed
from coordinator.core.history.groups import Groups
from coordinator.core.history.predicates import MARKS, Predicate, values_of
from coordinator.core.history.subscribing import Filters, Selection
from coordinator.core.model.entities import (
    Bucket,
    Entity,
    Index,
    Setting,
    Slice,
    Stream,
    subscription_key,
)
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, TxnId
from tests.support.changes import a_transaction
from tests.support.indexes import make_index
from tests.support.subscriptions import make_subscription

WATCHERS, LARGE = 2_000, 32
KEY = subscription_key("settings", "a")

SOME: dict[str, tuple[Any, ...]] = {
    "kinds": ("index", "setting", "subscription"),
    "buckets": ("travel", "other", ""),
    "indexes": ("1", "i1", "2"),
    "indexers": (1, 2, 3),
    "states": ("ready", "dropping"),
    "principals": ("ada", ""),
    "keys": ("index/1", "config/a", KEY),
    "requests": ("r1", ""),
    "txns": ("1-1", "1-2"),
}
ENTITIES: tuple[Entity | None, ...] = (
    None,
    make_index(1, 1, 2),
    make_index(1, 3, name="x", bucket="other", state="dropping"),
    Setting("a", "1"),
    Bucket("travel", 4),
    Stream("other", 1, (), b"", b"", ""),
    make_subscription(),
)


def some_of(name: str) -> st.SearchStrategy[frozenset[Any]]:
    return st.frozensets(st.sampled_from(SOME[name]), max_size=2)


predicates = st.builds(Predicate, **{name: some_of(name) for name in SOME})
filters = st.builds(Filters, predicates, predicates)
selectors = predicates | filters | st.builds(Selection, st.just(KEY), st.just(7), filters)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    before, after = draw(st.sampled_from(ENTITIES)), draw(st.sampled_from(ENTITIES))
    key = after.key if after is not None else before.key if before is not None else "config/a"
    mutation = Mutation(
        "Changed",
        key,
        None if after is None else b"x",
        after,
        draw(st.sampled_from(SOME["requests"])),
        draw(st.sampled_from(SOME["principals"])),
        0,
    )
    held = None if before is None else Versioned(Cas(1), b"x", before)
    return Change(Event(mutation, TxnId(1, draw(st.integers(1, 3))), 0, 1, Cas(9)), held)


@pytest.mark.thorough
@given(st.lists(selectors, max_size=12), st.lists(changes(), max_size=6), st.data())
def test_each_member_is_handed_what_its_selector_fits(
    chosen: list[Any], transaction: list[Change], data: st.DataObject
) -> None:
    groups: Groups[int] = Groups()
    for member, selector in enumerate(chosen):
        groups.add(selector, member)
    left = data.draw(st.sets(st.sampled_from(range(len(chosen))))) if chosen else set()
    for member in left:
        groups.discard(chosen[member], member)
        groups.discard(chosen[member], member)
    expected = {
        member: places
        for member, selector in enumerate(chosen)
        if member not in left
        and (places := [n for n, change in enumerate(transaction) if selector.fits(change)])
    }
    found = {m: places for members, places in groups.wanting(transaction) for m in members}
    assert found == expected
    assert len(groups) == len([*groups]) == len(chosen) - len(left)


@pytest.mark.parametrize("own", [Predicate(), Predicate(keys=frozenset({"config/a"}))])
def test_a_subscription_is_handed_its_end_whatever_it_wants(own: Predicate) -> None:
    settings = Predicate(kinds=frozenset({"setting"}))
    one = make_subscription()
    groups: Groups[str] = Groups()
    groups.add(Selection(one.key, one.number, Filters(settings, own)), "it")
    gone = Event(Mutation("Unsubscribed", one.key, None, None), TxnId(1, 1), 0, 1, Cas(9))
    assert [*groups.wanting([Change(gone, Versioned(Cas(1), b"x", one))])] == [(["it"], [0])]


def test_who_has_left_leaves_nothing_behind() -> None:
    groups: Groups[int] = Groups()
    wanted = Predicate(keys=frozenset({"config/a", "config/b"}))
    groups.add(wanted, 1)
    groups.add(Predicate(), 2)
    groups.discard(wanted, 1)
    groups.discard(Predicate(), 2)
    assert (groups._groups, groups._under) == ({}, {})


@pytest.mark.parametrize("name", MARKS)
def test_a_change_that_many_look_at_has_the_values_of_any_other(name: str) -> None:
    index = make_index(1, 1, 2)
    held = Versioned(Cas(1), b"x", make_index(1, 3, name="x", bucket="other"))
    event = Event(Mutation("Changed", index.key, b"x", index), TxnId(1, 1), 0, 1, Cas(9))
    change = Change(event, held)
    assert values_of(Seen(event, held), name) == values_of(change, name) != set()


def test_every_field_of_a_predicate_but_the_times_is_found_by() -> None:
    assert {one.name for one in fields(Predicate)} == {*MARKS, "from_ms", "to_ms"}


# -- what it costs -------------------------------------------------------------------------------


class Cost:
    """A feed with many watchers that is told of a transaction over large indexes."""

    def __init__(self, patch: pytest.MonkeyPatch, predicate: Callable[[int], Predicate]) -> None:
        self.asked = self.hosts = 0
        feed = Feed()
        for number in range(WATCHERS):
            assert feed.subscribe(Cas(0), predicate(number), lambda: None, Cas(0)) is not None
        self._count(patch)
        slices = tuple(Slice(number, number, (number + 1,)) for number in range(100))
        indexes = [replace(make_index(1 + n), slices=slices) for n in range(LARGE)]
        made = [Mutation("IndexProposed", index.key, b"x", index) for index in indexes]
        feed.publish(states.EMPTY, a_transaction(1, 1, *made))

    def _count(self, patch: pytest.MonkeyPatch) -> None:
        fits, hosts = Predicate.fits, Index.hosts.fget  # type: ignore[attr-defined]

        def counted_fits(predicate: Predicate, change: Change) -> bool:
            self.asked += 1
            return fits(predicate, change)

        def counted_hosts(index: Index) -> Any:
            self.hosts += 1
            return hosts(index)

        patch.setattr(Predicate, "fits", counted_fits)
        patch.setattr(Index, "hosts", property(counted_hosts))


def test_the_hosts_of_an_index_are_found_once_for_all_who_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2,000 watchers by indexer, those of the indexers that have the index are asked."""
    cost = Cost(monkeypatch, lambda n: Predicate(indexers=frozenset({n})))
    assert cost.hosts == LARGE
    assert cost.asked == LARGE * 101


def test_many_who_want_the_same_are_asked_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Cost(monkeypatch, lambda n: Predicate(buckets=frozenset({"travel"})))
    assert (cost.asked, cost.hosts) == (LARGE, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["keys", "txns", "requests", "indexes", "buckets", "kinds"])
def test_who_wants_another_thing_is_not_asked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cost = Cost(monkeypatch, lambda n: Predicate(**{name: frozenset({f"other-{n}"})}))
    assert (cost.asked, cost.hosts) == (0, 0)


def test_who_is_added_twice_is_there_once() -> None:
    groups: Groups[str] = Groups()
    for _ in range(2):
        groups.add(Predicate(), "a")
    assert (len(groups), [*groups]) == (1, ["a"])
    groups.discard(Predicate(), "a")
    assert (len(groups), [*groups]) == (0, [])

"""What a reader of the log itself is told of, and when it is told that nothing happens."""

from __future__ import annotations

import pytest

from coordinator.core.catalog.state import EMPTY
from coordinator.core.history.following import BOOKMARK_S, BOOKMARK_SOON_S, Bookmarks, Following
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas
from tests.support.changes import a_transaction, written

ALL = Predicate()


def transaction(first: int, *names: str) -> tuple[Event, ...]:
    """Return writes of settings, one CAS after the other."""
    return a_transaction(first, first, *(written(name, str(first)) for name in names))


def test_it_is_told_of_what_is_above_where_it_begins_and_knows_what_was_before() -> None:
    following = Following(EMPTY, Cas(2), ALL)
    assert following.take(transaction(1, "a", "b")) == []
    (change,) = following.take(transaction(3, "a"))
    assert change.before is not None
    assert (change.before.cas, change.event.cas) == (1, 3)


def test_who_begins_within_a_transaction_is_told_of_the_rest_of_it() -> None:
    following = Following(EMPTY, Cas(2), ALL)
    told = following.take(transaction(1, "a", "b", "c"))
    assert [change.event.cas for change in told] == [3]


def test_a_position_passes_over_what_does_not_fit_and_is_never_below_the_beginning() -> None:
    following = Following(EMPTY, Cas(4), Predicate(keys=frozenset({"config/a"})))
    assert following.position == 4
    following.take(transaction(1, "b"))
    assert following.position == 4
    assert following.take(transaction(5, "b")) == []
    assert following.position == 5


def test_nothing_is_nothing() -> None:
    following = Following(EMPTY, Cas(0), ALL)
    assert (following.take([]), following.position) == ([], 0)


@pytest.mark.parametrize("began_s", [0.0, 1_000.0])
def test_a_bookmark_comes_while_nothing_happens_and_sooner_after_changes(began_s: float) -> None:
    bookmarks = Bookmarks(began_s)
    assert not bookmarks.is_due(began_s + BOOKMARK_S - 0.001)
    assert bookmarks.is_due(began_s + BOOKMARK_S)
    assert not bookmarks.is_due(began_s + BOOKMARK_S + 0.001)
    bookmarks.expect(began_s + 6)
    assert bookmarks.is_due(began_s + 6 + BOOKMARK_SOON_S)
    assert not bookmarks.is_due(began_s + 6 + 2 * BOOKMARK_SOON_S)

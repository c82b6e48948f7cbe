"""The feed: who subscribes gets each change above a CAS once, or is told that it cannot."""

from __future__ import annotations

import pytest

from coordinator.core.history import feed
from coordinator.core.history.lines import Subscription
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from tests.support.changes import ONE, THREE, TWO, a_transaction, written
from tests.support.feeds import Publisher


def test_a_subscription_gets_each_change_above_its_cas_once_in_order() -> None:
    publisher = Publisher()
    publisher.commit(ONE, TWO)
    subscription = publisher.subscribe(1)
    assert publisher.cas_of(subscription, 2) == [2, 4]
    publisher.commit(THREE)
    assert publisher.cas_of(subscription) == [5, 6, 8]
    assert publisher.cas_of(subscription) == []
    assert subscription.position == 8


def test_a_change_has_the_value_before_it() -> None:
    publisher = Publisher()
    publisher.commit(ONE)
    subscription = publisher.subscribe(publisher.state.cas)
    a, b = publisher.state.get("config/a"), publisher.state.get("config/b")
    publisher.commit(TWO)
    changes = [published.change for published in subscription.take(10, publisher.feed.newest)]
    assert [change.before for change in changes] == [a, b, None]
    assert [change.event for change in changes] == list(TWO)


def test_only_what_fits_is_handed_over_and_the_position_goes_on_without() -> None:
    publisher = Publisher()
    subscription = publisher.subscribe(0, Predicate(keys=frozenset({"config/b"})))
    publisher.commit(THREE)
    assert publisher.woken == 0
    assert (publisher.cas_of(subscription), subscription.position) == ([], 8)
    later = a_transaction(4, 20, written("a", "1"), written("b", "1"), written("c", "1"))
    publisher.commit(later)
    assert publisher.woken == 1
    assert (publisher.cas_of(subscription), subscription.position) == ([21], 21)
    assert (publisher.cas_of(subscription), subscription.position) == ([], 22)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_what_the_feed_does_not_keep_is_read_elsewhere(after: int) -> None:
    publisher = Publisher(kept_max=1)
    publisher.commit(ONE, TWO)
    subscription = publisher.subscribe(after)
    assert (subscription is None) == (after < 2)
    if subscription is not None:
        assert publisher.cas_of(subscription) == [4, 5, 6]


@pytest.mark.parametrize("after", [0, 2, 3, 6])
def test_who_is_further_behind_than_may_be_looked_at_reads_the_history(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Each watcher that comes back is a step of the loop, and they come back all at once."""
    publisher = Publisher()
    publisher.commit(ONE, TWO)
    above = [event.cas for event in (*ONE, *TWO) if event.cas > after]
    for examined in range(8):
        monkeypatch.setattr(feed, "EXAMINED_MAX", examined)
        subscription = publisher.subscribe(after)
        touched = sum(len(events) for events in (ONE, TWO) if events[-1].cas > after)
        assert (subscription is None) == (touched > examined)
        if subscription is not None:
            assert publisher.cas_of(subscription) == above


def test_a_node_that_has_published_nothing_yet_serves_who_has_its_state() -> None:
    publisher = Publisher()
    publisher.commit(ONE, TWO, unheard=True)
    assert publisher.subscribe(5) is None
    subscription = publisher.subscribe(6)
    publisher.commit(THREE)
    assert publisher.cas_of(subscription) == [8]


def test_who_is_too_slow_gets_what_was_held_and_has_lagged() -> None:
    publisher = Publisher(waiting_max=4)
    slow, quick = publisher.subscribe(0), publisher.subscribe(0)
    publisher.commit(ONE)
    assert publisher.cas_of(quick) == [1, 2]
    publisher.commit(TWO)
    publisher.commit(THREE)
    assert (slow.has_lagged, quick.has_lagged) == (True, False)
    assert len(publisher.feed) == 1
    assert publisher.cas_of(quick) == [4, 5, 6, 8]
    assert publisher.cas_of(slow) == [1, 2]
    assert (publisher.cas_of(slow), slow.position) == ([], 2), "there it must resume"
    again = publisher.subscribe(2)
    assert publisher.cas_of(again) == [4, 5, 6, 8]


def test_who_subscribes_too_far_back_gets_no_hole_but_the_beginning() -> None:
    """After a transaction that is too much, a smaller one would fit again."""
    publisher = Publisher(waiting_max=3)
    publisher.commit(ONE, TWO, THREE)
    subscription = publisher.subscribe(0)
    assert subscription.has_lagged
    assert publisher.cas_of(subscription) == [1, 2]
    assert subscription.position == 2


def test_where_a_state_was_found_anew_all_have_lagged_and_resume_from_the_history() -> None:
    publisher = Publisher()
    subscription = publisher.subscribe(0)
    publisher.commit(ONE)
    publisher.commit(TWO, unheard=True)
    publisher.commit(THREE)
    assert subscription.has_lagged
    assert publisher.cas_of(subscription) == [1, 2]
    assert publisher.subscribe(2) is None
    assert publisher.cas_of(publisher.subscribe(6)) == [8]


def test_who_has_left_is_handed_nothing() -> None:
    publisher = Publisher()
    subscription = publisher.subscribe(0)
    publisher.feed.unsubscribe(subscription)
    publisher.commit(ONE)
    assert (len(publisher.feed), publisher.woken) == (0, 0)
    assert subscription.following is None


def test_a_feed_that_is_closed_wakes_all_and_hands_out_no_more() -> None:
    publisher = Publisher()
    publisher.subscribe(0)
    publisher.feed.close()
    assert (publisher.feed.is_closed, publisher.woken, len(publisher.feed)) == (True, 1, 0)


def heavy(seq: int, cas: int, size: int = 6 * 1024 * 1024) -> tuple[Event, ...]:
    return a_transaction(seq, cas, written("big", f'"{"x" * size}"'))


def test_what_is_kept_and_what_waits_is_bounded_in_bytes_too() -> None:
    publisher = Publisher()
    slow = publisher.subscribe(0)
    publisher.commit(heavy(1, 1), heavy(2, 2), heavy(3, 3))
    assert slow.has_lagged
    assert publisher.cas_of(slow) == [1], "two values and the one before would be too much"
    assert slow.own_bytes == 0
    assert publisher.subscribe(1) is None
    assert publisher.cas_of(publisher.subscribe(2)) == [3]


def test_a_change_that_is_too_heavy_waits_alone() -> None:
    publisher = Publisher()
    one = publisher.subscribe(0)
    publisher.commit(heavy(1, 1, 20 * 1024 * 1024))
    assert (publisher.cas_of(one), one.has_lagged) == ([1], False)
    publisher.commit(ONE_LATER)
    assert publisher.cas_of(one) == [10]


ONE_LATER = a_transaction(9, 10, written("c", "1"))


def test_a_transaction_of_more_changes_than_may_wait_does_not_keep_who_comes_back_for_ever() -> (
    None
):
    publisher = Publisher(waiting_max=2)
    publisher.commit(ONE, TWO)
    subscription = publisher.subscribe(2)
    assert not subscription.has_lagged
    assert publisher.cas_of(subscription) == [4, 5, 6]
    publisher.commit(THREE)
    assert publisher.cas_of(subscription) == [8]


def test_nothing_is_passed_over_that_is_about_to_be_published() -> None:
    """The state is further on already: its changes are still to come."""
    publisher = Publisher()
    publisher.commit(ONE)
    subscription = publisher.subscribe(publisher.state.cas)
    before = publisher.state
    publisher.commit(TWO, unheard=True)
    assert publisher.cas_of(subscription) == []
    assert subscription.position == before.cas
    publisher.feed.publish(before, TWO)
    assert publisher.cas_of(subscription) == [event.cas for event in TWO]


def ahead_of_the_feed(**limits: int) -> tuple[Publisher, Subscription]:
    """Return a subscription at a state whose last transaction was published only then."""
    publisher = Publisher(**limits)
    publisher.commit(ONE)
    before = publisher.state
    publisher.commit(TWO, unheard=True)
    subscription = publisher.subscribe(publisher.state.cas)
    publisher.feed.publish(before, TWO)
    return publisher, subscription


def test_who_has_a_state_that_is_about_to_be_published_is_not_told_of_it() -> None:
    publisher, subscription = ahead_of_the_feed()
    assert subscription.following is None
    assert (publisher.cas_of(subscription), subscription.position) == ([], 6)
    publisher.commit(THREE)
    assert publisher.cas_of(subscription) == [8]


@pytest.mark.parametrize("how", ["closed", "found anew", "left"])
def test_what_a_state_had_is_not_told_when_the_line_ends_before_it_is_taken(how: str) -> None:
    publisher, subscription = ahead_of_the_feed(waiting_max=3)
    if how == "closed":
        publisher.feed.close()
    elif how == "left":
        publisher.feed.unsubscribe(subscription)
    else:
        publisher.commit(THREE, unheard=True)
        publisher.commit(ONE_LATER)
    assert (publisher.cas_of(subscription), subscription.position) == ([], 6)


def test_who_has_taken_all_but_what_its_state_had_is_not_given_up() -> None:
    publisher, subscription = ahead_of_the_feed(waiting_max=3)
    publisher.commit(a_transaction(9, 10, *(written("c", str(n)) for n in range(4))))
    assert not subscription.has_lagged
    assert publisher.cas_of(subscription) == [10, 11, 12, 13]


def test_nothing_is_passed_over_where_the_node_has_found_its_state_anew() -> None:
    """Who watches is told after which change to resume: the last one that it was told of."""
    for heard, unheard in (((ONE,), (TWO,)), ((), (ONE, TWO))):
        publisher = Publisher()
        publisher.commit(*heard)
        subscription = publisher.subscribe(publisher.state.cas)
        told = publisher.state.cas
        publisher.commit(*unheard, unheard=True)
        assert publisher.cas_of(subscription) == []
        publisher.subscribe(publisher.state.cas)
        assert publisher.cas_of(subscription) == []
        publisher.commit(THREE)
        assert publisher.cas_of(subscription) == []
        assert (subscription.has_lagged, subscription.position) == (True, told)


def test_what_was_kept_before_a_state_was_found_anew_takes_no_room() -> None:
    """Otherwise each time leaves less, and in the end nobody who comes back finds anything."""
    publisher = Publisher()
    publisher.commit(heavy(1, 1), heavy(2, 2, 1))
    publisher.commit(TWO, unheard=True)
    publisher.commit(heavy(4, 7), heavy(5, 8, 1))
    assert publisher.cas_of(publisher.subscribe(6)) == [7, 8]

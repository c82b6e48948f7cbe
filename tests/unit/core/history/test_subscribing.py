"""What a subscription brings, where it ends, and how far its subscriber has come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.codec import encode
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.history.changes import Change, fold
from coordinator.core.history.subscribing import (
    STEP_MAX_MS,
    Positions,
    Selection,
    Silence,
    selection_of,
    subscriptions,
    told,
)
from coordinator.core.model.entities import Entity, Setting, Subscription, Topic
from coordinator.core.model.records import Mutation
from coordinator.core.model.subscription_records import SubscriberSeen, SubscriptionAcknowledged
from coordinator.core.model.types import Cas
from tests.support.changes import a_transaction

TOPIC = Topic("settings", '{"kind":["setting"]}', 0)
SUBSCRIPTION = Subscription(
    topic="settings",
    id="a",
    number=7,
    filter_json='{"key":["config/a","config/b"]}',
    after=Cas(2),
    deliver_to="",
    expires_after_ms=10_000,
    state="active",
    created_ms=0,
)


class Log:
    """A state, and changes of it, one transaction each."""

    def __init__(self) -> None:
        self.state: StateContext = EMPTY
        self.cas = 0

    def put(self, *entities: Entity) -> list[Change]:
        return self._add([Mutation("Written", e.key, encode(e), e) for e in entities])

    def remove(self, key: str) -> list[Change]:
        return self._add([Mutation("Removed", key, None, None)])

    def _add(self, mutations: list[Mutation]) -> list[Change]:
        events = a_transaction(self.cas + 1, self.cas + 1, *mutations)
        self.cas += len(mutations)
        self.state, changes = fold(self.state, events)
        return [*changes]


@pytest.fixture
def log() -> Log:
    made = Log()
    made.put(TOPIC, SUBSCRIPTION)
    return made


@pytest.fixture
def selection() -> Selection:
    return selection_of(TOPIC, SUBSCRIPTION)


def test_what_fits_both_filters_is_told(log: Log, selection: Selection) -> None:
    changes = log.put(Setting("a", "1"), Setting("c", "1"), Setting("b", "1"))
    found, end = told(selection, filter(selection.fits, changes))
    assert ([c.key for c in found], end) == (["config/a", "config/b"], None)


def test_nothing_is_told_above_the_end(log: Log, selection: Selection) -> None:
    changes = [
        *log.put(Setting("a", "1")),
        *log.remove(SUBSCRIPTION.key),
        *log.put(Setting("a", "2")),
    ]
    found, end = told(selection, filter(selection.fits, changes))
    assert [c.event.cas for c in found] == [3]
    assert end is not None
    assert end.event.cas == 4


@pytest.mark.parametrize(
    ("after", "is_end"),
    [
        (replace(SUBSCRIPTION, state="expired"), True),
        (replace(SUBSCRIPTION, number=8), True),
        (SUBSCRIPTION, False),
    ],
)
def test_it_ends_when_it_expires_or_another_takes_its_place_but_not_when_it_is_rewritten(
    log: Log, selection: Selection, after: Subscription, is_end: bool
) -> None:
    (change,) = log.put(after)
    assert selection.ends(change) is is_end


def test_the_end_of_another_subscription_is_not_its_end(log: Log, selection: Selection) -> None:
    other = replace(SUBSCRIPTION, id="b", number=9)
    log.put(other)
    (change,) = log.remove(other.key)
    assert not selection.fits(change)


def test_a_subscriber_that_subscribes_to_subscriptions_is_told_of_its_own_end(log: Log) -> None:
    everything = selection_of(
        replace(TOPIC, filter_json="{}"), replace(SUBSCRIPTION, filter_json="{}")
    )
    changes = log.remove(SUBSCRIPTION.key)
    assert told(everything, changes) == (changes, changes[0])


def test_only_active_subscriptions_are_served(log: Log) -> None:
    assert [s.id for _, s in subscriptions(log.state)] == ["a"]
    log.put(replace(SUBSCRIPTION, state="expired"))
    assert [*subscriptions(log.state)] == []


def test_a_position_never_goes_back_and_begins_where_the_subscription_does() -> None:
    positions = Positions()
    assert positions.of(SUBSCRIPTION) == 2
    for cas in (5, 3, 1):
        positions.take(SubscriptionAcknowledged(7, Cas(cas), at_ms=cas), 0)
    assert (positions.of(SUBSCRIPTION), positions.acknowledged_ms(SUBSCRIPTION)) == (5, 5)


def test_what_is_known_of_one_subscription_says_nothing_of_the_next_under_its_id() -> None:
    positions = Positions()
    positions.take(SubscriptionAcknowledged(7, Cas(50), at_ms=1), 0)
    assert positions.of(replace(SUBSCRIPTION, number=8, after=Cas(40))) == 40


def test_who_was_not_heard_of_for_its_time_has_expired() -> None:
    silence, positions = Silence(), Positions()
    for now in range(0, 10_001, 500):
        assert silence.overdue([SUBSCRIPTION], positions.heard_ms, now) == []
    assert silence.overdue([SUBSCRIPTION], positions.heard_ms, 10_500) == [SUBSCRIPTION]


def test_each_sign_of_life_gives_all_the_time_again() -> None:
    silence, positions = Silence(), Positions()
    for now in range(0, 60_000, 500):
        if now % 9_000 == 0:
            positions.take(SubscriberSeen(7, now, 0), now)
        assert silence.overdue([SUBSCRIPTION], positions.heard_ms, now) == []


def test_time_in_which_the_master_did_not_run_does_not_count() -> None:
    """What a subscriber said meanwhile may not have been read yet."""
    silence, positions = Silence(), Positions()
    silence.overdue([SUBSCRIPTION], positions.heard_ms, 0)
    assert silence.overdue([SUBSCRIPTION], positions.heard_ms, 3_600_000) == []
    assert SUBSCRIPTION.expires_after_ms > STEP_MAX_MS


def test_who_never_expires_is_not_counted() -> None:
    forever = replace(SUBSCRIPTION, expires_after_ms=0)
    silence = Silence()
    for now in range(0, 100_000, 1_000):
        assert silence.overdue([forever], {}, now) == []

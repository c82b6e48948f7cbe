"""What a subscription brings, where it ends, and how far its subscriber has come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.codec import encode
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.history.changes import Change, fold
from coordinator.core.history.feed import KeptTransaction
from coordinator.core.history.lines import Published
from coordinator.core.history.predicates import Predicate
from coordinator.core.history.subscribing import (
    STEP_MAX_MS,
    Backlog,
    Positions,
    Selection,
    Silence,
    Waits,
    ended_deliveries,
    events_for,
    gone,
    selection_of,
    subscriptions,
    waits,
)
from coordinator.core.model.entities import Entity, Setting, Subscription, Topic
from coordinator.core.model.records import Mutation
from coordinator.core.model.subscription_records import (
    NOBODY,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionForgotten,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas, Epoch, TxnId, number_in
from tests.support.changes import a_transaction
from tests.support.subscriptions import make_subscription

TOPIC = Topic("settings", '{"kind":["setting"]}', 0)
SUBSCRIPTION = make_subscription(filter_json='{"key":["config/a","config/b"]}', after=Cas(2))


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
    found, end = events_for(selection, filter(selection.fits, changes))
    assert ([c.key for c in found], end) == (["config/a", "config/b"], None)


def test_nothing_is_told_above_the_end(log: Log, selection: Selection) -> None:
    changes = [
        *log.put(Setting("a", "1")),
        *log.remove(SUBSCRIPTION.key),
        *log.put(Setting("a", "2")),
    ]
    found, end = events_for(selection, filter(selection.fits, changes))
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
    assert events_for(everything, changes) == (changes, changes[0])


# -- deliveries that the changes at hand end -----------------------------------------------------

DELIVERED = replace(SUBSCRIPTION, deliver_to="out", expires_after_ms=0)


class KeptLog(Log):
    """A log whose transactions are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[KeptTransaction] = []

    def _add(self, mutations: list[Mutation]) -> list[Change]:
        before = self.state.cas
        changes = super()._add(mutations)
        self.kept.append(KeptTransaction(before, tuple(map(Published, changes)), 0))
        return changes

    def remove_all(self, *keys: str) -> None:
        self._add([Mutation("Removed", key, None, None) for key in keys])

    def ended(self) -> list[tuple[str, Topic, int]]:
        found = ended_deliveries(self.state, tuple(self.kept))
        return [(one.subscription.id, one.topic, one.cas) for one in found]


@pytest.mark.parametrize("topic_first", [True, False])
def test_a_delivery_that_ended_is_found_with_its_topic_also_where_that_went_with_it(
    topic_first: bool,
) -> None:
    log = KeptLog()
    log.put(TOPIC, DELIVERED)
    keys = [TOPIC.key, DELIVERED.key] if topic_first else [DELIVERED.key, TOPIC.key]
    log.remove_all(*keys)
    log.put(replace(TOPIC, filter_json="{}"))
    assert log.ended() == [("a", TOPIC, 4 if topic_first else 3)]


def test_deliveries_that_ended_are_found_the_last_first_and_those_that_go_on_are_not() -> None:
    log = KeptLog()
    log.put(TOPIC, DELIVERED, replace(SUBSCRIPTION, id="no-delivery", number=9))
    log.put(replace(DELIVERED, id="b", number=8), replace(DELIVERED, id="c", number=10))
    log.remove("subscription/settings/no-delivery")
    log.remove(DELIVERED.key)
    log.put(replace(DELIVERED, number=11))
    log.put(replace(DELIVERED, id="b", number=12))
    assert log.ended() == [("b", TOPIC, 9), ("a", TOPIC, 7)]


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


def test_what_was_forgotten_in_the_log_is_forgotten_by_everybody_who_reads_it() -> None:
    """Only a master says that a subscription is gone; the others would keep it for ever."""
    positions = Positions()
    positions.take(SubscriptionAcknowledged(7, Cas(50), at_ms=1), 5)
    positions.take(SubscriptionAcknowledged(8, Cas(60), at_ms=1), 5)
    positions.take(SubscriptionForgotten(7), 9)
    assert ({*positions.heard_ms}, positions.reached(7), positions.reached(8)) == ({8}, 0, 60)


def test_a_deposed_master_takes_no_subscription_for_gone_that_a_later_one_made(log: Log) -> None:
    there = SUBSCRIPTION.number
    before, later = number_in(TxnId(Epoch(4), 9), 0), number_in(TxnId(Epoch(5), 1), 0)
    assert gone(log.state, [there, before, later], Epoch(4)) == {before}
    assert gone(log.state, [there, before, later], Epoch(5)) == {before, later}


class Kept:
    """The changes that a node has at hand: those since it began to keep them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: list[KeptTransaction] = []
        self.backlog = Backlog()
        self.positions = Positions()

    def put(self, *entities: Entity) -> list[Change]:
        before = self._log.state.cas
        changes = self._log.put(*entities)
        published = tuple(map(Published, changes))
        self._kept.append(KeptTransaction(before, published, 0))
        return changes

    def drop(self) -> None:
        """Have no room for what came until now."""
        self._kept.clear()

    def behind(self) -> int:
        newest = self._log.state.cas
        found = self.backlog.behind(
            [(TOPIC, SUBSCRIPTION)], self.positions, newest, tuple(self._kept)
        )
        return found[SUBSCRIPTION.number]

    def acknowledge(self, cas: int) -> None:
        self.positions.take(SubscriptionAcknowledged(7, Cas(cas), at_ms=0), 0)


@pytest.fixture
def kept(log: Log) -> Kept:
    return Kept(log)


def test_nobody_is_behind_where_no_change_waits_for_it(kept: Kept) -> None:
    """It acknowledges what it was told: nothing of all this."""
    for _ in range(20):
        kept.put(Setting("other", "1"), Setting("another", "2"))
        assert kept.behind() == 0


def test_who_is_behind_is_so_from_the_oldest_change_that_waits(kept: Kept) -> None:
    kept.put(Setting("other", "1"))
    (_, first, _, last) = kept.put(*(Setting(name, "1") for name in ("x", "a", "y", "b")))
    newest = kept.put(Setting("other", "2"))[-1].event.cas
    assert kept.behind() == newest - first.event.cas + 1
    kept.acknowledge(first.event.cas)
    assert kept.behind() == newest - last.event.cas + 1
    kept.acknowledge(last.event.cas)
    assert kept.behind() == 0


MANY = 2_000


@pytest.mark.parametrize("filter_json", ["{}", '{"key":["config/k%d"]}'])
def test_many_are_looked_for_in_one_pass_over_the_changes_at_hand(
    monkeypatch: pytest.MonkeyPatch, filter_json: str
) -> None:
    """As by a new master, which has looked at nothing yet."""
    log = KeptLog()
    for _ in range(10):
        log.put(*(Setting(f"x{number}", "1") for number in range(9)), Setting("k7", "1"))
    everything = replace(TOPIC, filter_json="{}")
    found = [
        (everything, replace(SUBSCRIPTION, number=n, after=Cas(n % 90), filter_json=text))
        for n in range(MANY)
        for text in [filter_json.replace("%d", str(n))]
    ]
    asked = 0
    fits = Predicate.fits

    def counted(predicate: Predicate, change: Change) -> bool:
        nonlocal asked
        asked += 1
        return fits(predicate, change)

    monkeypatch.setattr(Predicate, "fits", counted)
    behind = Backlog().behind(found, Positions(), Cas(log.cas), tuple(log.kept))
    assert asked <= 2 * log.cas
    expected = {n: log.cas - n % 90 for n in range(MANY)}
    if filter_json != "{}":
        expected = dict.fromkeys(range(MANY), 0) | {7: log.cas - 9}
    assert behind == expected
    asked = 0
    places = [(selection_of(topic, one), one.after) for topic, one in found]
    found_waiting = waits(places, Cas(log.cas), tuple(log.kept))
    assert asked <= 2 * log.cas
    assert found_waiting[7] == Waits(93 if filter_json == "{}" else 10, 0)


def test_what_was_looked_at_once_is_known_when_the_change_is_not_at_hand_any_more(
    kept: Kept,
) -> None:
    kept.put(Setting("other", "1"))
    assert kept.behind() == 0
    kept.drop()
    kept.put(Setting("other", "2"))
    assert kept.behind() == 0


def test_what_was_never_looked_at_counts_from_the_position(kept: Kept) -> None:
    (change,) = kept.put(Setting("other", "1"))
    kept.drop()
    assert kept.behind() == change.event.cas - SUBSCRIPTION.after
    (change,) = kept.put(Setting("other", "2"))
    assert kept.behind() == change.event.cas - SUBSCRIPTION.after


def test_a_state_that_came_without_its_changes_counts_from_the_position(
    kept: Kept, log: Log
) -> None:
    kept.put(Setting("other", "1"))
    log.put(Setting("a", "1"))
    assert kept.behind() == log.state.cas - SUBSCRIPTION.after


class Master:
    """One that looks at who is silent, and reads the log up to now where it is not held up."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.silence = Silence(0)
        self._mark = 0
        self.log: list[SubscriptionRecord] = []

    def write_mark(self, now: int) -> None:
        self._mark += 1
        self.positions.expect(self._mark, now)
        self.log.append(SubscriberSeen(NOBODY, now, self._mark))

    def read(self, now: int) -> None:
        for record in self.log:
            self.positions.take(record, now)
        self.log.clear()

    def look(self, now: int, found: Subscription = SUBSCRIPTION) -> bool:
        """Tell whether the subscription is overdue, by all that was written."""
        self.write_mark(now)
        self.read(now)
        return self.overdue(now, found)

    def overdue(self, now: int, found: Subscription = SUBSCRIPTION) -> bool:
        return bool(self.silence.overdue([found], self.positions, now))

    def hear(self, now: int) -> None:
        self.log.append(SubscriberSeen(SUBSCRIPTION.number, now, 0))


@pytest.fixture
def master() -> Master:
    return Master()


def test_who_was_not_heard_of_for_its_time_has_expired(master: Master) -> None:
    assert not any(master.look(now) for now in range(0, 10_001, 500))
    assert master.look(10_500)


def test_each_sign_of_life_gives_all_the_time_again(master: Master) -> None:
    for now in range(0, 60_000, 500):
        if now % 9_000 == 0:
            master.hear(now)
        assert not master.look(now)
    assert [now for now in range(60_000, 70_000, 500) if master.look(now)] == [
        64_500 + 500 * n for n in range(11)
    ]


def test_silence_counts_from_when_the_sign_of_life_was_read(master: Master) -> None:
    """And not from the next look at it."""
    master.look(0)
    master.hear(600)
    master.read(600)
    assert not any(master.look(now) for now in range(1_000, 10_501, 500))
    assert master.look(11_000)


def test_time_in_which_the_master_did_not_run_does_not_count(master: Master) -> None:
    """Nobody could say anything to it meanwhile."""
    master.look(0)
    assert not master.look(3_600_000)
    assert SUBSCRIPTION.expires_after_ms > STEP_MAX_MS


def test_nobody_is_silent_while_the_log_is_not_read(master: Master) -> None:
    """It was heard of all the time: the master has not read it yet, however often it looks."""
    master.look(0)
    for now in range(500, 60_000, 500):
        master.hear(now)
        master.write_mark(now)
        assert not master.overdue(now)
    master.read(60_000)
    assert not master.overdue(60_000)
    assert not any(master.look(now) for now in range(60_500, 70_001, 500))
    assert master.look(70_500)


def test_what_was_heard_before_a_mark_that_comes_late_counts_from_then(master: Master) -> None:
    """A mark says up to where all was read, and not when it was read back."""
    master.look(0)
    for now in range(500, 10_001, 500):
        assert not master.look(now)
    master.write_mark(10_500)
    assert not master.overdue(12_000)
    master.read(12_500)
    assert master.overdue(12_500)


def test_a_mark_that_was_given_up_says_nothing(master: Master) -> None:
    master.positions.expect(9, 5_000)
    master.positions.give_up(9)
    master.positions.take(SubscriberSeen(NOBODY, 0, 9), 20_000)
    assert master.positions.read_up_to_ms == 0


def test_a_mark_of_nobody_is_no_sign_of_life(master: Master) -> None:
    master.look(0)
    assert NOBODY not in master.positions.heard_ms


def test_who_subscribes_has_all_its_time_although_a_mark_is_old(master: Master) -> None:
    master.write_mark(500)
    master.read(9_000)
    assert not master.overdue(9_000)
    assert not any(master.look(now) for now in range(9_500, 18_501, 500))


def test_who_never_expires_is_not_counted(master: Master) -> None:
    forever = replace(SUBSCRIPTION, expires_after_ms=0)
    assert not any(master.look(now, forever) for now in range(0, 100_000, 1_000))

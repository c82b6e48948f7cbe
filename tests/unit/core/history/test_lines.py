"""Lines: whoever subscribes gets what it would get from a queue of its own, and is woken for it."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from coordinator.core.history import lines
from coordinator.core.history.feed import Feed
from coordinator.core.history.lines import Bound, Published, Subscription
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas
from tests.support.changes import ONE, THREE, TWO, a_transaction, written
from tests.support.feeds import Publisher

NAMES = "abcd"
FILTERS = [Predicate(), *(Predicate(keys=frozenset({f"config/{name}"})) for name in NAMES)]
WAITING_MAX, STEPS = 6, 400


@dataclass
class Queue:
    """One queue for one watcher: what a line has to be worth."""

    wanted: Predicate
    feed: Feed
    subscription: Subscription | None = None
    is_asleep: bool = False
    has_lagged: bool = False
    waiting: deque[int] = field(default_factory=deque)

    def wake(self) -> None:
        self.is_asleep = False

    def add(self, events: Sequence[Event]) -> None:
        keys = self.wanted.keys
        found = [event.cas for event in events if not keys or event.mutation.key in keys]
        if self.has_lagged or not found:
            return
        if self.waiting and len(self.waiting) + len(found) > WAITING_MAX:
            self.has_lagged = True
        else:
            self.waiting.extend(found)

    def take(self, limit: int) -> None:
        assert self.subscription is not None
        expected = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        found = self.subscription.take(limit, self.feed.newest)
        assert [published.cas for published in found] == expected
        following = self.subscription.following
        assert (following and following.cas) == (self.waiting[0] if self.waiting else None)
        self.is_asleep = not found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_a_line_is_worth_a_queue_for_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it forgets after each change, and where those that join have missed something."""
    chance = random.Random(seed)
    monkeypatch.setattr(lines, "LOOK_CHANGES", chance.choice([0, 3, 256]))
    publisher = Publisher(waiting_max=WAITING_MAX, kept_max=3)
    watching: list[Queue] = []
    kept: deque[tuple[Event, ...]] = deque(maxlen=3)
    cas = seq = 0
    for _ in range(STEPS):
        step = chance.random()
        if step < 0.3:
            seq, count = seq + 1, chance.choice([1, 1, 2, 4, 9])
            changes = [written(chance.choice(NAMES), str(seq)) for _ in range(count)]
            events = a_transaction(seq, cas + 1, *changes)
            cas += count
            kept.append(events)
            publisher.commit(events)
            for queue in watching:
                queue.add(events)
        elif step < 0.4:
            queue = Queue(chance.choice(FILTERS), publisher.feed)
            after = chance.choice([kept[-1][0].cas, kept[0][0].cas - 1]) if kept else 0
            queue.subscription = publisher.feed.subscribe(
                Cas(after), queue.wanted, queue.wake, publisher.state.cas
            )
            assert queue.subscription is not None
            for events in kept:
                queue.add([event for event in events if event.cas > after])
            watching.append(queue)
        elif step < 0.45 and watching:
            gone = watching.pop(chance.randrange(len(watching)))
            assert gone.subscription is not None
            publisher.feed.unsubscribe(gone.subscription)
        elif watching:
            chance.choice(watching).take(chance.choice([1, 2, 100]))
        for queue in watching:
            assert queue.subscription is not None
            assert queue.subscription.has_lagged == queue.has_lagged
            assert not (queue.is_asleep and queue.waiting), "it is not woken"
        assert len(publisher.feed) == sum(not queue.has_lagged for queue in watching)


def test_only_who_has_taken_everything_is_woken() -> None:
    """With 1,000 watchers a change costs what those cost who wait for it."""
    publisher = Publisher()
    watching = [publisher.subscribe(0) for _ in range(50)]
    publisher.commit(ONE)
    assert publisher.woken == 50
    publisher.commit(TWO)
    assert publisher.woken == 50
    for subscription in watching[:10]:
        assert publisher.cas_of(subscription) == [1, 2, 4, 5, 6]
    publisher.commit(THREE)
    assert publisher.woken == 60


def test_a_line_holds_what_somebody_has_not_taken() -> None:
    publisher = Publisher(kept_max=1)
    quick, slow = publisher.subscribe(0), publisher.subscribe(0)
    line = quick.line
    publisher.commit(ONE, TWO)
    publisher.cas_of(quick)
    assert len(line) == 2
    assert [published.cas for published in line.held] == [1, 2, 4, 5, 6]
    publisher.cas_of(slow)
    assert not line.held
    publisher.commit(THREE)
    publisher.cas_of(quick)
    publisher.feed.unsubscribe(slow)
    assert not line.held
    assert publisher.cas_of(slow) == [8], "what waited for it, it has"


def test_what_nearly_all_have_taken_is_forgotten_while_changes_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is never a moment at which everybody has taken everything."""
    monkeypatch.setattr(lines, "LOOK_CHANGES", 8)
    publisher = Publisher()
    two = [publisher.subscribe(0), publisher.subscribe(0)]
    line, most = two[0].line, 0
    for number in range(200):
        publisher.commit(a_transaction(1 + number, 1 + number, written("a", str(number))))
        publisher.cas_of(two[number % 2])
        most = max(most, len(line.held))
    assert most < 3 * 8


def test_heavy_changes_are_forgotten_sooner() -> None:
    publisher = Publisher()
    two = [publisher.subscribe(0), publisher.subscribe(0)]
    value = json.dumps("x" * 100_000)
    for number in range(30):
        publisher.commit(a_transaction(1 + number, 1 + number, written("a", value)))
        publisher.cas_of(two[number % 2])
        assert len(two[0].line.held) < 10


def test_what_was_made_for_all_is_kept_until_there_are_more_changes_or_nobody_waits() -> None:
    publisher = Publisher()
    quick, slow = publisher.subscribe(0), publisher.subscribe(0)
    publisher.commit(ONE)
    quick.line.frames[(1, 2)] = b"one"
    publisher.cas_of(quick)
    assert quick.line.frames
    publisher.commit(TWO)
    assert not quick.line.frames
    quick.line.frames[(4, 6)] = b"two"
    publisher.cas_of(quick)
    publisher.cas_of(slow)
    assert not quick.line.frames


def test_what_waits_for_one_alone_is_weighed_once() -> None:
    """After a failover all come back at once, each of them behind by hundreds of transactions."""
    publisher = Publisher()
    publisher.commit(*(a_transaction(n, n, written("a", str(n))) for n in range(1, 401)))
    weighed = 0
    weight = Published.weight.fget

    def counting(published: Published) -> int:
        nonlocal weighed
        weighed += 1
        return int(weight(published))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Published, "weight", property(counting))
        subscription = publisher.subscribe(0)
        assert subscription.own_amount.changes == 400
        publisher.cas_of(subscription, 1_000)
        assert weighed == 2 * 400
    assert subscription.own_amount == Bound(0, 0)


def test_those_who_leave_leave_no_line_behind() -> None:
    publisher = Publisher()
    for _ in range(3):
        made = [publisher.subscribe(0, wanted) for wanted in FILTERS]
        publisher.commit()
        for subscription in made:
            publisher.feed.unsubscribe(subscription)
            publisher.feed.unsubscribe(subscription)
    assert len(publisher.feed) == 0
    assert not publisher.feed.lines

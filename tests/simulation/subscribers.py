"""Those who subscribe in the simulator: they come and go, say that they are there, or have changes
delivered by whoever leads.

In a share of the worlds. What is written for subscribers is a log of its own, as in production: a
position goes there with what was delivered before it, or not at all.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.core.catalog import subscriptions as bounds
from coordinator.core.history import feed
from coordinator.core.history.changes import Change
from coordinator.core.history.subscribing import (
    Positions,
    Selection,
    Silence,
    events_for,
    selection_of,
    subscriptions,
)
from coordinator.core.model.commands import (
    AddTopic,
    ExpireSubscription,
    RemoveTopic,
    Request,
    Subscribe,
    Unsubscribe,
)
from coordinator.core.model.entities import ACTIVE, Subscription, Topic, topic_key
from coordinator.core.model.records import Mutation
from coordinator.core.model.subscription_records import (
    NOBODY,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas
from tests.simulation.actors import Client
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.violation import require
from tests.simulation.watchers import above, changes_of_log

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.judge import Judge
    from tests.simulation.machine import Machine

SHARE, REST = 5, 3
TOPICS = ("p0", "p1")
FILTERS = ("{}", '{"kind":["setting"]}', '{"kind":["index","subscription"]}')
OUT = "out"
EXPIRES_MS = 1_500
LIMIT = 4
TRIES = 20_000

TOPIC_EFFECTS = (
    *("TopicAdded", "TopicRemoved", "Subscribed", "Unsubscribed", "SubscriptionExpired"),
)
"""Events by which a command about topics takes effect."""

BRINGS = "a-subscription-brings-each-change-once"
ENDS = "nothing-comes-after-the-end"
HEARD = "who-is-heard-of-in-time-does-not-expire"


def subscribers_in(seed: int) -> bool:
    """Tell whether there are topics in the world of a seed."""
    return seed % SHARE == REST


class Subscribing(Client):
    """Adds topics and removes them, subscribes and unsubscribes, and lets others expire."""

    def __init__(self, world: Cluster, number: int, operations: int) -> None:
        super().__init__(world, number, operations)
        self.doomed = False
        self.reads = 0.0

    def _choose(self) -> Request:
        """A master lets others expire in its own name; nobody repeats that by an id."""
        request = super()._choose()
        if isinstance(request.command, ExpireSubscription):
            return replace(request, id=f"expire {self.number} {self._made}", recorded=False)
        return request

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        chance = self.world.clock.chance
        topic, subscriber = chance.choice(TOPICS), f"s{chance.randrange(3)}"
        dice = chance.random()
        if dice < 0.25:
            return AddTopic(topic, chance.choice(FILTERS)), None
        if dice < 0.32:
            return RemoveTopic(topic, with_subscriptions=chance.random() < 0.7), None
        if dice < 0.8:
            after = Cas(0) if chance.random() < 0.3 else None
            subscribe = Subscribe(
                topic=topic,
                subscriber=subscriber,
                filter_json=chance.choice(FILTERS),
                after=after,
                deliver_to=chance.choice((OUT, "")),
            )
            if not subscribe.deliver_to:
                subscribe = replace(subscribe, expires_after_ms=EXPIRES_MS)
            return subscribe, None
        if dice < 0.9:
            return Unsubscribe(topic, subscriber), None
        held = [s for s in _held(self.world.judge) if s.state == ACTIVE]
        one = chance.choice(held) if held else None
        number = one.number - chance.randrange(2) if one else 1
        return ExpireSubscription(topic, one.id if one else subscriber, number), None


class _Open(NamedTuple):
    """A reading of one subscription at one node, in one incarnation of it."""

    machine: Machine
    incarnation: int
    subscription: Subscription
    selection: Selection
    place: feed.Subscription
    fence: int


class Board:
    """The log of positions and deliveries of a world, and what each subscription was brought."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.brought: dict[int, list[int]] = {}
        self.fences: dict[int, int] = {}
        self.said: list[SubscriptionRecord] = []
        """What subscribers said, and the marks of masters, in order."""

        self.said_ms: dict[int, int] = {}
        """By number: when a subscriber said something last."""

    def fence(self, number: int) -> int:
        """Open: whoever had opened before cannot write any more."""
        self.fences[number] = self.fences.get(number, 0) + 1
        return self.fences[number]

    def write(self, number: int, fence: int, changes: list[Change], position: Cas) -> bool:
        """Write changes and the position after them; False: another one has opened since."""
        if self.fences[number] != fence:
            return False
        self.brought.setdefault(number, []).extend(change.event.cas for change in changes)
        self.positions.take(SubscriptionAcknowledged(number, position, 0), 0)
        return True


class Delivering(Actor):
    """Delivers what one node's state says, as long as it leads; others may think that they do."""

    def __init__(self, world: Cluster, board: Board, machine: Machine) -> None:
        self.world, self.board, self.machine = world, board, machine
        self.chance = random.Random(f"delivering {world.seed} {machine.number}")
        self.open: dict[int, _Open] = {}
        self.busy: set[int] = set()
        """Those of which a portion is being written."""

        self.is_prompt = False
        self.ended: set[int] = set()
        world.clock.at(self.chance.randint(0, 2_000), self.look)

    def look(self) -> None:
        self.world.clock.at(1 + self.chance.randrange(300), self.look)
        self.attend()

    @property
    def _leads(self) -> bool:
        node = self.machine.node
        return node is not None and node.master is not None and node.master.active

    def attend(self) -> None:
        """Deliver a portion of each subscription."""
        machine = self.machine
        if machine.paused and not self.is_prompt:
            return
        if not self._leads:
            self._let_go()
            return
        assert machine.node is not None
        for number in [n for n, one in self.open.items() if one.incarnation != machine.incarnation]:
            self._close(number)
        for topic, subscription in subscriptions(machine.node.state):
            number = subscription.number
            if subscription.deliver_to and number not in self.open and number not in self.ended:
                self._begin(topic, subscription)
        for number, one in [*self.open.items()]:
            if number in self.busy:
                continue
            if one.place.has_lagged and one.place.following is None:
                self._close(number)
                continue
            found = [p.change for p in one.place.take(LIMIT, machine.changes.newest)]
            position = one.place.position
            if found or position > self.board.positions.of(one.subscription):
                self._order(number, one, found, position)

    def _order(self, number: int, one: _Open, found: list[Change], position: Cas) -> None:
        """Have a portion written: the broker takes a while, and another may lead by then."""
        self.busy.add(number)
        if self.is_prompt:
            self._write(number, one, found, position)
        else:
            delay_ms = self.chance.choice((1, 5, 40, 400))
            self.world.clock.at(delay_ms, self._write, number, one, found, position)

    def _begin(self, topic: Topic, subscription: Subscription) -> None:
        node = self.machine.node
        assert node is not None
        number = subscription.number
        fence = self.board.fence(number)
        after = self.board.positions.of(subscription)
        selection = selection_of(topic, subscription)
        place = self.machine.changes.subscribe(after, selection, lambda: None, node.state.cas)
        if place is None:
            missed = above(self.world.judge, after, node.state.cas)
            self._tell(number, fence, selection, missed, node.state.cas)
            return
        incarnation = self.machine.incarnation
        self.open[number] = _Open(self.machine, incarnation, subscription, selection, place, fence)

    def _write(self, number: int, one: _Open, changes: list[Change], position: Cas) -> None:
        if self.open.get(number) is not one:
            return  # The process has died, or reads anew.
        self.busy.discard(number)
        if not self._tell(number, one.fence, one.selection, changes, position):
            self._close(number)

    def _tell(
        self, number: int, fence: int, selection: Selection, changes: list[Change], position: Cas
    ) -> bool:
        found, end = events_for(selection, (c for c in changes if selection.fits(c)))
        if end is not None:
            self.ended.add(number)
        written = self.board.write(number, fence, found, end.event.cas if end else position)
        return written and end is None

    def _close(self, number: int) -> None:
        one = self.open.pop(number)
        one.machine.changes.unsubscribe(one.place)
        self.busy.discard(number)

    def _let_go(self) -> None:
        for number in [*self.open]:
            self._close(number)

    def hurry(self) -> None:
        """Begin anew, and have all written at once. Time has ended: whoever is frozen goes on."""
        self._let_go()
        self.is_prompt = True


class Listening(Actor):
    """Says now and then that it is there, for every subscription that would expire otherwise.

    To which node does not matter: each writes to the same log.
    """

    def __init__(self, world: Cluster, board: Board) -> None:
        self.world, self.board = world, board
        self.chance = random.Random(f"listening {world.seed}")
        world.clock.at(0, self.say)

    def say(self) -> None:
        self.world.clock.at(1 + self.chance.randrange(EXPIRES_MS // 3), self.say)
        for one in _held(self.world.judge):
            if one.expires_after_ms and one.state == ACTIVE:
                self.board.said.append(SubscriberSeen(one.number, 0, 0))
                self.board.said_ms[one.number] = self.world.clock.now


class Expiring(Actor):
    """What the process of one node knows of those who are silent, and whom it would let expire.

    Its reader of the log of positions is slow at times, or reads nothing: a delivery is open there.
    """

    def __init__(self, world: Cluster, board: Board, machine: Machine) -> None:
        self.world, self.board, self.machine = world, board, machine
        self.chance = random.Random(f"expiring {world.seed} {machine.number}")
        self.incarnation, self.epoch, self.read = -1, -1, 0
        self.held_until = 0
        self.positions, self.silence = Positions(), Silence(0)
        world.clock.at(self.chance.randint(0, 200), self.look)

    def look(self) -> None:
        self.world.clock.at(100 + self.chance.randrange(200), self.look)
        machine, now = self.machine, self.world.clock.now
        if machine.paused or machine.node is None:
            return
        if machine.incarnation != self.incarnation:
            self.incarnation, self.read, self.positions = machine.incarnation, 0, Positions()
        self._read(now)
        master = machine.node.master
        epoch = master.epoch if master is not None and master.active else -1
        if epoch != self.epoch:
            self.epoch, self.silence = epoch, Silence(now)
        if epoch >= 0:
            self._expire([one for _, one in subscriptions(machine.node.state)], now)

    def _read(self, now: int) -> None:
        if now >= self.held_until and self.chance.random() < 0.1:
            self.held_until = now + self.chance.choice((300, 1_000, 4_000))
        if now < self.held_until:
            return
        for record in self.board.said[self.read :]:
            self.positions.take(record, now)
        self.read = len(self.board.said)

    def _expire(self, found: list[Subscription], now: int) -> None:
        mark = len(self.board.said) + 1
        self.positions.expect(mark, now)
        self.board.said.append(SubscriberSeen(NOBODY, 0, mark))
        for one in self.silence.overdue(found, self.positions, now):
            said_ms = self.board.said_ms.get(one.number, 0)
            require(
                now - said_ms > EXPIRES_MS,
                HEARD,
                f"node {self.machine.number}: {one.key} said something {now - said_ms} ms ago",
            )


# -- the law -------------------------------------------------------------------------------------


def _held(judge: Judge) -> list[Subscription]:
    return [e for _, _, e in judge.entities.values() if isinstance(e, Subscription)]


def check_subscriptions(judge: Judge, mutation: Mutation, cas: int, before: Any) -> None:
    """An id is taken once; nobody subscribes to a topic that is not there, or loses its topic."""
    entity = mutation.entity
    if mutation.event in ("TopicAdded", "TopicRemoved", "Subscribed"):
        found = judge.effects.setdefault(mutation.request, [])
        require(not found, "a-request-id-executes-once", f"{mutation.request}: {found}")
        found.append((mutation.event, cas))
    if mutation.event == "Subscribed":
        require(
            before is None or before.state != ACTIVE,
            "a-subscriber-id-is-taken-once",
            f"{mutation.key}: {before}",
        )
        assert isinstance(entity, Subscription)
        deliveries = [s.key for s in _held(judge) if s.deliver_to and s.state == ACTIVE]
        require(
            not entity.deliver_to or len(deliveries) < bounds.DELIVERIES_MAX,
            "deliveries-have-a-bound",
            f"{mutation.key} is one more than {deliveries}",
        )
        require(
            topic_key(entity.topic) in judge.entities,
            "a-subscription-has-a-topic",
            f"{mutation.key} in {mutation.request}",
        )
        before_it = judge.commits[-1][1] if judge.commits else 0
        require(
            entity.after in (0, before_it),
            "a-subscription-begins-where-it-was-decided",
            f"{mutation.key} begins above {entity.after}, the state was at {before_it}",
        )
    if mutation.event == "TopicRemoved":
        name = mutation.key.partition("/")[2]
        orphans = [one.key for one in _held(judge) if one.topic == name]
        require(not orphans, "a-subscription-has-a-topic", f"{mutation.key}: {orphans}")


def conclude_subscriptions(world: Cluster, board: Board) -> None:
    """All is quiet: each subscription was brought what it selects, in order, each once."""
    judge = world.judge
    deliverers = [actor for actor in world.actors if isinstance(actor, Delivering)]
    for one in deliverers:
        one.hurry()
    log = [*changes_of_log(judge)]
    topics: dict[str, Topic] = {}
    for number, change in enumerate(log):
        entity = change.event.mutation.entity
        if isinstance(entity, Topic):
            topics[entity.name] = entity
        if change.event.mutation.event != "Subscribed" or not isinstance(entity, Subscription):
            continue
        if not entity.deliver_to:
            continue
        selection = selection_of(topics[entity.topic], entity)
        wanted, ended = _wanted(log, number, entity.after, selection)
        if not ended:
            _come_to_rest(world, deliverers, board, entity)
        brought = board.brought.get(entity.number, [])
        require(
            brought == wanted if not ended else brought == wanted[: len(brought)],
            ENDS if ended and len(brought) > len(wanted) else BRINGS,
            f"{entity.key} ({entity.number}) was brought {brought} of {wanted}",
        )


def _wanted(
    log: list[Change], made_at: int, after: int, selection: Selection
) -> tuple[list[int], bool]:
    """Return which changes a subscription brings, and whether it has ended.

    By the kinds that it names, and not by production's predicates.
    """
    found: list[int] = []
    kinds = [set(p.kinds) for p in (selection.filters.of_topic, selection.filters.own) if p.kinds]
    for number, change in enumerate(log):
        if change.event.cas > after and all(change.kind in one for one in kinds):
            found.append(change.event.cas)
        if number > made_at and change.key == selection.key:
            now = change.event.mutation.entity
            same = isinstance(now, Subscription) and now.number == selection.number
            if not same or getattr(now, "state", "") != ACTIVE:
                return found, True
    return found, False


def _come_to_rest(
    world: Cluster, deliverers: list[Delivering], board: Board, subscription: Subscription
) -> None:
    last = world.judge.last_cas
    for _ in range(TRIES):
        if board.positions.of(subscription) >= last:
            return
        for one in deliverers:
            one.attend()
    require(
        False,
        "a-delivery-comes-to-the-end",
        f"{subscription.key} is at {board.positions.of(subscription)} of {last}",
    )

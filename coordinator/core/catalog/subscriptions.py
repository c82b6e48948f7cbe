"""Decisions about topics, and about who subscribes to them.

Pure, like `ddl`, of which this is a part. How far a subscriber has come is no part of the state: it
would be told of its own acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    Unchanged,
    accepted,
    clash,
)
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.model import json_text
from coordinator.core.model.commands import (
    AddTopic,
    Command,
    ExpireSubscription,
    Outcome,
    RemoveTopic,
    Request,
    Subscribe,
    Unsubscribe,
    refused,
)
from coordinator.core.model.entities import (
    ACTIVE,
    EXPIRED,
    Subscription,
    Topic,
    subscription_key,
    topic_key,
)
from coordinator.core.model.names import KAFKA_TOPIC, NAME_RULE, is_name

TOPICS_MAX = 1_000
SUBSCRIPTIONS_MAX = 200
"""So many subscriptions a topic has: it can be removed together with all of them."""

SUBSCRIPTIONS_TOTAL_MAX = 2_000
DELIVERIES_MAX = 32
"""So many subscriptions have their changes delivered to Kafka: the master has a producer each."""

FILTER_BYTES_MAX = 8 * 1024
EXPIRES_AFTER_MS = range(1_000, 366 * 24 * 3_600_000)


def footprint_of(state: StateContext, command: Command) -> set[str]:
    """Return the keys on which a decision about topics rests, or which it would change."""
    match command:
        case AddTopic():
            return {topic_key(command.name), TOPICS}
        case RemoveTopic():
            held = subscriptions_of(state, command.name)
            return {topic_key(command.name), TOPICS, *(one.entity.key for one in held)}
        case Subscribe() | Unsubscribe() | ExpireSubscription():
            keys = {topic_key(command.topic), subscription_key(command.topic, command.subscriber)}
            # There may be less of them than a decision counts, and never more.
            return keys | {SUBSCRIPTIONS} if isinstance(command, Subscribe) else keys
        case _:
            return set()


TOPICS = "topic/"
"""Stands for how many topics there are."""

SUBSCRIPTIONS = "subscription/"
"""Stands for how many subscriptions there are in all, and how many of them are deliveries."""


def subscriptions_of(state: StateContext, topic: str) -> list[Versioned]:
    """Return the subscriptions to a topic, ordered by their ids."""
    found = [v for v in state.of_kind("subscription") if _subscription(v).topic == topic]
    return sorted(found, key=lambda held: _subscription(held).id)


def describe_topic(topic: Topic) -> dict[str, Any]:
    """Return a topic as clients see it."""
    return {
        "name": topic.name,
        "filter": json_text.parse(topic.filter_json),
        "created_ms": topic.created_ms,
    }


def describe_subscription(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as clients see it."""
    return {
        "topic": subscription.topic,
        "id": subscription.id,
        "number": str(subscription.number),
        "filter": json_text.parse(subscription.filter_json),
        "after": subscription.after,
        "deliver_to": subscription.deliver_to or None,
        "expires_after_ms": subscription.expires_after_ms or None,
        "state": subscription.state,
        "created_ms": subscription.created_ms,
    }


# -- topics --------------------------------------------------------------------------------------


def _add_topic(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, AddTopic)
    if not is_name(command.name):
        return _invalid(f"topic name {command.name[:40]!r}: {NAME_RULE}")
    if problem := _invalid_filter(command.filter_json):
        return _invalid(problem)
    held = state.get(topic_key(command.name))
    if held is not None:
        text = f"topic {command.name} exists"
        return Unchanged(refused("topic_exists", text, cas=held.cas))
    if other := clash(request, None):
        return Unchanged(other)
    if sum(1 for _ in state.of_kind("topic")) >= TOPICS_MAX:
        return Unchanged(refused("too_many_topics", f"there are {TOPICS_MAX} topics already"))
    topic = Topic(command.name, command.filter_json, given.wall_ms)
    change = Change("TopicAdded", topic.key, topic)
    return accepted(request, (change,), {"topic": describe_topic(topic)})


def _remove_topic(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, RemoveTopic)
    held = state.get(topic_key(command.name))
    if held is None or not isinstance(held.entity, Topic):
        return _no_topic(command.name)
    if other := clash(request, held):
        return Unchanged(other)
    subscriptions = subscriptions_of(state, command.name)
    if subscriptions and not command.with_subscriptions:
        count = len(subscriptions)
        text = f"topic {command.name} has {count} subscription{'' if count == 1 else 's'}"
        return Unchanged(refused("topic_in_use", text, subscriptions=len(subscriptions)))
    changes = (
        *(Change("Unsubscribed", one.entity.key, None) for one in subscriptions),
        Change("TopicRemoved", held.entity.key, None),
    )
    answer = {"topic": describe_topic(held.entity)}
    return replace(accepted(request, changes, answer), subject=len(changes) - 1)


# -- subscriptions -------------------------------------------------------------------------------


def _subscribe(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, Subscribe)
    if problem := _invalid_subscription(state, command):
        return _invalid(problem)
    if state.get(topic_key(command.topic)) is None:
        return _no_topic(command.topic)
    held = state.get(subscription_key(command.topic, command.subscriber))
    if held is not None and _subscription(held).state == ACTIVE:
        text = f"{command.topic} has a subscriber {command.subscriber}"
        return Unchanged(refused("subscriber_exists", text, cas=held.cas))
    if other := clash(request, held):
        return Unchanged(other)
    if full := _full(state, command, is_new=held is None):
        return Unchanged(refused("too_many_subscriptions", full))
    subscription = Subscription(
        topic=command.topic,
        id=command.subscriber,
        number=given.fresh_id,
        filter_json=command.filter_json,
        after=state.cas if command.after is None else command.after,
        deliver_to=command.deliver_to,
        expires_after_ms=command.expires_after_ms,
        state=ACTIVE,
        created_ms=given.wall_ms,
    )
    change = Change("Subscribed", subscription.key, subscription)
    return accepted(request, (change,), {"subscription": describe_subscription(subscription)})


def _unsubscribe(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, Unsubscribe)
    held = state.get(subscription_key(command.topic, command.subscriber))
    if held is None:
        text = f"{command.topic[:128]} has no subscriber {command.subscriber[:128]}"
        return Unchanged(refused("subscription_not_found", text))
    if other := clash(request, held):
        return Unchanged(other)
    subscription = _subscription(held)
    change = Change("Unsubscribed", subscription.key, None)
    return accepted(request, (change,), {"subscription": describe_subscription(subscription)})


def _expire(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, ExpireSubscription)
    held = state.get(subscription_key(command.topic, command.subscriber))
    if held is None:
        return Unchanged(Outcome("ok"))
    subscription = _subscription(held)
    if subscription.number != command.number or subscription.state != ACTIVE:
        return Unchanged(Outcome("ok"))
    expired = replace(subscription, state=EXPIRED)
    return Accepted((Change("SubscriptionExpired", expired.key, expired),), {})


def _full(state: StateContext, command: Subscribe, *, is_new: bool) -> str:
    """Say which bound one more subscription would exceed, or return an empty text."""
    there = [_subscription(held) for held in state.of_kind("subscription")]
    if is_new and len(there) >= SUBSCRIPTIONS_TOTAL_MAX:
        return f"there are {SUBSCRIPTIONS_TOTAL_MAX} subscriptions already"
    if is_new and sum(1 for one in there if one.topic == command.topic) >= SUBSCRIPTIONS_MAX:
        return f"{command.topic} has {SUBSCRIPTIONS_MAX} subscriptions already"
    deliveries = sum(1 for one in there if one.deliver_to and one.state == ACTIVE)
    if command.deliver_to and deliveries >= DELIVERIES_MAX:
        return f"{DELIVERIES_MAX} subscriptions are delivered to Kafka already"
    return ""


def _subscription(held: Versioned) -> Subscription:
    assert isinstance(held.entity, Subscription)
    return held.entity


def _invalid_subscription(state: StateContext, command: Subscribe) -> str:
    """Say what is wrong with what is asked for, or return an empty text."""
    if not is_name(command.subscriber):
        return f"subscriber {command.subscriber[:40]!r}: {NAME_RULE}"
    if command.deliver_to and not KAFKA_TOPIC.fullmatch(command.deliver_to):
        return f"{command.deliver_to[:40]!r} is no Kafka topic that can be written to"
    if command.deliver_to and command.expires_after_ms:
        return "who has changes delivered to Kafka cannot be silent: leave out expires_after_ms"
    if command.expires_after_ms and command.expires_after_ms not in EXPIRES_AFTER_MS:
        return f"expires_after_ms: {EXPIRES_AFTER_MS[0]} to {EXPIRES_AFTER_MS[-1]}"
    if command.after is not None and command.after > state.cas:
        return f"after: CAS {command.after} is not there yet, the newest is {state.cas}"
    return _invalid_filter(command.filter_json)


def _invalid_filter(filter_json: str) -> str:
    if len(filter_json) > FILTER_BYTES_MAX:
        return f"filters have at most {FILTER_BYTES_MAX} characters of JSON"
    return ""


def _invalid(problem: str) -> Decision:
    return Unchanged(refused("invalid_request", problem))


def _no_topic(name: str) -> Decision:
    return Unchanged(refused("topic_not_found", f"there is no topic {name[:128]!r}"))


SUBSCRIPTION_DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    AddTopic: _add_topic,
    RemoveTopic: _remove_topic,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    ExpireSubscription: _expire,
}

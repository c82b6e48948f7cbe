"""Topics, and subscriptions to them: who receives which changes, and the position of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.catalog.subscriptions import (
    describe_subscription,
    describe_topic,
    subscriptions_of,
)
from coordinator.core.history.lines import Published
from coordinator.core.history.predicates import Begin, PredicateError, Selector, begin_of
from coordinator.core.history.subscribing import Selection, selection_of
from coordinator.core.model import commands
from coordinator.core.model.entities import (
    ACTIVE,
    Subscription,
    Topic,
    subscription_key,
    topic_key,
)
from coordinator.core.model.types import Cas
from coordinator.http import topic_models as models
from coordinator.http.errors import ApiError
from coordinator.http.execution import (
    IdempotencyKey,
    IfMatch,
    Principal,
    answer,
    execute,
)
from coordinator.http.frames import frame
from coordinator.http.shared import Consistency, read_answer, read_aside
from coordinator.http.watch import EVENTS, PAGE, Described, EventStream, Watched, framed
from coordinator.kafka.subscription_log import NotWrittenError
from coordinator.node.history import Page
from coordinator.node.shell import Shell
from coordinator.node.subscriptions import lags_of

PRESENCE_MIN_S = 0.5
PRESENCES = 3
"""A subscriber that listens is noted so many times while it would expire."""

ACKNOWLEDGED = "acknowledged"

Settle = Callable[[Consistency, int], Awaitable[None]]


def add_topics(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the routes; `settle` waits until this node may answer a read."""
    _add_topics(app, shell, settle)
    _add_subscriptions(app, shell, settle)
    _add_subscribers(app, shell, settle)


def _add_topics(app: FastAPI, shell: Shell, settle: Settle) -> None:
    @app.post("/v1/topics", status_code=201, response_model=models.TopicAnswer)
    async def add_topic(
        body: models.TopicBody,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Add a topic: a named selection of changes that can be subscribed to."""
        command = commands.AddTopic(body.name, body.filter.text())
        outcome = await execute(
            shell, command, key=idempotency_key, if_match=None, principal=x_principal
        )
        return answer(outcome, 201)

    @app.get("/v1/topics", response_model=models.TopicsAnswer)
    async def list_topics(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """List the topics, each with how many subscriptions it has."""
        await settle(consistency, at_least)
        state = shell.node.state
        return await read_aside(shell, lambda: {"topics": _topics(state), "cas": state.cas})

    @app.get("/v1/topics/{topic}", response_model=models.TopicAnswer)
    async def get_topic(
        topic: str, consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show one topic."""
        await settle(consistency, at_least)
        held, found = _topic(shell.node.state, topic)
        return read_answer(shell, {"topic": describe_topic(found), "cas": held.cas, "txn": ""})

    @app.delete("/v1/topics/{topic}", response_model=models.TopicAnswer)
    async def remove_topic(
        topic: str,
        with_subscriptions: bool = False,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Remove a topic that has no subscriptions, or with all of them."""
        command = commands.RemoveTopic(topic, with_subscriptions)
        outcome = await execute(
            shell, command, key=idempotency_key, if_match=if_match, principal=x_principal
        )
        return answer(outcome)


def _add_subscriptions(app: FastAPI, shell: Shell, settle: Settle) -> None:
    @app.post(
        "/v1/topics/{topic}/subscriptions",
        status_code=201,
        response_model=models.SubscribedAnswer,
    )
    async def subscribe(
        topic: str,
        body: models.SubscriptionBody,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Subscribe to a topic, under an id that no other subscriber of it has.

        `after`: the changes above this CAS; left out, those from now on. `deliver_to`: the Kafka
        topic to which the changes are written, each exactly once; left out, the subscriber reads
        them from a node. `expires_after_ms`: the subscription expires if the subscriber neither
        listens nor acknowledges anything for so long.
        """
        if body.deliver_to and not shell.subscriptions.may_deliver_to(body.deliver_to):
            text = f"deliver_to: {body.deliver_to} is a topic of the cluster itself, or of Kafka"
            raise ApiError("invalid_request", text)
        outcome = await execute(
            shell, body.command(topic), key=idempotency_key, if_match=None, principal=x_principal
        )
        return answer(outcome, 201)

    @app.get("/v1/topics/{topic}/subscriptions", response_model=models.SubscriptionsAnswer)
    async def list_subscriptions(
        topic: str, consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """List the subscriptions of a topic, each with its position and lag."""
        await settle(consistency, at_least)
        state = shell.node.state
        _topic(state, topic)
        rows = _rows(shell, state)
        return await read_aside(
            shell,
            lambda: {
                "subscriptions": rows(subscriptions_of(state, topic)),
                "cas": state.cas,
            },
        )

    @app.get(
        "/v1/topics/{topic}/subscriptions/{subscriber}", response_model=models.SubscriptionAnswer
    )
    async def get_subscription(
        topic: str,
        subscriber: str,
        consistency: Consistency = None,
        at_least: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Show one subscription, with its position and lag."""
        await settle(consistency, at_least)
        state = shell.node.state
        held, _ = _subscription(state, topic, subscriber)
        rows = _rows(shell, state)
        return await read_aside(shell, lambda: {"subscription": rows([held])[0], "cas": held.cas})

    @app.delete(
        "/v1/topics/{topic}/subscriptions/{subscriber}", response_model=models.SubscribedAnswer
    )
    async def unsubscribe(
        topic: str,
        subscriber: str,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """End a subscription: no change above the CAS of this answer is delivered."""
        command = commands.Unsubscribe(topic, subscriber)
        outcome = await execute(
            shell, command, key=idempotency_key, if_match=if_match, principal=x_principal
        )
        return answer(outcome)


def _add_subscribers(app: FastAPI, shell: Shell, settle: Settle) -> None:
    turn = asyncio.Lock()

    @app.post(
        "/v1/topics/{topic}/subscriptions/{subscriber}/ack",
        response_model=models.AcknowledgedAnswer,
    )
    async def acknowledge(topic: str, subscriber: str, body: models.AckBody) -> Response:
        """Acknowledge all changes up to a CAS, at any node. A lower CAS changes nothing."""
        await settle("local", body.cas)
        _, subscription = _listening(shell.node.state, topic, subscriber)
        try:
            reached = await shell.subscriptions.book.acknowledge(subscription, body.cas)
        except NotWrittenError as error:
            raise ApiError("unavailable", f"the position was not written: {error}") from None
        return read_answer(shell, {"acknowledged": reached})

    @app.get(
        "/v1/topics/{topic}/subscriptions/{subscriber}/watch",
        response_class=Described,
        responses={200: EVENTS},
    )
    async def receive(
        topic: str,
        subscriber: str,
        after: Annotated[str, Query(max_length=32)] = ACKNOWLEDGED,
    ) -> Response:
        """Watch the changes of a subscription, as server-sent events, in order of CAS.

        `after`: `acknowledged` (the position), or a CAS. The events are those of `/v1/watch`. If
        the subscription ends, the last one is `unsubscribed` or `expired`, with the CAS above which
        nothing is delivered.
        """
        begin = _begin(after)
        if begin is not None:
            await settle("local", begin)
        state = shell.node.state
        held_topic, subscription = _listening(state, topic, subscriber)
        if not shell.node.is_following:
            raise ApiError("not_ready", f"this node has not caught up: {shell.node.why_not_ready}")
        try:
            position = await shell.subscriptions.book.settle(subscription)
        except NotWrittenError as error:
            raise ApiError("unavailable", f"the position is not known: {error}") from None
        selection = selection_of(held_topic, subscription)
        watched = Watched(
            position if begin is None else Cas(max(begin, subscription.after)),
            selection,
            frozenset(),
            frozenset(),
        )
        return SubscriptionStream(shell, watched, turn, subscription, selection)


def _begin(text: str) -> Cas | None:
    """Return the CAS in a text, None for `acknowledged`. Raises ApiError."""
    if text == ACKNOWLEDGED:
        return None
    try:
        begin: Begin = begin_of(text)
    except PredicateError:
        begin = "now"
    if isinstance(begin, str):
        raise ApiError("invalid_request", f"after: {text[:40]!r} is no CAS, and not 'acknowledged'")
    return begin


# -- what there is -------------------------------------------------------------------------------


def _topic(state: StateContext, name: str) -> tuple[Versioned, Topic]:
    held = state.get(topic_key(name))
    if held is None or not isinstance(held.entity, Topic):
        raise ApiError("topic_not_found", f"there is no topic {name[:128]!r}")
    return held, held.entity


def _subscription(
    state: StateContext, topic: str, subscriber: str
) -> tuple[Versioned, Subscription]:
    _topic(state, topic)
    held = state.get(subscription_key(topic, subscriber))
    if held is None or not isinstance(held.entity, Subscription):
        text = f"{topic[:128]} has no subscriber {subscriber[:128]}"
        raise ApiError("subscription_not_found", text)
    return held, held.entity


def _listening(state: StateContext, topic: str, subscriber: str) -> tuple[Topic, Subscription]:
    """Return a subscription whose subscriber reads its changes from nodes. Raises ApiError."""
    _, found = _topic(state, topic)
    held, subscription = _subscription(state, topic, subscriber)
    if subscription.state != ACTIVE:
        text = f"subscriber {subscriber} of {topic} was silent for too long: subscribe again"
        raise ApiError("subscription_expired", text, {"cas": held.cas})
    if subscription.deliver_to:
        text = f"the changes of {subscriber} are delivered to the topic {subscription.deliver_to}"
        raise ApiError("delivered_elsewhere", text, {"deliver_to": subscription.deliver_to})
    return found, subscription


def _topics(state: StateContext) -> list[dict[str, Any]]:
    counts: dict[str, int] = {}
    for held in state.of_kind("subscription"):
        if isinstance(held.entity, Subscription):
            counts[held.entity.topic] = counts.get(held.entity.topic, 0) + 1
    return [
        {
            **describe_topic(held.entity),
            "subscriptions": counts.get(held.entity.name, 0),
            "cas": held.cas,
        }
        for held in sorted(state.of_kind("topic"), key=lambda held: held.entity.key)
        if isinstance(held.entity, Topic)
    ]


def _rows(
    shell: Shell, state: StateContext
) -> Callable[[Sequence[Versioned]], list[dict[str, Any]]]:
    """Return what shows subscriptions with how far each is; it may be called in another thread."""
    positions = shell.subscriptions.book.positions
    problems = dict(shell.subscriptions.deliveries.problems)
    kept = shell.changes.kept()

    def rows(there: Sequence[Versioned]) -> list[dict[str, Any]]:
        found = [(held, held.entity) for held in there if isinstance(held.entity, Subscription)]
        at = {one.number: positions.of(one) for _, one in found}
        places = [
            (selection_of(_topic(state, one.topic)[1], one), at[one.number]) for _, one in found
        ]
        lags = lags_of(places, state.cas, kept)
        return [
            {
                **describe_subscription(one),
                "cas": held.cas,
                "acknowledged": at[one.number],
                "acknowledged_ms": positions.acknowledged_ms(one),
                "lag": lags[one.number]._asdict(),
                "problem": problems.get(one.number),
            }
            for held, one in found
        ]

    return rows


# -- the stream ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Presence:
    """Notes that a subscriber is there, for as long as it listens."""

    shell: Shell
    subscription: Subscription

    async def keep(self) -> None:
        """Note it now and then, until this is cancelled."""
        expires_s = self.subscription.expires_after_ms / 1000
        while expires_s:
            await asyncio.sleep(max(PRESENCE_MIN_S, expires_s / PRESENCES))
            with suppress(NotWrittenError):
                await self.shell.subscriptions.book.note_presence(self.subscription)


class SubscriptionStream(EventStream):
    """The changes of one subscription, to its end."""

    def __init__(
        self,
        shell: Shell,
        watched: Watched,
        turn: asyncio.Lock,
        subscription: Subscription,
        selection: Selection,
    ) -> None:
        super().__init__(shell, watched, turn)
        self._presence = _Presence(shell, subscription)
        self._selection = selection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keeping = asyncio.create_task(self._presence.keep())
        try:
            await super().__call__(scope, receive, send)
        finally:
            keeping.cancel()

    def _read_past(self, after: Cas, predicate: Selector, newest: StateContext) -> Page:
        """Return the next page, from the archive too: the subscription lasts, however far behind
        its subscriber is."""
        return self._shell.history.page(after, None, predicate, PAGE, newest)

    def _alike(self, found: Sequence[Published]) -> bytes:
        """Nobody else takes the same."""
        return b""

    def _shown(self, found: Iterable[Published]) -> bytes:
        """Return the events of the changes that the subscriber wants, and of the end."""
        shown = b""
        for published in found:
            change = published.change
            if self._selection.wants(change):
                shown += framed(published)
            if self._selection.ends(change):
                self._has_ended = True
                name = "unsubscribed" if change.event.mutation.value is None else "expired"
                return shown + frame(name, {"cas": published.cas}, published.cas)
        return shown

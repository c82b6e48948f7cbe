"""Bugs in topics and subscriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog import subscriptions as decisions
from coordinator.core.catalog.decisions import Accepted
from coordinator.core.catalog.state import without
from coordinator.core.history.changes import Change
from coordinator.core.history.subscribing import Positions, Selection, Silence
from coordinator.core.model.commands import RemoveTopic, Subscribe
from coordinator.core.model.entities import Subscription, subscription_key, topic_key

Patch = pytest.MonkeyPatch


def the_end_of_a_subscription_is_not_seen(patch: Patch) -> None:
    patch.setattr(Selection, "ends", lambda self, change: False)


def an_end_that_no_filter_fits_is_not_handed_over(patch: Patch) -> None:
    def only_wanted(self: Selection, change: Change) -> bool:
        return self.wants(change)

    patch.setattr(Selection, "fits", only_wanted)


def an_expired_subscription_goes_on(patch: Patch) -> None:
    ends = Selection.ends

    def only_removed(self: Selection, change: Change) -> bool:
        return ends(self, change) and change.event.mutation.value is None

    patch.setattr(Selection, "ends", only_removed)


def a_topic_and_its_subscriptions_are_decided_apart(patch: Patch) -> None:
    """A subscription is let in in the same group in which its topic goes."""
    footprint = ddl.footprint

    def narrow(state: Any, command: Any, request_id: str = "") -> frozenset[str]:
        found = footprint(state, command, request_id)
        if isinstance(command, Subscribe | RemoveTopic):
            name = command.topic if isinstance(command, Subscribe) else command.name
            return found - {topic_key(name)}
        return found

    patch.setattr(ddl, "footprint", narrow)


def deliveries_are_counted_for_each_topic_alone(patch: Patch) -> None:
    """With a bound that the topics of a world can reach."""
    footprint = ddl.footprint

    def narrow(state: Any, command: Any, request_id: str = "") -> frozenset[str]:
        return footprint(state, command, request_id) - {decisions.SUBSCRIPTIONS}

    patch.setattr(decisions, "DELIVERIES_MAX", 2)
    patch.setattr(ddl, "footprint", narrow)


def silence_is_counted_although_the_log_is_not_read(patch: Patch) -> None:
    overdue = Silence.overdue

    def by_the_clock(self: Silence, found: Any, positions: Positions, now_ms: int) -> Any:
        positions.read_up_to_ms = now_ms
        return overdue(self, found, positions, now_ms)

    patch.setattr(Silence, "overdue", by_the_clock)


def a_sign_of_life_is_not_heard(patch: Patch) -> None:
    patch.setattr(Positions, "heard_ms", {})


def a_subscription_has_the_number_of_the_one_before_it(patch: Patch) -> None:
    """What was acknowledged of one counts for the next under its id."""
    _change_subscriptions(patch, lambda made: replace(made, number=len(made.key)))


def a_subscription_begins_too_late(patch: Patch) -> None:
    _change_subscriptions(patch, lambda made: replace(made, after=made.after + 3))


def _change_subscriptions(patch: Patch, other: Any) -> None:
    decide = decisions.SUBSCRIPTION_DECIDERS[Subscribe]

    def deciding(*given: Any) -> Any:
        decision = decide(*given)
        if not isinstance(decision, Accepted):
            return decision
        (change,) = decision.changes
        assert isinstance(change.entity, Subscription)
        return replace(decision, changes=(replace(change, entity=other(change.entity)),))

    patch.setitem(ddl.DECIDERS, Subscribe, deciding)


def an_id_is_taken_twice(patch: Patch) -> None:
    decide = decisions.SUBSCRIPTION_DECIDERS[Subscribe]

    def forgetting(state: Any, request: Any, given: Any) -> Any:
        command = request.command
        key = subscription_key(command.topic, command.subscriber)
        return decide(without(state, [key]), request, given)

    patch.setitem(ddl.DECIDERS, Subscribe, forgetting)

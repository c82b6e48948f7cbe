"""What is known of subscribers: how far they have come, and that they are there.

Pure, frozen data on the compacted topic `subscription-positions`, outside of the StateContext.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model.types import Cas


@dataclass(frozen=True, slots=True)
class SubscriptionAcknowledged:
    """The subscriber has, or was delivered, all changes up to this CAS."""

    number: int
    cas: Cas
    at_ms: int

    @property
    def key(self) -> str:
        return str(self.number)


NOBODY = 0
"""The number of a mark that says nothing of a subscriber: no subscription has it."""


@dataclass(frozen=True, slots=True)
class SubscriberSeen:
    """The subscriber was there. Whoever reads `mark` back has read all that was before it."""

    number: int
    at_ms: int
    mark: int

    @property
    def key(self) -> str:
        return f"{self.number}/seen"


@dataclass(frozen=True, slots=True)
class SubscriptionForgotten:
    """Nothing is known of the subscription any more: its keys have no value."""

    number: int


SubscriptionRecord = SubscriptionAcknowledged | SubscriberSeen
"""What is written with a value."""

PositionRead = SubscriptionRecord | SubscriptionForgotten

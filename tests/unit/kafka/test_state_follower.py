"""A process beside the nodes does not fall silent with its producer, while it goes on reading."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.model.records import HoldingsRequested
from coordinator.kafka import state_follower
from coordinator.kafka.producers import DeadLetters
from coordinator.kafka.state_follower import RENEW_S, Link


class Silent:
    """A consumer that has nothing."""

    def poll(self, timeout_s: float) -> None:
        """No record comes."""

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={"c.statecontext": None}, cluster_id="k")


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(state_follower, "consumer", lambda *_, **__: Silent())
    stopping: Any = SimpleNamespace(is_set=lambda: False)
    link = Link("127.0.0.1:1", "c", "a test", (), DeadLetters("c"))
    assert link.connect(stopping) == "k"
    return link


def test_a_producer_of_which_nothing_arrives_is_made_anew(link: Link, now_s: list[float]) -> None:
    """Nobody answers at its address."""
    first = link._producer
    link.beat(HoldingsRequested(1, 1, 1, 1, False))
    now_s[0] += RENEW_S - 0.1
    link.beat(HoldingsRequested(1, 1, 1, 1, False))
    link.read(0)
    assert link._producer is first
    now_s[0] += 0.2
    link.read(0)
    second = link._producer
    assert second is not first
    now_s[0] += RENEW_S - 0.1
    link.beat(HoldingsRequested(1, 1, 1, 1, False))
    link.read(0)
    assert link._producer is second, "it is given as long"


def test_a_producer_that_has_nothing_to_send_stays(link: Link, now_s: list[float]) -> None:
    first = link._producer
    now_s[0] += 10 * RENEW_S
    link.read(0)
    assert link._producer is first

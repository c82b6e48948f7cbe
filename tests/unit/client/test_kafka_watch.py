"""A watch over Kafka whose log seems to be another one for a moment."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.client import kafka_watch
from coordinator.client.errors import CoordinatorError
from coordinator.client.kafka_watch import REPLACED_S, _Watch, asked
from coordinator.core.catalog import state as states
from coordinator.kafka.history_tail import LogReplaced


class Tail:
    """A connection on which there is nothing new."""

    position = 0

    def state_now(self) -> states.StateContext:
        return states.EMPTY

    def begin(self, _: int) -> int:
        return 0

    def follow(self, *_: Any) -> Any:
        yield SimpleNamespace(transactions=[], at_end=True)


def test_a_log_that_was_itself_again_may_seem_another_one_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(kafka_watch.time, "monotonic", lambda: now_s[0])
    watch = _Watch("", "c", *asked("now", {}), threading.Event())
    watch._replaced(LogReplaced("another"))
    tail: Any = Tail()
    list(watch._events(tail))
    now_s[0] += 10 * REPLACED_S
    watch._replaced(LogReplaced("another"))
    now_s[0] += REPLACED_S + 1
    with pytest.raises(CoordinatorError) as refused:
        watch._replaced(LogReplaced("another"))
    assert refused.value.code == "log_replaced"

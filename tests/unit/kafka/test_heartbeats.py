"""Who is alive, by what the nodes say while somebody listens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import codec
from coordinator.kafka import heartbeats
from coordinator.kafka.heartbeats import live_nodes
from tests.support.lone_node import other_beat


class Heard:
    """A log in which these nodes speak."""

    def __init__(self, nodes: list[int]) -> None:
        self._values = [codec.encode(other_beat(node)) for node in nodes]

    def bounds(self) -> tuple[int, int]:
        return 0, 7

    def read(self, offset: int) -> Iterator[Any]:
        assert offset == 7, "what was said before says nothing"
        records = [SimpleNamespace(value=lambda v=value: v) for value in self._values]
        yield SimpleNamespace(records=records)

    def close(self) -> None:
        pass


def test_a_node_that_was_heard_once_may_have_been_killed_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "LogReader", lambda *_: Heard([2, 1, 2]))
    assert [beat.node for beat in live_nodes("", "c", 0.0)] == [2]

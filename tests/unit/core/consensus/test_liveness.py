"""A node looks after its own reading: a reader that stands still ends the node, in time."""

from __future__ import annotations

import pytest

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.liveness import START_PATIENCE
from tests.support.lone_node import LoneNode

NOTICED_MS = 5_000
"""Until a node suspects its reader, and between two looks."""


def lose_reader(lone: LoneNode) -> None:
    """From now on the log goes on for everyone else."""

    def look(effect: fx.Examine) -> None:
        end = len(lone.log) + 100
        lone.feed(inp.Examined(effect.token, end, end - 1, "cut off"))

    lone.replaced |= {fx.Append: lambda _: None, fx.Examine: look}


def halted_after_ms(lone: LoneNode) -> int:
    began_ms = lone.mono_ms
    lone.until(lambda: lone.halted is not None, ms=120_000)
    return lone.mono_ms - began_ms


def test_a_reader_that_never_begins_is_given_longer() -> None:
    """On a busy machine it takes its time."""
    lone = LoneNode()
    lose_reader(lone)
    lone.feed(inp.Started(None, 0, 0))
    stall_ms = lone.node.config.stall_ms
    after_ms = halted_after_ms(lone)
    assert START_PATIENCE * stall_ms < after_ms < START_PATIENCE * stall_ms + NOTICED_MS


@pytest.mark.parametrize("read_first_after_ms", [0, 50, 3_000])
def test_a_reader_that_stops_is_found_out(read_first_after_ms: int) -> None:
    """Also one that stops right after the first record, in the node's first millisecond."""
    lone = LoneNode()
    lone.feed(inp.Started(None, 0, 0))
    lone.run(read_first_after_ms)
    lose_reader(lone)
    stall_ms = lone.node.config.stall_ms
    after_ms = halted_after_ms(lone)
    assert stall_ms < after_ms < stall_ms + NOTICED_MS

"""The time that limits and periods are measured by: a sum of what ticks say has passed. Pure.

It never goes back, and goes on with every tick, whatever the wall clock of a writer does. A tick
says how long its writer has run, by a clock that does not step, and what the wall clock shows.

- Of one writer the time between two ticks passes. Longer than UNWATCHED_MS, nobody was there to
  read what was sent meanwhile: it passes, and is *unwatched*. Limits do not count that.
- Where the wall clock is ahead, time follows it at once. That is unwatched as well; and if the
  writer was there all the while, the clock has *stepped*, and none of it has passed.
- Where the wall clock is behind, time goes on, slower by an eighth, until the two agree.
- Between two writers at most SWITCH_MS pass, for their clocks may differ; the rest is unwatched.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.core.model.stream_records import NOT_SAID, Tick

UNWATCHED_MS = 3_000
"""Where ticks are further apart, there was no application."""

STEP_MS = 100
"""The wall clock is not followed for less: each time that it is, all states change."""

SWITCH_MS = 250
SLOWER = 8

TICK_MS_MAX = 253_370_764_799_999
"""The end of the year 9998: time goes on after a tick, and the archive has none after 9999."""


class Clock(NamedTuple):
    """The time now in milliseconds, 0 before the first tick; who wrote the last tick, and how long
    that had run by then, or what its wall clock showed if it did not say."""

    now_ms: int = 0
    writer: int = 0
    said_ms: int = 0


class Passed(NamedTuple):
    """The clock after a tick; how much of what has passed was unwatched, and how much of that has
    not really passed."""

    clock: Clock
    unwatched_ms: int = 0
    stepped_ms: int = 0


def fault(tick: Tick) -> str:
    """Say why a tick tells no time, or return an empty text."""
    if not 0 < tick.at_ms <= TICK_MS_MAX:
        return f"at_ms {tick.at_ms} is no time"
    if not NOT_SAID <= tick.elapsed_ms <= TICK_MS_MAX:
        return f"elapsed_ms {tick.elapsed_ms} is no time"
    return ""


def after(clock: Clock, tick: Tick) -> Passed:
    """Return the clock after a tick that has no fault."""
    is_steady = tick.elapsed_ms != NOT_SAID
    said_ms = tick.elapsed_ms if is_steady else tick.at_ms
    if not clock.now_ms:
        return Passed(Clock(tick.at_ms, tick.writer, said_ms))
    same = tick.writer == clock.writer
    if same:
        gone_ms = max(0, said_ms - clock.said_ms)
    else:
        gone_ms = min(max(0, tick.at_ms - clock.now_ms), SWITCH_MS)
    ahead_ms = max(0, clock.now_ms + gone_ms - tick.at_ms)
    gone_ms -= min(ahead_ms, gone_ms // SLOWER)
    now_ms = clock.now_ms + gone_ms
    late_ms = tick.at_ms - now_ms
    if late_ms <= STEP_MS and (same or late_ms <= 0):
        late_ms = 0
    unwatched_ms = late_ms + (gone_ms if gone_ms > UNWATCHED_MS else 0)
    stepped_ms = late_ms if same and is_steady else 0
    return Passed(Clock(now_ms + late_ms, tick.writer, said_ms), unwatched_ms, stepped_ms)

"""Moments, as people write and read them: a time, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from coordinator.cli.output import CommandError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
WHEN = (
    "a CAS; a time such as 2026-11-24T10:30, local unless it says Z or +01:00; or an age: 10m, 2h"
)


def moment(at_ms: int) -> str:
    """Return a time in ms since 1970 as local date and time."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def ms_of(text: str, what: str) -> int:
    """Return a time, or how long ago it was, in ms since 1970. CommandError `usage`."""
    number, unit = text[:-1], UNITS.get(text[-1:])
    if unit is not None and number.isdecimal():
        try:
            moment = datetime.now(UTC) - timedelta(**{unit: int(number)})
        except OverflowError:
            moment = datetime.fromtimestamp(0, UTC)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise CommandError("usage", f"{what}: {text!r} is no moment. Give {WHEN}") from None
    return max(0, int(moment.timestamp() * 1000))

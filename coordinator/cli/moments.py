"""Moments, as people write and read them: a time, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from coordinator.cli.output import CommandError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
DIGITS_MAX = 1_000
TIME = "a time such as 2026-11-24T10:30, local unless it says Z or +01:00; or an age: 10m, 2h"
WHEN = f"a CAS; {TIME}"


def moment(at_ms: int) -> str:
    """Return a time in ms since 1970 as local date and time; one that no calendar has, in ms."""
    return _written(at_ms, None, "%Y-%m-%d %H:%M:%S")


def moment_utc(at_ms: int) -> str:
    """Return the same in UTC, which it says: for what is read on another machine."""
    return _written(at_ms, UTC, "%Y-%m-%d %H:%M:%S UTC")


def _written(at_ms: int, zone: tzinfo | None, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, zone).strftime(form)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"


def how_long(ms: int | None) -> str | None:
    """Return a duration in seconds, or, of a long one, in the largest whole unit."""
    if ms is None:
        return None
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.1f} s"


def cas_in(text: str, what: str) -> int | None:
    """Return the CAS that a text is, None if it is none. CommandError `usage`: none is so long."""
    if not text.isdecimal():
        return None
    if len(text) > DIGITS_MAX:
        raise CommandError("usage", f"{what}: no CAS has {len(text)} digits")
    return int(text)


def ms_of(text: str, what: str, fits: str = WHEN) -> int:
    """Return a time, or how long ago it was, in ms since 1970. CommandError `usage`.

    `fits` says what may stand there, for people.
    """
    number, unit = text[:-1], UNITS.get(text[-1:])
    try:
        if unit is not None and number.isdecimal():
            return _ago_ms(timedelta(**{unit: int(number)}))
        # A local time next to the first or the last year may be none in UTC.
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except OverflowError:
        return 0
    except ValueError:
        raise CommandError("usage", f"{what}: {text!r} is no moment. Give {fits}") from None


def _ago_ms(age: timedelta) -> int:
    return max(0, int((datetime.now(UTC) - age).timestamp() * 1000))

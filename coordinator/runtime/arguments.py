"""Types of arguments that the command lines of several processes have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

CLUSTER = re.compile(r"[A-Za-z0-9._-]+")


def cluster(text: str) -> str:
    """Return the name of a cluster, the prefix of its topics."""
    if not CLUSTER.fullmatch(text):
        raise argparse.ArgumentTypeError("letters, digits, '.', '_' and '-' only")
    return text


def within(low: int, high: int) -> Callable[[str], int]:
    """Return the type of whole numbers from `low` to `high`."""

    def number(text: str) -> int:
        found = int(text)
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{low} to {high}")
        return found

    return number


UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DIGITS_MAX = 9


def duration_ms(text: str) -> int:
    """Return how many ms a duration such as `30d` has: at least a second."""
    number, unit = text[:-1], UNITS_MS.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > DIGITS_MAX or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 30d, 12h, 90m or 45s")
    return int(number) * unit


def duration_text(ms: int) -> str:
    """Return a duration as `duration_ms` reads it, in the largest unit that divides it."""
    units = (unit for unit in reversed(UNITS_MS) if ms % UNITS_MS[unit] == 0)
    unit = next(units, "")
    return f"{ms // UNITS_MS[unit]}{unit}" if unit else f"{ms} ms"

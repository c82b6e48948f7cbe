"""JSON in the arguments of commands."""

from __future__ import annotations

import json
import math
from typing import Any

from coordinator.cli.output import CommandError


def read_json(text: str) -> Any:
    """Return the JSON value that a text is. ValueError, RecursionError: it is none.

    CommandError `usage`: it is JSON, with a number that nobody could send on.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise CommandError("usage", f"{digits[:40]} is out of range")
    return number

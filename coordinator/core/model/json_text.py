"""JSON that came from outside: of what shape it may be, and how it is read. Pure.

Whoever reads nested JSON needs stack for each level, and how much there is depends on who calls.
So the depth is measured first, by a scan that needs none, and has one bound for everything that
is let in: what was let in can be read wherever it turns up later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np

DEPTH_MAX = 64
"""So deep arrays and objects may be nested. Readers of JSON manage some hundreds of levels on an
empty stack (`json` 900, `orjson` 254), so this leaves room for whoever is called deep inside."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_LEXEME = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_MAYBE_INFINITE = re.compile(rb"[eE]\+?0*[1-9][0-9]{2}|[0-9]{300}")
"""What a number beyond all floats has in it; a function is called for each number then."""

_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[{]}")))


CONTAINERS_MAX = 10_000
"""So many arrays and objects a text may have. Python looks at every object that it has each time
some ten thousand new ones that have others inside were made, and all else waits for that."""


class TooDeep(ValueError):
    """A text is nested deeper than it may be."""

    def __init__(self, depth_max: int = DEPTH_MAX) -> None:
        super().__init__(f"it is nested deeper than {depth_max}")


class TooMany(ValueError):
    """A text has more arrays and objects than it may have."""

    def __init__(self, found: int) -> None:
        super().__init__(f"it has {found} arrays and objects; at most {CONTAINERS_MAX}")


def check_shape(text: bytes, depth_max: int = DEPTH_MAX) -> None:
    """Raise TooDeep if a reader of this text would go deeper than `depth_max`, TooMany if it would
    make more arrays and objects than `CONTAINERS_MAX`, and one for each level beyond `DEPTH_MAX`.

    The text need not be JSON: a reader stops at the first fault, and gets no further than this.
    """
    if text.count(b"[") + text.count(b"{") <= depth_max:
        return
    steps = np.frombuffer(_STRING.sub(b"", text).translate(_STEPS, _NO_BRACKETS), np.int8)
    levels = np.cumsum(steps, dtype=np.int64)
    if len(levels) and levels.max() > depth_max:
        raise TooDeep(depth_max)
    around = max(0, depth_max - DEPTH_MAX)
    if (found := int(np.count_nonzero(steps > 0))) > CONTAINERS_MAX + around:
        raise TooMany(found)


def parse(text: str | bytes, depth_max: int = DEPTH_MAX) -> Any:
    """Return the JSON value that a text is; bytes are UTF-8. ValueError: it is none, or not of
    the shape that is let in.

    `NaN`, `Infinity` and numbers beyond all floats are no JSON.
    """
    if isinstance(text, bytes):
        raw, text = text, text.decode()
    else:
        raw = text.encode("utf-8", "surrogatepass")
    check_shape(raw, depth_max)
    parse_float = _finite if _MAYBE_INFINITE.search(raw) else None
    return json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)


def parse_fields(text: str, names: Collection[str]) -> dict[str, Any]:
    """Return the object that a text is, with some of the fields `names`.

    ValueError: says what is wrong, in words for who wrote it.
    """
    try:
        given = parse(text)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError("a JSON object belongs here")
    odd = sorted(given.keys() - set(names))
    if odd:
        raise ValueError(f"there is no field {odd[0]!r}; there are {', '.join(names)}")
    return given


def shown(text: str) -> Any:
    """Return the value of a stored text; the text itself if it cannot be read within the bound.

    Texts that were stored before there was a bound may be nested deeper.
    """
    try:
        return parse(text)
    except ValueError:
        return text


def end_of(text: str, start: int) -> int:
    """Return the offset behind the object or array that begins at `start`, measured as far as it
    goes. TooDeep: it is nested too deeply; the end of the text where it is not closed."""
    level = 0
    for lexeme in _LEXEME.finditer(text, start):
        mark = lexeme[0][0]
        level += (mark in "[{") - (mark in "]}")
        if level > DEPTH_MAX:
            raise TooDeep
        if level <= 0:
            return lexeme.end()
    return len(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is out of range")
    return number

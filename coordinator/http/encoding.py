"""Values as JSON, piece by piece: no piece holds the interpreter for long, in whatever thread.

A value that is JSON text already is put in as it is, and never read again: a setting comes back as
it was written.
"""

from __future__ import annotations

import json
from typing import Any

LEVELS = 2
"""So many levels of objects and arrays are written member by member; what is inside, at once."""

PORTION = 16
"""So many members of an array are written at once."""

_whole = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Raw(str):
    """JSON text that is written as it is."""

    __slots__ = ()


def encoded(value: Any) -> bytes:
    """Return compact JSON. `Raw` may stand at the first levels, in objects. Half a surrogate pair,
    which UTF-8 has no bytes for, is escaped."""
    parts: list[bytes] = []
    _write(parts, value, LEVELS)
    return b"".join(parts)


def _write(parts: list[bytes], value: Any, levels: int) -> None:
    if type(value) is Raw:
        parts.append(value.encode("utf-8", "backslashreplace"))
    elif levels and value and type(value) is dict:
        mark = b"{"
        for name, member in value.items():
            parts.append(mark + _bytes(name) + b":")
            _write(parts, member, levels - 1)
            mark = b","
        parts.append(b"}")
    elif levels and value and type(value) is list:
        mark = b"["
        for begin in range(0, len(value), PORTION):
            parts.append(mark + _bytes(value[begin : begin + PORTION])[1:-1])
            mark = b","
        parts.append(b"]")
    else:
        parts.append(_bytes(value))


def _bytes(value: Any) -> bytes:
    return _whole(value).encode("utf-8", "backslashreplace")

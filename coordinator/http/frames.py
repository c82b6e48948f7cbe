"""Server-sent events as bytes. Reads only."""

from __future__ import annotations

import json
from typing import Any


def frame(name: str, data: dict[str, Any], cas: int | None = None) -> bytes:
    """Return an event with this data; with a CAS, that is its id."""
    return event(name, json.dumps(data, separators=(",", ":")).encode(), cas)


def event(name: str, text: bytes, cas: int | None = None) -> bytes:
    """Return one server-sent event, on one line. `text` is its data, as JSON.

    The text of a setting may have line breaks between its values, which mean as much as a space.
    """
    line = text.replace(b"\r", b" ").replace(b"\n", b" ")
    head = f"event: {name}\n" if cas is None else f"event: {name}\nid: {cas}\n"
    return b"".join((head.encode(), b"data: ", line, b"\n\n"))

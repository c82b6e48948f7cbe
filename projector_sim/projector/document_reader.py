"""Reading documents for their fields: of those that no index refers to, nothing is made.

That takes half the time for a document of 200 bytes, and a quarter for one of 20 KB. It is for
texts that are known to be JSON: what is wrong with a field that is passed over goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypedDict

import msgspec
import orjson

FIELDS_MAX = 16
"""With more of them each field of a document is looked for among too many."""

Reader = Callable[[bytes], Any]
"""Returns what a text says. Raises ValueError: it is no JSON."""


@lru_cache(maxsize=256)
def reader_of(fields: frozenset[str]) -> Reader:
    """Return what reads these fields of documents, and may leave out all others."""
    if len(fields) > FIELDS_MAX or not all(map(str.isascii, fields)):
        return orjson.loads  # msgspec does not find fields whose names are not ASCII.
    shape = TypedDict("shape", dict.fromkeys(sorted(fields), Any), total=False)  # type: ignore[misc]
    decode = msgspec.json.Decoder(shape).decode

    def read(text: bytes) -> Any:
        try:
            return decode(text)
        except (msgspec.MsgspecError, RecursionError):  # No object, or no JSON.
            return orjson.loads(text)

    return read

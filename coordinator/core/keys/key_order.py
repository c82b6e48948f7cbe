"""In which order an index holds its keys: component by component, some of them descending.

An expression whose normal text ends in ` DESC` makes a descending component. Its bytes are those
of the collation with all bits turned. No encoding begins another one, so two of them differ at
some byte, and turning that byte turns their order; nothing else of the collation changes. Missing
comes last then, and what follows a component is compared as ever.

Everything that is stored, sent or compared of an index's keys is in this one form. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.core.keys.collation import (
    ABOVE_ALL,
    TURNED,
    Bounds,
    Key,
    after,
    decode_some,
    encode,
    encode_key,
)
from coordinator.core.model.entities import Index

DESCENDING = " DESC"
"""How the normal text of a descending component ends, and of no other one."""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of an index's keys; `descending` says for each component which way it runs."""

    descending: tuple[bool, ...]

    def encode(self, key: Key) -> bytes:
        """Return the bytes of a key, or of the first components of one.

        TypeError: not JSON. ValueError: NaN, infinity, or more components than keys have.
        """
        if len(key) > len(self.descending):
            raise ValueError(f"a key of this index has at most {len(self.descending)} components")
        if True not in self.descending:
            return encode_key(key)
        return b"".join(self.component(place, value) for place, value in enumerate(key))

    def component(self, place: int, value: Any) -> bytes:
        """Return the bytes of one component: a key is its components, one after the other.

        TypeError: not JSON. ValueError: NaN, infinity.
        """
        raw = encode(value)
        return raw.translate(TURNED) if self.descending[place] else raw

    def decode(self, raw: bytes) -> tuple[Any, ...]:
        """Return the components of a whole key: the inverse of `encode`. ValueError: it is none."""
        key, end = self.decode_some(raw)
        if end != len(raw):
            raise ValueError("something follows the key")
        return key

    def decode_some(self, raw: bytes, start: int = 0) -> tuple[tuple[Any, ...], int]:
        """Return the whole key that begins at `start`, and where it ends: what follows is free."""
        if True not in self.descending:
            return decode_some(raw, len(self.descending), start)
        values: list[Any] = []
        at = start
        for turned in self.descending:
            if turned:
                (value,), length = decode_some(raw[at:].translate(TURNED), 1)
                at += length
            else:
                (value,), at = decode_some(raw, 1, at)
            values.append(value)
        return tuple(values), at

    def prefix_bounds(self, key: Key) -> Bounds:
        """Return where the keys lie that begin with these components."""
        return self.range_bounds(key, key)

    def range_bounds(
        self,
        low: Key | None = None,
        high: Key | None = None,
        *,
        include_low: bool = True,
        include_high: bool = True,
    ) -> Bounds:
        """Return where the keys lie from `low` to `high`, in the order of the index.

        `low` is the end that comes first: of a single descending component the greater value.
        Otherwise as `collation.range_bounds`.
        """
        begin = b"" if low is None else self.encode(low)
        if low is not None and not include_low:
            begin = after(begin)
        end = ABOVE_ALL if high is None else self.encode(high)
        if high is not None and include_high:
            end = after(end)
        return Bounds(begin, end)


PRIMARY = KeyOrder((False,))


def order_of(index: Index) -> KeyOrder:
    """Return the order of an index's keys; that of a primary index is one of document ids."""
    return PRIMARY if index.primary else order_of_expressions(index.expressions)


def order_of_expressions(expressions: tuple[str, ...]) -> KeyOrder:
    """Return the order of the keys that these expressions, in their normal text, make."""
    return KeyOrder(tuple(text.endswith(DESCENDING) for text in expressions))

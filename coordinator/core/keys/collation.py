"""Keys of an index as bytes: comparing the bytes compares the values.

A key is a tuple of components, each a JSON value or `MISSING`. The order is total:

    missing < null < false < true < numbers < strings < arrays < objects

numbers     by value, exactly, whether int or float; -0.0 equals 0; NaN and infinity are refused
strings     by Unicode code point
arrays      element by element; the shorter of two comes first if it begins the other
objects     by size, then name by name in ascending order, by the name and then by its value: of two
            objects the one with the lower name comes first
keys        component by component, like arrays

Equal values, and only these, have equal bytes. No encoding of a value begins another one, so that
an encoding may be followed by anything (further components, the id of a document), and a scan
of a prefix is a scan of bytes. Pure: nothing is stored or read here.

    constant    tag
    number      tag, double; from 2^53 on cut towards zero, and what was cut off: length, bytes.
                Of a negative number all bits of that are turned, those of the tag too
    string      tag, UTF-8, END; END and ESCAPE in the text are escaped
    array       tag, elements, END
    object      tag, size, and for each name in order: the name as a string without tag, the value
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from math import ldexp
from typing import Any, Final, NamedTuple

Key = Sequence[Any]
"""The components of a key: JSON values, or `MISSING`."""


class Missing:
    """The type of `MISSING`: the value of a field that a document does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()

END, ESCAPE = b"\x00", b"\x01"
TAG_MISSING, TAG_NULL, TAG_FALSE, TAG_TRUE = b"\x02", b"\x03", b"\x04", b"\x05"
NEGATIVE, POSITIVE = b"\x7f", b"\x80"  # Each the other one with all bits turned.
STRING, ARRAY, OBJECT = b"\x90", b"\xa0", b"\xb0"
ABOVE_ALL = b"\xff"
"""Above the encoding of each key, whatever follows it."""

WHOLE_MAX = 2**53
"""Below this magnitude a double holds each whole number, and nothing can be cut off."""
INT_MAX = 2**64
"""Below this magnitude a whole number is decoded as an int, above it as a float if one holds it."""
SIGNIFICANT_BITS = sys.float_info.mant_dig
FLOAT_BITS_MAX = sys.float_info.max_exp

NESTED_MAX = 512
"""So deep an array or an object of a key may be: answers are JSON, and written with less."""

TURNED = bytes(range(255, -1, -1))
"""Maps each byte to its complement, for `bytes.translate`."""

NUMBER = struct.Struct(">Bd")
SIZE = struct.Struct(">I")

_pack_number = NUMBER.pack
_POSITIVE = POSITIVE[0]
_CLOSE = object()


class _Written(bytes):
    """What is encoded already."""


# -- encoding ------------------------------------------------------------------------------------


def encode_key(key: Key) -> bytes:
    """Return the bytes of a key: the encodings of its components, one after the other.

    TypeError: not a JSON value. ValueError: NaN or infinity.
    """
    parts: list[bytes] = []
    for value in key:
        kind = type(value)
        # The two that nearly all keys consist of are written out: a call costs as much as they do.
        if kind is str:
            if "\0" in value or "\1" in value or not value.isascii():
                parts.append(STRING + _text(value))
            else:
                parts.append(b"\x90%b\x00" % value.encode())
        elif (kind is int or kind is float) and 0 <= value < WHOLE_MAX:
            parts.append(_pack_number(_POSITIVE, value + 0.0))
        elif kind is list or kind is dict:
            _nested(parts, value)
        elif value is MISSING:
            parts.append(TAG_MISSING)
        else:
            parts.append(_scalar(value))
    return b"".join(parts)


def encode(value: Any) -> bytes:
    """Return the bytes of one component. Raises as `encode_key`."""
    return encode_key((value,))


def _nested(parts: list[bytes], value: Any) -> None:
    """Append the encoding of an array or object. No recursion: JSON may be nested deeply.

    ValueError: so deeply that an answer with it could not be written.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > NESTED_MAX:
            raise ValueError(f"nested deeper than {NESTED_MAX}")
        if type(value) is list:
            parts.append(ARRAY)
            waiting.append((_CLOSE, depth))
            waiting.extend((one, depth + 1) for one in reversed(value))
        elif type(value) is dict:
            names = sorted(value)
            parts.append(OBJECT + SIZE.pack(len(names)))
            for name in reversed(names):
                waiting.append((value[name], depth + 1))
                waiting.append((_Written(_text(name)), depth))
        elif type(value) is _Written:
            parts.append(value)
        elif value is _CLOSE:
            parts.append(END)
        else:
            parts.append(_scalar(value))


def _scalar(value: Any) -> bytes:
    encoder = _SCALARS.get(type(value))
    if encoder is None:
        raise TypeError(f"not a JSON value: {type(value).__name__}")
    return encoder(value)


def _text(text: Any) -> bytes:
    """Return a string, escaped and ended. Half a surrogate pair, which JSON allows, has bytes."""
    if type(text) is not str:
        raise TypeError(f"the name of a member is not a string: {type(text).__name__}")
    raw = text.encode("utf-8", "surrogatepass")
    if END in raw or ESCAPE in raw:
        raw = raw.replace(ESCAPE, b"\x01\x02").replace(END, b"\x01\x01")
    return raw + END


def _number(number: int | float) -> bytes:
    if 0 <= number < WHOLE_MAX:
        return _pack_number(_POSITIVE, number + 0.0)
    if -WHOLE_MAX < number < 0:
        return _pack_number(_POSITIVE, -number).translate(TURNED)
    try:
        whole = int(number)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"not a JSON number: {number}") from error
    return _large(whole) if whole > 0 else _large(-whole).translate(TURNED)


def _large(magnitude: int) -> bytes:
    """Return a whole number from `WHOLE_MAX` on: a double that is not above it, and the rest."""
    bits = magnitude.bit_length()
    shift = bits - SIGNIFICANT_BITS
    cut = ldexp(magnitude >> shift, shift) if bits <= FLOAT_BITS_MAX else sys.float_info.max
    rest = magnitude - int(cut)
    length = (rest.bit_length() + 7) // 8
    return _pack_number(_POSITIVE, cut) + SIZE.pack(length) + rest.to_bytes(length, "big")


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: TAG_NULL,
    bool: lambda value: TAG_TRUE if value else TAG_FALSE,
    int: _number,
    float: _number,
    str: lambda text: STRING + _text(text),
}


# -- decoding ------------------------------------------------------------------------------------


def decode_key(raw: bytes) -> tuple[Any, ...]:
    """Return the components of a key: the inverse of `encode_key`. ValueError: not a key."""
    values: list[Any] = []
    at = 0
    while at < len(raw):
        (value,), at = decode_some(raw, 1, at)
        values.append(value)
    return tuple(values)


def decode(raw: bytes) -> Any:
    """Return the one component that `raw` is the encoding of. ValueError: it is not."""
    (value,) = decode_key(raw)
    return value


def decode_some(raw: bytes, count: int, start: int = 0) -> tuple[tuple[Any, ...], int]:
    """Return `count` components that begin at `start`, and where they end: what follows is free.

    A whole number comes back as an int below `INT_MAX`; above, as a float if one holds it.
    ValueError: there are no such components.
    """
    try:
        return _decode_some(raw, count, start)
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError("not a key, or not a whole one") from error


def _decode_some(raw: bytes, count: int, at: int) -> tuple[tuple[Any, ...], int]:
    """The same; `items` is being filled, with `left` of them at the end, -1 for an array: until it
    ends. `names` has those of an object, each read before its value."""
    items: list[Any] = []
    names: list[str] | None = None
    left = count
    outer: list[tuple[list[Any], list[str] | None, int]] = []
    while True:
        if left == len(items):
            if names is None:
                return tuple(items), at
            value: Any = dict(zip(names, items, strict=True))
            items, names, left = outer.pop()
            items.append(value)
            continue
        tag = raw[at : at + 1]
        if names is not None and len(names) == len(items):
            name, at = _read_text(raw, at)
            names.append(name)
        elif tag == END and left < 0:
            value, at = items, at + 1
            items, names, left = outer.pop()
            items.append(value)
        elif tag == ARRAY:
            outer.append((items, names, left))
            items, names, left, at = [], None, -1, at + 1
        elif tag == OBJECT:
            outer.append((items, names, left))
            items, names = [], []
            (left,), at = SIZE.unpack_from(raw, at + 1), at + 1 + SIZE.size
        else:
            value, at = _READERS[tag](raw, at + 1)
            items.append(value)


def _read_text(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.index(END, at)
    text = raw[at:end]
    if ESCAPE in text:
        text = text.replace(b"\x01\x01", END).replace(b"\x01\x02", ESCAPE)
    return text.decode("utf-8", "surrogatepass"), end + 1


def _read_positive(raw: bytes, at: int) -> tuple[int | float, int]:
    _, cut = NUMBER.unpack_from(raw, at - 1)
    at += NUMBER.size - 1
    if cut < WHOLE_MAX:
        return (int(cut) if cut.is_integer() else cut), at
    (length,) = SIZE.unpack_from(raw, at)
    at += SIZE.size
    if at + length > len(raw):
        raise IndexError("cut off")
    rest = int.from_bytes(raw[at : at + length], "big")
    magnitude = int(cut) + rest
    return (cut if rest == 0 and magnitude >= INT_MAX else magnitude), at + length


def _read_negative(raw: bytes, at: int) -> tuple[int | float, int]:
    begin = at - 1
    number = raw[begin : begin + NUMBER.size + SIZE.size].translate(TURNED)
    if NUMBER.unpack_from(number)[1] >= WHOLE_MAX:
        length = SIZE.unpack_from(number, NUMBER.size)[0]
        number = raw[begin : begin + len(number) + length].translate(TURNED)
    magnitude, size = _read_positive(number, 1)
    return -magnitude, begin + size


_READERS: dict[bytes, Callable[[bytes, int], tuple[Any, int]]] = {
    TAG_MISSING: lambda _, at: (MISSING, at),
    TAG_NULL: lambda _, at: (None, at),
    TAG_FALSE: lambda _, at: (False, at),
    TAG_TRUE: lambda _, at: (True, at),
    NEGATIVE: _read_negative,
    POSITIVE: _read_positive,
    STRING: _read_text,
}


# -- ranges --------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The bytes from `begin` on and before `end`; none if `end` is not above `begin`."""

    begin: bytes
    end: bytes

    def under(self, prefix: bytes) -> Bounds:
        """Return the same for keys that are stored after `prefix`."""
        return Bounds(prefix + self.begin, prefix + self.end)

    def __contains__(self, raw: object) -> bool:
        return isinstance(raw, bytes) and self.begin <= raw < self.end


EVERYTHING = Bounds(b"", ABOVE_ALL)


def prefix_bounds(key: Key) -> Bounds:
    """Return where the keys lie that begin with these components: for a whole key, a point."""
    return range_bounds(key, key)


def range_bounds(
    low: Key | None = None,
    high: Key | None = None,
    *,
    include_low: bool = True,
    include_high: bool = True,
) -> Bounds:
    """Return where the keys lie between `low` and `high`; None: no such end.

    An end of fewer components than the keys have is compared with their first ones only: with
    `high=("Paris",)` each ("Paris", ...) is included, or excluded. That holds for whatever
    follows a key, too.
    """
    begin = b"" if low is None else encode_key(low)
    if low is not None and not include_low:
        begin = after(begin)
    end = ABOVE_ALL if high is None else encode_key(high)
    if high is not None and include_high:
        end = after(end)
    return Bounds(begin, end)


def after(raw: bytes) -> bytes:
    """Return the lowest bytes above all that begin with `raw`, an encoding of a key."""
    if not raw:
        return ABOVE_ALL
    kept = raw.rstrip(b"\xff")  # A tag is never 0xff, so something is left.
    return kept[:-1] + bytes((kept[-1] + 1,))

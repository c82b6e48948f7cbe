"""Entries of an index as people see them: a row for each, with its document's id and its key. Pure.

`row_of` reads one entry. `rows_of` returns the same of many, several times faster: it reads them
component by component. The entries of a page mostly have the same kind of value in one place: all
numbers are read at once then, and all strings. Where they do not, it reads them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coordinator.core.keys.collation import (
    END,
    ESCAPE,
    MISSING,
    NEGATIVE,
    POSITIVE,
    STRING,
    TAG_FALSE,
    TAG_MISSING,
    TAG_NULL,
    TAG_TRUE,
    TURNED,
    WHOLE_MAX,
    decode_some,
)
from coordinator.core.keys.key_order import KeyOrder

HEAD, DOUBLE = 9, np.dtype(">f8")
"""A number's tag and its double."""

MANY = 32
"""Fewer entries are read one by one: to begin with columns takes as long as so many."""

CONSTANTS = {TAG_MISSING[0]: MISSING, TAG_NULL[0]: None, TAG_FALSE[0]: False, TAG_TRUE[0]: True}
NUMBERS = frozenset({NEGATIVE[0], POSITIVE[0]})
STRINGS = frozenset({STRING[0]})

Row = dict[str, Any]
Column = tuple[list[Any], list[int]]
"""Of each entry a value, and where it ends."""


def row_of(entry: bytes, order: KeyOrder) -> Row:
    """Return an entry as people see it; `missing` are the places of components that are not there.

    Raises ValueError: it is no entry of an index of this order.
    """
    key, end = order.decode_some(entry)
    return _row(entry[end:].decode("utf-8", "surrogatepass"), key)


def rows_of(entries: Sequence[bytes], order: KeyOrder) -> list[Row]:
    """Return what `row_of` returns of each of these entries. Raises as it does."""
    if len(entries) < MANY:
        return [row_of(entry, order) for entry in entries]
    columns: list[list[Any]] = []
    ends = [0] * len(entries)
    for turned in order.descending:
        if turned:
            rests = [raw[at:].translate(TURNED) for raw, at in zip(entries, ends, strict=True)]
            values, lengths = _column(rests, [0] * len(rests))
            ends = [at + length for at, length in zip(ends, lengths, strict=True)]
        else:
            values, ends = _column(entries, ends)
        columns.append(values)
    ids = _texts([raw[at:] for raw, at in zip(entries, ends, strict=True)])
    keys = zip(*columns, strict=True)
    if any(MISSING in values for values in columns):
        return [_row(name, key) for name, key in zip(ids, keys, strict=True)]
    return [{"id": name, "key": key} for name, key in zip(ids, keys, strict=True)]


def _row(name: str, key: tuple[Any, ...]) -> Row:
    if MISSING not in key:
        return {"id": name, "key": key}
    return {
        "id": name,
        "key": [None if value is MISSING else value for value in key],
        "missing": [place for place, value in enumerate(key) if value is MISSING],
    }


# -- one component of all entries ----------------------------------------------------------------


def _column(raws: Sequence[bytes], begins: list[int]) -> Column:
    """Return the components that begin there. Raises ValueError: there are none."""
    try:
        tags = {raw[at] for raw, at in zip(raws, begins, strict=True)}
        if tags <= NUMBERS:
            found = _numbers(raws, begins)
        elif tags == STRINGS:
            found = _strings(raws, begins)
        elif tags <= CONSTANTS.keys():
            found = _constants(raws, begins)
        else:
            found = None
    except IndexError as error:
        raise ValueError("not a key, or not a whole one") from error
    return _one_by_one(raws, begins) if found is None else found


def _numbers(raws: Sequence[bytes], begins: list[int]) -> Column | None:
    """None: some of them have more than a double."""
    heads = b"".join([raw[at : at + HEAD] for raw, at in zip(raws, begins, strict=True)])
    if len(heads) != HEAD * len(raws):
        return None
    bits = np.frombuffer(heads, np.uint8).reshape(-1, HEAD)
    negative = bits[:, 0] == NEGATIVE[0]
    if negative.any():
        bits = np.where(negative[:, None], ~bits, bits)
    doubles = np.ascontiguousarray(bits[:, 1:]).view(DOUBLE).ravel().astype(np.float64)
    if not ((doubles >= 0) & (doubles < WHOLE_MAX)).all():
        return None
    whole = doubles == np.floor(doubles)
    doubles[negative] *= -1
    values: list[Any]
    if whole.all():
        values = doubles.astype(np.int64).tolist()
    else:
        values = doubles.tolist()
        for place in np.flatnonzero(whole).tolist():
            values[place] = int(values[place])
    return values, [at + HEAD for at in begins]


def _strings(raws: Sequence[bytes], begins: list[int]) -> Column | None:
    """None: some of them are escaped, or end nowhere."""
    ends = [raw.find(END, at) for raw, at in zip(raws, begins, strict=True)]
    if -1 in ends:
        return None
    places = zip(raws, begins, ends, strict=True)
    texts = END.join([raw[at + 1 : end] for raw, at, end in places])
    if ESCAPE in texts:
        return None
    return texts.decode("utf-8", "surrogatepass").split("\0"), [end + 1 for end in ends]


def _constants(raws: Sequence[bytes], begins: list[int]) -> Column:
    values = [CONSTANTS[raw[at]] for raw, at in zip(raws, begins, strict=True)]
    return values, [at + 1 for at in begins]


def _one_by_one(raws: Sequence[bytes], begins: list[int]) -> Column:
    found = [decode_some(raw, 1, at) for raw, at in zip(raws, begins, strict=True)]
    return [value for (value,), _ in found], [end for _, end in found]


def _texts(raws: list[bytes]) -> list[str]:
    """Return these bytes as text: all at once, if the byte between them is in none."""
    joined = END.join(raws)
    if joined.count(END) == len(raws) - 1:
        return joined.decode("utf-8", "surrogatepass").split("\0")
    return [raw.decode("utf-8", "surrogatepass") for raw in raws]

"""What an index must hold, by brute force: documents as Python values, keys by plain functions.

Shares nothing with the product: no parser, no evaluator, no collation, no encoding. An index is
given twice, as the SQL that the product gets, and as functions that say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any


class Absent:
    """The value of a field that a document does not have."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()
Document = Any
Row = tuple[tuple[Any, ...], str]
"""The components of a key, and the id of the document."""


@dataclass(frozen=True)
class Spec:
    """An index: what CREATE is told, and what that means."""

    name: str
    expressions: tuple[str, ...]
    key: Callable[[str, Document], tuple[Any, ...]]
    """With `each`, of one that has several keys of a document, the element is a key's first part
    and the rest is `key`."""
    where: str | None = None
    holds: Callable[[Document], bool] = lambda document: True
    descending: tuple[bool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    each: Callable[[Document], list[Any]] | None = None

    def keys(self, name: str, document: Document) -> list[tuple[Any, ...]]:
        """Return the keys of a document, whose first components are not absent."""
        key = self.key(name, document)
        if self.each is None:
            found = [key]
        else:
            found = []
            for element in self.each(document):
                if all(compare(element, known) for known, *_ in found):
                    found.append((element, *key))
        return [key for key in found if key[0] is not ABSENT]

    def body(self, bucket: str, **more: Any) -> dict[str, Any]:
        """Return the body of the CREATE."""
        what: dict[str, Any] = {"name": self.name, "bucket": bucket, **self.options, **more}
        if self.expressions:
            what["expressions"] = list(self.expressions)
        else:
            what["primary"] = True
        if self.where is not None:
            what["where"] = self.where
        return what


def get(document: Document, *path: str) -> Any:
    """Return a field of a document, or `ABSENT`."""
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return ABSENT
        document = document[name]
    return document


def rows(spec: Spec, documents: Mapping[str, Document]) -> list[Row]:
    """Return what the index must hold, in its order."""
    found = []
    for name, document in documents.items():
        if not spec.holds(document):
            continue
        found += [(key, name) for key in spec.keys(name, document)]
    return sorted(found, key=cmp_to_key(lambda a, b: _compare_rows(spec, a, b)))


def _compare_rows(spec: Spec, one: Row, other: Row) -> int:
    directions = (*spec.descending, *(False,) * (len(one[0]) - len(spec.descending)))
    for mine, theirs, descends in zip(one[0], other[0], directions, strict=True):
        order = compare(mine, theirs)
        if order:
            return -order if descends else order
    return _sign(one[1].encode(), other[1].encode())


RANKS: tuple[Callable[[Any], bool], ...] = (
    lambda v: v is ABSENT,
    lambda v: v is None,
    lambda v: v is False,
    lambda v: v is True,
    lambda v: isinstance(v, int | float),
    lambda v: isinstance(v, str),
    lambda v: isinstance(v, list),
    lambda v: isinstance(v, dict),
)


def compare(one: Any, other: Any) -> int:
    """Return -1, 0 or 1: absent, null, false, true, numbers, strings, arrays, objects."""
    rank = _rank(one)
    if rank != _rank(other):
        return _sign(rank, _rank(other))
    if rank == 4:
        return _sign(one, other)
    if rank == 5:
        return _sign([ord(c) for c in one], [ord(c) for c in other])
    if rank == 6:
        return _first(compare(a, b) for a, b in zip(one, other, strict=False)) or _sign(
            len(one), len(other)
        )
    if rank == 7:
        return _sign(len(one), len(other)) or _first(
            _of_name(name, one, other) for name in sorted({*one, *other})
        )
    return 0


def _of_name(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Compare what two objects have under a name: the one that has it comes first."""
    if name not in one or name not in other:
        return 1 if name not in one else -1
    return compare(one[name], other[name])


def _rank(value: Any) -> int:
    return next(number for number, fits in enumerate(RANKS) if fits(value))


def _sign(one: Any, other: Any) -> int:
    return (one > other) - (one < other)


def _first(orders: Iterable[int]) -> int:
    return next((order for order in orders if order), 0)

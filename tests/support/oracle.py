"""What an index must hold, by brute force: documents as Python values, keys by plain functions.

Shares nothing with the product: no parser, no evaluator, no collation, no encoding. An index is
given twice, as the SQL that the product gets, and as functions that say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    found.sort(key=lambda row: row[1].encode())
    # The last component first: a sort leaves what is equal in the order in which it was.
    for place in reversed(range(len(found[0][0]) if found else 0)):
        descends = place < len(spec.descending) and spec.descending[place]
        found.sort(key=lambda row, n=place: _order(row[0][n]), reverse=descends)
    return found


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
    mine, theirs = _order(one), _order(other)
    return (mine > theirs) - (mine < theirs)


def _order(value: Any) -> tuple[Any, ...]:
    """Return what Python compares as an index compares `value`."""
    rank = next(number for number, fits in enumerate(RANKS) if fits(value))
    if isinstance(value, list):
        return rank, [_order(element) for element in value]
    if isinstance(value, dict):
        return rank, len(value), sorted((name, _order(value[name])) for name in value)
    return (rank, value) if isinstance(value, int | float | str) else (rank,)

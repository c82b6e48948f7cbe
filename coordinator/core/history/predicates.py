"""Predicates over changes: which of them a reader of the history wants.

Pure. Each field may have several values, of which one must fit; all fields must. Those that are
about an entity look at it before and after the change: a drop is found by what was dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from coordinator.core.catalog.state import Versioned
from coordinator.core.history.changes import KEY_RULE, KINDS, About, Change, is_key, kind_of
from coordinator.core.model.entities import INDEX_STATES
from coordinator.core.model.types import CAS_MAX, Cas

ANY: frozenset[str] = frozenset()

VALUES_MAX = 100
TEXT_LENGTH_MAX = 512
"""So many values one filter may have, and so many characters each."""

NUMBER_MAX = 2**31 - 1

FIELDS = {
    "kind": "kinds",
    "bucket": "buckets",
    "index": "indexes",
    "indexer": "indexers",
    "state": "states",
    "key": "keys",
    "principal": "principals",
    "request": "requests",
    "txn": "txns",
}
"""What a filter is called by who asks, and the field of the predicate."""

MARKS = (
    "keys",
    "txns",
    "requests",
    "indexes",
    "indexers",
    "buckets",
    "principals",
    "states",
    "kinds",
)
"""The fields that change must have a value of, those first of which the fewest changes have it."""

NO_FIELD = ""
"""Stands for what every change has: a selector without any field wants that."""

Value = str | int

Begin = Cas | Literal["now", "snapshot"]
"""Where a watch begins."""


class Filter(Protocol):
    """Tells which changes are wanted. Equal ones want the same."""

    def fits(self, change: Change) -> bool: ...

    def marks(self) -> Mapping[str, Set[Value]]:
        """Return values by field: no change fits that has none of them in any of these fields."""
        ...


class Selector(Filter, Protocol):
    """Chooses what a reader is handed."""

    def fits_held(self, key: str, held: Versioned) -> bool: ...


class PredicateError(ValueError):
    """A predicate that nothing could ever fit; the message says why, and what could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """What a change must be like; an empty field does not matter.

    `indexes` are ids or names. `indexers` host a slice of the index. Times are those at which the
    master made the change, in ms since 1970; both ends belong to it.
    """

    kinds: frozenset[str] = ANY
    buckets: frozenset[str] = ANY
    indexes: frozenset[str] = ANY
    indexers: frozenset[int] = field(default=frozenset())
    states: frozenset[str] = ANY
    principals: frozenset[str] = ANY
    keys: frozenset[str] = ANY
    requests: frozenset[str] = ANY
    txns: frozenset[str] = ANY
    from_ms: int | None = None
    to_ms: int | None = None

    def check(self, kinds: tuple[str, ...] = tuple(KINDS)) -> None:
        """Raises PredicateError: a kind or a state that does not exist, or times in reverse."""
        _check_known("kind", self.kinds, kinds)
        _check_known("state", self.states, INDEX_STATES)
        for key in sorted(self.keys):
            if not is_key(key):
                raise PredicateError(f"key {key[:100]!r}: {KEY_RULE}")
        if self.from_ms is not None and self.to_ms is not None and self.from_ms > self.to_ms:
            raise PredicateError(f"from_ms {self.from_ms} is later than to_ms {self.to_ms}")

    def fits(self, change: Change) -> bool:
        """Tell whether a reader wants this change."""
        mutation = change.event.mutation
        return (
            _fits(self.kinds, change.kind)
            and _fits(self.keys, change.key)
            and _fits(self.principals, mutation.principal)
            and _fits(self.requests, mutation.request)
            and (not self.txns or str(change.event.txn) in self.txns)
            and (self.from_ms is None or mutation.at_ms >= self.from_ms)
            and (self.to_ms is None or mutation.at_ms <= self.to_ms)
            and (not self._is_about_entities or any(map(self._fits_entity, change.about())))
        )

    def marks(self) -> Mapping[str, Set[Value]]:
        """Return one field with its values: see `Filter.marks`."""
        for name in MARKS:
            values: frozenset[Value] = getattr(self, name)
            if values:
                return {name: values}
        return {NO_FIELD: {""}}

    def fits_held(self, key: str, held: Versioned) -> bool:
        """Tell whether a reader wants an entity that is there, whoever made it, and when."""
        return (
            _fits(self.kinds, kind_of(key))
            and _fits(self.keys, key)
            and (not self._is_about_entities or self._fits_entity(About(held.entity)))
        )

    @property
    def _is_about_entities(self) -> bool:
        return bool(self.buckets or self.indexes or self.indexers or self.states)

    def _fits_entity(self, about: About) -> bool:
        if not _fits(self.buckets, about.bucket):
            return False
        if not (self.indexes or self.indexers or self.states):
            return True
        return (
            about.index is not None
            and (not self.indexes or not self.indexes.isdisjoint(about.names))
            and (not self.indexers or not self.indexers.isdisjoint(about.hosts))
            and _fits(self.states, about.index.state)
        )


def values_of(change: Change, name: str) -> Set[Value]:
    """Return the values that a change has in a field of a predicate."""
    match name:
        case "keys":
            return {change.key}
        case "kinds":
            return {change.kind}
        case "principals":
            return {change.event.mutation.principal}
        case "requests":
            return {change.event.mutation.request}
        case "txns":
            return {str(change.event.txn)}
        case "buckets":
            return {about.bucket for about in change.about()}
        case "states":
            return {about.index.state for about in change.about() if about.index is not None}
        case "indexes":
            return frozenset[Value]().union(*(about.names for about in change.about()))
        case "indexers":
            return frozenset[Value]().union(*(about.hosts for about in change.about()))
        case _:
            return {""}


def _fits(wanted: frozenset[str], value: str) -> bool:
    return not wanted or value in wanted


def _check_known(what: str, given: frozenset[str], known: tuple[str, ...]) -> None:
    unknown = sorted(given - set(known))
    if unknown:
        raise PredicateError(f"{what} {unknown[0]!r} does not exist: one of {', '.join(known)}")


def begin_of(text: str) -> Begin:
    """Return where a watch is to begin. Raises PredicateError."""
    if text == "now":
        return "now"
    if text == "snapshot":
        return "snapshot"
    if text.isascii() and text.isdecimal() and int(text) <= CAS_MAX:
        return Cas(int(text))
    raise PredicateError(f"after: {text!r} is no CAS, and not 'now' or 'snapshot'")


def predicate_of(filters: Mapping[str, Any]) -> Predicate:
    """Return the predicate of filters, each with a value or a sequence of them, None for any.

    Raises PredicateError: there is no such filter, or a value that nothing could fit.
    """
    unknown = sorted(filters.keys() - FIELDS.keys())
    if unknown:
        raise PredicateError(f"there is no filter {unknown[0]!r}: one of {', '.join(FIELDS)}")
    given: dict[str, Any] = {
        FIELDS[name]: _values(name, asked) for name, asked in filters.items() if asked is not None
    }
    made = Predicate(**given)
    made.check()
    return made


def _values(name: str, given: Any) -> frozenset[Any]:
    found = [given] if isinstance(given, str | int) else [*given]
    if len(found) > VALUES_MAX:
        raise PredicateError(f"{name} has {len(found)} values, more than {VALUES_MAX}")
    return frozenset(_number(one) if name == "indexer" else _short(name, one) for one in found)


def _number(given: Any) -> int:
    text = str(given)
    if text.isascii() and text.isdecimal() and len(text) < 12 and int(text) <= NUMBER_MAX:
        return int(text)
    raise PredicateError(f"indexer: {text[:TEXT_LENGTH_MAX]!r} is no number of an indexer")


def _short(name: str, given: Any) -> str:
    text = str(given)
    if len(text) > TEXT_LENGTH_MAX:
        raise PredicateError(f"{name} has {len(text)} characters, more than {TEXT_LENGTH_MAX}")
    return text

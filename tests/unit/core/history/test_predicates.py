"""Which changes a reader wants: all fields must fit, of each any one value, before or after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog.state import Versioned
from coordinator.core.history.changes import Change
from coordinator.core.history.predicates import Predicate, PredicateError
from coordinator.core.model.entities import (
    DROPPING,
    READY,
    Bucket,
    Entity,
    Index,
    Setting,
    Slice,
    Stream,
)
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, TxnId

INDEX = Index(
    id=7,
    name="by_city",
    bucket="travel",
    expressions=("city",),
    where=None,
    primary=False,
    using="gsi",
    defer_build=False,
    state=READY,
    reason=None,
    slices=(Slice(0, 1, (2,)),),
    request="r1",
    created_ms=1,
)


def changed(before: Entity | None, after: Entity | None, **fields: Any) -> Change:
    key = (after or before).key  # type: ignore[union-attr]
    value = None if after is None else b"value"
    mutation = Mutation("Changed", key, value, after, "r1", "ada", 1_000)
    held = None if before is None else Versioned(Cas(3), b"value", before)
    return Change(Event(replace(mutation, **fields), TxnId(2, 5), 0, 1, Cas(9)), held)


MOVED = replace(INDEX, bucket="other", name="by_town", slices=(Slice(0, 3),), state=DROPPING)
CHANGE = changed(INDEX, MOVED)


def some(*values: Any) -> frozenset[Any]:
    return frozenset(values)


FITTING = [
    {"kinds": some("index")},
    {"keys": some("index/7")},
    {"principals": some("ada", "grace")},
    {"requests": some("r1")},
    {"txns": some("2-5")},
    {"buckets": some("travel")},
    {"buckets": some("other")},
    {"indexes": some("7")},
    {"indexes": some("by_city")},
    {"indexes": some("by_town")},
    {"indexers": some(2)},
    {"indexers": some(3)},
    {"states": some("dropping")},
    {"states": some("ready")},
    {"from_ms": 1_000},
    {"to_ms": 1_000},
    {"buckets": some("travel"), "states": some("ready"), "indexers": some(1)},
    {},
]
OTHER = [
    {"kinds": some("setting")},
    {"keys": some("index/8")},
    {"principals": some("grace")},
    {"requests": some("r2")},
    {"txns": some("2-6")},
    {"buckets": some("third")},
    {"indexes": some("by_name")},
    {"indexers": some(4)},
    {"states": some("maintenance")},
    {"from_ms": 1_001},
    {"to_ms": 999},
    {"kinds": some("index"), "principals": some("grace")},
]


def named(fields: dict[str, Any]) -> str:
    """Return a test's name that is the same in every process."""
    return str({k: sorted(v) if isinstance(v, frozenset) else v for k, v in fields.items()})


@pytest.mark.parametrize("fields", FITTING, ids=named)
def test_what_fits_before_or_after_is_wanted(fields: dict[str, Any]) -> None:
    assert Predicate(**fields).fits(CHANGE)


@pytest.mark.parametrize("fields", OTHER, ids=named)
def test_one_field_that_does_not_fit_is_enough(fields: dict[str, Any]) -> None:
    assert not Predicate(**fields).fits(CHANGE)


def test_the_entity_must_fit_as_a_whole_at_one_time() -> None:
    """It was ready in travel, and is being dropped in other: never ready in other."""
    assert not Predicate(buckets=some("other"), states=some("ready")).fits(CHANGE)
    assert Predicate(buckets=some("other"), states=some("dropping")).fits(CHANGE)


def test_a_drop_is_found_by_what_was_dropped_and_a_creation_by_what_was_made() -> None:
    wanted = Predicate(buckets=some("travel"), indexers=some(2))
    assert wanted.fits(changed(INDEX, None))
    assert wanted.fits(changed(None, INDEX))
    assert not wanted.fits(changed(MOVED, None))


def test_a_bucket_has_its_own_changes_and_those_of_its_stream_and_no_settings() -> None:
    wanted = Predicate(buckets=some("travel"))
    assert wanted.fits(changed(None, Bucket("travel", 64)))
    assert wanted.fits(changed(None, Stream("travel", 1, (), b"", b"", "")))
    assert not wanted.fits(changed(None, Setting("travel", "1")))
    assert not Predicate(states=some("ready")).fits(changed(None, Bucket("travel", 64)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kinds": some("cat")}, "kind 'cat' does not exist: one of index, bucket, setting"),
        ({"states": some("asleep")}, "state 'asleep' does not exist: one of init, ready"),
        ({"from_ms": 2, "to_ms": 1}, "from_ms 2 is later than to_ms 1"),
    ],
)
def test_a_predicate_that_fits_nothing_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PredicateError, match=said):
        Predicate(**fields).check()


def test_all_that_fits_something_passes_the_check() -> None:
    for fields in [*FITTING, {"from_ms": 1, "to_ms": 1}]:
        Predicate(**fields).check()

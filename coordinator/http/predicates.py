"""The filters of a request as a predicate over changes, shared by all routes that have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Query

from coordinator.core.history.changes import KINDS
from coordinator.core.history.predicates import (
    NUMBER_MAX,
    TEXT_LENGTH_MAX,
    VALUES_MAX,
    Predicate,
    PredicateError,
)
from coordinator.http.errors import ApiError

Texts = Annotated[
    frozenset[Annotated[str, Query(max_length=TEXT_LENGTH_MAX)]],
    Query(max_length=VALUES_MAX, default_factory=frozenset),
]
Numbers = Annotated[
    frozenset[Annotated[int, Query(ge=0, lt=NUMBER_MAX + 1)]],
    Query(max_length=VALUES_MAX, default_factory=frozenset),
]


def predicate_of(
    kind: Texts,
    bucket: Texts,
    index: Texts,
    indexer: Numbers,
    state: Texts,
    key: Texts,
    principal: Texts,
    request: Texts,
    txn: Texts,
) -> Predicate:
    """Return the predicate that the filters of a request make, not `checked` yet."""
    return Predicate(
        kinds=kind,
        buckets=bucket,
        indexes=index,
        indexers=indexer,
        states=state,
        keys=key,
        principals=principal,
        requests=request,
        txns=txn,
    )


def checked(predicate: Predicate, more_kinds: Iterable[str] = ()) -> Predicate:
    """Return a predicate that can fit something. ApiError `invalid_request`.

    `more_kinds` are those that a route knows besides the kinds of entities.
    """
    try:
        predicate.check((*KINDS, *more_kinds))
    except PredicateError as error:
        raise ApiError("invalid_request", str(error)) from None
    return predicate

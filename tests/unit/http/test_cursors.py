"""A page that goes on: on which node, in which index, and with which cursor."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coordinator.codec import encode
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.keys.scans import ALL, Cursor, scan_digest
from coordinator.core.model.entities import BACKFILL, MAINTENANCE, Index
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas
from coordinator.http import scan
from coordinator.http.errors import ApiError
from tests.support.indexes import make_index

OLD = replace(make_index(100), state=MAINTENANCE)
NEW = replace(make_index(200), state=MAINTENANCE, name=OLD.name, bucket=OLD.bucket)
ENTRY = b"\x05abc\x00id1"


def state_of(*indexes: Index) -> StateContext:
    made = [Mutation("IndexReady", one.key, encode(one), one) for one in indexes]
    return evolve(EMPTY, [(mutation, Cas(n)) for n, mutation in enumerate(made, 1)])


def cursor_of(index: Index, cas: int, *, descending: bool = False) -> Cursor:
    return Cursor(index.id, scan_digest(index.id, ALL.bounds, descending), 0, cas, ENTRY)


def code(state: StateContext, index: Index, after: str) -> str:
    """Return how a page is refused, empty if it is not."""
    body = scan.ScanBody(bucket=index.bucket, name=index.name, after=after)
    try:
        scan._planned(state, index, body, scan._Terms(0, (), time.monotonic() + 10))
    except ApiError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        ((), "not_ready"),
        ((replace(NEW, replaces=OLD.id, state=BACKFILL),), "not_ready"),
    ],
    ids=["not made yet", "built yet"],
)
def test_a_node_that_is_behind_does_not_say_what_became_of_an_index(
    known: tuple[Index, ...], answer: str
) -> None:
    """The page before was of an index that has replaced another one under this name."""
    state = state_of(OLD, *known)
    assert code(state, OLD, str(cursor_of(NEW, state.cas + 5))) == answer
    assert code(state, OLD, str(cursor_of(NEW, state.cas))) != answer


def test_a_node_that_is_behind_goes_on_in_an_index_that_it_knows() -> None:
    state = state_of(OLD)
    assert code(state, OLD, str(cursor_of(OLD, state.cas + 5))) == ""


@pytest.mark.parametrize("descending", [False, True])
def test_a_part_of_a_cursor_skips_no_rows(descending: bool) -> None:
    text = str(cursor_of(OLD, 1, descending=descending))
    state = state_of(OLD)
    assert descending or code(state, OLD, text) == ""
    for cut in range(1, len(text)):
        assert code(state, OLD, text[:-cut]) == "invalid_request"
    for more in ("A", "AAAA", "="):
        assert code(state, OLD, text + more) == "invalid_request"

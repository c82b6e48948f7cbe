"""Whose answers count while an index is prepared."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.leader.prepare import Prepares
from coordinator.core.model.commands import ForgetIndex, UndoIndex
from coordinator.core.model.records import ALLOCATED, REFUSED, RELEASED, SliceAnswered
from tests.support.indexes import make_index


def test_who_hosts_nothing_of_an_index_neither_refuses_nor_allocates_it() -> None:
    prepares = Prepares([make_index(1, 1, state="init")], 0)
    assert prepares.count(SliceAnswered(9, 5, 1, REFUSED, "no room", (0,), 0)) is None
    due = prepares.count(SliceAnswered(1, 5, 1, ALLOCATED, "", (0,), 7))
    assert due is not None
    assert [shard.indexer for shard in due.shards] == [1]


def test_who_is_lost_is_not_waited_for_where_an_index_is_dropped_and_else_he_is() -> None:
    dropped = Prepares([make_index(1, 1, 2, state="dropping")], 0)
    assert dropped.overdue(5, 10, lambda indexer: False) == []
    assert dropped.count(SliceAnswered(1, 5, 1, RELEASED, "", (0,), 0)) is None
    assert dropped.overdue(5, 10, lambda indexer: indexer == 2) == [ForgetIndex(1)]
    made = Prepares([make_index(1, 1, 2, state="init")], 0)
    assert made.overdue(5, 10, lambda indexer: True) == []
    (undone,) = made.overdue(11, 10, lambda indexer: True)
    assert isinstance(undone, UndoIndex)


def test_a_part_of_an_index_is_waited_for_where_a_new_index_is_undone() -> None:
    """Nobody waits for the answer: a slow target is given up when it is lost."""
    made = Prepares([replace(make_index(2, 1, state="init"), part_of=1)], 0)
    assert made.overdue(1_000_000, 10, lambda indexer: False) == []
    (undone,) = made.overdue(11, 10, lambda indexer: True)
    assert undone == UndoIndex(2, "indexer 1 is not alive")

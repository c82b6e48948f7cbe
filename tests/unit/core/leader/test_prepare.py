"""Whose answers count while an index is prepared."""

from __future__ import annotations

from coordinator.core.leader.prepare import Prepares
from coordinator.core.model.records import ALLOCATED, REFUSED, SliceAnswered
from tests.support.indexes import make_index


def test_who_hosts_nothing_of_an_index_neither_refuses_nor_allocates_it() -> None:
    prepares = Prepares([make_index(1, 1, state="init")], 0)
    assert prepares.count(SliceAnswered(9, 5, 1, REFUSED, "no room", (0,), 0)) is None
    due = prepares.count(SliceAnswered(1, 5, 1, ALLOCATED, "", (0,), 7))
    assert due is not None
    assert [shard.indexer for shard in due.shards] == [1]

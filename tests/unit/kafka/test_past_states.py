"""Copies of past states on a topic: whole ones are found, also behind one that is torn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import codec
from coordinator.core.catalog.snapshots import SnapshotChunk, chunks
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.types import Cas
from coordinator.kafka.past_states import PastStates
from tests.support.views import a_state_of


class Log:
    """A topic of these records."""

    def __init__(self, records: list[SnapshotChunk]) -> None:
        self._messages: list[Any] = [
            SimpleNamespace(
                value=lambda v=codec.encode(record): v, offset=lambda at=at: at, partition=lambda: 0
            )
            for at, record in enumerate(records)
        ]

    def bounds(self) -> tuple[int, int]:
        return 0, len(self._messages)

    def first(self, offset: int, _: threading.Event) -> Any:
        return self._messages[offset]

    def read(self, offset: int, _: threading.Event) -> Iterator[Any]:
        yield SimpleNamespace(records=self._messages[offset:], at_end=True)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("torn", [0, 1, 3])
def test_behind_copies_that_are_torn_an_older_one_is_found(
    torn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [a_state_of(count) for count in range(2, 3 + torn)]
    assert [s.cas for s in states] == sorted({s.cas for s in states})
    records: list[SnapshotChunk] = [*chunks(1, states[0])]
    for copy, state in enumerate(states[1:], 2):
        (whole,) = chunks(copy, state)
        records.append(SnapshotChunk(whole.copy, whole.cas, whole.digest, 0, False, whole.entries))
    past = PastStates("", "c", threading.Event(), lambda *_: None)
    monkeypatch.setattr(past, "_open", lambda _: Log(records))
    found = past.copy_below(Cas(states[-1].cas))
    assert isinstance(found, StateContext)
    assert (found.cas, found.digest) == (states[0].cas, states[0].digest)

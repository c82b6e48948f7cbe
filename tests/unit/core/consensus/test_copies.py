"""Which copies of the state a node gives to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.view import FOLLOWING, Tokens


@pytest.mark.parametrize(("cas", "is_given"), [(9, False), (8, True)])
def test_nobody_gives_a_copy_that_has_not_what_is_asked_for(cas: int, is_given: bool) -> None:
    view: Any = SimpleNamespace(
        config=SimpleNamespace(node=1, incarnation=7),
        state=SimpleNamespace(cas=8, digest=0),
        phase=FOLLOWING,
    )
    question: Any = SimpleNamespace(of=1, node=2, cas=cas)
    assert bool(Copies(Tokens(), Counters()).asked(view, question)) is is_given


def test_a_copy_that_is_wanted_is_due_once_however_little_the_log_has_grown() -> None:
    view: Any = SimpleNamespace(
        config=SimpleNamespace(snapshot_bytes=1_000),
        state=SimpleNamespace(size=10),
        authority=None,
    )
    copies = Copies(Tokens(), Counters())
    copies.log_grew(1)
    assert not copies.is_due(view)
    copies.wanted()
    assert copies.is_due(view)
    copies.begun()
    assert not copies.is_due(view)

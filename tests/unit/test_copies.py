"""Which copies of the state a node gives to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.copies import Copies


def test_nobody_gives_a_copy_that_has_not_what_is_asked_for() -> None:
    given: list[Any] = []
    node: Any = SimpleNamespace(
        config=SimpleNamespace(node=1, incarnation=7),
        state=SimpleNamespace(cas=8, digest=0),
        is_following=True,
        token=lambda: 1,
        emit=given.append,
    )
    copies = Copies(node)
    for cas in (9, 8):
        question: Any = SimpleNamespace(of=1, node=2, cas=cas)
        copies.asked(question)
        assert bool(given) is (cas == 8)

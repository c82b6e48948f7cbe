"""What could not be written is written with what comes next; nothing of it is lost or undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.consensus.durability import Durability, checkpoint
from coordinator.core.consensus.inputs import StoreFailed
from coordinator.core.consensus.view import Tokens
from coordinator.core.model.types import Instant

FULL = "full"


def a_view(**more: Any) -> Any:
    """Return what a node at CAS 3 shows, which has applied offset 5."""
    state = SimpleNamespace(cas=3, digest=0)
    given = {"applied": 5, "authority": None, "state": state, "state_known": True, "prepared": None}
    return SimpleNamespace(now=Instant(0, 0), **(given | more))


def fail_to_save(durability: Durability, view: Any) -> None:
    saved = durability.save(checkpoint(view, None))
    durability.store_failed(view, StoreFailed(saved.token, FULL))


def test_of_two_batches_that_failed_the_newer_one_counts() -> None:
    durability, view = Durability(Tokens()), a_view()
    changes: Any = durability.unsaved.changes
    changes["config/k"] = "older"
    durability.save(checkpoint(view, None))
    changes = durability.unsaved.changes
    changes["config/k"] = "newer"
    fail_to_save(durability, view)
    assert durability.unsaved.changes == {"config/k": "newer"}


def test_a_wipe_that_failed_is_not_forgotten() -> None:
    durability, view = Durability(Tokens()), a_view()
    durability.unsaved.wipe = True
    durability.save(checkpoint(view, None))
    durability.unsaved.changes["config/k"] = None
    fail_to_save(durability, view)
    assert durability.unsaved.wipe


def test_rows_that_failed_are_written_again() -> None:
    durability = Durability(Tokens())
    view = a_view(authority=SimpleNamespace(log_next=2, log={0: "a", 1: "b"}, open=None))
    fail_to_save(durability, view)
    rows: Any = durability.save(checkpoint(view, None)).rows
    assert list(rows) == [(0, "a"), (1, "b")]

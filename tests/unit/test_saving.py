"""What could not be written is written with what comes next; nothing of it is lost or undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.effects import Save
from coordinator.core.inputs import StoreFailed
from coordinator.core.saving import Keeper


def a_keeper(**more: Any) -> tuple[Keeper, list[Save]]:
    """Return the keeper of a node that stands at CAS 3, and what it emits."""
    saved: list[Save] = []
    tokens = iter(range(1, 100))
    given = {
        "token": lambda: next(tokens),
        "applied": 5,
        "state_known": True,
        "authority": None,
        "log": None,
        "state": SimpleNamespace(cas=3, digest=0),
        "emit": saved.append,
        "note": lambda _: None,
        "now": SimpleNamespace(mono_ms=0),
    }
    node: Any = SimpleNamespace(**(given | more))
    return Keeper(node), saved


def test_of_two_batches_that_failed_the_newer_one_counts() -> None:
    keeper, _ = a_keeper()
    changes: Any = keeper.unsaved.changes
    changes["config/k"] = "older"
    keeper.save(None)
    changes = keeper.unsaved.changes
    changes["config/k"] = "newer"
    keeper.store_failed(StoreFailed(keeper.save(None), "full"))
    assert keeper.unsaved.changes == {"config/k": "newer"}


def test_a_wipe_that_failed_is_not_forgotten() -> None:
    keeper, _ = a_keeper()
    keeper.unsaved.wipe = True
    keeper.save(None)
    keeper.unsaved.changes["config/k"] = None
    keeper.store_failed(StoreFailed(keeper.save(None), "full"))
    assert keeper.unsaved.wipe


def test_rows_that_failed_are_written_again() -> None:
    authority = SimpleNamespace(log_next=2, log={0: "a", 1: "b"}, log_capacity=9, open=None)
    keeper, saved = a_keeper(authority=authority)
    keeper.store_failed(StoreFailed(keeper.save(None), "full"))
    keeper.save(None)
    rows: Any = saved[-1].rows
    assert list(rows) == [(0, "a"), (1, "b")]

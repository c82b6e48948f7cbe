"""Which indexes can be scanned, and after which rollback: what a node says without asking."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.model.entities import (
    BACKFILL,
    ERROR,
    MAINTENANCE,
    PENDING,
    READY,
    ROLLBACK,
    ROLLBACK_DONE,
    ROLLBACK_PREPARE,
    ROLLBACK_RESTART,
    ROLLBACK_STARTED,
)
from coordinator.http.errors import ApiError
from coordinator.http.scan import _ready, _rollback
from tests.support.fed_storage import make_rollback
from tests.support.indexes import make_index


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (PENDING, "index_building"),
        (BACKFILL, "index_building"),
        (ERROR, "index_failed"),
        (READY, "index_not_ready"),
    ],
)
def test_what_is_not_built_is_not_scanned(state: str, code: str) -> None:
    progress = SimpleNamespace(all=dict)
    shell: Any = SimpleNamespace(node=SimpleNamespace(peers=SimpleNamespace(progress=progress)))
    built = make_index(1, state=MAINTENANCE)
    assert _ready(shell, built) is built
    with pytest.raises(ApiError) as caught:
        _ready(shell, make_index(1, state=state))
    assert caught.value.code == code


def test_a_scan_needs_the_last_rollback_and_none_until_it_is_known_to_where() -> None:
    def needed(rollback: Any) -> int:
        state = SimpleNamespace(rollback=lambda _: rollback)
        shell: Any = SimpleNamespace(node=SimpleNamespace(state=state))
        return _rollback(shell, make_index(1, bucket="b"))

    assert needed(None) == 0
    for state in (ROLLBACK, ROLLBACK_DONE):
        assert needed(make_rollback(7, 1, {0: 5}, state=state)) == 7
    for state in (ROLLBACK_STARTED, ROLLBACK_PREPARE, ROLLBACK_RESTART):
        with pytest.raises(ApiError) as caught:
            needed(make_rollback(7, 1, {0: 5}, state=state))
        assert (caught.value.code, caught.value.details["state"]) == ("index_rolling_back", state)

"""The one table of a node's states."""

from __future__ import annotations

import pytest

from coordinator.core.consensus.roles import (
    BOOTSTRAP,
    MASTER,
    MOVES,
    REPLICA,
    ROLES,
    ROLLBACK,
    IllegalMoveError,
    moved,
    next_role,
)


@pytest.mark.parametrize("now", ROLES)
@pytest.mark.parametrize("wanted", ROLES)
def test_every_state_is_reached_by_legal_moves_only(now: str, wanted: str) -> None:
    steps = [now]
    while steps[-1] != wanted:
        steps.append(next_role(steps[-1], wanted))
        assert steps[-1] in MOVES[steps[-2]]
        assert len(steps) <= 3


@pytest.mark.parametrize("now", ROLES)
@pytest.mark.parametrize("to", ROLES)
def test_a_move_that_the_table_does_not_have_raises(now: str, to: str) -> None:
    if to == now or to in MOVES[now]:
        assert moved(now, to) == to
    else:
        with pytest.raises(IllegalMoveError, match=f"{now} cannot become {to}"):
            moved(now, to)


def test_a_deposed_master_goes_through_bootstrap() -> None:
    assert next_role(MASTER, REPLICA) == BOOTSTRAP


def test_who_succeeds_a_master_in_a_rollback_goes_on_with_it_at_once() -> None:
    assert next_role(BOOTSTRAP, ROLLBACK) == ROLLBACK
    assert next_role(REPLICA, ROLLBACK) == ROLLBACK
    assert next_role(ROLLBACK, REPLICA) == BOOTSTRAP

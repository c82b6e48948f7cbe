"""Bugs in clients' transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl, transactions
from coordinator.core.catalog.decisions import Accepted
from coordinator.core.catalog.state import StateContext
from coordinator.core.history import undo
from coordinator.core.leader.request_table import Creator
from coordinator.core.model.commands import Transact

Patch = pytest.MonkeyPatch


def _decide_otherwise(patch: Patch, other: Any) -> None:
    """Let another command be decided than was asked for."""
    decide = transactions.decide_transaction

    def deciding(state: StateContext, request: Any, *more: Any) -> Any:
        return decide(state, replace(request, command=other(request.command)), *more)

    patch.setattr(ddl, "decide_transaction", deciding)


def a_transaction_takes_the_wrong_branch(patch: Patch) -> None:
    def swapped(command: Transact) -> Transact:
        return replace(command, then=command.otherwise, otherwise=command.then)

    _decide_otherwise(patch, swapped)


def a_comparison_is_left_out(patch: Patch) -> None:
    _decide_otherwise(patch, lambda command: replace(command, compare=command.compare[1:]))


def a_transaction_loses_its_last_operation(patch: Patch) -> None:
    decide = transactions.decide_transaction

    def deciding(*given: Any) -> Any:
        decision = decide(*given)
        if isinstance(decision, Accepted) and len(decision.changes) > 1 and not decision.waits_for:
            kept = decision.changes[:-1]
            return replace(decision, changes=kept, subject=len(kept) - 1)
        return decision

    patch.setattr(ddl, "decide_transaction", deciding)


def a_transaction_is_answered_at_its_first_index(patch: Patch) -> None:
    begin = Creator.__init__

    def hasty(self: Creator, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self.left = set(list(self.left)[:1])

    patch.setattr(Creator, "__init__", hasty)


def an_undo_creates_another_index(patch: Patch) -> None:
    define = undo.definition_of
    patch.setattr(undo, "definition_of", lambda index: replace(define(index), expressions=("z",)))


def a_comparison_is_decided_apart(patch: Patch) -> None:
    """What a transaction compares may change in the same group, by a command before it."""
    footprint = transactions.footprint_of

    def narrow(state: StateContext, command: Transact, of: Any) -> Any:
        return footprint(state, replace(command, compare=()), of)

    patch.setattr(ddl, "footprint_of", narrow)

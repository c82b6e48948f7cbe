"""Bugs in what clients are told, and in what their commands do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog import state as states
from coordinator.core.catalog.decisions import Accepted, Circumstances, Decision
from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.effects import ReadDdl, Reply
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader.group_commit import GroupCommit
from coordinator.core.leader.master import Master
from coordinator.core.leader.prepare import Wait
from coordinator.core.leader.read_barriers import ReadBarriers
from coordinator.core.model.commands import (
    OK,
    DeleteSetting,
    DropIndex,
    Outcome,
    PutSetting,
    Request,
)
from coordinator.core.model.entities import INIT

Patch = pytest.MonkeyPatch

Decider = Callable[[StateContext, Request, Circumstances], Decision]


def refusal_without_a_barrier(patch: Patch) -> None:
    send = ReadBarriers.send

    def hasty(self: ReadBarriers, view: NodeView) -> list[Result]:
        refused = [one for one in self._next if one.outcome.status != OK]
        self._next = [one for one in self._next if one.outcome.status == OK]
        return [*(Reply(one.token, one.outcome) for one in refused), *send(self, view)]

    patch.setattr(ReadBarriers, "send", hasty)


def read_without_a_barrier(patch: Patch) -> None:
    def hasty(self: Master, view: NodeView, token: int, deadline_ms: int) -> list[Result]:
        return [Reply(token, Outcome(OK, cas=view.state.cas))]

    patch.setattr(Master, "read_requested", hasty)


def outcomes_are_forgotten(patch: Patch) -> None:
    patch.setattr(OutcomeWindow, "find", lambda self, request_id: None)


def later_ddl_overtakes_a_parked_command(patch: Patch) -> None:
    form = GroupCommit.form

    def forgetful(self: GroupCommit, view: NodeView, txn: Any) -> Any:
        table = self._requests
        parked, table.parked = table.parked, {}
        group = form(self, view, txn)
        for number, requests in parked.items():
            table.parked[number] = requests + table.parked.get(number, [])
        return group

    patch.setattr(GroupCommit, "form", forgetful)


def names_are_decided_apart(patch: Patch) -> None:
    footprint = ddl.footprint

    def narrow(state: Any, command: Any, request_id: str = "") -> frozenset[str]:
        keys = footprint(state, command, request_id)
        return frozenset(key for key in keys if not key.startswith("name/"))

    patch.setattr(ddl, "footprint", narrow)


def ready_without_every_indexer(patch: Patch) -> None:
    missing = Wait.missing.fget
    assert missing is not None

    def hasty(self: Wait) -> frozenset[int]:
        return frozenset() if self.state == INIT and self.answered else missing(self)

    patch.setattr(Wait, "missing", property(hasty))


def request_id_is_not_recorded(patch: Patch) -> None:
    def forgetful(request: Any, changes: Any, answer: Any) -> Accepted:
        return Accepted(changes, answer)

    patch.setattr(ddl, "accepted", forgetful)


def outcome_is_evicted_too_early(patch: Patch) -> None:
    due = OutcomeWindow.due

    def eager(self: OutcomeWindow, now: Any, window_ms: int, led_ms: int) -> int:
        month_ms = 30 * 24 * 3_600_000
        later = now._replace(mono_ms=now.mono_ms + month_ms, wall_ms=now.wall_ms + month_ms)
        return due(self, later, window_ms, window_ms)

    patch.setattr(OutcomeWindow, "due", eager)


def expired_request_id_is_taken_for_new(patch: Patch) -> None:
    patch.setattr(ddl, "time_of_uuid7", lambda request_id: None)


def expected_cas_is_not_compared(patch: Patch) -> None:
    def careless(decide: Decider) -> Decider:
        return lambda state, request, given: decide(
            state, replace(request, expected_cas=None), given
        )

    for kind in (PutSetting, DeleteSetting):
        patch.setitem(ddl.DECIDERS, kind, careless(ddl.DECIDERS[kind]))


def dropped_index_keeps_its_name(patch: Patch) -> None:
    """Some indexes are not found when they are to be dropped."""
    drop = ddl.DECIDERS[DropIndex]

    def blind(state: StateContext, request: Request, given: Circumstances) -> Decision:
        command = request.command
        assert isinstance(command, DropIndex)
        by_name = state.index_named(command.bucket, command.name)
        held = state.index_by_id(command.index_id) if command.index_id else by_name
        unseen = held is not None and held.cas % 3 == 0
        return drop(states.EMPTY if unseen else state, request, given)

    patch.setitem(ddl.DECIDERS, DropIndex, blind)


def one_partition_of_ddl_is_read_twice(patch: Patch) -> None:
    take_ddl = Master.take_ddl

    def forgetful(self: Master, view: NodeView) -> list[Result]:
        found = take_ddl(self, view)
        for number, result in enumerate(found):
            if isinstance(result, ReadDdl):
                kept = tuple(pair for pair in result.consumed if pair[0] != 1)
                found[number] = replace(result, consumed=kept)
                self._taken.pop(1, None)
        return found

    patch.setattr(Master, "take_ddl", forgetful)

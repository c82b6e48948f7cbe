"""Bugs in how indexes are built and streams are opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import builds, ddl
from coordinator.core.catalog.decisions import Accepted, Circumstances
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader import build_coordinator
from coordinator.core.leader.build_coordinator import BuildCoordinator
from coordinator.core.leader.stream_restart import Asked

Patch = pytest.MonkeyPatch


def built_without_every_indexer(patch: Patch) -> None:
    patch.setattr(build_coordinator, "is_built", lambda index, built: bool(built))


def backfill_without_a_router(patch: Patch) -> None:
    patch.setattr(build_coordinator, "is_routed", lambda index, routed, projectors: True)


def lost_storage_is_not_built_again(patch: Patch) -> None:
    patch.setattr(ddl, "begin_build", lambda index, given: index)


def stream_is_renewed_under_its_old_number(patch: Patch) -> None:
    renew = builds.BUILD_DECIDERS[builds.RenewStream]

    def careless(state: Any, request: Any, given: Any) -> Any:
        decision = renew(state, request, given)
        if not isinstance(decision, Accepted) or not request.command.number:
            return decision
        change = decision.changes[0]
        sources = tuple(replace(s, number=1) for s in change.entity.sources)
        return Accepted((replace(change, entity=replace(change.entity, sources=sources)),), {})

    patch.setitem(ddl.DECIDERS, builds.RenewStream, careless)


def generations_are_counted(patch: Patch) -> None:
    """An event that no verdict counts then has the number of a later one."""
    patch.setattr(Circumstances, "number", property(lambda self: 1 + self.txn.seq))


def answer_about_an_older_build_counts(patch: Patch) -> None:
    built = BuildCoordinator.built

    def any_build(self: BuildCoordinator, view: NodeView, record: Any) -> None:
        held = view.state.index_by_id(record.index_id)
        index: Any = held.entity if held else None
        built(self, view, replace(record, build=index.build) if index else record)

    patch.setattr(BuildCoordinator, "built", any_build)


def renewal_does_not_say_what_it_answers(patch: Patch) -> None:
    """Another master, or the same one a little later, answers it again, and again."""
    renew = builds.BUILD_DECIDERS[builds.RenewStream]

    def forgetful(state: Any, request: Any, given: Any) -> Any:
        return renew(state, replace(request, command=replace(request.command, restart=0)), given)

    patch.setitem(ddl.DECIDERS, builds.RenewStream, forgetful)


def answer_is_waited_for_without_end(patch: Patch) -> None:
    patch.setattr(Asked, "may_be_answered", lambda self, view: True)

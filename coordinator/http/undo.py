"""Undo over HTTP: take the state back to how it was at a CAS, by ordinary changes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from coordinator.core.catalog.state import StateContext
from coordinator.core.catalog.transactions import OPERATIONS_MAX
from coordinator.core.history import shown
from coordinator.core.history.changes import kind_of
from coordinator.core.history.predicates import Predicate
from coordinator.core.history.undo import Step, Undo, plan_undo, transactions_of
from coordinator.core.model import commands
from coordinator.core.model.types import Cas
from coordinator.http import models
from coordinator.http.aside import VIEWS
from coordinator.http.encoding import encoded
from coordinator.http.errors import ApiError
from coordinator.http.execution import IdempotencyKey, Principal, execute
from coordinator.http.history import told
from coordinator.http.shared import APPLIED_CAS, Consistency
from coordinator.node.shell import Shell

TRIES_MAX = 5
"""So often an undo is computed anew, because what it changes was changed in the meantime."""

PAGE = 1_000
STEP_HASH_BYTES = 8
Settle = Callable[[Consistency, int], Awaitable[None]]


def add_undo(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the route; `settle` waits until this node may answer a read."""

    @app.post("/v1/undo", response_model=models.UndoAnswer)
    async def undo(
        body: models.UndoBody,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Take the state back to a CAS: settings get their values, dropped indexes come back.

        Ordinary changes in one transaction, each guarded by the CAS of what it replaces.
        """
        undoing = Undoing(shell, body, idempotency_key, x_principal)
        for _ in range(TRIES_MAX):
            await settle("linearizable", 0)
            answer = await undoing.attempt()
            if answer is not None:
                return answer
        raise ApiError("cas_mismatch", "what is to be undone is being changed: look again")


class Undoing:
    """One request for an undo, which may be computed more than once."""

    def __init__(
        self, shell: Shell, asked: models.UndoBody, key: str | None, principal: str | None
    ) -> None:
        self._shell = shell
        self._asked = asked
        self._key = key
        self._principal = principal

    async def attempt(self) -> Response | None:
        """Compute the undo, and execute it; None: what it changes was changed in the meantime."""
        asked, now = self._asked, self._shell.node.state
        if asked.to > now.cas:
            text = f"CAS {asked.to} is later than {now.cas}, which is now"
            raise ApiError("invalid_request", text)
        then = await told(lambda: self._shell.history.state_at(Cas(asked.to), now))
        plan = plan_undo(then, now, asked.only)
        if asked.dry_run:
            changes = await told(lambda: [change_of(step, asked.to) for step in plan.steps])
            return await self._answer(plan, changes, [], now)
        if not self._is_repeat():
            await self._check(plan, then, now)
        changes = []
        txns: list[str] = []
        done = 0
        for part in transactions_of(plan, Cas(asked.to), asked.in_steps):
            steps = plan.steps[done : done + len(part.then)]
            outcome = await self._execute(part)
            if not outcome.answer["succeeded"]:
                return None
            changes += await self._changes(steps, outcome)
            txns += [outcome.txn] if outcome.txn else []
            done += len(steps)
        return await self._answer(plan, changes, txns, self._shell.node.state)

    def _is_repeat(self) -> bool:
        """Tell whether this was done already: a repeat is answered, whatever it would be now."""
        return self._key is not None and self._shell.node.outcomes.find(self._key) is not None

    async def _check(self, plan: Undo, then: StateContext, now: StateContext) -> None:
        """Refuse what is too much at once, and what was not looked at before. Raises ApiError."""
        asked = self._asked
        if len(plan.steps) > OPERATIONS_MAX and not asked.in_steps:
            text = f"{len(plan.steps)} changes; one transaction has at most {OPERATIONS_MAX}"
            raise ApiError("too_large", f"{text}: undo in steps", {"limit": OPERATIONS_MAX})
        if asked.expected_cas is None:
            return
        seen = Cas(asked.expected_cas)
        before = await told(lambda: self._shell.history.state_at(seen, now))
        looked_at = plan_undo(then, before, asked.only).steps
        # Of an undo in steps some may be done.
        is_known = set(plan.steps) <= set(looked_at) if asked.in_steps else plan.steps == looked_at
        if not is_known:
            text = f"since CAS {seen} what would be undone has changed: look again"
            raise ApiError("cas_mismatch", text, {"expected": seen, "actual": now.cas})

    async def _execute(self, part: commands.Transact) -> commands.Outcome:
        """Execute one transaction, under an id of its own if there are several."""
        asked, key = self._asked, self._key
        fingerprint = _hash(asked.to, sorted(asked.only), asked.expected_cas)
        if key is not None and asked.in_steps:
            fingerprint = _hash(repr(part))
            key = f"{key}/{fingerprint:x}"
        return await execute(
            self._shell,
            part,
            key=key,
            if_match=None,
            principal=self._principal,
            fingerprint=fingerprint,
            is_examined=True,
        )

    async def _changes(
        self, steps: Sequence[Step], outcome: commands.Outcome
    ) -> list[dict[str, Any]]:
        """Return what was changed, with the CAS of each; a repeat looks it up."""
        if _is_answer_to(steps, outcome.answer["compared"]):
            return await told(lambda: _changes_of(steps, outcome, self._asked.to))
        found = await told(lambda: self._history_of(outcome.txn))
        return [json.loads(text) for text in found]

    def _history_of(self, txn: str) -> list[str]:
        """Return the changes of a transaction after the moment that was led back to."""
        newest, after = self._shell.node.state, Cas(self._asked.to)
        found: list[str] = []
        while True:
            predicate = Predicate(txns=frozenset({txn}))
            page = self._shell.history.page(after, None, predicate, PAGE, newest)
            found += map(shown.change, page.changes)
            if page.next is None:
                return found
            after = page.next

    async def _answer(
        self, plan: Undo, changes: list[dict[str, Any]], txns: list[str], now: StateContext
    ) -> Response:
        body = {
            "undo": self._key or "",
            "to": self._asked.to,
            "changes": changes,
            "kept": [{"key": one.key, "reason": one.reason} for one in plan.kept],
            "txns": txns,
            "cas": now.cas,
        }
        content = await VIEWS.run(lambda: encoded(body))
        headers = {APPLIED_CAS: str(now.cas)}
        return Response(content, 200, headers, "application/json")


def change_of(step: Step, to: int) -> dict[str, Any]:
    """Return a change of an undo as the history would, before it is made."""
    created = isinstance(step.operation, commands.CreateIndex)
    event = {
        commands.PutSetting: "SettingWritten",
        commands.DeleteSetting: "SettingDeleted",
        commands.DropIndex: "IndexDropped",
        commands.CreateIndex: "IndexProposed",
    }[type(step.operation)]
    return {
        "key": step.key,
        "kind": kind_of(step.key),
        "event": event,
        "cas": 0,
        "txn": "",
        "before_cas": step.now.cas if step.now is not None else 0,
        "before": None if created else json.loads(shown.value(step.now)),
        "value": json.loads(shown.value(step.then)),
        "dropped": step.then is None,
        "undoes": to,
    }


def _changes_of(steps: Sequence[Step], outcome: commands.Outcome, to: int) -> list[dict[str, Any]]:
    return [
        {**change_of(step, to), "cas": result["cas"], "txn": outcome.txn, **_made(result)}
        for step, result in zip(steps, outcome.answer["results"], strict=True)
    ]


def _made(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result says of an index that was created for one that was dropped."""
    return {name: result[name] for name in ("index", "error") if name in result}


def _is_answer_to(steps: Sequence[Step], compared: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a transaction compared what these steps compare; else it is an earlier one."""
    asked = [(one.key, one.bucket, one.name, one.cas) for one in (s.comparison for s in steps)]
    found = [
        (
            "" if row.get("name") else row["key"],
            row.get("bucket", ""),
            row.get("name", ""),
            row["cas"],
        )
        for row in compared
    ]
    return found == asked


def _hash(*parts: Any) -> int:
    text = repr(parts).encode("utf-8", "backslashreplace")
    return int.from_bytes(blake2b(text, digest_size=STEP_HASH_BYTES).digest(), "little") >> 1

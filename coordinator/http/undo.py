"""Undo over HTTP: take the state back to how it was at a CAS, by ordinary changes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from coordinator import codec
from coordinator.core.catalog.outcomes import time_of_uuid7
from coordinator.core.catalog.state import StateContext
from coordinator.core.catalog.transactions import OPERATIONS_MAX
from coordinator.core.history import shown
from coordinator.core.history.changes import KEY_RULE, is_key, kind_of
from coordinator.core.history.predicates import Predicate
from coordinator.core.history.undo import Step, Undo, plan_undo, transactions_of
from coordinator.core.model import commands
from coordinator.core.model.types import Cas
from coordinator.http import models
from coordinator.http.aside import VIEWS
from coordinator.http.encoding import encoded
from coordinator.http.errors import ApiError
from coordinator.http.execution import IdempotencyKey, Principal, execute, remembered
from coordinator.http.history import read_history
from coordinator.http.shared import APPLIED_CAS, Consistency
from coordinator.node.shell import Shell

TRIES_MAX = 5
"""So often an undo is computed anew, because what it changes was changed in the meantime."""

PAGE = 1_000
STEPS_KEY_LENGTH_MAX = 120
Settle = Callable[[Consistency, int], Awaitable[None]]


def add_undo(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the route; `settle` waits until this node may answer a read."""

    @app.post("/v1/undo", response_model=models.UndoAnswer)
    async def undo(
        body: models.UndoBody,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Take the state back to a CAS: restore settings, create dropped indexes again.

        The undo makes ordinary changes in one transaction, each conditional on the CAS of the
        entity that it replaces.
        """
        undoing = Undoing(shell, body, idempotency_key, x_principal)
        for _ in range(TRIES_MAX):
            await settle("linearizable", 0)
            answer = await undoing.attempt()
            if answer is not None:
                return answer
        raise ApiError("cas_mismatch", undoing.unfinished())


class Undoing:
    """One request for an undo. It is computed again if an entity changes meanwhile.

    The transactions of an undo in steps have request ids derived from that of the request; the last
    one has the request's own id. So a repeat that finds an outcome under this id is complete. Any
    other repeat continues with the changes that are not made yet.
    """

    def __init__(
        self, shell: Shell, asked: models.UndoBody, key: str | None, principal: str | None
    ) -> None:
        self._shell = shell
        self._asked = asked
        self._key = key
        self._principal = principal
        self._changes: list[dict[str, Any]] = []
        self._txns: list[str] = []
        self._done: set[str] = set()
        """The keys of what is changed already."""

    def unfinished(self) -> str:
        """Return the error of an undo that was not completed, with the number of changes made."""
        text = "what is to be undone is being changed: look again"
        return f"{text}; {len(self._done)} changes were made" if self._done else text

    async def attempt(self) -> Response | None:
        """Compute the undo, and execute it; None: one of its entities has changed meanwhile."""
        asked, now = self._asked, self._shell.node.state
        if wrong := next((key for key in asked.only if not is_key(key)), None):
            raise ApiError("invalid_request", f"only: {wrong[:100]!r}: {KEY_RULE}")
        self._refuse_what_cannot_be(now)
        then = await read_history(lambda: self._state_at(Cas(asked.to), now))
        whole = await read_history(lambda: plan_undo(then, now, frozenset(asked.only)))
        if asked.dry_run:
            changes = await read_history(
                lambda: [change_of(step, then.cas) for step in whole.steps]
            )
            return await self._answer(then.cas, whole, changes, now)
        is_repeat = remembered(self._shell, self._key) is not None
        await self._take_up(then)
        steps = tuple(step for step in whole.steps if step.key not in self._done)
        if not is_repeat:
            await self._check(steps, then, now)
        plan = Undo(steps, whole.kept)
        parts = await read_history(lambda: transactions_of(plan, then.cas, asked.in_steps))
        position = 0
        for number, part in enumerate(parts, 1):
            chosen = steps[position : position + len(part.then)]
            position += len(part.then)
            key = self._key if is_repeat or number == len(parts) else self._step_key()
            outcome = await self._execute(part, key)
            if not outcome.answer["succeeded"]:
                return None
            self._txns += [outcome.txn] if outcome.txn else []
            if _is_answer_to(part, outcome):
                self._done |= {step.key for step in chosen}
                self._changes += await read_history(_told_of(chosen, outcome, then.cas))
            elif outcome.txn:
                changes = await self._history_of(outcome.txn, key or "")
                self._note(then, changes)
                if key != self._key:
                    # Another try of this request was first, and may have chosen other steps.
                    return None
            if is_repeat:
                break
        return await self._answer(then.cas, whole, self._changes, self._shell.node.state)

    def _refuse_what_cannot_be(self, now: StateContext) -> None:
        asked, key = self._asked, self._key or ""
        for name, cas in (("to", asked.to), ("expected_cas", asked.expected_cas or 0)):
            if cas > now.cas:
                text = f"{name}: CAS {cas} is later than {now.cas}, which is now"
                raise ApiError("invalid_request", text)
        if asked.in_steps and len(key) > STEPS_KEY_LENGTH_MAX:
            text = (
                f"the request id of an undo in steps has at most {STEPS_KEY_LENGTH_MAX} characters"
            )
            raise ApiError("invalid_request", text)
        authority, born_ms = self._shell.node.authority, time_of_uuid7(key)
        window_ms = authority.request_window_ms if authority is not None else 0
        if asked.in_steps and born_ms and born_ms < self._shell.now().wall_ms - window_ms:
            text = "this request id is older than the window in which outcomes are kept"
            raise ApiError("request_expired", text, {"window_ms": window_ms})

    def _state_at(self, cas: Cas, now: StateContext) -> StateContext:
        """Return the state after the transaction that has this CAS.

        The CAS that a writer got is often not the last one of its transaction, because a group
        commit has changes of several requests.
        """
        history = self._shell.history
        state = history.state_at(cas, now)
        if state.cas == cas:
            return state
        following = history.whole_page(state.cas, Predicate(), 1, now).changes
        has_it = any(change.event.cas == cas for change in following)
        return history.state_at(following[-1].event.cas, now) if has_it else state

    def _step_key(self) -> str | None:
        return f"{self._key}/{len(self._txns)}" if self._key is not None else None

    async def _take_up(self, then: StateContext) -> None:
        """Take note of the steps that an earlier try has done."""
        while (
            self._asked.in_steps
            and (found := remembered(self._shell, self._step_key())) is not None
        ):
            txn, request = str(found.txn), found.outcome.id
            changes = await self._history_of(txn, request)
            self._txns.append(txn)
            self._note(then, changes)

    def _note(self, then: StateContext, changes: list[dict[str, Any]]) -> None:
        """Take note of what the history says that another try has changed."""
        self._changes += changes
        self._done |= {change["key"] for change in changes}
        self._done |= _restored(then, changes)

    async def _check(self, steps: tuple[Step, ...], then: StateContext, now: StateContext) -> None:
        """Refuse what is too much at once, and what was not looked at before. Raises ApiError."""
        asked = self._asked
        if len(steps) > OPERATIONS_MAX and not asked.in_steps:
            text = f"{len(steps)} changes; one transaction has at most {OPERATIONS_MAX}"
            raise ApiError("too_large", f"{text}: undo in steps", {"limit": OPERATIONS_MAX})
        if asked.expected_cas is None:
            return
        seen = Cas(asked.expected_cas)

        def is_known() -> bool:
            before = self._shell.history.state_at(seen, now)
            looked_at = set(map(_what, plan_undo(then, before, frozenset(asked.only)).steps))
            due = set(map(_what, steps))
            # Of an undo in steps some may be done.
            return due <= looked_at if asked.in_steps else due == looked_at

        if not await read_history(is_known):
            done = f"; {len(self._done)} changes were made before" if self._done else ""
            text = f"since CAS {seen} what would be undone has changed{done}: look again"
            raise ApiError("cas_mismatch", text, {"expected": seen, "actual": now.cas})

    async def _execute(self, part: commands.Transact, key: str | None) -> commands.Outcome:
        asked = self._asked
        return await execute(
            self._shell,
            part,
            key=key,
            if_match=None,
            principal=self._principal,
            fingerprint=_hash(asked.to, sorted(asked.only), asked.expected_cas, asked.in_steps),
            is_examined=True,
        )

    async def _history_of(self, txn: str, request: str) -> list[dict[str, Any]]:
        """Return the changes of a transaction that this request made."""
        predicate = Predicate(txns=frozenset({txn}), requests=frozenset({request}))
        newest = self._shell.node.state
        found: list[dict[str, Any]] = []

        def read_page(after: Cas) -> Cas | None:
            page = self._shell.history.page(after, None, predicate, PAGE, newest)
            found.extend(json.loads(shown.change(change)) for change in page.changes)
            return page.next

        following: Cas | None = Cas(self._asked.to)
        while following is not None:
            # A page at a time: others who ask for the past are answered in between.
            following = await read_history(partial(read_page, following))
        return found

    async def _answer(
        self, to: Cas, plan: Undo, changes: list[dict[str, Any]], now: StateContext
    ) -> Response:
        body = {
            "dry_run": self._asked.dry_run,
            "to": to,
            "changes": changes,
            "kept": [{"key": one.key, "reason": one.reason} for one in plan.kept],
            "cas": now.cas,
        }
        if not self._asked.dry_run:
            body |= {"undo": self._key or "", "txns": self._txns}
        content = await VIEWS.run(lambda: encoded(body))
        headers = {APPLIED_CAS: str(now.cas)}
        return Response(content, 200, headers, "application/json")


def _restored(then: StateContext, changes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys of dropped indexes for which others were created under their names."""
    made = (change["value"] for change in changes if change["event"] == "IndexProposed")
    held = (then.index_named(value["bucket"], value["name"]) for value in made)
    return {one.entity.key for one in held if one is not None}


def _what(step: Step) -> tuple[Any, ...]:
    """Return the entities that a step replaces and their new values, without the expected CAS."""
    return step.key, step.now, step.then, step.operation


def change_of(step: Step, to: int) -> dict[str, Any]:
    """Return a change of an undo as the history would, before it is made."""
    created = isinstance(step.operation, commands.CreateIndex)
    event = {
        commands.PutSetting: "SettingWritten",
        commands.DeleteSetting: "SettingDeleted",
        commands.DropIndex: "IndexDropped",
        commands.CreateIndex: "IndexProposed",
        commands.AlterIndex: "IndexAltered",
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


def _told_of(
    steps: Sequence[Step], outcome: commands.Outcome, to: int
) -> Callable[[], list[dict[str, Any]]]:
    """Return what tells of the changes of a transaction."""
    return lambda: [
        {**change_of(step, to), "cas": result["cas"], "txn": outcome.txn, **_made(result)}
        for step, result in zip(steps, outcome.answer["results"], strict=True)
    ]


def _made(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result says of an index that was created for one that was dropped."""
    return {name: result[name] for name in ("index", "error") if name in result}


def _is_answer_to(part: commands.Transact, outcome: commands.Outcome) -> bool:
    """Tell whether an outcome is of this transaction; else it is that of an earlier try."""
    asked = [(one.key, one.bucket, one.name, one.cas) for one in part.compare]
    found = [
        (
            "" if row.get("name") else row["key"],
            row.get("bucket", ""),
            row.get("name", ""),
            row["cas"],
        )
        for row in outcome.answer["compared"]
    ]
    return found == asked


def _hash(*parts: Any) -> int:
    return codec.hashed(repr(parts).encode("utf-8", "backslashreplace"))

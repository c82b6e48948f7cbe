"""What clients saw of the simulated cluster, as histories for the checker of linearizability.

One object is each setting, and each bucket with the names of its indexes. Writers are clients,
producers on the `ddl` topic, and a master that writes entities again; readers are clients whose
reads passed a barrier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Outcome,
    PutSetting,
    Request,
)
from coordinator.core.model.entities import DROPPING, INIT, Index, Setting
from tests.simulation.actors import Reading
from tests.simulation.alters import BUCKET
from tests.support.linearizability import (
    UNKNOWN,
    NameSpace,
    Ok,
    Operation,
    Refused,
    Register,
    check,
)

if TYPE_CHECKING:
    from tests.simulation.judge import Judge

CODES = {"config_not_found": "not_found", "index_not_found": "not_found"}
EXPIRED, AHEAD = "request_expired", "clock_ahead"


def violation_of(judge: Judge) -> str:
    """Say which history is not linearizable, and why; an empty text if all are."""
    settings: list[Operation] = []
    names: list[Operation] = []
    for operation in _operations(judge):
        (settings if operation.target[0] == "setting" else names).append(operation)  # type: ignore
    for history, model in ((settings, Register()), (names, NameSpace())):
        violation = check(history, model)
        if violation is not None:
            return str(violation)
    return ""


def _operations(judge: Judge) -> Iterator[Operation]:
    for op in judge.ops:
        heard = op.outcome
        if heard is not None and heard.code in (EXPIRED, AHEAD) and op.tries > 1:
            heard = None
        yield from _written(op.request, heard, op.invoked_ms, op.done_ms)
    yield from _published(judge)
    for key, versions in judge.versions.items():
        if not isinstance(key, str) or not key.startswith("config/"):
            continue
        for version in versions:
            if judge.done[version.cas].mutation.event == "EntityRewritten":
                at = version.since_ms
                target = ("setting", key.removeprefix("config/"))
                yield Operation("master", target, "rewrite", None, Ok(cas=version.cas), at, at)
    objects = {o.target for o in _all_targets(judge)}
    for reading in judge.readings:
        yield from _read(reading, objects)


def _all_targets(judge: Judge) -> Iterator[Operation]:
    for op in judge.ops:
        yield from _written(op.request, None, 0, 0)
    for writer in judge.world.writers:
        for request in writer.sent:
            yield from _written(request, None, 0, 0)


def _published(judge: Judge) -> Iterator[Operation]:
    """Yield the commands of the `ddl` topic, from the first time they were there to the reply."""
    invoked: dict[str, list[int]] = {}
    for partition in judge.world.broker.ddl:
        for stored in partition.read(0):
            invoked.setdefault(stored.value.id, []).append(stored.at_ms)
    replies: dict[str, Any] = {}
    for stored in judge.world.broker["ddl-replies"].read(0):
        copies = len(invoked.get(stored.value.request, ()))
        if stored.value.error_code not in passing(copies):
            replies.setdefault(stored.value.request, stored)
    requests = {r.id: r for writer in judge.world.writers for r in writer.sent}
    for request_id, request in requests.items():
        stored = replies.get(request_id)
        if stored is None:
            yield from _written(request, None, min(invoked[request_id]), -1)
            continue
        reply = stored.value
        outcome = Outcome(
            reply.status,
            reply.error_code,
            details=json.loads(reply.error_details_json),
            answer=json.loads(reply.answer_json),
            cas=reply.cas,
        )
        yield from _written(request, outcome, min(invoked[request_id]), stored.txn.decided_ms)


def passing(copies: int) -> tuple[str, ...]:
    """Return the refusals that may not be what becomes of a command that was sent so often.

    A repeat that came after the window is told so. Where the clock of a master was behind, an id
    was too far ahead then, and may not be when it is repeated, and the refusal forgotten.
    """
    return (EXPIRED, AHEAD) if copies > 1 else ()


def _written(
    request: Request, heard: Outcome | None, invoked: int, returned: int
) -> Iterator[Operation]:
    command = request.command
    result: Any = UNKNOWN
    target: tuple[str, str]
    argument: Any = None
    if isinstance(command, PutSetting | DeleteSetting):
        target = ("setting", command.name)
        call = "put" if isinstance(command, PutSetting) else "delete"
        argument = command.value_json if isinstance(command, PutSetting) else None
    elif isinstance(command, CreateIndex | DropIndex) and command.bucket != BUCKET:
        target = ("bucket", command.bucket)
        call = "create" if isinstance(command, CreateIndex) else "drop"
        argument = command.name
    else:
        return
    if heard is not None and heard.status in (OK, REFUSED):
        result = _result(command, heard)
    until = None if result is UNKNOWN else returned
    yield Operation(
        request.id, target, call, argument, result, invoked, until, request.expected_cas
    )


def _result(command: Any, heard: Outcome) -> Any:
    """Translate what a writer heard."""
    if heard.status == REFUSED:
        code = CODES.get(heard.code, heard.code)
        if code == "index_exists":
            return Refused(code, value=int(heard.details["id"]))
        return Refused(code, heard.details.get("actual"))
    if isinstance(command, PutSetting | DeleteSetting):
        return Ok(cas=heard.cas)
    existed = heard.answer.get("existed")
    if existed is False:
        return Refused("not_found")
    if isinstance(command, DropIndex):
        return Ok()
    index_id = int(heard.answer["index"]["id"])
    return Refused("index_exists", value=index_id) if existed else Ok(index_id)


def _read(reading: Reading, objects: set[Any]) -> Iterator[Operation]:
    """Yield a read of each object: what the state that answered held."""
    state = reading.state
    assert isinstance(state, StateContext)
    for kind, name in sorted(objects):
        seen: Any
        if kind == "setting":
            held = state.setting(name)
            entity = held.entity if held else None
            value = entity.value_json if isinstance(entity, Setting) else None
            seen = Ok(value, held.cas if held else 0)
        else:
            seen = Ok(frozenset(_names_in(state, name)))
        call = "read" if kind == "setting" else "list"
        yield Operation(
            "reader", (kind, name), call, None, seen, reading.invoked_ms, reading.done_ms
        )


def _names_in(state: StateContext, bucket: str) -> Iterator[tuple[str, int]]:
    """Yield the indexes whose creation is complete; one in `init` may still be undone."""
    for (where, name), index_id in state.names.items():
        held = state.index_by_id(index_id)
        index = held.entity if held else None
        if where == bucket and isinstance(index, Index) and index.state not in (INIT, DROPPING):
            yield name, index_id

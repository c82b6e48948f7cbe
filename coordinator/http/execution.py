"""How a command that came over HTTP is executed: read, passed to the master, and answered."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, TypedDict

from fastapi import Header, Request
from starlette.responses import Response

from coordinator import codec
from coordinator.core.catalog.ddl import PRINCIPAL_LENGTH_MAX
from coordinator.core.catalog.outcomes import RememberedOutcome
from coordinator.core.consensus import inputs
from coordinator.core.model import commands
from coordinator.core.model.types import CAS_MAX, Cas
from coordinator.http.aside import DEFINITIONS
from coordinator.http.errors import ApiError, json_response, raise_unless_ok
from coordinator.http.shared import APPLIED_CAS, DEADLINE_MS
from coordinator.language.ddl_commands import normalised
from coordinator.language.examiner import ExaminingError
from coordinator.node.shell import Shell

LARGE_BYTES = 8 * 1024
LARGE_WAITING_MAX = 64
"""Values longer than this are decided one after the other: one of 64 KiB may take the loop 20 ms,
and eight of them in one group would take it eight times as long."""

CAS_DIGITS_MAX = len(str(CAS_MAX))


def _if_match(value: str | None) -> Cas | None:
    """Return the expected CAS that an `If-Match` header states."""
    if value is None:
        return None
    text = value.strip().strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > CAS_DIGITS_MAX:
        raise ApiError("invalid_request", f"If-Match: {value[:40]!r} is no CAS")
    return Cas(int(text))


def principal_of(header: str | None) -> str:
    """Return the caller that an `X-Principal` header names; none: an empty text.

    HTTP has no encoding for headers, and the server takes each byte for a character. Clients send
    UTF-8; what is no UTF-8 stays as it is.
    """
    if not header:
        return ""
    with suppress(UnicodeError):
        header = header.encode("latin-1").decode()
    if len(header) > PRINCIPAL_LENGTH_MAX:
        text = f"X-Principal: a principal has at most {PRINCIPAL_LENGTH_MAX} characters"
        raise ApiError("invalid_request", text)
    return header


async def execute(
    shell: Shell,
    command: commands.Command,
    *,
    key: str | None,
    if_match: str | None,
    principal: str | None,
    fingerprint: int | None = None,
    is_examined: bool = False,
) -> commands.Outcome:
    """Run a command on the master, under the client's idempotency key if it gave one.

    `fingerprint` identifies the request, if the command depends on more than the request (an undo
    also depends on the state). Definitions that are `examined` already are not parsed again.
    """
    expected = _if_match(if_match)
    request = commands.Request(
        command=command,
        id=key or "",
        principal=principal_of(principal),
        expected_cas=expected,
        fingerprint=_fingerprint(command, expected, fingerprint) if key else 0,
        recorded=key is not None,
        deadline_ms=shell.now().mono_ms + DEADLINE_MS,
    )
    if not is_examined and _has_definitions(command) and shell.node.master is not None:
        request = await _examined(shell, request)

    def make(token: int) -> inputs.Input:
        return inputs.Requested(replace(request, token=token))

    return raise_unless_ok(await shell.ask(make))


def remembered(shell: Shell, key: str | None) -> RememberedOutcome | None:
    """Return the outcome of a request that is known here: nothing has to be decided for it."""
    return shell.node.outcomes.find(key) if key is not None else None


def _fingerprint(command: commands.Command, expected: Cas | None, given: int | None) -> int:
    return codec.fingerprint(command, expected) if given is None else given


def _has_definitions(command: commands.Command) -> bool:
    """Tell whether a command has expressions that have to be read."""
    if isinstance(command, commands.Transact):
        return any(map(_has_definitions, (*command.then, *command.otherwise)))
    return isinstance(command, commands.CreateIndex | commands.AlterIndex)


async def _examined(shell: Shell, request: commands.Request) -> commands.Request:
    """Return a request whose definition was read, by the process beside. Raises ApiError."""
    try:
        return await DEFINITIONS.run(lambda: normalised(request, shell.examiner.examine))
    except ExaminingError as error:
        raise ApiError("unavailable", error.message) from error


IdempotencyKey = Annotated[
    str | None, Header(description="Request id; a repeat gets the first outcome. UUIDv7 is best.")
]
IfMatch = Annotated[
    str | None, Header(description="The expected CAS of the entity; 0: it must not exist.")
]
Principal = Annotated[str | None, Header(description="The caller; recorded, not verified.")]


class Terms(TypedDict):
    """How a command counts."""

    key: str | None
    if_match: str | None
    principal: str | None


def terms_of(request: Request) -> Terms:
    """Return what the headers of a request say of how a command counts."""
    headers = request.headers
    return {
        "key": headers.get("idempotency-key"),
        "if_match": headers.get("if-match"),
        "principal": headers.get("x-principal"),
    }


def answer(outcome: commands.Outcome, status: int = 200) -> Response:
    """Return what a command answered, with its CAS and transaction."""
    body = {**outcome.answer, "cas": outcome.cas, "txn": outcome.txn}
    return json_response(body, status, {APPLIED_CAS: str(outcome.cas)})

"""Commands as they arrive from outside: decoded, their expressions in one normal form.

HTTP and the `ddl` topic share this. What is wrong with a command's expressions, be it that they
cannot be read or that no document can be asked them, becomes the request's `objection`, which the
core refuses, so that a refusal from the topic is recorded like any other. The SQL parser is slow
to load: it is loaded by the first command.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator import codec
from coordinator.core.commands import CreateIndex, Position, Request, SkipRecord
from coordinator.core.ddl import EXPRESSION_LENGTH_MAX, EXPRESSIONS_MAX
from schemas.registry import SchemaError

COMMAND_BYTES_MAX = 256 * 1024
"""What a record of the `ddl` topic may weigh, and how much of it a dead letter keeps: the letter
has to fit on its own topic, or no master could ever get past the record."""


def read_command(data: bytes, position: Position) -> Request:
    """Return the request that stands on the `ddl` topic; one to skip where there is none."""
    try:
        if len(data) > COMMAND_BYTES_MAX:
            raise SchemaError("too_large", f"{len(data)} bytes; at most {COMMAND_BYTES_MAX}")
        request = codec.decode_ddl(data, position)
    except SchemaError as error:
        reason = f"{error.code}: {error}"[:1_000]
        return Request(SkipRecord(reason, data[:COMMAND_BYTES_MAX]), position=position)
    return normalised(request)


def normalised(request: Request) -> Request:
    """Return the request with its expressions in normal form, or with an objection."""
    command = request.command
    if not isinstance(command, CreateIndex) or _oversized(command):
        return request
    from coordinator.expressions import ExpressionError, check
    from coordinator.sql import SqlError, normalise_expression

    try:
        expressions = tuple(normalise_expression(text, key=True) for text in command.expressions)
        where = None if command.where is None else normalise_expression(command.where)
        for text in expressions:
            check(text, key=True)
        if where is not None:
            check(where, key=False)
    except SqlError as error:
        return replace(request, objection=f"{error.message} (column {error.column})")
    except ExpressionError as error:
        return replace(request, objection=error.message)
    return replace(request, command=replace(command, expressions=expressions, where=where))


def _oversized(command: CreateIndex) -> bool:
    """Tell whether the core refuses the command unparsed: parsing takes time by length."""
    texts = (*command.expressions, command.where or "")
    return len(command.expressions) > EXPRESSIONS_MAX or any(
        len(t) > EXPRESSION_LENGTH_MAX for t in texts
    )

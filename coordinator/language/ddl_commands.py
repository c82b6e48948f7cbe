"""Commands as they arrive from outside: decoded, within bounds, their expressions in normal form.

HTTP and the `ddl` topic share this. What is wrong with a command, be it that it is too large, that
its expressions cannot be read or that no document can be asked them, becomes the request's
`objection`, which the core refuses, so that a refusal from the topic is recorded like any other.

Reading expressions takes time, and who asks may be anybody. How much is bounded here. What reads
them is given: `examine_here` does it at once, `coordinator.language.examiner` in a process of its
own.
Everything here is total: no input ends in an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from coordinator import codec
from coordinator.core.catalog.ddl import EXPRESSION_LENGTH_MAX, EXPRESSIONS_MAX
from coordinator.core.catalog.decisions import compact
from coordinator.core.model.commands import (
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Operation,
    Position,
    PutSetting,
    Request,
    SkipRecord,
    Transact,
)
from coordinator.core.model.entities import HASH
from coordinator.language import ddl_parser
from schemas.registry import SchemaError

COMMAND_BYTES_MAX = 256 * 1024
"""What a record of the `ddl` topic may weigh, and how much of it a dead letter keeps: the letter
has to fit on its own topic, or no master could ever get past the record."""

DEFINITION_LENGTH_MAX = 32 * 1024
"""So many characters all expressions of an index may have together. An index of 32 keys with 100
characters each and the longest condition has 8,000."""

DEFINITION_TOKENS_MAX = 4_096
"""So many tokens they may have together: they are read within a quarter of a second."""

BOUNDS_LENGTH_MAX = 64 * 1024
"""So many characters the bounds of an index may have: 255 keys of 250 characters."""

NAMED_MAX = 1_000
"""So many indexes, or indexers, a command may name: each is looked up in the node's own loop."""

NAME_LENGTH_MAX = 1_024
"""A name that is longer is not even quoted in a refusal. The core allows far less."""

TRANSACTION_LENGTH_MAX = 8 * 1024
"""So many characters all expressions of a transaction may have together: however they are cut into
tokens, they are read within half a second."""

REASON_LENGTH_MAX = 1_000


class Definition(NamedTuple):
    """What of an index is SQL: its keys, and its condition."""

    expressions: tuple[str, ...]
    where: str | None = None


Examine = Callable[[Definition], Definition | str]
"""`Examine(definition)`: the definition in normal form, or what is wrong with it."""


def command_of(
    statement: ddl_parser.Statement,
) -> CreateIndex | DropIndex | BuildIndexes | AlterIndex:
    """Return the command that a statement states. What it leaves open is as over HTTP."""
    if isinstance(statement, ddl_parser.DropIndex):
        return DropIndex(0, statement.bucket, statement.name, statement.if_exists)
    if isinstance(statement, ddl_parser.BuildIndex):
        return BuildIndexes((), statement.bucket, statement.names)
    if isinstance(statement, ddl_parser.AlterIndex):
        return AlterIndex(
            bucket=statement.bucket,
            name=statement.name,
            new_name=statement.new_name,
            expressions=statement.expressions,
            where=statement.where,
            drops_where=statement.drops_where,
            slices=statement.slices,
            replicas=statement.replicas,
            nodes=statement.nodes,
            partitioning=statement.partitioning,
            bounds_json=None if statement.bounds is None else compact(statement.bounds),
        )
    bounds = statement.bounds or ()
    slices = 0 if bounds else 1
    return CreateIndex(
        name=statement.name,
        bucket=statement.bucket,
        expressions=statement.expressions,
        where=statement.where,
        primary=statement.primary,
        using=statement.using or "gsi",
        slices=slices if statement.slices is None else statement.slices,
        replicas=statement.replicas or 0,
        nodes=statement.nodes or (),
        defer_build=statement.defer_build,
        if_not_exists=statement.if_not_exists,
        partitioning=statement.partitioning or HASH,
        bounds_json=compact(bounds),
    )


def read_command(data: bytes, position: Position, examine: Examine | None = None) -> Request:
    """Return the request that stands on the `ddl` topic; one to skip where there is none."""
    try:
        if len(data) > COMMAND_BYTES_MAX:
            raise SchemaError("too_large", f"{len(data)} bytes; at most {COMMAND_BYTES_MAX}")
        request = codec.decode_ddl(data, position)
    except SchemaError as error:
        reason = f"{error.code}: {error}"[:REASON_LENGTH_MAX]
        return Request(command=SkipRecord(reason, data[:COMMAND_BYTES_MAX]), position=position)
    return normalised(request, examine)


def normalised(request: Request, examine: Examine | None = None) -> Request:
    """Return the request with its expressions in normal form, or with an objection."""
    command = request.command
    if isinstance(command, Transact):
        return _normalised_transaction(request, command, examine)
    if problem := _too_much(command):
        # What is decided about it still costs time by its size: nothing of that is kept.
        return replace(request, command=_emptied(command), objection=problem)
    if not isinstance(command, CreateIndex | AlterIndex) or _oversized(command):
        return request
    if not command.expressions and command.where is None:
        return request
    found = (examine or examine_here)(Definition(command.expressions or (), command.where))
    if isinstance(found, str):
        return replace(request, objection=found)
    read = found._asdict()
    if command.expressions is None:
        del read["expressions"]
    return replace(request, command=replace(command, **read))


def _normalised_transaction(
    request: Request, command: Transact, examine: Examine | None
) -> Request:
    """Return a transaction with all its expressions in normal form, or with an objection."""
    branches_of = (*command.then, *command.otherwise)
    defined = [one for one in branches_of if isinstance(one, CreateIndex | AlterIndex)]
    texts = (text for one in defined for text in (*(one.expressions or ()), one.where or ""))
    length = sum(map(len, texts))
    if length > TRANSACTION_LENGTH_MAX:
        text = f"more than {TRANSACTION_LENGTH_MAX} characters in all expressions together"
        return replace(request, command=Transact(), objection=text)
    branches: list[tuple[Operation, ...]] = []
    for branch in (command.then, command.otherwise):
        read: list[Operation] = []
        for number, operation in enumerate(branch):
            one = normalised(replace(request, command=operation), examine)
            if one.objection:
                text = f"operation {number}: {one.objection}"
                return replace(request, command=Transact(), objection=text)
            assert isinstance(one.command, Operation)
            read.append(one.command)
        branches.append(tuple(read))
    return replace(request, command=replace(command, then=branches[0], otherwise=branches[1]))


def examine_here(definition: Definition) -> Definition | str:
    """Return the definition in normal form, or say what is wrong with it."""
    from coordinator.language.ddl_parser import SqlError, count_tokens, normalise_expression
    from coordinator.language.expressions import ExpressionError, check, check_keys

    keys, where = definition
    texts = keys if where is None else (*keys, where)
    try:
        tokens = 0
        for text in texts:
            tokens += count_tokens(text)
            if tokens > DEFINITION_TOKENS_MAX:
                return f"more than {DEFINITION_TOKENS_MAX} tokens in all expressions together"
        expressions = tuple(normalise_expression(text, key=True) for text in keys)
        condition = None if where is None else normalise_expression(where)
        check_keys(expressions)
        if condition is not None:
            check(condition)
    except SqlError as error:
        return f"{error.message} (column {error.column})"
    except ExpressionError as error:
        return error.message
    except Exception as error:
        return f"an expression cannot be read: {type(error).__name__}"
    return Definition(expressions, condition)


def _emptied(command: Command) -> Command:
    """Return a command of the same kind that says nothing."""
    if isinstance(command, AlterIndex):
        return AlterIndex()
    return CreateIndex(name="", bucket="") if isinstance(command, CreateIndex) else DropIndex()


def _too_much(command: Command) -> str:
    """Say what of a command is too large even to be decided about, or return an empty text."""
    names: tuple[str, ...]
    match command:
        case CreateIndex():
            names = (command.name, command.bucket, command.using, command.partitioning)
            if sum(map(len, command.expressions)) > DEFINITION_LENGTH_MAX:
                return f"more than {DEFINITION_LENGTH_MAX} characters in all expressions together"
            if len(command.bounds_json) > BOUNDS_LENGTH_MAX:
                return f"more than {BOUNDS_LENGTH_MAX} characters of bounds"
            named = len(command.nodes)
        case AlterIndex():
            names = (command.name, command.bucket, command.new_name or "")
            names = (*names, command.partitioning or "")
            if sum(map(len, command.expressions or ())) > DEFINITION_LENGTH_MAX:
                return f"more than {DEFINITION_LENGTH_MAX} characters in all expressions together"
            if len(command.bounds_json or "") > BOUNDS_LENGTH_MAX:
                return f"more than {BOUNDS_LENGTH_MAX} characters of bounds"
            named = len(command.nodes or ())
        case DropIndex():
            names, named = (command.name, command.bucket), 0
        case PutSetting() | DeleteSetting():
            names, named = (command.name,), 0
        case BuildIndexes():
            names = (command.bucket, *command.names[:NAMED_MAX])
            named = len(command.names) + len(command.indexes)
        case _:
            return ""
    if named > NAMED_MAX:
        return f"{named} are named; at most {NAMED_MAX} can be"
    if any(len(name) > NAME_LENGTH_MAX for name in names):
        return f"a name has at most {NAME_LENGTH_MAX} characters"
    return ""


def _oversized(command: CreateIndex | AlterIndex) -> bool:
    """Tell whether the core refuses the command unparsed: parsing takes time by length."""
    keys = command.expressions or ()
    texts = (*keys, command.where or "")
    return len(keys) > EXPRESSIONS_MAX or any(len(t) > EXPRESSION_LENGTH_MAX for t in texts)

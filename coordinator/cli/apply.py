"""`indexctl apply`: carry out a script of DDL, one statement after the other.

The whole script is parsed before anything is sent. Each statement has its own fresh request id.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.cli.output import CommandError, as_error
from coordinator.cli.session import explained

if TYPE_CHECKING:
    from coordinator.client.client import Client
    from coordinator.language.ddl_parser import Statement

FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one statement: created, exists, dropped, absent, altered, ordered, …

    `ordered` is a build: it goes on after the script. `name` is all names of such a statement.
    """

    line: int
    verb: str
    name: str
    bucket: str
    outcome: str
    id: str | None = None
    state: str | None = None
    cas: int | None = None
    txn: str | None = None
    seconds: float = 0.0
    error: dict[str, Any] | None = field(default=None)

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_script(file: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise CommandError("usage", f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError("usage", f"{file} is not UTF-8 at byte {error.start}") from None


def apply(client: Client, statements: list[Statement], *, keep_going: bool) -> Iterator[Result]:
    """Carry out `statements` and yield what became of each, as it becomes known.

    After an error the rest is skipped, unless `keep_going`; it is in any case where no node
    can be reached.
    """
    stopped = False
    for statement in statements:
        if stopped:
            yield _result(statement, SKIPPED)
            continue
        result = _apply_one(client, statement)
        yield result
        if result.error is not None:
            stopped = not keep_going or result.error["code"] == "unreachable"


def _apply_one(client: Client, statement: Statement) -> Result:
    from coordinator.client.errors import CoordinatorError
    from coordinator.language.ddl_parser import AlterIndex, BuildIndex, CreateIndex

    start = time.monotonic()
    try:
        if isinstance(statement, CreateIndex):
            body = client.create_index(statement.to_request())
            outcome = "exists" if body.get("existed") else "created"
        elif isinstance(statement, BuildIndex):
            body = client.build_indexes(bucket=statement.bucket, names=statement.names)
            outcome = "ordered"
        elif isinstance(statement, AlterIndex):
            changes = statement.to_changes()
            body = client.alter_index(None, changes, bucket=statement.bucket, name=statement.name)
            outcome = "altered" if body["txn"] else "unchanged"
        else:
            body = client.drop_index(bucket=statement.bucket, name=statement.name)
            outcome = "dropped"
    except CoordinatorError as error:
        seconds = round(time.monotonic() - start, 3)
        if error.code == "index_not_found" and getattr(statement, "if_exists", False):
            return _result(statement, "absent", seconds=seconds)
        message = explained(error.code, error.message, error.details)
        detail = as_error(error.code, message, error.details)
        return _result(statement, FAILED, seconds=seconds, error=detail)
    index = body.get("index", {})
    return _result(
        statement,
        outcome,
        id=index.get("id"),
        state=index.get("state") if outcome != "dropped" else None,
        cas=body.get("cas"),
        txn=body.get("txn"),
        seconds=round(time.monotonic() - start, 3),
    )


def _result(statement: Statement, outcome: str, **known: Any) -> Result:
    verb = type(statement).__name__.removesuffix("Index").lower()
    return Result(
        line=statement.line,
        verb=verb,
        name=statement.name,
        bucket=statement.bucket,
        outcome=outcome,
        **known,
    )

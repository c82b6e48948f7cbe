"""What the commands print: tables for people, JSON for programs, and errors for both.

Answers go to standard output, errors and progress to standard error. Exit codes are the ones
listed in `Exit`. Rich is imported at the first table only.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 160


class Exit(enum.IntEnum):
    """The exit codes, which scripts may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5


_EXITS = {
    "usage": Exit.USAGE,
    "index_not_found": Exit.NOT_FOUND,
    "config_not_found": Exit.NOT_FOUND,
    "not_found": Exit.NOT_FOUND,
    "member_not_found": Exit.NOT_FOUND,
    "topic_not_found": Exit.NOT_FOUND,
    "bucket_not_found": Exit.NOT_FOUND,
    "kafka_topic_not_found": Exit.NOT_FOUND,
    "subscription_not_found": Exit.NOT_FOUND,
    "rebalance_not_found": Exit.NOT_FOUND,
    "indexer_not_found": Exit.NOT_FOUND,
    "projector_not_found": Exit.NOT_FOUND,
    "no_archive": Exit.NOT_FOUND,
    "no_cluster": Exit.NOT_FOUND,
    "index_exists": Exit.CONFLICT,
    "topic_exists": Exit.CONFLICT,
    "topic_in_use": Exit.CONFLICT,
    "bucket_exists": Exit.CONFLICT,
    "bucket_in_use": Exit.CONFLICT,
    "subscriber_exists": Exit.CONFLICT,
    "index_altering": Exit.CONFLICT,
    "rebalance_running": Exit.CONFLICT,
    "indexer_away": Exit.CONFLICT,
    "indexer_alive": Exit.CONFLICT,
    "projector_alive": Exit.CONFLICT,
    "indexer_in_use": Exit.CONFLICT,
    "drain_incomplete": Exit.CONFLICT,
    "rebalance_outdated": Exit.CONFLICT,
    "alter_abandoned": Exit.CONFLICT,
    "exists": Exit.CONFLICT,
    "backup_under_way": Exit.CONFLICT,
    "not_empty": Exit.CONFLICT,
    "cas_mismatch": Exit.CONFLICT,
    "not_master": Exit.UNAVAILABLE,
    "no_master": Exit.UNAVAILABLE,
    "overloaded": Exit.UNAVAILABLE,
    "unavailable": Exit.UNAVAILABLE,
    "timeout": Exit.UNAVAILABLE,
    "index_building": Exit.UNAVAILABLE,
    "index_rolling_back": Exit.UNAVAILABLE,
    "index_recovering": Exit.UNAVAILABLE,
    "slice_unavailable": Exit.UNAVAILABLE,
    "no_stability_timestamp": Exit.UNAVAILABLE,
    "timestamp_not_reached": Exit.UNAVAILABLE,
    "unreachable": Exit.UNAVAILABLE,
}


class CommandError(Exception):
    """An expected failure of a command, found on this side of the API."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}


def exit_code_of(code: str) -> Exit:
    """Return the exit code for an error's code; a refusal that is not listed is 1."""
    return _EXITS.get(code, Exit.FAILED)


def as_error(code: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    """Return an error in the API's shape."""
    return {"code": code, "message": message, "details": details}


def fail(
    code: str,
    message: str,
    details: dict[str, Any] | None = None,
    *,
    excerpt: str = "",
    as_json: bool,
) -> NoReturn:
    """Print the error and end the process with its exit code.

    `excerpt` shows a person the place in a script; `details` has its line and column.
    """
    details = details or {}
    if as_json:
        typer.echo(json.dumps({"error": as_error(code, message, details)}), err=True)
    elif excerpt:
        place = f"line {details['line']}, column {details['column']}"
        typer.echo(f"error: {place}: {plain(message)} [{plain(code)}]", err=True)
        typer.echo(plain(excerpt), err=True)
    else:
        typer.echo(f"error: {plain(message)} [{plain(code)}]", err=True)
    raise typer.Exit(exit_code_of(code))


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2))


def plain(value: Any) -> str:
    """Return `value` for a person; control characters, which could fool a terminal, as escapes."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in str(value)
    )


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", empty: str = ""
) -> None:
    """Print rows under headings; a heading that ends with `#` has its column to the right."""
    rows = list(rows)
    if not rows and empty:
        typer.echo(empty)
        return
    console().print(table(columns, rows, title=title))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Return what `print_table` prints."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        justify: Any = "right" if column.endswith("#") else "left"
        made.add_column(column.rstrip("#"), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made


def console() -> Console:
    """Return the console of standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(file=sys.stdout, width=width, highlight=False)


def print_fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print `name  value` lines, aligned."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        typer.echo(f"{name:<{width}}  {plain(value)}")

"""`indexctl sql`: questions to the archive of `history`, in SQL, without Spark.

Reads the files that the manifest names, and nothing else: whoever asks can neither write nor see
another file. One statement, which must be a query.
"""

import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from coordinator.cli.extras import require
from coordinator.cli.output import CommandError, print_json, print_table
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    import duckdb

    from streaming.archive.manifest import Manifest

ATTEMPTS = 2
"""A file that a compaction replaced may be gone: then the manifest names another one."""

SHOWN = (
    *("cas", "event", "kind", "key", "txn_epoch", "txn_seq", "index", "count"),
    *("request", "principal", "at_utc", "date", "value"),
)
"""The columns of `history`, in this order."""


class Answer(NamedTuple):
    """The columns of a result, and its rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class QueryError(CommandError):
    """A statement that fails; `details` has line and column, from 1, where DuckDB tells them."""

    def __init__(self, message: str, statement: str = "", position: int | None = None) -> None:
        from coordinator.language.ddl_parser import SqlError

        self.excerpt = ""
        details = {}
        if position is not None:
            before = statement.encode()[:position].decode(errors="replace")
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            details = {"line": line, "column": column}
            source = statement.split("\n")[line - 1]
            self.excerpt = SqlError(message, line, column, source).excerpt
        super().__init__("sql_error", message, details)


def add_to(root: typer.Typer, data_dir: Path) -> None:
    """Add it to the root command."""

    @command(root, "sql", local=True, no_args_is_help=True)
    def sql(
        session: Session,
        statement: Annotated[str, typer.Argument(metavar="SELECT …", help="One query.")],
        data_dir: Annotated[Path, typer.Option(help="The data folder of `run`.")] = data_dir,
        archive: Annotated[
            Path | None, typer.Option(help="Folder of the archive, if it is elsewhere.")
        ] = None,
    ) -> None:
        """Query the archive of all events, in the SQL of DuckDB.

        `indexctl run --archive` writes the archive. The table is "history", with the columns cas,
        event, kind, key, txn_epoch, txn_seq, index, count, request, principal, at_utc, date and
        value. A value is JSON, and NULL where an entity was dropped.

        indexctl sql "SELECT at_utc, principal, event, value->>'name' AS name FROM history
        WHERE kind = 'index' ORDER BY cas"
        """
        require("streaming")
        from streaming.archive.manifest import ARCHIVE

        found = ask(archive or data_dir / ARCHIVE, statement)
        if session.json:
            names = _distinct(found.columns)
            rows = [dict(zip(names, map(as_json, row), strict=True)) for row in found.rows]
            print_json({"columns": names, "rows": rows})
            return
        print_table(
            _headings(found),
            [[_cell(value) for value in row] for row in found.rows],
            empty="no rows",
        )


def ask(folder: Path, statement: str) -> Answer:
    """Return what a query finds in the archive in `folder`.

    CommandError `no_archive`, `archive_unusable`; `sql_error`, with the place if it is known.
    """
    import duckdb

    attempt = 0
    while True:
        attempt += 1
        manifest = _manifest(folder)
        try:
            with _connected(folder, manifest) as connection:
                return _asked(connection, statement)
        except duckdb.IOException as error:
            if attempt == ATTEMPTS or _manifest(folder) == manifest:
                raise CommandError("archive_unusable", _said(error)[0]) from error


def _manifest(folder: Path) -> "Manifest":
    from streaming.archive.manifest import ManifestError, read

    try:
        found = read(folder)
    except (ManifestError, OSError) as error:
        raise CommandError("archive_unusable", str(error)) from error
    if found is None:
        text = f"there is no archive in {folder}: `indexctl run --archive` writes one"
        raise CommandError("no_archive", text, {"folder": str(folder)})
    return found


def _connected(folder: Path, manifest: "Manifest") -> "duckdb.DuckDBPyConnection":
    """Return a database in memory that has the archive as a view, and can reach nothing else."""
    import duckdb

    from streaming.archive.manifest import COLUMNS, PARTITIONS

    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "errors_as_json": True,
            "temp_directory": "",
        },
    )
    paths = ", ".join(_quoted(str(folder.absolute() / part.path)) for part in manifest.parts)
    columns = ", ".join(f'"{name}"' for name in SHOWN)
    if paths:
        types = ", ".join(f"{_quoted(name)}: {kind}" for name, kind in PARTITIONS)
        source = f"read_parquet([{paths}], hive_partitioning = true, hive_types = {{{types}}})"
    else:
        nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in (*COLUMNS, *PARTITIONS))
        source = f"(SELECT {nulls}) WHERE false"
    for statement in (
        f"SET allowed_paths = [{paths}]",
        f"CREATE VIEW history AS SELECT {columns} FROM {source}",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)
    return connection


def _asked(connection: "duckdb.DuckDBPyConnection", statement: str) -> Answer:
    """Carry out one query. Raises QueryError, duckdb.IOException."""
    import duckdb

    try:
        found = connection.extract_statements(statement)
        if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
            raise QueryError("one statement, a query: the archive is only read")
        connection.execute(found[0])
        described = connection.description or []
        return Answer([str(column[0]) for column in described], connection.fetchall())
    except duckdb.IOException:
        raise
    except duckdb.Error as error:
        message, position = _said(error)
        raise QueryError(message, statement, position) from error


def _said(error: Exception) -> tuple[str, int | None]:
    """Return what DuckDB said of an error, on one line, and the byte where it is, if known."""
    text = str(error)
    try:
        fields = json.loads(text[text.index("{") :])
        message, position = str(fields["exception_message"]), fields.get("position")
    except (ValueError, KeyError, TypeError):
        message, position = text, None
    place = int(position) if position is not None and str(position).isdecimal() else None
    return " ".join(message.split()), place


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _distinct(names: list[str]) -> list[str]:
    """Return names for fields of an object: one that is there already gets a number."""
    found: list[str] = []
    for name in names:
        number, tried = 1, name
        while tried in found:
            tried, number = f"{name}_{number}", number + 1
        found.append(tried)
    return found


def _headings(found: Answer) -> list[str]:
    """Return the headings of a table: columns of numbers have theirs to the right."""
    return [
        f"{name}#"
        if any(isinstance(row[place], int | float | Decimal) for row in found.rows)
        # A heading that ends so by itself is none of numbers.
        else f"{name} "
        if name.endswith("#")
        else name
        for place, name in enumerate(found.columns)
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    shown = as_json(value)
    return json.dumps(shown, ensure_ascii=False) if isinstance(shown, dict | list) else shown


def as_json(value: Any) -> Any:
    """Return a value of DuckDB as one of JSON; what JSON has no type for is text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return str(value)

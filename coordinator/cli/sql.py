"""`indexctl sql`: questions to the archive, in SQL, without Spark.

Reads the files that the tables name, below their folders, and nothing else: neither who asks nor
who has written the log of a table can have another file read or written. One statement, which must
be a query.
"""

import json
import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import unquote

import typer

from coordinator.cli.extras import require
from coordinator.cli.moments import TIME, ms_of
from coordinator.cli.output import CommandError, print_json, print_table
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    import duckdb
    from deltalake import DeltaTable

    from streaming.archive.tables import ArchiveTable

ATTEMPTS = 2
"""A file that a compaction replaced may be deleted: then the table names another one."""

PLAIN = re.compile(r"[^\x00-\x1f\x7f*?\[\]]+")
"""Paths of files of a table. DuckDB takes some characters for a pattern, and waits for ever where
a path has a NUL."""

EPOCH, LAST_MS = datetime(1970, 1, 1, tzinfo=UTC), 253_402_300_799_999
"""The end of the year 9999, in milliseconds."""

PATH_SHOWN = 200
"""So much of a path an error repeats."""

SQL_TYPES = {"STRING": "VARCHAR", "INT": "INTEGER", "ARRAY<DECIMAL(20, 0)>": "DECIMAL(20, 0)[]"}
"""What DuckDB calls types of Spark's SQL that have another name there."""


class Version(NamedTuple):
    """A table as it was at a moment: its number, and the files that it names."""

    table: "ArchiveTable"
    number: int
    files: list[str]


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
            str,
            typer.Option(metavar="DIR", help="Folder of the archive, if it is elsewhere: no URL."),
        ] = "",
        at: Annotated[
            str, typer.Option(metavar="TIME", help=f"The archive as it was then: {TIME}.")
        ] = "",
    ) -> None:
        """Query the archive of all events, in the SQL of DuckDB.

        `indexctl run --archive` writes the archive. The table "history" has the columns cas,
        event, kind, key, txn_epoch, txn_seq, index, count, request, principal, at_utc, date, month
        and value. A value is JSON, and NULL where an entity was dropped. The table "stability" has
        the stability timestamps: bucket, number, at_utc, month, seqnos and vbuuids.

        indexctl sql "SELECT at_utc, principal, event, value->>'name' AS name FROM history
        WHERE kind = 'index' ORDER BY cas"
        """
        require("streaming")
        from streaming.archive.place import ARCHIVE

        at_ms = ms_of(at, "--at", TIME) if at else None
        found = ask(_local(archive) if archive else data_dir / ARCHIVE, statement, at_ms)
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


def ask(folder: Path, statement: str, at_ms: int | None = None) -> Answer:
    """Return what a query finds in the archive in `folder`, as it is now, or as it was at a time.

    CommandError `no_archive`, `archive_unusable`; `sql_error`, with the place if it is known.
    """
    import duckdb

    attempt = 0
    while True:
        attempt += 1
        versions = _versions(folder, at_ms)
        try:
            with _connected(versions) as connection:
                return _asked(connection, statement)
        except (duckdb.Error, UnicodeDecodeError) as error:
            if attempt == ATTEMPTS or _versions(folder, at_ms) == versions:
                raise CommandError("archive_unusable", _said(error)[0]) from error


def _versions(folder: Path, at_ms: int | None) -> list[Version]:
    """Return all tables of an archive. CommandError: one is not there, or cannot be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from streaming.archive.tables import TABLES

    found: list[Version] = []
    for table in TABLES:
        try:
            there = DeltaTable(folder / table.name)
            if at_ms is not None:
                if not found:
                    _check_then(folder, there, at_ms)
                there.load_as_version(_utc(at_ms))
            found.append(Version(table, there.version(), _files(folder / table.name, there)))
        except TableNotFoundError as error:
            text = f"there is no archive in {folder}: `indexctl run --archive` writes one"
            raise CommandError("no_archive", text, {"folder": str(folder)}) from error
        except (DeltaError, OSError) as error:
            text = f"{folder / table.name}: {str(error).splitlines()[0]}"
            raise CommandError("archive_unusable", text) from error
    return found


def _local(archive: str) -> Path:
    """Return the folder of an archive. CommandError: it is somewhere else."""
    from streaming.archive.place import folder_of

    folder = folder_of(archive) if "://" in archive else Path(archive)
    if folder is None:
        text = f"{archive}: only a folder of this machine can be read; other readers of Delta Lake"
        raise CommandError("archive_unusable", f"{text} read URLs")
    return folder


def _check_then(folder: Path, table: "DeltaTable", at_ms: int) -> None:
    """Raise CommandError if the first table was not there yet at a time: all are made at once."""
    begun_ms = min((one["timestamp"] for one in table.history()), default=at_ms)
    if at_ms < begun_ms:
        text = f"there was no archive in {folder} then: what can be asked begins at "
        begun = _utc(begun_ms).isoformat(timespec="seconds")
        raise CommandError("no_archive", text + begun, {"folder": str(folder)})


def _utc(ms: int) -> datetime:
    """Return a time that a calendar has."""
    return EPOCH + timedelta(milliseconds=min(ms, LAST_MS))


def _files(folder: Path, table: "DeltaTable") -> list[str]:
    """Return the files of a table. Its log has their paths as they stand in a URL.

    CommandError `archive_unusable`: the log names what is no file of the table. Whoever may write
    the log would let others read any file, or wait for ever for one that is none.
    """
    named = map(unquote, table.get_add_actions()["path"].to_pylist())
    root, real = folder.absolute(), folder.resolve()
    files = sorted(str(_checked(root, real, path)) for path in named)
    if len(set(files)) < len(files):
        raise CommandError("archive_unusable", f"{folder}: its log names a file twice")
    return files


def _checked(root: Path, real: Path, path: str) -> Path:
    """Return a file below the folder of a table, whose real path is `real`. A file that is missing
    is not looked for: a newer version of the table may name another one."""
    file = root / path
    is_plain = PLAIN.fullmatch(path) and not PurePath(path).is_absolute()
    if not is_plain or real not in file.resolve().parents:
        raise CommandError(
            "archive_unusable", f"{root}: its log names {path[:PATH_SHOWN]!r}, no file of the table"
        )
    if file.exists() and not file.is_file():
        raise CommandError("archive_unusable", f"{file} is no file")
    return file


def _connected(versions: list[Version]) -> "duckdb.DuckDBPyConnection":
    """Return a database in memory that has tables as views, and can reach nothing else."""
    import duckdb

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
    paths = ", ".join(_quoted(path) for version in versions for path in version.files)
    views = [f"CREATE VIEW {one.table.name} AS {_selected(one)}" for one in versions]
    for statement in (
        f"SET allowed_paths = [{paths}]",
        *views,
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)
    return connection


def _selected(version: Version) -> str:
    """Return the query that a view of a table stands for. Times are UTC, without a zone."""
    if not version.files:
        nulls = ", ".join(
            f'NULL::{SQL_TYPES.get(kind, kind)} AS "{name}"' for name, kind in version.table.columns
        )
        return f"SELECT * FROM (SELECT {nulls}) WHERE false"
    columns = ", ".join(
        f'make_timestamp(epoch_us("{name}")) AS "{name}"' if kind == "TIMESTAMP" else f'"{name}"'
        for name, kind in version.table.columns
    )
    paths = ", ".join(map(_quoted, version.files))
    types = "hive_partitioning = true, hive_types = {'month': VARCHAR}"
    return f"SELECT {columns} FROM read_parquet([{paths}], {types})"


def _asked(connection: "duckdb.DuckDBPyConnection", statement: str) -> Answer:
    """Carry out one query. Raises QueryError; a file is damaged or gone: duckdb.Error, or
    UnicodeDecodeError, where DuckDB repeats bytes of the file as text."""
    import duckdb

    try:
        found = connection.extract_statements(statement)
        if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
            raise QueryError("one statement, a query: the archive is only read")
        connection.execute(found[0])
        described = connection.description or []
        return Answer([str(column[0]) for column in described], connection.fetchall())
    except (duckdb.IOException, UnicodeDecodeError):
        raise
    except duckdb.Error as error:
        message, position = _said(error)
        if position is None:
            _read_all(connection)
        raise QueryError(message, statement, position) from error
    except (OverflowError, ValueError) as error:
        raise QueryError(f"the result has a value that cannot be shown: {error}") from error


def _read_all(connection: "duckdb.DuckDBPyConnection") -> None:
    """Read every value of all tables: DuckDB says of a query that fails not whether the query or a
    damaged file is to blame. Raises duckdb.Error: it is a file."""
    from streaming.archive.tables import TABLES

    for table in TABLES:
        connection.execute(f"SELECT count(hash(found)) FROM {table.name} AS found").fetchall()


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

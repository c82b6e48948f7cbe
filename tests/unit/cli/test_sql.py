"""SQL over the archive: what it finds, what it refuses, and what it cannot reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coordinator import codec
from coordinator.cli.main import app
from coordinator.core.model.entities import Bucket, Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import TxnId
from streaming.archive import manifest as archive_manifest
from streaming.archive.files import Archive
from streaming.archive.manifest import ARCHIVE, MANIFEST
from streaming.archive.rows import row_of
from streaming.spark.crash_points import Crasher

AT_MS = 1_700_000_000_000


def row(cas: int, entity: Bucket | Setting | None, key: str = "") -> object:
    value = None if entity is None else codec.encode(entity)
    key = entity.key if entity is not None else key
    mutation = Mutation("Changed", key, value, entity, f"r-{cas}", "ann", AT_MS)
    return row_of(cas, codec.encode(Event(mutation, TxnId(1, cas), 0, 1, cas)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with the archive of four events, in a path that is awkward."""
    data = tmp_path / "it's, [here]*"
    archive = Archive(data / ARCHIVE, lambda: AT_MS, Crasher())
    archive.lock()
    archive.open("c", "t")
    archive.append([row(1, Bucket("travel", 64)), row(2, Setting("a", "[1]"))], 3)  # type: ignore[list-item]
    archive.append([row(3, None, "config/a"), row(4, Setting("b", "2"))], 5)  # type: ignore[list-item]
    archive.unlock()
    return data


def sql(folder: Path, statement: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["sql", statement, "--data-dir", str(folder), *more])


def rows(folder: Path, statement: str) -> list[dict[str, object]]:
    done = sql(folder, statement, "--json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, object]] = json.loads(done.stdout)["rows"]
    return found


def error(folder: Path, statement: str, code: int = 1) -> dict[str, object]:
    done = sql(folder, statement, "--json")
    assert done.exit_code == code, done.output
    found: dict[str, object] = json.loads(done.stderr)["error"]
    return found


def test_history_has_every_event_with_its_day_and_kind(folder: Path) -> None:
    first, *_, last = rows(folder, "SELECT * FROM history ORDER BY cas")
    assert first == {
        "cas": 1,
        "event": "Changed",
        "kind": "bucket",
        "key": "bucket/travel",
        "txn_epoch": 1,
        "txn_seq": 1,
        "index": 0,
        "count": 1,
        "request": "r-1",
        "principal": "ann",
        "at_utc": "2023-11-14T22:13:20",
        "date": "2023-11-14",
        "value": '{"name":"travel","vbuckets":64}',
    }
    assert last["cas"] == 4
    by_kind = "SELECT kind, count(*) AS n FROM history GROUP BY ALL ORDER BY kind"
    assert rows(folder, by_kind) == [{"kind": "bucket", "n": 1}, {"kind": "config", "n": 3}]
    assert rows(folder, "SELECT cas FROM history WHERE value IS NULL") == [{"cas": 3}]


def test_values_times_and_json_can_be_computed_with(folder: Path) -> None:
    asked = (
        "SELECT max(at_utc) AS at, value->>'$.vbuckets' AS v, 1.5::DECIMAL(3, 1) AS d, now() > "
        "max(at_utc) AS later, [1, 2] AS l, {'a': 1} AS s, 'nan'::DOUBLE AS x, 1 AS d "
        "FROM history WHERE date = '2023-11-14' AND kind = 'bucket' GROUP BY value"
    )
    (found,) = rows(folder, asked)
    assert found == {
        "at": "2023-11-14T22:13:20",
        "v": "64",
        "d": "1.5",
        "later": True,
        "l": [1, 2],
        "s": {"a": 1},
        "x": "nan",
        "d_1": 1,
    }


def test_people_get_a_table(folder: Path) -> None:
    done = sql(folder, "SELECT cas, at_utc, value, [1] AS l FROM history WHERE cas > 2 ORDER BY 1")
    assert done.exit_code == 0, done.output
    assert "2023-11-14 22:13:20.000" in done.stdout
    assert '{"name":"b","value":2}' in done.stdout
    assert sql(folder, "SELECT 1 WHERE false").stdout == "no rows\n"


def test_an_error_tells_the_place(folder: Path) -> None:
    found = error(folder, "SELECT 'ü',\n  nothing FROM history")
    assert found["code"] == "sql_error"
    assert found["details"] == {"line": 2, "column": 3}
    shown = sql(folder, "SELECT cas FORM history").stderr
    assert "error: line 1, column" in shown
    assert "^" in shown
    assert error(folder, "SELECT 'x'::INTEGER")["code"] == "sql_error"


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "/* nothing */",
        "SELECT 1; SELECT 2",
        "CREATE TABLE a (x INTEGER)",
        "COPY history TO '{file}'",
        "EXPLAIN ANALYZE COPY history TO '{part}'",
        "COPY history TO '{part}' (FORMAT parquet)",
        "SET lock_configuration = false",
        "ATTACH '{file}'",
        "INSTALL httpfs",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('{folder}/*/*/*.parquet')",
        "SELECT * FROM query('COPY history TO ''{file}''')",
        "SELECT getenv('HOME')",
        "SELECT * FROM statement",
    ],
)
def test_nothing_is_written_and_no_other_file_is_read(
    folder: Path, tmp_path: Path, statement: str
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("secret\n1\n")
    parts = sorted(folder.rglob("*.parquet"))
    names = {"secret": secret, "file": tmp_path / "new", "folder": tmp_path, "part": parts[0]}
    text = statement.format(**{name: str(path).replace("'", "''") for name, path in names.items()})
    before = {path: path.read_bytes() for path in parts}
    assert error(folder, text)["code"] == "sql_error"
    assert before == {path: path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}
    assert not (tmp_path / "new").exists()


def test_no_archive_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    assert error(tmp_path, "SELECT 1", code=3)["code"] == "no_archive"
    empty = Archive(tmp_path / ARCHIVE, lambda: AT_MS, Crasher())
    empty.lock()
    empty.open("c", "t")
    empty.unlock()
    assert rows(tmp_path, "SELECT count(*) AS n FROM history WHERE at_utc > now()") == [{"n": 0}]
    described = rows(tmp_path, "DESCRIBE history")
    assert len(described) == len(archive_manifest.COLUMNS) + len(archive_manifest.PARTITIONS)
    (tmp_path / ARCHIVE / MANIFEST).write_text("what")
    assert error(tmp_path, "SELECT 1")["code"] == "archive_unusable"


def test_files_that_do_not_count_are_not_seen(folder: Path) -> None:
    for path in sorted(folder.rglob("*.parquet")):
        path.with_name("99-99.parquet").write_bytes(path.read_bytes())
    assert rows(folder, "SELECT count(*) AS n FROM history") == [{"n": 4}]


def test_a_file_that_is_gone_is_an_error(folder: Path) -> None:
    next(iter(folder.rglob("*.parquet"))).unlink()
    assert error(folder, "SELECT * FROM history")["code"] == "archive_unusable"
    assert (folder / ARCHIVE / MANIFEST).exists()

"""SQL over the archive: what it finds, what it refuses, and what it cannot reach."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from coordinator import codec
from coordinator.cli.main import app
from coordinator.cli.sql import Answer, _headings
from coordinator.core.model.entities import Bucket, Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import TxnId
from streaming.archive.decoding import arrow_schema, decode
from streaming.archive.place import ARCHIVE
from streaming.archive.tables import HISTORY_TABLE, MONTH, STABILITY_TABLE, TABLES, ArchiveTable

AT_MS = 1_700_000_000_000


def record(cas: int, entity: Bucket | Setting | None, key: str = "") -> bytes:
    value = None if entity is None else codec.encode(entity)
    key = entity.key if entity is not None else key
    mutation = Mutation("Changed", key, value, entity, f"r-{cas}", "ann", AT_MS)
    return codec.encode(Event(mutation, TxnId(1, cas), 0, 1, cas))


def write(data: Path, table: ArchiveTable, *records: bytes) -> None:
    """Write one version of a table, without Spark."""
    columns = {"offset": range(len(records)), "value": records}
    types = {"offset": pa.int64(), "value": pa.binary()}
    batch = pa.RecordBatch.from_pydict({n: pa.array(c, types[n]) for n, c in columns.items()})
    (found,) = decode(table, iter([batch]))
    rows = pa.Table.from_batches([found.select(list(table.names))])
    there = DeltaTable(data / ARCHIVE / table.name)
    write_deltalake(there, rows, partition_by=[MONTH], mode="append")


def make_empty(data: Path) -> None:
    for table in TABLES:
        schema = arrow_schema(table.columns)
        DeltaTable.create(data / ARCHIVE / table.name, schema, partition_by=[MONTH])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the archive of four events."""
    data = tmp_path_factory.mktemp("archive") / "plain"
    make_empty(data)
    write(data, HISTORY_TABLE, record(1, Bucket("travel", 64)), record(2, Setting("a", "[1]")))
    write(data, HISTORY_TABLE, record(3, None, "config/a"), record(4, Setting("b", "2")))
    vectors = (np.array(numbers, "<u8").tobytes() for numbers in ([1, 2], [2**64 - 1, 5]))
    write(data, STABILITY_TABLE, codec.encode(StabilityTimestamp("b", 7, *vectors, AT_MS)))
    return data


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder, in a path that is awkward.

    The library that writes here cannot write to such a path. Spark can, and it can be read.
    """
    return Path(shutil.copytree(made, tmp_path / "it's, [here]*"))


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


@pytest.mark.thorough
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
        "month": "2023-11",
        "value": '{"name":"travel","vbuckets":64,"topic":"","format":"","registry":"",'
        '"reading":0,"read_from_ms":0}',
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


def test_columns_of_one_name_are_told_apart_however_many(folder: Path) -> None:
    assert rows(folder, "SELECT 1 AS a, 2 AS a_1, 3 AS a, 4 AS a") == [
        {"a": 1, "a_1": 2, "a_2": 3, "a_3": 4}
    ]


def test_a_column_of_numbers_with_a_gap_is_one_of_numbers() -> None:
    assert _headings(Answer(["n", "t"], [(1, "x"), (None, "y")])) == ["n#", "t"]


def test_an_error_tells_the_place(folder: Path) -> None:
    found = error(folder, "SELECT 'ü',\n  nothing FROM history")
    assert found["code"] == "sql_error"
    assert found["details"] == {"line": 2, "column": 3}
    shown = sql(folder, "SELECT cas FORM history").stderr
    assert "error: line 1, column" in shown
    assert "^" in shown
    assert error(folder, "SELECT 'x'::INTEGER")["code"] == "sql_error"


@pytest.mark.thorough
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


def test_stability_has_every_timestamp_with_a_number_a_vbucket(folder: Path) -> None:
    (found,) = rows(folder, "SELECT *, seqnos[1] - 1 AS below FROM stability")
    assert found == {
        "bucket": "b",
        "number": 7,
        "at_utc": "2023-11-14T22:13:20",
        "month": "2023-11",
        "seqnos": [str(2**64 - 1), "5"],
        "vbuuids": ["1", "2"],
        "below": str(2**64 - 2),
    }


def test_an_earlier_version_can_be_asked(folder: Path) -> None:
    """By the time at which it was written; before the first there is nothing to be asked."""
    log = sorted((folder / ARCHIVE / "history" / "_delta_log").glob("*.json"))
    for number, path in enumerate(log):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = AT_MS + number * 60_000
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(path, (AT_MS / 1000 + number * 60,) * 2)
    shown = "SELECT count(*) AS n FROM history"
    done = sql(folder, shown, "--at", "2023-11-14T22:14:30Z", "--json")
    assert json.loads(done.stdout)["rows"] == [{"n": 2}], done.output
    assert rows(folder, shown) == [{"n": 4}]
    assert sql(folder, shown, "--at", "yesterday").exit_code == 2
    assert json.loads(sql(folder, shown, "--at", "9999-12-31T23:59:59.999999Z", "--json").stdout)
    early = sql(folder, shown, "--at", "2023-11-14T22:13:19Z")
    assert early.exit_code == 3
    assert "what can be asked begins at 2023-11-14T22:13:20" in early.output


def test_only_a_folder_of_this_machine_can_be_asked(folder: Path) -> None:
    """Delta Lake's library would look for it in the cloud, for as long as that takes."""
    done = sql(folder, "SELECT 1", "--archive", "s3://bucket/archive", "--json")
    assert done.exit_code == 1
    assert "s3://bucket/archive: only a folder" in done.output
    assert "archive_unusable" in done.output
    there = f"file://localhost{(folder / ARCHIVE).resolve()}"
    assert sql(folder, "SELECT count(*) FROM history", "--archive", there).exit_code == 0


def test_no_archive_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    assert error(tmp_path, "SELECT 1", code=3)["code"] == "no_archive"
    make_empty(tmp_path)
    assert rows(tmp_path, "SELECT count(*) AS n FROM history WHERE at_utc > now()") == [{"n": 0}]
    for table in TABLES:
        described = rows(tmp_path, f"DESCRIBE {table.name}")
        assert tuple(one["column_name"] for one in described) == table.names
    for path in (tmp_path / ARCHIVE / "history" / "_delta_log").glob("*.json"):
        path.write_text("what")
    assert error(tmp_path, "SELECT 1")["code"] == "archive_unusable"


def test_files_that_do_not_count_are_not_seen(folder: Path) -> None:
    for path in sorted(folder.rglob("*.parquet")):
        path.with_name("99-99.parquet").write_bytes(path.read_bytes())
    assert rows(folder, "SELECT count(*) AS n FROM history") == [{"n": 4}]


def test_a_file_that_is_gone_is_an_error(folder: Path) -> None:
    next(iter((folder / ARCHIVE / "history").rglob("*.parquet"))).unlink()
    assert error(folder, "SELECT * FROM history")["code"] == "archive_unusable"


# -- a log that is damaged, or that somebody has made up -------------------------------------------


def first_log(folder: Path) -> Path:
    """Return the part of the log of `history` that names the first file."""
    return sorted((folder / ARCHIVE / "history" / "_delta_log").glob("*.json"))[1]


def rename(folder: Path, path: str) -> str:
    """Let the log name another path where it has the first file; return what it had."""
    log = first_log(folder)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (added,) = (line["add"] for line in lines if "add" in line)
    was: str = added["path"]
    added["path"] = path
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return was


OUTSIDE = [
    "/etc/passwd",
    "{copy}",
    "../../../copy.parquet",
    "month=2023-11/../../../../copy.parquet",
]
OUTSIDE += ["..%2F..%2F..%2Fcopy.parquet", "%2Fetc%2Fpasswd", "linked/copy.parquet", "link.parquet"]
NO_FILE = ["", ".", "month=2023-11", "pipe.parquet", "*", "month=2023-11/*.parquet", "**/*"]
NO_FILE += ["month=2023-11/%00", "a\0b", "a%0Ab"]


@pytest.mark.parametrize("path", OUTSIDE + NO_FILE)
def test_what_a_log_names_outside_of_its_table_is_not_read(
    folder: Path, tmp_path: Path, path: str
) -> None:
    """Not even a file that is sound, and that DuckDB would let be read."""
    table, copy = folder / ARCHIVE / "history", tmp_path / "copy.parquet"
    was = rename(folder, path.format(copy=copy))
    copy.write_bytes((table / was).read_bytes())
    (table / "linked").symlink_to(tmp_path)
    (table / "link.parquet").symlink_to(copy)
    os.mkfifo(table / "pipe.parquet")
    found = error(folder, "SELECT cas FROM history")
    assert found["code"] == "archive_unusable"
    assert "no file" in str(found["message"])
    assert "root:" not in json.dumps(found)


@pytest.mark.parametrize("name", ["a b.parquet", "100%.parquet", "ü.parquet"])
def test_a_log_names_files_as_they_stand_in_a_url(folder: Path, name: str) -> None:
    was = rename(folder, f"month=2023-11/{quote(name)}")
    table = folder / ARCHIVE / "history"
    (table / was).rename(table / "month=2023-11" / name)
    assert rows(folder, "SELECT count(*) AS n FROM history") == [{"n": 4}]


def test_a_file_that_is_named_twice_is_an_error(folder: Path) -> None:
    """Its events would be counted twice."""
    was = rename(folder, "x")
    rename(folder, f"./{was}")
    line = json.loads(first_log(folder).read_text().splitlines()[-1])
    line["add"]["path"] = was
    with first_log(folder).open("a") as log:
        log.write(json.dumps(line) + "\n")
    assert error(folder, "SELECT cas FROM history")["code"] == "archive_unusable"


@pytest.mark.thorough
def test_a_log_with_any_damage_is_read_or_is_an_error(folder: Path) -> None:
    chance = random.Random(1)
    log = first_log(folder)
    good = log.read_bytes()
    codes = set()
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice(b'{}[]",:0\x00\xff\\x')
        log.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        codes.add(code_of(sql(folder, "SELECT cas FROM history", "--json")))
    assert codes == {"", "archive_unusable"}


def code_of(done: Result) -> str:
    """Return the code of an error, empty if there is none. No other end is one."""
    if done.exit_code == 0:
        return ""
    assert isinstance(done.exception, SystemExit), done.exception
    found: str = json.loads(done.stderr)["error"]["code"]
    return found


@pytest.mark.thorough
def test_a_data_file_with_any_damage_is_read_or_is_an_error(folder: Path) -> None:
    """It is never the query that is to blame."""
    chance = random.Random(5)
    path = (folder / ARCHIVE / "history") / rename(folder, "x")
    rename(folder, str(path.relative_to(folder / ARCHIVE / "history")))
    good = path.read_bytes()
    codes = set()
    for n in range(40):
        data = bytearray(good)
        if n % 2:
            begin = chance.randrange(4, len(data) - 48)
            data[begin : begin + 40] = bytes(40)
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        codes.add(code := code_of(sql(folder, "SELECT * FROM history", "--json")))
        assert code in ("", "archive_unusable"), (n, data)
    # Bytes of a name of a column that are no text, which DuckDB repeats.
    path.write_bytes(good.replace(b"txn_epoch", b"\xf4xn_epoch"))
    codes.add(code_of(sql(folder, "SELECT * FROM history", "--json")))
    assert codes == {"", "archive_unusable"}
    path.write_bytes(good)
    assert error(folder, "SELECT error('x') FROM history")["code"] == "sql_error"


def test_files_that_were_merged_meanwhile_are_looked_up_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = folder.rename(tmp_path / "plain")
    table = plain / ARCHIVE / "history"
    connect = duckdb.connect
    merges: list[str] = []

    def merging(*args: Any, **more: Any) -> Any:
        """What another process does after the files were looked up, and before they are read."""
        if not merges:
            there = DeltaTable(table)
            merges.extend(there.get_add_actions()["path"].to_pylist())
            there.optimize.compact(max_concurrent_tasks=1)
            for path in merges:
                (table / path).unlink()
        return connect(*args, **more)

    monkeypatch.setattr(duckdb, "connect", merging)
    assert rows(plain, "SELECT count(*) AS n FROM history") == [{"n": 4}]
    assert len(merges) == 2


def test_a_value_that_python_has_no_room_for_is_an_error(folder: Path) -> None:
    assert error(folder, "SELECT interval '2147483647 days'")["code"] == "sql_error"


@pytest.mark.parametrize("left", [b"", b"PAR1", b"x" * 100])
def test_a_file_that_was_cut_off_is_an_error(folder: Path, left: bytes) -> None:
    for path in (folder / ARCHIVE / "history").rglob("*.parquet"):
        path.write_bytes(left)
    assert error(folder, "SELECT count(*) FROM history")["code"] == "archive_unusable"

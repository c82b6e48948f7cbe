"""Record what Debezium's engine tells of a PostgreSQL database: the files beside this program.

    python examples/debezium/record.py          # needs PostgreSQL 13+ and a JDK 17+ on the PATH

It starts a PostgreSQL of its own in a temporary folder, and Debezium's engine beside it (a Java
library, which jgo brings). Some rows are there when the engine starts: it reads them as a snapshot.
Then rows come, change, go and get other keys. All of that is in `changes.jsonl`, a line for each
message, with key and value as Debezium would write them to Kafka. `tables.json` is what PostgreSQL
has at the end, by PostgreSQL's own account: an index over the messages has to agree with it.

With --schemas each message has its schema beside it, as in Debezium's own default. Times and places
in the log of PostgreSQL differ from one recording to the next, and the rest does not.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jgo

VERSION = "3.2.0.Final"
JARS = (
    f"io.debezium:debezium-embedded:{VERSION}",
    f"io.debezium:debezium-connector-postgres:{VERSION}",
    "org.slf4j:slf4j-nop:1.7.36",
)
HERE = Path(__file__).parent
ROWS = 10
"""How many rows there are when the engine starts."""
TIMEOUT_S = 120.0

TABLES = """
CREATE TABLE customers (
    id integer PRIMARY KEY,
    name text NOT NULL,
    city text,
    credit numeric(10, 2),
    tags text[] NOT NULL DEFAULT '{}',
    since date NOT NULL,
    seen timestamptz,
    note jsonb
);
CREATE TABLE order_lines (
    "order" integer,
    line integer,
    thing text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY ("order", line)
);
INSERT INTO customers VALUES
    (1, 'Ada', 'Bern', 100.50, '{new,vip}', '2024-02-29', '2026-11-01 07:00:00.25Z', '{"a": 1}'),
    (2, 'Börje', 'Åmål', 0, '{}', '1999-12-31', NULL, NULL),
    (3, 'Chloé', 'Genève', -20.05, '{vip}', '2020-01-01', NULL, NULL),
    (4, 'Dirk', NULL, NULL, '{new}', '2026-01-01', NULL, NULL),
    (5, 'Eva', 'Chur', 99999999.99, '{"a, b","a \\"c\\""}', '2021-07-07', NULL, NULL);
CREATE TABLE letters (id text PRIMARY KEY, city text, body text);
ALTER TABLE letters ALTER body SET STORAGE EXTERNAL;
INSERT INTO letters VALUES
    ('a', 'Bern', repeat('Dear ', 500)), ('b', 'Chur', repeat('Yours ', 400));
INSERT INTO order_lines VALUES
    (10, 1, 'lamp', 2), (10, 2, 'desk', 1), (11, 1, 'rug', 9007199254740993);
"""

CHANGES = (
    "INSERT INTO customers VALUES (6, 'Fynn', 'Chur', 5, '{vip}', '2026-11-02', now(), NULL)",
    "UPDATE customers SET city = 'Lyon', tags = '{vip,moved}' WHERE id = 3",
    "UPDATE customers SET city = NULL, credit = NULL WHERE id = 5",
    "DELETE FROM customers WHERE id = 2",
    # A row that gets another key: for Debezium it is gone, and another one is there.
    "UPDATE customers SET id = 40 WHERE id = 4",
    "BEGIN; UPDATE customers SET credit = credit + 1; DELETE FROM order_lines WHERE line = 2;"
    " COMMIT",
    "BEGIN; DELETE FROM customers; ROLLBACK",
    "INSERT INTO order_lines VALUES (12, 1, 'clock', 3)",
    'UPDATE order_lines SET "order" = 13 WHERE "order" = 12',
    "DELETE FROM customers WHERE id = 6",
    # PostgreSQL does not log a large value that stays as it is, unless it is told to.
    "UPDATE letters SET city = 'Bremen' WHERE id = 'a'",
    "ALTER TABLE letters REPLICA IDENTITY FULL",
    "UPDATE letters SET city = 'Lyon' WHERE id = 'b'",
    "INSERT INTO customers VALUES (6, 'Fritz', 'Bern', 7, '{back}', '2026-11-03', NULL, NULL)",
)
LAST = "INSERT INTO customers VALUES (0, 'last', NULL, NULL, '{}', '2026-11-04', NULL, NULL)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--schemas", action="store_true", help="with a schema in each message")
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="where files go")
    arguments = parser.parse_args()
    for program in ("initdb", "pg_ctl", "psql", "java"):
        shutil.which(program) or sys.exit(f"{program} is not on the PATH")
    arguments.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as database:
        database.sql(TABLES)
        events = list(recorded(Path(folder), database, schemas=arguments.schemas))
        tables = {
            name: json.loads(database.sql(f"SELECT json_agg(t ORDER BY 1) FROM {name} t"))
            for name in ("customers", "letters", "order_lines")
        }
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
    (arguments.to / "changes.jsonl").write_text(lines)
    (arguments.to / "tables.json").write_text(
        json.dumps(tables, indent=1, ensure_ascii=False) + "\n"
    )
    print(f"recorded {len(events)} messages")


class Database:
    """A PostgreSQL that listens on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    def sql(self, *statements: str) -> str:
        """Do statements, one after the other; return what they print."""
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        command += ["-XqAtv", "ON_ERROR_STOP=1"]
        for statement in statements:
            command += ["-c", statement]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


@contextmanager
def postgres(folder: Path) -> Iterator[Database]:
    """Run PostgreSQL; as its own user where this program is root, which it refuses to run as."""
    user = "postgres" if os.geteuid() == 0 else None
    data = folder / "postgres"
    data.mkdir()
    if user:
        folder.chmod(0o755)
        os.chown(data, pwd.getpwnam(user).pw_uid, -1)

    def run(*command: str) -> None:
        subprocess.run(command, check=True, user=user, cwd=data, stdout=subprocess.DEVNULL)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
    options = f"-p {port} -h 127.0.0.1 -k {data} -c wal_level=logical -c fsync=off"
    run("pg_ctl", "-D", str(data), "-w", "-l", str(data / "log"), "-o", options, "start")
    try:
        yield Database(port)
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


def recorded(folder: Path, database: Database, *, schemas: bool) -> Iterator[dict[str, str | None]]:
    """Yield the messages of Debezium's engine, of the snapshot and of each change."""
    settings = {
        "name": "recorder",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        # Numbers with decimals as numbers, not as bytes; times as texts, not as counts.
        "decimal.handling.mode": "double",
        "time.precision.mode": "isostring",
        "key.converter.schemas.enable": str(schemas).lower(),
        "value.converter.schemas.enable": str(schemas).lower(),
        "converter.schemas.enable": str(schemas).lower(),
    }
    with recorder(settings) as lines:
        yield from (next(lines) for _ in range(ROWS))
        database.sql(*CHANGES, LAST)
        for line in lines:
            if key_of(line) == {"id": 0}:
                database.sql("DELETE FROM customers WHERE id = 0")
                return
            yield line


def key_of(line: dict[str, str | None]) -> object:
    key = json.loads(line["key"] or "null")
    return key["payload"] if isinstance(key, dict) and "payload" in key else key


@contextmanager
def recorder(settings: dict[str, str]) -> Iterator[Iterator[dict[str, str | None]]]:
    """Run Debezium's engine; what comes are the lines that it prints."""
    found = jgo.build("+".join(JARS))
    jars = os.pathsep.join(str(jar) for jar in Path(found.path).rglob("*.jar"))
    command = ["java", "-Xmx256m", "-cp", jars, str(HERE / "Recorder.java")]
    command += [f"{name}={value}" for name, value in settings.items()]
    engine = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert engine.stdin
    assert engine.stdout
    try:
        yield map(json.loads, engine.stdout)
    finally:
        engine.stdin.close()
        try:
            engine.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


if __name__ == "__main__":
    main()

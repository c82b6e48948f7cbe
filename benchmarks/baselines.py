"""What the data plane is compared with, in this process: bulk writes to RocksDB, scans of SQLite.

Both have the same documents and the same keys as the indexes. Neither is a system of its own: no
projector, no broker, nobody else who could ask. So the ratios say what all that costs.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from rocksdict import WriteBatch

from coordinator.core.model.entities import READY, Index, Slice
from indexer_sim.bucket.database import Database
from indexer_sim.bucket.entries import BACK, NOTHING, entries_prefix, pack_back
from projector_sim.kv.generator import Generator
from projector_sim.kv.vbuckets import VBUCKETS, vbucket_of
from projector_sim.projector.evaluation_plan import Route, route

BATCH = 1_000
BLOCK = 10_000


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index as it is created over HTTP, and as the baselines have it."""

    name: str
    expressions: tuple[str, ...]
    where: str | None = None
    slices: int = 1

    def body(self, bucket: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "bucket": bucket,
            "expressions": list(self.expressions),
            "where": self.where,
            "slices": self.slices,
            "defer_build": True,
        }

    def route(self, index_id: int) -> Route:
        """Return what finds keys and slices of documents."""
        pieces = tuple(Slice(number, 1) for number in range(self.slices))
        return route(
            Index(
                id=index_id,
                name=self.name,
                bucket="",
                expressions=self.expressions,
                where=self.where,
                primary=False,
                using="gsi",
                defer_build=True,
                state=READY,
                reason=None,
                slices=pieces,
                request="",
                created_ms=0,
            )
        )


Records = list[tuple[bytes, bytes]]


def records_of(specs: Sequence[IndexSpec], generator: Generator) -> Iterator[tuple[int, Records]]:
    """Yield what indexers store for all documents, and how many entries that is, in blocks."""
    routes = [spec.route(number) for number, spec in enumerate(specs, 1)]
    seqnos = [0] * VBUCKETS
    changes = generator.load()
    while block := list(islice(changes, BLOCK)):
        records: Records = []
        entries = 0
        for key, value, _ in block:
            document = orjson.loads(value or b"")
            vbucket = vbucket_of(key, VBUCKETS)
            seqnos[vbucket] += 1
            places: list[bytes] = []
            for number, found in enumerate(routes, 1):
                entry = found.evaluate(key.decode(), document)
                if entry is None:
                    continue
                piece = 0 if found.place_of is None else found.place_of(entry)
                records.append((entries_prefix(number, piece) + entry + key, NOTHING))
                places.append(pack_back(number, seqnos[vbucket], piece, entry))
            entries += len(places)
            if places:
                records.append((BACK + key, b"".join(places)))
        yield entries, records


def bulk_write(specs: Sequence[IndexSpec], generator: Generator) -> dict[str, Any]:
    """Write the entries of all documents into one database, a batch of 1,000 at a time.

    Only writing is timed; the entries are made beforehand, block by block.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-rocksdb-"))
    database = Database(folder)
    entries, write_s, writing_cpu_s = 0, 0.0, 0.0
    wall_s, cpu_s, thread_s = time.perf_counter(), time.process_time(), time.thread_time()
    try:
        for count, records in records_of(specs, generator):
            began, began_cpu = time.perf_counter(), time.thread_time()
            for at in range(0, len(records), BATCH):
                batch = WriteBatch(raw_mode=True)
                for key, value in records[at : at + BATCH]:
                    batch.put(key, value)
                database.write(batch, sync=False)
            write_s += time.perf_counter() - began
            writing_cpu_s += time.thread_time() - began_cpu
            entries += count
    finally:
        database.close()
        shutil.rmtree(folder, ignore_errors=True)
    made_s = time.perf_counter() - wall_s - write_s
    # What other threads did was RocksDB's: flushing, merging.
    others_s = (time.process_time() - cpu_s) - (time.thread_time() - thread_s)
    return {
        "entries": entries,
        "documents_per_second": round(generator.documents / write_s),
        "entries_per_second": round(entries / write_s),
        "cpu_us_each": round((writing_cpu_s + others_s) / generator.documents * 1e6, 1),
        "made_beforehand_s": round(made_s, 1),
    }


class Sqlite:
    """A table of prices with a covering index, in a file."""

    def __init__(self, generator: Generator) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-sqlite-"))
        self._db = sqlite3.connect(self._folder / "documents.db")
        self._db.execute("CREATE TABLE documents (id TEXT, price REAL)")
        rows = ((c.key.decode(), orjson.loads(c.value or b"")["price"]) for c in generator.load())
        self._db.executemany("INSERT INTO documents VALUES (?, ?)", rows)
        self._db.execute("CREATE INDEX by_price ON documents (price, id)")
        self._db.commit()

    def range(self, low: float, limit: int) -> list[tuple[str, float]]:
        """Return the first rows from `low` on."""
        asked = "SELECT id, price FROM documents WHERE price >= ? ORDER BY price, id LIMIT ?"
        return self._db.execute(asked, (low, limit)).fetchall()

    def all(self) -> Iterator[tuple[str, float]]:
        """Yield all rows, in the order of the index."""
        yield from self._db.execute("SELECT id, price FROM documents ORDER BY price, id")

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

"""Ways to damage the files of a node's RocksDB, while nobody has it open.

`certain` ones hit what every reading needs: the node must notice. The others lose the end of the
write-ahead log, or perhaps nothing: RocksDB may begin at an earlier point, which is no damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from rocksdict import Rdict

from coordinator.node.store import _options

STRIDE_BYTES = 256


def _flushed(folder: Path) -> None:
    """Put everything into tables, so that there are some."""
    db = Rdict(str(folder), _options())
    db.flush()
    db.close()


def _tables(folder: Path) -> list[Path]:
    _flushed(folder)
    found = sorted(folder.glob("*.sst"))
    assert found, "there is no table"
    return found


def _flip(path: Path, every: int, begin: int = 0) -> None:
    """Flip a bit in each `every` bytes."""
    data = bytearray(path.read_bytes())
    for place in range(begin, len(data), every):
        data[place] ^= 1 << (place // every) % 8
    path.write_bytes(data)


def _truncate(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(rng.randrange(size) if size else 0)


def flip_tables(folder: Path, rng: random.Random) -> None:
    """Flip bits all over every table."""
    for path in _tables(folder):
        _flip(path, STRIDE_BYTES)


def truncate_tables(folder: Path, rng: random.Random) -> None:
    """Cut every table short."""
    for path in _tables(folder):
        _truncate(path, rng)


def lose_a_table(folder: Path, rng: random.Random) -> None:
    """Delete a table."""
    rng.choice(_tables(folder)).unlink()


def flip_manifest(folder: Path, rng: random.Random) -> None:
    """Flip bits all over the manifest."""
    for path in folder.glob("MANIFEST-*"):
        _flip(path, 16)


def truncate_manifest(folder: Path, rng: random.Random) -> None:
    """Leave nothing of the manifest."""
    for path in folder.glob("MANIFEST-*"):
        path.write_bytes(b"")


def garble_current(folder: Path, rng: random.Random) -> None:
    """Let CURRENT say nothing that makes sense."""
    (folder / "CURRENT").write_bytes(b"garbage")


def flip_log(folder: Path, rng: random.Random) -> None:
    """Flip one bit somewhere in each write-ahead log."""
    for path in folder.glob("*.log"):
        size = path.stat().st_size
        if size:
            _flip(path, size, rng.randrange(size))


def truncate_log(folder: Path, rng: random.Random) -> None:
    """Cut each write-ahead log short."""
    for path in folder.glob("*.log"):
        _truncate(path, rng)


Damage = Callable[[Path, random.Random], None]

CERTAIN: tuple[Damage, ...] = (
    flip_tables,
    truncate_tables,
    lose_a_table,
    flip_manifest,
    truncate_manifest,
    garble_current,
)
POSSIBLE: tuple[Damage, ...] = (flip_log, truncate_log)

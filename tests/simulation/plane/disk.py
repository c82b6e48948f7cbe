"""A bucket's database in memory: batches are atomic; without sync they may be lost, as a suffix.

`Batch` and `Shards` stand in for what `indexer_sim.bucket.bucket` takes from elsewhere: `installed`
puts them there for as long as a world runs. There few documents are swept at once, or are in a page
that one indexer gives another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from indexer_sim.bucket import back_index, transfers
from indexer_sim.bucket import bucket as bucket_module
from indexer_sim.bucket.checkpoints import About
from indexer_sim.bucket.database import StorageError
from indexer_sim.pipeline import fillings
from tests.simulation.kernel.disk import Disk

UNSYNCED_MAX = 20
SWEPT_AT_ONCE = 3
DOCUMENTS_MAX, LOOKED_AT_MAX, AT_ONCE = 2, 3, 2
PATIENCE_S = 3.0
NOTHING: Mapping[bytes, bytes] = {}


class Crashed(BaseException):
    """The process ends here."""


class Instant(dict[bytes, bytes]):
    """A database as it was when this was made."""

    def some(self, begin: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        return sorted((k, v) for k, v in self.items() if begin <= k < end)[:count]


class Batch:
    """Writes, in their order."""

    def __init__(self, raw_mode: bool = True) -> None:
        self.writes: list[tuple[bytes, bytes | None, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.writes.append((key, value, None))

    def delete(self, key: bytes) -> None:
        self.writes.append((key, None, None))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.writes.append((begin, None, end))


class Shards:
    """Where the numbers of shards come from: each is another one."""

    def __init__(self) -> None:
        self.number = 0

    def randbits(self, bits: int) -> int:
        self.number += 1
        return self.number


@contextmanager
def installed() -> Iterator[None]:
    """Let buckets write batches that can be read, and number their shards."""
    with ExitStack() as patches:
        for module, name, instead in (
            (bucket_module, "WriteBatch", Batch),
            (bucket_module, "secrets", Shards()),
            (back_index, "SWEPT_AT_ONCE", SWEPT_AT_ONCE),
            (transfers, "secrets", Shards()),
            (transfers, "DOCUMENTS_MAX", DOCUMENTS_MAX),
            (transfers, "LOOKED_AT_MAX", LOOKED_AT_MAX),
            (transfers, "AT_ONCE", AT_ONCE),
            (fillings, "PATIENCE_S", PATIENCE_S),
        ):
            patches.enter_context(patch.object(module, name, instead))
        yield


@dataclass(slots=True)
class Troubles:
    """What is wrong with a disk, whatever database of a bucket lies on it.

    The next `failing` writes are refused: of each, chance tells whether it took place. With a
    `fuse` the process ends after so many writes.
    """

    failing: int = 0
    fuse: int = -1


class MemoryDatabase(Disk[dict[bytes, bytes], Batch]):
    """Does what `indexer_sim.bucket.database.Database` does for a bucket.

    `checkpoints` lie beside it.
    """

    def __init__(
        self, took_place: Callable[[], bool], content: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        super().__init__(dict(content))
        self.checkpoints: list[tuple[About, dict[bytes, bytes]]] = []
        self.troubles = Troubles()
        self.is_written: Callable[[], None] = lambda: None
        self._took_place = took_place

    def copy_of(self, content: Mapping[bytes, bytes]) -> MemoryDatabase:
        """Return another database that may take the place of this one."""
        made = MemoryDatabase(self._took_place, content)
        made.troubles, made.checkpoints = self.troubles, self.checkpoints
        return made

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.newest.get(key) for key in keys]

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((k, v) for k, v in self.newest.items() if k.startswith(prefix))

    def some(self, begin: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        return sorted((k, v) for k, v in self.newest.items() if begin <= k < end)[:count]

    def holds(self, place: tuple[bytes, bytes]) -> bool:
        return any(place[0] <= key < place[1] for key in self.newest)

    def empty(self, begin: bytes, end: bytes) -> None:
        """Nothing is to be given back."""

    def write(self, batch: Batch, *, sync: bool) -> None:
        refused = self.troubles.failing > 0
        self.troubles.failing -= refused
        if not refused or self._took_place():
            self.take(batch)
            old = len(self.unsynced) - (0 if sync else UNSYNCED_MAX)
            if old > 0:
                self.secure(old)
            self.is_written()
        if refused:
            raise StorageError("refused", "the disk is full")
        if self.troubles.fuse >= 0:
            self.troubles.fuse -= 1
            if self.troubles.fuse < 0:
                raise Crashed

    def moment(self) -> Instant:
        """Return all that there is at this instant."""
        return Instant(self.newest)

    def close(self) -> None:
        """Nothing is open."""

    def applied(self, content: dict[bytes, bytes], batch: Batch) -> dict[bytes, bytes]:
        for key, value, end in batch.writes:
            if end is not None:
                for held in [k for k in content if key <= k < end]:
                    del content[held]
            elif value is None:
                content.pop(key, None)
            else:
                content[key] = value
        return content

"""The key-value store: its buckets, one folder with one RocksDB each.

A bucket exists once `make_bucket` has written it, and is gone once its folder has been moved away;
what a crash left half made or half deleted is cleared away when the store is opened. Nothing here
knows Kafka. Not for several threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from projector_sim.kv.bucket import TAIL_SEQNOS, Bucket, make_bucket
from projector_sim.kv.errors import KvError
from projector_sim.kv.vbuckets import VBUCKETS

BUCKETS, TRASH = "buckets", "trash"
NAME_BYTES_MAX = 100
NODES = (0,)


class KvStore:
    """The buckets in a folder."""

    def __init__(self, folder: Path, *, sync: bool = False, tail_seqnos: int = TAIL_SEQNOS) -> None:
        """Open the store, or begin one. `sync`, `tail_seqnos`: as of `Bucket`. KvError."""
        self.folder = folder
        self._sync = sync
        self._tail_seqnos = tail_seqnos
        self._buckets: dict[str, Bucket] = {}
        shutil.rmtree(folder / TRASH, ignore_errors=True)
        try:
            for path in sorted((folder / BUCKETS).glob("*")):
                self._open(path)
        except KvError:
            self.close()
            raise

    def close(self) -> None:
        for bucket in self._buckets.values():
            bucket.close()

    @property
    def buckets(self) -> Mapping[str, Bucket]:
        """The buckets that exist, by name."""
        return MappingProxyType(self._buckets)

    def bucket(self, name: str) -> Bucket:
        """Return a bucket. KvError `not_found`."""
        if name not in self._buckets:
            raise KvError("not_found", f"there is no bucket {name}")
        return self._buckets[name]

    def create(self, name: str, vbuckets: int = VBUCKETS, nodes: Sequence[int] = NODES) -> Bucket:
        """Make a bucket whose vbuckets are spread over `nodes`. ValueError; KvError `exists`."""
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"the name of a bucket has 1 to {NAME_BYTES_MAX} bytes")
        if name in self._buckets:
            raise KvError("exists", f"there is a bucket {name}")
        # Hexadecimal digits: no two names share a folder, on any file system.
        path = self.folder / BUCKETS / name.encode().hex()
        make_bucket(path, vbuckets, nodes)
        self._open(path)
        return self._buckets[name]

    def drop(self, name: str) -> None:
        """Delete a bucket with all that is in it. KvError `not_found`."""
        self.bucket(name).close()
        self._discard(self.folder / BUCKETS / name.encode().hex())
        del self._buckets[name]

    def _open(self, path: Path) -> None:
        name = bytes.fromhex(path.name).decode()
        try:
            self._buckets[name] = Bucket(path, sync=self._sync, tail_seqnos=self._tail_seqnos)
        except KvError as error:
            if error.code != "not_found":
                raise
            self._discard(path)

    def _discard(self, path: Path) -> None:
        """Delete a folder. Moved away first, so that no half of it is ever opened."""
        trash = self.folder / TRASH
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

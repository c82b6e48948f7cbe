"""The key-value store: its buckets, one folder with one RocksDB each.

A bucket exists once `make_bucket` has written it, and is gone once its folder has been moved away;
what a crash left half made or half deleted is cleared away when the store is opened. Nothing here
knows Kafka. Not for several threads.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from coordinator.core.model.names import NAME_RULE, is_name
from projector_sim.kv.bucket import TAIL_SEQNOS, Bucket, make_bucket
from projector_sim.kv.errors import KvError
from projector_sim.kv.vbuckets import VBUCKETS

BUCKETS, TRASH = "buckets", "trash"
HEX_BYTES_MAX = 100
LONG = "_"
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
            raise KvError("not_found", f"the store has no bucket {name}")
        return self._buckets[name]

    def create(self, name: str, vbuckets: int = VBUCKETS, nodes: Sequence[int] = NODES) -> Bucket:
        """Make a bucket whose vbuckets are spread over `nodes`. ValueError; KvError `exists`."""
        if not is_name(name):
            raise ValueError(f"bucket name {name[:40]!r}: {NAME_RULE}")
        if name in self._buckets:
            raise KvError("exists", f"there is a bucket {name}")
        path = self.folder / BUCKETS / folder_name(name)
        make_bucket(path, vbuckets, nodes)
        self._open(path)
        return self._buckets[name]

    def drop(self, name: str) -> None:
        """Delete a bucket with all that is in it. KvError `not_found`."""
        self.bucket(name).close()
        self._discard(self.folder / BUCKETS / folder_name(name))
        del self._buckets[name]

    def _open(self, path: Path) -> None:
        name = bucket_name(path.name)
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


def folder_name(bucket: str) -> str:
    """Return the name of a bucket's folder: no two buckets share one, on any file system.

    Hexadecimal digits; of a long name base 32, as a folder's name has at most 255 characters.
    """
    raw = bucket.encode()
    if len(raw) <= HEX_BYTES_MAX:
        return raw.hex()
    return LONG + base64.b32encode(raw).decode().rstrip("=").lower()


def bucket_name(folder: str) -> str:
    """Return the bucket whose folder this is: the inverse of `folder_name`."""
    if not folder.startswith(LONG):
        return bytes.fromhex(folder).decode()
    digits = folder.removeprefix(LONG).upper()
    return base64.b32decode(digits + "=" * (-len(digits) % 8)).decode()

"""A node's store whose syncs are seen, not assumed: RocksDB counts them itself.

After each sync the folder is copied as it is then, the log cut to what it had. The copy is what a
loss of power would leave: opened as a store, it shows what is really durable.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import Rdict

from coordinator.core.consensus.effects import Save
from coordinator.node import store as stores
from coordinator.node.store import Store

SYNCED = re.compile(r"rocksdb\.wal\.synced COUNT : (\d+)")


class ObservedStore(Store):
    """The store, with a copy of its folder as of its last sync beside it."""

    def __init__(self, folder: Path) -> None:
        self.durable = folder.with_name(f"{folder.name}-durable")
        self._options: Any = None
        self._seen = 0
        self._before = 0
        super().__init__(folder)
        self._observe(opened=True)

    def _open(self) -> Rdict:
        self._before += self.syncs if self._options is not None else 0
        self._options = stores._options()
        self._options.enable_statistics()
        self.folder.mkdir(parents=True, exist_ok=True)
        return Rdict(str(self.folder), self._options)

    @property
    def syncs(self) -> int:
        """How often RocksDB has synced its log since it was opened."""
        found = SYNCED.search(self._options.get_statistics())
        return int(found[1]) if found else 0

    @property
    def all_syncs(self) -> int:
        """How often it has over all openings of this process."""
        return self._before + self.syncs

    def save(self, effect: Save) -> None:
        super().save(effect)
        self._observe()

    def claim_identity(self, identity: str) -> None:
        super().claim_identity(identity)
        self._observe()

    def probe(self) -> None:
        super().probe()
        self._observe()

    def demand_rebuild(self) -> None:
        super().demand_rebuild()
        self._observe()

    def _observe(self, opened: bool = False) -> None:
        """Copy the folder if the log was synced; opening writes what it finds into tables."""
        if self.all_syncs == self._seen and not opened:
            return
        self._seen = self.all_syncs
        fresh = self.durable.with_name(f"{self.durable.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.folder, fresh, ignore=shutil.ignore_patterns("LOCK"))
        shutil.rmtree(self.durable, ignore_errors=True)
        fresh.rename(self.durable)

    @contextmanager
    def as_of_the_last_sync(self) -> Iterator[Store]:
        """Open what is durable, in a copy of the copy."""
        copy = self.durable.with_name(f"{self.durable.name}.opened")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.durable, copy)
        opened = Store(copy)
        try:
            yield opened
        finally:
            opened.close()
            shutil.rmtree(copy)

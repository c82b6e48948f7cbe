"""A disk that takes batches: each is there as a whole or not; without a sync, a crash may lose it.

What is lost is a suffix: of the batches behind the last sync, a crash leaves only the first ones.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Generic, TypeVar

Content = TypeVar("Content")
Batch = TypeVar("Batch")


class Disk(Generic[Content, Batch]):
    """What is on a disk, and what a process believes to be there."""

    def __init__(self, empty: Content) -> None:
        self.durable = empty
        """What survives everything."""
        self.newest = copy(empty)
        """What the process sees, and the next one after it, if only the process ends."""
        self.unsynced: list[Batch] = []

    @abstractmethod
    def applied(self, content: Content, batch: Batch) -> Content:
        """Return the content after one more batch; the old one may have become it."""

    def take(self, batch: Batch) -> None:
        """Apply a batch in memory."""
        self.unsynced.append(batch)
        self.newest = self.applied(self.newest, batch)

    def secure(self, count: int) -> None:
        """The first so many of the batches that were not synced survive from now on."""
        for batch in self.unsynced[:count]:
            self.durable = self.applied(self.durable, batch)
        del self.unsynced[:count]

    def crash(self, kept: int) -> None:
        """Lose all but the first `kept` of the batches that were not synced."""
        self.secure(kept)
        self.unsynced.clear()
        self.newest = copy(self.durable)

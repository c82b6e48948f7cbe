"""The newest mutations of a bucket, in memory: for those who follow what is written.

One batch a write, numbered in the order of the writes. A follower remembers the number of the next
batch. Where that one is not kept any more, or where the tail was broken off, it has to read the
bucket, and begins again with the batch `end`. Bounded in bytes; nothing is kept without followers.
Not for several threads.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.core.model.types import Seqno

TAIL_BYTES_MAX = 16 * 1024 * 1024
ENTRY_BYTES = 100
"""What an entry takes beside the mutation itself, about."""

Entry = tuple[int, Seqno, bytes]
"""vbucket, seqno, the mutation as it is in a frame."""


class Tail:
    """Batches `begin` to `end` - 1."""

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batches: dict[int, list[Entry]] = {}
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._followers: set[Callable[[], None]] = set()
        self.begin = 0
        self.end = 0

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    def follow(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each write."""
        self._followers.add(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        """Call `wake` no more."""
        self._followers.discard(wake)
        if not self._followers:
            self._forget()

    def has(self, number: int) -> bool:
        """Return whether one who comes to batch `number` next can go on from the tail."""
        return number >= self.begin

    def batch(self, number: int) -> list[Entry]:
        """Return a batch that is there."""
        return self._batches[number]

    def append(self, entries: list[Entry]) -> None:
        """Add what was written; what is too old for the bound is let go."""
        if not self._followers:
            return
        size = sum(ENTRY_BYTES + len(mutation) for _, _, mutation in entries)
        self._batches[self.end], self._sizes[self.end] = entries, size
        self._bytes += size
        self.end += 1
        while self._bytes > self._bytes_max:
            del self._batches[self.begin]
            self._bytes -= self._sizes.pop(self.begin)
            self.begin += 1
        for wake in self._followers:
            wake()

    def break_off(self) -> None:
        """Nothing is known of the last write: let all followers read the bucket."""
        self.end += 1
        self._forget()
        for wake in self._followers:
            wake()

    def _forget(self) -> None:
        self._batches.clear()
        self._sizes.clear()
        self._bytes = 0
        self.begin = self.end

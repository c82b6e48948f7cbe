"""The log of a partition of a topic whose documents are a bucket: its bounds, and its history.

The history is that of its leader epochs: each leader begins one, where its log ended when it began
to lead. Who has read further in an epoch than that has read what was lost since (an unclean
election). Pure. Source: KIP-101, KIP-320; KIP-534 for what the cleaner removes.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from coordinator.core.model.types import Vbuuid

EPOCHS_MAX = 50
"""Older ones are not asked for: who has read up to one of them begins anew."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A leader epoch and the offset that it began at."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class History:
    """A partition: its first offset, its last stable one, its end, and its epochs, newest first.

    Kafka forgets an epoch that is left without a record, be it that it never had one, or that they
    are lost.
    """

    low: int
    stable: int
    end: int
    epochs: tuple[Epoch, ...]

    def branches(self) -> list[Epoch]:
        """Return all epochs up to the newest, also those that Kafka has forgotten: these have no
        record of their own any more, and end where the next one begins."""
        found: list[Epoch] = []
        for known in self.epochs:
            while found and found[-1].number > known.number + 1:
                found.append(Epoch(found[-1].number - 1, found[-1].start))
            found.append(known)
        while found and found[-1].number > 0 and found[-1].start > self.low:
            found.append(Epoch(found[-1].number - 1, found[-1].start))
        return found[:EPOCHS_MAX]

    def up_to(self, epoch: int) -> History:
        """Return what it was before any later epoch."""
        later = [e.start for e in self.epochs if e.number > epoch]
        end = min([self.end, *later])
        known = tuple(e for e in self.epochs if e.number <= epoch)
        return History(self.low, min(self.stable, end), end, known)

    def may_hide_deletions(self, seqno: int, kept_from: int | None) -> bool:
        """Tell whether something that was deleted after this position may be forgotten by now.

        `kept_from` is the offset from which on no deletion is, where Kafka forgets them.
        """
        return 0 < seqno < max(self.low, min(kept_from or 0, self.stable))


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What Kafka removes from a topic: `is_compacted`, older records of a key, and deletions after
    `delete_retention_ms`; `is_truncated`, whatever is too old, or too much."""

    is_compacted: bool
    is_truncated: bool
    delete_retention_ms: int

    def kept_since_ms(self, now_ms: int, read_from_ms: int) -> int | None:
        """Return since when no deletion may have been forgotten; None: none at all.

        Who has begun with nothing at `read_from_ms` misses none that was kept since.
        """
        since_ms = now_ms - self.delete_retention_ms
        return since_ms if self.is_compacted and since_ms > max(0, read_from_ms) else None


def vbuuid_of(topic_id: str, partition: int, epoch: int, reading: int = 0) -> Vbuuid:
    """Return the name of a branch: that of a leader epoch of one partition of one topic, in one
    reading of it."""
    text = f"{topic_id}/{partition}/{epoch}" + (f"/{reading}" if reading else "")
    digest = blake2b(text.encode(), digest_size=8).digest()
    return Vbuuid(int.from_bytes(digest, "big") or 1)

"""What was read of a log, so that another log under the same offsets is noticed.

An election without the newest records (or a broker whose disk lost them) leaves a log that is
shorter and grows again: the same offsets, other records. The client asks where the epoch that it
has read ends, but not in each case (a position that was given without an epoch, an answer that
never came). What always shows it is the record itself: one that was written again has another
leader epoch. So where a record is the first of another leader, the one that was read before it is
read once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coordinator.core.model.types import Offset
from indexer_sim.bucket.entries import NO_EPOCH


class Voucher(NamedTuple):
    """A bucket has read the record at `offset` under this leader: another one there is news."""

    bucket: str
    offset: Offset
    epoch: int


@dataclass(slots=True)
class LastRead:
    """The record of a partition that was read last, whether it was applied or waits.

    `is_vouched`: reading has begun at or before it since, so that it is looked at once more.
    """

    offset: Offset
    epoch: int
    is_vouched: bool = False


class LogWitness:
    """Compares what comes with what has come before; partition by partition."""

    def __init__(self) -> None:
        self._last: dict[int, LastRead] = {}
        self._vouchers: dict[int, list[Voucher]] = {}
        self.is_in_doubt = False
        """Reading has to begin anew, at or before what was read last."""

    def begin(self) -> None:
        """Reading begins anew: `vouch` says for whom, and from where on."""
        self._vouchers = {}
        self.is_in_doubt = False
        for last in self._last.values():
            last.is_vouched = True

    def last(self, partition: int) -> LastRead | None:
        return self._last.get(partition)

    def vouch(self, partition: int, voucher: Voucher) -> None:
        """A bucket has read this record; reading comes past it."""
        self._vouchers.setdefault(partition, []).append(voucher)

    def forget(self, partition: int) -> None:
        """What was read of a partition was lost, and everybody has been told."""
        self._last.pop(partition, None)

    def doubts(self, partition: int, offset: Offset, epoch: int) -> bool:
        """Tell whether this record shows another leader, and nobody has looked at what it left."""
        last = self._last.get(partition)
        self.is_in_doubt |= (
            last is not None
            and not last.is_vouched
            and offset > last.offset
            and epoch not in (NO_EPOCH, last.epoch)
        )
        return self.is_in_doubt

    def broken(self, partition: int, offset: Offset, epoch: int) -> list[Voucher]:
        """Note a record; return who has read another one here, or one before that is not there."""
        last = self._last.get(partition)
        if epoch != NO_EPOCH and (last is None or offset >= last.offset):
            is_vouched = last is not None and last.is_vouched and offset == last.offset
            self._last[partition] = LastRead(offset, epoch, is_vouched)
        waiting = self._vouchers.get(partition)
        if not waiting:
            return []
        self._vouchers[partition] = [v for v in waiting if v.offset > offset]
        return [
            v
            for v in waiting
            if v.offset < offset or (v.offset == offset and epoch not in (NO_EPOCH, v.epoch))
        ]

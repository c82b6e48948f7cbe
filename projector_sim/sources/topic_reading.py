"""What a connection has read of a topic, and the frames that say so: mutations of some partitions.

A partition is a vbucket, and the seqno of a record its offset and one. A branch is a leader epoch:
where a record has a newer one, the vbucket goes on under a new branch, and END and BEGIN say so. A
partition that has lost what was read of it ends: whoever asks for it again is told to roll back.

What the client has fetched may be of a leader that is none any more. So where a partition goes over
to another branch the client begins anew, and nothing of it is taken before; and a record of an
older epoch counts only up to where that has ended.

Where Kafka removes older records of a key, a record that is not there may have been replaced by one
that is still to come. So snapshots end only where all records have been read that there are; where
nothing is removed, after each portion. All had been read, too, if the next record lies at or above
what was the end of the log a moment ago: there was nothing between but ends of transactions, and
what they have aborted. Later something may have been removed there.

Pure: `TopicStream` brings the records, and asks Kafka what has to be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.core.model.topic_logs import Epoch, History, vbuuid_of
from coordinator.core.model.types import Seqno, Vbuuid
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch, FailoverLog, rollback_seqno, shared_seqno
from projector_sim.protocol.frames import Kind, Reason
from projector_sim.protocol.source import Frame
from projector_sim.sources.topic_records import Decoder, RecordError, RegistryClosed

FRAME_BYTES = 256 * 1024
ENDLESS = 2**63
HEAD_SIZE = frames.HEAD.size


class Record(Protocol):
    """A record of Kafka, as its client has it."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def leader_epoch(self) -> int | None: ...
    def key(self) -> str | bytes | None: ...
    def value(self) -> str | bytes | None: ...


@dataclass(frozen=True, slots=True)
class TopicBranches:
    """What names the branches of a topic: its id, and in which reading of it they are."""

    topic_id: str
    reading: int = 0

    def log(self, partition: int, history: History) -> FailoverLog:
        """Return the epochs of a partition as a failover log; a seqno is an offset and one."""
        return tuple(
            Branch(
                vbuuid_of(self.topic_id, partition, epoch.number, self.reading), Seqno(epoch.start)
            )
            for epoch in history.branches()
        )


@dataclass(slots=True, kw_only=True)
class ReadPartition:
    """How far a partition was read: `at` is the seqno of the last record, `reached` of what is
    behind it and has none, if that was told; `epoch` and `vbuuid` are of the branch, `epochs` all
    of its log. Before the offset `low` there is nothing. `log_end` was the end of the log when all
    up to `at` had been fetched, if it is beyond that.

    Records of `read_epoch` are there before the offset `read_end`.
    """

    at: int
    reached: int
    epoch: int
    vbuuid: Vbuuid
    low: int
    epochs: tuple[Epoch, ...]
    read_epoch: int = -1
    read_end: int = 0
    log_end: int = 0
    waits: list[bytes] = field(default_factory=list)
    size: int = 0
    is_at_end: bool = False

    @property
    def next_offset(self) -> int:
        return max(self.at, self.low)

    def read_on_in(self, epoch: int) -> None:
        """Records of this epoch follow."""
        later = [one.start for one in self.epochs if one.number > epoch]
        self.read_epoch, self.read_end = epoch, min(later, default=ENDLESS)


class TopicReading:
    """The partitions of a connection.

    Large because it has one method for each thing that may be heard of a partition.
    """

    def __init__(
        self,
        branches: TopicBranches,
        histories: Callable[[Sequence[int]], Mapping[int, History]],
        decode: Decoder,
        unreadable: Callable[[Record, RecordError], None],
        *,
        until: Mapping[int, int],
        is_compacted: bool,
    ) -> None:
        """`histories` returns those of partitions, and may wait; `unreadable` is told of each
        record that is no document."""
        self._branches = branches
        self._histories = histories
        self._decode = decode
        self._unreadable = unreadable
        self._until = until
        self._is_compacted = is_compacted
        self.partitions: dict[int, ReadPartition] = {}
        """Those that go on."""
        self.pending: dict[int, int] = {}
        """Ends of snapshots to tell of: their seqnos."""
        self.gone_over: set[int] = set()
        """Those that are on another branch: what was fetched of them may be of the old one."""
        self._due: set[int] = set()
        """Partitions of which it is time to tell the end of a snapshot."""
        self._out: list[Frame] = []

    # -- the beginning -----------------------------------------------------------------------

    def refuse(self, p: int, seqno: int) -> None:
        """Say that a partition is not read here: another projector has it."""
        self._emit(frames.end(p, Seqno(seqno), Reason.MOVED))

    def begin(
        self,
        p: int,
        history: History,
        start: tuple[int, int] | None,
        is_refused: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin a partition after a position (vbuuid, seqno), None: with the next record.

        Who has a position that is lost is told to roll back. `is_refused` is asked of others only:
        whether it is not read here.
        """
        log = self._branches.log(p, history)
        seqno = history.stable
        if start is not None:
            vbuuid, seqno = start
            to = rollback_seqno(log, Seqno(history.end), Vbuuid(vbuuid), Seqno(seqno))
            if to is not None:
                self._emit(frames.rollback(p, to if to >= history.low else Seqno(0)))
                return
        if is_refused():
            self.refuse(p, seqno)
        else:
            self._begin(p, history, log, seqno)

    def _begin(self, p: int, history: History, log: FailoverLog, seqno: int) -> None:
        """Begin one partition, or begin it again on another branch."""
        self._emit(frames.begin(p, log[0].vbuuid, Seqno(seqno), log))
        self.partitions[p] = ReadPartition(
            at=seqno,
            reached=seqno,
            epoch=history.epochs[0].number,
            vbuuid=log[0].vbuuid,
            low=history.low,
            epochs=history.epochs,
        )
        if not self._end_if_asked(p) and seqno >= history.stable:
            self.pending[p] = seqno

    # -- what is read ------------------------------------------------------------------------

    def take(self, record: Record) -> None:
        """Take one record."""
        p = record.partition()
        partition = self.partitions.get(p) if p is not None else None
        if p is None or partition is None or p in self.gone_over:
            return
        epoch, offset = record.leader_epoch(), record.offset()
        assert offset is not None
        if epoch is not None:
            if epoch > partition.epoch:
                self._go_on_under({p: epoch})  # If it does, the record comes again.
                return
            if epoch != partition.read_epoch:
                partition.read_on_in(epoch)
            if offset >= partition.read_end:
                self.end(p, Reason.CRASHED)
                return
        if 0 < partition.log_end <= offset:
            self._pass_log_end(p, partition)
            if p not in self.partitions:
                return
        self._add(partition, record, offset + 1)
        partition.at = partition.reached = offset + 1
        partition.is_at_end, partition.log_end = False, 0
        if partition.size >= FRAME_BYTES:
            self._emit_mutations(p, partition)

    def _add(self, partition: ReadPartition, record: Record, seqno: int) -> None:
        """Add the mutation that a record is; one that is no document is its deletion."""
        key, value, decode = record.key(), record.value(), self._decode
        try:
            found = decode(_bytes(key), _bytes(value))
            id, body = found if found is not None else (b"", None)
        except RecordError as error:
            self._unreadable(record, error)
            id, body = error.id, None
        except RegistryClosed:
            raise
        except Exception as error:
            # Whatever a record does to who reads it: others follow.
            text = f"{type(error).__name__}: {error}"
            self._unreadable(record, RecordError("bad_record", text))
            id, body = _id_in(key, decode), None
        if id:
            packed = frames.pack_mutation(Seqno(seqno), id, body)
            partition.waits.append(packed)
            partition.size += len(packed)

    def reach_end(self, p: int | None, offset: int | None) -> None:
        """Hear that there is nothing to read from this offset on, for now."""
        partition = self.partitions.get(p) if p is not None else None
        if partition is not None and p not in self.gone_over:
            partition.is_at_end = True
            partition.reached = max(partition.reached, offset or 0)

    def note_log_end(self, p: int, end: int) -> None:
        """Note where the log ended when something of it was fetched last: all that was taken, or
        more.

        While something is written all the time, nothing else says that the end was reached.
        """
        partition = self.partitions[p]
        if partition.waits and not partition.is_at_end:
            partition.is_at_end = end == partition.at
        partition.log_end = end if end > partition.at else 0

    def doubt_log_end(self, p: int) -> None:
        """The end of a log was noted so long ago that something may have been removed since."""
        if p in self.partitions:
            self.partitions[p].log_end = 0

    def _pass_log_end(self, p: int, partition: ReadPartition) -> None:
        """All that there was had been read: what follows was written later."""
        partition.reached = max(partition.reached, partition.log_end)
        if not self._end_if_asked(p) and self._is_compacted and p in self._due:
            self._due.remove(p)
            self._emit_mutations(p, partition)
            self.pending.pop(p, None)
            self._emit(frames.sync([(p, partition.at)]))

    # -- other branches ----------------------------------------------------------------------

    def note_leaders(self, newest: Mapping[int, int]) -> None:
        """Go over to the branches of new leaders also where nothing is written.

        `newest` are the last epochs of partitions. Kafka forgets an epoch without records in the
        end, and whoever was on it would begin anew.
        """
        there = newest.keys() & self.partitions.keys()
        led = {p: newest[p] for p in sorted(there) if newest[p] > self.partitions[p].epoch}
        self._go_on_under(led)
        for p in there - led.keys():
            partition = self.partitions[p]
            if partition.reached > partition.at and not partition.waits:
                # What ends transactions, and what was aborted, is no record: it is passed.
                partition.at = self.pending[p] = partition.reached

    def _go_on_under(self, led: Mapping[int, int]) -> None:
        """Other leaders have begun these epochs: go on under their branches, where they have all
        that was read."""
        if led:
            found = self._histories(sorted(led))
            for p, epoch in led.items():
                self._go_over(p, epoch, found[p].up_to(epoch))

    def _go_over(self, p: int, epoch: int, history: History) -> None:
        partition = self.partitions[p]
        log = self._branches.log(p, history)
        at, end = Seqno(partition.at), Seqno(history.end)
        has_changed = not history.epochs or history.epochs[0].number != epoch
        if has_changed or rollback_seqno(log, end, partition.vbuuid, at) is not None:
            self.end(p, Reason.CRASHED)
            return
        self._emit_mutations(p, partition)
        is_end = self.pending.pop(p, None) is not None
        if is_end or not self._is_compacted:
            # Nothing is held back then: what was read so far goes over as it is.
            self._emit(frames.sync([(p, partition.at)]))
        self._emit(frames.end(p, Seqno(partition.at), Reason.MOVED))
        self._begin(p, history, log, partition.at)
        if (again := self.partitions.get(p)) is not None:
            self.gone_over.add(p)
            shared = shared_seqno(log, end, partition.vbuuid) or 0
            again.reached = max(again.reached, min(partition.reached, shared))

    def begin_anew(self, p: int) -> None:
        """Nothing that was fetched before comes any more: the client is at `next_offset`."""
        self.gone_over.remove(p)

    # -- what is told ------------------------------------------------------------------------

    def end_portion(self, p: int) -> None:
        """Send what there is of a partition; note the end of a snapshot where this is one."""
        partition = self.partitions[p]
        had_any = bool(partition.waits)
        self._emit_mutations(p, partition)
        is_end = partition.is_at_end or (had_any and not self._is_compacted)
        if not is_end:
            return
        partition.is_at_end = False
        self.pending[p] = partition.at
        self._end_if_asked(p)

    def _end_if_asked(self, p: int) -> bool:
        """End a partition if all was read up to where it was to end; tell whether it is over."""
        partition, until = self.partitions[p], self._until.get(p)
        if until is None or partition.reached < until:
            return False
        partition.at = max(partition.at, until)
        self.end(p, Reason.DONE)
        return True

    def end(self, p: int, reason: Reason) -> None:
        """End a partition, after all that was read of it."""
        partition = self.partitions[p]
        self._emit_mutations(p, partition)
        if self.pending.pop(p, None) is not None and reason != Reason.DONE:
            self._emit(frames.sync([(p, partition.at)]))
        del self.partitions[p]
        self.gone_over.discard(p)
        self._emit(frames.end(p, Seqno(partition.at), reason))

    def sync(self) -> None:
        """Tell at which ends of snapshots the partitions are; of others, when they get to one."""
        pending, self.pending = self.pending, {}
        self._due = self.partitions.keys() - pending.keys()
        if pending:
            self._emit(frames.sync(pending.items()))

    def drain(self) -> list[Frame]:
        """Return the frames since it was asked last."""
        out, self._out = self._out, []
        return out

    def _emit_mutations(self, p: int, partition: ReadPartition) -> None:
        if partition.waits:
            # A snapshot's end that was not told of yet is none any more.
            self.pending.pop(p, None)
            head = frames.mutations_head(p, partition.size)
            self._out.append((Kind.MUTATIONS, head[HEAD_SIZE:] + b"".join(partition.waits)))
            partition.waits, partition.size = [], 0

    def _emit(self, frame: bytes) -> None:
        self._out.append((frame[HEAD_SIZE - 1], frame[HEAD_SIZE:]))


def _id_in(key: str | bytes | None, decode: Decoder) -> bytes:
    """Return the id that a key says, empty if it says none."""
    with suppress(Exception):
        found = decode(_bytes(key), None)
        return found.id if found is not None else b""
    return b""


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text

"""What the cluster is told of timestamps: a fold of the topics `stability` and `restart`.

Pure. Of each bucket, the newest stability timestamp, and the last restart timestamps and rollback
enquiries, each with when it was read. Nothing is decided here.

Within a bucket numbers only ascend: what has a number that is not above the newest is a repeat and
counts for nothing, so that whoever writes may write twice. It also means that numbers which begin
again look like repeats for ever. That is noticed: such a record is later than the one that is held,
and the board says so until the numbers go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from coordinator.core.model.stream_records import (
    ConsolidatedStability,
    HwHeartbeat,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.types import Instant
from coordinator.core.model.vectors import WIRE, Numbers, Places, Vector

RESTARTS_MAX = 64
ENQUIRIES_MAX = 4_096
"""So many of a bucket are kept, the newest. All vbuckets may be enquired about at once, and a
master must not miss whose they were."""

R = TypeVar("R")
Record = StabilityTimestamp | ConsolidatedStability | RestartTimestamp | RollbackEnquiry


class Read(NamedTuple, Generic[R]):
    """A record, and when it was read."""

    record: R
    at: Instant


class BucketBoard(NamedTuple):
    """What is known of one bucket; `restarts` and `enquiries` ascend by number.

    `backwards` is the last record that has a lower number than `stability`, or the same with
    another vector, and yet is later: numbers began again, and nothing new is taken. `restarted`
    tells whether the numbers of `restarts` have. `dropped` is the number of the last restart
    timestamp or enquiry that had no room any more.
    """

    stability: Read[StabilityTimestamp] | None = None
    restarts: tuple[Read[RestartTimestamp], ...] = ()
    enquiries: tuple[Read[RollbackEnquiry], ...] = ()
    backwards: StabilityTimestamp | None = None
    restarted: bool = False
    dropped: int = 0


Board = Map[str, BucketBoard]
"""By bucket."""

EMPTY: Board = Map()
NOTHING = BucketBoard()


class BoardUpdate(NamedTuple):
    """The next board; `problem` says why a record counts for nothing, `note` what to tell."""

    board: Board
    problem: str = ""
    note: str = ""


def fold(board: Board, record: Record, now: Instant) -> BoardUpdate:
    """Return `board` after `record`, which is read at `now`; a malformed one changes nothing."""
    if problem := malformed(record):
        return BoardUpdate(board, problem)
    match record:
        case StabilityTimestamp():
            return _stability(board, (record,), now)
        case ConsolidatedStability():
            return _stability(board, record.timestamps, now)
        case RestartTimestamp():
            return _restart(board, record, now)
        case RollbackEnquiry():
            return BoardUpdate(_enquiry(board, record, now))


def of(board: Board, bucket: str) -> BucketBoard:
    """Return what is known of a bucket, which may be nothing."""
    return board.get(bucket, NOTHING)


# -- what is well formed -------------------------------------------------------------------------


def malformed(record: Record) -> str:
    """Say why a record cannot be what it says that it is, or return an empty text."""
    if isinstance(record, ConsolidatedStability):
        return next(filter(None, map(malformed, record.timestamps)), "")
    if record.number < 1:
        return f"the number {record.number} is not above 0"
    if not record.bucket:
        return "it names no bucket"
    if isinstance(record, RollbackEnquiry):
        return ""
    sizes = (len(record.vbuuids), len(record.seqnos))
    if isinstance(record, StabilityTimestamp):
        whole = sizes[0] == sizes[1] > 0 and sizes[0] % WIRE.itemsize == 0
    else:
        whole = sizes[0] == sizes[1] == WIRE.itemsize * len(record.vbuckets)
    return "" if whole else f"{sizes[0]} bytes of vbuuids and {sizes[1]} of seqnos are no vector"


# -- the fold ------------------------------------------------------------------------------------


def _stability(board: Board, records: Iterable[StabilityTimestamp], now: Instant) -> BoardUpdate:
    notes: list[str] = []
    for record in records:
        known = of(board, record.bucket)
        held = known.stability.record if known.stability else None
        if held is None or record.number > held.number:
            after = known._replace(stability=Read(record, now), backwards=None)
        elif _began_again(held, record):
            if known.backwards is None:
                notes.append(
                    f"stability timestamps of {record.bucket} begin again at {record.number}, "
                    f"not above {held.number}: they are ignored"
                )
            after = known._replace(backwards=record)
        else:
            continue
        board = board.set(record.bucket, after)
    return BoardUpdate(board, note="; ".join(notes))


def _began_again(held: StabilityTimestamp, record: StabilityTimestamp) -> bool:
    """Tell whether a record that is not above what is held is yet no repeat of anything."""
    if record.number == held.number:
        return (record.vbuuids, record.seqnos) != (held.vbuuids, held.seqnos)
    return record.at_ms > held.at_ms


def _restart(board: Board, record: RestartTimestamp, now: Instant) -> BoardUpdate:
    known = of(board, record.bucket)
    newest = known.restarts[-1].record if known.restarts else None
    if newest is not None and record.number <= newest.number:
        if record.at_ms <= newest.at_ms:
            return BoardUpdate(board)
        note = (
            f"restart timestamps of {record.bucket} begin again at {record.number}, "
            f"not above {newest.number}: they are ignored"
        )
        after = known._replace(restarted=True)
        return BoardUpdate(board.set(record.bucket, after), note="" if known.restarted else note)
    restarts = (*known.restarts, Read(record, now))
    after = known._replace(
        restarts=restarts[-RESTARTS_MAX:],
        restarted=False,
        dropped=_dropped(known, restarts[:-RESTARTS_MAX]),
    )
    return BoardUpdate(board.set(record.bucket, after))


def _enquiry(board: Board, record: RollbackEnquiry, now: Instant) -> Board:
    known = of(board, record.bucket)
    if known.enquiries and record.number <= known.enquiries[-1].record.number:
        return board
    enquiries = (*known.enquiries, Read(record, now))
    after = known._replace(
        enquiries=enquiries[-ENQUIRIES_MAX:],
        dropped=_dropped(known, enquiries[:-ENQUIRIES_MAX]),
    )
    return board.set(record.bucket, after)


def _dropped(
    known: BucketBoard, gone: Sequence[Read[RestartTimestamp] | Read[RollbackEnquiry]]
) -> int:
    """Return the number of the last record that had no room, now that these have none."""
    return max(known.dropped, *(read.record.number for read in gone), 0)


def has(timestamp: StabilityTimestamp | None, places: Places) -> bool:
    """Tell whether there is a timestamp that has these places."""
    if timestamp is None:
        return False
    return Vector.from_bytes(timestamp.vbuuids, timestamp.seqnos).lacking(places) is None


# -- how far indexers are beyond it --------------------------------------------------------------


class IndexerLag(NamedTuple):
    """How an indexer stands to a stability timestamp, in seqnos over all vbuckets.

    `ahead` is what it has applied beyond the timestamp, `behind` what it lacks of it; vbuckets in
    which it is on another branch are only counted, in `branched`. `has_snapshot`: the timestamp is
    the last one at which it took a snapshot. `snapshot` is the hash of that one, and `persisted`
    that of the one of which it keeps a checkpoint on disk; 0 for none.
    """

    indexer: int
    ahead: int
    behind: int
    branched: int
    has_snapshot: bool
    snapshot: int
    persisted: int


class Lag(NamedTuple):
    """How far a stability timestamp lags behind the high watermarks of a bucket's indexers.

    `high` is the sum of the highest seqnos that anybody holds, `seqnos` how far these are beyond
    the timestamp, over all vbuckets. `ms` is how much later the newest watermark was told than
    the timestamp was made; 0 where nobody is beyond it.
    """

    high: int
    seqnos: int
    ms: int
    indexers: tuple[IndexerLag, ...]


def lag(timestamp: StabilityTimestamp | None, watermarks: Sequence[HwHeartbeat]) -> Lag | None:
    """Return how far a timestamp is behind what indexers hold; None: nobody says what he holds.

    Without a timestamp everything is beyond it. Watermarks of another length than the timestamp, or
    than each other, are left out: they are of another life of the bucket.
    """
    sized = [beat for beat in watermarks if len(beat.vbuuids) == len(beat.seqnos)]
    size = len(timestamp.seqnos) if timestamp else max((len(b.seqnos) for b in sized), default=0)
    beats = sorted((b for b in sized if len(b.seqnos) == size), key=lambda beat: beat.indexer)
    if not beats or not size or size % WIRE.itemsize:
        return None
    if timestamp is not None:
        stable = Vector.from_bytes(timestamp.vbuuids, timestamp.seqnos)
    else:
        stable = Vector.zero(size // WIRE.itemsize)
    digest = stable.digest() if timestamp is not None else -1
    rows: list[IndexerLag] = []
    furthest = beyond = np.zeros(len(stable), np.uint64)
    for beat in beats:
        held = Vector.from_bytes(beat.vbuuids, beat.seqnos)
        same = (held.vbuuids == stable.vbuuids) | (held.seqnos == 0) | (stable.seqnos == 0)
        ahead = _above(held.seqnos, stable.seqnos, same)
        behind = _above(stable.seqnos, held.seqnos, same)
        branched, at_it = int(np.count_nonzero(~same)), beat.last_stability == digest
        hashes = (beat.last_stability, beat.last_persistence)
        rows.append(IndexerLag(beat.indexer, total(ahead), total(behind), branched, at_it, *hashes))
        furthest, beyond = np.maximum(furthest, held.seqnos), np.maximum(beyond, ahead)
    seqnos = total(beyond)
    late_ms = max(beat.at_ms for beat in beats) - (timestamp.at_ms if timestamp else 0)
    shown_ms = max(0, late_ms) if seqnos and timestamp else 0
    return Lag(total(furthest), seqnos, shown_ms, tuple(rows))


def _above(upper: Numbers, lower: Numbers, where: NDArray[np.bool_]) -> Numbers:
    """Return by how much `upper` is above `lower`, 0 where it is not, and elsewhere."""
    return np.where(where & (upper > lower), upper - lower, np.uint64(0))


def total(seqnos: Numbers) -> int:
    """Return the sum of seqnos, however large it is."""
    return sum(seqnos.tolist())

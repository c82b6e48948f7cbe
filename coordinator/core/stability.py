"""One bucket's streams and timestamps: what a batch of records changes, and what it leads to.

Pure: no Kafka, no clock. `fold` of the same state, batch and settings is always the same state,
outputs and refusals, so a batch that is done again does no harm. What a batch has is read in this
order: failover logs, SYNCs of those that own vbuckets, control records one after the other, SYNCs
of those that own vbuckets by then; and if it has a tick, limits and periods are looked at.

Limits are reached when their time has gone by in ticks:

begin_held_ms     a BEGIN that is held takes over, and a restart is asked for; so it is for a
                  vbucket that has lost its owner, and again after `sync_missing_ms`, then twice as
                  long, and so on. A branch that no failover log names by then is enquired about.
end_unmatched_ms  an END whose BEGIN did not come: a restart, unless the vbucket's owner was heard
                  after it.
sync_missing_ms   an owner that says nothing: one enquiry until it does. SYNCs whose BEGIN did not
                  come are forgotten; if nobody owns their vbucket, it counts as lost.

Restart timestamps are computed from the high watermarks of those that were heard lately, host an
index and hold anything; without any, they are the current positions. A stability timestamp is due
`period_ms` after the last one, when anything has advanced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.bucket_state import (
    MISSING,
    NEVER,
    NOBODY,
    OPEN,
    REFUSED,
    UNTIMED,
    BucketState,
    Heard,
    Question,
    TimestampState,
    frozen,
    heard_of,
    pack,
    question_of,
    unpack,
)
from coordinator.core.ownership import Ownership
from coordinator.core.positions import ORDINAL_MAX, Enquiry, Positions, Syncs, sound
from coordinator.core.stream_records import (
    MAINTENANCE,
    SYNC_MISSING,
    ConnectionClosed,
    FailoverLog,
    HwHeartbeat,
    RestartRequested,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
)
from coordinator.core.timestamp_settings import HEARTBEAT, TimestampSettings
from coordinator.core.timestamps import Watermark, mean_by_heartbeat, promote, restart
from coordinator.core.vectors import Vector

__all__ = [
    "Batch",
    "BucketState",
    "Control",
    "Folded",
    "Output",
    "Owner",
    "Refusals",
    "Syncs",
    "TimestampState",
    "fold",
    "owners",
    "pack",
    "unpack",
]

BEGIN_HELD, END_UNMATCHED, NO_OWNER = ("begin_held", "end_unmatched", "no_owner")
STREAM_REFUSED = "stream_refused"
"""The reason of an enquiry where the store refuses a stream; beside those of the records."""

INDEXERS_MAX = 64
QUESTIONS_MAX = 8
BRANCHES_MAX = 64
U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1

Control = StreamBegin | StreamEnd | ConnectionClosed | HwHeartbeat | FailoverLog | RestartRequested
Output = StabilityTimestamp | RestartTimestamp | RollbackEnquiry


class Batch(NamedTuple):
    """What was read of one bucket: `control` in the order of topic, partition and offset.

    `now_ms` is the newest tick that was ever read, 0 if none was; `ticked`: this batch has one.
    `unwatched_ms` is how much of the time since the tick before it nobody was there to read
    anything: limits stand still meanwhile, since who was not heard then may have spoken.
    """

    syncs: Syncs
    control: Sequence[Control]
    now_ms: int
    ticked: bool
    unwatched_ms: int = 0


class Refusals(NamedTuple):
    """What was not looked at: places in `Batch.syncs`, and in `Batch.control` with a reason."""

    syncs: NDArray[np.intp]
    control: tuple[tuple[int, str], ...]

    def __bool__(self) -> bool:
        return bool(len(self.syncs) or self.control)


class Folded(NamedTuple):
    """The state after a batch, the same object if nothing changed; outputs; what was refused."""

    state: BucketState
    outputs: list[Output]
    refused: Refusals


class Owner(NamedTuple):
    """A connection that owns vbuckets."""

    connection: int
    projector: int
    number: int
    vbuckets: tuple[int, ...]


def fold(state: BucketState, batch: Batch, settings: TimestampSettings) -> Folded:
    """Return what a batch makes of a bucket's state. Nothing that a record says makes it raise."""
    work = _Fold(state, batch, settings)
    work.read()
    if batch.ticked:
        work.tick()
    work.answer()
    if batch.ticked:
        work.publish()
    return Folded(work.state_after(), work.outputs, work.refused)


def owners(state: BucketState) -> list[Owner]:
    """Return the connections that own vbuckets now, by their number."""
    places = state.places
    owned = (places["connection"] != NOBODY) & (places["ended"] == OPEN)
    found = []
    for connection in np.unique(places["connection"][owned]).tolist():
        mine = np.flatnonzero(owned & (places["connection"] == connection))
        first = places[mine[0]]
        found.append(
            Owner(connection, int(first["projector"]), int(first["number"]), tuple(mine.tolist()))
        )
    return found


class _Fold:
    """A bucket's state while one batch is folded into it."""

    def __init__(self, state: BucketState, batch: Batch, settings: TimestampSettings) -> None:
        self.before, self.batch, self.settings, self.now_ms = state, batch, settings, batch.now_ms
        self.owners = Ownership(state, batch.now_ms)
        self.logs = dict(state.logs)
        self.positions = Positions(self.owners, self.logs)
        self.early = state.early
        self.heard = dict(state.heard)
        self.questions = list(state.questions)
        self.stability_number, self.restart_number = state.stability_number, state.restart_number
        self.published_ms = state.published_ms
        self.outputs: list[Output] = []
        self.refused = Refusals(np.zeros(0, np.intp), ())

    # -- reading ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Take all records."""
        control = self._sound_control()
        for record in control:
            if isinstance(record, FailoverLog):
                self.logs[record.vbucket] = record.branches
                self.owners.touched[record.vbucket] = True
        syncs = self._sound_syncs()
        left = syncs.only(self.positions.take(syncs))
        for record in control:
            self._control(record)
        self._take_early(left)
        self.positions.judge(np.flatnonzero(self.owners.touched))
        for refusal in self.owners.refusals:
            vbucket = refusal.vbucket
            if not self.owners.enquired[vbucket] & REFUSED:
                self.owners.enquired[vbucket] |= REFUSED
                _, vbuuid, seqno, projector, connection = refusal
                self.positions.enquiries.append(
                    Enquiry(vbucket, STREAM_REFUSED, vbuuid, seqno, projector, connection)
                )
        self._tell_enquiries()

    def _sound_control(self) -> list[Control]:
        refused = []
        good = []
        for place, record in enumerate(self.batch.control):
            reason = _fault(record, self.before.bucket, self.before.vbuckets)
            if reason:
                refused.append((place, reason))
            else:
                good.append(record)
        self.refused = self.refused._replace(control=tuple(refused))
        return good

    def _sound_syncs(self) -> Syncs:
        syncs = self.batch.syncs
        good = sound(syncs, self.before.vbuckets)
        if good.all():
            return syncs
        self.refused = self.refused._replace(syncs=np.flatnonzero(~good))
        return syncs.only(good)

    def _control(self, record: Control) -> None:
        match record:
            case StreamBegin(kind=kind) if kind == MAINTENANCE:
                self.owners.begin(record)
            case StreamEnd(kind=kind) if kind == MAINTENANCE:
                self.owners.end(record)
            case ConnectionClosed(kind=kind) if kind == MAINTENANCE:
                self.owners.close(record)
            case HwHeartbeat():
                self._hear(record)
            case RestartRequested():
                question = question_of(record, self.now_ms)
                if all(question.round != other.round for other in self.questions):
                    self.questions = [*self.questions, question][-QUESTIONS_MAX:]

    def _hear(self, record: HwHeartbeat) -> None:
        self.heard[record.indexer] = heard_of(record, self.heard.get(record.indexer), self.now_ms)
        if len(self.heard) > INDEXERS_MAX:
            del self.heard[min(self.heard, key=lambda indexer: self.heard[indexer].since_ms)]

    def _take_early(self, left: Syncs) -> None:
        """Take the SYNCs whose BEGIN came after them, and keep those whose BEGIN may still come."""
        early = self.early
        if not len(early) and not len(left.vbucket):
            return
        columns = (np.concatenate([early[name], getattr(left, name)]) for name in Syncs._fields)
        both = Syncs(*columns)
        new = np.full(len(left.vbucket), self.now_ms, np.int64)
        since = np.concatenate([early["since_ms"], new])
        rest = self.positions.take(both)
        self.early = self.positions.kept(both.only(rest), since[rest])

    # -- limits ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at all limits."""
        self._start_times()
        self._forget_early_syncs()
        self._give_held()
        self._end_unmatched()
        self._ask_for_owners()
        self._enquire()

    def _start_times(self) -> None:
        """What was read before the first tick was read now; what was waited for waits longer."""
        places, owners = self.owners.places, self.owners
        for name in ("heard_ms", "lost_ms", "asked_ms", "doubt_ms"):
            self._set_on(places[name])
        early = self.early.copy()
        self._set_on(early["since_ms"])
        self.early = frozen(early)
        for vbucket, waiting in owners.held.items():
            owners.held[vbucket] = tuple(self._later(held) for held in waiting)
        for key, ends in owners.ends.items():
            owners.ends[key] = tuple(self._later(end) for end in ends)
        self.questions = [self._later(question) for question in self.questions]
        for indexer, heard in self.heard.items():
            if heard.since_ms == UNTIMED:
                self.heard[indexer] = heard._replace(since_ms=self.now_ms)

    def _set_on(self, times: NDArray[np.int64]) -> None:
        """Set times on by what nobody watched, to the tick at most."""
        later = np.minimum(times + self.batch.unwatched_ms, self.now_ms)
        times[times > UNTIMED] = later[times > UNTIMED]
        times[times == UNTIMED] = self.now_ms

    def _later(self, timed: Any) -> Any:
        """Return something that has a `since_ms`, set on in the same way."""
        since = timed.since_ms + self.batch.unwatched_ms
        later = self.now_ms if timed.since_ms == UNTIMED else min(since, self.now_ms)
        return timed if later == timed.since_ms else timed._replace(since_ms=later)

    def _due(self, since_ms: int, limit_ms: int) -> bool:
        return self.now_ms - since_ms >= limit_ms

    def _forget_early_syncs(self) -> None:
        """Forget old SYNCs without a BEGIN; whose vbucket nobody owns has lost its owner."""
        over = self.now_ms - self.early["since_ms"] >= self.settings.sync_missing_ms
        if not over.any():
            return
        owners = self.owners
        old, self.early = self.early[over], frozen(self.early[~over])
        vbuckets = np.unique(old["vbucket"])
        unowned = (owners.connection[vbuckets] == NOBODY) | (owners.ended[vbuckets] != OPEN)
        lost = vbuckets[unowned & (owners.lost_ms[vbuckets] == NEVER)]
        owners.lost_ms[lost] = self.now_ms - self.settings.sync_missing_ms

    def _give_held(self) -> None:
        owners, limit = self.owners, self.settings.begin_held_ms
        late = sorted(
            vbucket
            for vbucket, waiting in owners.held.items()
            if any(self._due(held.since_ms, limit) for held in waiting)
        )
        silent = owners.projector[late].tolist()
        for vbucket in late:
            owners.give(vbucket)
        self.positions.judge(np.array(late, np.int64))
        self._restart(BEGIN_HELD, late, silent)

    def _end_unmatched(self) -> None:
        owners, places, limit = self.owners, self.owners.places, self.settings.end_unmatched_ms
        found: dict[int, int] = {}
        for (connection, vbucket), ends in list(owners.ends.items()):
            old = [end for end in ends if self._due(end.since_ms, limit)]
            if not old:
                continue
            del owners.ends[connection, vbucket]
            if left := ends[len(old) :]:
                owners.ends[connection, vbucket] = left
            owned = owners.connection[vbucket] != NOBODY and owners.ended[vbucket] == OPEN
            if owned and places["heard_ms"][vbucket] > old[-1].since_ms:
                continue
            found[vbucket] = old[-1].projector
            if not owned:
                if owners.lost_ms[vbucket] == NEVER:
                    owners.lost_ms[vbucket] = old[-1].since_ms
                places["asked_ms"][vbucket] = self.now_ms
        affected = sorted(found)
        self._restart(END_UNMATCHED, affected, [found[vbucket] for vbucket in affected])

    def _ask_for_owners(self) -> None:
        """Ask for a restart of vbuckets that nobody streams, more and more rarely."""
        places, now = self.owners.places, self.now_ms
        lost, asked = places["lost_ms"], places["asked_ms"]
        first = (asked == NEVER) & (now - lost >= self.settings.begin_held_ms)
        pause = np.maximum(self.settings.sync_missing_ms, asked - lost)
        again = (asked != NEVER) & (now - asked >= pause)
        due = (lost != NEVER) & (first | again) & (places["enquired"] & REFUSED == 0)
        asked[due] = now
        affected = np.flatnonzero(due).tolist()
        self._restart(NO_OWNER, affected, places["projector"][due].tolist())

    def _enquire(self) -> None:
        owners, places, now = self.owners, self.owners.places, self.now_ms
        owned = (owners.connection != NOBODY) & (owners.ended == OPEN)
        missing = owned & (now - places["heard_ms"] >= self.settings.sync_missing_ms)
        for vbucket in np.flatnonzero(missing & (owners.enquired & MISSING == 0)).tolist():
            self.positions.enquire(vbucket, SYNC_MISSING, MISSING)
        doubt = places["doubt_ms"]
        overdue = (doubt != NEVER) & (now - doubt >= self.settings.begin_held_ms)
        for vbucket in np.flatnonzero(overdue).tolist():
            self.positions.regressed(vbucket)
        self._tell_enquiries()

    # -- outputs ---------------------------------------------------------------------------------

    def _current(self) -> Vector:
        return Vector(self.positions.vbuuid, self.positions.seqno)

    def _stable(self) -> Vector:
        places = self.owners.places
        return Vector(places["stable_vbuuid"], places["stable_seqno"])

    def _fresh(self, heard: Heard | None) -> bool:
        """Tell whether an indexer was heard lately."""
        if heard is None:
            return False
        return self.now_ms - (heard.since_ms or self.now_ms) <= self.settings.heartbeat_stale_ms

    def _restart(
        self,
        reason: str,
        vbuckets: Sequence[int],
        projectors: Sequence[int],
        asked: int = 0,
        vectors: Sequence[Vector] | None = None,
    ) -> None:
        """Tell from where on streams are to begin again; no vbuckets, nothing to tell."""
        if not vbuckets:
            return
        if vectors is None:
            vectors = [
                heard.vector
                for heard in self.heard.values()
                if self._fresh(heard) and heard.hosts and _holds_anything(heard.vector)
            ]
        found = restart(vectors or [self._current()], self.logs, vbuckets)
        self.restart_number += 1
        self.outputs.append(
            RestartTimestamp(
                self.before.bucket,
                self.restart_number,
                asked,
                tuple(vbuckets),
                *found.vector.to_bytes(),
                found.branched,
                tuple(sorted(set(projectors) - {NOBODY})),
                reason,
                self.now_ms,
            )
        )

    def _tell_enquiries(self) -> None:
        enquiries, self.positions.enquiries = self.positions.enquiries, []
        for found in enquiries:
            self.restart_number += 1
            self.outputs.append(
                RollbackEnquiry(
                    self.before.bucket,
                    self.restart_number,
                    found.vbucket,
                    int(self.positions.vbuuid[found.vbucket]),
                    int(self.positions.seqno[found.vbucket]),
                    found.vbuuid,
                    found.seqno,
                    found.projector,
                    found.connection,
                    found.reason,
                    self.now_ms,
                )
            )

    def answer(self) -> None:
        """Answer restart requests whose participants were all heard, or waited for long enough."""
        waiting = []
        for question in self.questions:
            known = [self.heard.get(indexer) for indexer in question.participants]
            overdue = self.batch.ticked and self._due(
                question.since_ms, self.settings.heartbeat_stale_ms
            )
            if overdue or all(self._fresh(heard) for heard in known):
                self._answer(question, [heard for heard in known if heard is not None])
            else:
                waiting.append(question)
        self.questions = waiting

    def _answer(self, question: Question, known: Sequence[Heard]) -> None:
        vectors = [heard.vector for heard in known if self._fresh(heard)]
        owners = self.owners
        streaming = owners.projector[owners.ended == OPEN].tolist()
        everything = range(self.before.vbuckets)
        self._restart(question.reason, everything, streaming, question.round, vectors)

    def publish(self) -> None:
        """Tell the next stability timestamp, if it is due and anything has advanced."""
        if self.published_ms != NEVER and not self._due(self.published_ms, self.settings.period_ms):
            return
        stable = self._stable()
        if self.settings.algorithm == HEARTBEAT:
            advanced = mean_by_heartbeat(
                [
                    Watermark(heard.vector, heard.growing and heard.free > 0)
                    for heard in self.heard.values()
                    if self._fresh(heard) and heard.hosts
                ],
                stable,
                self.logs,
            )
        else:
            advanced = promote(stable, self._current(), self.logs)
        if advanced is None:
            return
        places = self.owners.places
        places["stable_vbuuid"], places["stable_seqno"] = advanced.vbuuids, advanced.seqnos
        self.stability_number += 1
        self.published_ms = self.now_ms
        self.outputs.append(
            StabilityTimestamp(
                self.before.bucket, self.stability_number, *advanced.to_bytes(), self.now_ms
            )
        )

    def state_after(self) -> BucketState:
        """Return the state after the batch; if it is the one before, that object."""
        after = replace(
            self.before,
            places=self.owners.frozen_places(),
            held=self.owners.held,
            connections=self.owners.remembered(self.before),
            early=self.early,
            early_ends=self.owners.ends,
            logs=self.logs,
            heard=self.heard,
            questions=tuple(self.questions),
            stability_number=self.stability_number,
            restart_number=self.restart_number,
            published_ms=self.published_ms,
        )
        return self.before if after == self.before else after


def _holds_anything(vector: Vector) -> bool:
    return bool(vector.seqnos.any() or vector.vbuuids.any())


def _fault(record: Control, bucket: str, vbuckets: int) -> str:
    """Return why a record cannot be looked at; empty: it can."""
    if record.bucket != bucket:
        return f"is of bucket {record.bucket!r}"
    match record:
        case HwHeartbeat():
            if not len(record.vbuuids) == len(record.seqnos) == 8 * vbuckets:
                return f"its vectors are not of {vbuckets} vbuckets"
            numbers = {"indexer": record.indexer, "incarnation": record.incarnation}
        case RestartRequested():
            if record.vbuckets != vbuckets:
                return f"is about {record.vbuckets} vbuckets: there are {vbuckets}"
            numbers = {"round": record.round}
        case FailoverLog():
            if not 0 < len(record.branches) <= BRANCHES_MAX:
                return f"a failover log of {len(record.branches)} branches"
            if not all(_is_u64(b.vbuuid) and _is_u64(b.seqno) for b in record.branches):
                return "a branch is no unsigned 64-bit number"
            numbers = {}
        case _:
            numbers = {"projector": record.projector, "connection": record.connection}
            if not 0 <= record.ordinal <= ORDINAL_MAX:
                return f"ordinal {record.ordinal}"
    if isinstance(record, StreamBegin | StreamEnd | FailoverLog):
        if not 0 <= record.vbucket < vbuckets:
            return f"vbucket {record.vbucket} of {vbuckets}"
        if isinstance(record, StreamBegin):
            numbers["number"] = record.number
        if not isinstance(record, FailoverLog) and not (
            _is_u64(record.vbuuid) and _is_u64(record.seqno)
        ):
            return "vbuuid and seqno are unsigned 64-bit numbers"
    wrong = [name for name, number in numbers.items() if not 0 <= number <= I64_MAX]
    return f"{wrong[0]} {numbers[wrong[0]]}" if wrong else ""


def _is_u64(number: int) -> bool:
    return 0 <= number <= U64_MAX

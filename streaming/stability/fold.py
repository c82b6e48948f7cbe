"""One bucket's streams and timestamps: the new state after a batch of records, and the outputs.

Pure: no Kafka, no clock. `fold` of the same state, batch and settings always gives the same state,
outputs and refusals, so a batch may be folded again. `fold` reads the records of a batch in this
order: failover logs; SYNCs of vbuckets whose owner does not change; BEGINs and ENDs in turn
(`streaming.stability.turns`), before each what the owner has said by then; the other SYNCs; the
other control records. So the result is that of the records one after the other, wherever batches
end. If the batch has a tick, it then checks the limits (`streaming.stability.limits`) and the
periods.

Restart timestamps are computed from the high watermarks of indexers that were heard lately, host an
index and hold anything. If there is no such indexer, they are the current positions. A stability
timestamp is due `period_ms` after the last one, if a position has advanced. It is due sooner while
a query waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import (
    ORDINAL_MAX,
    ConnectionClosed,
    FailoverLog,
    HwHeartbeat,
    PromotionRequested,
    RestartRequested,
    StreamBegin,
    StreamEnd,
)
from coordinator.core.timestamps.bucket_state import (
    EARLY,
    NOBODY,
    OPEN,
    BucketState,
    Heard,
    Question,
    TimestampState,
    frozen,
    pack,
    question_of,
    unpack,
)
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.announcements import Announcer, Output
from streaming.stability.limits import Limits
from streaming.stability.ownership import Ownership
from streaming.stability.positions import Positions, Syncs, sound
from streaming.stability.turns import Said, Turn, in_turn, joined, named
from streaming.stability.validation import Control, fault
from streaming.stability.vbuckets import Vbuckets

__all__ = [
    "Batch",
    "BucketState",
    "Control",
    "FoldResult",
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

QUESTIONS_MAX = 8


class Batch(NamedTuple):
    """What was read of one bucket: `control` in the order of topic, partition and offset.

    `now_ms` is the time that ticks have told, 0 if there was none; `ticked`: this batch has one.
    `unwatched_ms` is how long the application was down since the tick before. The limits do not
    count this time: a connection may have sent records that nobody read. Of that, `stepped_ms` has
    not passed at all: a clock has stepped.
    """

    syncs: Syncs
    control: Sequence[Control]
    now_ms: int
    ticked: bool
    unwatched_ms: int = 0
    stepped_ms: int = 0


class Refusals(NamedTuple):
    """What the fold refused: places in `Batch.syncs`, and in `Batch.control` with a reason."""

    syncs: NDArray[np.intp]
    control: tuple[tuple[int, str], ...]

    def __bool__(self) -> bool:
        return bool(len(self.syncs) or self.control)


class FoldResult(NamedTuple):
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


def fold(state: BucketState, batch: Batch, settings: TimestampSettings) -> FoldResult:
    """Return what a batch makes of a bucket's state. Nothing that a record says makes it raise."""
    work = _Fold(state, batch, settings)
    work.read()
    if batch.ticked:
        work.tick()
    work.answer()
    work.announcer.publish(ticked=batch.ticked)
    return FoldResult(work.state_after(), work.announcer.outputs, work.refused)


def owners(state: BucketState) -> list[Owner]:
    """Return the connections that own vbuckets now, in ascending order."""
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
        self.before, self.batch, self.now_ms = state, batch, batch.now_ms
        self.rows = Vbuckets(state, batch.now_ms)
        self.owners = Ownership(state, self.rows)
        # The same object where nothing is told: who packs it remembers its text.
        is_told = any(isinstance(record, FailoverLog) for record in batch.control)
        self._told = dict(state.logs) if is_told else {}
        self.logs = self._told if is_told else state.logs
        self.positions = Positions(self.owners, self.logs)
        self.announcer = Announcer(state, self.positions, settings, batch.now_ms)
        self.early = state.early
        self.questions = list(state.questions)
        self.refused = Refusals(np.zeros(0, np.intp), ())

    # -- reading ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Take all records."""
        control = self._sound_control()
        for record in control:
            if isinstance(record, FailoverLog):
                self._told[record.vbucket] = record.branches
                self.rows.branch(record.vbucket)
        syncs = self._sound_syncs()
        if turns := in_turn(control):
            self._take_turns(turns, syncs)
        else:
            self._take_early(
                *joined(self.early, syncs.only(self.positions.apply(syncs)), self.now_ms)
            )
        for record in control:
            self._control(record)
        self.positions.judge(self.rows.touched())
        for refusal in self.owners.refusals:
            self.positions.refused(refusal)
        self.announcer.tell_enquiries()

    def _take_turns(self, turns: Sequence[Turn], syncs: Syncs) -> None:
        """Take what changes owners, and before each the SYNCs of the owner that it concerns."""
        vbuckets, connections = named(turns)
        moves = np.isin(self.rows.connection, connections)
        moves[vbuckets] = True
        waits = moves[syncs.vbucket]
        waits[~waits] = self.positions.apply(syncs.only(~waits))
        said = Said(*joined(self.early, syncs.only(waits), self.now_ms))
        for turn in turns:
            match turn:
                case StreamBegin():
                    own = int(self.rows.connection[turn.vbucket]) == turn.connection
                    self._hear_out(said, turn.vbucket, turn.ordinal if own else None)
                    self.owners.begin(turn)
                case StreamEnd():
                    if self.rows.connection[turn.vbucket] == turn.connection:
                        self._hear_out(said, turn.vbucket, turn.ordinal)
                    self.owners.end(turn)
                case ConnectionClosed():
                    # What had ended before was heard out then.
                    open_now = self.rows.ended == OPEN
                    mine = np.flatnonzero((self.rows.connection == turn.connection) & open_now)
                    for vbucket in mine.tolist():
                        self._hear_out(said, vbucket, turn.ordinal)
                    self.owners.close(turn)
        self._take_early(*said.rest())

    def _hear_out(self, said: Said, vbucket: int, before: int | None) -> None:
        """Take what the owner of a vbucket has said until now, or below an ordinal."""
        rows = self.rows
        ended = int(rows.ended[vbucket])
        limits = [limit for limit in (before, ended) if limit is not None and limit != OPEN]
        heard = said.up_to(
            vbucket,
            int(rows.connection[vbucket]),
            int(rows.begun[vbucket]),
            min(limits, default=ORDINAL_MAX + 1),
        )
        self.positions.apply(heard)
        if rows.is_touched(vbucket):
            self.positions.judge(np.array([vbucket]))

    def _sound_control(self) -> list[Control]:
        refused = []
        good = []
        for place, record in enumerate(self.batch.control):
            reason = fault(record, self.before.bucket, self.before.vbuckets)
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
            case HwHeartbeat():
                self.announcer.note_heartbeat(record)
            case RestartRequested():
                question = question_of(record, self.now_ms)
                if all(question.round != other.round for other in self.questions):
                    self.questions = [*self.questions, question][-QUESTIONS_MAX:]
            case PromotionRequested():
                self.announcer.hurry(record)

    def _take_early(self, both: Syncs, since: NDArray[np.int64]) -> None:
        """Take the SYNCs whose BEGIN came after them, and keep those whose BEGIN may still come.

        `since` is when each was read.
        """
        if not len(since):
            self.early = frozen(np.zeros(0, EARLY)) if len(self.early) else self.early
            return
        rest = self.positions.apply(both)
        self.early = self.positions.kept(both.only(rest), since[rest])

    # -- outputs ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at all limits; who owns a vbucket by that is heard with what was kept of it."""
        limits = Limits(self.owners, self.positions, self.announcer, self.batch.unwatched_ms)
        self.announcer.set_on(self.batch.stepped_ms)
        self.early, self.questions = limits.look(self.early, self.questions)
        if len(self.early):
            self._take_early(*joined(self.early, Syncs.none(), self.now_ms))
            self.positions.judge(self.rows.touched())
            self.announcer.tell_enquiries()

    def answer(self) -> None:
        """Answer restart requests whose participants were all heard, or waited for long enough."""
        waiting = []
        for question in self.questions:
            known = [self.announcer.heard.get(indexer) for indexer in question.participants]
            waited_ms = self.now_ms - question.since_ms
            stale_ms = self.announcer.settings.heartbeat_stale_ms
            overdue = self.batch.ticked and waited_ms >= stale_ms
            if overdue or all(self.announcer.is_fresh(heard) for heard in known):
                self._answer(question, [heard for heard in known if heard is not None])
            else:
                waiting.append(question)
        self.questions = waiting

    def _answer(self, question: Question, known: Sequence[Heard]) -> None:
        fresh = [heard.vector for heard in known if self.announcer.is_fresh(heard)]
        vectors = [vector for vector in fresh if vector.holds_anything]
        streaming = self.rows.projector[self.rows.ended == OPEN].tolist()
        everything = range(self.before.vbuckets)
        self.announcer.restart(question.reason, everything, streaming, question.round, vectors)

    def state_after(self) -> BucketState:
        """Return the state after the batch; if it is the one before, that object."""
        after = replace(
            self.before,
            places=self.rows.frozen(),
            held=self.owners.held,
            connections=self.owners.remembered(self.before),
            early=self.early,
            early_ends=self.owners.ends,
            logs=self.logs,
            heard=self.announcer.heard,
            questions=tuple(self.questions),
            stability_number=self.announcer.stability_number,
            restart_number=self.announcer.restart_number,
            published_ms=self.announcer.published_ms,
            hurried_until_ms=self.announcer.hurried_until_ms,
        )
        return self.before if after == self.before else after

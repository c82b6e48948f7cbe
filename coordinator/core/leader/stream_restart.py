"""Where streams are to begin again, as a master finds out, and what makes it begin them again.

Pure. The application that computes timestamps reports on `restart` that a stream was lost, or that
a vbucket has fallen silent. Each such record has a number. A bucket's `Stream` names the last
number that a renewal has acted on. So a master acts on each record once, whichever node is master.

Before a renewal the master also asks the application for the restart timestamp, if it is alive. If
no answer comes in time, the master computes it from the same heartbeats. No stream waits for Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.core.consensus.effects import Ask
from coordinator.core.consensus.view import NodeView
from coordinator.core.model.stream_records import (
    SYNC_MISSING,
    RestartRequested,
    RestartTimestamp,
)
from coordinator.core.model.types import Epoch
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps import board as boards
from coordinator.core.timestamps.algorithms import Logs, streams_begin

ROUND_BITS = 20

Held = Mapping[int, Vector]
"""The high watermarks of the indexers that take part, at least one."""


class Told(NamedTuple):
    """What `restart` said since the last renewal: highest number, whose streams, why, of what.

    `is_partial`: more was said than is kept, and nobody knows of whose streams.
    """

    number: int
    projectors: frozenset[int]
    reason: str
    vbuckets: frozenset[int]
    is_partial: bool = False


class Asked(NamedTuple):
    """A question to the application without an answer yet: its number, and when it was sent."""

    round: int
    since_ms: int

    def may_be_answered(self, view: NodeView) -> bool:
        """Tell whether an answer is still waited for: not long, as no stream waits for Spark."""
        return view.now.mono_ms - self.since_ms < view.config.restart_wait_ms


class StartPosition(NamedTuple):
    """The restart timestamp, or None while an answer is awaited; and the questions to send."""

    vector: Vector | None
    results: tuple[Ask, ...] = ()


class StreamRestart:
    """The part of a master that knows from where streams are to begin again."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._asked: dict[str, Asked] = {}
        self._rounds = 0
        self._quiet_until_ms: dict[str, int] = {}

    def is_asking(self, view: NodeView) -> bool:
        """Tell whether an answer is awaited: who takes part must not change meanwhile."""
        return any(
            asked.may_be_answered(view) and _answer(view, bucket, asked.round) is None
            for bucket, asked in self._asked.items()
        )

    def told(self, view: NodeView, bucket: str, answered: int) -> Told | None:
        """Return what was told of a bucket above the number `answered`, if anything was."""
        board = boards.of(view.timestamps, bucket)
        number, reason = answered, ""
        projectors: set[int] = set()
        vbuckets: set[int] = set()
        for read in reversed(board.restarts):
            if read.record.number <= answered:
                break
            if read.record.round == 0:
                projectors.update(read.record.projectors)
                vbuckets.update(read.record.vbuckets)
                if read.record.number > number:
                    number, reason = read.record.number, read.record.reason
        for enquiry, _ in reversed(board.enquiries):
            if enquiry.number <= answered:
                break
            if enquiry.reason == SYNC_MISSING:
                projectors.add(enquiry.projector)
                vbuckets.add(enquiry.vbucket)
                if enquiry.number > number:
                    number, reason = enquiry.number, enquiry.reason
        if number == answered or self.is_quiet(view, bucket):
            return None
        is_partial = board.dropped > answered
        return Told(number, frozenset(projectors), reason, frozenset(vbuckets), is_partial)

    def is_quiet(self, view: NodeView, bucket: str) -> bool:
        """Tell whether a bucket's streams were renewed so lately that they are not renewed again
        for what is told."""
        return view.now.mono_ms < self._quiet_until_ms.get(bucket, 0)

    def renewed(self, view: NodeView, bucket: str) -> None:
        """Note that a bucket's streams are renewed for what was told: not again at once."""
        self._quiet_until_ms[bucket] = view.now.mono_ms + view.config.restart_pause_ms

    def vector(self, view: NodeView, bucket: str, held: Held, logs: Logs) -> StartPosition:
        """Return the restart timestamp of a bucket, or the question whose answer is awaited.

        What was answered counts as one more that holds something: nothing is streamed later than
        anybody says. `logs` are the histories of the bucket's vbuckets.
        """
        now = view.now
        vectors = list(held.values())
        asked = self._asked.get(bucket)
        if asked is None:
            if view.peers.application_of(bucket) is None:
                return StartPosition(streams_begin(vectors, logs))
            self._rounds += 1
            asked = Asked(self._epoch << ROUND_BITS | self._rounds, now.mono_ms)
            self._asked[bucket] = asked
            why = "streams begin again"
            question = RestartRequested(
                bucket, asked.round, len(vectors[0]), tuple(held), why, now.wall_ms
            )
            return StartPosition(None, (Ask(question),))
        answer = _answer(view, bucket, asked.round)
        if answer is not None:
            vectors.append(_whole(answer, vectors[0]))
            return StartPosition(streams_begin(vectors, logs))
        if asked.may_be_answered(view):
            return StartPosition(None)
        return StartPosition(streams_begin(vectors, logs))

    def forget_others(self, buckets: set[str]) -> None:
        """Forget the questions about all buckets but these."""
        for bucket in self._asked.keys() - buckets:
            del self._asked[bucket]


def _answer(view: NodeView, bucket: str, number: int) -> RestartTimestamp | None:
    board = boards.of(view.timestamps, bucket)
    return next((r.record for r in board.restarts if r.record.round == number), None)


def _whole(answer: RestartTimestamp, like: Vector) -> Vector:
    """Return the vector of an answer, with the positions of `like` where it says nothing."""
    vbuuids, seqnos = like.vbuuids.copy(), like.seqnos.copy()
    told = Vector.from_bytes(answer.vbuuids, answer.seqnos)
    for place, vbucket in enumerate(answer.vbuckets):
        if 0 <= vbucket < len(seqnos):
            vbuuids[vbucket], seqnos[vbucket] = told.vbuuids[place], told.seqnos[place]
    return Vector(vbuuids, seqnos)

"""Where streams are to begin again, as a master finds out, and what makes it begin them again.

Pure. The application that computes timestamps tells on `restart` what it has seen: streams that
were lost, vbuckets that have fallen silent. Each such record has a number, and a bucket's `Stream`
names the last one that a renewal has answered: so each is answered once, whoever is master.

Before streams are renewed it is asked for the restart timestamp, too, where it is alive. A master
that gets no answer in time computes it alone, from the same heartbeats: no stream waits for Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coordinator.core import timestamp_board as boards
from coordinator.core.effects import Ask
from coordinator.core.stream_records import SYNC_MISSING, RestartRequested, RestartTimestamp
from coordinator.core.timestamps import restart
from coordinator.core.vectors import Vector

if TYPE_CHECKING:
    from coordinator.core.master import Master

ROUND_BITS = 20


class Told(NamedTuple):
    """What was told since the last renewal: up to this number, of these projectors, and why."""

    number: int
    projectors: frozenset[int]
    reason: str


class Asked(NamedTuple):
    """A question that is open: which it is, and since when."""

    round: int
    since_ms: int


class Restarting:
    """The part of a master that knows from where streams are to begin again."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self._asked: dict[str, Asked] = {}
        self._rounds = 0
        self._quiet_until_ms: dict[str, int] = {}

    @property
    def is_asking(self) -> bool:
        """Tell whether an answer is awaited: who takes part must not change meanwhile."""
        return any(
            self._may_come(asked) and self._answer(bucket, asked.round) is None
            for bucket, asked in self._asked.items()
        )

    def told(self, bucket: str, answered: int) -> Told | None:
        """Return what was told of a bucket above the number `answered`, if anything was."""
        board = boards.of(self.master.node.timestamps, bucket)
        number, reason = answered, ""
        projectors: set[int] = set()
        for read in reversed(board.restarts):
            if read.record.number <= answered:
                break
            if read.record.round == 0:
                projectors.update(read.record.projectors)
                if read.record.number > number:
                    number, reason = read.record.number, read.record.reason
        for enquiry, _ in reversed(board.enquiries):
            if enquiry.number <= answered:
                break
            if enquiry.reason == SYNC_MISSING:
                projectors.add(enquiry.projector)
                if enquiry.number > number:
                    number, reason = enquiry.number, enquiry.reason
        now = self.master.node.now.mono_ms
        if number == answered or now < self._quiet_until_ms.get(bucket, 0):
            return None
        return Told(number, frozenset(projectors), reason)

    def renewed(self, bucket: str) -> None:
        """Note that a bucket's streams are renewed for what was told: not again at once."""
        config = self.master.node.config
        self._quiet_until_ms[bucket] = self.master.node.now.mono_ms + config.restart_pause_ms

    def vector(
        self, bucket: str, vbuckets: int, held: list[Vector], participants: tuple[int, ...]
    ) -> Vector | None:
        """Return the restart timestamp of a bucket; None: the answer is awaited.

        `held` are the high watermarks of the `participants`, at least one. What was answered counts
        as one more: nothing is streamed later than anybody says.
        """
        node, now = self.master.node, self.master.node.now.mono_ms
        logs = self.master.building.logs(bucket)
        asked = self._asked.get(bucket)
        if asked is None:
            if not node.alive(node.application):
                return restart(held, logs).vector
            self._rounds += 1
            asked = Asked(self.master.epoch << ROUND_BITS | self._rounds, now)
            self._asked[bucket] = asked
            why = "streams begin again"
            question = RestartRequested(
                bucket, asked.round, vbuckets, participants, why, node.now.wall_ms
            )
            node.emit(Ask(question))
            return None
        answer = self._answer(bucket, asked.round)
        if answer is not None:
            return restart([*held, _whole(answer, held[0])], logs).vector
        if self._may_come(asked):
            return None
        return restart(held, logs).vector

    def forget_others(self, buckets: set[str]) -> None:
        """Forget the questions about all buckets but these."""
        for bucket in self._asked.keys() - buckets:
            del self._asked[bucket]

    def _may_come(self, asked: Asked) -> bool:
        """Tell whether an answer is still waited for."""
        node = self.master.node
        return node.now.mono_ms - asked.since_ms < node.config.restart_wait_ms

    def _answer(self, bucket: str, number: int) -> RestartTimestamp | None:
        board = boards.of(self.master.node.timestamps, bucket)
        return next((r.record for r in board.restarts if r.record.round == number), None)


def _whole(answer: RestartTimestamp, like: Vector) -> Vector:
    """Return the vector of an answer, with the positions of `like` where it says nothing."""
    vbuuids, seqnos = like.vbuuids.copy(), like.seqnos.copy()
    told = Vector.from_bytes(answer.vbuuids, answer.seqnos)
    for place, vbucket in enumerate(answer.vbuckets):
        if 0 <= vbucket < len(seqnos):
            vbuuids[vbucket], seqnos[vbucket] = told.vbuuids[place], told.seqnos[place]
    return Vector(vbuuids, seqnos)

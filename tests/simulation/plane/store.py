"""The key-value store: vbuckets with their whole history, nodes that own them, and streams.

What a stream may leave out is what the real one may: of the mutations that it reads from the
bucket, those that newer ones supersede; a SYNC and an END name only ends of snapshots. The tail is
sent as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import TopicSeen
from projector_sim.kv.vbuckets import spread, vbucket_of
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.stream_planner import SourceBucket, StreamPlanner
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch, FailoverLog, branched, rollback_seqno
from projector_sim.protocol.frames import Reason
from tests.simulation.kernel.actor import Actor
from tests.simulation.plane.connection import SourceConnection

if TYPE_CHECKING:
    from tests.simulation.plane.projector import ProjectorProcess
    from tests.simulation.plane.world import PlaneWorld

NODES = (0, 1)
PIECE = 3
"""So many mutations at most are read at once."""

INBOX_MAX = 6


@dataclass(frozen=True, slots=True)
class Mutation:
    """What became of a document: its JSON, None if it was deleted."""

    seqno: int
    key: bytes
    document: bytes | None


class Vbucket:
    """One vbucket: `history[n]` has the seqno n + 1, `states[n]` is all there is after seqno n."""

    is_doubtful = is_slow = False
    """Whether something may have been missed of it, as somebody has said; and whether it would be
    missed again."""

    def __init__(self, number: int, owner: int, vbuuid: int) -> None:
        self.number = number
        self.owner = owner
        self.log: FailoverLog = (Branch(vbuuid, 0),)
        self.history: list[Mutation] = []
        self.states: list[dict[bytes, Mutation]] = [{}]

    @property
    def high(self) -> int:
        return len(self.history)

    @property
    def vbuuid(self) -> int:
        return self.log[0].vbuuid

    def write(self, key: bytes, document: bytes | None) -> None:
        mutation = Mutation(self.high + 1, key, document)
        self.history.append(mutation)
        self.states.append({**self.states[-1], key: mutation})

    def newest_after(self, seqno: int, limit: int) -> list[Mutation]:
        """Return mutations after a seqno that nothing supersedes, in their order."""
        newest = self.states[-1]
        found = (m for m in self.history[seqno:] if newest[m.key] is m)
        return [m for m, _ in zip(found, range(limit), strict=False)]

    def lose(self, seqno: int, vbuuid: int) -> None:
        """Lose what came after a seqno, and begin another branch."""
        del self.history[seqno:], self.states[seqno + 1 :]
        self.log = branched(self.log, vbuuid, seqno)


class Store(Actor):
    """All buckets, and those who listen."""

    is_topic = False

    def __init__(self, world: PlaneWorld, buckets: tuple[str, ...], vbuckets: int) -> None:
        self.world = world
        self.connections: list[Connection] = []
        owners = spread(vbuckets, NODES)
        self.buckets: dict[str, list[Vbucket]] = {
            name: [Vbucket(v, owners[v], world.token()) for v in range(vbuckets)]
            for name in buckets
        }
        self.dropping = 0.0
        """How likely a BEGIN, END or SYNC gets lost."""

    def open(self, run: Run, reader: ProjectorProcess, woken: Callable[[], None]) -> Connection:
        return Connection(self, run, reader.number, woken)

    def tell(self, planner: StreamPlanner, seen: dict[str, SourceBucket]) -> None:
        planner.see(seen)

    def heal(self) -> None:
        self.dropping = 0.0

    def write(self, bucket: str, key: bytes, document: bytes | None) -> None:
        vbuckets = self.buckets[bucket]
        vbucket = vbuckets[vbucket_of(key, len(vbuckets))]
        vbucket.write(key, document)
        for connection in self.connections:
            if connection.run.bucket == bucket and vbucket.number in connection.at:
                connection.wake()

    def log_of(self, bucket: str, number: int, _: Mapping[str, Bucket]) -> FailoverLog:
        return self.buckets[bucket][number].log

    def status(self, _: ProjectorProcess) -> tuple[TopicSeen, ...]:
        return ()

    def seen_by(self, node: int, _: Mapping[str, Bucket]) -> dict[str, SourceBucket]:
        """Return what a projector is told of the buckets."""
        return {
            name: SourceBucket(len(vs), frozenset(v.number for v in vs if v.owner == node))
            for name, vs in self.buckets.items()
        }

    def move(self, bucket: str, number: int, node: int) -> None:
        """Let another node own a vbucket."""
        vbucket = self.buckets[bucket][number]
        if vbucket.owner == node:
            return
        vbucket.owner = node
        self.world.trace(f"store: {bucket}/{number} moves to node {node}")
        self._leave(bucket, number, Reason.MOVED)
        self.world.owners_changed()

    def crash(self, bucket: str, number: int, lost: int) -> None:
        """Lose the last mutations of a vbucket, perhaps none; connections that have it break."""
        vbucket = self.buckets[bucket][number]
        self.world.trace(f"store: {bucket}/{number} loses {lost}")
        vbucket.lose(max(0, vbucket.high - lost), self.world.token())
        for connection in list(self.connections):
            if connection.run.bucket == bucket and number in connection.at:
                connection.close("the node has crashed")

    def _leave(self, bucket: str, number: int, reason: Reason) -> None:
        for connection in self.connections:
            if connection.run.bucket == bucket and number in connection.at:
                connection.leaving[number] = reason
                connection.wake()


class Connection(SourceConnection):
    """A stream of some vbuckets."""

    def __init__(self, store: Store, run: Run, node: int, woken: Callable[[], None]) -> None:
        super().__init__(store, run, node, woken)
        self.at: dict[int, int] = {}
        self.leaving: dict[int, Reason] = {}
        self._reading: set[int] = set()
        self._pending: dict[int, int] = {}

    # -- what is sent ------------------------------------------------------------------------

    def _opened(self) -> None:
        for number in self.run.vbuckets:
            self._begin(self._vbucket(number))
        for number in list(self.at):
            self._end_if_done(number)
        self.wake()
        self.woken()

    def _begin(self, vbucket: Vbucket) -> None:
        number, run = vbucket.number, self.run
        vbuuid, seqno = run.starts[number] if run.starts else (0, 0)
        if vbucket.owner != self.node:
            self._send(frames.end(number, seqno, Reason.MOVED))
            return
        if run.starts is None:
            seqno = vbucket.high
        else:
            to = rollback_seqno(vbucket.log, vbucket.high, vbuuid, seqno)
            if to is not None:
                self._send(frames.rollback(number, to))
                return
        self.at[number] = seqno
        self._reading.add(number)
        self._send(frames.begin(number, vbucket.vbuuid, seqno, vbucket.log))

    def _pump(self) -> None:
        """Send a little of some vbucket."""
        chance = self.store.world.clock.chance
        if len(self.inbox) < INBOX_MAX:
            behind = [v for v, at in self.at.items() if at < self._vbucket(v).high]
            if behind and chance.random() < 0.8:
                self._send_some(chance.choice(behind), chance)
            elif self.leaving:
                number = next(iter(self.leaving))
                self._end(number, self.leaving.pop(number))
            if self._pending and (not behind or chance.random() < 0.3):
                self._sync()
            self.woken()
        if not self.at:
            self.close("all vbuckets have ended")
        elif self._has_more():
            self.wake()

    def _has_more(self) -> bool:
        if self.leaving or self._pending:
            return True
        return any(at < self._vbucket(v).high for v, at in self.at.items())

    def _send_some(self, number: int, chance: Any) -> None:
        if number in self.leaving and chance.random() < 0.5:
            self._end(number, self.leaving.pop(number))
            return
        vbucket, at = self._vbucket(number), self.at[number]
        self._pending.pop(number, None)
        if number not in self._reading and chance.random() < 0.1:
            self._reading.add(number)  # The tail has been let go.
        if number in self._reading:
            found = vbucket.newest_after(at, chance.randint(1, PIECE))
            whole = found[-1].seqno == vbucket.high
        else:
            found = vbucket.history[at : at + chance.randint(1, PIECE)]
            whole = True
        self._send_mutations(number, found)
        self.at[number] = found[-1].seqno
        if whole:
            self._reading.discard(number)
            self._pending[number] = found[-1].seqno
            self._end_if_done(number)

    def _send_mutations(self, number: int, found: list[Mutation]) -> None:
        if self.run.until:
            self.store.world.writer.tease(self.run.bucket, found)
        parts = [frames.pack_mutation(m.seqno, m.key, m.document) for m in found]
        self._put(frames.mutations_head(number, sum(map(len, parts))) + b"".join(parts))

    def _end_if_done(self, number: int) -> None:
        until = self.run.until.get(number)
        if until is not None and self.at[number] >= until:
            self._end(number, Reason.DONE)

    def _end(self, number: int, reason: Reason) -> None:
        if number in self._pending and reason != Reason.DONE:
            self._sync()
        self._pending.pop(number, None)
        self.leaving.pop(number, None)
        self._send(frames.end(number, self.at.pop(number), reason))

    def _sync(self) -> None:
        pairs, self._pending = self._pending, {}
        self._send(frames.sync(pairs.items()))

    def _send(self, frame: bytes) -> None:
        if not self.store.world.clock.hit(self.store.dropping):
            self._put(frame)
        else:
            self.store.world.trace(f"store: a frame of connection {self.run.connection} is lost")

    def _put(self, frame: bytes) -> None:
        self.inbox.append((frame[frames.HEAD.size - 1], frame[frames.HEAD.size :]))

    def _vbucket(self, number: int) -> Vbucket:
        return self.store.buckets[self.run.bucket][number]

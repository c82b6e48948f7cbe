"""One who follows a bucket by its streams, as a projector must, and checks what a stream promises.

Keeps the documents of each vbucket at the last SYNC, to go back there: when a connection broke
within a snapshot, and when the store tells it to roll back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from projector_sim.protocol import frames
from projector_sim.protocol.frames import Decoder, Reason

Documents = dict[bytes, bytes]
Check = Callable[[int, int, int, Documents], None]
"""Called with a vbucket, its branch (vbuuid), and the documents at a seqno of that."""


@dataclass
class Vbucket:
    """What is known of one; `kept` are the documents at seqnos where they were whole."""

    vbuuid: int = 0
    seqno: int = 0
    documents: Documents = field(default_factory=dict)
    kept: list[tuple[int, int, Documents]] = field(default_factory=lambda: [(0, 0, {})])
    open: bool = False

    def go_back(self, seqno: int) -> None:
        """Return to the last whole state up to `seqno`."""
        while self.kept[-1][1] > seqno:
            self.kept.pop()
        self.vbuuid, self.seqno, kept = self.kept[-1]
        self.documents = dict(kept)

    def whole_at(self, seqno: int) -> bool:
        return self.open and self.seqno == seqno == self.kept[-1][1]

    def keep(self) -> None:
        self.kept.append((self.vbuuid, self.seqno, dict(self.documents)))


class Follower:
    """Follows some vbuckets over one connection after the other."""

    def __init__(self, vbuckets: int, check: Check | None = None) -> None:
        self.vbuckets = [Vbucket() for _ in range(vbuckets)]
        self.answered: set[int] = set()
        """The vbuckets that the connection has begun or refused."""
        self.ends: list[frames.End] = []
        self.rollbacks: list[frames.Rollback] = []
        self.closed = ""
        self._check = check or (lambda vbucket, vbuuid, seqno, documents: None)
        self._decoder = Decoder()

    @property
    def documents(self) -> Documents:
        return {key: value for v in self.vbuckets for key, value in v.documents.items()}

    def open(self) -> list[int]:
        return [number for number, vbucket in enumerate(self.vbuckets) if vbucket.open]

    def disconnected(self) -> None:
        """The connection is gone: what came since the last SYNC was half a snapshot, perhaps."""
        self._decoder = Decoder()
        self.answered.clear()
        for vbucket in self.vbuckets:
            vbucket.open = False
            vbucket.go_back(vbucket.seqno)

    def starts(self, vbuckets: list[int]) -> tuple[list[str], list[str]]:
        """Return the vbuuids and seqnos to go on from."""
        chosen = [self.vbuckets[number] for number in vbuckets]
        return [str(v.vbuuid) for v in chosen], [str(v.seqno) for v in chosen]

    def feed(self, chunk: bytes) -> None:
        for frame in self._decoder.feed(chunk):
            self._take(frame)

    def _take(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Sync):
            for number, seqno in frame.seqnos:
                self._sync(number, seqno)
        elif isinstance(frame, frames.Close):
            self.closed = frame.reason
        elif isinstance(frame, frames.Rollback):
            assert not self.vbuckets[frame.vbucket].open
            assert frame.seqno <= self.vbuckets[frame.vbucket].seqno
            self.answered.add(frame.vbucket)
            self.rollbacks.append(frame)
            self.vbuckets[frame.vbucket].go_back(frame.seqno)
        elif isinstance(frame, frames.Begin):
            vbucket = self.vbuckets[frame.vbucket]
            assert not vbucket.open
            assert frame.seqno == vbucket.seqno
            assert frame.failover_log[0].vbuuid == frame.vbuuid
            self.answered.add(frame.vbucket)
            vbucket.open, vbucket.vbuuid = True, frame.vbuuid
        elif isinstance(frame, frames.End):
            self._end(frame)
        else:
            self._apply(frame)

    def _apply(self, mutated: frames.Mutated) -> None:
        vbucket = self.vbuckets[mutated.vbucket]
        assert vbucket.open, "after its END, nothing of a vbucket comes"
        assert mutated.seqno > vbucket.seqno
        vbucket.seqno = mutated.seqno
        if mutated.document is None:
            vbucket.documents.pop(mutated.key, None)
        else:
            vbucket.documents[mutated.key] = mutated.document

    def _sync(self, number: int, seqno: int) -> None:
        vbucket = self.vbuckets[number]
        assert vbucket.open
        assert vbucket.seqno == seqno, "a SYNC is of what was sent last"
        self._check(number, vbucket.vbuuid, seqno, vbucket.documents)
        vbucket.keep()

    def _end(self, end: frames.End) -> None:
        self.answered.add(end.vbucket)
        self.ends.append(end)
        vbucket = self.vbuckets[end.vbucket]
        if vbucket.open:
            assert vbucket.seqno == end.seqno, "an END is at what was sent last"
            vbucket.open = False
            if end.reason == Reason.DONE:
                self._check(end.vbucket, vbucket.vbuuid, end.seqno, vbucket.documents)
                vbucket.keep()
            vbucket.go_back(vbucket.seqno)

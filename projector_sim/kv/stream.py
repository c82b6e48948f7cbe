"""A stream of one vbucket's mutations, of one snapshot, in the order of their seqnos."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator

from rocksdict import Snapshot

from coordinator.core.model.types import Seqno
from projector_sim.kv.database import items
from projector_sim.kv.errors import KvError
from projector_sim.kv.layout import (
    BY_SEQNO,
    ENTRY,
    SEQNO_AT,
    SEQNO_MAX,
    SEQNO_PLACE,
    SUPERSEDED,
    Mutation,
    unpack_entry,
)
from projector_sim.protocol.failover import FailoverLog
from projector_sim.protocol.frames import MUTATION

_AFTER_SEQNO = struct.Struct(MUTATION.format.replace("Q", ""))


class Reader:
    """The mutations of some vbuckets with seqnos in (`start_seqno`, `end_seqno`].

    Keeps the snapshot, and so the files, until it is read to its end, closed, or let go.
    """

    def __init__(
        self, snapshot: Snapshot, vbuckets: Iterable[int], start_seqno: Seqno, end_seqno: Seqno
    ) -> None:
        self._stored = _read(snapshot, vbuckets, start_seqno, end_seqno)
        self._closed = False

    def __iter__(self) -> Iterator[Mutation]:
        """Yield what is left. KvError `closed`: it was closed before its end."""
        for seqno, entry in self._stored:
            yield unpack_entry(Seqno(int.from_bytes(seqno, "big")), entry)
        if self._closed:
            raise KvError("closed", "what was being read was closed")

    def close(self) -> None:
        """Let the snapshot go."""
        self._closed = True
        self._stored.close()


class Stream(Reader):
    """The mutations of a vbucket after `start_seqno` up to `end_seqno`.

    `snapshot` is what they are part of, first to last seqno. Who has not read up to its end must
    name it when asking again: it may be that something in it was not sent yet, for something newer.
    """

    def __init__(
        self,
        reading: Snapshot,
        vbucket: int,
        log: FailoverLog,
        start_seqno: Seqno,
        end_seqno: Seqno,
        snapshot: tuple[Seqno, Seqno],
    ) -> None:
        super().__init__(reading, (vbucket,), start_seqno, end_seqno)
        self.vbucket = vbucket
        self.failover_log = log
        self.vbuuid = log[0].vbuuid
        self.start_seqno = start_seqno
        self.end_seqno = end_seqno
        self.snapshot = snapshot

    def piece(self, bytes_max: int) -> tuple[Seqno, list[bytes]]:
        """Return mutations of `bytes_max` or a little more, as in a frame, and let go of the rest.

        With the seqno that they go to: `end_seqno` if there are no more.
        """
        parts: list[bytes] = []
        size = 0
        for seqno, entry in self._stored:
            kind, key_size = entry[0], entry[ENTRY.size - 1]
            body = entry[ENTRY.size :]
            parts.append(seqno + _AFTER_SEQNO.pack(kind, key_size, len(body) - key_size) + body)
            size += len(body) + MUTATION.size
            if size >= bytes_max:
                self.close()
                return Seqno(int.from_bytes(seqno, "big")), parts
        return self.end_seqno, parts


def _read(
    snapshot: Snapshot, vbuckets: Iterable[int], start_seqno: Seqno, end_seqno: Seqno
) -> Generator[tuple[bytes, bytes], None, None]:
    """Yield the mutations that nothing supersedes, as they are stored: seqno and entry."""
    for vbucket in vbuckets:
        # What came before `start_seqno` has superseded nothing after it.
        begin = SEQNO_PLACE.pack(SUPERSEDED, vbucket, start_seqno + 1)
        end = SEQNO_PLACE.pack(SUPERSEDED, vbucket, SEQNO_MAX)
        superseded = {raw for _, raw in items(snapshot, begin, end)}
        begin = SEQNO_PLACE.pack(BY_SEQNO, vbucket, start_seqno + 1)
        end = SEQNO_PLACE.pack(BY_SEQNO, vbucket, end_seqno + 1)
        for place, entry in items(snapshot, begin, end):
            seqno = place[SEQNO_AT:]
            if seqno not in superseded:
                yield seqno, entry

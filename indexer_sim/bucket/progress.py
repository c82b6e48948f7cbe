"""How far a vbucket is held by an indexer, in which condition, and what changes the condition.

Pure. `CONDITIONS` is the one table of conditions: an event that is not in it raises.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.core.model.types import Seqno, Vbuuid

Connection = tuple[int, int]
"""A projector, and the number of the connection for itself alone."""

NO_CONNECTION: Connection = (-1, 0)
NOT_HEARD = 0
"""No connection has this number."""

WHOLE, GAP, LOST, ORPHANED, BRANCHED = range(5)
"""The conditions. `WHOLE`: all up to the high watermark is here, and the owner brings what follows.
`GAP`: its stream began further on. `LOST`: part of what the owner sent is gone, and perhaps who the
owner is; caught up, it is `ORPHANED`: all up to the high watermark is here again, but what was sent
after the catch-up was asked for may be gone, too. What its projector sends next tells. `BRANCHED`:
the owner's stream is of another branch, and nothing of it is applied."""

NAMES = ("WHOLE", "GAP", "LOST", "ORPHANED", "BRANCHED")
CATCHING_UP = (GAP, LOST)
WITHOUT_OWNER = (LOST, ORPHANED)

(
    BEGUN_WITHIN,
    BEGUN_ABOVE,
    BEGUN_ON_A_BRANCH,
    OWNER_HEARD,
    GOES_ON,
    CARRIED_LATER,
    RECORDS_MISSING,
    CAUGHT_UP,
    CUT_OFF,
) = (
    "a stream began within what is held",
    "a stream began above what is held",
    "a stream began on another branch",
    "a connection that may be the owner sent something",
    "who has caught it up goes on where that ended",
    "the owner carries an index from further on",
    "records of the owner are missing",
    "a catch-up ended far enough",
    "a rollback voids what was sent before",
)

CONDITIONS: Mapping[str, Mapping[int, int]] = {
    BEGUN_WITHIN: dict.fromkeys((WHOLE, GAP, LOST, ORPHANED, BRANCHED), WHOLE),
    BEGUN_ABOVE: dict.fromkeys((WHOLE, GAP, LOST, ORPHANED, BRANCHED), GAP),
    BEGUN_ON_A_BRANCH: dict.fromkeys((WHOLE, GAP, LOST, ORPHANED, BRANCHED), BRANCHED),
    OWNER_HEARD: {LOST: GAP, ORPHANED: GAP},
    GOES_ON: {ORPHANED: WHOLE},
    CARRIED_LATER: {WHOLE: GAP, GAP: GAP},
    RECORDS_MISSING: dict.fromkeys((WHOLE, GAP, LOST, ORPHANED), LOST),
    CAUGHT_UP: {GAP: WHOLE, LOST: ORPHANED},
    CUT_OFF: dict.fromkeys((WHOLE, GAP, LOST, ORPHANED, BRANCHED), LOST),
}
"""What becomes of a condition, by what happened: a new owner may begin in any, and only a beginning
or a rollback ends a branch."""

RECORD = struct.Struct(">qiqQQBQQQQiq")


class IllegalConditionError(AssertionError):
    """What happened to a vbucket cannot happen in its condition: a bug, never an input."""


@dataclass(slots=True, kw_only=True)
class VbucketProgress:
    """How far a vbucket is held, and by which connection.

    `number` and `owner` are those of the maintenance connection; of one that is known only by a
    catch-up of its projector, the connection is `NOT_HEARD`. `begun` is the seqno at which its
    stream began, or from which on it is whole; `reached` the last seqno that it has sent; `synced`
    the last end of a snapshot of the store. At a seqno below `floor` no exact snapshot is possible.
    `partial` is the last seqno of which only a part has come. After a restart nobody can undo this
    part, so `partial` is a floor then.
    """

    number: int = 0
    owner: Connection = NO_CONNECTION
    vbuuid: Vbuuid = Vbuuid(0)
    seqno: Seqno = Seqno(0)
    condition: int = WHOLE
    begun: Seqno = Seqno(0)
    reached: Seqno = Seqno(0)
    synced: Seqno = Seqno(0)
    floor: Seqno = Seqno(0)
    catchup: Connection = NO_CONNECTION
    partial: Seqno = Seqno(0)

    @property
    def applied(self) -> Seqno:
        """No mutation with a higher seqno was applied; above the high watermark some may lack."""
        return max(self.seqno, self.floor, self.partial, self.reached)

    def reach(self, seqno: Seqno) -> None:
        """The owner's stream begins here. What came from further on stays in the entries."""
        if self.reached > self.seqno:
            self.floor = max(self.floor, self.reached)
        self.reached = seqno

    def go_back(self, vbuuid: Vbuuid, seqno: Seqno) -> None:
        """Exactly what lies up to here is held, whatever was before."""
        self.vbuuid, self.seqno, self.partial = vbuuid, seqno, Seqno(0)
        self.begun = self.reached = self.synced = seqno

    def change(self, cause: str) -> None:
        """Go to the condition that follows. IllegalConditionError: the table has none."""
        if self.condition not in CONDITIONS[cause]:
            raise IllegalConditionError(f"{cause}, in the condition {NAMES[self.condition]}")
        self.condition = CONDITIONS[cause][self.condition]

    def pack(self) -> bytes:
        (projector, connection), (of_catchup, number) = self.owner, self.catchup
        floor = self.floor if self.floor > self.partial else self.partial
        return RECORD.pack(
            self.number,
            projector,
            connection,
            self.vbuuid,
            self.seqno,
            self.condition,
            self.begun,
            self.reached,
            self.synced,
            floor,
            of_catchup,
            number,
        )

    @classmethod
    def unpack(cls, raw: bytes) -> VbucketProgress:
        number, p1, c1, vbuuid, seqno, condition, begun, reached, synced, floor, p2, c2 = (
            RECORD.unpack(raw)
        )
        return cls(
            number=number,
            owner=(p1, c1),
            vbuuid=vbuuid,
            seqno=seqno,
            condition=condition,
            begun=begun,
            reached=reached,
            synced=synced,
            floor=floor,
            catchup=(p2, c2),
        )

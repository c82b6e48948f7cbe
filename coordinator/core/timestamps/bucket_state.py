"""What is known of one bucket's streams and timestamps, and how it is kept as bytes.

Pure. A state is never changed: arrays are read-only, mappings are not touched once they are in
one. All times are milliseconds of ticks. Two of them mean something else: NEVER, and UNTIMED for
what was read before any tick was; its time begins with the first tick.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import (
    FailoverBranch,
    HwHeartbeat,
    RestartRequested,
    StabilityTimestamp,
)
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Vector

NOBODY = -1
NEVER = -1
UNTIMED = 0
OPEN = -1

PLACE = np.dtype(
    [
        ("vbuuid", "<u8"),
        ("seqno", "<u8"),
        ("stable_vbuuid", "<u8"),
        ("stable_seqno", "<u8"),
        ("seen_vbuuid", "<u8"),
        ("seen_seqno", "<u8"),
        ("connection", "<i8"),
        ("projector", "<i8"),
        ("number", "<i8"),
        ("begun", "<i8"),
        ("ended", "<i8"),
        ("heard_ms", "<i8"),
        ("lost_ms", "<i8"),
        ("asked_ms", "<i8"),
        ("doubt_ms", "<i8"),
        ("enquired", "<i8"),
    ]
)
"""A vbucket: its current and its stable position; what its connection said last; which connection
that is, of which projector and generation, and the ordinals of its BEGIN and its END (OPEN: it
owns the vbucket); when it was last heard; since when the vbucket has no owner, and when a restart
was last asked for because of that; since when nobody can tell whether its branch has succeeded the
current one; which enquiries are out."""

NOT_YET = {
    **dict.fromkeys(("connection", "projector", "begun", "ended"), -1),
    **dict.fromkeys(("heard_ms", "lost_ms", "asked_ms", "doubt_ms"), NEVER),
}
"""What fields of a place are at first that are not 0."""

EARLY = np.dtype(
    [
        ("vbucket", "<i8"),
        ("projector", "<i8"),
        ("connection", "<i8"),
        ("ordinal", "<i8"),
        ("vbuuid", "<u8"),
        ("seqno", "<u8"),
        ("since_ms", "<i8"),
    ]
)
"""The last SYNC of a connection and vbucket whose BEGIN was not read yet, or is held."""

MISSING, REGRESSED, REFUSED = 1, 2, 4
"""Enquiries that are out, as bits."""

FORMAT = 1
HEAD = struct.Struct("<BI")

Array = NDArray[Any]


class Held(NamedTuple):
    """A BEGIN that waits for the END of another connection."""

    projector: int
    connection: int
    number: int
    ordinal: int
    vbuuid: Vbuuid
    seqno: Seqno
    since_ms: int


class EarlyEnd(NamedTuple):
    """An END that was read before its BEGIN."""

    ordinal: int
    projector: int
    since_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A connection of which something was read. `marks` has one entry for each vbucket:

    NEVER, twice the ordinal of its last BEGIN, or one more than twice that of its last END.
    `closed` is the ordinal of its end, or OPEN.
    """

    projector: int
    number: int
    closed: int
    marks: NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Connection)
            and (self.projector, self.number, self.closed)
            == (other.projector, other.number, other.closed)
            and (self.marks is other.marks or np.array_equal(self.marks, other.marks))
        )


class Heard(NamedTuple):
    """What an indexer said last, when, and whether its mutation queue had grown by then."""

    incarnation: int
    hosts: bool
    vector: Vector
    queue: int
    free: int
    growing: bool
    since_ms: int


class Question(NamedTuple):
    """A restart request that waits for heartbeats."""

    round: int
    participants: tuple[int, ...]
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BucketState:
    """All that `stability.fold` knows of a bucket. Bounds are where the parts are filled."""

    bucket: str
    places: Array
    """One PLACE for each vbucket."""
    held: Mapping[int, tuple[Held, ...]] = field(default_factory=dict)
    connections: Mapping[int, Connection] = field(default_factory=dict)
    """Oldest first."""
    early: Array = field(default_factory=lambda: frozen(np.zeros(0, EARLY)))
    early_ends: Mapping[tuple[int, int], tuple[EarlyEnd, ...]] = field(default_factory=dict)
    """By connection and vbucket; ordinals ascend."""
    logs: Mapping[int, tuple[FailoverBranch, ...]] = field(default_factory=dict)
    heard: Mapping[int, Heard] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    stability_number: int = 0
    restart_number: int = 0
    """Of the last restart timestamp or enquiry: both count together."""
    published_ms: int = NEVER
    hurried_until_ms: int = 0
    """Until then a query waits for the next stability timestamp."""

    @classmethod
    def new(cls, bucket: str, vbuckets: int) -> BucketState:
        """Return the state of a bucket of which nothing is known. ValueError: no vbuckets."""
        if vbuckets < 1:
            raise ValueError(f"a bucket of {vbuckets} vbuckets")
        return cls(bucket=bucket, places=_new_places(vbuckets))

    def caught_up(self, last: StabilityTimestamp | None, restart_number: int) -> BucketState:
        """Return a state that is not behind its outputs: itself, unless it is.

        `last` is the last stability timestamp that was told, `restart_number` the number of the
        last restart timestamp or enquiry. Neither numbers nor positions become less. A timestamp
        of another number of vbuckets, or one that is no vector, only has a number.
        """
        state = self
        if restart_number > state.restart_number:
            state = replace(state, restart_number=restart_number)
        if last is None or last.number <= state.stability_number:
            return state
        state = replace(state, stability_number=last.number)
        if not len(last.vbuuids) == len(last.seqnos) == 8 * self.vbuckets:
            return state
        vector = Vector.from_bytes(last.vbuuids, last.seqnos)
        places = state.places.copy()
        places["stable_vbuuid"], places["stable_seqno"] = vector.vbuuids, vector.seqnos
        same = places["vbuuid"] == vector.vbuuids
        behind = ~same | (places["seqno"] < vector.seqnos)
        for name in ("vbuuid", "seen_vbuuid"):
            places[name] = np.where(behind, vector.vbuuids, places[name])
        for name in ("seqno", "seen_seqno"):
            places[name] = np.where(behind, vector.seqnos, places[name])
        return replace(state, places=frozen(places))

    @property
    def vbuckets(self) -> int:
        return len(self.places)

    @property
    def current(self) -> Vector:
        """Up to where everything of each vbucket was sent."""
        return Vector(self.places["vbuuid"], self.places["seqno"])

    @property
    def stable(self) -> Vector:
        """The last stability timestamp."""
        return Vector(self.places["stable_vbuuid"], self.places["stable_seqno"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BucketState):
            return NotImplemented
        return (
            self.places.tobytes() == other.places.tobytes()
            and self.early.tobytes() == other.early.tobytes()
            and self._rest() == other._rest()
        )

    def _rest(self) -> tuple[object, ...]:
        return (
            self.bucket,
            self.held,
            self.connections,
            self.early_ends,
            self.logs,
            self.heard,
            self.questions,
            self.stability_number,
            self.restart_number,
            self.published_ms,
            self.hurried_until_ms,
        )


def _new_places(vbuckets: int) -> Array:
    places = np.zeros(vbuckets, PLACE)
    for name, value in NOT_YET.items():
        places[name] = value
    return frozen(places)


def frozen(array: Array) -> Array:
    """Make an array read-only, and return it."""
    array.setflags(write=False)
    return array


# -- as bytes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimestampState:
    """A bucket's state after a batch. Key: the bucket.

    `now_ms` is the time that ticks had told; `state` is what `pack` returned.
    """

    bucket: str
    vbuckets: int
    now_ms: int
    state: bytes


HEARD_BYTES_MAX = 1_500_000


def pack(state: BucketState) -> bytes:
    """Return a state as bytes; equal states that were come by in the same way have the same.

    What indexers said last is left out where it is too much for a message of Kafka: they say it
    again within a second.

    A byte for the version; the size of the head as 4 bytes, little-endian; the head, JSON; then
    the arrays, column after column. All but the version and the size is compressed.
    """
    blobs: list[bytes] = [state.places[name].tobytes() for name in PLACE.names or ()]
    blobs += [state.early[name].tobytes() for name in EARLY.names or ()]
    blobs += [connection.marks.astype("<i8").tobytes() for connection in state.connections.values()]
    remembered = state.heard if 16 * state.vbuckets * len(state.heard) <= HEARD_BYTES_MAX else {}
    for heard in remembered.values():
        blobs += heard.vector.to_bytes()
    head = json.dumps(
        {
            "bucket": state.bucket,
            "vbuckets": state.vbuckets,
            "places": PLACE.names,
            "early": EARLY.names,
            "earlies": len(state.early),
            "held": [[v, *waiting] for v, waiting in state.held.items()],
            "connections": [
                [c, known.projector, known.number, known.closed]
                for c, known in state.connections.items()
            ],
            "early_ends": [[*key, *ends] for key, ends in state.early_ends.items()],
            "heard": [
                [i, *heard._replace(vector=None)]  # type: ignore[arg-type]
                for i, heard in remembered.items()
            ],
            "questions": state.questions,
            "stability_number": state.stability_number,
            "restart_number": state.restart_number,
            "published_ms": state.published_ms,
            "hurried_until_ms": state.hurried_until_ms,
        },
        separators=(",", ":"),
    )
    whole = f'{head[:-1]},"logs":[{_logs_text(state)}]}}'.encode()
    return HEAD.pack(FORMAT, len(whole)) + zlib.compress(whole + b"".join(blobs), 1)


def _logs_text(state: BucketState) -> str:
    """Return all failover logs as JSON, without brackets: they hardly ever change."""
    known = _TEXTS.get(state.bucket)
    if known is not None and known[0] is state.logs:
        return known[1]
    text = ",".join(f"[{v},{_log_text(log)}]" for v, log in state.logs.items())
    if len(_TEXTS) >= TEXTS_MAX:
        _TEXTS.clear()
    _TEXTS[state.bucket] = state.logs, text
    return text


TEXTS_MAX = 4_096
"""Of so many buckets the text of their failover logs is remembered."""

_TEXTS: dict[str, tuple[Mapping[int, tuple[FailoverBranch, ...]], str]] = {}
"""By bucket: the failover logs that were packed last, which nobody changes, and their text."""


@lru_cache(maxsize=65_536)
def _log_text(log: tuple[FailoverBranch, ...]) -> str:
    """Return a failover log as JSON, without brackets."""
    return ",".join(f"[{b.vbuuid},{b.seqno}]" for b in log)


def unpack(data: bytes) -> BucketState:
    """Return the state that `pack` made these bytes of. ValueError: they are none.

    Columns that a later version has added are what they are in a new bucket.
    """
    try:
        version, size = HEAD.unpack_from(data)
        if version != FORMAT:
            raise ValueError(f"a state of version {version}")
        body = zlib.decompress(data[HEAD.size :])
        return _build(json.loads(body[:size]), memoryview(body)[size:])
    except (struct.error, zlib.error, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"no state of a bucket: {error}") from error


def _build(head: dict[str, Any], blob: memoryview) -> BucketState:
    vbuckets, at = head["vbuckets"], 0

    def column(kind: str, length: int) -> Array:
        nonlocal at
        found = np.frombuffer(blob, kind, length, at)
        at += found.nbytes
        return found

    def table(into: Array, names: list[str]) -> Array:
        for name in names:
            values = column("<u8", len(into))
            if name in (into.dtype.names or ()):
                into[name] = values.view(into.dtype[name])
        return frozen(into)

    places = table(_new_places(vbuckets).copy(), head["places"])
    early = table(np.zeros(head["earlies"], EARLY), head["early"])
    connections = {
        c: Connection(projector, number, closed, frozen(column("<i8", vbuckets).astype(np.int64)))
        for c, projector, number, closed in head["connections"]
    }
    heard = {
        indexer: Heard(*rest)._replace(
            vector=Vector(column("<u8", vbuckets), column("<u8", vbuckets))
        )
        for indexer, *rest in head["heard"]
    }
    return replace(
        BucketState(bucket=head["bucket"], places=places),
        held={v: tuple(Held(*one) for one in waiting) for v, *waiting in head["held"]},
        connections=connections,
        early=early,
        early_ends={
            (c, v): tuple(EarlyEnd(*e) for e in ends) for c, v, *ends in head["early_ends"]
        },
        logs={v: tuple(FailoverBranch(*b) for b in log) for v, *log in head["logs"]},
        heard=heard,
        questions=tuple(
            Question(number, tuple(participants), reason, since)
            for number, participants, reason, since in head["questions"]
        ),
        stability_number=head["stability_number"],
        restart_number=head["restart_number"],
        published_ms=head["published_ms"],
        hurried_until_ms=head.get("hurried_until_ms", 0),
    )


def heard_of(record: HwHeartbeat, before: Heard | None, now_ms: int) -> Heard:
    """Return what a heartbeat says, next to the one before. ValueError: its vector is none."""
    vector = Vector.from_bytes(record.vbuuids, record.seqnos)
    same_life = before is not None and before.incarnation == record.incarnation
    return Heard(
        record.incarnation,
        bool(record.indexes),
        vector,
        record.mutation_queue,
        record.free,
        same_life and before is not None and record.mutation_queue > before.queue,
        now_ms,
    )


def question_of(record: RestartRequested, now_ms: int) -> Question:
    """Return what a restart request asks."""
    return Question(record.round, record.participants, record.reason, now_ms)

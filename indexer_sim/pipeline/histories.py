"""What `failover-log` says, told to the buckets that are held here.

The control loop reads it. What was read of a bucket counts as heard once the bucket has judged
whether something that it holds is lost: a scan that names the end of the log is answered after
that. A bucket that is busy is not waited for: of each of its vbuckets the newest history waits.

Histories of buckets of which nothing is held are passed over. Whatever is held of them later comes
from a stream that begins after them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Message

from coordinator import codec
from coordinator.core.model.stream_records import FailoverLog
from coordinator.kafka.topics import STREAM_PARTITIONS
from indexer_sim.bucket.storage import Storage
from schemas.registry import SchemaError

BUSY_S = 0.005
"""So long one bucket is waited for at a time."""

TELL_S = 0.05
"""So long all of them are told at a time: who reads has to send heartbeats, too."""


class _Waiting(NamedTuple):
    """The newest history of a vbucket, and the first offset of it that was not told."""

    partition: int
    first: int
    history: FailoverLog


class Histories:
    """Written by the control loop; any thread may ask what was `heard`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read = [0] * STREAM_PARTITIONS
        self._waiting: dict[tuple[str, int], _Waiting] = {}

    def heard(self, bucket: str) -> tuple[int, ...]:
        """Return up to which offset of each partition all is known to a bucket."""
        # In this order: what was read is waiting before it counts as read.
        heard = list(self._read)
        for (name, _), one in list(self._waiting.items()):
            if name == bucket:
                heard[one.partition] = min(heard[one.partition], one.first)
        return tuple(heard)

    def begin(self) -> None:
        """The log is read from its beginning: it may be another one than before."""
        self._read = [0] * STREAM_PARTITIONS

    def note(self, message: Message) -> None:
        """Take a record. Who else reads the topic puts what is none among the dead letters."""
        partition, offset = int(message.partition() or 0), int(message.offset() or 0)
        history = self._history(message.key() or b"", message.value() or b"")
        if history is not None:
            place = history.bucket, history.vbucket
            before = self._waiting.get(place)
            first = before.first if before is not None else offset
            self._waiting[place] = _Waiting(partition, first, history)
        self._read[partition] = max(offset + 1, self._read[partition])

    def _history(self, key: bytes, value: bytes) -> FailoverLog | None:
        """Return the history that is of use here, if a record is one."""
        bucket = self._storage.bucket(key.decode("utf-8", "replace").rpartition("/")[0])
        if bucket is None:
            return None
        try:
            record = codec.decode(value)
        except SchemaError:
            return None
        if not isinstance(record, FailoverLog) or not record.branches:
            return None
        is_of_key = key == f"{record.bucket}/{record.vbucket}".encode()
        return record if is_of_key and bucket.may_have(record.vbucket) else None

    def ends(self, offsets: Mapping[int, int]) -> None:
        """All below these offsets was read, by partition."""
        for partition, offset in offsets.items():
            self._read[partition] = max(offset, self._read[partition])

    @property
    def are_waiting(self) -> bool:
        """Tell whether there is something that a bucket has not been told."""
        return bool(self._waiting)

    def tell(self) -> None:
        """Tell the buckets what was read, but for those that are busy, as long as there is time."""
        until_s = time.monotonic() + TELL_S
        busy: set[str] = set()
        for place, one in list(self._waiting.items()):
            bucket = self._storage.bucket(place[0])
            left_s = until_s - time.monotonic()
            if place[0] in busy or left_s <= 0:
                continue
            busy_s = min(BUSY_S, left_s)
            if bucket is None or bucket.hear(one.history.vbucket, one.history.branches, busy_s):
                del self._waiting[place]
            else:
                busy.add(place[0])

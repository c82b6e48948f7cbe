"""What a projector asks of a place where documents come from: a key-value store, or Kafka topics.

A source has buckets, a bucket has vbuckets, and each vbucket is a log of mutations: their seqnos
ascend, and may have holes. A stream of a vbucket begins after a position (vbuuid, seqno) and brings
what follows, as the frames of `projector_sim.protocol.frames`:

- BEGIN, with the vbucket's failover log; or ROLLBACK, if the position lies on a branch that the
  vbucket has lost; or END, if another owns it. One of them comes for each vbucket asked for.
- MUTATIONS in the order of their seqnos: of each document at least the last one.
- SYNC at the end of a snapshot: all documents are as they were at that seqno. Before it, a document
  may be missing of which a later mutation is still to come. It comes after a BEGIN, too, where the
  vbucket has nothing to follow: a stream may begin within a snapshot, so a BEGIN does not say so.
- END, once: at a snapshot's end at or after the seqno at which the stream is to end (DONE), or
  because it cannot go on. A BEGIN may come again: the vbucket has a new branch, and lost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.model.entities import Bucket
from coordinator.core.model.stream_records import FailoverBranch

Frame = tuple[int, bytes]
"""The type of a frame, and its body."""

Logs = dict[int, tuple[FailoverBranch, ...]]
"""Failover logs, by vbucket."""


@dataclass(frozen=True, slots=True)
class SourceBucket:
    """A bucket as its source has it: how many vbuckets, and which this projector owns."""

    vbuckets: int
    owned: frozenset[int]


def mismatch(bucket: Bucket, vbuckets: int) -> str:
    """Say that a source has another number of vbuckets than the coordinator, if it has."""
    if bucket.vbuckets == vbuckets:
        return ""
    if bucket.topic:
        return (
            f"topic {bucket.topic} has {vbuckets} partitions now, "
            f"bucket {bucket.name} was added with {bucket.vbuckets}"
        )
    return (
        f"the key-value store has {vbuckets} vbuckets of bucket {bucket.name}, "
        f"the coordinator {bucket.vbuckets}"
    )


class StreamRequest(Protocol):
    """What is asked of a source: streams of some vbuckets of a bucket, over one connection.

    `starts` has the (vbuuid, seqno) to begin after, None: begin with the next mutation; `until` the
    seqnos at which vbuckets end.
    """

    @property
    def bucket(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def connection(self) -> int: ...
    @property
    def vbuckets(self) -> tuple[int, ...]: ...
    @property
    def starts(self) -> Mapping[int, tuple[int, int]] | None: ...
    @property
    def until(self) -> Mapping[int, int]: ...


class SourceStream(Protocol):
    """One connection to a source."""

    reason: str
    """Why it is over."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def poll(self) -> list[Frame] | None:
        """Return some frames, None if nothing has come."""
        ...

    def close(self) -> None:
        """Break the connection off; does not wait."""
        ...


class Source(Protocol):
    """A place where documents come from."""

    def open(self, request: StreamRequest, wake: Callable[[], None]) -> SourceStream:
        """Open a connection; `wake` is called when something has come. Does not wait."""
        ...

    def fetch_logs(
        self, bucket: str, vbuckets: Sequence[int], done: Callable[[Logs], None]
    ) -> None:
        """Have the failover logs of vbuckets looked up. Does not wait."""
        ...

    def close(self) -> None:
        """Stop watching which buckets there are; does not wait."""
        ...

"""What the application that computes timestamps keeps beside the states of the buckets.

Pure, frozen data. All of it is written in the transaction of the outputs that rest on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model.entities import Bucket, Setting
from coordinator.core.model.records import DeadLetter
from coordinator.core.model.types import Offset


@dataclass(frozen=True, slots=True)
class NextOffset:
    """The first record of a partition that was not read yet."""

    topic: str
    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class TimestampProgress:
    """How far the inputs were read, and the time.

    `now_ms` is the time that ticks have told, 0 if there was none; `writer` wrote the last one, and
    had run for `said_ms` by then.
    """

    now_ms: int
    offsets: tuple[NextOffset, ...]
    writer: int = 0
    said_ms: int = 0


@dataclass(frozen=True, slots=True)
class TimestampContext:
    """What was learnt from the StateContext, up to before `offset` of its topic."""

    offset: Offset
    buckets: tuple[Bucket, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class TimestampWaiting:
    """Records of buckets that are not known yet, oldest first; `at_ms` says since when."""

    letters: tuple[DeadLetter, ...]

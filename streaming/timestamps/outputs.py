"""What the outputs say that were written: no number is given twice, and no timestamp goes back.

Pure. The state is written with its outputs, but it may be lost, or its end, and the outputs not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.core.model.stream_records import (
    ConsolidatedStability,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)


@dataclass(frozen=True, slots=True)
class Outputs:
    """By bucket: the last stability timestamp, and the number of the last restart or enquiry.

    `at_ms` is the latest time that any output names, 0 if there is none.
    """

    stability: Mapping[str, StabilityTimestamp] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0


def outputs_of(stability: Iterable[object], restarts: Iterable[object]) -> Outputs:
    """Return what the records of `stability` and `restart` say; others than ours say nothing."""
    last: dict[str, StabilityTimestamp] = {}
    numbers: dict[str, int] = {}
    at_ms = 0
    for record in stability:
        alone = record.timestamps if isinstance(record, ConsolidatedStability) else (record,)
        for one in alone:
            if isinstance(one, StabilityTimestamp):
                at_ms = max(at_ms, one.at_ms)
                known = last.get(one.bucket)
                if known is None or known.number <= one.number:
                    last[one.bucket] = one
    for told in restarts:
        if isinstance(told, RestartTimestamp | RollbackEnquiry):
            at_ms = max(at_ms, told.at_ms)
            numbers[told.bucket] = max(told.number, numbers.get(told.bucket, 0))
    return Outputs(last, numbers, at_ms)

"""What the application reads: the topics."""

from __future__ import annotations

from coordinator.kafka.topics import (
    FAILOVER_LOG,
    HW,
    RESTART_REQUEST,
    STATECONTEXT,
    STREAM_BEGIN,
    STREAM_END,
    SYNC,
    TICK,
)

INPUTS = (
    SYNC,
    STREAM_BEGIN,
    STREAM_END,
    HW,
    FAILOVER_LOG,
    RESTART_REQUEST,
    TICK,
    STATECONTEXT,
)
"""The topics that are read; a row names one by its place here."""

QUIET = frozenset({HW, TICK})
"""The topics that are written to all the time, whether anything happens or not."""

COMPACTED = frozenset({FAILOVER_LOG, STATECONTEXT})
"""The topics of which Kafka keeps the last record of each key: offsets are missing anyway."""

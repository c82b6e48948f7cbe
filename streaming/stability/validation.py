"""Which control records can be used: those whose numbers are possible for what they mean. Pure."""

from __future__ import annotations

from coordinator.core.model.stream_records import (
    ORDINAL_MAX,
    ConnectionClosed,
    FailoverLog,
    HwHeartbeat,
    PromotionRequested,
    RestartRequested,
    StreamBegin,
    StreamEnd,
)

BRANCHES_MAX = 64
REASON_LENGTH_MAX, PARTICIPANTS_MAX = 1_000, 1_000
"""An answer repeats both, and a message of Kafka has a bound. There are 251 indexers at most."""

U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1

Control = (
    StreamBegin
    | StreamEnd
    | ConnectionClosed
    | HwHeartbeat
    | FailoverLog
    | RestartRequested
    | PromotionRequested
)


def fault(record: Control, bucket: str, vbuckets: int) -> str:
    """Return why a record cannot be looked at; empty: it can."""
    if record.bucket != bucket:
        return f"is of bucket {record.bucket!r}"
    match record:
        case HwHeartbeat():
            if not len(record.vbuuids) == len(record.seqnos) == 8 * vbuckets:
                return f"its vectors are not of {vbuckets} vbuckets"
            numbers = {"indexer": record.indexer, "incarnation": record.incarnation}
        case RestartRequested():
            if record.vbuckets != vbuckets:
                return f"is about {record.vbuckets} vbuckets: there are {vbuckets}"
            if len(record.reason) > REASON_LENGTH_MAX:
                return f"a reason of {len(record.reason)} characters"
            if len(record.participants) > PARTICIPANTS_MAX:
                return f"{len(record.participants)} participants"
            numbers = {"round": record.round}
        case PromotionRequested():
            numbers = {"wait_ms": record.wait_ms, "at_ms": record.at_ms}
        case FailoverLog():
            if not 0 < len(record.branches) <= BRANCHES_MAX:
                return f"a failover log of {len(record.branches)} branches"
            if not all(_is_u64(b.vbuuid) and _is_u64(b.seqno) for b in record.branches):
                return "a branch is no unsigned 64-bit number"
            numbers = {}
        case _:
            numbers = {"projector": record.projector, "connection": record.connection}
            if not 0 <= record.ordinal <= ORDINAL_MAX:
                return f"ordinal {record.ordinal}"
    if isinstance(record, StreamBegin | StreamEnd | FailoverLog):
        if not 0 <= record.vbucket < vbuckets:
            return f"vbucket {record.vbucket} of {vbuckets}"
        if isinstance(record, StreamBegin):
            numbers["number"] = record.number
        if not isinstance(record, FailoverLog) and not (
            _is_u64(record.vbuuid) and _is_u64(record.seqno)
        ):
            return "vbuuid and seqno are unsigned 64-bit numbers"
    wrong = [name for name, number in numbers.items() if not 0 <= number <= I64_MAX]
    return f"{wrong[0]} {numbers[wrong[0]]}" if wrong else ""


def _is_u64(number: int) -> bool:
    return 0 <= number <= U64_MAX

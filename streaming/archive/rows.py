"""What a record of Kafka becomes in a table of the archive. Pure.

The value of an entity becomes JSON text: numbers that other languages would round are decimal
strings, vectors of vbuuids and seqnos are lists of them, and fields that are JSON are part of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from coordinator import codec
from coordinator.core.model.entities import Entity
from coordinator.core.model.records import Event
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import CAS_MAX, Cas, Epoch
from schemas.registry import SchemaError

R = TypeVar("R")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT_MS_MAX = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
COUNT_MAX = 2**31 - 1
KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
OTHER = "other"
JSON_SUFFIX = "_json"
LARGE_NUMBERS = frozenset({"id", "index_id", "replaces", "fingerprint", "incarnation"})
"""Fields whose numbers may have more than the 53 bits that other languages keep."""


class UnreadableError(ValueError):
    """A record that is no row; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """An event as a row of the table `history`; `value` is None where its entity was dropped."""

    cas: Cas
    event: str
    kind: str
    key: str
    txn_epoch: Epoch
    txn_seq: int
    index: int
    count: int
    request: str
    principal: str
    at_utc: datetime
    date: date
    month: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityRow:
    """A stability timestamp as a row of the table `stability`; one number a vbucket."""

    bucket: str
    number: int
    at_utc: datetime
    month: str
    seqnos: list[int]
    vbuuids: list[int]


def history_row(data: bytes | None) -> HistoryRow:
    """Return the row of a record of `history`. Raises UnreadableError."""
    event = _record(data, Event)
    mutation = event.mutation
    if not 0 < event.cas <= CAS_MAX:
        raise UnreadableError(f"bad_body: {event.cas} is no CAS")
    if not 0 <= event.index < event.count <= COUNT_MAX:
        raise UnreadableError(f"bad_body: {event.index} of {event.count} is no place of an event")
    at_utc = _instant(mutation.at_ms)
    kind = mutation.key.partition("/")[0]
    return HistoryRow(
        cas=event.cas,
        event=mutation.event,
        kind=kind if KIND.fullmatch(kind) else OTHER,
        key=mutation.key,
        txn_epoch=event.txn.epoch,
        txn_seq=event.txn.seq,
        index=event.index,
        count=event.count,
        request=mutation.request,
        principal=mutation.principal,
        at_utc=at_utc,
        date=at_utc.date(),
        month=month_of(at_utc),
        value=None if mutation.entity is None else value_of(mutation.entity),
    )


def stability_row(data: bytes | None) -> StabilityRow:
    """Return the row of a record of `stability-history`. Raises UnreadableError."""
    found = _record(data, StabilityTimestamp)
    at_utc = _instant(found.at_ms)
    return StabilityRow(
        bucket=found.bucket,
        number=found.number,
        at_utc=at_utc,
        month=month_of(at_utc),
        seqnos=_numbers(found.seqnos),
        vbuuids=_numbers(found.vbuuids),
    )


def month_of(at: datetime) -> str:
    """Return the month by which tables are partitioned, as `2026-11`."""
    return f"{at.year:04}-{at.month:02}"


def _record(data: bytes | None, wanted: type[R]) -> R:
    if data is None:
        raise UnreadableError("not_avro: it has no value")
    try:
        found = codec.decode(data)
    except SchemaError as error:
        raise UnreadableError(f"{error.code}: {error}") from error
    if type(found) is not wanted:
        raise UnreadableError(
            f"bad_body: {wanted.__name__} belongs here, not {type(found).__name__}"
        )
    return found


def _instant(at_ms: int) -> datetime:
    if not 0 <= at_ms < AT_MS_MAX:
        raise UnreadableError(f"bad_body: {at_ms} ms is no time of a record")
    return EPOCH + timedelta(milliseconds=at_ms)


def _numbers(vector: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(vector, "<u8").tolist()
    return numbers


def value_of(entity: Entity) -> str:
    """Return the fields of an entity as JSON text. Half a surrogate pair stays JSON's escape."""
    text = json.dumps(_shown(entity), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(record: Any) -> dict[str, Any]:
    return dict(_field(name, getattr(record, name)) for name in type(record).__slots__)


def _field(name: str, value: Any) -> tuple[str, Any]:
    """Return the name and the value under which a field is shown."""
    if name.endswith(JSON_SUFFIX):
        return name.removesuffix(JSON_SUFFIX), _parsed(value)
    if name in LARGE_NUMBERS:
        return name, str(value)
    if isinstance(value, bytes):
        return name, [str(number) for number in np.frombuffer(value, "<u8").tolist()]
    if isinstance(value, tuple):
        return name, [_shown(one) if is_dataclass(one) else one for one in value]
    return name, value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text or None

"""A record of `history` as a row of the archive. Pure.

The value of an entity becomes JSON text: numbers that other languages would round are decimal
strings, vectors of vbuuids and seqnos are lists of them, and fields that are JSON are part of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from coordinator import codec
from coordinator.core.model.entities import Entity
from coordinator.core.model.records import Event
from coordinator.core.model.types import CAS_MAX, Cas, Epoch, Offset
from schemas.registry import SchemaError

EPOCH = date(1970, 1, 1)
DAY_MS = 86_400_000
AT_MS_MAX = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
OTHER = "other"
JSON_SUFFIX = "_json"
LARGE_NUMBERS = frozenset({"id", "index_id", "fingerprint"})


class UnreadableError(ValueError):
    """A record that is no row; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event and where it belongs; `value` is None where its entity was dropped."""

    offset: Offset
    date: str
    kind: str
    cas: Cas
    event: str
    key: str
    txn_epoch: Epoch
    txn_seq: int
    index: int
    count: int
    request: str
    principal: str
    at_ms: int
    value: str | None

    @property
    def partition(self) -> str:
        """Return the folder that it belongs to."""
        return f"date={self.date}/kind={self.kind}"


def row_of(offset: Offset, data: bytes | None) -> Row:
    """Return the row of the record at `offset`. Raises UnreadableError."""
    if data is None:
        raise UnreadableError("not_avro: it has no value")
    try:
        event = codec.decode(data)
    except SchemaError as error:
        raise UnreadableError(f"{error.code}: {error}") from error
    if type(event) is not Event:
        raise UnreadableError(f"bad_body: an Event belongs here, not {type(event).__name__}")
    mutation = event.mutation
    if not 0 < event.cas <= CAS_MAX:
        raise UnreadableError(f"bad_body: {event.cas} is no CAS")
    if not 0 <= mutation.at_ms < AT_MS_MAX:
        raise UnreadableError(f"bad_body: {mutation.at_ms} ms is no time of an event")
    kind = mutation.key.partition("/")[0]
    return Row(
        offset=offset,
        date=(EPOCH + timedelta(days=mutation.at_ms // DAY_MS)).isoformat(),
        kind=kind if KIND.fullmatch(kind) else OTHER,
        cas=event.cas,
        event=mutation.event,
        key=mutation.key,
        txn_epoch=event.txn.epoch,
        txn_seq=event.txn.seq,
        index=event.index,
        count=event.count,
        request=mutation.request,
        principal=mutation.principal,
        at_ms=mutation.at_ms,
        value=None if mutation.entity is None else value_of(mutation.entity),
    )


def value_of(entity: Entity) -> str:
    """Return the fields of an entity as JSON text."""
    return json.dumps(_shown(entity), ensure_ascii=False, separators=(",", ":"))


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

"""What the API shows of the past, as JSON text. Reads only.

A setting comes back as the text that was written, so a change is put together from texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from coordinator.core.catalog.decisions import describe_index
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history.changes import Change, Difference, kind_of
from coordinator.core.model.entities import Bucket, Consumed, Entity, Index, Setting, Stream
from coordinator.core.model.types import Cas
from coordinator.http import views

_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def page(changes: Iterable[Change], next_cas: Cas | None, newest: Cas) -> bytes:
    """Return `{"events", "next", "cas"}`."""
    events = ",".join(map(change, changes))
    return _bytes(f'{{"events":[{events}],"next":{_text(next_cas)},"cas":{newest}}}')


def change(made: Change) -> str:
    """Return one change, with the value before it.

    A setting may have the value null, so whether an entity exists is told apart: by `dropped`, and
    by a `before_cas` of 0.
    """
    event, mutation = made.event, made.event.mutation
    head = {
        "cas": event.cas,
        "txn": str(event.txn),
        "kind": made.kind,
        "key": made.key,
        "event": mutation.event,
        "principal": mutation.principal,
        "request": mutation.request,
        "at_ms": mutation.at_ms,
        "dropped": mutation.value is None,
        "before_cas": made.before.cas if made.before is not None else 0,
    }
    before = made.before.entity if made.before is not None else None
    return f'{_text(head)[:-1]},"value":{_value(mutation.entity)},"before":{_value(before)}}}'


def entity(key: str, held: Versioned) -> str:
    """Return an entity that is there, in the shape of a change: nothing is known of how it came."""
    head = {
        "cas": held.cas,
        "txn": "",
        "kind": kind_of(key),
        "key": key,
        "event": "",
        "principal": "",
        "request": "",
        "at_ms": 0,
        "dropped": False,
        "before_cas": 0,
    }
    return f'{_text(head)[:-1]},"value":{_held(held)},"before":null}}'


def differences(before: Cas, after: Cas, found: Iterable[Difference]) -> bytes:
    """Return `{"from", "to", "changes"}`."""
    rows = ",".join(
        f'{{"key":{_text(one.key)},"kind":{_text(kind_of(one.key))},'
        f'"before":{_held(one.before)},"before_cas":{_cas(one.before)},'
        f'"after":{_held(one.after)},"after_cas":{_cas(one.after)}}}'
        for one in found
    )
    return _bytes(f'{{"from":{before},"to":{after},"changes":[{rows}]}}')


def past_state(cluster_id: str | None, node: int, context: StateContext) -> dict[str, Any]:
    """Return the StateContext of a moment. Who was master then is no part of it."""
    shown = views.state(node, None, context)
    del shown["epoch"], shown["master"]
    return {**shown, "cluster_id": cluster_id}


def _cas(held: Versioned | None) -> int:
    return held.cas if held is not None else 0


def _held(held: Versioned | None) -> str:
    return _value(held.entity if held is not None else None)


def _value(entity: Entity | None) -> str:
    return entity.value_json if isinstance(entity, Setting) else _text(_described(entity))


def _described(entity: Entity | None) -> dict[str, Any] | None:
    match entity:
        case None:
            return None
        case Index():
            return describe_index(entity)
        case Stream():
            return {
                "bucket": entity.bucket,
                "number": entity.number,
                "projectors": [
                    {"projector": source.projector, "number": source.number}
                    for source in entity.sources
                ],
                "reason": entity.reason,
            }
        case Bucket() | Consumed():
            return asdict(entity)
        case _:
            return {}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")

"""What is told of a change, and of an entity that is there, as JSON text. Pure.

Whoever tells of the past or of what happens uses this: the API of a node, its watchers, and a
client that reads the log itself. A setting comes back as the text that was written, so a change is
put together from texts.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from coordinator.core.catalog.buckets import describe_bucket
from coordinator.core.catalog.decisions import describe_index
from coordinator.core.catalog.rebalances import describe_rebalance
from coordinator.core.catalog.rollbacks import describe_rollback
from coordinator.core.catalog.state import Versioned
from coordinator.core.catalog.subscriptions import describe_subscription, describe_topic
from coordinator.core.history.changes import Change, kind_of
from coordinator.core.model.entities import (
    Bucket,
    Consumed,
    Entity,
    Index,
    Rebalance,
    Rollback,
    Setting,
    Stream,
    Subscription,
    Topic,
)

_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


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
        "undoes": mutation.undoes,
        "dropped": mutation.value is None,
        "before_cas": made.before.cas if made.before is not None else 0,
    }
    before = made.before.entity if made.before is not None else None
    return f'{_text(head)[:-1]},"value":{_value(mutation.entity)},"before":{_value(before)}}}'


def as_bytes(made: Change) -> bytes:
    """Return the same as bytes. Half a surrogate pair, which a bound may have, is JSON's escape."""
    return change(made).encode("utf-8", "backslashreplace")


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
        "undoes": None,
        "dropped": False,
        "before_cas": 0,
    }
    return f'{_text(head)[:-1]},"value":{value(held)},"before":null}}'


def value(held: Versioned | None) -> str:
    """Return the value of an entity, `null` where there is none."""
    return _value(held.entity if held is not None else None)


def _value(entity: Entity | None) -> str:
    return entity.value_json if isinstance(entity, Setting) else _text(_described(entity))


def _described(entity: Entity | None) -> dict[str, Any] | None:
    match entity:
        case None:
            return None
        case Index():
            part_of = {"part_of": str(entity.part_of)} if entity.part_of else {}
            return {**describe_index(entity), **part_of}
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
        case Rollback():
            return describe_rollback(entity)
        case Rebalance():
            return describe_rebalance(entity)
        case Topic():
            return describe_topic(entity)
        case Subscription():
            return describe_subscription(entity)
        case Bucket():
            return describe_bucket(entity)
        case Consumed():
            return asdict(entity)
        case _:
            return {}

"""What the API shows of the past, as JSON text. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history import shown
from coordinator.core.history.changes import Difference, kind_of
from coordinator.core.model.types import Cas
from coordinator.http import views

_text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def page(texts: Iterable[bytes], next_cas: Cas | None, newest: Cas) -> bytes:
    """Return `{"events", "next", "cas"}`; `texts` has each change as JSON."""
    rest = f'],"next":{_text(next_cas)},"cas":{newest}}}'
    return b"".join((b'{"events":[', b",".join(texts), rest.encode()))


def differences(before: Cas, after: Cas, found: Iterable[Difference]) -> bytes:
    """Return `{"from", "to", "changes"}`."""
    rows = ",".join(
        f'{{"key":{_text(one.key)},"kind":{_text(kind_of(one.key))},'
        f'"before":{shown.value(one.before)},"before_cas":{_cas(one.before)},'
        f'"after":{shown.value(one.after)},"after_cas":{_cas(one.after)}}}'
        for one in found
    )
    return _bytes(f'{{"from":{before},"to":{after},"changes":[{rows}]}}')


def past_state(cluster_id: str | None, node: int, context: StateContext) -> dict[str, Any]:
    """Return the StateContext of a moment. Who was master then is no part of it."""
    state = views.state(node, None, context)
    del state["epoch"], state["master"]
    return {**state, "cluster_id": cluster_id}


def _cas(held: Versioned | None) -> int:
    return held.cas if held is not None else 0


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")

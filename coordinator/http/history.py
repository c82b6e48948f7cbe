"""The past over HTTP: the changes, the state at any CAS or time, and the difference of two states.

Any node answers, from `history`. The newest state that it answers from is the one that it would
show now for the same consistency.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from confluent_kafka import KafkaException
from fastapi import Depends, FastAPI, Query
from starlette.responses import Response

from coordinator.core.history.changes import differences
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.types import CAS_MAX, Cas
from coordinator.http import history_views, models
from coordinator.http.aside import HISTORY
from coordinator.http.encoding import encoded
from coordinator.http.errors import ApiError
from coordinator.http.predicates import checked, predicate_of
from coordinator.http.shared import APPLIED_CAS, MS_MAX, Consistency
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.node.history import CompactedError, StillReadingError
from coordinator.node.shell import Shell

T = TypeVar("T")

LIMIT, LIMIT_MAX = 100, 1_000

CasParameter = Annotated[int, Query(ge=0, le=CAS_MAX)]
Ms = Annotated[int | None, Query(ge=0, le=MS_MAX)]
Settle = Callable[[Consistency, int], Awaitable[None]]


def add_history(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the routes of the past; `settle` waits until this node may answer a read."""

    @app.get("/v1/history", response_model=models.HistoryAnswer)
    async def get_history(
        predicate: Annotated[Predicate, Depends(predicate_of)],
        after: CasParameter = 0,
        until: Annotated[int | None, Query(ge=0, le=CAS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT,
        from_ms: Ms = None,
        to_ms: Ms = None,
        consistency: Consistency = None,
        at_least: CasParameter = 0,
    ) -> Response:
        """Show the changes above the CAS `after`, up to `until`, oldest first.

        A change must match all filters. A filter may have several values, of which one must match.
        `bucket`, `index` (id or name), `indexer` and `state` match the value before or after it.
        If `next` is not null, ask again with `after` set to it: a page may be short, or empty.
        """
        wanted = checked(replace(predicate, from_ms=from_ms, to_ms=to_ms))
        await settle(consistency, at_least)
        newest = shell.node.state
        last = None if until is None else Cas(until)

        def build() -> bytes:
            found = shell.history.page(Cas(after), last, wanted, limit, newest)
            return history_views.page(found.texts, found.next, newest.cas)

        return _answer(shell, await read_history(build))

    @app.get("/v1/diff", response_model=models.DiffAnswer)
    async def get_diff(
        from_: Annotated[int, Query(ge=0, le=CAS_MAX, alias="from")],
        to: Annotated[int | None, Query(ge=0, le=CAS_MAX)] = None,
        consistency: Consistency = None,
        at_least: CasParameter = 0,
    ) -> Response:
        """Show how the state of one CAS differs from that of another (default: now), by key."""
        await settle(consistency, max(at_least, from_, to or 0))
        newest = shell.node.state

        def build() -> bytes:
            before = shell.history.state_at(Cas(from_), newest)
            after = newest if to is None else shell.history.state_at(Cas(to), newest)
            return history_views.differences(before.cas, after.cas, differences(before, after))

        return _answer(shell, await read_history(build))


async def past_state(shell: Shell, cas: int | None, at_ms: int | None) -> Response:
    """Return the state at a CAS, or at a time. Raises ApiError."""
    node, newest = shell.node, shell.node.state
    cluster_id = node.authority.cluster_id if node.authority else None

    def build() -> bytes:
        at = Cas(cas) if cas is not None else shell.history.cas_at(at_ms or 0, newest.cas)
        state = shell.history.state_at(at, newest)
        return encoded(history_views.past_state(cluster_id, node.config.node, state))

    return _answer(shell, await read_history(build))


async def read_history(work: Callable[[], T]) -> T:
    """Return what `work` on the history returns. Raises ApiError."""
    try:
        return await HISTORY.run(work)
    except CompactedError as error:
        raise ApiError("compacted", str(error), {"oldest": error.oldest}) from None
    except StillReadingError as error:
        raise ApiError("not_ready", f"{error}: retry, or ask another node") from None
    except ArchiveError as error:
        raise ApiError(error.code, error.message, {"file": error.file}) from None
    except KafkaException as error:
        text = f"history cannot be read: {error.args[0].str()}"
        raise ApiError("unavailable", text) from None


def _answer(shell: Shell, content: bytes) -> Response:
    headers: dict[str, Any] = {APPLIED_CAS: str(shell.node.state.cas)}
    return Response(content, 200, headers, "application/json")

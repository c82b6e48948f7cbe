"""The evaluation plan of a bucket: for each index its evaluator, and where its items go.

A `Route` is made of the present definition of an index, and kept until that changes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from coordinator.core.keys.topology import topology_of
from coordinator.core.model.entities import Index
from coordinator.language.expressions import (
    Compiled,
    Evaluator,
    ExpressionError,
    Requirement,
    compile_whole,
)


@dataclass(frozen=True, slots=True)
class Route:
    """How a document becomes items of one index.

    `place_of` tells the place of a key's slice; None: there is only one. `numbers` and `hosts`
    hold, by place, the slice's number and the indexers that have it. A document that does not have
    what is `required` is not in the index. `fields` are those that the evaluator can look at.
    """

    index: Index
    evaluate: Evaluator
    place_of: Callable[[bytes], int] | None
    numbers: tuple[int, ...]
    hosts: tuple[frozenset[int], ...]
    required: Requirement | None
    fields: frozenset[str]

    @property
    def indexers(self) -> frozenset[int]:
        return frozenset().union(*self.hosts)


class RouteError(Exception):
    """An index cannot be evaluated, for this reason."""


def route(index: Index) -> Route:
    """Return the route of an index. Raises RouteError."""
    try:
        compiled = _compiled(replace(index, **NOT_OF_THE_KEY))
        topology = topology_of(index)
    except (ExpressionError, ValueError) as error:
        raise RouteError(str(error)) from error
    except Exception as error:
        # Whatever it is: an index must not stop the others.
        raise RouteError(f"{type(error).__name__}: {error}") from error
    slice_of, replicas = topology.slice_of, topology.get_replicas()
    shards = [[topology.shard_of(replica, one) for replica in replicas] for one in index.slices]
    return Route(
        index,
        compiled.evaluate,
        (lambda key: slice_of(key).number) if len(index.slices) > 1 else None,
        tuple(piece.number for piece in index.slices),
        tuple(frozenset(shard.indexer for shard in some if shard) for some in shards),
        compiled.required,
        compiled.fields,
    )


NOT_OF_THE_KEY: dict[str, Any] = {
    "id": 0,
    "name": "",
    "bucket": "",
    "using": "",
    "defer_build": False,
    "state": "",
    "reason": None,
    "slices": (),
    "request": "",
    "created_ms": 0,
    "shards": (),
    "build": 0,
    "partitioning": "",
    "bounds_json": "",
    "request_fingerprint": 0,
    "by_topic": False,
    "replaces": 0,
    "part_of": 0,
    "origins": (),
    "nodes": (),
}
"""What of an index its keys do not depend on."""


@lru_cache(maxsize=4_096)
def _compiled(index: Index) -> Compiled:
    """Compile a definition. An index and its parts, which have the same one, share it."""
    return compile_whole(index)


class Routes:
    """The routes of indexes, each made once for as long as it holds."""

    def __init__(self, make: Callable[[Index], Route] = route) -> None:
        self._make = make
        self._made: dict[int, tuple[Index, Route | RouteError]] = {}

    def of(self, index: Index) -> Route:
        """Return the route of an index. Raises RouteError."""
        essence = replace(index, state="", reason=None, build=0, shards=(), request="")
        known = self._made.get(index.id)
        if known is None or known[0] != essence:
            made: Route | RouteError
            try:
                made = self._make(index)
            except RouteError as error:
                made = error
            known = self._made[index.id] = (essence, made)
        if isinstance(known[1], RouteError):
            raise known[1]
        return known[1]

    def why_not(self, index: Index) -> str:
        """Return why an index has no route; empty if it has one."""
        try:
            self.of(index)
        except RouteError as error:
            return str(error)
        return ""

    def forget(self, index_id: int) -> None:
        self._made.pop(index_id, None)

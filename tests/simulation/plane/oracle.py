"""What an index must hold, by brute force over the store: plain functions of plain documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.topology import topology_of
from coordinator.core.model.commands import CreateIndex
from coordinator.core.model.entities import RANGE, Index
from tests.simulation.plane.store import Mutation

KEYS = tuple(f"d{number}".encode() for number in range(9))

Document = dict[str, Any]


class Entry(NamedTuple):
    """A document in a slice of an index."""

    seqno: int
    piece: int
    key: bytes


class Kind(NamedTuple):
    """A definition: what CREATE is told, and the key of a document, None if it has none."""

    more: dict[str, Any]
    key: Callable[[Document], list[Any] | None]


def _x(document: Document) -> list[Any] | None:
    return [document["x"]] if "x" in document else None


def _y_and_x(document: Document) -> list[Any] | None:
    return [document["y"], document["x"]] if "x" in document else None


def _x_of_large_y(document: Document) -> list[Any] | None:
    return _x(document) if document["y"] > 1 else None


KINDS = (
    Kind({"expressions": ("x",)}, _x),
    Kind({"expressions": ("x",), "where": "y > 1"}, _x_of_large_y),
    Kind({"expressions": ("x",), "partitioning": RANGE, "bounds_json": "[[2], [4]]"}, _x),
    Kind({"expressions": ("x", "y")}, lambda d: [d["x"], d["y"]] if "x" in d else None),
)
"""The name of an index, `i<number>`, says which of them it is."""


def definition(number: int, bucket: str, slices: int, **more: Any) -> CreateIndex:
    kind = KINDS[number % len(KINDS)]
    slices = 0 if "bounds_json" in kind.more else slices
    return CreateIndex(name=f"i{number}", bucket=bucket, slices=slices, **kind.more, **more)


def serving_on(index: Index, host: int) -> tuple[int, ...]:
    """Return the slices of which a host answers scans."""
    return tuple(piece.number for piece in index.slices if host in piece.serving)


class Oracle:
    """Knows of each index what becomes of a mutation."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, bytes, bytes], tuple[int, bytes] | None] = {}
        self._pieces: dict[int, Callable[[bytes], int]] = {}

    def entry(self, index: Index, mutation: Mutation) -> Entry | None:
        """Return the entry that a document has after a mutation, None if it has none."""
        if mutation.document is None:
            return None
        known = (index.id, mutation.key, mutation.document)
        if known not in self._entries:
            self._entries[known] = self._computed(index, mutation.document)
        found = self._entries[known]
        return None if found is None else Entry(mutation.seqno, *found)

    def _computed(self, index: Index, raw: bytes) -> tuple[int, bytes] | None:
        key = KINDS[int(index.name[1:]) % len(KINDS)].key(json.loads(raw))
        if key is None:
            return None
        encoded = order_of(index).encode(key)
        return topology_of(index).slice_of(encoded).number, encoded

    def all(self, index: Index, state: Iterable[Mutation], host: int) -> dict[bytes, Entry]:
        """Return what a host of an index must hold of the documents of a state."""
        pieces = serving_on(index, host)
        found = ((m.key, self.entry(index, m)) for m in state)
        return {key: e for key, e in found if e is not None and e.piece in pieces}

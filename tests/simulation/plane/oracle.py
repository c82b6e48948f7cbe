"""What an index must hold, by brute force over the store: plain functions of plain documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

from coordinator.core.keys.collation import MISSING
from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.topology import topology_of
from coordinator.core.model.commands import CreateIndex
from coordinator.core.model.entities import RANGE, Index
from tests.simulation.plane.store import Mutation

KEYS = tuple(f"d{number}".encode() for number in range(9))

Document = dict[str, Any]


class Entry(NamedTuple):
    """Where a document is in an index: slices, and its keys in them."""

    seqno: int
    places: frozenset[tuple[int, bytes]]

    def within(self, pieces: Container[int]) -> Entry | None:
        """Return what of it is in some slices; None: nothing."""
        places = frozenset(place for place in self.places if place[0] in pieces)
        return Entry(self.seqno, places) if places else None


Keys = list[list[Any]]


class Kind(NamedTuple):
    """A definition: what CREATE is told, and the keys of a document, none if it has none."""

    more: dict[str, Any]
    keys: Callable[[Document], Keys]


def _x(document: Document) -> Keys:
    return [[document["x"]]] if "x" in document else []


def _x_of_large_y(document: Document) -> Keys:
    return _x(document) if document["y"] > 1 else []


def _elements_of_z(document: Document) -> Keys:
    elements = document["z"] if isinstance(document["z"], list) else [document["z"]]
    return [[element, document["y"]] for element in elements]


def _y_and_large_elements_of_z(document: Document) -> Keys:
    if not isinstance(document["z"], list):
        return [[document["y"], None]]
    elements = [element for element in document["z"] if element > 2]
    return [[document["y"], element] for element in elements or [MISSING]]


LARGE = "DISTINCT ARRAY e FOR e IN z WHEN e > 2 END"
KINDS = (
    Kind({"expressions": ("x",)}, _x),
    Kind({"expressions": ("DISTINCT z", "y")}, _elements_of_z),
    Kind({"expressions": ("x",), "where": "y > 1"}, _x_of_large_y),
    Kind({"expressions": ("x",), "partitioning": RANGE, "bounds_json": "[[2], [4]]"}, _x),
    Kind({"expressions": ("x", "y")}, lambda d: [[d["x"], d["y"]]] if "x" in d else []),
    Kind({"expressions": ("y", LARGE)}, _y_and_large_elements_of_z),
)
"""The name of an index, `i<number>`, says which of them it is."""


def elements(document: Document) -> Any:
    """Return the `z` of a document: several elements, one, none, or no array at all."""
    if "x" not in document:
        return [document["y"]][: document["y"]]
    return document["x"] if document["x"] == "s" else [document["x"], document["y"], document["x"]]


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
        self._places: dict[tuple[int, bytes], frozenset[tuple[int, bytes]]] = {}

    def entry(self, index: Index, mutation: Mutation) -> Entry | None:
        """Return the entry that a document has after a mutation, None if it has none."""
        if mutation.document is None:
            return None
        known = (index.id, mutation.document)
        if known not in self._places:
            self._places[known] = self._computed(index, mutation.document)
        places = self._places[known]
        return Entry(mutation.seqno, places) if places else None

    def _computed(self, index: Index, raw: bytes) -> frozenset[tuple[int, bytes]]:
        keys = KINDS[int(index.name[1:]) % len(KINDS)].keys(json.loads(raw))
        encoded = [order_of(index).encode(key) for key in keys]
        slice_of = topology_of(index).slice_of
        return frozenset((slice_of(key).number, key) for key in encoded)

    def all(self, index: Index, state: Iterable[Mutation], host: int) -> dict[bytes, Entry]:
        """Return what a host of an index must hold of the documents of a state."""
        pieces = serving_on(index, host)
        found = ((m.key, self.entry(index, m)) for m in state)
        here = {key: entry.within(pieces) for key, entry in found if entry is not None}
        return {key: entry for key, entry in here.items() if entry is not None}

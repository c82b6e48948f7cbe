"""Indexes as the master sees them while streams are made."""

from __future__ import annotations

from coordinator.core.model.entities import (
    Index,
    Slice,
)


def an_index(number: int, state: str, *hosts: int) -> Index:
    slices = tuple(Slice(place, host) for place, host in enumerate(hosts))
    return Index(
        *(number, f"i{number}", "travel", ("a",), None, False, "gsi", False, state, None),
        *(slices, f"r{number}", 1),
    )

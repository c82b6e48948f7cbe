"""The garbage collector of processes through which much passes that is part of no cycle."""

from __future__ import annotations

import gc

OBJECTS = (50_000, 10, 10)
"""Tens of thousands of items wait at any time, and none is part of a cycle: with the interpreter's
700, looking for cycles among them takes as long as reading them."""


def collect_rarely() -> None:
    """Have this process look for cycles once in many objects."""
    gc.set_threshold(*OBJECTS)

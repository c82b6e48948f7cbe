"""The faults that stop a process as a whole, and end with it."""

from __future__ import annotations

PROCESS_STOPS = frozenset({"pause", "zombie"})

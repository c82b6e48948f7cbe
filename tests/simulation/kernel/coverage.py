"""What the worlds of a run met: steps, faults, pairs of them, and how much was done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Coverage:
    """What happened in one world, or in many."""

    worlds: int = 0
    operations: int = 0
    events: int = 0
    checks: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    """How often each fault of the simulator's table was let happen."""
    steps: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def struck(self, fault: str, step: str) -> None:
        """A fault has struck an actor that was in this step."""
        self.faults[fault] += 1
        self.pairs[step, fault] += 1

    def add(self, other: Coverage) -> None:
        """Add what happened elsewhere."""
        for name in (one.name for one in fields(self)):
            held, more = getattr(self, name), getattr(other, name)
            if isinstance(held, Counter):
                held.update(more)
            else:
                setattr(self, name, held + more)

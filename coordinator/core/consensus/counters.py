"""What a node and its parts count, for its metrics. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """Since the process began; each is a metric of that name."""

    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    mutations_installed: int = 0
    void_records: int = 0
    full_synchronisations: int = 0
    sources_rejected: int = 0
    claims: int = 0
    copies_written: int = 0
    copies_failed: int = 0
    scrubs: int = 0
    holes_found: int = 0
    strays_found: int = 0

"""The same replay by the PyPI package `eventsourcing` on SQLite, where it is installed.

It has aggregates, each with events of its own. Here each aggregate is one of our settings, and each
of its events a new value. The replay reads all aggregates again from the file.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

EVENTS, KEYS = 100_000, 1_000


def replayed() -> dict[str, Any] | None:
    """Write as many events, and replay them; None where the package is not installed."""
    if importlib.util.find_spec("eventsourcing") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": str(Path(folder) / "events.db"),
        }
        return _replayed(environment)


def _replayed(environment: dict[str, str]) -> dict[str, Any]:
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event

    class Setting(Aggregate):
        def __init__(self, name: str) -> None:
            self.name = name
            self.value = ""

        @event("Written")
        def write(self, value: str) -> None:
            self.value = value

    application: Any = Application(env=environment)
    names = []
    for number in range(KEYS):
        setting = Setting(f"bench/{number}")
        for version in range(EVENTS // KEYS - 1):
            setting.write(f'{{"n":{version},"s":"{"x" * 60}"}}')
        application.save(setting)
        names.append(setting.id)
    began = time.perf_counter()
    for name in names:
        application.repository.get(name)
    took_s = time.perf_counter() - began
    application.close()
    return {
        "events": EVENTS,
        "replay_s": round(took_s, 2),
        "events_per_second": round(EVENTS / took_s),
    }

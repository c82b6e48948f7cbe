"""Compares what `statecontext` says with what was committed: holes and strays.

Pure. The compacted topic is the first source of every full synchronisation, so it must fold to the
committed state. If a Kafka transaction ends otherwise than the master asked for, it does not. Its
events are *strays* if they are visible and no verdict names them. They are *holes* if a verdict
names them and they are missing. In both cases the last record of an entity on the topic is not
the one in the state.

The scrubber compares all records of the topic with a state that is known to be right, at the CAS
of this state. It reports entities with a record above that CAS separately: the record may have
been committed since, and compaction may have removed the older one. The topic keeps tombstones for
longer than a comparison takes, so no tombstone disappears meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.core.catalog.state import LEGACY_OUTCOMES, StateContext
from coordinator.core.model.records import Event


class Findings(NamedTuple):
    """The keys of entities that differ: their last record is missing, or does not belong there.

    Those in `later` have a record above the state's CAS: a stray, unless it was committed since.
    """

    holes: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


class Scrubber:
    """Takes every event of the topic once, in order, and then tells what is wrong."""

    def __init__(self, state: StateContext) -> None:
        self._state = state
        self._last: dict[str, tuple[int, bool]] = {}
        self._later: set[str] = set()

    def add(self, events: Iterable[Event]) -> None:
        """Take events, in the order of the topic."""
        for event in events:
            key, value = event.mutation.key, event.mutation.value
            if event.cas > self._state.cas:
                self._later.add(key)
                continue
            held = self._state.get(key)
            same = value is None if held is None else (held.cas, held.value) == (event.cas, value)
            self._last[key] = (event.cas, same)

    def findings(self) -> Findings:
        """Return what differs, after the last event."""
        holes: list[str] = []
        strays: list[str] = []
        for key, (cas, same) in self._last.items():
            if same or key in self._later or key.startswith(LEGACY_OUTCOMES):
                continue
            held = self._state.get(key)
            (holes if held is not None and held.cas > cas else strays).append(key)
        known = self._last.keys() | self._later
        holes += [key for key in self._state.entities if key not in known]
        return Findings(*(tuple(sorted(keys)) for keys in (holes, strays, self._later)))

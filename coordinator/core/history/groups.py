"""Who of many is to be handed a change: found by what the change is, not by asking each of them.

Pure. Those with equal filters are one group, which is asked once. A group stands under the values
of one field of its filter, of which a change must have one; only groups under values of a change
are asked whether it fits. So a change costs as much as there are groups that may want it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from coordinator.core.history.changes import Change, Seen
from coordinator.core.history.predicates import Filter, Value, values_of

Member = TypeVar("Member")


class _Group(Generic[Member]):
    """Those whose filters are equal."""

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted
        self.members: dict[Member, None] = {}

    def places(self) -> Iterator[tuple[str, Value]]:
        """Yield each field and value under which this stands."""
        for field, values in self.wanted.marks().items():
            for value in values:
                yield field, value


class Groups(Generic[Member]):
    """Members by their filters. A member stands under one filter only."""

    def __init__(self) -> None:
        self._groups: dict[Filter, _Group[Member]] = {}
        self._under: dict[str, dict[Value, dict[_Group[Member], None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Member]:
        """Yield all members, of which some may be removed meanwhile."""
        return iter([member for group in self._groups.values() for member in group.members])

    def add(self, wanted: Filter, member: Member) -> None:
        """Have a member found by what fits a filter."""
        group = self._groups.get(wanted)
        if group is None:
            group = self._groups[wanted] = _Group(wanted)
            for field, value in group.places():
                self._under.setdefault(field, {}).setdefault(value, {})[group] = None
        self._count += member not in group.members
        group.members[member] = None

    def discard(self, wanted: Filter, member: Member) -> None:
        """Have a member found no more, if it was."""
        group = self._groups.get(wanted)
        if group is None or member not in group.members:
            return
        del group.members[member]
        self._count -= 1
        if not group.members:
            del self._groups[wanted]
            for field, value in group.places():
                self._remove(field, value, group)

    def _remove(self, field: str, value: Value, group: _Group[Member]) -> None:
        values = self._under[field]
        del values[value][group]
        if not values[value]:
            del values[value]
        if not values:
            del self._under[field]

    def wanting(self, changes: Iterable[Change]) -> Iterator[tuple[list[Member], list[int]]]:
        """Yield the members of each group that any change fits, and which: their places among
        these changes, ascending."""
        found: dict[_Group[Member], list[int]] = {}
        for place, change in enumerate(changes):
            seen = Seen(change.event, change.before)
            for group in self._asked(seen):
                if group.wanted.fits(seen):
                    found.setdefault(group, []).append(place)
        for group, places in found.items():
            yield [*group.members], places

    def _asked(self, seen: Seen) -> Iterable[_Group[Member]]:
        """Return the groups that a change may be for."""
        asked: dict[_Group[Member], None] = {}
        for field, groups in self._under.items():
            for value in values_of(seen, field) & groups.keys():
                asked |= groups[value]
        return asked

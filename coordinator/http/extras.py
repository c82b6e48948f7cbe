"""What can be watched besides the state: members and stability timestamps.

One task looks at them for all who watch. It makes each event once, and wakes only those who want
it. Nobody is told of everything: who was not told yet of the last one is told of the next instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.core.node import Node
from coordinator.core.timestamps import board as boards
from coordinator.http import timestamp_views, views
from coordinator.http.frames import frame

LOOK_S = 0.2
STABILITY, MEMBERS = "stability", "members"
EXTRAS = frozenset({STABILITY, MEMBERS})
"""What can be watched besides the state. It has no CAS, so no event of it has an id."""

VOLATILE = frozenset({"cas", "digest", "state", "reason", "pid"})
"""What of a member is not worth an event."""

log = logging.getLogger("coordinator")


@dataclass(eq=False, slots=True)
class Place:
    """What one watcher wants, and what it was not told yet. `wake` is called when that is new."""

    kinds: frozenset[str]
    buckets: frozenset[str]
    """Of which it wants timestamps; empty: of all."""

    wake: Callable[[], None]
    due: dict[str, None] = field(default_factory=dict)
    """Buckets with a timestamp that is new to it."""

    is_members_due: bool = False


class Extras:
    """The extras of one node, for all who watch them. The loop owns it."""

    def __init__(self, node: Callable[[], Node]) -> None:
        self._node = node
        self._of_members: dict[Place, None] = {}
        self._of_all: dict[Place, None] = {}
        self._of_bucket: dict[str, dict[Place, None]] = {}
        self._members = b""
        self._board = boards.EMPTY
        self._numbers: dict[str, int] = {}
        self._stability: dict[str, bytes] = {}
        self._looking: asyncio.Task[None] | None = None

    def join(
        self, kinds: frozenset[str], buckets: frozenset[str], wake: Callable[[], None]
    ) -> Place:
        """Return the place of a watcher, to whom all there is now is new."""
        if self._looking is None or self._looking.done():
            self._look()
            self._looking = asyncio.create_task(self._keep_looking())
            self._looking.add_done_callback(_ended)
        place = Place(kinds, buckets, wake, is_members_due=MEMBERS in kinds)
        for group in self._groups(place):
            group[place] = None
        if STABILITY in kinds:
            known = self._stability
            place.due = dict.fromkeys(b for b in buckets or known if b in known)
        return place

    def leave(self, place: Place) -> None:
        """Tell it nothing more."""
        for group in self._groups(place):
            group.pop(place, None)
        for bucket in place.buckets:
            if not self._of_bucket.get(bucket, True):
                del self._of_bucket[bucket]
        if self._looking is not None and not (self._of_members or self._of_all or self._of_bucket):
            self._looking.cancel()
            self._looking = None

    def news(self, place: Place) -> bytes:
        """Return the events that a watcher was not told yet; none of them is new to it then."""
        if not place.due and not place.is_members_due:
            return b""
        found = [self._stability[b] for b in sorted(place.due) if b in self._stability]
        if place.is_members_due:
            found.append(self._members)
        place.due, place.is_members_due = {}, False
        return b"".join(found)

    def _groups(self, place: Place) -> list[dict[Place, None]]:
        """Return where a place stands: under what it wants to be told."""
        found = [self._of_members] if MEMBERS in place.kinds else []
        if STABILITY in place.kinds and not place.buckets:
            found.append(self._of_all)
        elif STABILITY in place.kinds:
            found += [self._of_bucket.setdefault(bucket, {}) for bucket in place.buckets]
        return found

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        """Make events of what is new, and wake those who want them."""
        members = self._members_now()
        if members != self._members:
            self._members = members
            for place in self._of_members:
                place.is_members_due = True
                place.wake()
        board = self._node().timestamps
        if self._board is not board:
            self._board = board
            for bucket in self._newer():
                self._tell(self._of_all, bucket)
                self._tell(self._of_bucket.get(bucket, ()), bucket)

    @staticmethod
    def _tell(places: Iterable[Place], bucket: str) -> None:
        for place in places:
            place.due[bucket] = None
            place.wake()

    def _members_now(self) -> bytes:
        members = views.members(self._node())
        rows = [
            {name: value for name, value in row.items() if name not in VOLATILE}
            for row in members["members"]
        ]
        return frame(MEMBERS, {**members, "members": rows})

    def _newer(self) -> list[str]:
        """Return the buckets that have another timestamp than at the last look, with its event."""
        for bucket in self._numbers.keys() - self._board.keys():
            del self._numbers[bucket]
            self._stability.pop(bucket, None)
        found = []
        for bucket in self._board:
            held = boards.of(self._board, bucket).stability
            if held is not None and self._numbers.get(bucket) != held.record.number:
                self._numbers[bucket] = held.record.number
                self._stability[bucket] = frame(STABILITY, timestamp_views.published(held.record))
                found.append(bucket)
        return found


def _ended(looking: asyncio.Task[None]) -> None:
    """Nobody waits for the task: if it failed, it must not go unheard."""
    if not looking.cancelled() and (error := looking.exception()) is not None:
        log.error("members and timestamps are not looked at any more", exc_info=error)

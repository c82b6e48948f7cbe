"""What waits for the subscriptions of a feed: a line of changes for all that have the same filter.

Pure. A subscription has a place in its line. So a change is put into a line once, however many wait
for it, and only those are woken that had taken everything. A line holds what somebody has not taken
yet. Who has too much waiting for it is given up: it keeps what waits, and gets no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.core.history.changes import Change
from coordinator.core.history.predicates import Selector
from coordinator.core.model.types import Cas

WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 * 1024 * 1024
"""So many changes wait for one subscription, and so many bytes."""

CHANGE_BYTES = 512
"""What a change weighs beside the two values."""

LOOK_CHANGES, LOOK_BYTES = 256, 256 * 1024
"""When a line has grown by so much, it looks at the places of all to forget what all have taken."""


@dataclass(eq=False, slots=True)
class Published:
    """A change; `frame` is what the outside made of it, so that it is made once for all."""

    change: Change
    frame: bytes = b""

    @property
    def cas(self) -> Cas:
        return self.change.event.cas

    @property
    def weight(self) -> int:
        """What it takes in memory, in bytes, before it has a frame."""
        before, after = self.change.before, self.change.event.mutation.value
        return CHANGE_BYTES + len(before.value if before else b"") + len(after or b"")


@dataclass(frozen=True, slots=True)
class Bound:
    """So many changes, and so many bytes of them."""

    changes: int
    bytes: int

    def is_exceeded_by(self, more: Bound) -> bool:
        """Tell whether so much is too much."""
        return more.changes > self.changes or more.bytes > self.bytes

    def plus(self, other: Bound) -> Bound:
        """Return the sum."""
        return Bound(self.changes + other.changes, self.bytes + other.bytes)

    def minus(self, other: Bound) -> Bound:
        """Return what is left."""
        return Bound(self.changes - other.changes, self.bytes - other.bytes)


def least(bounds: Iterable[Bound]) -> Bound:
    """Return what is within all of one or more bounds."""
    changes, sizes = zip(*((one.changes, one.bytes) for one in bounds), strict=True)
    return Bound(min(changes), min(sizes))


def amount_of(changes: Sequence[Published]) -> Bound:
    """Return how many changes these are, and how many bytes."""
    return Bound(len(changes), sum(published.weight for published in changes))


@dataclass(eq=False, slots=True)
class Subscription:
    """One watcher's place in the feed. `wake` is called when there is something new to take."""

    selector: Selector
    wake: Callable[[], None]
    position: Cas
    """All up to here was handed over, or does not fit."""

    has_lagged: bool = False
    own: deque[Published] = field(default_factory=deque)
    """What waits for this one alone, and comes before what is in the line."""

    own_bytes: int = 0
    line: Line | None = None
    place: int = 0
    """Where it goes on in its line."""

    def hold(self, changes: Iterable[Published], bound: Bound) -> None:
        """Hold what is new of changes that fit, all of them of one transaction, for it alone.

        Too much, and it has lagged: nothing is held then.
        """
        if self.has_lagged:
            return
        found = [published for published in changes if published.cas > self.position]
        more = amount_of(found)
        # A transaction that is too much waits alone: who comes back for it would lag for ever.
        if self.own and bound.is_exceeded_by(self.own_amount.plus(more)):
            self.has_lagged = True
        else:
            self.keep(found, more.bytes)

    def keep(self, changes: Iterable[Published], weight: int) -> None:
        """Have changes wait for it alone, behind those that do."""
        self.own.extend(changes)
        self.own_bytes += weight

    @property
    def own_amount(self) -> Bound:
        return Bound(len(self.own), self.own_bytes)

    def take(self, limit: int, newest: Cas) -> Sequence[Published]:
        """Take at most `limit` changes, the oldest first; `newest` is that of the feed."""
        found = [self.own.popleft() for _ in range(min(limit, len(self.own)))]
        self.own_bytes -= amount_of(found).bytes
        if self.line is not None and not self.own:
            found += self.line.take(self, limit - len(found))
        if found:
            self.position = found[-1].cas
        elif not self.has_lagged:
            self.position = max(self.position, newest)
        return found

    @property
    def following(self) -> Published | None:
        """The change that would be taken next; None: nothing waits."""
        if self.own:
            return self.own[0]
        return self.line.following(self) if self.line is not None else None


class Line:
    """The changes that fit one filter, for all who have subscribed with it."""

    def __init__(self, selector: Selector, bound: Bound) -> None:
        self.selector = selector
        self._bound = bound
        self._changes: list[Published] = []
        self._weights = [0]
        """Of all changes before each of them, and at last before the next one."""

        self._first = 0
        self._members: dict[Subscription, None] = {}
        self._waiting: dict[Subscription, None] = {}
        """Members that have taken everything: only they are to be woken."""

        self._room = bound
        """How much more may come before anybody has too much: nobody is looked at until then."""

        self._look_at = Bound(LOOK_CHANGES, LOOK_BYTES)
        self.frames: dict[tuple[Cas, Cas], bytes] = {}
        """What the outside made of all changes from one to another, until there are more: most who
        wait take the same ones."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Subscription]:
        """Yield all members, of which some may leave meanwhile."""
        return iter([*self._members])

    # -- members -----------------------------------------------------------------------------

    def join(self, member: Subscription) -> None:
        """Hand it what is added from now on."""
        member.line, member.place = self, self._end
        self._members[member] = self._waiting[member] = None
        self._room = least((self._room, self._room_of(member)))

    def leave(self, member: Subscription) -> None:
        """Hand it nothing more; what waits for it, it keeps."""
        waiting = self._waits_for(member).bytes - member.own_bytes
        member.keep(self._changes[self._next_of(member) :], waiting)
        member.line = None
        del self._members[member]
        self._waiting.pop(member, None)
        self._forget_if_taken()

    def give_up(self) -> int:
        """Tell all that they have lagged; return how many they were."""
        return self._give_up([*self._members])

    def _give_up(self, members: Sequence[Subscription]) -> int:
        for member in members:
            member.has_lagged = True
            self.leave(member)
            member.wake()
        return len(members)

    # -- changes -----------------------------------------------------------------------------

    def add(self, changes: Sequence[Published]) -> int:
        """Hand the changes of a transaction to all; return for how many they were too much."""
        more, given_up = amount_of(changes), 0
        if self._room.is_exceeded_by(more) or self._look_at.is_exceeded_by(self._amount.plus(more)):
            given_up = self._look(more)
        self._room = self._room.minus(more)
        self._changes += changes
        self.frames.clear()
        for published in changes:
            self._weights.append(self._weights[-1] + published.weight)
        woken, self._waiting = self._waiting, {}
        for member in woken:
            member.wake()
        return given_up

    def take(self, member: Subscription, limit: int) -> list[Published]:
        """Take at most `limit` changes for a member."""
        begin = self._next_of(member)
        found = self._changes[begin : begin + limit]
        member.place = self._first + begin + len(found)
        if member.place == self._end:
            self._waiting[member] = None
            self._forget_if_taken()
        return found

    def following(self, member: Subscription) -> Published | None:
        """Return the change that a member would be handed next."""
        begin = self._next_of(member)
        return self._changes[begin] if begin < len(self._changes) else None

    def _next_of(self, member: Subscription) -> int:
        """Return where a member goes on: past what the state had already when it subscribed."""
        begin = member.place - self._first
        while begin < len(self._changes) and self._changes[begin].cas <= member.position:
            begin += 1
        return begin

    # -- what is held ------------------------------------------------------------------------

    @property
    def held(self) -> Sequence[Published]:
        """What somebody has not taken, the oldest first, and little that all have."""
        return tuple(self._changes)

    @property
    def _end(self) -> int:
        return self._first + len(self._changes)

    @property
    def _amount(self) -> Bound:
        return Bound(len(self._changes), self._weights[-1] - self._weights[0])

    def _waits_for(self, member: Subscription) -> Bound:
        begin = self._next_of(member)
        weight = self._weights[-1] - self._weights[begin]
        here = Bound(len(self._changes) - begin, weight)
        return here.plus(member.own_amount) if member.own else here

    def _room_of(self, member: Subscription) -> Bound:
        return self._bound.minus(self._waits_for(member))

    def _look(self, more: Bound) -> int:
        """Give up all for whom so much more is too much, and forget what all others have taken."""
        # For whom nothing waits, no transaction is too much: who comes back would lag for ever.
        given_up = self._give_up(
            [
                member
                for member in self._members
                if (waiting := self._waits_for(member)).changes
                and self._bound.is_exceeded_by(waiting.plus(more))
            ]
        )
        self._drop_to(min([member.place for member in self._members] or [self._end]))
        self._room = least((self._bound, *map(self._room_of, self._members)))
        held = self._amount
        self._look_at = Bound(2 * held.changes + LOOK_CHANGES, 2 * held.bytes + LOOK_BYTES)
        return given_up

    def _forget_if_taken(self) -> None:
        if len(self._waiting) == len(self._members):
            self._drop_to(self._end)

    def _drop_to(self, place: int) -> None:
        """Forget what is before a place."""
        count = place - self._first
        if count:
            self.frames.clear()
            del self._changes[:count]
            del self._weights[:count]
            self._first = place

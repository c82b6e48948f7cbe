"""Changes of the StateContext, each with the value before it, and the differences of two states.

Pure. A transaction's events are folded by `catalog.state.evolve`, as everywhere else; what they
replaced is looked up in the state that they are folded into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from coordinator.core.catalog.state import LEGACY_OUTCOMES, StateContext, Versioned, evolve
from coordinator.core.model.entities import Bucket, Entity, Index, Rollback, Stream
from coordinator.core.model.records import Event
from coordinator.core.model.types import TxnId

KINDS = {
    "index": "index",
    "bucket": "bucket",
    "setting": "config",
    "stream": "stream",
    "rollback": "rollback",
    "rebalance": "rebalance",
    "consumed": "consumed",
    "topic": "topic",
    "subscription": "subscription",
}
"""What a kind of entity is called, and what its keys begin with."""

KEY_RULE = "a key is a kind and a name, as config/quota or index/1099511630848"

_NAMES = {prefix: name for name, prefix in KINDS.items()}


class About:
    """What filters ask of an entity. What costs something is found once, when it is asked for."""

    def __init__(self, entity: Entity) -> None:
        self.index = entity if isinstance(entity, Index) else None
        self.bucket = ""
        if isinstance(entity, Index | Stream | Rollback):
            self.bucket = entity.bucket
        elif isinstance(entity, Bucket):
            self.bucket = entity.name

    @cached_property
    def names(self) -> frozenset[str]:
        """The id and the name of an index."""
        return frozenset((str(self.index.id), self.index.name)) if self.index else frozenset()

    @cached_property
    def hosts(self) -> frozenset[int]:
        """The indexers that hold any slice of an index."""
        return self.index.hosts if self.index else frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """One event, and the entity that it replaced or removed; None: there was none."""

    event: Event
    before: Versioned | None

    @property
    def key(self) -> str:
        return self.event.mutation.key

    @property
    def kind(self) -> str:
        return kind_of(self.key)

    @property
    def sides(self) -> tuple[Entity, ...]:
        """The values before and after the change, as far as there are any."""
        before = self.before.entity if self.before is not None else None
        return tuple(side for side in (before, self.event.mutation.entity) if side is not None)

    def about(self) -> tuple[About, ...]:
        """What filters ask of the values before and after the change."""
        return tuple(map(About, self.sides))


class Seen(Change):
    """A change at which many look: what they look at is found once for all of them."""

    @cached_property
    def kind(self) -> str:
        return kind_of(self.key)

    @cached_property
    def _about(self) -> tuple[About, ...]:
        return tuple(map(About, self.sides))

    def about(self) -> tuple[About, ...]:
        return self._about


@dataclass(frozen=True, slots=True)
class Difference:
    """An entity that two states do not have alike; None: the state does not have it."""

    key: str
    before: Versioned | None
    after: Versioned | None


def is_key(key: str) -> bool:
    """Tell whether entities have keys like this one: their kind, a slash, and a name."""
    prefix, slash, name = key.partition("/")
    return prefix in _NAMES and bool(slash and name)


def kind_of(key: str) -> str:
    """Return what the kind of the entity under a key is called."""
    prefix = key.partition("/")[0]
    return _NAMES.get(prefix, prefix)


def changes_of(before: StateContext, transaction: Sequence[Event]) -> Iterator[Change]:
    """Yield the changes of a transaction, each with what it replaced."""
    made: dict[str, Versioned | None] = {}
    for event in transaction:
        mutation = event.mutation
        key = mutation.key
        yield Change(event, made[key] if key in made else before.get(key))
        if mutation.value is None or mutation.entity is None:
            made[key] = None
        else:
            made[key] = Versioned(event.cas, mutation.value, mutation.entity)


def fold(
    state: StateContext, transaction: Sequence[Event]
) -> tuple[StateContext, tuple[Change, ...]]:
    """Return the state after a transaction, and its changes in order."""
    after = evolve(state, ((event.mutation, event.cas) for event in transaction))
    return after, tuple(changes_of(state, transaction))


class Joining:
    """Puts the events of each transaction together, one event after the other, in order of CAS.

    A record that does not continue what is before it is passed over: an event that was there
    already, or a part of a transaction whose beginning is missing.
    """

    def __init__(self, cas: int = 0) -> None:
        """All events up to this CAS were there already."""
        self.cas = cas
        self.torn: TxnId | None = None
        """The transaction of which the last event showed that a part is missing."""

        self._open: list[Event] = []

    @property
    def is_open(self) -> bool:
        """Tell whether there is a beginning of a transaction, and not its end."""
        return bool(self._open)

    def add(self, event: Event) -> tuple[Event, ...] | None:
        """Return the transaction that ends with this event, if one does.

        Without the outcomes of requests that older versions kept as entities.
        """
        whole = self.add_whole(event)
        return None if whole is None else without_outcomes(whole)

    def add_whole(self, event: Event) -> tuple[Event, ...] | None:
        """Return the transaction that ends with this event, if one does, with all that it has."""
        self.torn = None
        if event.cas <= self.cas:
            return None
        self.cas = event.cas
        if event.index == 0:
            self.torn = self._open[0].txn if self._open else None
            self._open = [event]
        elif self._open and (event.txn, event.index) == (self._open[0].txn, len(self._open)):
            self._open.append(event)
        else:
            self.torn = event.txn
            self._open = []
            return None
        if len(self._open) < event.count:
            return None
        whole, self._open = self._open, []
        return tuple(whole)


def without_outcomes(transaction: Iterable[Event]) -> tuple[Event, ...]:
    """Return events without the outcomes of requests that older versions kept as entities."""
    return tuple(e for e in transaction if not e.mutation.key.startswith(LEGACY_OUTCOMES))


def transactions(events: Iterable[Event]) -> Iterator[tuple[Event, ...]]:
    """Yield the events of each transaction together, in order of CAS: see `Joining.add`."""
    return map(without_outcomes, whole_transactions(events))


def whole_transactions(events: Iterable[Event]) -> Iterator[tuple[Event, ...]]:
    """Yield the events of each transaction together, all that it has."""
    joining = Joining()
    for event in events:
        whole = joining.add_whole(event)
        if whole is not None:
            yield whole


def differences(before: StateContext, after: StateContext) -> list[Difference]:
    """Return what is not the same in both, ordered by key.

    An entity that was changed and changed back has another CAS, and is the same.
    """
    found = [
        Difference(key, was, held)
        for key, held in after.entities.items()
        if (was := before.get(key)) is None or was.entity != held.entity
    ]
    gone = [
        Difference(key, held, None)
        for key, held in before.entities.items()
        if key not in after.entities
    ]
    return sorted([*found, *gone], key=lambda difference: difference.key)

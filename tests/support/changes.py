"""Transactions of settings, as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import transactions
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, TxnId
from tests.support.views import CODEC


def written(name: str, value: str) -> Mutation:
    entity = Setting(name, value)
    return Mutation("SettingWritten", entity.key, CODEC.encode_entity(entity), entity)


def deleted(name: str) -> Mutation:
    return Mutation("SettingDeleted", f"config/{name}", None, None)


def a_transaction(seq: int, cas: int, *mutations: Mutation) -> tuple[Event, ...]:
    return tuple(
        Event(mutation, TxnId(1, seq), number, len(mutations), Cas(cas + number))
        for number, mutation in enumerate(mutations)
    )


def flat(*parts: Iterable[Event]) -> list[Event]:
    return [event for part in parts for event in part]


ONE = a_transaction(1, 1, written("a", "1"), written("b", "1"))
TWO = a_transaction(2, 4, written("a", "2"), deleted("b"), written("b", "3"))
THREE = a_transaction(3, 8, deleted("a"))


class MemoryLog:
    """All events, as a reader of the history gives them; `oldest_cas` is where they begin.

    `before` is the state that they follow, where a backup brought it.
    """

    def __init__(
        self,
        events: Callable[[], Sequence[Event]],
        oldest_cas: int = 0,
        before: StateContext | None = None,
    ) -> None:
        self._events = events
        self._oldest_cas = oldest_cas
        self._before = before
        self.archived_below = Cas(0)
        """The first CAS that the topic itself has; 0: it has all."""
        self.read = 0

    def oldest(self, newest: Cas) -> Cas:
        return Cas(self._oldest_cas)

    def oldest_in_topic(self, newest: Cas) -> Cas:
        return self.archived_below

    def base(self) -> StateContext | None:
        return self._before

    def transactions(self, above: Cas, up_to: Cas) -> Iterator[tuple[Event, ...]]:
        for found in transactions([*self._events()]):
            if found and above < found[0].cas <= up_to:
                self.read += 1
                yield found

    def cas_at(self, at_ms: int, newest: Cas) -> Cas:
        made = [event.cas for event in self._events() if event.mutation.at_ms <= at_ms]
        return max(made, default=Cas(0))

    def close(self) -> None:
        """Nothing is open."""

"""Transactions of settings, as events."""

from __future__ import annotations

from collections.abc import Iterable

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

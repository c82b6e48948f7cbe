"""The settings `repair` and `rebalance`: when copies are made anew, and how copies move.

Pure. Each is a JSON object; a field that is left out keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from coordinator.core.catalog.state import StateContext
from coordinator.core.model import json_text
from coordinator.core.model.entities import Entity, Setting

REPAIR = "repair"
REBALANCE = "rebalance"

AFTER_S = "after_s"
AFTER_S_MAX = 7 * 24 * 3_600

PARTS, DOCUMENTS_PER_S, CAPACITY_BYTES = "parts", "documents_per_s", "capacity_bytes"
PARTS_MAX = 64
DOCUMENTS_PER_S_MAX = 10**9
CAPACITY_BYTES_MAX = 2**53 - 1
CAPACITIES_MAX = 256
INDEXER_MAX = 250
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """After so many seconds of silence an indexer is lost, and its copies are made elsewhere; 0:
    never by itself."""

    after_s: int = 1_800


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """How copies move.

    So many `parts` of a bucket are built at once. A projector streams `documents_per_s` of a bucket
    at most for them; 0: as fast as it can. `capacity_bytes` is what an indexer may hold, by its id,
    and under `*` what each of the others may; 0: as much as it can.
    """

    parts: int = 8
    documents_per_s: int = 4_000
    capacity_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def capacity_of(self, indexer: int) -> int:
        """Return how many bytes an indexer may hold, 0 for no bound."""
        others = self.capacity_bytes.get(OTHERS, 0)
        return self.capacity_bytes.get(str(indexer), others)


def parse_repair(value_json: str) -> RepairSettings:
    """Return what the setting `repair` says. ValueError: says what is wrong with it."""
    given = json_text.parse_fields(value_json, (AFTER_S,))
    return RepairSettings(_number(given, AFTER_S, RepairSettings().after_s, 0, AFTER_S_MAX))


def parse_rebalance(value_json: str) -> RebalanceSettings:
    """Return what the setting `rebalance` says. ValueError: says what is wrong with it."""
    given = json_text.parse_fields(value_json, (PARTS, DOCUMENTS_PER_S, CAPACITY_BYTES))
    default = RebalanceSettings()
    return RebalanceSettings(
        _number(given, PARTS, default.parts, 1, PARTS_MAX),
        _number(given, DOCUMENTS_PER_S, default.documents_per_s, 0, DOCUMENTS_PER_S_MAX),
        _capacities(given.get(CAPACITY_BYTES, {})),
    )


PARSERS = {REPAIR: parse_repair, REBALANCE: parse_rebalance}


def repair_in(state: StateContext) -> RepairSettings:
    """Return what holds in a state; what cannot be read is the default."""
    try:
        return parse_repair(_text(_entity(state, REPAIR)))
    except ValueError:
        return RepairSettings()


def rebalance_in(state: StateContext) -> RebalanceSettings:
    """Return what holds in a state."""
    return rebalance_of(_entity(state, REBALANCE))


def rebalance_of(setting: Entity | None) -> RebalanceSettings:
    """Return what a setting says; what cannot be read, or is none, is the default."""
    try:
        return parse_rebalance(_text(setting))
    except ValueError:
        return RebalanceSettings()


def _entity(state: StateContext, name: str) -> Entity | None:
    held = state.setting(name)
    return held.entity if held is not None else None


def _text(setting: Entity | None) -> str:
    return setting.value_json if isinstance(setting, Setting) else "{}"


def _number(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    found = given.get(name, default)
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}")
    return found


def _capacities(given: Any) -> Mapping[str, int]:
    if not isinstance(given, dict) or len(given) > CAPACITIES_MAX:
        raise ValueError(
            f"{CAPACITY_BYTES} is an object of at most {CAPACITIES_MAX} indexers, with the bytes "
            f"of each; {OTHERS!r} stands for the others"
        )
    for name in given:
        is_number = name.isdecimal() and name.isascii() and name == str(int(name[:4]))
        if name != OTHERS and not (is_number and int(name) <= INDEXER_MAX):
            raise ValueError(f"{CAPACITY_BYTES}: {name!r} is no indexer")
    return MappingProxyType(
        {name: _number(given, name, 0, 0, CAPACITY_BYTES_MAX) for name in given}
    )

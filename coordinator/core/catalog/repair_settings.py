"""When copies on a lost indexer are made anew: the setting `repair`.

Pure. The setting is a JSON object; a field that is left out keeps its default.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.catalog.state import StateContext
from coordinator.core.model import json_text
from coordinator.core.model.entities import Setting

NAME = "repair"
AFTER_S = "after_s"
AFTER_S_MAX = 7 * 24 * 3_600


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """After so many seconds of silence an indexer is lost, and its copies are made elsewhere; 0:
    never by itself."""

    after_s: int = 1_800


def parse(value_json: str) -> RepairSettings:
    """Return what a setting says. ValueError: says what is wrong with it."""
    try:
        given = json_text.parse(value_json)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError("a JSON object belongs here")
    odd = sorted(given.keys() - {AFTER_S})
    if odd:
        raise ValueError(f"there is no field {odd[0]!r}; there is {AFTER_S}")
    after_s = given.get(AFTER_S, RepairSettings().after_s)
    if type(after_s) is not int or not 0 <= after_s <= AFTER_S_MAX:
        raise ValueError(f"{AFTER_S} is a whole number from 0 to {AFTER_S_MAX}")
    return RepairSettings(after_s)


def settings_in(state: StateContext) -> RepairSettings:
    """Return what holds in a state; what cannot be read is the default."""
    held = state.setting(NAME)
    if held is None or not isinstance(held.entity, Setting):
        return RepairSettings()
    try:
        return parse(held.entity.value_json)
    except ValueError:
        return RepairSettings()

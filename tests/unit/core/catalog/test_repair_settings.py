"""When copies of a lost indexer are made anew, as the setting `repair` says."""

from __future__ import annotations

import pytest

from coordinator.core.catalog.repair_settings import AFTER_S_MAX, RepairSettings, parse, settings_in
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import PutSetting
from coordinator.core.model.entities import Setting
from tests.support.catalog_bench import Bench


@pytest.mark.parametrize(
    ("value", "after_s"), [("{}", 1_800), ('{"after_s": 0}', 0), ('{"after_s": 60}', 60)]
)
def test_a_setting_says_after_how_long(value: str, after_s: int) -> None:
    assert parse(value) == RepairSettings(after_s)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("5", "a JSON object"),
        ("{", "no JSON"),
        ('{"after": 5}', "there is no field 'after'"),
        ('{"after_s": -1}', "a whole number"),
        ('{"after_s": true}', "a whole number"),
        ('{"after_s": 1.5}', "a whole number"),
        (f'{{"after_s": {AFTER_S_MAX + 1}}}', "a whole number"),
    ],
)
def test_what_is_wrong_with_it_is_said_when_it_is_written(value: str, what: str) -> None:
    decision = Bench().decide(PutSetting("repair", value))
    assert decision.outcome.code == "invalid_request"  # type: ignore[union-attr]
    assert what in decision.outcome.message  # type: ignore[union-attr]


def test_without_it_or_with_one_that_cannot_be_read_the_default_holds() -> None:
    assert settings_in(StateContext()) == RepairSettings()
    bench = Bench()
    bench.apply(PutSetting("repair", '{"after_s": 7}'))
    assert settings_in(bench.state).after_s == 7
    odd = Setting("repair", "5")
    held = bench.state.setting("repair")
    assert held is not None
    entities = bench.state.entities.set(odd.key, held._replace(entity=odd))
    assert settings_in(bench.state._replace(entities=entities)) == RepairSettings()

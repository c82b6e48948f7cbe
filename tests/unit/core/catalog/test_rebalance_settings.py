"""What the settings `repair` and `rebalance` say, and what is wrong with them."""

from __future__ import annotations

import pytest

from coordinator.core.catalog.rebalance_settings import (
    AFTER_S_MAX,
    RebalanceSettings,
    RepairSettings,
    parse_rebalance,
    parse_repair,
    rebalance_in,
    repair_in,
)
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import PutSetting
from coordinator.core.model.entities import Setting
from tests.support.catalog_bench import Bench


@pytest.mark.parametrize(
    ("value", "after_s"), [("{}", 1_800), ('{"after_s": 0}', 0), ('{"after_s": 60}', 60)]
)
def test_a_setting_says_after_how_long(value: str, after_s: int) -> None:
    assert parse_repair(value) == RepairSettings(after_s)


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
    assert repair_in(StateContext()) == RepairSettings()
    bench = Bench()
    bench.apply(PutSetting("repair", '{"after_s": 7}'))
    assert repair_in(bench.state).after_s == 7
    odd = Setting("repair", "5")
    held = bench.state.setting("repair")
    assert held is not None
    entities = bench.state.entities.set(odd.key, held._replace(entity=odd))
    assert repair_in(bench.state._replace(entities=entities)) == RepairSettings()


@pytest.mark.parametrize(
    ("value", "parts", "documents_per_s", "capacities"),
    [
        ("{}", 8, 4_000, {}),
        ('{"parts": 2, "documents_per_s": 500}', 2, 500, {}),
        ('{"capacity_bytes": {"*": 100, "3": 0, "0": 7}}', 8, 4_000, {1: 100, 3: 0, 0: 7}),
        ('{"capacity_bytes": {"250": 5}, "documents_per_s": 0}', 8, 0, {250: 5, 1: 0}),
    ],
)
def test_a_setting_says_how_copies_move(
    value: str, parts: int, documents_per_s: int, capacities: dict[int, int]
) -> None:
    found = parse_rebalance(value)
    assert (found.parts, found.documents_per_s) == (parts, documents_per_s)
    assert {indexer: found.capacity_of(indexer) for indexer in capacities} == capacities


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[]", "a JSON object"),
        ('{"part": 5}', "there is no field 'part'"),
        ('{"parts": 0}', "parts is a whole number from 1"),
        ('{"documents_per_s": -1}', "documents_per_s is a whole number"),
        ('{"documents_per_s": 0.5}', "documents_per_s is a whole number"),
        ('{"capacity_bytes": 5}', "an object of at most"),
        ('{"capacity_bytes": {"1": -1}}', "1 is a whole number"),
        ('{"capacity_bytes": {"1": true}}', "1 is a whole number"),
        ('{"capacity_bytes": {"251": 1}}', "'251' is no indexer"),
        ('{"capacity_bytes": {"01": 1}}', "'01' is no indexer"),
        ('{"capacity_bytes": {"\u0662": 1}}', "is no indexer"),
        ('{"capacity_bytes": {"": 1}}', "'' is no indexer"),
        ('{"capacity_bytes": {"11111111111111": 1}}', "is no indexer"),
    ],
)
def test_what_is_wrong_with_how_copies_move_is_said(value: str, what: str) -> None:
    decision = Bench().decide(PutSetting("rebalance", value))
    assert decision.outcome.code == "invalid_request"  # type: ignore[union-attr]
    assert what in decision.outcome.message  # type: ignore[union-attr]


def test_how_copies_move_has_a_default() -> None:
    assert rebalance_in(StateContext()) == RebalanceSettings()
    bench = Bench()
    bench.apply(PutSetting("rebalance", '{"parts": 3}'))
    assert rebalance_in(bench.state).parts == 3

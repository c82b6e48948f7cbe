"""What commands yield against a committed state, as tables: each case is one decision."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.client.request_ids import uuid7
from coordinator.core.catalog import ddl
from coordinator.core.catalog.decisions import (
    Accepted,
    Parked,
    Unchanged,
    describe_index,
)
from coordinator.core.catalog.outcomes import time_of_uuid7
from coordinator.core.catalog.state import EMPTY
from coordinator.core.model.commands import (
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    ForgetIndex,
    MarkReady,
    Position,
    PutSetting,
    RewriteEntities,
    UndoIndex,
)
from coordinator.core.model.entities import Setting
from tests.support.catalog_bench import CREATE, Bench


def test_create_commits_init_and_makes_an_unknown_bucket(bench: Bench) -> None:
    decision = bench.apply(CREATE)
    assert [c.event for c in decision.changes] == ["IndexProposed", "BucketCreated"]
    assert decision.waits_for == (bench.index().id,)
    assert bench.index().state == "init"


@pytest.mark.parametrize("if_not_exists", [False, True])
def test_a_create_waits_for_the_fate_of_one_under_way(bench: Bench, if_not_exists: bool) -> None:
    bench.apply(CREATE)
    again = bench.decide(replace(CREATE, if_not_exists=if_not_exists))
    assert again == Parked(bench.index().id)


def test_a_name_is_unique_in_its_bucket_only(ready: Bench) -> None:
    assert ready.refusal(CREATE) == "index_exists"
    assert isinstance(ready.decide(replace(CREATE, bucket="other")), Accepted)


def test_if_not_exists_answers_the_one_that_exists(ready: Bench) -> None:
    decision = ready.decide(replace(CREATE, if_not_exists=True))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.status == "ok"
    assert decision.outcome.answer["index"]["id"] == str(ready.index().id)


INVALID: list[CreateIndex] = [
    replace(CREATE, name=""),
    replace(CREATE, name="1st"),
    replace(CREATE, name="a" * 129),
    replace(CREATE, name="a/b"),
    replace(CREATE, bucket="no such\nbucket"),
    replace(CREATE, expressions=()),
    replace(CREATE, expressions=("x",) * 33),
    replace(CREATE, expressions=(" ",)),
    replace(CREATE, expressions=("x" * 4097,)),
    replace(CREATE, where=""),
    replace(CREATE, primary=True),
    replace(CREATE, using="btree"),
    replace(CREATE, slices=0),
    replace(CREATE, slices=257),
    replace(CREATE, replicas=-1),
    replace(CREATE, partitioning="list"),
    replace(CREATE, partitioning="range"),
    replace(CREATE, partitioning="range", slices=0),
    replace(CREATE, bounds_json='[["F"]]', slices=2),
    replace(CREATE, partitioning="range", bounds_json='[["F"]]', slices=1),
    replace(CREATE, partitioning="range", bounds_json='[["F"]]', slices=3),
    replace(CREATE, partitioning="range", bounds_json='[["F", 1]]', slices=2),
    replace(CREATE, partitioning="range", bounds_json='[["F"], ["F"]]', slices=3),
    replace(CREATE, partitioning="range", bounds_json='["F"]', slices=2),
    replace(CREATE, partitioning="range", bounds_json="[[1e999]]", slices=2),
    replace(CREATE, partitioning="range", bounds_json="[[", slices=2),
    replace(
        CREATE,
        partitioning="range",
        bounds_json=json.dumps([[n] for n in range(256)]),
        slices=257,
    ),
]


@pytest.mark.parametrize("command", INVALID, ids=repr)
def test_a_definition_that_makes_no_sense_is_refused(bench: Bench, command: CreateIndex) -> None:
    assert bench.refusal(command) == "invalid_request"
    assert bench.state == EMPTY


@pytest.mark.parametrize("slices", [0, 3, 6])
def test_ranges_make_as_many_slices_as_there_are_between_their_bounds(
    bench: Bench, slices: int
) -> None:
    bench.apply(
        replace(
            CREATE,
            expressions=("city DESC", "name"),
            partitioning="range",
            bounds_json='[["T", 1.0], ["F"] ]',
            slices=slices,
        )
    )
    index = bench.index()
    assert (index.partitioning, index.bounds_json) == ("range", '[["T",1.0],["F"]]')
    assert len(index.slices) == (slices or 3)
    shown = describe_index(index)["topology"]
    assert (shown["partitioning"], shown["bounds"]) == ("range", [["T", 1.0], ["F"]])


def test_a_primary_index_has_ranges_of_document_ids(bench: Bench) -> None:
    ranges = replace(CREATE, primary=True, expressions=(), partitioning="range")
    bench.apply(replace(ranges, bounds_json='[["k"]]', slices=0))
    assert len(bench.index().slices) == 2


def test_more_replicas_than_indexers_are_refused(bench: Bench) -> None:
    assert bench.refusal(replace(CREATE, replicas=2)) == "placement_impossible"


def test_an_objection_of_the_shell_is_a_refusal(bench: Bench) -> None:
    assert bench.refusal(CREATE, objection="unexpected )") == "invalid_request"


def test_a_refused_allocation_gives_the_name_back(bench: Bench) -> None:
    bench.apply(CREATE, id="r1", recorded=True, fingerprint=1)
    bench.apply(UndoIndex(bench.index().id, "indexer 1: no space"))
    assert bench.index().state == "dropping"
    assert bench.state.index_named("travel", "by_city") is None
    found = bench.window.find("r1")
    assert found is not None
    assert (found.outcome.status, found.outcome.error_code) == ("refused", "indexer_refused")
    assert bench.refusal(CREATE, id="r1", recorded=True, fingerprint=1) == "indexer_refused"


def test_a_drop_frees_the_name_at_once_and_the_entity_when_all_have_released(ready: Bench) -> None:
    number = ready.index().id
    ready.apply(DropIndex(index_id=number))
    assert ready.refusal(DropIndex(index_id=number)) == "index_not_found"
    assert isinstance(ready.decide(CREATE), Accepted)
    ready.apply(ForgetIndex(number))
    assert ready.state.index_by_id(number) is None


@pytest.mark.parametrize("command", [MarkReady(1), UndoIndex(1, "x"), ForgetIndex(1)])
def test_what_is_settled_already_changes_nothing(bench: Bench, command: Command) -> None:
    assert isinstance(bench.decide(command), Unchanged)


def test_a_drop_of_what_is_not_there(bench: Bench) -> None:
    assert bench.refusal(DropIndex(bucket="b", name="n")) == "index_not_found"
    assert bench.refusal(DropIndex(bucket="b", name="n", if_exists=True)) == ""


@pytest.mark.parametrize(
    ("there", "expected", "code"),
    [
        (False, None, None),
        (False, 0, None),
        (False, 5, "cas_mismatch"),
        (True, None, None),
        (True, 0, "cas_mismatch"),
        (True, 1, None),
        (True, 2, "cas_mismatch"),
    ],
)
def test_a_setting_is_written_only_at_the_expected_cas(
    bench: Bench, there: bool, expected: int | None, code: str | None
) -> None:
    if there:
        bench.apply(PutSetting("k", "1"))
    decision = bench.decide(PutSetting("k", "2"), expected_cas=expected)
    if code is None:
        assert isinstance(decision, Accepted)
    else:
        assert isinstance(decision, Unchanged)
        assert decision.outcome.code == code
        assert decision.outcome.details["expected"] == expected
        assert decision.outcome.details["actual"] == (1 if there else 0)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (PutSetting("", "1"), "invalid_request"),
        (PutSetting("a b", "1"), "invalid_request"),
        (PutSetting("k", json.dumps("x" * 65_536)), "value_too_large"),
        (DeleteSetting("k"), "config_not_found"),
    ],
)
def test_settings_that_are_refused(bench: Bench, command: Command, code: str) -> None:
    assert bench.refusal(command) == code


@pytest.mark.parametrize("name", ["timestamps", "timestamps/travel"])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[]", "object"),
        ("null", "object"),
        ('{"period": 1000}', "'period'"),
        ('{"period_ms": 9}', "period_ms"),
        ('{"period_ms": "1000"}', "period_ms"),
        ('{"sync_missing_ms": 3600001}', "sync_missing_ms"),
        ('{"algorithm": "median"}', "algorithm"),
        ('{"consolidate": 1}', "consolidate"),
    ],
)
def test_a_setting_of_timestamps_that_cannot_be_is_refused_and_its_field_is_named(
    bench: Bench, name: str, value: str, what: str
) -> None:
    bench.apply(PutSetting(name, '{"period_ms": 500}'))
    decision = bench.decide(PutSetting(name, value))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.code == "invalid_request"
    assert decision.outcome.details == {"key": name}
    assert decision.outcome.message.startswith(f"{name}: ")
    assert what in decision.outcome.message
    held = bench.state.setting(name)
    assert held is not None
    assert held.entity == Setting(name, '{"period_ms": 500}')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timestamps", "{}"),
        ("timestamps/travel", '{"algorithm": "heartbeat", "heartbeat_stale_ms": 10}'),
        ("timestamps.mine", "[]"),
        ("timestampsx/travel", "1"),
    ],
)
def test_settings_of_timestamps_that_can_be_and_other_settings_are_written(
    bench: Bench, name: str, value: str
) -> None:
    bench.apply(PutSetting(name, value))
    assert bench.state.setting(name) is not None


# -- repeats -------------------------------------------------------------------------------------


def test_a_repeat_answers_the_same_even_after_another_change(bench: Bench) -> None:
    terms: dict[str, Any] = {"id": "r1", "recorded": True, "fingerprint": 7}
    first = bench.apply(PutSetting("k", "1"), **terms)
    cas = bench.state.cas_of("config/k")
    bench.apply(PutSetting("k", "2"))
    again = bench.decide(PutSetting("k", "1"), **terms)
    assert isinstance(again, Unchanged)
    assert (again.outcome.answer, again.outcome.cas) == (first.answer, cas)
    assert again.outcome.txn == "1-1"


def test_another_command_under_a_used_id_is_refused(bench: Bench) -> None:
    bench.apply(PutSetting("k", "1"), id="r1", recorded=True, fingerprint=7)
    assert (
        bench.refusal(PutSetting("k", "2"), id="r1", recorded=True, fingerprint=8)
        == "request_mismatch"
    )


@pytest.mark.parametrize(("age_ms", "code"), [(599_999, None), (600_001, "request_expired")])
def test_a_time_ordered_id_older_than_the_window_is_refused(
    bench: Bench, age_ms: int, code: str | None
) -> None:
    bench.wall_ms = 1_800_000_000_000
    born = bench.wall_ms - age_ms
    text = uuid7(born, 0)
    assert time_of_uuid7(text) == born
    decision = bench.decide(PutSetting("k", "1"), id=text, recorded=True)
    if code is None:
        assert isinstance(decision, Accepted)
    else:
        assert isinstance(decision, Unchanged)
        assert decision.outcome.code == code


def test_an_id_that_the_log_has_forgotten_is_refused_by_a_master_whose_clock_is_behind(
    bench: Bench,
) -> None:
    """Its outcome was remembered, and is not any more: it would execute again."""
    bench.wall_ms = 1_800_000_000_000
    bench.forgotten_ms = bench.wall_ms - 1_000
    for age_ms, code in ((1_001, "request_expired"), (1_000, "request_expired"), (999, "")):
        text = uuid7(bench.wall_ms - age_ms, 0)
        decision = bench.decide(PutSetting("k", "1"), id=text, recorded=True)
        assert (decision.outcome.code if isinstance(decision, Unchanged) else "") == code


@pytest.mark.parametrize(
    ("since_forgotten_ms", "code"), [(1, ""), (0, "request_expired"), (-1, "request_expired")]
)
def test_a_published_id_may_be_of_any_age_if_nothing_that_late_was_forgotten(
    bench: Bench, since_forgotten_ms: int, code: str
) -> None:
    """It has waited for a master. Had it been executed, its outcome would be remembered."""
    bench.wall_ms = 1_800_000_000_000
    born_ms = bench.wall_ms - 36 * 3_600_000
    bench.forgotten_ms = born_ms - since_forgotten_ms
    terms: dict[str, Any] = {"id": uuid7(born_ms, 0), "recorded": True}
    decision = bench.decide(PutSetting("k", "1"), position=Position(0, 7), **terms)
    assert (decision.outcome.code if isinstance(decision, Unchanged) else "") == code
    assert bench.refusal(PutSetting("k", "1"), **terms) == "request_expired", "over HTTP"


def test_a_published_id_is_held_to_the_window_where_what_was_forgotten_is_not_believed(
    bench: Bench,
) -> None:
    bench.wall_ms = 1_800_000_000_000
    bench.forgotten_ms = bench.wall_ms + ddl.BELIEVED_MS_MAX + 1
    for age_ms, code in ((600_001, "request_expired"), (600_000, "")):
        terms: dict[str, Any] = {"id": uuid7(bench.wall_ms - age_ms, 0), "recorded": True}
        decision = bench.decide(PutSetting("k", "1"), position=Position(0, 7), **terms)
        assert (decision.outcome.code if isinstance(decision, Unchanged) else "") == code


def test_what_was_forgotten_under_a_clock_far_ahead_refuses_nobody(bench: Bench) -> None:
    bench.wall_ms = 1_800_000_000_000
    for ahead_ms, code in ((24 * 3_600_000, "request_expired"), (24 * 3_600_000 + 1, "")):
        bench.forgotten_ms = bench.wall_ms + ahead_ms
        decision = bench.decide(PutSetting("k", "1"), id=uuid7(bench.wall_ms, 0), recorded=True)
        assert (decision.outcome.code if isinstance(decision, Unchanged) else "") == code


@pytest.mark.parametrize(("ahead_ms", "code"), [(300_000, None), (300_001, "clock_ahead")])
def test_an_id_from_the_future_is_refused_beyond_a_bound(
    bench: Bench, ahead_ms: int, code: str | None
) -> None:
    bench.wall_ms = 1_800_000_000_000
    text = uuid7(bench.wall_ms + ahead_ms, 0)
    decision = bench.decide(PutSetting("k", "1"), id=text, recorded=True)
    if code is None:
        assert isinstance(decision, Accepted)
    else:
        assert isinstance(decision, Unchanged)
        assert decision.outcome.code == code
        assert decision.outcome.details["limit_ms"] == ddl.AHEAD_MS_MAX


def test_the_answer_of_a_repeat_survives_that_entities_are_written_again(bench: Bench) -> None:
    terms: dict[str, Any] = {"id": "r1", "recorded": True, "fingerprint": 7}
    bench.apply(PutSetting("k", "1"), **terms)
    cas = bench.state.cas_of("config/k")
    bench.apply(RewriteEntities(("config/k",)))
    assert bench.state.cas_of("config/k") > cas
    again = bench.decide(PutSetting("k", "1"), **terms)
    assert isinstance(again, Unchanged)
    assert (again.outcome.cas, again.outcome.txn) == (cas, "1-1")


def test_a_repeat_of_a_creation_shows_the_index_as_it_is_now(bench: Bench) -> None:
    terms: dict[str, Any] = {"id": "r1", "recorded": True, "fingerprint": 7}
    bench.apply(CREATE, **terms)
    number = bench.index().id
    assert isinstance(bench.decide(CREATE, **terms), Parked)
    assert bench.refusal(CREATE, id="r1", recorded=True, fingerprint=8) == "request_mismatch"
    bench.apply(MarkReady(number))
    cas = bench.state.cas_of(bench.index().key)
    bench.apply(DropIndex(index_id=number))
    for state in ("dropping", "dropped"):
        again = bench.decide(CREATE, **terms)
        assert isinstance(again, Unchanged)
        shown = again.outcome.answer["index"]
        assert (again.outcome.status, again.outcome.cas) == ("ok", cas)
        assert (shown["id"], shown["name"], shown["state"]) == (str(number), "by_city", state)
        if state == "dropping":
            bench.apply(ForgetIndex(number))


def test_what_is_remembered_of_a_creation_does_not_hold_the_index_again(bench: Bench) -> None:
    long = replace(CREATE, expressions=tuple(f"a.{'b' * 4_000}{n}" for n in range(30)))
    bench.apply(long, id="r1", recorded=True, fingerprint=7)
    bench.apply(MarkReady(bench.index().id))
    (kept,) = bench.window.kept()
    assert len(kept.value) < 200


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "z" * 32, "0" * 12 + "4" + "0" * 19, "1_" * 6 + "7" + "0" * 19),
        *("0" * 12 + "7" + "0" * 19, "00000000-0000-7000-0000-000000000000", str(UUID(int=1))),
    ],
)
def test_other_ids_carry_no_time(text: str) -> None:
    assert time_of_uuid7(text) is None


def test_footprints_of_independent_commands_do_not_meet(ready: Bench) -> None:
    state = ready.state
    one = ddl.footprint(state, replace(CREATE, name="a"), "r1")
    other = ddl.footprint(state, replace(CREATE, name="b"), "r2")
    assert not one & other
    assert ddl.footprint(state, DropIndex(index_id=ready.index().id)) & ddl.footprint(state, CREATE)


def test_the_footprint_of_a_rename_has_both_names(ready: Bench) -> None:
    """Who creates an index under the new one is decided before it or after it, not beside it."""
    rename = AlterIndex(bucket="travel", name="by_city", new_name="other")
    for name in ("by_city", "other"):
        assert ddl.footprint(ready.state, rename) & ddl.footprint(
            ready.state, replace(CREATE, name=name)
        ), name


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_drop_under_another_cas_is_refused(ready: Bench, offset: int) -> None:
    index = ready.index()
    cas = ready.state.cas_of(index.key)
    by = {"by id": DropIndex(index_id=index.id), "by name": DropIndex(0, "travel", "by_city")}
    for command in by.values():
        decision = ready.decide(command, expected_cas=cas + offset)
        assert isinstance(decision, Unchanged)
        assert decision.outcome.code == "cas_mismatch"
        assert decision.outcome.details == {"expected": cas + offset, "actual": cas}
    assert isinstance(ready.decide(by["by id"], expected_cas=cas), Accepted)


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_build_under_another_cas_is_refused(ready: Bench, offset: int) -> None:
    index = ready.index()
    cas = ready.state.cas_of(index.key)
    command = BuildIndexes((index.id,))
    assert ready.refusal(command, expected_cas=cas + offset) == "cas_mismatch"
    assert isinstance(ready.decide(command, expected_cas=cas), Accepted)


def test_a_creation_that_expects_an_older_one_is_refused(ready: Bench) -> None:
    cas = ready.state.cas_of(ready.index().key)
    assert ready.refusal(CREATE, expected_cas=cas + 1) == "cas_mismatch"
    assert ready.refusal(replace(CREATE, name="other"), expected_cas=7) == "cas_mismatch"
    assert isinstance(ready.decide(replace(CREATE, name="other"), expected_cas=0), Accepted)

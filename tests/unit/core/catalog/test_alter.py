"""What an ALTER yields against a committed state: at once, or by a second index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog.alter import IN_PLACE, NOTHING, REBUILD
from coordinator.core.catalog.decisions import Accepted, Parked, Unchanged
from coordinator.core.catalog.placement import Candidate
from coordinator.core.model.commands import (
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DropIndex,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    MarkRouted,
    Outcome,
    PutSetting,
    ReleaseCopies,
    Transact,
    UndoIndex,
)
from coordinator.core.model.entities import Index, Shard, Slice
from tests.support.catalog_bench import CREATE, Bench

REPLICATED = replace(CREATE, slices=2, replicas=1)


def alter(bench: Bench, **fields: Any) -> AlterIndex:
    return AlterIndex(index_id=named(bench).id, **fields)


def named(bench: Bench, name: str = "by_city") -> Index:
    held = bench.state.index_named("travel", name)
    assert held is not None
    assert isinstance(held.entity, Index)
    return held.entity


def by_id(bench: Bench, index_id: int) -> Index:
    held = bench.state.index_by_id(index_id)
    assert held is not None
    assert isinstance(held.entity, Index)
    return held.entity


def second(bench: Bench) -> Index:
    (index_id,) = bench.state.replacements.values()
    return by_id(bench, index_id)


def make_ready(bench: Bench, index: Index) -> Accepted:
    return bench.apply(MarkReady(index.id, tuple(Shard(host, 7) for host in sorted(index.hosts))))


def build(bench: Bench, index_id: int) -> Accepted:
    """Build an index to its end."""
    bench.apply(BuildIndexes((index_id,)))
    number = by_id(bench, index_id).build
    bench.apply(MarkRouted(index_id, number))
    return bench.apply(MarkBuilt(index_id, number))


@pytest.fixture
def built(ready: Bench) -> Bench:
    """One index takes scans."""
    build(ready, named(ready).id)
    return ready


@pytest.fixture
def replicated(bench: Bench) -> Bench:
    """One index of two slices with a replica each is ready."""
    bench.apply(REPLICATED)
    make_ready(bench, bench.index())
    return bench


# -- at once ----------------------------------------------------------------------------------


def test_another_name_is_a_change_of_the_index_itself(built: Bench) -> None:
    before = named(built)
    decision = built.apply(alter(built, new_name="by_town"))
    assert [c.event for c in decision.changes] == ["IndexAltered"]
    assert named(built, "by_town") == replace(before, name="by_town")
    assert built.state.index_named("travel", "by_city") is None


def test_fewer_replicas_leave_with_their_storage_and_the_last_ones_first(
    replicated: Bench,
) -> None:
    before = named(replicated)
    decision = replicated.apply(alter(replicated, replicas=0))
    assert [c.event for c in decision.changes] == ["IndexAltered"]
    after = named(replicated)
    assert after.slices == tuple(Slice(s.number, s.master, (), s.replicas) for s in before.slices)
    assert after.state == before.state
    replicated.apply(ReleaseCopies(after.id))
    assert named(replicated).slices == tuple(Slice(s.number, s.master) for s in before.slices)
    assert dict(replicated.state.load) == {1: 2}


def test_fewer_replicas_may_be_asked_for_again_while_others_leave(bench: Bench) -> None:
    bench.indexers = [Candidate(number, "") for number in (1, 2, 3)]
    bench.apply(replace(CREATE, replicas=2))
    make_ready(bench, bench.index())
    for replicas in (1, 0):
        decision = bench.apply(alter(bench, replicas=replicas))
        assert [c.event for c in decision.changes] == ["IndexAltered"]
    (piece,) = named(bench).slices
    assert (len(piece.serving), len(piece.leaving)) == (1, 2)


def test_an_indexer_that_holds_nothing_any_more_has_no_shard(bench: Bench) -> None:
    bench.apply(replace(CREATE, replicas=1))
    make_ready(bench, bench.index())
    bench.apply(alter(bench, replicas=0))
    bench.apply(ReleaseCopies(named(bench).id))
    (piece,) = named(bench).slices
    assert named(bench).shards == (Shard(piece.master, 7),)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"new_name": "by_city"},
        {"expressions": ("city",), "slices": 1, "replicas": 0, "partitioning": "hash"},
        {"drops_where": True},
        {"nodes": ()},
        {"nodes": (1,)},
        {"bounds_json": "[ ]"},
    ],
    ids=repr,
)
def test_what_is_so_already_changes_nothing(ready: Bench, fields: dict[str, Any]) -> None:
    decision = ready.decide(alter(ready, **fields))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.status == "ok"
    assert decision.outcome.answer["index"]["id"] == str(named(ready).id)
    assert decision.outcome.cas == ready.state.cas_of(named(ready).key)


INVALID: list[dict[str, Any]] = [
    {"new_name": ""},
    {"new_name": "1st"},
    {"expressions": ()},
    {"expressions": ("x",) * 33},
    {"where": ""},
    {"slices": 0},
    {"slices": 257},
    {"replicas": -1},
    {"replicas": 17},
    {"partitioning": "list"},
    {"partitioning": "range"},
    {"bounds_json": '[["F"]]'},
    {"partitioning": "range", "bounds_json": "[["},
    {"partitioning": "range", "bounds_json": '[["F"]]', "slices": 3},
]


@pytest.mark.parametrize("fields", INVALID, ids=repr)
def test_what_makes_no_sense_is_refused(ready: Bench, fields: dict[str, Any]) -> None:
    assert ready.refusal(alter(ready, **fields)) == "invalid_request"


def test_a_primary_index_gets_no_keys(bench: Bench) -> None:
    bench.apply(replace(CREATE, expressions=(), primary=True))
    make_ready(bench, bench.index())
    assert bench.refusal(alter(bench, expressions=("x",))) == "invalid_request"


def test_an_index_that_is_not_there_cannot_be_altered(ready: Bench) -> None:
    assert ready.refusal(AlterIndex(index_id=9, new_name="x")) == "index_not_found"
    assert ready.refusal(AlterIndex(bucket="travel", name="x")) == "index_not_found"
    index_id = named(ready).id
    ready.apply(DropIndex(index_id))
    assert ready.refusal(AlterIndex(index_id=index_id, new_name="x")) == "index_not_found"


def test_an_index_is_found_by_its_name_too(ready: Bench) -> None:
    ready.apply(AlterIndex(bucket="travel", name="by_city", new_name="by_town"))
    assert named(ready, "by_town")


def test_an_alter_waits_while_its_index_is_created(bench: Bench) -> None:
    bench.apply(CREATE)
    index_id = bench.index().id
    assert bench.decide(AlterIndex(index_id=index_id, new_name="x")) == Parked(index_id)


def test_a_name_that_another_index_has_is_refused(ready: Bench) -> None:
    ready.apply(replace(CREATE, name="other"))
    other = named(ready, "other")
    command = alter(ready, new_name="other")
    assert ready.decide(command) == Parked(other.id), "that may yet be undone"
    make_ready(ready, other)
    assert ready.refusal(command) == "index_exists"
    ready.apply(DropIndex(other.id))
    assert isinstance(ready.decide(command), Accepted)


def test_an_index_is_altered_only_at_the_expected_cas(ready: Bench) -> None:
    cas = ready.state.cas_of(named(ready).key)
    command = alter(ready, new_name="x")
    assert ready.refusal(command, expected_cas=cas - 1) == "cas_mismatch"
    assert isinstance(ready.decide(command, expected_cas=cas), Accepted)


def test_a_repeat_of_a_rename_gets_the_first_answer(ready: Bench) -> None:
    terms = {"id": "r", "fingerprint": 5, "recorded": True}
    command = alter(ready, new_name="x")
    ready.apply(command, **terms)
    cas = ready.state.cas
    ready.apply(alter_named(ready, "x", new_name="y"))
    decision = ready.decide(command, **terms)
    assert isinstance(decision, Unchanged)
    assert (decision.outcome.cas, decision.outcome.answer["index"]["name"]) == (cas, "y")
    assert ready.refusal(command, **(terms | {"fingerprint": 6})) == "request_mismatch"


def alter_named(bench: Bench, name: str, **fields: Any) -> AlterIndex:
    return AlterIndex(bucket="travel", name=name, **fields)


# -- how -----------------------------------------------------------------------------------------

HOW: list[tuple[dict[str, Any], str]] = [
    ({}, NOTHING),
    ({"new_name": "x"}, IN_PLACE),
    ({"replicas": 0}, IN_PLACE),
    ({"replicas": 0, "new_name": "x"}, IN_PLACE),
    ({"replicas": 1}, NOTHING),
    ({"nodes": (1, 2)}, NOTHING),
    ({"expressions": ("town",)}, REBUILD),
    ({"expressions": ("city", "country"), "new_name": "x"}, REBUILD),
    ({"where": "TRUE"}, REBUILD),
    ({"slices": 3}, REBUILD),
    ({"slices": 1, "replicas": 0}, REBUILD),
    ({"nodes": (2,), "replicas": 0}, REBUILD),
    ({"partitioning": "range", "bounds_json": '[["F"]]'}, REBUILD),
]


@pytest.mark.parametrize(("fields", "change"), HOW, ids=repr)
def test_a_dry_run_says_how_and_changes_nothing(
    replicated: Bench, fields: dict[str, Any], change: str
) -> None:
    decision = replicated.decide(alter(replicated, dry_run=True, **fields))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.answer["change"] == change
    for_real = replicated.decide(alter(replicated, **fields))
    assert isinstance(for_real, Accepted) == (change != NOTHING)
    if isinstance(for_real, Accepted):
        assert bool(for_real.waits_for) == (change == REBUILD)


def test_an_index_that_lies_elsewhere_as_well_is_rebuilt_where_it_is_to_lie(bench: Bench) -> None:
    bench.apply(replace(CREATE, slices=2))
    make_ready(bench, bench.index())
    assert bench.index().hosts == {1, 2}
    bench.apply(alter(bench, nodes=(1,)))
    assert second(bench).hosts == {1}


def test_an_index_that_is_hashed_again_has_no_bounds(bench: Bench) -> None:
    bench.apply(replace(CREATE, partitioning="range", bounds_json='[["F"]]', slices=2))
    make_ready(bench, bench.index())
    bench.apply(alter(bench, partitioning="hash"))
    after = second(bench)
    assert (after.partitioning, after.bounds_json, len(after.slices)) == ("hash", "[]", 2)


def test_new_bounds_say_how_many_slices_there_are(bench: Bench) -> None:
    bench.apply(replace(CREATE, partitioning="range", bounds_json='[["F"]]', slices=2))
    make_ready(bench, bench.index())
    bench.apply(alter(bench, bounds_json='[["F"],["M"]]'))
    assert len(second(bench).slices) == 3


def test_each_partition_keeps_as_many_slices_as_it_had(bench: Bench) -> None:
    bench.apply(replace(CREATE, partitioning="range", bounds_json='[["F"]]', slices=4))
    make_ready(bench, bench.index())
    assert bench.refusal(alter(bench, slices=5)) == "invalid_request"
    assert bench.refusal(alter(bench, bounds_json="[")) == "invalid_request"
    bench.apply(alter(bench, bounds_json='[["F"],["M"]]'))
    assert len(second(bench).slices) == 6


def test_a_dry_run_shows_the_index_as_it_would_be(replicated: Bench) -> None:
    decision = replicated.decide(alter(replicated, dry_run=True, new_name="x", where="TRUE"))
    assert isinstance(decision, Unchanged)
    shown = decision.outcome.answer["index"]
    assert (shown["name"], shown["where"], shown["expressions"]) == ("x", "TRUE", ["city"])


def test_more_replicas_than_indexers_are_refused(ready: Bench) -> None:
    assert ready.refusal(alter(ready, replicas=2)) == "placement_impossible"
    assert ready.refusal(alter(ready, nodes=(9,))) == "placement_impossible"


# -- by a second index -----------------------------------------------------------------------------


def test_a_second_index_holds_no_name_and_leaves_the_first_as_it_is(built: Bench) -> None:
    first = named(built)
    decision = built.apply(alter(built, expressions=("town",)))
    assert [c.event for c in decision.changes] == ["IndexProposed"]
    assert decision.waits_for == (second(built).id,)
    assert named(built) == first
    assert (second(built).state, second(built).replaces) == ("init", first.id)
    assert second(built).expressions == ("town",)
    assert second(built).slices == first.slices, "it stays where it is"


def test_a_second_index_begins_with_nothing_of_what_the_first_has_become(
    replicated: Bench,
) -> None:
    """Where the first has its shards and its build, the second has none yet."""
    build(replicated, named(replicated).id)
    assert named(replicated).build
    assert named(replicated).shards
    replicated.apply(alter(replicated, expressions=("town",)))
    new = second(replicated)
    assert (new.build, new.shards, new.reason) == (0, (), None)


def test_a_second_index_is_placed_anew_where_an_indexer_of_the_first_is_gone(
    built: Bench,
) -> None:
    (host,) = named(built).hosts
    built.indexers = [Candidate(3 - host, "")]
    built.apply(alter(built, expressions=("town",)))
    assert second(built).hosts == {3 - host}


@pytest.mark.parametrize("loaded", [1, 2])
def test_a_second_index_is_placed_with_regard_to_what_is_under_way(
    built: Bench, loaded: int
) -> None:
    """Other commands of the group have been given their places, and are not in the state yet."""
    built.extra_load = {loaded: 100}
    built.apply(alter(built, nodes=(1, 2), expressions=("town",)))
    assert second(built).hosts == {3 - loaded}


def test_a_second_index_is_built_before_it_takes_the_place_of_a_built_one(built: Bench) -> None:
    first = named(built)
    built.apply(alter(built, expressions=("town",), new_name="by_town"))
    new = second(built)
    make_ready(built, new)
    assert named(built) == first
    decision = build(built, new.id)
    assert [c.event for c in decision.changes] == ["IndexBuilt", "IndexReplaced"]
    assert named(built, "by_town").id == new.id
    assert built.state.index_named("travel", "by_city") is None
    assert (by_id(built, first.id).state, named(built, "by_town").replaces) == ("dropping", 0)
    assert not built.state.replacements
    assert not built.state.claims


def test_at_each_cas_of_the_switch_one_index_has_the_name(built: Bench) -> None:
    """The one that takes the name comes before the one that gives it up."""
    first = named(built)
    built.apply(alter(built, expressions=("town",)))
    new = second(built)
    make_ready(built, new)
    decision = build(built, new.id)
    assert [c.key for c in decision.changes] == [new.key, first.key]


def test_where_nothing_is_built_the_second_takes_the_place_when_it_is_ready(ready: Bench) -> None:
    first = named(ready)
    ready.apply(alter(ready, expressions=("town",)))
    new = second(ready)
    decision = make_ready(ready, new)
    assert [c.event for c in decision.changes] == ["IndexReady", "IndexReplaced"]
    assert named(ready).id == new.id
    assert by_id(ready, first.id).state == "dropping"


def test_a_second_index_is_built_unasked_although_the_first_was_deferred(bench: Bench) -> None:
    bench.apply(replace(CREATE, defer_build=True))
    make_ready(bench, bench.index())
    build(bench, bench.index().id)
    bench.apply(alter(bench, where="TRUE"))
    make_ready(bench, second(bench))
    assert [index.id for index in bench.state.in_phase("ready")] == [second(bench).id]


def test_what_is_being_altered_is_not_altered_again(built: Bench) -> None:
    built.apply(alter(built, expressions=("town",)))
    assert built.refusal(alter(built, new_name="x")) == "index_altering"
    assert built.refusal(AlterIndex(index_id=second(built).id, new_name="x")) == "index_altering"


def test_the_name_that_a_second_index_is_to_have_is_nobody_elses(built: Bench) -> None:
    built.apply(alter(built, expressions=("town",), new_name="by_town"))
    assert built.refusal(replace(CREATE, name="by_town")) == "index_altering"
    assert built.refusal(replace(CREATE, name="by_town", if_not_exists=True)) == "index_altering"
    built.apply(replace(CREATE, name="other"))
    make_ready(built, named(built, "other"))
    assert built.refusal(alter_named(built, "other", new_name="by_town")) == "index_altering"
    assert built.refusal(CREATE) == "index_exists"
    built.apply(DropIndex(second(built).id))
    assert isinstance(built.decide(replace(CREATE, name="by_town")), Accepted)


TERMS: dict[str, Any] = {"id": "alter", "fingerprint": 5, "recorded": True}


def ended_as(bench: Bench, command: Command) -> Outcome:
    """Return what a repeat of an ALTER is told."""
    decision = bench.decide(command, **TERMS)
    assert isinstance(decision, Unchanged), decision
    return decision.outcome


def test_a_repeat_waits_for_the_switch_and_gets_its_answer(built: Bench) -> None:
    command = alter(built, expressions=("town",))
    built.apply(command, **TERMS)
    new = second(built)
    assert built.decide(command, **TERMS) == Parked(new.id)
    make_ready(built, new)
    assert built.decide(command, **TERMS) == Parked(new.id)
    build(built, new.id)
    outcome = ended_as(built, command)
    assert (outcome.status, outcome.cas) == ("ok", built.state.cas_of(new.key))
    assert outcome.answer["index"]["id"] == str(new.id)


def test_a_second_index_that_an_indexer_refuses_goes_alone(built: Bench) -> None:
    first, command = named(built), alter(built, expressions=("town",))
    built.apply(command, **TERMS)
    built.apply(UndoIndex(second(built).id, "no space"))
    assert named(built) == first
    assert not built.state.replacements
    assert ended_as(built, command).code == "indexer_refused"


def test_a_second_index_that_cannot_be_built_goes_alone(built: Bench) -> None:
    first, command = named(built), alter(built, expressions=("town",))
    built.apply(command, **TERMS)
    new = second(built)
    make_ready(built, new)
    built.apply(BuildIndexes((new.id,)))
    decision = built.apply(MarkFailed(new.id, second(built).build, "a bad expression"))
    assert [c.event for c in decision.changes] == ["IndexUndone"]
    assert named(built) == first
    assert (by_id(built, new.id).state, by_id(built, new.id).reason) == (
        "dropping",
        "a bad expression",
    )
    assert ended_as(built, command).code == "index_failed"


@pytest.mark.parametrize("is_first", [True, False], ids=["the first", "the second"])
def test_a_drop_of_either_ends_the_alter_even_in_init(built: Bench, is_first: bool) -> None:
    first, command = named(built), alter(built, expressions=("town",))
    built.apply(command, **TERMS)
    new = second(built)
    decision = built.apply(DropIndex(first.id if is_first else new.id))
    assert [one.index.id for one in decision.ends] == [new.id]
    assert by_id(built, new.id).state == "dropping"
    assert by_id(built, first.id).state == ("dropping" if is_first else "maintenance")
    assert ended_as(built, command).code == "alter_abandoned"


def test_a_transaction_that_drops_an_index_ends_its_alter(built: Bench) -> None:
    first, command = named(built), alter(built, expressions=("town",))
    built.apply(command, **TERMS)
    drop = Transact(then=(PutSetting("k", "1"), DropIndex(first.id)))
    decision = built.apply(drop)
    assert len(decision.changes) == 3
    assert len(decision.ends) == 1
    assert ended_as(built, command).code == "alter_abandoned"


def test_a_transaction_does_not_create_under_a_promised_name(built: Bench) -> None:
    built.apply(alter(built, expressions=("town",), new_name="by_town"))
    create = CreateIndex(name="by_town", bucket="travel", expressions=("x",))
    assert built.refusal(Transact(then=(create,))) == "index_altering"


def test_a_transaction_renames_and_leaves_a_rebuild_to_an_alter(ready: Bench) -> None:
    rename = AlterIndex(bucket="travel", name="by_city", new_name="by_town")
    decision = ready.apply(Transact(then=(PutSetting("k", "1"), rename)))
    assert [c.event for c in decision.changes] == ["SettingWritten", "IndexAltered"]
    rebuild = AlterIndex(bucket="travel", name="by_town", where="TRUE")
    assert ready.refusal(Transact(then=(rebuild,))) == "invalid_request"

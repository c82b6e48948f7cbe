"""What a client's transaction yields: all changes of one branch, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog.decisions import (
    Accepted,
    Parked,
    Unchanged,
    describe_index,
    in_short,
)
from coordinator.core.catalog.state import evolve
from coordinator.core.catalog.transactions import COMPARISONS_MAX, OPERATIONS_MAX, REASON_LENGTH_MAX
from coordinator.core.model.commands import (
    AlterIndex,
    Comparison,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    MarkReady,
    Operation,
    PutSetting,
    Transact,
    UndoIndex,
    weight,
)
from coordinator.core.model.commands import Request as AnyRequest
from coordinator.core.model.entities import READY, Shard, Slice
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import CAS_MAX, Cas
from tests.simulation.meter import CALLS_PER_MS, STEP_MS_MAX, metered
from tests.support.catalog_bench import CREATE, Bench
from tests.support.indexes import make_index

OTHER = replace(CREATE, name="by_name")
PUT = PutSetting("a", "1")


def at(key: str, cas: int) -> Comparison:
    return Comparison(key=key, cas=Cas(cas))


def then(*operations: Operation, compare: tuple[Comparison, ...] = ()) -> Transact:
    return Transact(compare=compare, then=operations)


def outcome(bench: Bench, command: Transact, **terms: Any) -> Any:
    decision = bench.decide(command, **terms)
    assert isinstance(decision, Unchanged), decision
    return decision.outcome


def test_all_changes_of_a_branch_come_in_their_order(bench: Bench) -> None:
    decision = bench.apply(then(PUT, CREATE, PutSetting("b", "2")))
    assert [c.event for c in decision.changes] == [
        *("SettingWritten", "IndexProposed", "BucketCreated", "SettingWritten")
    ]
    assert decision.subject == 3
    assert [result["change"] for result in decision.answer["results"]] == [0, 1, 3]
    assert decision.waits_for == (bench.index().id,)


@pytest.mark.parametrize(("cas", "written"), [(0, "else"), (1, "then"), (2, "else")])
def test_what_the_comparisons_find_chooses_the_branch(bench: Bench, cas: int, written: str) -> None:
    bench.apply(PUT)
    put = {name: PutSetting(name, "1") for name in ("then", "else")}
    command = Transact(
        compare=(at("config/a", cas),), then=(put["then"],), otherwise=(put["else"],)
    )
    decision = bench.apply(command)
    assert [change.key for change in decision.changes] == [f"config/{written}"]
    assert decision.answer["succeeded"] is (written == "then")
    assert decision.answer["compared"] == [{"key": "config/a", "cas": 1}]


def test_all_comparisons_have_to_hold(bench: Bench) -> None:
    bench.apply(PUT)
    command = then(PUT, compare=(at("config/a", 1), at("config/b", 1)))
    found = outcome(bench, command)
    assert found.status == "ok"
    assert found.answer["succeeded"] is False
    assert [c["cas"] for c in found.answer["compared"]] == [1, 0]
    assert found.answer["results"] == []


def test_an_index_is_compared_by_its_name(ready: Bench) -> None:
    named = Comparison(bucket="travel", name="by_city", cas=ready.state.cas)
    assert ready.decide(then(PUT, compare=(named,))).answer["succeeded"]  # type: ignore[union-attr]
    gone = outcome(ready, then(PUT, compare=(replace(named, name="x"),)))
    assert gone.answer["compared"] == [{"bucket": "travel", "name": "x", "key": "", "cas": 0}]


def test_one_refusal_refuses_all_and_says_which(ready: Bench) -> None:
    found = outcome(ready, then(PUT, CREATE))
    assert (found.status, found.code) == ("refused", "index_exists")
    assert found.details["operation"] == 1
    assert found.details["id"] == str(ready.index().id)
    assert found.message.startswith("operation 1: ")


def test_a_name_is_dropped_and_given_to_another_in_one_transaction(ready: Bench) -> None:
    old = ready.index().id
    decision = ready.apply(then(DropIndex(old), replace(CREATE, expressions=("name",))))
    assert [change.event for change in decision.changes] == ["IndexDropped", "IndexProposed"]
    held = ready.state.index_named("travel", "by_city")
    assert held is not None
    assert held.entity.key == decision.changes[1].key != f"index/{old}"


def test_an_index_is_renamed_in_the_transaction_that_drops_the_one_of_that_name(
    ready: Bench,
) -> None:
    old = ready.index().id
    ready.apply(OTHER)
    held = ready.state.index_named("travel", "by_name")
    assert held is not None
    new = int(held.entity.key.removeprefix("index/"))
    ready.apply(MarkReady(new))
    rename = AlterIndex(bucket="travel", name="by_name", new_name="by_city")
    decision = ready.apply(then(DropIndex(old), rename, PUT))
    assert [change.event for change in decision.changes] == [
        *("IndexDropped", "IndexAltered", "SettingWritten")
    ]
    assert decision.answer["results"][1] == {"key": f"index/{new}", "change": 1}
    assert decision.waits_for == ()
    held = ready.state.index_named("travel", "by_city")
    assert held is not None
    assert held.entity.key == f"index/{new}"


def test_an_alter_that_is_refused_refuses_all(ready: Bench) -> None:
    gone = outcome(ready, then(PUT, AlterIndex(bucket="travel", name="x", new_name="y")))
    assert (gone.code, gone.details) == ("index_not_found", {"operation": 1})
    index = ready.index().id
    rebuilt = outcome(ready, then(PUT, AlterIndex(index_id=index, expressions=("y",))))
    assert (rebuilt.code, rebuilt.details) == ("invalid_request", {"operation": 1})
    assert "alter it by itself" in rebuilt.message
    same = outcome(ready, then(AlterIndex(index_id=index, new_name="by_city")))
    assert same.answer["results"] == [{"key": f"index/{index}", "cas": ready.state.cas}]


def test_indexes_of_one_transaction_have_ids_of_their_own_and_share_the_load(
    bench: Bench,
) -> None:
    decision = bench.apply(then(CREATE, OTHER, PUT))
    assert len(set(decision.waits_for)) == 2
    hosts = [index.slices[0].master for index, _ in bench.state.indexes()]
    assert sorted(hosts) == [1, 2]


@pytest.mark.parametrize(
    "operations",
    [
        (PUT, PutSetting("a", "2")),
        (CREATE, DropIndex(0, "travel", "by_city")),
        (CREATE, CREATE),
        (CREATE, replace(CREATE, if_not_exists=True)),
        (CREATE, AlterIndex(bucket="travel", name="by_city", new_name="x")),
    ],
)
def test_no_entity_is_changed_twice(bench: Bench, operations: tuple[Operation, ...]) -> None:
    bench.apply(PutSetting("b", "0"))
    found = outcome(bench, then(PutSetting("b", "1"), *operations))
    assert found.code == "invalid_request"
    assert found.details == {"operation": 2}


def test_what_is_there_already_or_gone_already_changes_nothing(ready: Bench) -> None:
    there, cas = replace(CREATE, if_not_exists=True), ready.state.cas
    gone = DropIndex(0, "travel", "x", if_exists=True)
    found = outcome(ready, then(there, gone))
    assert found.answer["results"] == [
        {"key": ready.index().key, "cas": cas},
        {"key": "", "cas": 0},
    ]
    decision = ready.decide(then(there, PUT))
    assert isinstance(decision, Accepted)
    assert decision.waits_for == ()


def test_a_transaction_waits_for_an_index_under_way(bench: Bench) -> None:
    bench.apply(CREATE)
    index = bench.index().id
    assert bench.decide(then(PUT, DropIndex(index))) == Parked(index)


@pytest.mark.parametrize(
    ("command", "terms"),
    [
        (then(*[PUT] * (OPERATIONS_MAX + 1)), {}),
        (then(PUT, compare=(at("config/a", 0),) * (COMPARISONS_MAX + 1)), {}),
        (then(PUT), {"expected_cas": 3}),
        (then(PUT, compare=(at("consumed/0", 0),)), {}),
        (then(PUT, compare=(at("config/" + "x" * 300, 0),)), {}),
        (then(PUT, compare=(at("config/a", -1),)), {}),
        (then(PUT, compare=(Comparison(cas=Cas(0)),)), {}),
        (then(PUT, compare=(Comparison(cas=Cas(0), bucket="b"),)), {}),
        (then(PUT, compare=(Comparison(cas=Cas(0), key="config/a", name="n"),)), {}),
        (then(PUT, compare=(at("index/x", 0),)), {}),
        (then(PUT, compare=(Comparison(cas=Cas(0), bucket="b", name="n" * 129),)), {}),
        (then(PUT, compare=(at("config/a", CAS_MAX + 1),)), {}),
        (then(PUT, compare=(at("config/" + "x" * 256, 0),) * 63), {}),
        (then(*(PutSetting(f"{n}/{'x' * 200}", "1") for n in range(82))), {}),
        (then(*(replace(CREATE, name=f"i{n}", slices=256) for n in range(17))), {}),
        (then(replace(CREATE, slices=256, replicas=16)), {}),
        (then(*(replace(CREATE, name=f"i{n}", bounds_json="x" * 9_000) for n in range(8))), {}),
        (Transact(then=(PUT,), otherwise=(replace(CREATE, slices=256, replicas=16),)), {}),
        (then(CREATE, replace(OTHER, bucket="another")), {}),
        (then(*(AlterIndex(index_id=n, bounds_json="x" * 9_000) for n in range(8))), {}),
        (then(AlterIndex(index_id=1, new_name="x", dry_run=True)), {}),
    ],
)
def test_what_is_no_transaction_is_refused(
    bench: Bench, command: Transact, terms: dict[str, Any]
) -> None:
    assert bench.refusal(command, **terms) == "invalid_request"


def test_a_repeat_gets_the_results_of_the_first_time(bench: Bench) -> None:
    command = Transact(
        compare=(at("config/a", 0),),
        then=(PUT, DeleteSetting("b")),
        otherwise=(PutSetting("late", "1"),),
    )
    bench.apply(PutSetting("b", "0"))
    bench.apply(command, id="r", recorded=True, fingerprint=7)
    bench.apply(PutSetting("a", "2"))
    found = outcome(bench, command, id="r", recorded=True, fingerprint=7)
    assert found.answer["succeeded"] is True
    assert found.answer["results"] == [
        {"key": "config/a", "cas": 2},
        {"key": "config/b", "cas": 3},
    ]
    assert (found.cas, found.txn) == (3, "1-2")


def test_a_repeat_waits_for_the_indexes_and_then_shows_them_as_they_are(bench: Bench) -> None:
    command = then(CREATE, OTHER, PUT)
    terms = {"id": "r", "recorded": True, "fingerprint": 7}
    first, second = bench.apply(command, **terms).waits_for
    assert bench.decide(command, **terms) == Parked(first)
    bench.apply(MarkReady(first))
    assert bench.decide(command, **terms) == Parked(second)
    bench.apply(UndoIndex(second, "the disk is full"))
    found = outcome(bench, command, **terms)
    made, undone, written = found.answer["results"]
    assert made["index"]["state"] == "ready"
    assert "error" not in made
    assert undone["error"] == {"code": "indexer_refused", "message": "the disk is full"}
    assert made["cas"] == bench.state.index_by_id(first).cas  # type: ignore[union-attr]
    assert "index" not in written
    assert found.cas == bench.state.cas


def test_so_much_is_remembered_of_why_an_index_was_undone(bench: Bench) -> None:
    command = then(CREATE, PUT)
    terms = {"id": "r", "recorded": True, "fingerprint": 7}
    (index,) = bench.apply(command, **terms).waits_for
    bench.apply(UndoIndex(index, "x" * 10_000))
    undone, _ = outcome(bench, command, **terms).answer["results"]
    assert undone["error"]["message"] == "x" * REASON_LENGTH_MAX


def test_an_index_of_a_transaction_leaves_the_outcome_of_the_transaction_alone(
    bench: Bench,
) -> None:
    """It ends as part of the request, not as the request."""
    terms = {"id": "r", "recorded": True, "fingerprint": 7}
    (index,) = bench.apply(then(CREATE, PUT), **terms).waits_for
    assert bench.apply(MarkReady(index)).record is None


def test_a_footprint_has_what_either_branch_or_a_comparison_rests_on(ready: Bench) -> None:
    command = Transact(
        compare=(at("config/c", 0), Comparison(bucket="travel", name="by_city", cas=Cas(1))),
        then=(PUT,),
        otherwise=(replace(OTHER, bucket="fresh"),),
    )
    assert ddl.footprint(ready.state, command, "r") == {
        "config/a",
        "config/c",
        ready.index().key,
        "name/travel/by_city",
        "name/fresh/by_name",
        "bucket/fresh",
        "request/r",
    }


def test_a_transaction_weighs_what_is_in_it() -> None:
    """So that the queue's bound counts it."""
    large = then(PutSetting("a", "1" * 1_000), CreateIndex(name="x", bucket="b"))
    assert weight(AnyRequest(command=large)) > 2_000


def test_what_is_remembered_of_the_largest_transaction_is_small(bench: Bench) -> None:
    """Every node keeps it for as long as a repeat may come, and it goes with the verdict."""
    compare = tuple(at(f"config/{n}/{'x' * 20}", 0) for n in range(COMPARISONS_MAX))
    puts = (PutSetting(f"{n}/{'y' * 20}", "1") for n in range(OPERATIONS_MAX))
    command = Transact(compare=compare, then=tuple(puts))
    decision = bench.apply(command, id="r", recorded=True, fingerprint=7)
    assert decision.record is not None
    assert len(decision.record.answer_json) < 48 * 1_024


def test_a_long_answer_in_short_has_its_indexes_without_definitions(bench: Bench) -> None:
    index = describe_index(replace(make_index(7), expressions=("x" * 1_000,)))
    short = in_short({"succeeded": True, "results": [{"key": "index/7", "cas": 1, "index": index}]})
    assert short["results"][0]["index"]["state"] == index["state"]
    assert "expressions" not in short["results"][0]["index"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda name: AlterIndex(bucket="b", name=name, new_name=f"{name}-new"),
        lambda name: DropIndex(0, "b", name),
    ],
    ids=["rename", "drop"],
)
def test_to_change_many_wide_indexes_costs_nothing_for_each_copy(
    bench: Bench, operation: Callable[[str], Operation]
) -> None:
    """Counted in calls: what an index is beside its name and its state stays as it is."""
    hosts = range(17)
    slices = tuple(Slice(n, n, tuple((n + k) % 17 for k in range(1, 17))) for n in range(16))
    shards = tuple(Shard(host, 1) for host in hosts)
    made = [
        make_index(n, bucket="b", name=f"i{n}", state=READY, slices=slices, shards=shards)
        for n in range(1, OPERATIONS_MAX + 1)
    ]
    written = ((Mutation("IndexReady", i.key, b"i", i), Cas(n)) for n, i in enumerate(made, 1))
    bench.state = evolve(bench.state, written)
    command = then(*(operation(index.name) for index in made))
    decision, calls = metered(lambda: bench.decide(command))
    assert isinstance(decision, Accepted)
    assert len(decision.changes) == OPERATIONS_MAX
    assert calls < STEP_MS_MAX // 2 * CALLS_PER_MS

"""Which steps a move of a copy takes, and what is held and shown of the index meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.codec import encode
from coordinator.core.catalog import rebalances
from coordinator.core.catalog.decisions import Unchanged
from coordinator.core.catalog.placement import Candidate
from coordinator.core.catalog.rebalances import (
    KNOWN_MAX,
    MOVES_MAX,
    describe_move,
    leaving_of,
)
from coordinator.core.catalog.state import evolve, recomputed_digest, restore
from coordinator.core.history.undo import plan_undo
from coordinator.core.model.commands import (
    AlterIndex,
    BeginRebalance,
    BuildIndexes,
    CancelRebalance,
    CreateIndex,
    DropIndex,
    DropPart,
    ForgetIndex,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    MarkRouted,
    MoveShards,
    PlannedMove,
    ReleaseCopies,
    StepMove,
    UndoIndex,
)
from coordinator.core.model.entities import (
    MAINTENANCE,
    MOVE_CANCELLED,
    MOVE_CATCHUP,
    MOVE_DONE,
    MOVE_FAILED,
    MOVE_PENDING,
    MOVE_START,
    MOVE_STATES,
    MOVES,
    NOWHERE,
    Index,
    Move,
    Origin,
    Rebalance,
    Shard,
    Slice,
)
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas
from tests.support.catalog_bench import CREATE, Bench


def by_id(bench: Bench, index_id: int) -> Index:
    held = bench.state.index_by_id(index_id)
    assert held is not None
    assert isinstance(held.entity, Index)
    return held.entity


def put(bench: Bench, index: Index) -> None:
    """Let an index be like this."""
    mutation = Mutation("EntityRewritten", index.key, encode(index), index)
    bench.state = evolve(bench.state, [(mutation, Cas(bench.state.cas + 1))])


def build(bench: Bench, named: int, part: int = 0) -> None:
    """Have an index, or a part of one, built to its end; or the part, by the name of the index."""
    index_id = part or named
    if by_id(bench, index_id).state == "init":
        hosts = sorted(by_id(bench, index_id).hosts)
        bench.apply(MarkReady(index_id, tuple(Shard(host, 7) for host in hosts)))
    bench.apply(BuildIndexes((named,)), key="build")
    number = by_id(bench, index_id).build
    bench.apply(MarkRouted(index_id, number))
    bench.apply(MarkBuilt(index_id, number))


@pytest.fixture
def built(bench: Bench) -> Bench:
    """An index of two slices with a replica each takes scans; a third indexer has nothing."""
    bench.apply(replace(CREATE, slices=2, replicas=1))
    build(bench, bench.index().id)
    bench.indexers = [Candidate(number, "") for number in (1, 2, 3)]
    return bench


def begin(bench: Bench, *moves: PlannedMove, drain: tuple[int, ...] = ()) -> Rebalance:
    bench.apply(BeginRebalance(moves, drain))
    return bench.state.rebalances()[0]


def planned(bench: Bench, number: int = 0, source: int = 1, target: int = 3) -> PlannedMove:
    return PlannedMove(bench.index().id, number, source, target, 10)


def the_move(bench: Bench, number: int = 0) -> Move:
    return bench.state.rebalances()[0].moves[number]


def step(bench: Bench, *states: str, number: int = 0) -> None:
    for state in states:
        bench.apply(StepMove(bench.state.rebalances()[0].id, number, state))


def changes_nothing(bench: Bench, to: str, number: int = 0) -> bool:
    decision = bench.decide(StepMove(bench.state.rebalances()[0].id, number, to))
    return isinstance(decision, Unchanged)


def hosts(bench: Bench, number: int = 0) -> set[int]:
    """Return who serves a slice, as clients see it."""
    return set(bench.state.whole(bench.index()).slices[number].serving)


def moved(bench: Bench, number: int = 0, source: int = 1, target: int = 3) -> int:
    """Move a copy from its beginning to its end; return the part that it is."""
    begin(bench, planned(bench, number, source, target))
    step(bench, MOVE_PENDING)
    part = the_move(bench).part
    build(bench, part)
    step(bench, MOVE_CATCHUP)
    for index_id in list(bench.state.leaving):
        bench.apply(ReleaseCopies(index_id))
        if by_id(bench, index_id).state == "dropping":
            bench.apply(ForgetIndex(index_id))
    step(bench, MOVE_DONE)
    return part


# -- the way of a copy ------------------------------------------------------------------------


def test_a_copy_moves_by_a_part_and_some_indexer_serves_it_at_each_moment(built: Bench) -> None:
    index = built.index()
    assert index.slices[0] == Slice(0, 1, (2,))
    begin(built, planned(built))
    assert hosts(built) == {1, 2}
    step(built, MOVE_PENDING)
    part = by_id(built, the_move(built).part)
    assert (part.part_of, part.state, part.hosts) == (index.id, "init", {3})
    assert [piece.serving for piece in part.slices] == [(3,), ()]
    assert hosts(built) == {1, 2}, "what is being built serves nobody"
    assert dict(built.state.names) == {("travel", "by_city"): index.id}
    build(built, part.id)
    assert hosts(built) == {1, 2, 3}
    step(built, MOVE_CATCHUP)
    assert hosts(built) == {2, 3}
    assert leaving_of(built.state, built.index(), 0) == {1}
    assert built.index().slices_on(1) == (0, 1), "what leaves is kept up to date"
    assert changes_nothing(built, MOVE_DONE)
    built.apply(ReleaseCopies(index.id))
    assert built.index().slices_on(1) == (1,)
    step(built, MOVE_DONE)
    assert hosts(built) == {2, 3}
    assert built.state.rebalances()[0].state == "done"
    assert not built.state.leaving


def test_a_part_names_who_has_its_slices(built: Bench) -> None:
    """The source, if it is alive, or another indexer; nobody, if one of the slices has none."""
    whole = built.index()
    assert [s.serving for s in whole.slices] == [(1, 2), (1, 2)]
    begin(built, planned(built), planned(built, 1, 2))
    step(built, MOVE_PENDING)
    part = by_id(built, the_move(built).part)
    assert part.origins == (
        Origin(0, 1, whole.id, whole.shard_on(1), whole.build),
        Origin(1, 2, whole.id, whole.shard_on(2), whole.build),
    )


@pytest.mark.parametrize(("alive", "named"), [((1, 2, 3), 1), ((2, 3), 2), ((3,), None)])
def test_only_who_is_alive_is_named(built: Bench, alive: tuple[int, ...], named: int) -> None:
    begin(built, planned(built))
    built.indexers = [Candidate(number, "") for number in alive]
    step(built, MOVE_PENDING)
    part = by_id(built, the_move(built).part)
    assert [origin.indexer for origin in part.origins] == ([] if named is None else [named])


def test_one_more_copy_comes_from_any_other(built: Bench) -> None:
    begin(built, planned(built, source=NOWHERE))
    step(built, MOVE_PENDING)
    part = by_id(built, the_move(built).part)
    assert [origin.indexer for origin in part.origins] == [1]


def test_an_indexer_without_copies_of_an_index_has_no_shard_of_it(built: Bench) -> None:
    moved(built, 0)
    moved(built, 1, source=1)
    assert built.index().shards == (Shard(2, 7),)
    assert [piece.serving for piece in built.index().slices] == [(2,), (2,)]


def test_a_copy_that_has_moved_can_move_on_and_its_part_goes(built: Bench) -> None:
    first = moved(built)
    second = moved(built, 0, source=3, target=1)
    assert hosts(built) == {1, 2}
    assert built.state.index_by_id(first) is None
    assert [part.id for part in built.state.parts_of(built.index().id)] == [second]


def test_all_copies_may_move_away_and_the_index_stays(bench: Bench) -> None:
    bench.apply(CREATE)
    build(bench, bench.index().id)
    moved(bench, 0, source=1, target=2)
    assert bench.index().slices == (Slice(0, NOWHERE),)
    assert (bench.index().hosts, bench.index().shards) == (frozenset(), ())
    assert hosts(bench) == {2}
    assert dict(bench.state.load) == {2: 1}


def test_an_index_is_not_built_anew_for_a_copy_that_leaves(built: Bench) -> None:
    index_id = built.index().id
    begin(built, planned(built, 1, 2))
    step(built, MOVE_PENDING)
    build(built, the_move(built).part)
    step(built, MOVE_CATCHUP)
    begun = by_id(built, index_id).build
    built.apply(MoveShards(index_id, (Shard(2, 9),)))
    assert by_id(built, index_id).build > begun, "another slice is on that indexer, too"
    slices = tuple(piece.on((1,), (2,)) for piece in by_id(built, index_id).slices)
    put(built, replace(by_id(built, index_id), slices=slices, state=MAINTENANCE))
    built.apply(MoveShards(index_id, (Shard(2, 10),)))
    assert by_id(built, index_id).state == MAINTENANCE


def test_another_copy_can_be_made(built: Bench) -> None:
    begin(built, planned(built, 0, source=NOWHERE))
    step(built, MOVE_PENDING)
    build(built, the_move(built).part)
    step(built, MOVE_CATCHUP, MOVE_DONE)
    assert hosts(built) == {1, 2, 3}


def test_a_copy_of_an_index_that_is_not_built_moves_at_once(ready: Bench) -> None:
    begin(ready, planned(ready, target=2))
    assert changes_nothing(ready, MOVE_PENDING)
    step(ready, MOVE_DONE)
    assert ready.index().slices == (Slice(0, 2),)
    assert (ready.index().state, ready.index().shards) == ("ready", ())
    assert not ready.state.parts


@pytest.mark.parametrize("state", MOVE_STATES)
def test_a_step_that_does_not_follow_changes_nothing(built: Bench, state: str) -> None:
    """The part is built, and nothing has left: all that could forbid a step is the move's state."""
    begin(built, planned(built))
    way = {
        MOVE_START: (),
        MOVE_PENDING: (MOVE_PENDING,),
        MOVE_CATCHUP: (MOVE_PENDING, MOVE_CATCHUP),
        MOVE_DONE: (MOVE_PENDING, MOVE_CATCHUP, MOVE_DONE),
        MOVE_FAILED: (MOVE_FAILED,),
        MOVE_CANCELLED: (MOVE_CANCELLED,),
    }[state]
    for to in way:
        step(built, to)
        if to == MOVE_PENDING:
            build(built, the_move(built).part)
        if to == MOVE_CATCHUP:
            built.apply(ReleaseCopies(built.index().id))
    for to in set(MOVE_STATES) - MOVES[state]:
        assert changes_nothing(built, to), to


def test_a_part_that_is_not_built_takes_nothing_over(built: Bench) -> None:
    begin(built, planned(built))
    step(built, MOVE_PENDING)
    assert changes_nothing(built, MOVE_CATCHUP)
    part = the_move(built).part
    built.apply(MarkReady(part, (Shard(3, 7),)))
    assert changes_nothing(built, MOVE_CATCHUP)


@pytest.mark.parametrize("to", [MOVE_FAILED, MOVE_CANCELLED])
def test_a_move_that_is_given_up_leaves_everything_as_it_was(built: Bench, to: str) -> None:
    before = built.index()
    begin(built, planned(built))
    step(built, MOVE_PENDING)
    part = the_move(built).part
    step(built, to)
    assert by_id(built, part).state == "dropping"
    assert (built.index(), hosts(built)) == (before, {1, 2})
    assert built.state.rebalances()[0].is_over


def test_a_target_that_refuses_the_storage_ends_the_part_only(built: Bench) -> None:
    begin(built, planned(built))
    step(built, MOVE_PENDING)
    built.apply(UndoIndex(the_move(built).part, "indexer 3: the disk is full"))
    step(built, MOVE_FAILED)
    assert hosts(built) == {1, 2}


def test_a_part_that_is_built_anew_is_a_copy_still_and_can_move_on(built: Bench) -> None:
    """Its indexer may have lost the storage, and then be lost itself."""
    part = moved(built)
    built.apply(MoveShards(part, (Shard(3, 8),)))
    assert by_id(built, part).state == "pending"
    assert hosts(built) == {2, 3}
    second = built.apply(AlterIndex(index_id=built.index().id, where="size > 1"))
    after = second.changes[0].entity
    assert isinstance(after, Index)
    assert [len(piece.replicas) for piece in after.slices] == [1, 1]
    built.apply(UndoIndex(after.id, "no"))
    built.apply(ForgetIndex(after.id))
    moved(built, 0, 3, 1)
    assert hosts(built) == {1, 2}
    assert built.state.index_by_id(part) is None


def test_a_part_whose_build_has_failed_is_built_with_its_index(built: Bench) -> None:
    """Clients do not see it: they could not name it."""
    part = moved(built)
    built.apply(MoveShards(part, (Shard(3, 8),)))
    built.apply(MarkFailed(part, by_id(built, part).build, "other vbuckets"))
    build(built, built.index().id, part)
    assert by_id(built, part).state == MAINTENANCE
    assert built.index().state == MAINTENANCE


# -- asking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "what"),
    [
        pytest.param({"source": 3, "target": 1}, "has no slice", id="from who has none"),
        pytest.param({"target": 2}, "already", id="to who has one"),
        pytest.param({"target": 4}, "not alive", id="to who is not there"),
        pytest.param({"number": 2}, "no slice 2", id="a slice that there is not"),
        pytest.param({"number": -1}, "no slice -1", id="a slice before the first"),
    ],
)
def test_a_move_that_cannot_be_is_refused(built: Bench, move: dict[str, int], what: str) -> None:
    decision = built.decide(BeginRebalance((planned(built, **move),)))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.code == "rebalance_outdated"
    assert what in decision.outcome.message


def test_a_part_is_no_index_whose_copies_move(built: Bench) -> None:
    """A part of a part would answer no scan, and the copy that it takes over would be lost."""
    part = moved(built)
    decision = built.decide(BeginRebalance((PlannedMove(part, 0, 3, 1),)))
    assert isinstance(decision, Unchanged)
    assert decision.outcome.code == "rebalance_outdated"
    assert f"no index {part}" in decision.outcome.message


def test_a_copy_moves_once_in_a_rebalance(built: Bench) -> None:
    twice = BeginRebalance((planned(built), planned(built)))
    assert built.refusal(twice) == "invalid_request"
    built.indexers = [Candidate(number, "") for number in (1, 2, 3, 4)]
    other = BeginRebalance((planned(built), planned(built, target=4)))
    assert built.refusal(other) == "invalid_request"
    begin(built, planned(built), planned(built, source=2, target=4))


def test_one_rebalance_runs_at_a_time(built: Bench) -> None:
    first = begin(built, planned(built))
    assert built.refusal(BeginRebalance((planned(built, 1),))) == "rebalance_running"
    step(built, MOVE_FAILED)
    second = begin(built, planned(built, 1))
    assert second.id > first.id


def test_a_rebalance_of_nothing_is_over_at_once(built: Bench) -> None:
    assert begin(built).state == "done"


def test_a_rebalance_has_bounds(built: Bench) -> None:
    many = tuple(PlannedMove(built.index().id, n, 1, 3) for n in range(MOVES_MAX + 1))
    assert built.refusal(BeginRebalance(many)) == "value_too_large"
    assert built.refusal(BeginRebalance((), tuple(range(65)))) == "value_too_large"


def test_some_indexer_is_left_by_a_drain(built: Bench) -> None:
    assert built.refusal(BeginRebalance((), (1, 2, 3))) == "invalid_request"
    assert built.refusal(BeginRebalance((), (1, 2, 3, 9))) == "invalid_request"
    assert begin(built, drain=(1, 2)).drain == (1, 2)


def test_of_rebalances_that_are_over_the_last_ones_are_kept(built: Bench) -> None:
    first = begin(built)
    for _ in range(KNOWN_MAX - 1):
        begin(built)
    assert built.state.rebalance(first.id) is not None
    begin(built)
    assert len(built.state.rebalances()) == KNOWN_MAX
    assert built.state.rebalance(first.id) is None


def test_a_rebalance_is_cancelled_once_and_ends_when_its_moves_have(built: Bench) -> None:
    built.indexers.append(Candidate(4, ""))
    rebalance = begin(built, planned(built), planned(built, 1, target=4))
    step(built, MOVE_PENDING)
    built.apply(CancelRebalance(rebalance.id))
    assert isinstance(built.decide(CancelRebalance(rebalance.id)), Unchanged)
    step(built, MOVE_CANCELLED)
    assert built.state.rebalances()[0].state == "cancelling"
    step(built, MOVE_CANCELLED, number=1)
    assert built.state.rebalances()[0].state == "cancelled"
    assert built.refusal(CancelRebalance(7)) == "rebalance_not_found"


def test_a_repeat_of_a_request_begins_nothing(built: Bench) -> None:
    terms = {"id": "r1", "recorded": True, "fingerprint": 5}
    built.apply(BeginRebalance((planned(built),)), **terms)
    decision = built.decide(BeginRebalance((planned(built),)), **terms)
    assert isinstance(decision, Unchanged)
    rebalance = built.state.rebalances()[0]
    assert decision.outcome.answer == {"rebalance": {"id": str(rebalance.id), "state": "running"}}


# -- what else is asked of the index ----------------------------------------------------------


def test_a_part_has_no_name_and_clients_cannot_touch_it(built: Bench) -> None:
    part = moved(built)
    index = built.index()
    assert [one.id for one, _ in built.state.indexes()] == [index.id]
    assert dict(built.state.names) == {("travel", "by_city"): index.id}
    assert built.state.named_by_id(part) is None
    assert built.refusal(DropIndex(part)) == "index_not_found"
    assert built.refusal(BuildIndexes((part,))) == "index_not_found"
    assert built.refusal(AlterIndex(index_id=part, new_name="other")) == "index_not_found"


def test_parts_of_an_index_that_goes_are_dropped_after_it(built: Bench) -> None:
    part = moved(built)
    assert isinstance(built.decide(DropPart(part)), Unchanged), "its index is there"
    built.apply(DropIndex(built.index().id))
    built.apply(DropPart(part))
    assert by_id(built, part).state == "dropping"
    built.apply(ForgetIndex(built.index().id))
    built.apply(ForgetIndex(part))
    assert not built.state.parts
    assert not built.state.load


def test_an_index_with_parts_is_renamed_in_place_and_rebuilt_for_all_else(built: Bench) -> None:
    part = moved(built)
    index = built.index()
    built.apply(AlterIndex(index_id=index.id, new_name="by_town"))
    assert built.index().name == "by_town"
    assert [p.id for p in built.state.parts_of(index.id)] == [part]
    decision = built.apply(AlterIndex(index_id=index.id, replicas=0))
    (second,) = decision.waits_for
    build(built, second)
    assert by_id(built, index.id).state == "dropping"
    assert dict(built.state.names) == {("travel", "by_town"): second}
    built.apply(DropPart(part))


def test_an_index_that_is_rebuilt_stays_where_its_copies_are_now(built: Bench) -> None:
    moved(built)
    decision = built.apply(AlterIndex(index_id=built.index().id, expressions=("country",)))
    (second,) = decision.waits_for
    assert set(by_id(built, second).slices[0].hosts) == {2, 3}
    assert by_id(built, second).slices[1] == built.index().slices[1]


def test_an_answer_shows_where_the_copies_are_now(built: Bench) -> None:
    moved(built)
    decision = built.decide(replace(CREATE, if_not_exists=True))
    assert isinstance(decision, Unchanged)
    first = decision.outcome.answer["index"]["topology"]["slices"][0]
    assert {first["master"], *first["replicas"]} == {2, 3}


def test_an_index_takes_so_many_parts(built: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3
    monkeypatch.setattr(rebalances, "PARTS_MAX", most)
    index = built.index()
    built.indexers = [Candidate(number, "") for number in range(1, most + 5)]
    for target in range(3, most + 3):
        begin(built, planned(built, 0, NOWHERE, target))
        step(built, MOVE_PENDING)
        build(built, the_move(built).part)
        step(built, MOVE_CATCHUP, MOVE_DONE)
    assert len(built.state.parts_of(index.id)) == most
    begin(built, planned(built, 1, NOWHERE, most + 3))
    assert changes_nothing(built, MOVE_PENDING)


def test_a_state_from_a_store_knows_its_parts_and_what_leaves(built: Bench) -> None:
    moved(built)
    begin(built, planned(built, 1))
    step(built, MOVE_PENDING)
    build(built, the_move(built).part)
    step(built, MOVE_CATCHUP)
    state = built.state
    again = restore(state.cas, state.entities.items())
    assert (again.parts, again.leaving, again.load) == (state.parts, state.leaving, state.load)
    assert again.digest == state.digest == recomputed_digest(state)


def test_a_move_is_described_as_clients_see_it(built: Bench) -> None:
    begin(built, planned(built, 0, NOWHERE))
    assert describe_move(the_move(built)) == {
        "index": str(built.index().id),
        "slice": 0,
        "from": None,
        "to": "3",
        "bytes": 10,
        "state": MOVE_START,
        "part": None,
        "why": None,
        "reason": None,
    }
    assert by_id(built, built.index().id).state == MAINTENANCE


def test_an_undo_does_not_move_copies_back_and_makes_a_dropped_index_with_all_of_them(
    built: Bench,
) -> None:
    before = built.state
    moved(built, 0, source=2)
    moved(built, 1, source=built.index().slices[1].replicas[0])
    assert [len(piece.replicas) for piece in built.index().slices] == [0, 0]
    plan = plan_undo(before, built.state, ())
    assert (plan.steps, plan.kept) == ((), ())
    then = built.state
    built.apply(DropIndex(built.index().id))
    (step_back,) = plan_undo(then, built.state, ()).steps
    created = step_back.operation
    assert isinstance(created, CreateIndex)
    assert (created.slices, created.replicas) == (2, 1)

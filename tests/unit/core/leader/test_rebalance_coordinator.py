"""When a master takes which step of a move, and what it waits for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.codec import encode
from coordinator.core.catalog import rebalances
from coordinator.core.catalog.decisions import Unchanged
from coordinator.core.catalog.placement import Candidate
from coordinator.core.catalog.rebalance_settings import RebalanceSettings
from coordinator.core.catalog.rebalances import HOLDER_BYTES
from coordinator.core.catalog.state import evolve
from coordinator.core.leader.rebalance_coordinator import RebalanceCoordinator
from coordinator.core.model.commands import (
    BeginRebalance,
    BuildIndexes,
    CancelRebalance,
    Command,
    DropIndex,
    DropPart,
    ForgetIndex,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    MarkRouted,
    MoveRollback,
    MoveShards,
    PlannedMove,
    PutSetting,
    ReleaseCopies,
    StepMove,
    UndoIndex,
)
from coordinator.core.model.entities import PENDING, ROLLBACK_STATES, Index, Shard, Slice
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas, Instant
from tests.support.catalog_bench import CREATE, Bench

DRAIN_MS = 10_000
AT_ONCE = RebalanceSettings().parts


class Leading:
    """A master with a state: what its coordinator wants is decided at once."""

    def __init__(self, slices: int = 1) -> None:
        self.bench = Bench()
        self.bench.indexers = [Candidate(number, "") for number in (1, 2)]
        self.coordinator = RebalanceCoordinator()
        self.alive = {1, 2, 3}
        self.lost: set[int] = set()
        self.mono_ms = 1_000
        self.bench.apply(replace(CREATE, slices=slices))
        self.index_id = self.bench.index().id
        self.build(self.index_id)
        self.bench.indexers += [Candidate(number, "") for number in range(3, 3 + max(1, slices))]
        self.alive |= {candidate.id for candidate in self.bench.indexers}

    @property
    def view(self) -> Any:
        return SimpleNamespace(
            state=self.bench.state,
            now=Instant(mono_ms=self.mono_ms, wall_ms=1),
            config=SimpleNamespace(drain_ms=DRAIN_MS),
            peers=SimpleNamespace(
                indexer_alive=self.alive.__contains__, indexer_lost=self.lost.__contains__
            ),
        )

    def wants(self) -> list[Command]:
        """Return what the coordinator wants now."""
        return [want.command for want in self.coordinator.tick(self.view)]

    def go_on(self) -> list[Command]:
        """Decide what the coordinator wants now."""
        commands = self.wants()
        for command in commands:
            self.bench.apply(command)
        return commands

    def index(self, index_id: int) -> Index:
        held = self.bench.state.index_by_id(index_id)
        assert held is not None
        assert isinstance(held.entity, Index)
        return held.entity

    def put(self, index: Index) -> None:
        """Let an index be like this."""
        mutation = Mutation("EntityRewritten", index.key, encode(index), index)
        state = self.bench.state
        self.bench.state = evolve(state, [(mutation, Cas(state.cas + 1))])

    def build(self, index_id: int) -> None:
        hosts = sorted(self.index(index_id).hosts)
        self.bench.apply(MarkReady(index_id, tuple(Shard(host, 7) for host in hosts)))
        self.rebuild(index_id)

    def rebuild(self, index_id: int) -> None:
        self.bench.apply(BuildIndexes((index_id,)), key="build")
        number = self.index(index_id).build
        self.bench.apply(MarkRouted(index_id, number))
        self.bench.apply(MarkBuilt(index_id, number))

    def begin(self, slices: int = 1, *, apart: bool = False) -> None:
        """Let slices move to indexer 3; `apart`: each to another one."""
        pieces = self.index(self.index_id).slices
        moves = (
            PlannedMove(self.index_id, n, pieces[n].master, 3 + n * apart) for n in range(slices)
        )
        self.bench.apply(BeginRebalance(tuple(moves)))

    def release(self) -> ReleaseCopies:
        return ReleaseCopies(self.index_id, self.index(self.index_id).slices)

    @property
    def states(self) -> list[str]:
        return [move.state for move in self.bench.state.rebalances()[0].moves]

    @property
    def reason(self) -> str:
        return self.bench.state.rebalances()[0].moves[0].reason

    @property
    def part(self) -> int:
        return self.bench.state.rebalances()[0].moves[0].part


@pytest.fixture
def leading() -> Leading:
    return Leading()


def test_a_move_takes_its_steps_as_soon_as_each_can_be_taken(leading: Leading) -> None:
    leading.begin()
    leading.go_on()
    assert leading.states == ["pending"]
    assert leading.wants() == [], "the part is not built"
    leading.build(leading.part)
    leading.go_on()
    assert leading.states == ["catchup"]
    assert leading.wants() == [], "the source has scans"
    leading.mono_ms += DRAIN_MS - 1
    assert leading.wants() == []
    leading.mono_ms += 1
    release = leading.release()
    assert leading.go_on() == [release]
    leading.go_on()
    assert leading.states == ["done"]
    assert leading.wants() == []


def test_a_copy_that_began_to_leave_since_has_all_its_time() -> None:
    """A command may wait while another step of the same index is committed."""
    leading = Leading(slices=2)
    leading.begin(2, apart=True)
    leading.go_on()
    first, second = (move.part for move in leading.bench.state.rebalances()[0].moves)
    leading.build(first)
    leading.go_on()
    leading.wants()
    leading.mono_ms += DRAIN_MS
    (late,) = leading.wants()
    assert late == leading.release()
    leading.build(second)
    leading.bench.apply(StepMove(leading.bench.state.rebalances()[0].id, 1, "catchup"))
    before = leading.index(leading.index_id)
    assert isinstance(leading.bench.decide(late), Unchanged)
    assert [len(piece.leaving) for piece in before.slices] == [1, 1]
    assert leading.wants() == []
    leading.mono_ms += DRAIN_MS
    assert leading.wants() == [leading.release()]


def test_a_new_master_gives_scans_all_their_time_again(leading: Leading) -> None:
    leading.begin()
    leading.go_on()
    leading.build(leading.part)
    leading.go_on()
    leading.wants()
    leading.mono_ms += DRAIN_MS
    leading.coordinator = RebalanceCoordinator()
    assert leading.wants() == []
    leading.mono_ms += DRAIN_MS
    assert leading.wants() == [leading.release()]


def test_so_many_parts_are_built_at_once() -> None:
    leading = Leading(slices=AT_ONCE + 2)
    leading.begin(AT_ONCE + 2, apart=True)
    steps = [c for c in leading.wants() if isinstance(c, StepMove)]
    assert [step.move for step in steps] == list(range(AT_ONCE))
    leading.go_on()
    assert leading.wants() == []
    leading.build(leading.part)
    leading.go_on()
    leading.go_on()
    assert leading.states == ["catchup", *["pending"] * AT_ONCE, "start"]


def test_a_setting_says_how_many() -> None:
    leading = Leading(slices=3)
    leading.begin(3, apart=True)
    leading.bench.apply(PutSetting("rebalance", '{"parts": 2}'))
    assert len(leading.wants()) == 2


def test_a_bucket_whose_parts_are_never_built_holds_up_no_other() -> None:
    """Perhaps no projector streams it."""
    leading = Leading(slices=AT_ONCE)
    leading.bench.apply(replace(CREATE, name="by_code", bucket="codes"))
    (other,) = (one for one, _ in leading.bench.state.indexes() if one.bucket == "codes")
    leading.build(other.id)
    pieces = leading.index(leading.index_id).slices
    moves = [PlannedMove(leading.index_id, n, pieces[n].master, 3 + n) for n in range(AT_ONCE)]
    moves.append(PlannedMove(other.id, 0, other.slices[0].master, 4))
    leading.bench.apply(BeginRebalance(tuple(moves)))
    leading.go_on()
    assert leading.states == ["pending"] * (AT_ONCE + 1)
    parts = {move.part for move in leading.bench.state.rebalances()[0].moves}
    assert len(parts) == AT_ONCE + 1


def test_copies_of_an_index_that_move_to_one_indexer_are_one_part() -> None:
    leading = Leading(slices=3)
    leading.begin(3)
    assert len(leading.go_on()) == 1
    moves = leading.bench.state.rebalances()[0].moves
    assert {move.part for move in moves} == {leading.part}
    part = leading.index(leading.part)
    assert [piece.serving for piece in part.slices] == [(3,)] * 3
    leading.build(leading.part)
    assert len(leading.go_on()) == 1
    assert leading.states == ["catchup"] * 3
    assert [len(p.leaving) for p in leading.index(leading.index_id).slices] == [1, 1, 1]
    leading.wants()
    leading.mono_ms += DRAIN_MS
    leading.go_on()
    leading.go_on()
    assert leading.states == ["done"] * 3
    whole = leading.bench.state.whole(leading.index(leading.index_id))
    assert [piece.serving for piece in whole.slices] == [(3,)] * 3


def test_they_are_given_up_as_one() -> None:
    leading = Leading(slices=2)
    leading.begin(2)
    leading.go_on()
    leading.lost.add(3)
    leading.alive.discard(3)
    assert len(leading.go_on()) == 1
    assert leading.states == ["failed"] * 2
    assert leading.index(leading.part).state == "dropping"


def test_a_copy_that_lies_elsewhere_by_now_is_left_out_of_the_part() -> None:
    leading = Leading(slices=2)
    leading.begin(2)
    index = leading.index(leading.index_id)
    gone = 3 - index.slices[1].master
    leading.put(replace(index, slices=(index.slices[0], Slice(1, gone))))
    leading.go_on()
    assert leading.states == ["pending", "start"]
    assert [piece.serving for piece in leading.index(leading.part).slices] == [(3,), ()]
    leading.go_on()
    assert leading.states == ["pending", "failed"]


def test_no_more_copies_are_one_part_than_one_transaction_can_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each copy that leaves is held by an index with a whole definition."""
    leading = Leading(slices=4)
    apart = [PlannedMove(leading.index_id, n, 1 + n % 2, 3 + n) for n in range(4)]
    leading.bench.apply(BeginRebalance(tuple(apart)))
    leading.go_on()
    for move in leading.bench.state.rebalances()[0].moves:
        leading.build(move.part)
    for _ in range(3):
        leading.go_on()
        leading.wants()
        leading.mono_ms += DRAIN_MS
    leading.go_on()
    assert leading.states == ["done"] * 4
    held = leading.bench.state.index_by_id(leading.part)
    assert held is not None
    monkeypatch.setattr(rebalances, "PART_BYTES_MAX", 2 * (len(held.value) + HOLDER_BYTES) + 50)
    together = [PlannedMove(leading.index_id, n, 3 + n, 1) for n in range(4)]
    leading.bench.apply(BeginRebalance(tuple(together)))
    leading.go_on()
    assert leading.states == ["pending", "pending", "start", "start"]
    leading.go_on()
    assert leading.states == ["pending"] * 4
    parts = [move.part for move in leading.bench.state.rebalances()[0].moves]
    assert parts[0] == parts[1] != parts[2] == parts[3]


def test_an_index_that_is_being_built_is_waited_for(leading: Leading) -> None:
    leading.begin()
    master = leading.index(leading.index_id).slices[0].master
    leading.bench.apply(MoveShards(leading.index_id, (Shard(master, 9),)))
    assert leading.index(leading.index_id).state == "pending"
    assert leading.wants() == []
    again = leading.index(leading.index_id).build
    leading.bench.apply(MarkRouted(leading.index_id, again))
    leading.bench.apply(MarkBuilt(leading.index_id, again))
    leading.go_on()
    assert leading.states == ["pending"]


def test_what_a_lost_indexer_was_to_build_is_built_elsewhere() -> None:
    """Otherwise neither the build nor the rebalance would ever end."""
    leading = Leading(slices=2)
    gone, left = (piece.master for piece in leading.index(leading.index_id).slices)
    moves = (PlannedMove(leading.index_id, 1, left, 3), PlannedMove(leading.index_id, 0, gone, 3))
    leading.bench.apply(BeginRebalance(moves))
    leading.bench.apply(MoveShards(leading.index_id, (Shard(left, 9),)))
    build = leading.index(leading.index_id).build
    leading.alive.discard(gone)
    assert leading.wants() == [], "it may come back"
    leading.lost.add(gone)
    leading.go_on()
    assert leading.states == ["start", "done"]
    index = leading.index(leading.index_id)
    assert (index.hosts, index.state) == ({left, 3}, "pending")
    assert index.build > build
    leading.bench.apply(MarkRouted(index.id, index.build))
    leading.bench.apply(MarkBuilt(index.id, index.build))
    leading.go_on()
    assert leading.states == ["pending", "done"]


def test_a_build_that_waits_for_a_lost_indexer_is_not_waited_for() -> None:
    leading = Leading(slices=2)
    gone, left = (piece.master for piece in leading.index(leading.index_id).slices)
    leading.bench.apply(BeginRebalance((PlannedMove(leading.index_id, 1, left, 3),)))
    leading.bench.apply(MoveShards(leading.index_id, (Shard(left, 9),)))
    leading.lost.add(gone)
    leading.go_on()
    assert leading.states == ["failed"]
    assert f"indexer {gone} is lost" in leading.reason


def drain(leading: Leading) -> None:
    """The part takes over, and when its scans are over the copy at the source goes."""
    leading.go_on()
    leading.wants()
    leading.mono_ms += DRAIN_MS
    leading.go_on()
    leading.go_on()
    assert leading.states == ["done"]


def test_a_copy_in_a_part_of_an_index_that_cannot_be_built_is_not_moved() -> None:
    leading = Leading(slices=2)
    leading.begin()
    leading.go_on()
    leading.build(leading.part)
    drain(leading)
    master = leading.index(leading.index_id).slices[1].master
    leading.bench.apply(MoveShards(leading.index_id, (Shard(master, 9),)))
    build = leading.index(leading.index_id).build
    leading.bench.apply(MarkFailed(leading.index_id, build, "no such function"))
    leading.bench.apply(BeginRebalance((PlannedMove(leading.index_id, 0, 3, 1),)))
    leading.go_on()
    assert leading.states == ["failed"]
    assert "build it first" in leading.reason


def test_a_bucket_that_rolls_back_is_waited_for(leading: Leading) -> None:
    leading.begin()
    number = 0
    for state in ROLLBACK_STATES:
        leading.bench.apply(MoveRollback("travel", number, state, (1,), b"u" * 8, b"s" * 8))
        held = leading.bench.state.rollback("travel")
        number = held.number if held else 0
        assert bool(leading.wants()) == (state == "done"), state


def test_a_target_that_is_away_is_waited_for_until_it_is_lost(leading: Leading) -> None:
    leading.begin()
    leading.alive.discard(3)
    assert leading.wants() == []
    leading.lost.add(3)
    leading.go_on()
    assert (leading.states, leading.reason) == (["failed"], "indexer 3 is not alive")


def test_so_it_is_while_the_part_is_built(leading: Leading) -> None:
    leading.begin()
    leading.go_on()
    leading.alive.discard(3)
    assert leading.wants() == []
    leading.lost.add(3)
    leading.go_on()
    assert leading.states == ["failed"]
    assert leading.index(leading.part).state == "dropping"


def test_a_target_that_cannot_build_the_copy_fails_the_move_with_its_reason(
    leading: Leading,
) -> None:
    leading.begin()
    leading.go_on()
    leading.bench.apply(UndoIndex(leading.part, "indexer 3: the disk is full"))
    leading.go_on()
    assert (leading.states, leading.reason) == (["failed"], "indexer 3: the disk is full")


def test_a_part_whose_build_fails_fails_the_move(leading: Leading) -> None:
    leading.begin()
    leading.go_on()
    leading.bench.apply(MarkReady(leading.part, (Shard(3, 7),)))
    leading.bench.apply(BuildIndexes((leading.part,)), key="build")
    build = leading.index(leading.part).build
    leading.bench.apply(MarkFailed(leading.part, build, "no such function"))
    leading.go_on()
    assert (leading.states, leading.reason) == (["failed"], "no such function")


def test_a_copy_that_lies_elsewhere_by_now_is_not_moved(leading: Leading) -> None:
    leading.begin()
    leading.bench.apply(CancelRebalance(leading.bench.state.rebalances()[0].id))
    leading.go_on()
    master = leading.index(leading.index_id).slices[0].master
    leading.bench.apply(BeginRebalance((PlannedMove(leading.index_id, 0, master, 3),)))
    other = 3 - master
    leading.put(replace(leading.index(leading.index_id), slices=(Slice(0, other),)))
    leading.go_on()
    assert leading.states == ["failed"]
    assert "is not where" in leading.reason


def test_a_cancelled_rebalance_finishes_what_serves_and_gives_up_the_rest() -> None:
    leading = Leading(slices=3)
    leading.begin(3, apart=True)
    leading.go_on()
    leading.build(leading.part)
    leading.go_on()
    leading.bench.apply(CancelRebalance(leading.bench.state.rebalances()[0].id))
    leading.go_on()
    assert leading.states == ["catchup", "cancelled", "cancelled"]
    leading.mono_ms += DRAIN_MS
    leading.go_on()
    leading.go_on()
    assert leading.states == ["done", "cancelled", "cancelled"]
    assert leading.bench.state.rebalances()[0].state == "cancelled"


def test_an_index_that_is_dropped_ends_its_moves_and_its_parts_go(leading: Leading) -> None:
    leading.begin()
    leading.go_on()
    part = leading.part
    leading.bench.apply(DropIndex(leading.index_id))
    wanted = leading.wants()
    assert DropPart(part) in wanted
    leading.bench.apply(wanted[0])
    leading.bench.apply(ForgetIndex(leading.index_id))
    leading.go_on()
    assert (leading.states, leading.reason) == (["failed"], "the index was dropped")
    leading.bench.apply(ForgetIndex(part))
    assert leading.wants() == []


def test_a_part_that_is_built_again_asks_nobody_who_may_have_released_its_slices() -> None:
    leading = Leading(slices=2)
    leading.begin()
    leading.go_on()
    part = leading.part
    assert leading.index(part).origins
    leading.build(part)
    assert leading.index(part).origins, "they are those of its first build"
    drain(leading)
    leading.bench.apply(MoveShards(part, (Shard(3, 99),)))
    again = leading.index(part)
    assert (again.state, again.origins) == (PENDING, ())


def all_on_one() -> tuple[Leading, int, tuple[int, ...], tuple[int, ...]]:
    """Return an index that is being built, whose indexer has two slices as the index's own, and the
    two others as a part; the indexer, and these slices."""
    leading = Leading(slices=4)
    pieces = leading.index(leading.index_id).slices
    host = pieces[0].master
    own = tuple(n for n, piece in enumerate(pieces) if piece.master == host)
    others = tuple(n for n, piece in enumerate(pieces) if piece.master != host)
    moves = (PlannedMove(leading.index_id, n, pieces[n].master, host) for n in others)
    leading.bench.apply(BeginRebalance(tuple(moves)))
    leading.go_on()
    leading.build(leading.part)
    leading.go_on()
    leading.wants()
    leading.mono_ms += DRAIN_MS
    for _ in range(4):
        leading.go_on()
    assert leading.states == ["done", "done"]
    leading.bench.apply(MoveShards(leading.index_id, (Shard(host, 9),)))
    assert leading.index(leading.index_id).state == PENDING
    return leading, host, own, others


def lose(leading: Leading, *indexers: int) -> None:
    leading.alive -= set(indexers)
    leading.lost |= set(indexers)


def until_over(leading: Leading) -> None:
    for _ in range(20):
        leading.mono_ms += 60_000
        leading.go_on()


@pytest.mark.parametrize("count", [1, 2])
def test_moves_that_can_never_begin_do_not_wait_for_each_other(count: int) -> None:
    leading, host, _, others = all_on_one()
    lose(leading, host)
    moves = (PlannedMove(leading.index_id, n, host, 3 + at) for at, n in enumerate(others[:count]))
    leading.bench.apply(BeginRebalance(tuple(moves)))
    until_over(leading)
    assert set(leading.states) == {"failed"}


def test_a_drain_ends_where_the_target_of_what_could_move_is_lost_too() -> None:
    leading, host, own, others = all_on_one()
    lose(leading, host)
    moves = [PlannedMove(leading.index_id, n, host, 3) for n in own]
    moves += [PlannedMove(leading.index_id, n, host, 4) for n in others]
    leading.bench.apply(BeginRebalance(tuple(moves), drain=(host,)))
    lose(leading, 3)
    until_over(leading)
    assert "start" not in leading.states

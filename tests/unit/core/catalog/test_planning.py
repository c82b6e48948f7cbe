"""Laws of plans: hard rules kept, balance improved, nothing moved twice or for nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.catalog.layouts import (
    ALLOWED,
    CAPACITY,
    COPIES,
    TAKES,
    ZONES,
    Machine,
    Piece,
)
from coordinator.core.catalog.loads import WORTH, Load
from coordinator.core.catalog.planning import Plan, carry_out, plan
from tests.unit.core.catalog.clusters import LOST, Cluster, random_cluster
from tests.unit.core.catalog.exact_plans import clashes, largest, weights

CLUSTERS = st.builds(random_cluster, st.integers(0, 10**9).map(Random))
LARGER = st.builds(random_cluster, st.integers(0, 10**9).map(Random), st.just(40), st.just(12))
SLOW = settings(deadline=None)


def even(*hosts: int, load: Load = Load(100, 1000, 10), copies: int = 1) -> list[Piece]:
    """Slices of one index that weigh the same; each on one of these, and its copies after it."""
    return [
        Piece(1, number, tuple(host + copy for copy in range(copies)), load, copies)
        for number, host in enumerate(hosts)
    ]


def machines(*ids: int, zone: str = "", capacity: int = 0) -> list[Machine]:
    return [Machine(i, zone, capacity) for i in ids]


def held(pieces: list[Piece], found: Plan) -> dict[int, int]:
    """How many copies each indexer has after a plan."""
    return dict(Counter(h for piece in carry_out(pieces, found.moves) for h in piece.hosts))


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@SLOW
@given(st.one_of(CLUSTERS, LARGER))
def test_after_a_plan_every_hard_rule_is_kept_or_is_told_of(cluster: Cluster) -> None:
    pieces, those = cluster
    found = plan(pieces, those)
    told = {(one.index, one.slice) for one in found.impossible}
    rules = {one.rule for one in found.impossible}
    zone_of = {machine.id: machine.zone for machine in those}
    takers = {machine.id for machine in those if machine.takes}
    after = carry_out(pieces, found.moves)
    for piece in after:
        assert len(set(piece.hosts)) == len(piece.hosts)
        if (piece.index, piece.number) in told:
            continue
        able = takers & piece.allowed if piece.allowed else takers
        assert len(piece.hosts) == piece.copies
        assert set(piece.hosts) <= able
        apart = len(able) - clashes(sorted(able), zone_of)
        assert clashes(piece.hosts, zone_of) == max(0, piece.copies - apart)
    for machine in those:
        used = sum(piece.load.bytes for piece in after if machine.id in piece.hosts)
        if machine.takes and machine.capacity_bytes and CAPACITY not in rules:
            assert used <= machine.capacity_bytes


@pytest.mark.thorough
@SLOW
@given(st.one_of(CLUSTERS, LARGER))
def test_what_is_balanced_is_left_alone(cluster: Cluster) -> None:
    pieces, those = cluster
    first = plan(pieces, those)
    again = plan(carry_out(pieces, first.moves), those)
    assert again.moves == ()
    assert [(u.slice, u.rule) for u in again.impossible] == [
        (u.slice, u.rule) for u in first.impossible
    ]


@pytest.mark.thorough
@SLOW
@given(st.one_of(CLUSTERS, LARGER), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_given_does_not_matter(cluster: Cluster, rng: Random) -> None:
    pieces, those = cluster
    first = plan(pieces, those)
    rng.shuffle(pieces)
    rng.shuffle(those)
    assert plan(pieces, those) == first


@SLOW
@given(LARGER)
def test_the_largest_load_never_grows_where_no_rule_asks_for_it(cluster: Cluster) -> None:
    pieces, those = cluster
    free = [machine._replace(zone="", capacity_bytes=0, takes=True) for machine in those]
    pieces = [replace(p, hosts=(those[0].id,), copies=1, allowed=None) for p in pieces]
    found = plan(pieces, free)
    assert largest(carry_out(pieces, found.moves), free) <= largest(pieces, free)
    assert max(found.load_after.values()) <= max(found.load_before.values())


@pytest.mark.thorough
@SLOW
@given(st.one_of(CLUSTERS, LARGER), st.integers(0, 6))
def test_there_are_never_more_moves_than_there_may_be(cluster: Cluster, most: int) -> None:
    pieces, those = cluster
    found = plan(pieces, those, most)
    assert len(found.moves) <= most
    whole = plan(pieces, those)
    assert found.is_cut or found == whole
    for before, after in zip(pieces, carry_out(pieces, found.moves), strict=True):
        assert len(set(after.hosts)) == len(after.hosts)
        assert len(after.hosts) >= min(len(before.hosts), before.copies)


@settings(deadline=None, max_examples=20)
@given(CLUSTERS)
def test_moves_one_at_a_time_put_everything_right_that_they_can(cluster: Cluster) -> None:
    pieces, those = cluster
    free = [machine._replace(capacity_bytes=0) for machine in those]
    takers = {machine.id for machine in free if machine.takes}
    for _ in range(200):
        found = plan(pieces, free, 1)
        if not found.moves:
            break
        pieces = carry_out(pieces, found.moves)
    for piece in pieces:
        if piece.allowed is None and len(takers) >= piece.copies:
            assert set(piece.hosts) <= takers
            assert len(piece.hosts) == piece.copies


@SLOW
@given(CLUSTERS)
def test_loads_before_and_after_are_what_the_copies_weigh(cluster: Cluster) -> None:
    pieces, those = cluster
    found = plan(pieces, those)
    for layout, loads in (
        (pieces, found.load_before),
        (carry_out(pieces, found.moves), found.load_after),
    ):
        weight = weights(layout)
        whole = sum(w * len(p.hosts) for w, p in zip(weight, layout, strict=True))
        for machine in those:
            own = sum(w for w, p in zip(weight, layout, strict=True) if machine.id in p.hosts)
            assert loads[machine.id] == pytest.approx(own / whole)


# -- what happens to a cluster -------------------------------------------------------------------


def test_a_new_indexer_takes_its_share_and_no_more_moves_than_that() -> None:
    pieces = even(*[1, 2, 3] * 4)
    found = plan(pieces, machines(1, 2, 3, 4))
    assert held(pieces, found) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert len(found.moves) == 3
    assert {move.target for move in found.moves} == {4}
    assert found.moves[0].why == "indexer 3 has 33 % of the load, indexer 4 has 0.0 %"
    assert found.bytes == 3_000


def test_what_a_lost_indexer_had_is_made_again_elsewhere() -> None:
    pieces = even(*[1, 2, 3] * 2, copies=2)
    found = plan(pieces, machines(1, 2, 3))
    assert {(m.slice, m.source) for m in found.moves if m.source == 4} == {(2, 4), (5, 4)}
    assert found.moves[0].why == "indexer 4 is lost"
    assert sorted(held(pieces, found)) == [1, 2, 3]


def test_what_is_drained_is_left_empty_and_the_rest_stays_where_it_is() -> None:
    pieces = even(*[1, 2, 3] * 4)
    those = [*machines(1, 2), Machine(3, takes=False)]
    found = plan(pieces, those)
    assert held(pieces, found) == {1: 6, 2: 6}
    assert {(move.source, move.why) for move in found.moves} == {(3, "indexer 3 is being drained")}
    assert len(found.moves) == 4
    assert (found.load_before[3], found.load_after[3]) == (pytest.approx(1 / 3), 0)


def test_a_skewed_indexer_sheds_what_weighs_and_not_what_is_many() -> None:
    heavy = even(1, 1, load=Load(10_000, 100_000, 1_000))
    light = [replace(p, index=2) for p in even(*[2] * 8, load=Load(10, 100, 1))]
    found = plan([*heavy, *light], machines(1, 2))
    assert [(m.index, m.source, m.target) for m in found.moves] == [(1, 1, 2)]
    assert found.load_after[1] == pytest.approx(0.5, abs=0.02)


def test_of_two_that_relieve_as_much_the_smaller_one_moves() -> None:
    """Mutations weigh, and only bytes have to be moved."""
    giga = WORTH.bytes
    busy, large = Load(0, giga, 1_000), Load(0, 9 * giga, 0)
    pieces = [Piece(1, 0, (1,), busy, 1), Piece(1, 1, (1,), busy, 1), Piece(1, 2, (1,), large, 1)]
    found = plan(pieces, machines(1, 2))
    assert sorted(move.slice for move in found.moves) == [0, 1]
    assert found.bytes == 2 * giga


def test_more_replicas_are_added_and_fewer_are_dropped() -> None:
    more = [replace(piece, copies=2) for piece in even(1, 2, 3)]
    found = plan(more, machines(1, 2, 3))
    assert held(more, found) == {1: 2, 2: 2, 3: 2}
    assert all(m.source is None for m in found.moves)
    assert found.moves[0].why == "slice 0 of index 1 has 1 copies and is to have 2"
    fewer = [replace(piece, copies=1) for piece in carry_out(more, found.moves)]
    less = plan(fewer, machines(1, 2, 3))
    assert held(fewer, less) == {1: 1, 2: 1, 3: 1}
    assert all(m.target is None for m in less.moves)
    assert less.bytes == 0


def test_of_too_many_copies_the_one_on_a_drained_indexer_goes_and_the_master_stays() -> None:
    piece = Piece(1, 0, (1, 2, 3), Load(1, 1, 1), 1)
    kept = carry_out([piece], plan([piece], machines(1, 2, 3)).moves)
    assert kept[0].hosts == (1,)
    found = plan([replace(piece, copies=2)], [*machines(1, 3), Machine(2, takes=False)])
    assert [(m.source, m.target) for m in found.moves] == [(2, None)]


def test_whoever_takes_the_place_of_a_master_is_the_master() -> None:
    pieces = [Piece(1, 0, (1, 2), Load(1, 1, 1), 2)]
    found = plan(pieces, [Machine(1, takes=False), *machines(2, 3)])
    assert carry_out(pieces, found.moves)[0].hosts == (3, 2)


def test_no_indexer_gets_more_bytes_than_it_has_room_for() -> None:
    pieces = even(*[1] * 6)
    those = [Machine(1), Machine(2, capacity_bytes=1_999), Machine(3, capacity_bytes=2_000)]
    found = plan(pieces, those)
    assert held(pieces, found) == {1: 3, 2: 1, 3: 2}


def test_one_that_has_more_than_there_is_room_for_is_relieved() -> None:
    pieces = even(1, 1, 2, 2)
    found = plan(pieces, [Machine(1, capacity_bytes=1_000), Machine(2)])
    assert [(m.source, m.target) for m in found.moves] == [(1, 2)]
    assert found.moves[0].why == "indexer 1 has 2000 bytes, and room for 1000"


def test_room_is_made_where_only_that_helps() -> None:
    """The large one fits nowhere unless the small one goes where the large one does not fit."""
    large = Piece(1, 0, (1,), Load(1, 900, 1), 1)
    small = Piece(1, 1, (2,), Load(1, 200, 1), 1)
    those = [
        Machine(1, takes=False),
        Machine(2, capacity_bytes=1_000),
        Machine(3, capacity_bytes=300),
    ]
    found = plan([large, small], those)
    assert {(m.slice, m.source, m.target) for m in found.moves} == {(0, 1, 2), (1, 2, 3)}
    assert "makes room on indexer 2 for slice 0 of index 1" in {m.why for m in found.moves}


def test_copies_go_to_zones_of_their_own_as_long_as_there_are_unused_ones() -> None:
    a, b = machines(1, 2, zone="a"), machines(3, zone="b")
    piece = Piece(1, 0, (1, 2), Load(1, 1, 1), 2)
    found = plan([piece], [*a, *b])
    assert [(m.source, m.target) for m in found.moves] == [(2, 3)]
    assert found.moves[0].why == "slice 0 of index 1 has two copies in zone a"
    assert plan([piece], a).moves == ()


def test_balance_never_brings_two_copies_into_one_zone() -> None:
    pieces = even(*[1] * 8, copies=2)
    those = [Machine(1, "a"), Machine(2, "b"), Machine(3, "b")]
    found = plan(pieces, those)
    assert held(pieces, found) == {1: 8, 2: 4, 3: 4}


def test_an_index_that_names_its_indexers_lies_on_these() -> None:
    named = Piece(1, 0, (1,), Load(1, 1, 1), 1, frozenset({2}))
    found = plan([named], machines(1, 2, 3))
    assert [(m.source, m.target) for m in found.moves] == [(1, 2)]
    assert found.moves[0].why == "index 1 is to lie on indexers 2"
    pieces = [replace(p, allowed=frozenset({1, 2})) for p in even(*[1] * 4)]
    assert held(pieces, plan(pieces, machines(1, 2, 3))) == {1: 2, 2: 2}


def test_two_change_places_where_no_single_one_can_move() -> None:
    pieces = [Piece(1, n, (1 + n // 2,), Load((6, 6, 4, 4)[n]), 1) for n in range(4)]
    found = plan(pieces, machines(1, 2))
    assert found.load_after == {1: 0.5, 2: 0.5}
    assert [m.source for m in found.moves] == [1, 2]
    assert found.moves[1].why == (
        "in exchange for slice 0 of index 1: indexer 1 has 60 % of the load, indexer 2 has 40 %"
    )


def test_a_small_difference_moves_nothing() -> None:
    pieces = even(*[1] * 51, *[2] * 50)
    assert plan(pieces, machines(1, 2)).moves == ()


def test_empty_slices_are_spread_too() -> None:
    pieces = even(*[1] * 6, load=Load())
    assert held(pieces, plan(pieces, machines(1, 2, 3))) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("piece", "those", "rule", "why"),
    [
        (
            Piece(1, 0, (1,), Load(1, 1, 1), 2),
            machines(1),
            COPIES,
            "slice 0 of index 1 has 1 copies and is to have 2, but all of indexers 1 have a copy",
        ),
        (
            Piece(1, 0, (1,), Load(1, 1, 1), 1),
            [Machine(1, takes=False)],
            TAKES,
            "indexer 1 is being drained, but no indexer takes slices",
        ),
        (
            Piece(1, 0, (LOST,), Load(1, 1, 1), 1, frozenset({LOST})),
            machines(1),
            ALLOWED,
            "indexer 251 is lost, but none of indexers 251 takes slices",
        ),
        (
            Piece(1, 0, (1,), Load(1, 5, 1), 1),
            machines(1, 2, capacity=4),
            CAPACITY,
            "indexer 1 has 5 bytes, and room for 4, but there is no room for 5 bytes on another",
        ),
        (
            Piece(1, 0, (1, 2), Load(1, 5, 1), 2),
            [*machines(1, 2, zone="a"), Machine(3, "b", 4)],
            ZONES,
            "slice 0 of index 1 has two copies in zone a, "
            "but there is no room for 5 bytes on another",
        ),
    ],
    ids=["copies", "takes", "allowed", "capacity", "zones"],
)
def test_what_cannot_be_placed_is_told_with_the_rule_that_stands_in_the_way(
    piece: Piece, those: list[Machine], rule: str, why: str
) -> None:
    found = plan([piece], those)
    assert found.moves == ()
    assert [(one.rule, one.why) for one in found.impossible] == [(rule, why)]


def test_what_is_lost_comes_first_where_there_may_be_few_moves() -> None:
    lacking = Piece(3, 0, (1,), Load(900, 9_000, 90), 2)
    pieces = [*even(*[1] * 8), lacking, Piece(2, 0, (2, LOST), Load(1, 1, 1), 2)]
    found = plan(pieces, machines(1, 2, 3), 1)
    assert [(m.index, m.source) for m in found.moves] == [(2, LOST)]
    assert found.is_cut
    assert found.impossible == ()


def test_what_has_no_room_by_just_so_much_gives_just_that_away() -> None:
    pieces = [Piece(1, n, (1,), Load(100, size), 1) for n, size in enumerate((4_000, 3_000, 6_000))]
    pieces.append(Piece(1, 3, (2,), Load(100, 1_000), 1))
    found = plan(pieces, [Machine(1, capacity_bytes=10_000), Machine(2)])
    assert [(move.slice, move.source, move.target) for move in found.moves] == [(1, 1, 2)]
    assert found.bytes == 3_000

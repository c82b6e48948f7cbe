"""What slices weigh: shares of all there is, and a mean where nothing is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog.loads import (
    LEAST,
    NOTHING,
    SLICE,
    WHOLE,
    WORTH,
    Load,
    Reported,
    Reports,
    borne,
    together,
    weigh,
)
from coordinator.core.model.commands import DropIndex, MarkReady
from coordinator.core.model.entities import DROPPING, Shard
from tests.support.catalog_bench import CREATE, Bench


@given(st.lists(st.tuples(*[st.integers(0, 10**12)] * 3, st.integers(1, 3)), min_size=1))
def test_what_all_copies_weigh_is_the_whole(drawn: list[tuple[int, int, int, int]]) -> None:
    loads, copies = [Load(*d[:3]) for d in drawn], [d[3] for d in drawn]
    found = weigh(loads, copies)
    whole = sum(w * count for w, count in zip(found, copies, strict=True))
    if any(load.entries for load in loads):
        assert WHOLE * 0.999 < whole <= WHOLE * (1 + 1 / LEAST)
    assert min(found) >= WHOLE // (LEAST * sum(copies))


def test_a_weight_is_the_mean_of_the_shares_that_somebody_has() -> None:
    loads = [Load(75, 0, 100), Load(25, 0, 300)]
    assert weigh(loads, [1, 1]) == [WHOLE // 2, WHOLE // 2]
    mega = WORTH.bytes
    assert weigh([Load(75, 9 * mega), Load(25, 3 * mega)], [1, 1]) == [WHOLE * 3 // 4, WHOLE // 4]


def test_a_dimension_in_which_there_is_hardly_anything_does_not_count() -> None:
    """One writer for a moment has all mutations, and small slices change by themselves."""
    few = [Load(75, 1, WORTH.mutations - 1), Load(25, WORTH.bytes - 2, 0)]
    assert weigh(few, [1, 1]) == [WHOLE * 3 // 4, WHOLE // 4]
    reported = {i: Reported(1, load) for i, load in enumerate(few, 1)}
    assert borne((1, 2), {1: 1, 2: 1}, {}, reported) == {1: SLICE * 3 // 2, 2: SLICE // 2}


def test_every_copy_counts() -> None:
    assert weigh([Load(10, 10, 10), Load(20, 20, 20)], [2, 1]) == [WHOLE // 4, WHOLE // 2]


COUNTS = st.dictionaries(st.integers(1, 5), st.integers(0, 20))


@given(COUNTS, COUNTS)
def test_where_nothing_is_told_slices_are_counted(
    held: dict[int, int], more: dict[int, int]
) -> None:
    found = borne(range(1, 6), held, more, {})
    assert found == {i: (held.get(i, 0) + more.get(i, 0)) * SLICE for i in range(1, 6)}


@given(st.lists(st.tuples(*[st.integers(1, 10**9)] * 3), min_size=1, max_size=5))
def test_a_slice_of_which_nothing_is_told_is_as_heavy_as_the_mean_of_the_others(
    drawn: list[tuple[int, int, int]],
) -> None:
    reported = {i: Reported(2, Load(*load)) for i, load in enumerate(drawn)}
    told = borne(reported, dict.fromkeys(reported, 2), {}, reported)
    assert abs(sum(told.values()) - 2 * len(drawn) * SLICE) < 4 * len(drawn)
    more = borne(reported, dict.fromkeys(reported, 3), {0: 1}, reported)
    assert {i: more[i] - told[i] for i in told} == {i: SLICE * (1 + (i == 0)) for i in told}


def test_slices_that_are_gone_already_and_were_told_of_take_nothing_away() -> None:
    reported = {1: Reported(4, Load(4, 4, 4)), 2: Reported(4, Load(4, 4, 4))}
    assert borne((1, 2), {1: 1, 2: 4}, {1: 2}, reported) == {1: 6 * SLICE, 2: 4 * SLICE}


def test_a_new_index_goes_to_whoever_bears_least_and_not_to_who_has_the_fewest_slices(
    bench: Bench,
) -> None:
    bench.reported = {1: Reported(1, Load(9_000, 9_000, 9)), 2: Reported(8, Load(80, 80, 1))}
    bench.apply(CREATE)
    assert bench.index().hosts == {2}


def test_new_slices_do_not_all_go_to_whoever_bears_least(bench: Bench) -> None:
    bench.reported = {1: Reported(4, Load(600, 600, 6)), 2: Reported(4, Load(200, 200, 2))}
    decision = bench.apply(replace(CREATE, slices=12))
    assert decision.changes
    held = Counter(host for piece in bench.index().slices for host in piece.hosts)
    assert held == {1: 4, 2: 8}


def test_what_was_dropped_weighs_nothing_though_an_indexer_has_not_told_yet(bench: Bench) -> None:
    """Indexers tell every few seconds: who has told first would get all slices of new indexes."""
    gone = {2**50: Reported(4, Load(600, WORTH.bytes, 6)), 2**51: Reported(2, Load(9, 9, 9))}
    bench.reported = {1: together(gone), 2: NOTHING}
    bench.apply(replace(CREATE, slices=12))
    assert Counter(h for p in bench.index().slices for h in p.hosts) == {1: 6, 2: 6}


def test_what_is_there_weighs_what_was_told_beside_what_was_dropped(bench: Bench) -> None:
    bench.apply(replace(CREATE, slices=4))
    first = bench.index().id
    of_index = {first: Reported(2, Load(600, 600, 6)), 2**50: Reported(9, Load(9_000, 9, 9))}
    bench.reported = {1: together(of_index), 2: together({first: Reported(2, Load(200, 200, 2))})}
    assert bench.reported[1][:2] == (11, Load(9_600, 609, 15))
    bench.apply(replace(CREATE, name="another", slices=8))
    (other,) = (index for index, _ in bench.state.indexes() if index.id != first)
    assert Counter(h for p in other.slices for h in p.hosts) == {1: 3, 2: 5}


def test_what_is_being_dropped_is_no_load(bench: Bench) -> None:
    """An indexer that is away keeps it in that state for minutes."""
    bench.apply(replace(CREATE, slices=8, nodes=(1,)))
    first = bench.index().id
    bench.apply(MarkReady(first, (Shard(1, 7),)))
    bench.apply(DropIndex(first))
    assert bench.index().state == DROPPING
    assert dict(bench.state.load) == {}
    bench.reported = {1: together({first: Reported(8, Load(600, WORTH.bytes, 6))}), 2: NOTHING}
    bench.apply(replace(CREATE, name="another", slices=8))
    (other,) = (index for index, _ in bench.state.indexes() if index.id != first)
    assert Counter(h for p in other.slices for h in p.hosts) == {1: 4, 2: 4}


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.dictionaries(st.integers(1, 5), st.integers(1, 9))),
        max_size=12,
    ),
    st.sets(st.integers(1, 5)),
)
def test_what_is_told_of_what_is_gone_is_subtracted_whoever_told_it_when(
    told: list[tuple[int, dict[int, int]]], gone: set[int]
) -> None:
    reports, last = Reports(), dict[int, dict[int, int]]()
    for indexer, entries in told:
        last[indexer] = entries
        reports.note(indexer, together({i: Reported(1, Load(n)) for i, n in entries.items()}))
    found = reports.of_existing(lambda index: index not in gone)
    left = {indexer: [n for i, n in e.items() if i not in gone] for indexer, e in last.items()}
    assert {i: (one.slices, one.load.entries) for i, one in found.items()} == {
        indexer: (len(entries), sum(entries)) for indexer, entries in left.items()
    }

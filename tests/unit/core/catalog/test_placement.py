"""Laws of placement: copies apart, zones apart while there are any, load balanced, wishes kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog.placement import Candidate, Impossible, place
from coordinator.core.model.entities import Slice
from tests.simulation.meter import CALLS_PER_MS, metered

CANDIDATES = st.lists(
    st.builds(Candidate, st.integers(0, 250), st.sampled_from(["", "a", "b", "c"])),
    min_size=1,
    max_size=6,
    unique_by=lambda c: c.id,
)


@given(CANDIDATES, st.integers(1, 8), st.integers(0, 4), st.data())
def test_copies_of_a_slice_lie_apart(
    candidates: list[Candidate], slices: int, replicas: int, data: st.DataObject
) -> None:
    load = data.draw(
        st.dictionaries(st.sampled_from([c.id for c in candidates]), st.integers(0, 9))
    )
    topology = place(slices, replicas, (), candidates, load)
    if replicas + 1 > len(candidates):
        assert isinstance(topology, Impossible)
        return
    assert not isinstance(topology, Impossible)
    assert [piece.number for piece in topology] == list(range(slices))
    for piece in topology:
        assert len(set(piece.hosts)) == replicas + 1


@given(CANDIDATES, st.integers(1, 8), st.integers(0, 3))
def test_copies_lie_in_different_zones_as_long_as_there_are_unused_ones(
    candidates: list[Candidate], slices: int, replicas: int
) -> None:
    topology = place(slices, replicas, (), candidates, {})
    if isinstance(topology, Impossible) or any(not c.zone for c in candidates):
        return
    zone_of = {c.id: c.zone for c in candidates}
    expected = min(replicas + 1, len(set(zone_of.values())))
    for piece in topology:
        assert len({zone_of[host] for host in piece.hosts}) == expected


@given(CANDIDATES, st.integers(1, 30))
def test_slices_spread_evenly_over_equal_indexers(candidates: list[Candidate], slices: int) -> None:
    topology = place(slices, 0, (), candidates, {})
    assert not isinstance(topology, Impossible)
    held = [sum(c.id in piece.hosts for piece in topology) for c in candidates]
    assert max(held) - min(held) <= 1


def test_the_least_loaded_comes_first_and_ties_go_by_id() -> None:
    candidates = [Candidate(i, "") for i in (3, 1, 2)]
    topology = place(4, 0, (), candidates, {1: 2, 2: 1, 3: 1})
    assert not isinstance(topology, Impossible)
    assert [piece.master for piece in topology] == [2, 3, 1, 2]


def test_only_the_wanted_indexers_are_used() -> None:
    candidates = [Candidate(i, "") for i in (1, 2, 3)]
    topology = place(3, 1, (3, 1), candidates, {})
    assert not isinstance(topology, Impossible)
    assert {host for piece in topology for host in piece.hosts} == {1, 3}


def test_a_wanted_indexer_that_is_not_alive_is_named() -> None:
    answer = place(1, 0, (7, 1), [Candidate(1, "")], {})
    assert isinstance(answer, Impossible)
    assert answer.details == {"missing": [7], "alive": [1]}


@given(CANDIDATES, st.integers(1, 8), st.integers(0, 4), st.data())
def test_each_copy_goes_to_the_best_that_is_left(
    candidates: list[Candidate], slices: int, replicas: int, data: st.DataObject
) -> None:
    """Chosen one by one, which costs more: a zone that is not used yet, the load, the id."""
    load = {c.id: data.draw(st.integers(0, 3)) for c in candidates}
    placed = place(slices, replicas, (), candidates, load)
    if isinstance(placed, Impossible):
        return
    expected: list[Slice] = []
    for number in range(slices):
        hosts: list[Candidate] = []
        for _ in range(replicas + 1):
            used = {host.zone for host in hosts} - {""}
            left = (c for c in candidates if c not in hosts)
            hosts.append(min(left, key=lambda c: (c.zone in used, load[c.id], c.id)))
            load[hosts[-1].id] += 1
        expected.append(Slice(number, hosts[0].id, tuple(host.id for host in hosts[1:])))
    assert placed == tuple(expected)


def test_to_place_the_largest_index_on_many_indexers_takes_a_moment() -> None:
    """Counted in calls, which are the same in every run."""
    many = [Candidate(number, f"z{number % 7}") for number in range(240)]
    placed, calls = metered(lambda: place(256, 16, (), many, {}))
    assert len(placed) == 256
    assert calls < 40 * CALLS_PER_MS

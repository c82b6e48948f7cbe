"""Where keys live: every key has one partition, for ever, and every copy has it once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.collation import encode_key
from coordinator.core.keys.key_order import KeyOrder, order_of
from coordinator.core.keys.key_versions import KEY_BYTES_MAX
from coordinator.core.keys.topology import HashTopology, read_bounds, topology_of
from coordinator.core.model.entities import NOWHERE, Shard, Slice
from tests.conftest import examples
from tests.support.keys import keys, order, scalars
from tests.support.ranged_indexes import index

SLICES = [1, 2, 3, 4, 7, 16, 256]


@pytest.mark.thorough
@pytest.mark.parametrize("slices", SLICES)
def test_hashing_spreads_keys_that_look_alike(slices: int) -> None:
    topology = topology_of(index(slices))
    for shape in ("{}", "user::{:08}", "{:04}-x"):
        count = 200 * slices
        found = Counter(
            topology.get_partition(encode_key([shape.format(n)])).number for n in range(count)
        )
        assert len(found) == slices
        assert max(found.values()) < 2 * 200
    numbers = Counter(topology.get_partition(encode_key([n])).number for n in range(200 * slices))
    assert max(numbers.values()) < 2 * 200


def test_a_hash_partition_is_the_same_for_ever() -> None:
    """Entries lie where they were put: whoever changes this loses them."""
    topology = topology_of(index(4))
    some = [["Paris"], ["Rome", 1], [0], [None], [[1, "a"]], [{"x": True}], [-1.5]]
    found = [topology.get_partition(encode_key(key)).number for key in some]
    assert found == [1, 3, 2, 1, 0, 0, 2]


@given(keys, st.sampled_from(SLICES))
def test_every_copy_has_a_key_once_in_the_slice_of_its_partition(key: Any, slices: int) -> None:
    topology = topology_of(index(slices, 2))
    raw = encode_key(key)
    partition = topology.get_partition(raw)
    assert partition.slices == (topology.slice_of(raw),)
    assert partition.slices == (index(slices, 2).slices[partition.number],)
    replicas = topology.get_replicas()
    assert [replica.number for replica in replicas] == [0, 1, 2]
    for replica in replicas:
        located = topology.locate_key(replica, raw)
        assert located is not None
        shard, piece = located
        assert (piece,) == partition.slices
        assert shard.indexer == piece.hosts[replica.number]
        assert shard.number == 100 * piece.number + replica.number


def test_storage_that_is_not_allocated_has_number_0() -> None:
    topology = topology_of(index(shards=()))
    [replica] = topology.get_replicas()
    located = topology.locate_key(replica, b"\x03")
    assert located is not None
    assert located[0] == Shard(0, 0)


def test_a_slice_may_have_fewer_copies_than_the_others() -> None:
    """One that is leaving is the last of them."""
    slices = (Slice(0, 1, (2,), (3,)), Slice(1, 4), Slice(2, NOWHERE))
    topology = topology_of(replace(index(3), slices=slices, shards=()))
    replicas = topology.get_replicas()
    found = [[topology.shard_of(replica, piece) for replica in replicas] for piece in slices]
    assert found == [
        [Shard(1, 0), Shard(2, 0), Shard(3, 0)],
        [Shard(4, 0), None, None],
        [None, None, None],
    ]
    raw = next(k for k in (encode_key([n]) for n in range(99)) if topology.slice_of(k).number == 1)
    assert topology.locate_key(replicas[0], raw) == (Shard(4, 0), slices[1])
    assert topology.locate_key(replicas[1], raw) is None


@given(keys, st.integers(1, 4), st.lists(scalars, max_size=3))
def test_a_partition_may_have_several_slices_and_a_key_is_in_one(
    key: Any, each: int, some: list[Any]
) -> None:
    bounds = [b for _, b in sorted({encode_key([bound]): [bound] for bound in some}.items())]
    whole = index(each * (len(bounds) + 1), bounds=bounds)
    topology, raw = topology_of(whole), encode_key(key)
    alone = topology_of(index(len(bounds) + 1, bounds=bounds)).get_partition(raw)
    partition = topology.get_partition(raw)
    assert partition.number == alone.number
    assert [p.number for p in partition.slices] == [each * alone.number + n for n in range(each)]
    assert topology.slice_of(raw) in partition.slices


def test_the_keys_of_a_partition_are_spread_over_its_slices() -> None:
    topology = topology_of(index(6, bounds=[[100]]))
    found = Counter(topology.slice_of(encode_key([n])).number for n in range(100))
    assert set(found) == {0, 1, 2}
    assert max(found.values()) < 60


@given(st.lists(st.lists(scalars, min_size=1, max_size=2), max_size=4), keys)
def test_a_range_partition_begins_with_its_bound(some: list[Any], key: Any) -> None:
    bounds = list({encode_key(bound): bound for bound in sorted(some, key=encode_key)}.values())
    raw = encode_key(key)
    number = topology_of(index(len(bounds) + 1, bounds=bounds)).get_partition(raw).number
    assert all(order(bound, list(key)[: len(bound)]) <= 0 for bound in bounds[:number])
    assert all(order(bound, list(key)) > 0 for bound in bounds[number:])


def test_ranges_are_cut_where_their_bounds_say() -> None:
    topology = topology_of(index(4, bounds=[["F"], ["P"], ["T", 5]]))
    some: list[Any] = [[0, 0], ["E"], ["F"], ["Paris"], ["T", 4], ["T", 5], ["Tula", 0], [[], 0]]
    found = [topology.get_partition(encode_key(key)).number for key in some]
    assert found == [0, 0, 1, 2, 2, 3, 3, 3]


def test_a_descending_index_has_descending_bounds() -> None:
    down = index(3, bounds=[["T"], ["F"]], expressions=("a DESC", "c"))
    topology = topology_of(down)
    encode = order_of(down).encode
    assert [topology.get_partition(encode([t, 0])).number for t in "ZTSFA"] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "an array of keys"),
        ('["F"]', "1 to 2"),
        ("[[]]", "1 to 2"),
        ("[[1, 2, 3]]", "1 to 2"),
        ("[[[]]]", "a boolean, number or string"),
        ("[[{}]]", "a boolean, number or string"),
        ("[[2], [1]]", "bound 2 is not above"),
        ("[[1], [1.0]]", "bound 2 is not above"),
        ("[[NaN]]", "NaN is not JSON"),
        ("[[1e999]]", "out of range"),
        (json.dumps([["x" * KEY_BYTES_MAX]]), "longer than a key"),
    ],
    ids=lambda v: v[:20],
)
def test_bounds_that_make_no_ranges_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_bounds(text, KeyOrder((False, False)))


def test_a_topology_needs_a_slice_for_each_range() -> None:
    with pytest.raises(ValueError, match="2 bounds for 2 slices"):
        topology_of(index(2, bounds=[[1], [2]]))
    with pytest.raises(ValueError, match="1 bounds for 3 slices"):
        topology_of(index(3, bounds=[[1]]))


def test_hash_is_what_an_index_has_unless_it_says_range() -> None:
    assert isinstance(topology_of(index(2)), HashTopology)


# -- the order of an index -----------------------------------------------------------------------

directions = st.tuples(st.booleans(), st.booleans())


@examples(150)
@given(directions, st.lists(keys, min_size=2, max_size=5))
def test_descending_components_are_ordered_the_other_way(
    descending: tuple[bool, bool], some: list[Any]
) -> None:
    way = KeyOrder(descending)
    for a, b in pairwise(some):
        expected = next(
            (
                -order(x, y) if down else order(x, y)
                for x, y, down in zip(a, b, descending, strict=True)
                if order(x, y)
            ),
            0,
        )
        one, other = way.encode(a), way.encode(b)
        assert (one > other) - (one < other) == expected


@examples(150)
@given(directions, keys, st.binary(max_size=4))
def test_a_directed_key_is_decoded_to_what_it_was(
    descending: tuple[bool, bool], key: Any, rest: bytes
) -> None:
    way = KeyOrder(descending)
    raw = way.encode(key)
    assert order(way.decode(raw), key) == 0
    found, end = way.decode_some(b"xy" + raw + rest, 2)
    assert (order(found, key), end) == (0, 2 + len(raw))


@examples(150)
@given(directions, st.lists(keys, min_size=3, max_size=3), st.booleans(), st.booleans())
def test_a_range_holds_what_lies_between_its_ends_in_the_order_of_the_index(
    descending: tuple[bool, bool], some: list[Any], low_too: bool, high_too: bool
) -> None:
    way = KeyOrder(descending)
    low, key, high = some
    bounds = way.range_bounds(low, high[:1], include_low=low_too, include_high=high_too)
    raw, first, last = way.encode(key), way.encode(low), way.encode(high[:1])
    above = raw > first or (low_too and raw == first)
    below = raw[: len(last)] < last or (high_too and raw.startswith(last))
    assert (raw in bounds) == (above and below)
    assert (raw in way.prefix_bounds(low[:1])) == (order(low[0], key[0]) == 0)


def test_a_key_has_no_more_components_than_its_index() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        KeyOrder((False,)).encode((1, 2))
    with pytest.raises(ValueError, match="follows"):
        KeyOrder((False,)).decode(encode_key((1, 2)))

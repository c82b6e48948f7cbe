"""The items of key-versions as bytes: what is packed is unpacked; damage is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    DOCUMENT,
    END,
    HEAD,
    HISTORY,
    MUTATION_HEAD,
    NO_SLICE,
    PLACES,
    SYNC,
    SYNCS,
    SYNCS_MAX,
    UPSERT,
    Item,
    ItemsError,
    begin,
    begun,
    branches,
    history,
    is_of_one_mutation,
    pack,
    pack_indexes,
    pack_many,
    pack_placed,
    pack_syncs,
    unpack,
    unpack_indexes,
    unpack_many,
)
from coordinator.core.model.stream_records import FailoverBranch

U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
others = st.builds(
    Item,
    st.sampled_from((UPSERT, ABSENT, BEGIN, ATTACH, SYNC, END, HISTORY)),
    U16,
    U64,
    U16,
    U16,
    st.binary(max_size=250),
    st.binary(max_size=4_096),
    st.just(()),
)
places = st.dictionaries(U16, st.tuples(U16, st.binary(max_size=4_096)), max_size=4).map(
    lambda found: tuple((place, *found[place]) for place in sorted(found))
)
mutations = st.builds(
    Item,
    st.sampled_from((DOCUMENT, PLACES)),
    U16,
    U64,
    st.just(0),
    st.just(NO_SLICE),
    st.binary(max_size=4_096),
    st.just(b""),
    places,
)
items = st.lists(others | mutations, max_size=5)


@given(items)
def test_what_is_packed_is_unpacked(chosen: list[Item]) -> None:
    assert list(unpack(b"".join(map(pack, chosen)))) == chosen


@given(items, st.integers(1, 20))
def test_cut_bytes_are_noticed_after_what_is_whole(chosen: list[Item], cut: int) -> None:
    whole = b"".join(map(pack, chosen))
    if cut >= len(whole) or (len(whole) - cut) in _ends(chosen):
        return
    seen: list[Item] = []
    with pytest.raises(ItemsError):
        seen.extend(unpack(whole[:-cut]))
    assert seen == chosen[: len(seen)]


def _ends(chosen: list[Item]) -> set[int]:
    """Return where items end: a cut there leaves whole items, only fewer."""
    ends, at = set(), 0
    for item in chosen:
        at += len(pack(item))
        ends.add(at)
    return ends


@given(U16, U64, U64, st.lists(U16, max_size=5))
def test_a_begin_says_its_branch_and_its_indexes(
    vbucket: int, seqno: int, vbuuid: int, places: list[int]
) -> None:
    [item] = unpack(pack(begin(vbucket, seqno, vbuuid, places)))
    assert (item.kind, item.vbucket, item.seqno, item.slice) == (BEGIN, vbucket, seqno, NO_SLICE)
    assert begun(item) == (vbuuid, tuple(places))


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"\x00" * 18, b"\x08" + b"\x00" * 17, b"\x0b" + b"\x00" * 17, b"\x01"),
        HEAD.pack(SYNCS, 0, 0, 0, 0, 0, 11) + bytes(11),
    ],
)
def test_bytes_that_are_no_items_are_refused(damaged: bytes) -> None:
    with pytest.raises(ItemsError):
        list(unpack(damaged))


@pytest.mark.parametrize(
    ("count", "places"),
    [
        (2, ((3, 0, b"a"), (3, 0, b"b"))),
        (2, ((3, 0, b"a"), (2, 0, b"b"))),
        (1, ((3, 0, b"a"), (4, 0, b"b"))),
        (3, ((3, 0, b"a"), (4, 0, b"b"))),
        (0, ((3, 0, b"a"),)),
        (1, ()),
    ],
)
def test_places_that_do_not_ascend_or_are_not_as_many_as_it_says_are_refused(
    count: int, places: tuple[tuple[int, int, bytes], ...]
) -> None:
    payload = pack_placed(places)
    head = MUTATION_HEAD.pack(DOCUMENT, 0, 1, count, 1, len(payload))
    with pytest.raises(ItemsError):
        list(unpack(head + b"d" + payload))


def test_items_are_of_one_mutation_by_vbucket_and_seqno() -> None:
    document, places = (pack(Item(kind, 3, 7, document=b"d")) for kind in (DOCUMENT, PLACES))
    assert is_of_one_mutation(places, places)
    assert is_of_one_mutation(pack(Item(UPSERT, 3, 7)), pack(Item(ABSENT, 3, 7)))
    assert not is_of_one_mutation(document, pack(Item(DOCUMENT, 3, 8)))
    assert not is_of_one_mutation(document, pack(Item(DOCUMENT, 4, 7)))
    assert not is_of_one_mutation(document, pack(Item(SYNC, 3, 7)))


@given(st.lists(st.tuples(U16, U64), max_size=20))
def test_positions_that_are_packed_together_are_a_sync_of_each(
    reached: list[tuple[int, int]],
) -> None:
    items = b"".join(pack_syncs(reached))
    found = [*unpack(pack(Item(END, 7, 8)) + items + pack(Item(END, 8, 9)))][1:-1]
    assert found == [Item(SYNC, vbucket, seqno) for vbucket, seqno in reached]


def test_positions_that_are_too_many_for_one_item_are_in_several() -> None:
    reached = [(vbucket, vbucket + 1) for vbucket in range(2 * SYNCS_MAX + 1)]
    items = [*pack_syncs(reached)]
    assert len(items) == 3
    assert [(i.vbucket, i.seqno) for i in unpack(b"".join(items))] == reached


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))))
def test_indexes_and_builds_survive(listed: list[tuple[int, int]]) -> None:
    ids, builds = tuple(i for i, _ in listed), tuple(b for _, b in listed)
    raw = pack_indexes(ids, builds)
    assert unpack_indexes(raw) == (ids, builds)


@given(st.binary(max_size=40))
def test_garbage_is_a_list_of_indexes_or_is_refused(raw: bytes) -> None:
    try:
        ids, builds = unpack_indexes(raw)
    except ItemsError:
        return
    assert len(ids) == len(builds) <= len(raw) // 2


@pytest.mark.parametrize(
    "damaged", [b"\x02", b"\x02\x80", b"\x80" * 11 + b"\x00\x00", bytes(2 * 65_536)]
)
def test_lists_that_are_cut_off_or_too_long_are_refused(damaged: bytes) -> None:
    with pytest.raises(ItemsError):
        unpack_indexes(damaged)


def test_the_ids_of_a_thousand_indexes_are_short() -> None:
    ids = [2**40 + 300 * number for number in range(1_000)]
    assert len(pack_indexes(ids, [1] * 1_000)) < 3_100


def test_a_begin_without_a_branch_is_refused() -> None:
    with pytest.raises(ItemsError):
        begun(Item(BEGIN, 0, 0))


@given(U16, st.lists(st.tuples(U64, U64), max_size=25), st.booleans())
def test_a_history_says_all_branches_unless_there_was_one_only(
    vbucket: int, pairs: list[tuple[int, int]], forgets: bool
) -> None:
    """Where older ones are forgotten, nobody knows whether there was."""
    log = tuple(FailoverBranch(*pair) for pair in pairs)
    items = list(unpack(history(vbucket, log, forgets=forgets)))
    assert [(i.kind, i.vbucket, branches(i)) for i in items] == (
        [(HISTORY, vbucket, log)] if len(log) > (not forgets) else []
    )


@pytest.mark.parametrize("payload", [b"", b"\x00" * 15, b"\x00" * 17])
def test_a_history_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(ItemsError):
        branches(Item(HISTORY, 0, 0, payload=payload))


PLACES_OF_ONE = st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=5)), max_size=6)


@given(PLACES_OF_ONE, st.integers(1, 8))
def test_several_keys_come_back_and_damage_is_noticed(
    places: list[tuple[int, bytes]], cut: int
) -> None:
    packed = pack_many(places)
    assert unpack_many(packed) == places
    try:
        found = unpack_many(packed[:-cut])
    except ItemsError:
        return
    assert found == places[: len(found)], "whole ones only"
    assert pack_many(found) == packed[:-cut]

"""The items of key-versions as bytes: what is packed is unpacked; damage is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    END,
    HISTORY,
    NO_SLICE,
    SYNC,
    UPSERT,
    Item,
    ItemsError,
    begin,
    begun,
    branches,
    history,
    pack,
    unpack,
)
from coordinator.core.model.stream_records import FailoverBranch

U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
items = st.lists(
    st.builds(
        Item,
        st.sampled_from((UPSERT, ABSENT, BEGIN, ATTACH, SYNC, END, HISTORY)),
        U16,
        U64,
        U16,
        U16,
        st.binary(max_size=250),
        st.binary(max_size=4_096),
    ),
    max_size=5,
)


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


@pytest.mark.parametrize("damaged", [b"\x00" * 18, b"\x08" + b"\x00" * 17, b"\x01"])
def test_bytes_that_are_no_items_are_refused(damaged: bytes) -> None:
    with pytest.raises(ItemsError):
        list(unpack(damaged))


def test_a_begin_without_a_branch_is_refused() -> None:
    with pytest.raises(ItemsError):
        begun(Item(BEGIN, 0, 0))


@given(U16, st.lists(st.tuples(U64, U64), max_size=25))
def test_a_history_says_all_branches_unless_there_was_one_only(
    vbucket: int, pairs: list[tuple[int, int]]
) -> None:
    log = tuple(FailoverBranch(*pair) for pair in pairs)
    items = list(unpack(history(vbucket, log)))
    assert [(i.kind, i.vbucket, branches(i)) for i in items] == (
        [(HISTORY, vbucket, log)] if len(log) > 1 else []
    )


@pytest.mark.parametrize("payload", [b"", b"\x00" * 15, b"\x00" * 17])
def test_a_history_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(ItemsError):
        branches(Item(HISTORY, 0, 0, payload=payload))

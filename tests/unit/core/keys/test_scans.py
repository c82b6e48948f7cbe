"""Laws of scans, against sorting and filtering the whole index by hand."""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.collation import EVERYTHING, MISSING, encode_key
from coordinator.core.keys.key_order import KeyOrder, order_of
from coordinator.core.keys.rows import MANY, row_of, rows_of
from coordinator.core.keys.scan_pages import Page, PageError, pack, unpack
from coordinator.core.keys.scans import (
    Cursor,
    Gathering,
    Part,
    ScanError,
    cover_of,
    rest_of,
    scan_digest,
    slices_of,
)
from coordinator.core.keys.topology import topology_of
from coordinator.core.model.entities import HASH, MAINTENANCE, RANGE, Index
from indexer_sim.scans.api import SLICES_MAX, ScanRefused, read_scan
from tests.support.indexes import make_index

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab\0\1é", max_size=3)
keys = st.tuples(scalars, scalars)
documents = st.text("xyz", min_size=1, max_size=2)
entry_sets = st.lists(st.integers(0, 700).map(lambda n: b"\x02%d" % n), unique=True, max_size=25)
rows = st.lists(st.tuples(keys, documents), max_size=30, unique_by=lambda row: repr(row))


TWO = KeyOrder((False, False))
MIXED = KeyOrder((False, True))
orders = st.sampled_from([TWO, MIXED, KeyOrder((True, True))])


def entry(key: tuple[Any, ...], document: str, order: KeyOrder = TWO) -> bytes:
    return order.encode(key) + document.encode("utf-8", "surrogatepass")


def covered(
    found: list[tuple[Any, str]], scan: dict[str, Any], order: KeyOrder
) -> list[tuple[Any, str]]:
    bounds = cover_of(scan, order).bounds
    return [row for row in found if entry(*row, order) in bounds]


def same(one: Any, other: Any) -> bool:
    """Tell whether two components are equal: in JSON true is not 1."""
    return encode_key([one]) == encode_key([other])


# -- covers --------------------------------------------------------------------------------------


@given(rows, keys, orders)
def test_equals_covers_the_documents_of_that_key_and_no_others(
    found: Any, key: Any, order: KeyOrder
) -> None:
    expected = [r for r in found if same(list(r[0]), list(key))]
    assert covered(found, {"equals": list(key)}, order) == expected


@given(rows, scalars, orders)
def test_a_prefix_covers_all_keys_that_begin_with_it(
    found: Any, first: Any, order: KeyOrder
) -> None:
    expected = [r for r in found if same(r[0][0], first)]
    assert covered(found, {"prefix": [first]}, order) == expected


@given(rows, scalars, st.text("ab\0\1é", max_size=2), orders)
def test_starts_with_covers_the_strings_that_begin_so(
    found: Any, first: Any, text: str, order: KeyOrder
) -> None:
    def begins(value: Any) -> bool:
        return isinstance(value, str) and value.startswith(text)

    expected = [r for r in found if same(r[0][0], first) and begins(r[0][1])]
    assert covered(found, {"starts_with": [first, text]}, order) == expected
    expected = [r for r in found if begins(r[0][0])]
    assert covered(found, {"starts_with": text}, order) == expected


@given(
    rows,
    st.none() | st.lists(scalars, max_size=2),
    st.none() | st.lists(scalars, max_size=2),
    st.booleans(),
    st.booleans(),
    orders,
)
def test_an_end_of_a_range_is_compared_with_as_many_components_as_it_has(
    found: Any, low: Any, high: Any, include_low: bool, include_high: bool, order: KeyOrder
) -> None:
    def within(key: tuple[Any, ...]) -> bool:
        if low is not None:
            mine, bound = order.encode(key[: len(low)]), order.encode(low)
            if mine < bound or (mine == bound and not include_low):
                return False
        if high is not None:
            mine, bound = order.encode(key[: len(high)]), order.encode(high)
            if mine > bound or (mine == bound and not include_high):
                return False
        return True

    scan = {"low": low, "high": high, "include_low": include_low, "include_high": include_high}
    assert covered(found, {"range": scan}, order) == [r for r in found if within(r[0])]


@pytest.mark.parametrize(
    "scan",
    [
        {"equals": [1]},
        {"equals": [1, 2, 3]},
        {"equals": 1},
        {"prefix": [1, 2, 3]},
        {"starts_with": 1},
        {"starts_with": ["a", 1]},
        {"starts_with": []},
        {"range": []},
        {"range": {"from": [1]}},
        {"range": {"low": [1], "include_low": 1}},
        {"range": {"low": [float("nan")]}},
        {"equals": [1, 2], "prefix": [1]},
        {"like": "a"},
    ],
)
def test_what_is_no_scan_of_the_index_is_refused(scan: dict[str, Any]) -> None:
    with pytest.raises(ScanError):
        cover_of(scan, TWO)


def test_only_a_scan_of_a_whole_key_names_it() -> None:
    assert cover_of({"equals": ["a", 1]}, TWO).key == encode_key(("a", 1))
    assert cover_of({"prefix": ["a", 1]}, TWO).key == encode_key(("a", 1))
    assert cover_of({"prefix": ["a"]}, TWO).key is None
    assert cover_of({}, TWO) == (EVERYTHING, None)


# -- slices --------------------------------------------------------------------------------------


def an_index(partitioning: str, slices: int, bounds: list[Any], *expressions: str) -> Index:
    return make_index(
        7,
        *range(1, slices + 1),
        bucket="b",
        expressions=expressions or ("x", "y DESC"),
        state=MAINTENANCE,
        partitioning=partitioning,
        bounds_json=json.dumps(bounds),
    )


scans = st.one_of(
    st.just({}),
    keys.map(lambda key: {"equals": list(key)}),
    st.lists(scalars, max_size=2).map(lambda key: {"prefix": key}),
    st.text("ab", max_size=2).map(lambda text: {"starts_with": text}),
    st.tuples(st.lists(scalars, max_size=2), st.lists(scalars, max_size=2)).map(
        lambda ends: {"range": {"low": ends[0], "high": ends[1]}}
    ),
)


@given(rows, scans, st.integers(1, 5), st.lists(st.lists(scalars, min_size=1, max_size=2)))
def test_a_slice_that_is_left_out_has_nothing_that_is_covered(
    found: Any, scan: Any, size: int, bounds: list[Any]
) -> None:
    ascending = sorted({MIXED.encode(bound): bound for bound in bounds}.items())
    ranged = an_index(RANGE, size * (len(ascending) + 1), [bound for _, bound in ascending])
    cover = cover_of(scan, MIXED)
    for index in (an_index(HASH, size, []), ranged):
        topology = topology_of(index)
        asked = slices_of(index, cover)
        for key, document in found:
            home = topology.slice_of(MIXED.encode(key)).number
            assert home in asked or entry(key, document, MIXED) not in cover.bounds


def test_only_the_slices_that_can_have_it_are_asked() -> None:
    ranged = an_index(RANGE, 4, [[10], [20], [30]], "x")
    order = order_of(ranged)

    def asked(scan: dict[str, Any]) -> tuple[int, ...]:
        return slices_of(ranged, cover_of(scan, order))

    assert asked({}) == (0, 1, 2, 3)
    assert asked({"equals": [20]}) == (2,)
    assert asked({"range": {"low": [12], "high": [20]}}) == (1, 2)
    assert asked({"range": {"low": [12], "high": [20], "include_high": False}}) == (1,)
    assert asked({"range": {"high": [3]}}) == (0,)
    assert asked({"starts_with": "a"}) == (3,)
    several = an_index(RANGE, 4, [[10]], "x")
    assert slices_of(several, cover_of({"range": {"high": [3]}}, order)) == (0, 1)
    assert len(slices_of(several, cover_of({"equals": [20]}, order))) == 1
    hashed = an_index(HASH, 4, [], "x")
    assert len(slices_of(hashed, cover_of({"equals": [20]}, order))) == 1
    assert len(slices_of(hashed, cover_of({"range": {"low": [20], "high": [20]}}, order))) == 4


# -- rows, cursors, pages ------------------------------------------------------------------------


@given(keys, documents, orders)
def test_a_row_is_what_was_indexed(key: Any, document: str, order: KeyOrder) -> None:
    assert row_of(entry(key, document, order), order) == {"id": document, "key": key}


def test_a_component_that_is_not_there_is_told_from_null() -> None:
    order = KeyOrder((False, True, False))
    row = row_of(entry(("a", MISSING, None), "d", order), order)
    assert row == {"id": "d", "key": ["a", None, None], "missing": [1]}


alike = st.sampled_from(
    (
        st.integers(0, 2**53),
        st.integers(-(2**53), 2**53),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(-1e6, 1e6) | st.integers(-5, 5),
        st.text("ab\0\1é\ud800", max_size=3),
        st.text(max_size=5),
        st.none() | st.booleans() | st.just(MISSING),
        st.lists(scalars, max_size=2) | st.dictionaries(st.text("ab", max_size=1), scalars),
        scalars,
    )
)
"""What the values in one place of a key may have in common."""


@st.composite
def keys_alike(draw: st.DrawFn) -> list[tuple[Any, Any]]:
    first, second = draw(alike), draw(alike)
    return draw(st.lists(st.tuples(first, second), max_size=12))


@given(keys_alike(), st.lists(st.text("x\0é\ud800", max_size=2), min_size=12), orders)
def test_many_rows_are_what_each_of_them_is(
    made: list[tuple[Any, Any]], names: list[str], order: KeyOrder
) -> None:
    entries = MANY * [entry(key, name, order) for key, name in zip(made, names, strict=False)]
    one_by_one = [row_of(one, order) for one in entries]
    assert repr(rows_of(entries, order)) == repr(one_by_one)
    shown = [(one["id"], *one["key"]) for one in rows_of(entries, order)]
    plain = MANY * [None if value is MISSING else value for key in made for value in key]
    assert [value for row in shown for value in row[1:]] == plain


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), orders)
def test_what_is_no_entry_is_refused_among_others_too(raws: list[bytes], order: KeyOrder) -> None:
    good = entry((1, 2.5), "d", order)

    def outcome(read: Any) -> Any:
        try:
            return repr(read())
        except ValueError:
            return ValueError

    many = [good] * MANY
    for entries in (
        raws,
        [*many, *raws],
        [*raws, *many],
        [good[: len(raw)] for raw in raws] * MANY,
    ):
        each = outcome(lambda entries=entries: [row_of(one, order) for one in entries])
        assert outcome(lambda entries=entries: rows_of(entries, order)) == each


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_cursor_survives_being_text(raw: bytes, number: int, index: int) -> None:
    scan = scan_digest(7, EVERYTHING, False)
    assert Cursor.read(str(Cursor(index, scan, number, 9, raw))) == (index, scan, number, 9, raw)


@given(st.text(max_size=60))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ScanError):
        Cursor.read(text)


def test_scans_are_told_from_each_other() -> None:
    of_some = cover_of({"prefix": [1]}, KeyOrder((False,))).bounds
    scans = [(7, EVERYTHING, False), (8, EVERYTHING, False), (7, EVERYTHING, True)]
    scans += [(7, of_some, False)]
    assert len({scan_digest(*scan) for scan in scans}) == len(scans)


@given(
    st.builds(
        Page,
        st.lists(st.binary(max_size=9)),
        st.booleans(),
        st.integers(0, 2**40),
        st.integers(0, 2**63),
        st.integers(0, 2**63),
        st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
    )
)
def test_a_page_survives_being_bytes(page: Page) -> None:
    assert unpack(pack(page)) == page


@given(st.lists(st.binary(max_size=9)), st.data())
def test_a_page_that_was_cut_or_grew_is_refused(entries: list[bytes], data: Any) -> None:
    raw = pack(Page(entries, held=(3,)))
    for damaged in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"x"):
        with pytest.raises(PageError):
            unpack(damaged)


# -- gathering -----------------------------------------------------------------------------------


class Pages:
    """A slice as an indexer scans it: sorted entries, read in pages."""

    def __init__(self, entries: list[bytes]) -> None:
        self.entries = sorted(entries)

    def page(self, part: Part, size: int, descending: bool) -> tuple[list[bytes], bool]:
        bounds = rest_of(EVERYTHING, part.after, descending)
        found = (e for e in sorted(self.entries, reverse=descending) if e in bounds)
        taken = list(islice(found, size))
        return taken, next(found, None) is not None


@given(
    entry_sets,
    st.integers(1, 5),
    st.integers(1, 40),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_gathering_releases_what_one_sorted_index_would(
    entries: list[bytes], parts: int, limit: int, descending: bool, seed: int
) -> None:
    chance = random.Random(seed)
    slices = [Pages([e for e in entries if e[-1] % parts == n]) for n in range(parts)]
    gathering = Gathering(limit, descending, [Part((n,)) for n in range(parts)])
    while missing := gathering.missing():
        chance.shuffle(missing)
        for part in missing[: chance.randint(1, len(missing))]:
            if chance.random() < 0.2:
                gathering.split(part, [part.slices])
                continue
            size = chance.randint(1, 7)
            gathering.add(part, *slices[part.slices[0]].page(part, size, descending))
    expected = sorted(entries, reverse=descending)
    assert gathering.released == expected[:limit]
    assert gathering.more == (len(expected) > limit)


@given(
    entry_sets,
    st.integers(1, 4),
    st.booleans(),
)
def test_going_on_after_each_page_visits_every_entry_once(
    entries: list[bytes], size: int, descending: bool
) -> None:
    whole = Pages(entries)
    seen: list[bytes] = []
    more = True
    while more:
        after = seen[-1] if seen else None
        found, more = whole.page(Part((0,), after), size, descending)
        seen.extend(found)
    assert seen == sorted(entries, reverse=descending)


def test_a_page_is_asked_for_of_each_slice_once_and_of_so_many_at_most() -> None:
    """Slices that are named a hundred thousand times would hold both threads that read."""
    asked = {"index": 1, "slices": [0], "begin": "", "end": "ff", "build": 1}
    assert read_scan(json.dumps(asked).encode(), 1).slices == (0,)
    for slices in ([0, 0], list(range(SLICES_MAX + 1)), [0] * 100_000):
        with pytest.raises(ScanRefused, match="each once") as caught:
            read_scan(json.dumps({**asked, "slices": slices}).encode(), 1)
        assert caught.value.code == "invalid_request"

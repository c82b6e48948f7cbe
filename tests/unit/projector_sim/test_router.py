"""What the router makes of frames: the laws of items, and of the records about streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.keys.collation import encode_key
from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    DOCUMENT,
    END,
    HISTORY,
    KEY_BYTES_MAX,
    MANY,
    NO_SLICE,
    PLACES,
    SYNC,
    UPSERT,
    VBUUID,
    Item,
    begun,
    branches,
    pack,
    unpack,
)
from coordinator.core.keys.topology import topology_of
from coordinator.core.model.entities import BACKFILL, NOWHERE, Index, Slice
from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverBranch,
    FailoverLog,
    KeyVersions,
    StreamBegin,
    StreamEnd,
    SyncVector,
)
from coordinator.language.expressions import compile_index
from projector_sim.projector import router as router_module
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.evaluation_plan import NOT_OF_THE_KEY, Route, RouteError, Routes, route
from projector_sim.projector.router import (
    GARBAGE,
    ITEM_BYTES_MAX,
    RECORD_BYTES_MAX,
    FrameError,
    Router,
    _parts,
)
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch
from projector_sim.protocol.frames import HEAD, Kind, Reason
from projector_sim.sources.kv_source import split
from tests.conftest import examples
from tests.support.indexes import syncs_of
from tests.support.items import told
from tests.support.projected_indexes import an_index

PARTITIONS, PROJECTOR, BRANCH = 4, 1, 9
ONE = an_index(1, expressions=("a",), slices=(Slice(0, 1),))
TWO = an_index(2, expressions=("b", "a"), slices=(Slice(0, 1, (3,)), Slice(1, 2), Slice(2, 3)))
PART = an_index(3, expressions=("a",), where="b > 3", slices=(Slice(0, 2),))
OF_X = an_index(4, expressions=("a",), where="k = 'x'", slices=(Slice(0, 1), Slice(1, 3)))
OF_Y = an_index(5, expressions=("b",), where="b > 1 AND k = 'y'", slices=(Slice(0, 1),))
OF_Z = an_index(6, expressions=("b",), where="n.z = 'z'", slices=(Slice(0, 1, (2,)),))


class Sink:
    """Keeps what is handed over, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, KeyVersions]] = []
        self.records: list[Any] = []
        self.all: list[Any] = []

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None:
        self.sent.append((partition, indexer, record))
        self.all.append(record)

    def control(self, vbucket: int, record: Any) -> None:
        self.records.append(record)
        self.all.append(record)

    def vectors(self) -> list[SyncVector]:
        return [record for record in self.records if isinstance(record, SyncVector)]

    def raw(self, indexer: int) -> list[Item]:
        """Return the items that an indexer was sent, as they are."""
        return [i for _, who, record in self.sent if who == indexer for i in unpack(record.items)]

    def of(self, indexer: int, *kinds: int) -> list[Item]:
        """Return what an indexer was told of each index, by the index's id and not its place."""
        found: list[Item] = []
        for _, who, record in self.sent:
            if who != indexer:
                continue
            for item in unpack(record.items):
                for one in told(item, record.indexes):
                    if one.kind in (UPSERT, ABSENT, ATTACH):
                        one = one._replace(place=record.indexes[one.place])
                    found.append(one)
        return [item for item in found if not kinds or item.kind in kinds]

    def begun(self, indexer: int) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the branch and the indexes of the last BEGIN of each vbucket."""
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for _, who, record in self.sent:
            for item in unpack(record.items):
                if who == indexer and item.kind == BEGIN:
                    vbuuid, places = begun(item)
                    found[item.vbucket] = vbuuid, tuple(record.indexes[p] for p in places)
        return found


class Given:
    """A router of one connection."""

    def __init__(
        self,
        *indexes: Index,
        kind: str = "maintenance",
        options: Mapping[str, Any] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        self.run = Run(
            bucket="b",
            kind=kind,
            connection=5,
            vbuckets=tuple(range(8)),
            carried={i.id: i for i in indexes},
            opened_ms=0,
            **more,
        )
        self.sink = Sink()
        routes = [route(index) for index in indexes]
        self.router = Router(
            self.run, routes, self.sink, PROJECTOR, PARTITIONS, lambda: 1, **options
        )

    def feed(self, data: bytes) -> None:
        for kind, body in split(bytearray(), data):
            self.router.route(kind, body)

    def begin(self, *vbuckets: int, seqno: int = 0) -> None:
        for vbucket in vbuckets:
            self.feed(frames.begin(vbucket, BRANCH, seqno, (Branch(BRANCH, 0),)))

    def mutate(self, vbucket: int, *mutations: tuple[int, str, Any]) -> None:
        """Send mutations: seqno, id, and the document, None for a deletion, bytes as they are."""
        parts = [
            frames.pack_mutation(
                seqno, name.encode(), document if is_raw(document) else orjson.dumps(document)
            )
            for seqno, name, document in mutations
        ]
        whole = b"".join(parts)
        self.feed(frames.mutations_head(vbucket, len(whole)) + whole)

    def carry(self, *indexes: Index, attached: Iterable[int] = ()) -> None:
        self.run.carried = {index.id: index for index in indexes}
        self.router.carry([route(index) for index in indexes], attached)

    def items(self, indexer: int, *kinds: int) -> list[Item]:
        self.router.flush()
        return self.sink.of(indexer, *kinds)


def is_raw(document: Any) -> bool:
    return document is None or isinstance(document, bytes)


def said(item: Item) -> tuple[int, int, int, str, int]:
    return item.kind, item.seqno, item.place, item.document.decode(), item.slice


# -- items -----------------------------------------------------------------------------------------


def test_each_host_has_one_item_of_each_mutation_that_tells_of_all_its_indexes() -> None:
    here = Given(ONE, TWO, PART)
    here.begin(6)
    document = {"a": "x", "b": 4}
    here.mutate(6, (1, "d", document))
    here.router.flush()
    for indexer in (1, 2, 3):
        kinds = [i.kind for i in here.sink.raw(indexer)]
        assert kinds == [BEGIN, DOCUMENT]
    key = compile_index(TWO)("d", document)
    assert key is not None
    piece = topology_of(TWO).slice_of(key)
    for indexer in (1, 2, 3):
        items = here.items(indexer, UPSERT, ABSENT)
        assert [item.place for item in items] == [
            index.id for index in (ONE, TWO, PART) if indexer in index.hosts
        ]
        for item in items:
            index = {index.id: index for index in (ONE, TWO, PART)}[item.place]
            hosts = piece.hosts if index is TWO else index.hosts
            assert item.kind == (UPSERT if indexer in hosts else ABSENT)
    (item,) = [i for i in here.items(piece.master, UPSERT) if i.place == TWO.id]
    assert (item.payload, item.slice, item.vbucket, item.seqno) == (key, piece.number, 6, 1)
    (item,) = [i for i in here.items(2, UPSERT) if i.place == PART.id]
    assert item.payload == encode_key(("x",))


@pytest.mark.parametrize("document", [None, {"b": 9}, b"{", b"\xff", b""])
def test_what_is_in_no_slice_is_absent_for_every_host(document: Any) -> None:
    here = Given(ONE, TWO)
    here.begin(0)
    here.mutate(0, (7, "gone", document))
    only_two_is_there = document == {"b": 9}
    for indexer in (1, 2, 3):
        kinds = {i.place: i.kind for i in here.items(indexer, UPSERT, ABSENT)}
        assert kinds.get(ONE.id, ABSENT) == ABSENT
        assert only_two_is_there or set(kinds.values()) == {ABSENT}
    absent = here.items(1, ABSENT)[0]
    assert said(absent) == (ABSENT, 7, ONE.id, "gone", NO_SLICE)
    assert len([i for i in here.sink.raw(1) if i.kind == DOCUMENT]) == 1, "for all indexes"
    assert here.router.errors[GARBAGE] == (document in (b"{", b"\xff", b""))


def test_a_backfill_says_nothing_of_what_is_absent() -> None:
    here = Given(TWO, kind="backfill")
    here.begin(0)
    here.mutate(0, (1, "a", None), (2, "b", {"c": 1}), (3, "c", {"b": 1}), (4, "d", b"no"))
    found = [said(i) for indexer in (1, 2, 3) for i in here.items(indexer, UPSERT, ABSENT)]
    assert {(kind, name) for kind, _, _, name, _ in found} == {(UPSERT, "c")}


def test_a_backfill_of_a_log_says_what_became_of_an_older_document() -> None:
    """A source that sends older mutations first: the last one may have no key any more."""
    here = Given(ONE, kind="backfill", options={"is_topic": True})
    here.begin(6)
    here.mutate(6, (1, "d", {"a": "x", "b": 4}), (2, "d", {}), (3, "e", None))
    assert [(i.kind, i.seqno) for i in here.items(1, UPSERT, ABSENT)] == [
        (UPSERT, 1),
        (ABSENT, 2),
        (ABSENT, 3),
    ]


def test_a_vbucket_that_goes_on_under_another_branch_ends_before_it_begins_again() -> None:
    here = Given(ONE)
    here.begin(6)
    here.mutate(6, (1, "d", {"a": "x", "b": 4}))
    here.feed(frames.end(6, 1, Reason.MOVED))
    log = (Branch(BRANCH + 1, 1), Branch(BRANCH, 0))
    here.feed(frames.begin(6, BRANCH + 1, 1, log))
    told = [r for r in here.sink.records if isinstance(r, StreamBegin | StreamEnd)]
    kinds = [(type(r).__name__, r.vbuuid, r.seqno) for r in told]
    assert kinds == [
        ("StreamBegin", BRANCH, 0),
        ("StreamEnd", BRANCH, 1),
        ("StreamBegin", BRANCH + 1, 1),
    ]
    assert [r.ordinal for r in told] == sorted(r.ordinal for r in told)
    assert here.run.positions == {6: 1}
    assert not here.run.ended


def test_documents_that_are_no_json_are_told_with_their_places() -> None:
    told: list[tuple[int, int, bytes]] = []
    here = Given(ONE, options={"garbage": lambda *place: told.append(place)})
    here.begin(6)
    here.mutate(6, (7, "d", b"{"), (8, "e", {"a": "x", "b": 4}))
    assert told == [(6, 7, b"{")]


def test_what_may_be_no_json_is_read_as_a_whole() -> None:
    """A topic has what anybody wrote. Else a later index would find what an earlier one took."""
    told: list[tuple[int, int, bytes]] = []
    here = Given(ONE, options={"garbage": lambda *place: told.append(place)})
    here.begin(6)
    bad = [b'{"a":"x","other":"\xff"}', b'{"a":"x","other":1e999}']
    here.mutate(6, *((seqno, "d", text) for seqno, text in enumerate(bad, 7)))
    assert told == [(6, 7, bad[0]), (6, 8, bad[1])]


def test_an_index_that_comes_later_finds_its_own_fields() -> None:
    here = Given(ONE)
    here.begin(0)
    here.mutate(0, (1, "d", {"a": "x", "b": 4}))
    here.carry(ONE, TWO)
    here.mutate(0, (2, "d", {"a": "x", "b": 4}))
    found = [i for n in (1, 2, 3) for i in here.items(n, UPSERT) if i.place == TWO.id]
    assert {i.seqno for i in found} == {2}


def test_an_evaluation_that_fails_is_counted_and_stops_nothing() -> None:
    def fails(document_id: str, _: Any) -> bytes | None:
        if document_id == "long":
            return b"x" * (KEY_BYTES_MAX + 1)
        raise RuntimeError(document_id)

    here = Given(ONE, TWO)
    here.router.carry([replace(route(ONE), evaluate=fails), route(TWO)])
    here.begin(0)
    here.mutate(0, (1, "d", {"a": 1, "b": 2}), (2, "long", {"a": 1, "b": 2}))
    assert here.router.errors == {1: 2}
    assert [i.kind for i in here.items(1, UPSERT, ABSENT) if i.place == ONE.id] == [ABSENT, ABSENT]
    assert len([i for n in (1, 2, 3) for i in here.items(n, UPSERT) if i.place == TWO.id]) >= 2


def test_a_catch_up_is_for_one_indexer_and_says_what_is_absent() -> None:
    here = Given(ONE, TWO, kind="catch-up", indexer=1)
    here.begin(0, seqno=4)
    here.mutate(0, (5, "d", {"a": 1, "b": 2}), (6, "e", None))
    here.router.flush()
    assert {indexer for _, indexer, _ in here.sink.sent} == {1}
    assert [i.seqno for i in here.items(1, UPSERT, ABSENT)] == [5, 5, 6, 6]


def test_indexes_of_which_a_vbucket_is_not_sent_have_no_items_of_it() -> None:
    here = Given(ONE, TWO, kind="backfill", shares={2: frozenset({2})})
    here.begin(1, 2)
    for vbucket in (1, 2):
        here.mutate(vbucket, (1, f"d{vbucket}", {"a": 1, "b": 2}))
    here.feed(frames.end(2, 1, Reason.DONE))
    places = {(i.vbucket, i.place) for n in (1, 2, 3) for i in here.items(n, UPSERT)}
    assert places == {(1, ONE.id), (1, TWO.id), (2, TWO.id)}
    begins = {v: indexes for v, (_, indexes) in here.sink.begun(1).items()}
    assert begins == {1: (ONE.id, TWO.id), 2: (TWO.id,)}


def test_of_what_only_some_indexes_are_sent_the_others_are_not_told_that_it_is_absent() -> None:
    """A backfill of a log tells what is absent, but not to an index that has the vbucket."""
    here = Given(ONE, TWO, kind="backfill", shares={2: frozenset({2})}, options={"is_topic": True})
    here.begin(1, 2)
    for vbucket in (1, 2):
        here.mutate(vbucket, (1, "d", {"a": 1, "b": 2}), (2, "e", None))
    items = [(i.vbucket, i.seqno, i.place) for i in here.items(1, UPSERT, ABSENT)]
    assert items == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2)]


def many(count: int) -> list[Index]:
    slices = (Slice(0, 1, (2,)),)
    return [an_index(n, expressions=("a",), slices=slices) for n in range(1, count + 1)]


def test_items_of_one_seqno_that_fit_into_a_record_are_in_one() -> None:
    here = Given(*many(40))
    here.begin(0)
    here.mutate(0, *((n, f"d{n}", {"a": "x" * 900}) for n in range(1, 50)))
    here.router.flush()
    seqnos: dict[int, set[int]] = defaultdict(set)
    for place, (_, indexer, record) in enumerate(here.sink.sent):
        assert not record.continued
        for item in unpack(record.items):
            if item.kind == DOCUMENT and indexer == 1:
                seqnos[item.seqno].add(place)
    assert len(here.sink.sent) > 10
    assert set(map(len, seqnos.values())) == {1}


def test_a_mutation_of_more_items_than_a_record_holds_goes_on_in_the_next_ones() -> None:
    here = Given(*many(1_000))
    here.begin(0)
    for seqno in (1, 2):
        here.mutate(0, (seqno, f"d{seqno}", {"a": "x" * 4_000}))
    for indexer in (1, 2):
        records = [record for _, who, record in here.sink.sent if who == indexer]
        assert max(len(codec.encode(record)) for record in records) < 1024 * 1024
        assert max(len(record.items) for record in records) <= RECORD_BYTES_MAX
        items = [
            [(i.seqno, place) for i in unpack(r.items) for place, _, _ in i.placed] for r in records
        ]
        assert list(chain(*items)) == [(n, place) for n in (1, 2) for place in range(1_000)]
        for record, held, after in zip(records, items, items[1:], strict=False):
            assert record.continued == bool(held and after and held[-1][0] == after[0][0])
        assert sum(record.continued for record in records) > 10
        assert not records[-1].continued


def test_the_largest_of_the_items_of_a_mutation_says_when_a_record_is_full() -> None:
    big = [an_index(n, expressions=("a",), slices=(Slice(0, 1, (2,)),)) for n in range(1, 60)]
    small = an_index(99, expressions=("b",), slices=(Slice(0, 1, (9,)),))
    here = Given(*big, small)
    here.begin(0)
    here.mutate(0, *((n, f"d{n}", {"a": "x" * 900, "b": 1}) for n in range(1, 50)))
    here.router.flush()
    assert max(len(r.items) for _, _, r in here.sink.sent) <= 2 * ITEM_BYTES_MAX


def test_a_mutation_that_is_cut_is_cut_into_few_items() -> None:
    here = Given(*many(1_000))
    here.begin(0)
    here.mutate(0, (1, "d", {"a": "x" * 900}))
    here.router.flush()
    items = [i for i in here.sink.raw(1) if i.placed]
    assert len(items) <= 1 + 1_000 * 920 // (ITEM_BYTES_MAX - 920)


@examples(30)
@given(sizes=st.lists(st.integers(0, 40), max_size=30), bytes_max=st.integers(1, 200))
def test_the_parts_of_what_is_sent_are_all_of_it_in_its_order(
    sizes: list[int], bytes_max: int
) -> None:
    items = [pack(Item(UPSERT, 0, n // 3, payload=b"k" * size)) for n, size in enumerate(sizes)]
    parts = list(_parts(items, bytes_max))
    assert b"".join(part for part, _ in parts) == b"".join(items)
    ends = [list(unpack(part)) for part, _ in parts if part]
    for (_, continued), held, after in zip(parts, ends, ends[1:], strict=False):
        assert continued == (held[-1].seqno == after[0].seqno)
    for held in ends:
        assert len(held) == 1 or sum(len(pack(item)) for item in held) <= bytes_max


def test_each_record_names_the_one_before_it_on_its_partition_and_for_its_indexer() -> None:
    here = Given(ONE, TWO)
    here.begin(0, 1)
    for seqno in range(1, 5):
        here.mutate(seqno % 2, (seqno, f"d{seqno}", {"a": seqno, "b": 2}))
        here.feed(frames.sync([(seqno % 2, seqno)]))
    last: dict[tuple[int, int], int] = {}
    for partition, indexer, record in here.sink.sent:
        assert record.previous == last.get((partition, indexer), 0)
        last[partition, indexer] = record.ordinal
    assert len(last) == 6


def test_a_probe_is_a_record_for_everybody_after_all_that_waits() -> None:
    here = Given(ONE, TWO)
    here.begin(0)
    here.mutate(0, (1, "d", {"a": 1, "b": 2}))
    here.router.probe()
    last = {(p, who): record for p, who, record in here.sink.sent}
    assert last.keys() == {(p, who) for p in range(PARTITIONS) for who in (1, 2, 3)}
    assert not any(record.items for record in last.values())
    assert here.sink.of(1, UPSERT), "what waited went before"


def test_a_probe_says_how_far_vbuckets_have_come_unless_something_is_about_to_follow() -> None:
    here = Given(ONE, TWO)
    here.begin(3)
    for vbucket in (0, 1, 2):
        here.begin(vbucket)
        here.mutate(vbucket, (4, "d", {"a": 1, "b": 2}))
    here.feed(frames.sync([(0, 4), (1, 4)]))
    here.mutate(1, (5, "d", {"a": 2}))
    before = len(here.sink.of(2, SYNC))
    here.router.probe([0, 1, 2, 3, 7])
    assert [(item.vbucket, item.seqno) for item in here.sink.of(2, SYNC)[before:]] == [(0, 4)]


documents = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 3) | st.text(max_size=3),
        "b": st.integers(0, 9),
        "k": st.sampled_from(("x", "y", 7, ["x"])),
        "n": st.sampled_from(({"z": "z"}, {"z": "x"}, "z")),
    },
)
writes = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 5), st.none() | documents), max_size=60
)


@examples(60)
@given(writes=writes, flush_each=st.integers(1, 7))
def test_who_applies_the_items_has_what_the_documents_say(
    writes: list[tuple[int, int, Any]], flush_each: int
) -> None:
    indexes = (ONE, TWO, PART, OF_X, OF_Y, OF_Z)
    here = Given(OF_Y, *indexes[:4], OF_Z)
    here.begin(*range(8))
    truth: dict[str, Any] = {}
    seqnos: dict[int, int] = defaultdict(int)
    for step, (vbucket, number, document) in enumerate(writes):
        seqnos[vbucket] += 1
        name = f"{vbucket}-{number}"
        here.mutate(vbucket, (seqnos[vbucket], name, document))
        truth[name] = document
        if step % flush_each == 0:
            here.router.flush()
    held: dict[tuple[int, int, int], dict[str, bytes]] = defaultdict(dict)
    for indexer in (1, 2, 3):
        for item in here.items(indexer, UPSERT, ABSENT):
            index = indexes[item.place - 1]
            for piece in index.slices_on(indexer):
                held[indexer, index.id, piece].pop(item.document.decode(), None)
            if item.kind == UPSERT:
                held[indexer, index.id, item.slice][item.document.decode()] = item.payload
    for index in indexes:
        evaluate, topology = compile_index(index), topology_of(index)
        for piece in index.slices:
            wanted = {}
            for name, document in truth.items():
                key = None if document is None else evaluate(name, document)
                if key is not None and topology.slice_of(key) == piece:
                    wanted[name] = key
            for host in piece.hosts:
                assert held[host, index.id, piece.number] == wanted


TAGS = an_index(
    7,
    expressions=("DISTINCT t", "a"),
    slices=(Slice(0, 1, (3,)), Slice(1, 2), Slice(2, 3), Slice(3, 1)),
)


def keys_of(index: Index, document: Any) -> dict[int, set[tuple[int, bytes]]]:
    """Return slices and keys of a document, by the indexers that have the slices."""
    found: dict[int, set[tuple[int, bytes]]] = {}
    for key in compile_index(index)("d", document) or ():
        assert isinstance(key, bytes)
        piece = topology_of(index).slice_of(key)
        for host in piece.hosts:
            found.setdefault(host, set()).add((piece.number, key))
    return found


def test_several_keys_of_a_document_go_to_the_hosts_of_their_slices_in_one_item() -> None:
    here = Given(TAGS, TWO)
    here.begin(6)
    document = {"a": 1, "b": 2, "t": list(range(20))}
    here.mutate(6, (1, "d", document), (2, "d", {"a": 1, "t": [3]}), (3, "d", {"t": []}))
    here.router.flush()
    wanted = keys_of(TAGS, document)
    assert set(wanted) == {1, 2, 3}
    for indexer in (1, 2, 3):
        assert [i.kind for i in here.sink.raw(indexer)] == [BEGIN, DOCUMENT, DOCUMENT, DOCUMENT]
        of_first = [i for i in here.sink.raw(indexer) if i.seqno == 1 and i.kind == DOCUMENT]
        places = {place: piece for place, piece, _ in of_first[0].placed}
        assert places[0] == MANY
        items = [i for i in here.items(indexer, UPSERT) if i.place == TAGS.id]
        assert {(i.slice, i.payload) for i in items if i.seqno == 1} == wanted[indexer]
        one = keys_of(TAGS, {"a": 1, "t": [3]}).get(indexer, set())
        assert {(i.slice, i.payload) for i in items if i.seqno == 2} == one
        assert not [i for i in items if i.seqno == 3]


def test_many_keys_of_many_indexes_are_told_one_by_one() -> None:
    """What is too much for one item says of each index everything in one place."""
    several = [replace(TAGS, id=10 + n, slices=(Slice(0, 1),)) for n in range(4)]
    here = Given(*several)
    here.begin(6)
    document = {"a": "x" * 300, "t": [f"{n:04d}" for n in range(140)]}
    here.mutate(6, (1, "d", document))
    here.router.flush()
    items = [i for i in here.sink.raw(1) if i.seqno == 1]
    assert {i.kind for i in items} == {PLACES}
    assert len(items) > 1
    for index in several:
        told_of = [i for i in here.items(1, UPSERT) if i.place == index.id]
        assert {(i.slice, i.payload) for i in told_of} == keys_of(index, document)[1]
    assert len([place for i in items for place in i.placed]) == len(several)


def test_a_document_of_too_many_keys_is_counted_and_is_in_no_slice() -> None:
    here = Given(TAGS)
    here.begin(6)
    here.mutate(6, (1, "d", {"t": [1]}), (2, "d", {"t": list(range(9_000))}))
    assert here.router.errors == {TAGS.id: 1}
    assert not [i for n in (1, 2, 3) for i in here.items(n, UPSERT) if i.seqno == 2]


# -- control ---------------------------------------------------------------------------------------


def test_a_begin_names_the_branch_and_the_indexes_that_its_reader_hosts() -> None:
    here = Given(ONE, TWO, PART)
    here.begin(6, seqno=3)
    here.router.flush()
    assert {n: here.sink.begun(n)[6] for n in (1, 2, 3)} == {
        1: (BRANCH, (ONE.id, TWO.id)),
        2: (BRANCH, (TWO.id, PART.id)),
        3: (BRANCH, (TWO.id,)),
    }
    (record,) = [r for r in here.sink.records if isinstance(r, StreamBegin)]
    assert (record.vbucket, record.vbuuid, record.seqno) == (6, BRANCH, 3)
    (log,) = [r for r in here.sink.records if isinstance(r, FailoverLog)]
    assert [(b.vbuuid, b.seqno) for b in log.branches] == [(BRANCH, 0)]


@pytest.mark.parametrize("kind", ["maintenance", "backfill", "catchup"])
def test_the_history_of_a_vbucket_that_has_branched_comes_right_before_its_begin(kind: str) -> None:
    here = Given(ONE, kind=kind)
    log = (Branch(BRANCH, 9), Branch(7, 0))
    here.feed(frames.begin(6, BRANCH, 3, log))
    here.begin(2)
    items = [(i.kind, i.vbucket) for i in here.items(1)]
    assert items == [(HISTORY, 6), (BEGIN, 6), (BEGIN, 2)]
    assert branches(here.items(1, HISTORY)[0]) == tuple(FailoverBranch(*branch) for branch in log)


def test_the_history_of_a_partition_is_told_although_it_has_one_branch() -> None:
    """Kafka may have forgotten others: whoever is on one of them has to know."""
    here = Given(ONE, options={"is_topic": True})
    here.begin(2)
    assert [i.kind for i in here.items(1)] == [HISTORY, BEGIN]
    assert branches(here.items(1, HISTORY)[0]) == (FailoverBranch(BRANCH, 0),)


def test_the_history_of_a_vbucket_comes_right_before_an_attach() -> None:
    here = Given(ONE)
    here.feed(frames.begin(6, BRANCH, 3, (Branch(BRANCH, 9), Branch(7, 0))))
    here.begin(2)
    here.carry(ONE, TWO, attached=(2,))
    items = [(i.kind, i.vbucket) for i in here.items(2)]
    assert items == [(HISTORY, 6), (ATTACH, 6), (ATTACH, 2)]


def test_a_history_and_its_begin_are_never_in_two_records() -> None:
    here = Given(ONE)
    here.router._record_bytes_max = 100
    for vbucket in (2, 6):
        here.feed(frames.begin(vbucket, BRANCH, 3, (Branch(BRANCH, 9), Branch(7, 0))))
    here.router.flush()
    records = [record for _, who, record in here.sink.sent if who == 1]
    assert [[i.kind for i in unpack(r.items)] for r in records] == [[HISTORY, BEGIN]] * 2


def test_an_index_is_attached_where_each_vbucket_is() -> None:
    here = Given(ONE)
    here.begin(0, 5, seqno=2)
    here.mutate(5, (7, "d", {"a": 1, "b": 2}))
    here.carry(ONE, TWO, attached=(2,))
    here.mutate(5, (8, "d", {"a": 1, "b": 2}))
    places = [(i.vbucket, i.seqno, i.place, i.payload) for i in here.items(2, ATTACH)]
    assert sorted(places) == [(0, 2, 2, VBUUID.pack(BRANCH)), (5, 7, 2, VBUUID.pack(BRANCH))]
    assert [i.seqno for i in here.items(1) if i.kind in (UPSERT, ABSENT)] == [7, 8, 8]
    assert here.items(3)[0].kind == ATTACH, "before any item of the index"


def test_records_say_for_which_builds_they_are() -> None:
    here = Given(ONE, TWO)
    here.begin(0)
    here.carry(replace(ONE, build=4), TWO, attached=(1,))
    first, *_, last = [record for _, indexer, record in here.sink.sent if indexer == 1]
    assert (first.indexes, first.builds) == ((1, 2), (1, 1))
    assert (last.indexes, last.builds) == ((1, 2), (4, 1))


def test_an_index_that_is_carried_no_more_has_no_items() -> None:
    here = Given(ONE, TWO)
    here.begin(0)
    here.carry(TWO)
    here.mutate(0, (1, "d", {"a": 1, "b": 2}))
    here.router.flush()
    record = here.sink.sent[-1][2]
    assert record.indexes == (2,)
    assert {i.place for i in here.items(1, UPSERT, ABSENT)} == {2}


def test_records_list_the_indexes_that_their_reader_hosts() -> None:
    """What they do not list, a DOCUMENT says nothing of."""
    here = Given(ONE, TWO, PART)
    here.begin(0)
    here.mutate(0, (1, "d", None))
    here.router.flush()
    listed = {indexer: record.indexes for _, indexer, record in here.sink.sent}
    assert listed == {1: (1, 2), 2: (2, 3), 3: (2,)}


def test_a_sync_comes_after_all_that_it_promises() -> None:
    here = Given(ONE, TWO)
    here.begin(0, 1)
    here.mutate(0, (1, "d", {"a": 1, "b": 2}))
    here.mutate(1, (3, "e", None))
    here.feed(frames.sync([(0, 1), (1, 3), (7, 9)]))
    for indexer in (1, 2, 3):
        items = here.sink.of(indexer)
        assert [(i.vbucket, i.seqno) for i in items if i.kind == SYNC] == [(0, 1), (1, 3)]
        for sync in (i for i in items if i.kind == SYNC):
            behind = items[items.index(sync) :]
            assert not any(i.kind != SYNC and i.vbucket == sync.vbucket for i in behind)
    (vector,) = here.sink.vectors()
    assert [(r.vbucket, r.vbuuid, r.seqno) for r in syncs_of(vector)] == [
        (0, BRANCH, 1),
        (1, BRANCH, 3),
    ]
    last_items = max(n for n, r in enumerate(here.sink.all) if isinstance(r, KeyVersions))
    assert here.sink.all.index(vector) > last_items
    assert here.run.positions == {0: 1, 1: 3}


def test_who_is_attached_hears_where_a_snapshot_has_ended() -> None:
    """Nothing may follow, and it has held nothing until now."""
    here = Given(ONE)
    for vbucket in (0, 1):
        here.begin(vbucket)
        here.mutate(vbucket, (4, "d", {"a": 1}))
    here.feed(frames.sync([(0, 4), (1, 4)]))
    here.mutate(1, (5, "d", {"a": 2}))
    here.carry(ONE, TWO, attached=(TWO.id,))
    told = [(item.kind, item.vbucket, item.seqno) for item in here.items(3)]
    assert sorted(told) == sorted([(ATTACH, 0, 4), (SYNC, 0, 4), (ATTACH, 1, 5)])


def test_a_catch_up_that_would_end_on_another_branch_brings_nothing() -> None:
    here = Given(ONE, kind="catch-up")
    here.run.until_on = {0: BRANCH + 1, 1: BRANCH}
    here.begin(0, 1)
    here.mutate(0, (4, "d", {"a": 1}))
    here.feed(frames.end(0, 4, Reason.DONE))
    assert (set(here.run.positions), here.run.done) == ({1}, [])


def test_where_nothing_changes_the_last_sync_is_repeated_but_not_to_the_indexers() -> None:
    here = Given(ONE, TWO)
    here.begin(0, 1, 2, seqno=3)
    here.feed(frames.sync([(0, 5)]))
    here.router.repeat()
    here.feed(frames.sync([(1, 7)]))
    here.feed(frames.end(2, 0, Reason.MOVED))
    here.router.repeat()
    syncs = [[(r.vbucket, r.seqno) for r in syncs_of(vector)] for vector in here.sink.vectors()]
    assert syncs == [[(0, 5)], [(1, 7)], [(0, 5)]], "where 2 has begun may be within a snapshot"
    assert [i.seqno for i in here.items(1, SYNC)] == [5, 7]


def test_where_nothing_changes_indexers_hear_that_this_is_all() -> None:
    here = Given(ONE)
    here.begin(0)
    here.router.flush()
    here.router.repeat()
    ordinals = [record.ordinal for p, who, record in here.sink.sent if (p, who) == (0, 1)]
    assert here.sink.sent[-1][2].items == b""
    assert ordinals == sorted(set(ordinals))
    assert {p for p, who, record in here.sink.sent if not record.items} == {0, 1, 2, 3}


def test_a_backfill_sends_no_sync() -> None:
    here = Given(ONE, kind="backfill")
    here.begin(0)
    here.feed(frames.sync([(0, 5)]))
    assert here.items(1, SYNC) == []
    assert here.sink.vectors() == []


def test_of_more_vbuckets_than_a_record_may_name_several_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_module, "SYNCED_MAX", 2)
    here = Given(ONE)
    here.begin(*range(5))
    here.feed(frames.sync([(vbucket, 10 + vbucket) for vbucket in range(5)]))
    told = [syncs_of(vector) for vector in here.sink.vectors()]
    assert [len(some) for some in told] == [2, 2, 1]
    assert [(r.vbucket, r.seqno) for some in told for r in some] == [(v, 10 + v) for v in range(5)]
    ordinals = [some[0].ordinal for some in told]
    assert ordinals == sorted(set(ordinals))


def test_only_the_end_of_what_was_sent_to_its_end_is_an_item() -> None:
    here = Given(ONE, TWO, kind="backfill")
    here.begin(0, 1, 2)
    here.feed(frames.end(0, 8, Reason.DONE))
    here.feed(frames.end(1, 4, Reason.MOVED))
    here.feed(frames.end(5, 4, Reason.DONE))
    here.router.close("broken")
    for indexer in (1, 2, 3):
        assert [(i.vbucket, i.seqno) for i in here.sink.of(indexer, END)] == [(0, 8)]
    ends = [(r.vbucket, r.reason) for r in here.sink.records if isinstance(r, StreamEnd)]
    assert ends == [(0, "done"), (1, "moved"), (2, "closed")]
    closed = here.sink.all[-1]
    assert isinstance(closed, ConnectionClosed)
    assert closed.reason == "broken"
    assert here.run.done == [0], "a vbucket that never began is not done"
    assert (here.run.ended, here.run.positions) == ({0: 0, 1: 1, 5: 0}, {})


def test_ordinals_count_all_records_of_a_connection() -> None:
    here = Given(ONE, TWO)
    here.begin(0, 1)
    here.mutate(0, (1, "d", {"a": 1, "b": 2}))
    here.feed(frames.sync([(0, 1)]))
    here.router.close("over")
    ordinals = [r.ordinal for r in here.sink.all if not isinstance(r, FailoverLog)]
    assert ordinals == list(range(1, len(ordinals) + 1))


def test_a_document_is_evaluated_for_the_indexes_in_which_it_may_be() -> None:
    asked: list[int] = []

    def counting(index: Index) -> Route:
        known = route(index)

        def evaluate(name: str, document: Any) -> bytes | None:
            asked.append(index.id)
            return known.evaluate(name, document)

        return replace(known, evaluate=evaluate)

    here = Given(ONE, OF_X, OF_Y, OF_Z)
    here.router.carry([counting(index) for index in (OF_X, ONE, OF_Y, OF_Z)])
    here.begin(0)
    here.mutate(0, (1, "d", {"k": "y", "a": 1, "b": 2, "n": {"z": "z"}}))
    assert asked == [ONE.id, OF_Y.id, OF_Z.id]
    asked.clear()
    here.mutate(0, (2, "d", {"k": 5, "n": "z"}), (3, "d", ["k"]), (4, "d", None))
    assert asked == [ONE.id, ONE.id]


def test_what_waits_is_not_sent_after_a_gap() -> None:
    here = Given(ONE)
    here.begin(0)
    here.router.flush()
    here.mutate(0, (1, "d", {"a": 1}))
    count = len(here.sink.sent)
    here.router.close("Kafka refuses", lost=True)
    assert len(here.sink.sent) == count
    assert isinstance(here.sink.all[-1], ConnectionClosed)


def test_of_a_vbucket_that_was_given_up_nothing_more_is_sent() -> None:
    here = Given(ONE)
    here.begin(2, 3)
    here.mutate(2, (1, "d", {"a": 1}))
    here.router.give_up({2, 6})
    (end,) = [record for record in here.sink.records if isinstance(record, StreamEnd)]
    assert (end.vbucket, end.seqno, end.reason) == (2, 1, "replaced")
    assert here.sink.all.index(end) > here.sink.all.index(here.sink.sent[-1][2])
    before = len(here.sink.all)
    here.begin(2, 6)
    here.mutate(2, (2, "e", {"a": 2}))
    here.feed(frames.sync([(2, 2), (6, 0)]))
    here.feed(frames.rollback(6, 0))
    here.router.close("over")
    assert {item.vbucket for _, _, record in here.sink.sent for item in unpack(record.items)} == {
        2,
        3,
    }
    told = here.sink.all[before:]
    assert [r.vbucket for r in told if isinstance(r, StreamEnd)] == [3]
    assert not [r for r in told if isinstance(r, StreamBegin | KeyVersions)]
    assert here.run.begun() == set()


def test_a_rollback_ends_a_vbucket_that_never_began() -> None:
    here = Given(ONE, starts={3: (BRANCH, 50)})
    here.feed(frames.rollback(3, 20))
    here.mutate(3, (51, "d", {"a": 1}))
    assert here.items(1) == []
    (record,) = here.sink.records
    assert (record.vbucket, record.vbuuid, record.seqno, record.reason) == (
        *(3, BRANCH, 50),
        "rollback",
    )
    assert here.run.refused == {3: 20}


def test_mutations_of_what_has_not_begun_are_no_items() -> None:
    """Who receives them could not tell what came before."""
    here = Given(ONE)
    here.mutate(3, (51, "d", {"a": 1}))
    assert here.items(1) == []
    assert here.run.positions == {}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (9, b""),
        (Kind.BEGIN, b"\0"),
        (Kind.SYNC, b"\0\0\0"),
        (Kind.END, b"\0\0" + bytes(8) + b"\x63"),
        (Kind.MUTATIONS, b"\0\0" + frames.pack_mutation(1, b"d", b"{}")[:-1]),
        (Kind.MUTATIONS, b"\0\0" + b"\0\0\0"),
    ],
)
def test_what_is_no_frame_is_refused(kind: int, body: bytes) -> None:
    here = Given(ONE)
    here.begin(0)
    with pytest.raises(FrameError):
        here.router.route(kind, body)


def test_a_vbucket_that_nobody_has_asked_for_does_not_begin() -> None:
    """The stream planner could make nothing of it, and another connection may bring it."""
    here = Given(ONE)
    with pytest.raises(FrameError, match="nobody has asked"):
        here.begin(999)
    assert here.run.positions == {}


# -- frames and routes -----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 6), st.binary(max_size=40)), max_size=20),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_frames_come_out_however_the_bytes_are_cut(
    sent: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(HEAD.pack(len(body) + 1, kind) + body for kind, body in sent)
    rest, found, at, turn = bytearray(), [], 0, 0
    while at < len(data):
        found += split(rest, data[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    assert found == sent
    assert not rest


@pytest.mark.parametrize("size", [0, 2**31])
def test_a_frame_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a frame of"):
        split(bytearray(), HEAD.pack(size, 2))


def test_parts_of_an_index_are_evaluated_once_and_each_tells_its_own_hosts() -> None:
    """The index has slices 0 and 2 on indexer 1, its part slice 1 on indexer 3."""
    whole = an_index(4, slices=(Slice(0, 1), Slice(1, NOWHERE), Slice(2, 1)))
    part = replace(
        whole, id=9, part_of=4, slices=(Slice(0, NOWHERE), Slice(1, 3), Slice(2, NOWHERE))
    )
    assert route(whole).evaluate is route(part).evaluate
    assert route(replace(whole, where="b > 1")).evaluate is not route(part).evaluate
    here = Given(whole, ONE, part)
    here.begin(0)
    seen: set[int] = set()
    for seqno in range(1, 40):
        document = {"a": seqno}
        key = compile_index(whole)("d", document)
        assert key is not None
        number = topology_of(whole).slice_of(key).number
        seen.add(number)
        here.mutate(0, (seqno, "d", document))
        for index, indexer in ((whole, 1), (part, 3)):
            items = here.items(indexer, UPSERT, ABSENT)
            (item,) = [i for i in items if (i.seqno, i.place) == (seqno, index.id)]
            is_there = (number == 1) == (index is part)
            assert item.kind == (UPSERT if is_there else ABSENT)
            assert item.slice == (number if is_there else NO_SLICE)
            assert item.payload == (key if is_there else b"")
    assert seen == {0, 1, 2}
    here.mutate(0, (40, "d", None))
    kinds = [i.kind for indexer in (1, 3) for i in here.items(indexer) if i.seqno == 40]
    assert set(kinds) == {ABSENT}


def test_keys_depend_on_the_definition_alone() -> None:
    of_the_key = {field.name for field in fields(Index)} - NOT_OF_THE_KEY.keys()
    assert of_the_key == {"expressions", "where", "primary"}


def test_a_route_is_made_once_while_nothing_changes_that_it_rests_on() -> None:
    made: list[int] = []

    def make(index: Index) -> Route:
        made.append(index.build)
        return route(index)

    routes = Routes(make)
    first = routes.of(ONE)
    assert routes.of(replace(ONE, state="maintenance", build=2)) is first
    assert routes.of(replace(ONE, slices=(Slice(0, 2),))).indexers == {2}
    assert made == [1, 1]


def test_an_index_that_cannot_be_evaluated_has_no_route_and_a_reason() -> None:
    routes = Routes()
    bad = replace(ONE, expressions=("no (such",), state=BACKFILL)
    assert routes.why_not(bad)
    assert routes.why_not(ONE) == ""
    with pytest.raises(RouteError):
        routes.of(bad)


def test_an_index_is_attached_in_those_vbuckets_only() -> None:
    here = Given(ONE)
    here.begin(0, 1)
    here.feed(frames.sync([(0, 4), (1, 4)]))
    here.run.carried = {index.id: index for index in (ONE, TWO)}
    here.router.carry([route(ONE), route(TWO)], (TWO.id,), frozenset({0}))
    told = [(item.kind, item.vbucket, item.seqno) for item in here.items(3)]
    assert told == [(ATTACH, 0, 4), (SYNC, 0, 4)]


def test_where_a_snapshot_of_another_branch_has_ended_is_not_repeated() -> None:
    """What has begun again may be within a snapshot."""
    here = Given(ONE)
    here.begin(0)
    here.feed(frames.sync([(0, 5)]))
    here.feed(frames.end(0, 5, Reason.MOVED))
    here.feed(frames.begin(0, BRANCH + 1, 5, (Branch(BRANCH + 1, 5), Branch(BRANCH, 0))))
    here.router.repeat()
    here.router.repeat()
    assert len(here.sink.vectors()) == 1


def test_a_sync_takes_no_position_back() -> None:
    here = Given(ONE)
    here.begin(0)
    here.mutate(0, (5, "d", {"a": 1}))
    here.feed(frames.sync([(0, 3)]))
    assert here.run.positions == {0: 5}


def test_the_end_of_a_vbucket_is_for_who_hosts_what_it_was_sent_of() -> None:
    here = Given(ONE, TWO, kind="backfill", shares={2: frozenset({ONE.id})})
    here.begin(2, 3)
    here.feed(frames.end(2, 0, Reason.DONE))
    here.feed(frames.end(3, 0, Reason.DONE))
    ends = {n: [item.vbucket for item in here.items(n, END)] for n in (1, 2, 3)}
    assert ends == {1: [2, 3], 2: [3], 3: [3]}


def test_a_backfill_says_nothing_of_what_is_absent_also_of_a_mutation_that_is_cut() -> None:
    here = Given(ONE, TWO, kind="backfill", options={"record_bytes_max": 100})
    here.begin(0)
    here.mutate(0, (1, "d", {"a": "x" * 200}))
    assert [(i.kind, i.place) for i in here.items(1, UPSERT, ABSENT)] == [(UPSERT, ONE.id)]

"""Parts are filled from what other indexers hold: on a real RocksDB, in both storages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from coordinator.core.keys.key_versions import (
    END,
    SYNC,
    Item,
    begin,
    history,
    unpack,
)
from coordinator.core.model.entities import PENDING
from coordinator.core.model.stream_records import BACKFILL as BACKFILL_KIND
from coordinator.core.model.stream_records import MAINTENANCE, FailoverBranch
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket import transfers
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import pack_back
from indexer_sim.bucket.transfers import (
    LEASE_S,
    Ask,
    Giving,
    TransferRefused,
    ask_bytes,
    given_bytes,
    read_ask,
    read_given,
)
from indexer_sim.pipeline import fillings as module
from indexer_sim.pipeline.fillings import Filling, Fillings
from tests.support.fed_storage import BRANCH, FedStorage, make_rollback
from tests.support.sizes import counted, scanned
from tests.support.transfers import (
    ALL,
    INDEX,
    NEWER,
    OTHER,
    PART,
    SECOND,
    SOURCE,
    VBUCKETS,
    Holder,
    Target,
    entries_of,
    gone,
    put,
    put_many,
    written,
)


def exchange(target: Target, *holders: Holder, now_s: float = 0.0, steps: int = 1_000) -> int:
    """Bring questions and answers until nothing more is asked; return how many there were."""
    by_number = {holder.number: holder for holder in holders}
    for step in range(steps):
        asks = target.fillings.asks(now_s)
        if not asks:
            return step
        for filling, ask in asks:
            answer(target, by_number[ask.indexer], filling, ask, now_s)
    return steps


def answer(target: Target, holder: Holder, filling: Filling, ask: Ask, now_s: float = 0.0) -> None:
    try:
        given = holder.giving.answer(read_ask(ask_bytes(ask)))
    except TransferRefused as refusal:
        target.fillings.refused(filling, refusal, now_s)
        return
    target.fillings.take(filling, ask, read_given(given_bytes(given)), now_s)
    assert counted(target.bucket) == scanned(target.bucket)


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are small."""
    monkeypatch.setattr(transfers, "DOCUMENTS_MAX", 2)
    monkeypatch.setattr(transfers, "LOOKED_AT_MAX", 3)
    monkeypatch.setattr(transfers, "AT_ONCE", 2)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path / "source", SOURCE, ALL)
    yield made
    made.storage.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path / "other", OTHER, SECOND)
    yield made
    made.storage.close()


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Any]:
    """Returns a target; it is closed at the end."""
    made: list[Target] = []

    def target(*attached: int, pieces: tuple[int, ...] = ALL) -> Target:
        made.append(Target(tmp_path / f"target{len(made)}", pieces, attached))
        return made[-1]

    yield target
    for one in made:
        one.storage.close()


def to_fill(source: Holder, at: Any, count: int) -> Target:
    """Return a target that is attached above all of so many documents, and knows its origin."""
    written(source, count)
    target: Target = at(count, 0)
    target.knows(*source.origins())
    return target


IN_BOTH = put_many(0, 1, b"d", (0, b"a"), (2, b"c"))
"""A document with keys in slices of two origins."""


def to_fill_from_both(source: Holder, other: Holder, at: Any) -> Target:
    """Return a target of the slices of both, which have one document."""
    for one in (source, other):
        one.apply(MAINTENANCE, 1, IN_BOTH, Item(SYNC, 0, 1))
    target: Target = at(1, 0, pieces=(*ALL, *SECOND))
    target.knows(*source.origins(), *other.origins())
    return target


# -- what is given, and taken ----------------------------------------------------------------------


def test_a_part_is_what_its_origin_holds(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 7)
    assert target.fillings.are_filled() == {PART}
    assert not target.is_complete
    assert exchange(target, source) >= 4
    assert target.entries() == entries_of(source, INDEX)
    assert target.is_complete
    assert target.fillings.are_idle
    assert target.fillings.said == [f"index {PART}: has 7 documents from indexer 1"]


def test_of_its_slices_it_gets_no_others(source: Holder, at: Any) -> None:
    written(source, 7)
    target = at(7, 0, pieces=(1,))
    target.knows(*source.origins((1,)))
    exchange(target, source)
    assert target.entries() == {1: entries_of(source, INDEX)[1]}


@pytest.mark.thorough
def test_what_comes_meanwhile_counts_whoever_tells_it(source: Holder, at: Any) -> None:
    """Random changes reach both, each at its own time, and pages come between them."""
    for seed in range(5):
        chance = Random(seed)
        written(source, 9)
        target = at(9, 0)
        target.knows(*source.origins())
        changes = []
        for seqno in range(10, 40):
            document = b"d%03d" % chance.randint(1, 12)
            item = (
                gone(0, seqno, document)
                if chance.random() < 0.4
                else put(0, seqno, document, chance.randint(0, 1), b"k%d" % chance.randint(0, 3))
            )
            changes.append(item)
        there, here = list(changes), list(changes)
        while there or here or not target.is_complete:
            roll = chance.random()
            if roll < 0.35 and there:
                source.apply(MAINTENANCE, 1, there.pop(0))
            elif roll < 0.7 and here:
                target.apply(MAINTENANCE, 1, here.pop(0))
            else:
                exchange(target, source, steps=1, now_s=chance.random() * 5 + len(target.entries()))
        assert target.entries() == entries_of(source, INDEX), seed
        source.storage.release(INDEX, frozenset(ALL))
        source.storage.allocate("b", INDEX, frozenset(ALL), b"")
        FedStorage.__init__(source, source.storage, (INDEX,), VBUCKETS)


def test_a_document_may_have_keys_in_slices_of_several_origins(
    source: Holder, other: Holder, at: Any
) -> None:
    item = put_many(0, 1, b"d", (0, b"a"), (1, b"b"), (2, b"c"))
    source.apply(MAINTENANCE, 1, item)
    other.apply(MAINTENANCE, 1, item)
    target = at(1, 0, pieces=(*ALL, *SECOND))
    target.knows(*source.origins(), *other.origins())
    exchange(target, source, other)
    assert target.is_complete
    assert target.entries() == {0: [b"ad"], 1: [b"bd"], 2: [b"cd"]}
    target.apply(MAINTENANCE, 1, gone(0, 2, b"d"))
    assert target.entries() == {0: [], 1: [], 2: []}


def test_what_one_of_two_origins_gave_is_completed_by_a_backfill(
    source: Holder, other: Holder, at: Any
) -> None:
    """One origin has given its keys of a document, the other one gives nothing: a projector tells
    all of them, of the same mutation."""
    target = to_fill_from_both(source, other, at)
    exchange(target, source, other, steps=2)
    assert target.entries() == {0: [b"ad"], 1: [], 2: []}
    [(filling, _)] = target.fillings.asks(0.0)
    target.fillings.refused(filling, TransferRefused("index_not_found", "it is not here"), 0.0)
    assert target.fillings.are_filled() == frozenset()
    target.apply(BACKFILL_KIND, 1, begin(0, Seqno(0), BRANCH, [0]), IN_BOTH, Item(END, 0, 1))
    assert target.entries() == {0: [b"ad"], 1: [], 2: [b"cd"]}
    assert counted(target.bucket) == scanned(target.bucket)


def test_nothing_is_taken_before_it_is_held_here_too(source: Holder, at: Any) -> None:
    """Else a rollback would not know that it has to take it back."""
    written(source, 5)
    target = at(2, 0)
    target.knows(*source.origins())
    assert exchange(target, source) == 1
    assert target.entries() == {0: [], 1: []}
    for seqno in (3, 4, 5):
        document, piece = b"d%03d" % seqno, seqno % 2
        target.apply(MAINTENANCE, 1, put(0, seqno, document, piece, b"k%d" % seqno))
    exchange(target, source, now_s=1.0)
    assert target.is_complete
    assert target.entries() == entries_of(source, INDEX)


def test_an_origin_that_is_not_that_far_is_asked_again(source: Holder, at: Any) -> None:
    written(source, 2)
    target = at(3, 0)
    target.knows(*source.origins())
    exchange(target, source)
    assert not target.is_complete
    assert target.fillings.are_filled() == {PART}
    source.apply(MAINTENANCE, 1, put(0, 3, b"d003", 1, b"k3"))
    exchange(target, source, now_s=1.0)
    assert target.is_complete
    assert target.entries() == entries_of(source, INDEX)


def test_a_transfer_stays_as_it_was_when_it_began(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source, steps=2)
    source.apply(MAINTENANCE, 1, gone(0, 7, b"d006"))
    source.apply(MAINTENANCE, 1, put(0, 8, b"d005", 0, b"other"))
    exchange(target, source, now_s=1.0)
    assert sorted(chain(*target.entries().values())) == [b"k%dd%03d" % (n, n) for n in range(1, 7)]
    target.apply(MAINTENANCE, 1, gone(0, 7, b"d006"), put(0, 8, b"d005", 0, b"other"))
    assert target.entries() == entries_of(source, INDEX)


# -- what goes wrong -------------------------------------------------------------------------------


def test_storage_that_begins_from_nothing_is_filled_anew(source: Holder, at: Any) -> None:
    written(source, 6)
    target = at(6, 0)
    part = target.knows(*source.origins())
    exchange(target, source, steps=3)
    assert sum(map(len, target.entries().values())) > 0
    target.storage.release(PART, frozenset(ALL))
    target.storage.allocate("b", PART, frozenset(ALL), b"")
    target.apply(MAINTENANCE, 1, *(begin(v, (6, 0)[v], BRANCH, [0]) for v in range(VBUCKETS)))
    target.fillings.know({PART: part})
    for turn in range(1, 5):
        exchange(target, source, now_s=float(turn))
    assert target.is_complete
    assert target.entries() == entries_of(source, INDEX)


def test_a_rollback_takes_back_what_was_filled(source: Holder, at: Any) -> None:
    """The store has lost what came after seqno 4; the origin has not heard of it."""
    target = to_fill(source, at, 6)
    exchange(target, source, steps=3)
    target.bucket.roll_back(make_rollback(3, NEWER, {0: 4}))
    for turn in range(1, 5):
        exchange(target, source, now_s=float(turn))
    assert not target.is_complete
    assert target.entries() == {0: [], 1: []}


def test_another_branch_is_not_what_was_given(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    target.apply(MAINTENANCE, 9, begin(0, 4, NEWER, [0]), number=2)
    exchange(target, source, now_s=1.0)
    assert target.entries() == {0: [], 1: []}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"indexer": 3}, "wrong_indexer"),
        ({"index": 5}, "index_not_found"),
        ({"shard": 1}, "slice_not_here"),
        ({"build": 2}, "slice_not_here"),
        ({"slices": (0, 5)}, "slice_not_here"),
        ({"number": 77}, "transfer_gone"),
        ({"at_least": (b"", b"")}, "invalid_request"),
        ({"at_least": (b"1", b"")}, "invalid_request"),
        ({"slices": (0,) * 100_000}, "invalid_request"),
        ({"at_least": (bytes(8 * 999), bytes(8 * 999))}, "invalid_request"),
    ],
)
def test_what_cannot_be_given_is_refused(source: Holder, wrong: dict[str, Any], code: str) -> None:
    right = first_ask(source)
    assert source.giving.answer(right).number
    asked = {name: getattr(right, name) for name in right.__struct_fields__} | wrong
    with pytest.raises(TransferRefused) as refused:
        source.giving.answer(Ask(**asked))
    assert refused.value.code == code
    assert not refused.value.is_passing


NO_QUESTIONS = [b"", b"\xff", b"{}", b"[1]", b'{"indexer": 1, "index": null}', b'{"x":' * 10_000]


@pytest.mark.parametrize("raw", NO_QUESTIONS)
def test_what_is_no_question_is_refused(raw: bytes) -> None:
    with pytest.raises(TransferRefused) as refused:
        read_ask(raw)
    assert refused.value.code == "invalid_request"


def test_who_refuses_for_good_leaves_it_to_projectors(source: Holder, at: Any) -> None:
    written(source, 3)
    target = at(3, 0)
    [first, second] = source.origins()
    part = target.knows(replace(first, shard=4), replace(second, shard=4))
    exchange(target, source)
    assert target.fillings.are_filled() == frozenset()
    assert target.fillings.are_idle
    assert "left to projectors" in target.fillings.said[0]
    target.fillings.know({PART: replace(part, build=2)})
    assert target.fillings.are_filled() == {PART}, "another build may be filled"


def test_who_does_not_get_on_leaves_it_to_projectors(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 3)
    assert len(target.fillings.asks(0.0)) == 1, "and nobody answers"
    assert target.fillings.asks(module.PATIENCE_S + 1) != [], "it may have been the turn of others"
    assert target.fillings.asks(module.PATIENCE_S + 2) != []
    assert target.fillings.asks(module.PATIENCE_S + 3) == []
    assert target.fillings.are_filled() == frozenset()


def test_who_begins_anew_again_and_again_leaves_it_to_projectors(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 3)
    for turn in range(module.ATTEMPTS_MAX + 3):
        for filling, _ in target.fillings.asks(float(turn)):
            target.fillings.refused(filling, TransferRefused("transfer_gone", ""), float(turn))
    assert target.fillings.are_filled() == frozenset()


def test_who_is_not_attached_everywhere_leaves_it_to_projectors(
    source: Holder, tmp_path: Path
) -> None:
    """They attach it again, and nobody else does."""
    written(source, 3)
    target = Target(tmp_path / "target", ALL, (3,))
    target.knows(*source.origins())
    for turn in range(int(module.PATIENCE_S) + 3):
        assert target.fillings.asks(float(turn)) == []
    assert target.fillings.are_filled() == frozenset()
    target.storage.close()


def test_what_a_backfill_has_brought_is_not_filled(source: Holder, at: Any) -> None:
    """What is deleted then leaves no tombstone, and would come back."""
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    target.apply(BACKFILL_KIND, 2, begin(0, 0, BRANCH, [0]))
    assert target.fillings.are_filled() == {PART}
    items = [put(0, n, b"d%03d" % n, n % 2, b"k%d" % n) for n in range(1, 5)]
    [(filling, page)] = target.fillings.asks(0.0)
    target.apply(BACKFILL_KIND, 2, *items, Item(END, 0, 4))
    target.apply(MAINTENANCE, 1, gone(0, 5, b"d001"))
    before = target.entries()
    answer(target, source, filling, page)
    exchange(target, source, now_s=1.0)
    assert target.entries() == before
    assert target.fillings.are_filled() == frozenset()
    assert "a projector has sent some of it" in target.fillings.said[0]
    again = Fillings(target.storage)
    again.know(dict(target.fillings._parts))
    assert again.are_filled() == frozenset(), "nor after a restart"
    assert again.asks(0.0) == []


def test_a_part_may_go_while_a_page_is_on_its_way(
    source: Holder, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released between the look-up of its bucket and the lock of that."""
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    [(filling, page)] = target.fillings.asks(0.0)
    given = source.giving.answer(page)
    found = target.storage.bucket_of
    looked_up = iter([target.bucket])

    def bucket_of(index_id: int) -> Bucket | None:
        return next(looked_up, None) or found(index_id)

    target.storage.release(PART, frozenset(ALL))
    monkeypatch.setattr(target.storage, "bucket_of", bucket_of)
    assert target.fillings.take(filling, page, given, 0.0) == 0
    assert next(looked_up, None) is None
    assert not (target.storage.folder / "buckets" / "b").exists()
    assert target.fillings.asks(1.0) == []


def test_a_failover_that_loses_nothing_begins_another_transfer(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source, steps=2)
    log = (FailoverBranch(Vbuuid(NEWER), Seqno(6)), FailoverBranch(Vbuuid(BRANCH), Seqno(0)))
    for one in (source, target):
        goes_on = next(unpack(history(0, log)))
        one.apply(MAINTENANCE, 1, Item(SYNC, 0, 6))
        one.apply(MAINTENANCE, 9, goes_on, begin(0, 6, NEWER, [0]), number=2)
    for turn in range(1, 4):
        exchange(target, source, now_s=float(turn))
    assert target.is_complete
    assert target.entries() == entries_of(source, INDEX)


def test_no_snapshot_shows_part_of_a_mutation_of_which_more_comes(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    target.bucket.tracker.progress[0].partial = Seqno(5)
    target.bucket.tracker.has_filled(PART)
    assert target.bucket.tracker.indexes[PART].marks[0].done == 5


def test_what_came_from_beyond_a_gap_is_not_forgotten(at: Any) -> None:
    """A stream that begins again further back brings it once more, or what is of another branch."""
    target = at(20, 0)
    target.apply(MAINTENANCE, 1, put(0, 21, b"d", 0, b"a"))
    target.apply(MAINTENANCE, 2, begin(0, 24, BRANCH, [0]), number=2)
    target.apply(MAINTENANCE, 2, put(0, 25, b"e", 0, b"b"), number=2)
    target.apply(MAINTENANCE, 3, begin(0, 10, BRANCH, [0]), number=3)
    assert target.bucket.tracker.progress[0].applied == 25
    rollback = make_rollback(7, NEWER, {0: 12})
    assert target.bucket.tracker.lost(rollback) == {0: 12}


def test_transfers_wait_for_one_another(source: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "TRANSFERS_MAX", 2)
    written(source, 4)
    ask = first_ask(source)
    begun = [source.giving.answer(ask) for _ in range(2)]
    with pytest.raises(TransferRefused) as refused:
        source.giving.answer(ask)
    assert (refused.value.code, refused.value.is_passing) == ("overloaded", True)
    after: bytes | None = None
    while True:
        page = source.giving.answer(page_of(ask, begun[0].number, after))
        after = page.after
        if not page.more:
            break
    assert source.giving.answer(ask).number, "one is over, and makes room"


def page_of(ask: Ask, number: int, after: bytes | None) -> Ask:
    return msgspec.structs.replace(ask, number=number, after=after)


def first_ask(source: Holder) -> Ask:
    nothing = bytes(8 * VBUCKETS)
    [origin] = source.origins((0,))
    return Ask(
        indexer=SOURCE,
        index=INDEX,
        slices=(0,),
        shard=origin.shard,
        build=1,
        at_least=(nothing, nothing),
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wrong",
    [
        {"more": True, "after": None},
        {"more": True, "after": b""},
        {"documents": ((b"b", b""),)},
        {"documents": ((b"b", b"\xff" * 30),)},
        {"documents": ((b"b", pack_back(1, 1, 7, b"k")),)},
        {"documents": ((b"b", pack_back(1, 1, 0, b"k")), (b"a", pack_back(1, 1, 0, b"k")))},
    ],
)
def test_a_page_that_cannot_be_is_not_taken(source: Holder, at: Any, wrong: dict[str, Any]) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source, steps=1)
    [(filling, page)] = target.fillings.asks(0.0)
    right = source.giving.answer(page)
    with pytest.raises(ValueError):
        target.fillings.take(filling, page, msgspec.structs.replace(right, **wrong), 0.0)
    assert target.entries() == {0: [], 1: []}


def test_more_entries_than_a_backfill_costs_are_not_taken(source: Holder, at: Any) -> None:
    places = [(n % 2, b"k%d" % n) for n in range(2 * module.ENTRIES_MAX)]
    source.apply(MAINTENANCE, 1, put_many(0, 1, b"d", *places))
    target = at(1, 0)
    target.knows(*source.origins())
    exchange(target, source)
    assert target.fillings.are_filled() == frozenset()
    assert "more than a backfill" in target.fillings.said[0]


def test_answers_to_other_questions_are_passed_over(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    [(filling, first)] = target.fillings.asks(0.0)
    answer(target, source, filling, first)
    answer(target, source, filling, first)
    [(filling, page)] = target.fillings.asks(0.0)
    answer(target, source, filling, page)
    at_once = target.entries()
    answer(target, source, filling, page)
    answer(target, source, filling, first)
    assert target.entries() == at_once
    exchange(target, source, now_s=1.0)
    assert target.entries() == entries_of(source, INDEX)


def test_a_late_answer_of_one_origin_begins_nothing_at_the_next(
    source: Holder, other: Holder, at: Any
) -> None:
    """It is asked twice, and answers the second time when its slices are here already."""
    target = to_fill_from_both(source, other, at)
    [(filling, first)] = target.fillings.asks(0.0)
    late = source.giving.answer(first)
    exchange(target, source, other, now_s=1.0, steps=2)
    assert (filling.at, filling.number) == (1, 0)
    target.fillings.take(filling, first, late, 1.0)
    assert filling.number == 0
    exchange(target, source, other, now_s=2.0)
    assert target.entries() == {0: [b"ad"], 1: [], 2: [b"cd"]}


def test_transfers_that_nobody_reads_are_given_back(
    source: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = first_ask(source)
    numbers = {source.giving.answer(ask).number for _ in range(3)}
    assert source.giving._begun.held().keys() == numbers
    monkeypatch.setattr(source.giving._begun, "_clock", lambda: 1e12)
    source.giving.expire()
    assert source.giving._begun.held() == {}


# -- what planted bugs have shown that nothing else tests ------------------------------------------


def goes_over(*all_of: FedStorage, at: int) -> None:
    """Each goes over to a newer branch of vbucket 0, which has lost nothing."""
    log = (FailoverBranch(Vbuuid(NEWER), Seqno(at)), FailoverBranch(Vbuuid(BRANCH), Seqno(0)))
    for one in all_of:
        one.apply(MAINTENANCE, 1, Item(SYNC, 0, at))
        one.apply(MAINTENANCE, 9, next(unpack(history(0, log))), begin(0, at, NEWER, [0]), number=2)


def test_a_page_that_arrives_on_another_branch_is_not_taken(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    [(filling, page)] = target.fillings.asks(0.0)
    given = source.giving.answer(page)
    goes_over(target, at=4)
    assert target.fillings.take(filling, page, given, 0.0) == 0
    assert target.entries() == {0: [], 1: []}


def test_what_one_origin_gave_on_a_branch_is_asked_again_on_the_next(
    source: Holder, other: Holder, at: Any
) -> None:
    target = to_fill_from_both(source, other, at)
    exchange(target, source, other, steps=2)
    filling = target.fillings._running[PART]
    assert (filling.at, filling.number, len(filling.applied_before)) == (1, 0, 1)
    goes_over(source, other, target, at=1)
    for turn in range(1, 4):
        exchange(target, source, other, now_s=float(turn))
    assert target.is_complete
    assert filling.attempts == 1
    assert target.entries() == {0: [b"ad"], 1: [], 2: [b"cd"]}


def test_who_gets_on_slowly_is_not_given_up(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 8)
    for turn in range(12):
        now_s = turn * (module.PATIENCE_S + 5)
        for filling, ask in target.fillings.asks(now_s, limit=1):
            answer(target, source, filling, ask, now_s)
    assert target.is_complete


def test_who_is_told_to_wait_waits(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 3)
    busy = TransferRefused("overloaded", "", is_passing=True)
    for turn in range(30):
        for filling, _ in target.fillings.asks(turn * 5.0):
            target.fillings.refused(filling, busy, turn * 5.0)
    assert target.fillings.are_filled() == {PART}


def test_an_answer_that_was_for_another_attachment_is_passed_over(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    [(filling, ask)] = target.fillings.asks(0.0)
    target.apply(MAINTENANCE, 5, begin(0, 2, BRANCH, [0]), number=2)
    answer(target, source, filling, ask)
    assert filling.number == 0


def test_nothing_is_asked_before_the_build_has_begun(source: Holder, at: Any) -> None:
    target = at(0, 0)
    target.knows(*source.origins(), state=PENDING)
    assert target.fillings.asks(0.0) == []
    assert target.fillings.are_filled() == {PART}


def test_who_is_on_another_branch_gives_nothing_for_now(source: Holder) -> None:
    written(source, 3)
    source.apply(MAINTENANCE, 9, begin(0, 3, NEWER, [0]), number=2)
    assert source.bucket.tracker.branched() == [0]
    with pytest.raises(TransferRefused) as refused:
        source.giving.answer(first_ask(source))
    assert refused.value.is_passing


def test_who_tells_of_it_does_not_wait_for_who_writes(source: Holder, at: Any) -> None:
    """A long batch, or a full disk, must not silence an indexer."""
    target = to_fill(source, at, 3)
    told: list[frozenset[int]] = []
    for _ in range(2):
        with target.bucket.lock:
            asking = threading.Thread(target=lambda: told.append(target.fillings.are_filled()))
            asking.start()
            asking.join(10)
            assert not asking.is_alive()
        exchange(target, source)
        assert target.fillings.are_filled() == frozenset()
    assert told == [{PART}, frozenset()]


def test_pages_may_be_smaller_than_what_is_read_at_once(
    source: Holder, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "AT_ONCE", 100)
    target = to_fill(source, at, 7)
    exchange(target, source)
    assert target.is_complete
    assert target.entries() == entries_of(source, INDEX)


def test_a_bucket_that_is_to_be_loaded_is_not_filled(source: Holder, at: Any) -> None:
    """What is known of it is not what is written there."""
    target = to_fill(source, at, 4)
    exchange(target, source, steps=1)
    [(filling, page)] = target.fillings.asks(0.0)
    target.bucket.stale = True
    assert target.fillings.take(filling, page, source.giving.answer(page), 0.0) == 0
    assert target.fillings.asks(1.0) == []
    target.bucket.stale = False
    exchange(target, source, now_s=2.0)
    assert target.is_complete


def test_another_build_is_filled_from_its_beginning(source: Holder, at: Any) -> None:
    """And not before the streams carry it."""
    written(source, 4)
    target = at(4, 0)
    part = target.knows(*source.origins())
    exchange(target, source, steps=2)
    target.fillings.know({PART: replace(part, build=2)})
    assert target.fillings.asks(1.0) == []
    assert target.fillings._running[PART].part.build == 2


def test_after_a_page_that_cannot_be_written_filling_begins_anew(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source, steps=2)
    [(filling, page)] = target.fillings.asks(0.0)
    assert page.number
    target.fillings.failed(filling)
    [(_, again)] = target.fillings.asks(1.0)
    assert (again.number, again.after) == (0, None)


def test_a_page_that_has_a_document_twice_is_not_taken(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source, steps=1)
    [(filling, page)] = target.fillings.asks(0.0)
    right = source.giving.answer(page)
    twice = tuple((b"b", pack_back(1, 1, piece, b"k")) for piece in (0, 1))
    wrong = msgspec.structs.replace(right, documents=twice)
    with pytest.raises(ValueError, match="not in order"):
        target.fillings.take(filling, page, wrong, 0.0)


def test_a_transfer_that_is_read_stays(source: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    written(source, 30)
    now_s = [0.0]
    monkeypatch.setattr(source.giving._begun, "_clock", lambda: now_s[0])
    ask = first_ask(source)
    given = source.giving.answer(ask)
    for _ in range(3):
        now_s[0] += LEASE_S * 0.7
        given = source.giving.answer(page_of(ask, given.number, given.after))
        assert given.more
    now_s[0] += LEASE_S * 1.1
    with pytest.raises(TransferRefused, match="there is no transfer"):
        source.giving.answer(page_of(ask, given.number, given.after))


def test_what_came_from_beyond_a_gap_is_given_and_said(source: Holder) -> None:
    """Who takes it must not do so before all of it is held there."""
    written(source, 4)
    source.apply(MAINTENANCE, 2, begin(0, 8, BRANCH, [0]), number=2)
    source.apply(MAINTENANCE, 2, put(0, 9, b"d", 0, b"k"), number=2)
    assert source.bucket.tracker.vector().seqnos.tolist() == [4, 0]
    given = source.giving.answer(first_ask(source))
    assert Vector.from_bytes(*given.applied).seqnos.tolist() == [9, 0]


def test_entries_are_those_of_what_is_asked_for(source: Holder) -> None:
    written(source, 6)
    source.bucket.sizes.count((INDEX + 1, 0), 100, 0)
    assert source.giving.answer(first_ask(source)).entries == 3


def test_who_has_lost_something_or_is_not_complete_gives_nothing_for_now(
    source: Holder, at: Any
) -> None:
    written(source, 3)
    source.bucket.lost = frozenset({0})
    target = at(0, 0)
    ask = first_ask(source)
    other = msgspec.structs.replace(ask, indexer=7, index=PART, shard=target.storage.shards[PART])
    for giving, one in ((source.giving, ask), (Giving(target.storage, 7), other)):
        with pytest.raises(TransferRefused) as refused:
            giving.answer(one)
        assert (refused.value.code, refused.value.is_passing) == ("recovering", True)


def test_what_is_filled_is_no_change_of_the_documents(source: Holder, at: Any) -> None:
    target = to_fill(source, at, 6)
    exchange(target, source)
    sizes = dict(target.bucket.sizes.all())
    assert [(sizes[PART, n].entries, sizes[PART, n].changes) for n in (0, 1)] == [(3, 0), (3, 0)]

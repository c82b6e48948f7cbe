"""Laws of what an indexer makes of its streams, against a store that only remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

from coordinator.core.keys.key_versions import (
    ABSENT,
    DOCUMENT,
    END,
    NO_SLICE,
    PLACES,
    SYNC,
    UPSERT,
    Item,
    attach,
    begin,
    history,
    unpack,
)
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    NOT_SAID,
    ConnectionRead,
    FailoverBranch,
    GenerationTaken,
    KeyVersions,
)
from indexer_sim.bucket import chains
from indexer_sim.bucket.chains import Chain
from indexer_sim.bucket.entries import State
from indexer_sim.bucket.progress import BRANCHED, GAP, LOST, ORPHANED, WHOLE, VbucketProgress
from indexer_sim.bucket.tracker import NEVER, TAKEN_MAX, Change, Mark, Tracker
from tests.conftest import EXAMPLES, PROFILE

BRANCH = 77
VBUCKETS = 2
INDEXES = (1, 2)
SEEDS = 3 * EXAMPLES[PROFILE]
DOCUMENTS = tuple(b"d%d" % n for n in range(10))


class Record(NamedTuple):
    """A message, with its items as they come out of it."""

    head: KeyVersions
    items: tuple[Item, ...]


def record(
    kind: str,
    connection: int,
    number: int,
    builds: dict[int, int],
    *items: Item,
    projector: int = 1,
    ordinal: int = 0,
    previous: int = NOT_SAID,
    continued: bool = False,
) -> Record:
    head = KeyVersions(
        bucket="b",
        kind=kind,
        projector=projector,
        connection=connection,
        ordinal=ordinal,
        number=number,
        indexes=tuple(builds),
        builds=tuple(builds.values()),
        items=b"",
        at_ms=0,
        previous=previous,
        continued=continued,
    )
    return Record(head, items)


class Entries:
    """What the applier does with changes, in the plainest way: the entries of all indexes."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, bytes], tuple[int, int, bytes]] = {}
        self.tombstones: dict[tuple[int, bytes], int] = {}

    def apply(self, changes: list[Change], tracker: Tracker) -> None:
        for change in changes:
            logged, guarded = change.scope
            assert not logged & guarded
            placed = {change.indexes[at]: (piece, key) for at, piece, key in change.placed}
            for index_id in sorted(logged | guarded):
                if index_id in placed or change.others:
                    place = placed.get(index_id, (NO_SLICE, b""))
                    is_guarded = index_id in guarded
                    self._place(
                        tracker, (index_id, change.document), change.seqno, place, is_guarded
                    )

    def _place(
        self,
        tracker: Tracker,
        at: tuple[int, bytes],
        seqno: int,
        place: tuple[int, bytes],
        guarded: bool,
    ) -> None:
        deleted = self.tombstones.get(at, 0) if guarded else 0
        if seqno <= max(self.held.get(at, (0,))[0], deleted):
            return
        self.held.pop(at, None)
        if place[0] != NO_SLICE:
            self.held[at] = (seqno, *place)
        elif guarded:
            self.tombstones[at] = seqno
            tracker.tombstoned.add(at[0])

    def forget(self, index_id: int) -> None:
        self.held = {at: entry for at, entry in self.held.items() if at[0] != index_id}
        self.sweep(index_id)

    def sweep(self, index_id: int) -> None:
        self.tombstones = {at: s for at, s in self.tombstones.items() if at[0] != index_id}


def restored(tracker: Tracker) -> Tracker:
    """Return the tracker that a restart makes of what was written."""
    made = Tracker(tracker.vbuckets, tracker.partitions)
    for index_id, tracked in tracker.indexes.items():
        made.hold(index_id)
        made.load_state(index_id, State(*tracked.state), index_id in tracker.tombstoned)
        for vbucket, mark in tracked.marks.items():
            made.load_mark(index_id, vbucket, Mark.unpack(mark.pack()))
    for vbucket, progress in tracker.progress.items():
        made.load_progress(vbucket, VbucketProgress.unpack(progress.pack()))
    for (partition, connection), chain in tracker.chains.by_key.items():
        made.chains.load(partition, connection, Chain(*chain))
    return made


class Indexer:
    """A tracker with its entries, restarted and fed."""

    def __init__(self, *indexes: int, vbuckets: int = VBUCKETS) -> None:
        self.tracker = Tracker(vbuckets)
        self.entries = Entries()
        for index_id in indexes:
            self.tracker.hold(index_id)

    def apply(self, message: Record, partition: int = 0) -> None:
        for index_id, build in self.tracker.newer_builds(message.head).items():
            self.tracker.begin_build(index_id, build)
            self.entries.forget(index_id)
        changes = self.tracker.apply(message.head, message.items, partition)
        self.entries.apply(changes, self.tracker)
        for index_id in self.tracker.swept():
            self.entries.sweep(index_id)

    def complete(self, index_id: int) -> bool:
        return self.tracker.indexes[index_id].state.complete


# -- single laws ---------------------------------------------------------------------------------

ONE = {1: 1}
BOTH = {1: 1, 2: 1}


def upsert(seqno: int, document: bytes, key: bytes, vbucket: int = 0, place: int = 0) -> Item:
    return Item(UPSERT, vbucket, seqno, place, 0, document, key)


def absent(seqno: int, document: bytes, vbucket: int = 0, place: int = 0) -> Item:
    return Item(ABSENT, vbucket, seqno, place, NO_SLICE, document)


def maintenance(*items: Item, connection: int = 1, number: int = 1, builds=ONE) -> Record:
    return record(MAINTENANCE, connection, number, builds, *items)


def backfill(*items: Item, connection: int = 100, builds=ONE) -> Record:
    return record(BACKFILL, connection, 0, builds, *items)


def catchup(*items: Item, connection: int = 200, number: int = 2, builds=ONE) -> Record:
    return record(CATCHUP, connection, number, builds, *items)


def built(start: int = 0) -> Indexer:
    """Return an indexer with one vbucket and one index, complete, at seqno `start`."""
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, start, BRANCH, [0])))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, start)))
    assert indexer.complete(1)
    return indexer


def test_an_index_is_complete_when_a_backfill_reaches_where_it_was_attached() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k"), Item(END, 0, 4)))
    assert not indexer.complete(1)
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k"), Item(END, 0, 5)))
    assert indexer.complete(1)
    assert indexer.entries.held == {(1, b"x"): (3, 0, b"k")}


def test_what_comes_during_a_build_leaves_tombstones_and_later_it_can_be_undone() -> None:
    def scope(seqno: int) -> tuple[set[int], set[int]]:
        item = Item(DOCUMENT, 0, seqno, document=b"x", placed=((0, 0, b"k"),))
        message = maintenance(item, builds={1: 1, 2: 1})
        (change,) = tracker.apply(message.head, message.items)
        return set(change.scope.logged), set(change.scope.guarded)

    tracker = Tracker(1)
    for index_id in (1, 2, 3):
        tracker.begin_build(index_id, 1)
    begun = maintenance(begin(0, 0, BRANCH, [0, 1]), builds={1: 1, 2: 1})
    tracker.apply(begun.head, begun.items)
    assert scope(1) == (set(), {1, 2})
    filled = backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 1))
    tracker.apply(filled.head, filled.items)
    assert scope(2) == ({1}, {2})
    assert scope(2) == (set(), {2}), "it is here already"
    tracker.lose([0])
    assert scope(3) == (set(), {1, 2}), "a catch-up may bring what is older"


def test_builds_are_told_as_they_are_now() -> None:
    tracker = Tracker(0)
    tracker.begin_build(1, 1)
    assert [build.done for build in tracker.builds()] == [b""]
    tracker.know(16)
    assert [build.done for build in tracker.builds()] == [bytes(2)]
    for message in (
        maintenance(begin(9, 0, BRANCH, [0])),
        backfill(begin(9, 0, BRANCH, [0]), Item(END, 9, 0)),
    ):
        tracker.apply(message.head, message.items)
        tracker.builds()
    assert [build.done for build in tracker.builds()] == [b"\x00\x02"]


def test_what_a_backfill_begins_with_counts_within_one_record() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(
        backfill(
            upsert(1, b"w", b"early"),
            begin(0, 0, BRANCH, [0]),
            upsert(2, b"x", b"k"),
            Item(END, 0, 5),
        )
    )
    assert indexer.entries.held == {(1, b"x"): (2, 0, b"k")}
    assert indexer.complete(1)


def test_what_fills_no_index_makes_no_floor() -> None:
    indexer = built(start=3)
    two = {1: 1, 2: 1}
    indexer.tracker.hold(2)
    indexer.tracker.begin_build(2, 1)
    indexer.apply(maintenance(attach(0, 3, BRANCH, 1), builds=two))
    placed = ((0, 0, b"k"),)
    item = Item(PLACES, 0, 9, document=b"x", placed=placed)
    indexer.apply(backfill(begin(0, 0, BRANCH, [0, 1]), item, connection=300, builds=two))
    assert indexer.tracker.progress[0].floor == 3


def test_an_owner_that_carries_only_what_is_built_makes_no_floor() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.tracker.lose([0])
    before = indexer.tracker.progress[0].floor
    indexer.apply(maintenance(upsert(8, b"x", b"k")))
    assert indexer.tracker.progress[0].floor == before


def test_a_backfill_that_began_before_the_index_was_attached_does_not_count() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k")))
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(backfill(upsert(4, b"y", b"k"), Item(END, 0, 9)))
    assert not indexer.complete(1)
    assert not indexer.entries.held


def test_what_was_deleted_during_a_build_stays_deleted_and_tombstones_go() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(maintenance(absent(6, b"x")))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k")))
    assert not indexer.entries.held
    assert indexer.entries.tombstones
    indexer.apply(backfill(Item(END, 0, 6)))
    assert indexer.complete(1)
    assert not indexer.entries.tombstones


def test_what_a_catch_up_took_back_early_does_not_come_back_with_the_owner() -> None:
    """A catch-up brings the last of each document, also beyond the point that it was asked for.

    The owner sends the same later, step by step. The tombstone is kept for another vbucket's gap.
    """
    indexer = Indexer(1, vbuckets=2)
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0]), begin(1, 0, BRANCH, [0])))
    both = [item for v in (0, 1) for item in (begin(v, 0, BRANCH, [0]), Item(END, v, 0))]
    indexer.apply(backfill(*both))
    assert indexer.complete(1)
    two: dict[str, int] = {"connection": 2, "number": 2}
    indexer.apply(maintenance(begin(0, 4, BRANCH, [0]), begin(1, 9, BRANCH, [0]), **two))
    indexer.apply(catchup(begin(0, 0, BRANCH, [0]), absent(8, b"x"), Item(END, 0, 8)))
    assert indexer.tracker.progress[0].condition == WHOLE
    assert indexer.tracker.gaps() == [1]
    indexer.apply(maintenance(upsert(5, b"x", b"k"), **two))
    indexer.apply(maintenance(begin(0, 7, BRANCH, [0]), absent(8, b"x"), connection=3, number=3))
    indexer.apply(
        catchup(
            *(begin(0, 5, BRANCH, [0]), absent(8, b"x"), Item(END, 0, 8)), connection=201, number=3
        )
    )
    assert indexer.tracker.progress[0].seqno == 8
    assert not indexer.entries.held


def test_a_superseded_connection_is_ignored() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(1, b"x", b"k1")))
    indexer.apply(maintenance(begin(0, 1, BRANCH, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(9, b"x", b"zombie")))
    indexer.apply(maintenance(begin(0, 1, BRANCH, [0]), connection=1, number=1))
    indexer.apply(maintenance(upsert(2, b"x", b"k2"), connection=2, number=2))
    assert indexer.entries.held == {(1, b"x"): (2, 0, b"k2")}
    assert indexer.tracker.progress[0].seqno == 2


def test_a_gap_holds_the_high_watermark_until_it_is_caught_up() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    indexer.apply(maintenance(absent(9, b"y"), upsert(10, b"z", b"k"), connection=2, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (GAP, 3)
    assert indexer.tracker.gaps() == [0]
    indexer.apply(catchup(begin(0, 3, BRANCH, [0]), upsert(5, b"y", b"stale"), Item(END, 0, 7)))
    assert (progress.condition, progress.seqno) == (GAP, 7)
    indexer.apply(catchup(begin(0, 7, BRANCH, [0]), Item(END, 0, 8), connection=201))
    assert (progress.condition, progress.seqno) == (WHOLE, 10)
    assert {at[1] for at in indexer.entries.held} == {b"x", b"z"}
    assert not indexer.entries.tombstones


def test_a_catch_up_that_began_above_the_high_watermark_does_not_close_a_gap() -> None:
    indexer = built()
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    indexer.apply(catchup(begin(0, 4, BRANCH, [0]), Item(END, 0, 20)))
    assert indexer.tracker.gaps() == [0]


def test_another_branch_is_told_and_nothing_of_it_is_applied() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(begin(0, 2, BRANCH + 1, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(4, b"x", b"k4"), connection=2, number=2))
    assert indexer.tracker.progress[0].condition == BRANCHED
    assert indexer.tracker.branched() == [0]
    assert indexer.entries.held == {(1, b"x"): (3, 0, b"k3")}
    assert indexer.tracker.progress[0].seqno == 3


NEWER = BRANCH + 1


def branch(start: int, *, after: int, connection: int = 2) -> tuple[Item, ...]:
    """The BEGIN of a stream on a newer branch, which has what came up to `after`."""
    log = (FailoverBranch(NEWER, after), FailoverBranch(BRANCH, 0))
    [told] = unpack(history(0, log))
    return told, begin(0, start, NEWER, [0])


def taken_over(indexer: Indexer, start: int, *, after: int) -> VbucketProgress:
    indexer.apply(maintenance(*branch(start, after=after), connection=2, number=2))
    indexer.apply(maintenance(upsert(after + 1, b"y", b"new"), connection=2, number=2))
    return indexer.tracker.progress[0]


def test_a_takeover_that_has_lost_nothing_stops_nothing() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3"), Item(SYNC, 0, 3)))
    progress = taken_over(indexer, 3, after=5)
    assert (progress.condition, progress.vbuuid, progress.seqno) == (WHOLE, NEWER, 6)
    assert indexer.entries.held == {(1, b"x"): (3, 0, b"k3"), (1, b"y"): (6, 0, b"new")}


def test_a_takeover_that_has_lost_what_is_held_is_a_branch() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    progress = taken_over(indexer, 2, after=2)
    assert (progress.condition, progress.vbuuid, progress.seqno) == (BRANCHED, BRANCH, 3)
    assert indexer.entries.held == {(1, b"x"): (3, 0, b"k3")}


def test_a_history_counts_for_the_begin_behind_it_alone() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(*branch(3, after=3), connection=2, number=2))
    indexer.apply(maintenance(begin(0, 3, NEWER + 1, [0]), connection=3, number=3))
    assert indexer.tracker.branched() == [0]


def test_what_was_passed_over_in_a_snapshot_that_is_lost_comes_again() -> None:
    """x had a mutation at 26, and 29 was to follow: the new branch has 26 and not 29."""
    indexer = built()
    indexer.apply(maintenance(upsert(20, b"w", b"k"), Item(SYNC, 0, 20), upsert(27, b"y", b"k")))
    told = (*branch(20, after=28), upsert(26, b"x", b"k"), upsert(27, b"y", b"k"))
    indexer.apply(maintenance(*told, Item(SYNC, 0, 28), connection=2, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.vbuuid, progress.seqno) == (WHOLE, NEWER, 28)
    assert indexer.entries.held.keys() == {(1, b"w"), (1, b"x"), (1, b"y")}


def test_where_that_stream_begins_above_it_is_a_gap() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(20, b"w", b"k"), Item(SYNC, 0, 20), upsert(27, b"y", b"k")))
    indexer.apply(maintenance(*branch(27, after=28), connection=2, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.floor) == (GAP, 20, 27)
    indexer.apply(catchup(*branch(20, after=28), upsert(26, b"x", b"k"), Item(END, 0, 27)))
    assert (progress.condition, progress.seqno) == (WHOLE, 27)
    assert indexer.entries.held.keys() == {(1, b"w"), (1, b"x"), (1, b"y")}


def test_where_a_branch_begins_and_goes_on_says_nothing_of_what_is_held() -> None:
    """It is branched, and then a later branch is seen that has all that is held after all."""
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3"), Item(SYNC, 0, 3)))
    indexer.apply(maintenance(begin(0, 5, NEWER + 1, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(9, b"y", b"k9"), Item(SYNC, 0, 9), connection=2, number=2))
    assert indexer.tracker.branched() == [0]
    indexer.apply(maintenance(*branch(3, after=4), connection=3, number=3))
    assert indexer.tracker.progress[0].condition == WHOLE


def test_a_catch_up_on_a_branch_that_has_lost_what_is_held_is_a_branch() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.tracker.lose([0])
    indexer.apply(catchup(*branch(2, after=2), upsert(5, b"y", b"k5"), Item(END, 0, 5)))
    assert indexer.tracker.branched() == [0]
    assert {at[1] for at in indexer.entries.held} == {b"x"}


@pytest.mark.parametrize(("reached", "ends"), [(8, [8]), (9, [8]), (7, [])])
def test_where_a_catch_up_has_ended_and_nothing_came_since_a_snapshot_can_be_made(
    reached: int, ends: list[int]
) -> None:
    """It is the end of a snapshot of the store; where nothing changes no other one comes."""
    indexer = built()
    indexer.apply(maintenance(begin(0, 7, BRANCH, [0]), connection=2, number=2))
    if reached > 7:
        indexer.apply(maintenance(upsert(8, b"y", b"k8"), connection=2, number=2))
    indexer.apply(catchup(begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k"), Item(END, 0, 8)))
    if reached > 8:
        indexer.apply(maintenance(upsert(9, b"y", b"k9"), connection=2, number=2))
    assert [end for end in indexer.tracker.boundaries[0] if end] == ends


def test_a_catch_up_on_the_only_branch_that_is_not_forgotten_is_a_branch() -> None:
    """How the owner began is lost, and nobody knows any more of the branch that is held."""
    indexer = built()
    indexer.tracker.lose([0])
    indexer.apply(maintenance(upsert(6, b"x", b"k6")))
    assert conditions(indexer) == [GAP]
    [told] = unpack(history(0, (FailoverBranch(NEWER, 0),), forgets=True))
    indexer.apply(catchup(told, begin(0, 0, NEWER, [0]), Item(END, 0, 6), number=1))
    assert indexer.tracker.branched() == [0]


def test_a_late_catch_up_on_the_older_branch_is_of_no_use_and_does_no_harm() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(*branch(5, after=6), connection=2, number=2))
    assert indexer.tracker.gaps() == [0]
    indexer.apply(catchup(begin(0, 3, BRANCH, [0]), Item(END, 0, 6)))
    assert indexer.tracker.gaps() == [0]
    assert not indexer.tracker.branched()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_applied_beyond_a_gap_may_be_lost_although_the_high_watermark_is_not(
    restarts: bool,
) -> None:
    """What is above the high watermark is in the slices all the same."""
    indexer = built()
    indexer.apply(maintenance(upsert(2, b"x", b"k2")))
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(9, b"lost", b"k9"), connection=2, number=2))
    assert indexer.tracker.progress[0].seqno == 2
    if restarts:
        indexer.tracker = restored(indexer.tracker)
    indexer.apply(maintenance(*branch(2, after=8), connection=3, number=3))
    assert indexer.tracker.branched() == [0]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_backfill_brought_beyond_the_high_watermark_may_be_lost(restarts: bool) -> None:
    indexer = built()
    both = {1: 1, 2: 1}
    indexer.tracker.hold(2)
    indexer.apply(maintenance(attach(0, 3, BRANCH, 1), builds=both))
    filling = [begin(0, 0, BRANCH, [0]), upsert(9, b"lost", b"k9")]
    indexer.apply(backfill(*filling, builds={2: 1}))
    assert indexer.tracker.progress[0].seqno == 3
    if restarts:
        indexer.tracker = restored(indexer.tracker)
    indexer.apply(maintenance(*branch(3, after=8), connection=2, number=2))
    assert indexer.tracker.branched() == [0]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_backfill_that_began_on_an_older_branch_brings_nothing_any_more(is_lost: bool) -> None:
    """What its projector has still to send may be what the vbucket has lost."""
    indexer = built()
    both = {1: 1, 2: 1}
    indexer.tracker.hold(2)
    indexer.apply(maintenance(attach(0, 3, BRANCH, 1), builds=both))
    if is_lost:
        indexer.tracker.lose([0])
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), builds={2: 1}))
    told, _ = branch(3, after=5)
    begun = begin(0, 3, NEWER, [0, 1])
    if is_lost:
        indexer.apply(catchup(told, begun, Item(END, 0, 5), builds=both))
    else:
        indexer.apply(maintenance(told, begun, connection=2, number=2, builds=both))
    indexer.apply(backfill(upsert(9, b"lost", b"k9"), Item(END, 0, 9), builds={2: 1}))
    assert not indexer.entries.held
    assert indexer.tracker.indexes[2].marks[0].done == NEVER
    again = [begin(0, 0, NEWER, [0]), Item(END, 0, 6)]
    indexer.apply(backfill(*again, connection=102, builds={2: 1}))
    assert indexer.tracker.indexes[2].marks[0].done == 6


def test_a_catch_up_that_began_on_an_older_branch_brings_nothing_any_more() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(2, b"x", b"k2")))
    indexer.apply(maintenance(begin(0, 4, BRANCH, [0]), connection=2, number=2))
    indexer.apply(catchup(begin(0, 2, BRANCH, [0])))
    indexer.apply(maintenance(*branch(4, after=5), connection=3, number=3))
    indexer.apply(catchup(upsert(9, b"lost", b"k9"), Item(END, 0, 9)))
    assert indexer.tracker.gaps() == [0]
    assert {at[1] for at in indexer.entries.held} == {b"x"}


def test_a_catch_up_on_a_branch_that_has_what_is_held_closes_a_gap() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3"), Item(SYNC, 0, 3)))
    indexer.tracker.lose([0])
    indexer.apply(catchup(*branch(3, after=4), upsert(5, b"y", b"k5"), Item(END, 0, 5)))
    indexer.apply(maintenance(upsert(6, b"z", b"k6"), connection=2, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.vbuuid, progress.seqno) == (WHOLE, NEWER, 6)
    assert {at[1] for at in indexer.entries.held} == {b"x", b"y", b"z"}


def test_a_newer_build_begins_from_nothing_and_items_of_the_older_one_are_void() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(attach(0, 3, BRANCH, 0), builds={1: 2}))
    assert not indexer.entries.held
    assert not indexer.complete(1)
    indexer.apply(maintenance(upsert(4, b"y", b"old")))
    indexer.apply(maintenance(upsert(5, b"z", b"new"), builds={1: 2}))
    assert indexer.entries.held == {(1, b"z"): (5, 0, b"new")}
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 9)))
    assert not indexer.complete(1)
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 9), builds={1: 2}))
    assert indexer.complete(1)


def test_an_attach_makes_the_owner_known_to_who_came_later() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(upsert(3, b"x", b"k"), builds={9: 1}))
    indexer.apply(maintenance(attach(0, 4, BRANCH, 1), builds={9: 1, 1: 1}))
    progress = indexer.tracker.progress[0]
    assert (progress.vbuuid, progress.seqno, progress.condition) == (BRANCH, 4, WHOLE)
    assert indexer.tracker.indexes[1].marks[0].attached == 4


def test_an_index_that_an_owner_forgot_is_caught_up_before_it_is_complete_again() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(begin(0, 3, BRANCH, []), connection=2, number=2))
    assert not indexer.complete(1)
    assert indexer.tracker.done_bits(1) == b"\0", "so its projector learns of it"
    indexer.apply(maintenance(Item(SYNC, 0, 6), connection=2, number=2))
    indexer.apply(maintenance(attach(0, 6, BRANCH, 0), connection=2, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.begun) == (GAP, 3, 6)
    indexer.apply(catchup(begin(0, 3, BRANCH, [0]), absent(5, b"x"), Item(END, 0, 6)))
    assert (progress.condition, progress.seqno) == (WHOLE, 6)
    assert not indexer.entries.held


def both_built() -> Indexer:
    """Return an indexer with two indexes of one vbucket, complete."""
    indexer = Indexer(*INDEXES, vbuckets=1)
    everything = begin(0, 0, BRANCH, [0, 1])
    indexer.apply(maintenance(everything, builds=BOTH))
    indexer.apply(backfill(everything, Item(END, 0, 0), builds=BOTH))
    assert all(map(indexer.complete, INDEXES))
    return indexer


def test_a_stream_on_another_branch_does_not_hide_what_an_index_lacks() -> None:
    indexer = both_built()
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(6, b"x", b"k"), connection=2, number=2))
    elsewhere = begin(0, 2, BRANCH + 1, [0, 1])
    indexer.apply(maintenance(elsewhere, connection=3, number=3, builds=BOTH))
    attached = attach(0, 2, BRANCH + 1, 1)
    indexer.apply(maintenance(attached, connection=3, number=3, builds=BOTH))
    assert conditions(indexer) == [BRANCHED]
    assert not indexer.complete(2)
    indexer.apply(maintenance(begin(0, 6, BRANCH, [0, 1]), connection=4, number=4, builds=BOTH))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.begun) == (GAP, 0, 6)


def test_an_owner_that_begins_with_an_attach_does_not_carry_the_others() -> None:
    """It sends no BEGIN to who has no index of those that it knows of."""
    indexer = both_built()
    later = {"connection": 2, "number": 2}
    indexer.apply(maintenance(attach(0, 0, BRANCH, 0), builds={2: 1}, **later))
    indexer.apply(maintenance(upsert(6, b"x", b"k"), builds={2: 1}, **later))
    assert not indexer.complete(1)
    indexer.apply(maintenance(attach(0, 6, BRANCH, 0), builds=BOTH, **later))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.begun) == (GAP, 0, 6)
    told = (begin(0, 0, BRANCH, [0, 1]), upsert(6, b"x", b"k"), Item(END, 0, 6))
    indexer.apply(catchup(*told, builds=BOTH))
    assert indexer.entries.held.keys() == {(1, b"x"), (2, b"x")}


def test_a_catch_up_does_not_outlive_a_stream_on_another_branch() -> None:
    """What it sent meanwhile was not taken."""
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"w", b"k"), begin(0, 8, BRANCH, [0])))
    indexer.apply(catchup(begin(0, 3, BRANCH, [0]), number=1))
    indexer.apply(maintenance(begin(0, 2, BRANCH + 1, [0]), connection=3, number=2))
    indexer.apply(catchup(upsert(5, b"x", b"k"), number=1))
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=4, number=3))
    indexer.apply(catchup(Item(END, 0, 8), number=1))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (GAP, 3)


def test_a_catch_up_does_not_outlive_the_owner_that_it_was_for() -> None:
    """An index that was attached since lacks what the next owner did not bring."""
    indexer = Indexer(*INDEXES, vbuckets=1)
    indexer.apply(maintenance(begin(0, 3, BRANCH, [0])))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 3)))
    second = {"connection": 2, "number": 2}
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), **second))
    indexer.apply(catchup(begin(0, 3, BRANCH, [0])))
    indexer.apply(maintenance(attach(0, 10, BRANCH, 1), builds=BOTH, **second))
    indexer.apply(backfill(begin(0, 0, BRANCH, [1]), Item(END, 0, 10), builds=BOTH))
    third = {"connection": 3, "number": 3}
    indexer.apply(maintenance(begin(0, 15, BRANCH, [0, 1]), builds=BOTH, **third))
    indexer.apply(catchup(upsert(13, b"x", b"k"), Item(END, 0, 16)))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (GAP, 3)


def test_of_mutations_in_parts_the_highest_is_remembered() -> None:
    """Else nobody would find that the store has lost it."""
    indexer = built()
    indexer.apply(record(MAINTENANCE, 1, 1, ONE, upsert(11, b"x", b"k"), continued=True))
    indexer.apply(maintenance(begin(0, 3, BRANCH, [0]), connection=2, number=2))
    indexer.apply(record(MAINTENANCE, 2, 2, ONE, upsert(5, b"y", b"k"), continued=True))
    assert indexer.tracker.progress[0].applied == 11


def test_a_part_of_a_mutation_on_another_branch_was_not_applied() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.apply(maintenance(begin(0, 2, BRANCH + 1, [0]), connection=2, number=2))
    indexer.apply(record(MAINTENANCE, 2, 2, ONE, upsert(50, b"x", b"k"), continued=True))
    assert (conditions(indexer), indexer.tracker.progress[0].applied) == ([BRANCHED], 3)


def test_where_a_catch_up_has_ended_below_what_the_owner_sent_is_no_snapshots_end() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3"), begin(0, 8, BRANCH, [0])))
    indexer.apply(maintenance(upsert(12, b"z", b"k")))
    indexer.apply(catchup(begin(0, 3, BRANCH, [0]), Item(END, 0, 10), number=1))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (WHOLE, 12)
    assert 12 not in indexer.tracker.boundaries[0]


def test_an_end_of_a_snapshot_is_none_in_a_stream_that_began_below_it() -> None:
    """That may leave a mutation out below it, for the sake of one that follows."""
    indexer = built()
    indexer.apply(maintenance(upsert(20, b"w", b"k"), Item(SYNC, 0, 20)))
    indexer.apply(maintenance(begin(0, 23, BRANCH, [0]), Item(SYNC, 0, 25), number=2))
    again = (begin(0, 20, BRANCH, [0]), upsert(25, b"y", b"k"))
    indexer.apply(maintenance(*again, connection=3, number=3))
    assert indexer.tracker.boundaries[0] == [20]
    assert restored(indexer.tracker).boundaries[0] == [20]
    indexer.apply(maintenance(Item(SYNC, 0, 25), connection=3, number=3))
    assert indexer.tracker.boundaries[0] == [20, 25]


def test_where_a_stream_begins_is_no_snapshots_end() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 23, BRANCH, [0])))
    assert indexer.tracker.boundaries[0] == []
    indexer.apply(maintenance(Item(SYNC, 0, 23)))
    assert indexer.tracker.boundaries[0] == [23]


def test_what_was_sent_while_messages_were_lost_is_caught_up() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    indexer.tracker.lose([0])
    assert indexer.tracker.gaps() == [0]
    unheard = maintenance(upsert(8, b"y", b"k"), connection=5, number=4)
    indexer.apply(unheard)
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.owner) == (GAP, 3, (1, 5))
    told = (begin(0, 3, BRANCH, [0]), absent(5, b"x"), Item(END, 0, 7))
    indexer.apply(catchup(*told, number=4))
    assert (progress.condition, progress.seqno) == (WHOLE, 8)
    assert indexer.entries.held == {(1, b"y"): (8, 0, b"k")}


def orphaned(*, number: int = 4) -> Indexer:
    """Return an indexer that has lost something, and was caught up to 7 by projector 1."""
    indexer = built()
    indexer.tracker.lose([0])
    told = (begin(0, 0, BRANCH, [0]), upsert(5, b"x", b"k"), Item(END, 0, 7))
    indexer.apply(catchup(*told, number=number))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.number) == (ORPHANED, 7, number)
    assert indexer.tracker.gaps() == []
    return indexer


def test_a_vbucket_that_was_caught_up_goes_on_with_who_has_done_that() -> None:
    indexer = orphaned()
    indexer.apply(maintenance(upsert(8, b"y", b"k"), connection=5, number=4))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.owner) == (WHOLE, 8, (1, 5))


def test_what_was_sent_and_lost_after_the_end_of_a_catch_up_is_missed() -> None:
    """It was asked for before the loss: what was written since has come, and gone, before it."""
    indexer = orphaned()
    indexer.apply(maintenance(upsert(9, b"y", b"k"), connection=5, number=4))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (GAP, 7)
    told = (begin(0, 7, BRANCH, [0]), absent(8, b"x"), upsert(9, b"y", b"k"), Item(END, 0, 9))
    indexer.apply(catchup(*told, connection=201, number=4))
    assert (progress.condition, progress.seqno) == (WHOLE, 9)
    assert indexer.entries.held.keys() == {(1, b"y")}


def test_where_nothing_follows_the_owner_says_how_far_it_has_come() -> None:
    indexer = orphaned()
    indexer.apply(maintenance(Item(SYNC, 0, 8), connection=5, number=4))
    assert conditions(indexer) == [GAP]
    assert indexer.tracker.gaps() == [0]


@pytest.mark.parametrize(("number", "projector"), [(5, 1), (4, 2)])
def test_who_has_not_caught_a_vbucket_up_may_be_on_another_branch(
    number: int, projector: int
) -> None:
    indexer = orphaned()
    indexer.apply(record(MAINTENANCE, 6, number, ONE, Item(SYNC, 0, 7), projector=projector))
    assert conditions(indexer) == [GAP]


@pytest.mark.parametrize(("number", "projector"), [(1, 1), (2, 2)])
def test_a_catch_up_that_is_not_of_the_owner_does_not_count(number: int, projector: int) -> None:
    indexer = built()
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0]), connection=2, number=2))
    told = (begin(0, 0, BRANCH, [0]), Item(END, 0, 9))
    indexer.apply(record(CATCHUP, 200, number, ONE, *told, projector=projector))
    assert conditions(indexer) == [GAP]


def test_a_catch_up_under_a_higher_number_tells_of_an_owner_whose_begin_is_lost() -> None:
    """Who had a vbucket before goes on to send for a while, and was taken for the owner."""
    indexer = built()
    indexer.tracker.lose([0])
    indexer.apply(maintenance(upsert(3, b"x", b"k3")))
    assert conditions(indexer) == [GAP]
    told = (begin(0, 0, BRANCH, [0]), upsert(3, b"x", b"k3"), Item(END, 0, 4))
    indexer.apply(catchup(*told))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.number) == (ORPHANED, 4, 2)
    indexer.apply(maintenance(upsert(5, b"x", b"zombie")))
    assert indexer.entries.held == {(1, b"x"): (3, 0, b"k3")}
    indexer.apply(maintenance(upsert(5, b"x", b"k5"), connection=2, number=2))
    assert (progress.condition, progress.seqno) == (WHOLE, 5)
    assert indexer.entries.held == {(1, b"x"): (5, 0, b"k5")}


def test_all_items_of_one_seqno_count() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    builds = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0, 1]), builds=builds))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0, 1]), Item(END, 0, 0), builds=builds))
    indexer.apply(
        maintenance(upsert(1, b"x", b"k", place=0), upsert(1, b"x", b"k", place=1), builds=builds)
    )
    assert set(indexer.entries.held) == {(1, b"x"), (2, b"x")}


def test_what_is_below_the_high_watermark_does_not_come_back() -> None:
    indexer = built()
    indexer.apply(maintenance(upsert(2, b"x", b"k"), absent(5, b"x")))
    indexer.apply(maintenance(begin(0, 1, BRANCH, [0]), connection=2, number=2))
    indexer.apply(maintenance(upsert(2, b"x", b"k"), connection=2, number=2))
    assert not indexer.entries.held


def test_an_index_that_a_stream_does_not_carry_is_not_attached() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    builds = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0]), builds=builds))
    assert indexer.tracker.indexes[1].marks.keys() == {0}
    assert not indexer.tracker.indexes[2].marks
    indexer.apply(maintenance(upsert(1, b"x", b"k", place=1), builds=builds))
    assert not indexer.entries.held


def test_a_catch_up_without_an_index_that_lacks_something_does_not_count() -> None:
    indexer = built()
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    indexer.apply(catchup(begin(0, 0, BRANCH, []), Item(END, 0, 20)))
    assert indexer.tracker.gaps() == [0]


def test_a_catch_up_that_began_before_there_was_a_gap_brings_nothing() -> None:
    indexer = built()
    indexer.apply(catchup(begin(0, 0, BRANCH, [0])))
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    indexer.apply(catchup(upsert(3, b"x", b"k"), Item(END, 0, 20)))
    assert not indexer.entries.held
    assert indexer.tracker.gaps() == [0]


def test_what_a_catch_up_brings_from_below_the_high_watermark_does_not_come_back() -> None:
    """It may have been read before what has taken it back, and that has left no tombstone."""
    indexer = built()
    indexer.apply(maintenance(upsert(3, b"x", b"k"), absent(5, b"x")))
    indexer.apply(maintenance(begin(0, 8, BRANCH, [0]), connection=2, number=2))
    items = (begin(0, 2, BRANCH, [0]), upsert(3, b"x", b"k"), upsert(6, b"y", b"k"))
    indexer.apply(catchup(*items, Item(END, 0, 8)))
    assert indexer.tracker.gaps() == []
    assert indexer.entries.held.keys() == {(1, b"y")}


def test_messages_that_are_lost_are_caught_up_to_where_the_owner_is_heard_again() -> None:
    indexer = built()
    indexer.tracker.lose([0])
    indexer.apply(maintenance(upsert(8, b"y", b"k"), connection=5, number=4))
    indexer.apply(catchup(begin(0, 0, BRANCH, [0]), Item(END, 0, 6), number=4))
    assert indexer.tracker.gaps() == [0]
    assert indexer.tracker.progress[0].seqno == 6


def test_a_backfill_that_leaves_an_index_out_ends_without_it() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    both = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0, 1]), builds=both))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0, 1]), builds=both))
    indexer.apply(backfill(Item(END, 0, 5), builds={2: 1}))
    assert indexer.complete(2)
    assert not indexer.complete(1)


def test_an_index_that_is_attached_below_the_high_watermark_takes_it_back() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    both = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 5)))
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0, 1]), connection=2, number=2, builds=both))
    indexer.apply(backfill(begin(0, 0, BRANCH, [1]), Item(END, 0, 0), connection=3, builds=both))
    assert indexer.tracker.progress[0].seqno == 0
    assert indexer.complete(2)
    early = maintenance(upsert(3, b"x", b"k", place=1), connection=2, number=2, builds=both)
    indexer.apply(early)
    assert indexer.entries.held == {(2, b"x"): (3, 0, b"k")}


def test_storage_that_is_new_takes_no_notice_of_a_build_that_began_before_it() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    both = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0])))
    for seqno in (1, 2):
        indexer.apply(maintenance(upsert(seqno, b"x", b"k", place=1), builds=both))
    assert not indexer.entries.held


def test_a_build_ends_though_a_stream_began_anew_below_where_it_was_attached() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(maintenance(begin(0, 5, BRANCH, [0])))
    indexer.apply(maintenance(upsert(7, b"y", b"k")))
    indexer.apply(maintenance(begin(0, 3, BRANCH, [0]), connection=2, number=2))
    assert indexer.tracker.progress[0].seqno == 3
    indexer.apply(backfill(begin(0, 0, BRANCH, [0]), Item(END, 0, 3)))
    assert indexer.complete(1)
    items = (upsert(4, b"x", b"k"), upsert(7, b"y", b"k"))
    indexer.apply(maintenance(*items, connection=2, number=2))
    assert {document for _, document in indexer.entries.held} == {b"x", b"y"}


def test_who_holds_nothing_misses_nothing() -> None:
    indexer = built()
    indexer.tracker.lose([0])
    indexer.tracker.forget(1)
    indexer.tracker.hold(1)
    assert indexer.tracker.gaps() == []
    indexer.apply(maintenance(attach(0, 8, BRANCH, 0), connection=5, number=4, builds={1: 2}))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.owner) == (WHOLE, 8, (1, 5))


# -- records that are missing --------------------------------------------------------------------


def linked(
    ordinal: int,
    previous: int,
    *items: Item,
    kind: str = MAINTENANCE,
    connection: int = 1,
    number: int = 1,
    **more: Any,
) -> Record:
    """Return a record that names the one before it."""
    links = {"ordinal": ordinal, "previous": previous}
    return record(kind, connection, number, ONE, *items, **links, **more)


def linked_and_built(vbuckets: int = 1, partitions: int = 1) -> Indexer:
    """Return an indexer that has all of index 1, by records that are linked."""
    indexer = Indexer(1, vbuckets=vbuckets)
    indexer.tracker.partitions = partitions
    everywhere = range(vbuckets)
    for partition in range(partitions):
        here = [v for v in everywhere if v % partitions == partition]
        begins = [begin(v, 0, BRANCH, [0]) for v in here]
        ends = [Item(END, v, 0) for v in here]
        indexer.apply(linked(1, 0, *begins), partition)
        indexer.apply(linked(1, 0, *begins, *ends, kind=BACKFILL, connection=2), partition)
    assert indexer.complete(1)
    return indexer


def conditions(indexer: Indexer) -> list[int]:
    return [progress.condition for _, progress in sorted(indexer.tracker.progress.items())]


def test_a_record_that_is_missing_holds_the_high_watermark_back_until_it_is_caught_up() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(3, 1, upsert(2, b"x", b"k")))
    indexer.apply(linked(9, 5, upsert(6, b"y", b"k")))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno, progress.begun) == (GAP, 2, 6)
    again = (begin(0, 2, BRANCH, [0]), absent(4, b"x"), Item(END, 0, 6))
    indexer.apply(linked(1, 0, *again, kind=CATCHUP, connection=8))
    assert (progress.condition, progress.seqno) == (WHOLE, 6)
    assert indexer.entries.held.keys() == {(1, b"y")}
    indexer.apply(linked(12, 9, Item(SYNC, 0, 7)))
    assert (progress.condition, progress.seqno) == (WHOLE, 7)


def test_what_follows_a_hole_may_be_the_rest_of_a_mutation() -> None:
    """Its beginning is missing: a catch-up that ended below it does not make it whole."""

    def of_both(ordinal: int, *items: Item, kind: str = MAINTENANCE, connection: int = 5) -> Record:
        links = {"ordinal": ordinal, "previous": ordinal - 1}
        return record(kind, connection, 2, BOTH, *items, **links)

    indexer = Indexer(*INDEXES, vbuckets=1)
    indexer.apply(of_both(1, begin(0, 0, BRANCH, [0, 1])))
    whole = (begin(0, 0, BRANCH, [0, 1]), Item(END, 0, 0))
    indexer.apply(of_both(1, *whole, kind=BACKFILL, connection=6))
    indexer.apply(of_both(3, upsert(11, b"x", b"k", place=1)))
    progress = indexer.tracker.progress[0]
    told = (begin(0, 0, BRANCH, [0, 1]), Item(END, 0, 10))
    indexer.apply(of_both(1, *told, kind=CATCHUP, connection=7))
    assert (progress.condition, progress.seqno) == (GAP, 10)
    told = (begin(0, 10, BRANCH, [0, 1]), upsert(11, b"x", b"k"), Item(END, 0, 11))
    indexer.apply(of_both(1, *told, kind=CATCHUP, connection=8))
    assert (progress.condition, progress.seqno) == (WHOLE, 11)
    assert indexer.entries.held.keys() == {(1, b"x"), (2, b"x")}


def test_a_record_of_no_items_tells_that_one_is_missing_where_nothing_is_written() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(7, 6))
    assert conditions(indexer) == [LOST]
    assert indexer.tracker.gaps() == [0]


def test_where_the_begin_of_a_connection_is_missing_it_is_the_owner_and_is_caught_up() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(4, 3, upsert(8, b"y", b"k"), connection=5, number=2))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.owner, progress.seqno) == (GAP, (1, 5), 0)


def test_what_is_missing_of_a_superseded_connection_is_not_missed() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(1, 0, begin(0, 0, BRANCH, [0]), connection=5, number=2))
    indexer.apply(linked(8, 7, upsert(3, b"y", b"k")))
    assert conditions(indexer) == [WHOLE]


def test_what_is_missing_in_one_partition_leaves_the_others_whole() -> None:
    indexer = linked_and_built(vbuckets=4, partitions=2)
    indexer.apply(linked(9, 8), 1)
    assert conditions(indexer) == [WHOLE, LOST, WHOLE, LOST]
    indexer.tracker.lose([0])
    assert conditions(indexer) == [LOST] * 4


def test_a_backfill_of_which_a_record_is_missing_does_not_end() -> None:
    indexer = Indexer(1, vbuckets=1)
    indexer.apply(linked(1, 0, begin(0, 5, BRANCH, [0])))
    indexer.apply(linked(1, 0, begin(0, 0, BRANCH, [0]), kind=BACKFILL, connection=2))
    indexer.apply(linked(3, 2, Item(END, 0, 5), kind=BACKFILL, connection=2))
    assert not indexer.complete(1)
    assert indexer.tracker.done_bits(1) == b"\0"


def test_a_catch_up_of_which_a_record_is_missing_does_not_end() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(9, 5, Item(SYNC, 0, 6)))
    indexer.apply(linked(1, 0, begin(0, 0, BRANCH, [0]), kind=CATCHUP, connection=8))
    indexer.apply(linked(3, 2, Item(END, 0, 6), kind=CATCHUP, connection=8))
    assert conditions(indexer) == [GAP]


@pytest.mark.parametrize("kind", [BACKFILL, CATCHUP])
def test_a_stream_that_was_cut_off_by_a_loss_does_not_end(kind: str) -> None:
    indexer = linked_and_built() if kind == CATCHUP else Indexer(1, vbuckets=1)
    indexer.apply(linked(9, 1 if kind == CATCHUP else 0, begin(0, 5, BRANCH, [0])))
    indexer.apply(linked(1, 0, begin(0, 0, BRANCH, [0]), kind=kind, connection=8))
    indexer.tracker.lose([0])
    # By a projector that does not link its records: nothing but the loss itself tells.
    indexer.apply(record(kind, 8, 1, ONE, Item(END, 0, 9)))
    assert conditions(indexer) == [LOST]
    assert indexer.complete(1) == (kind == CATCHUP)


def test_a_record_that_comes_twice_counts_once() -> None:
    indexer = linked_and_built()
    for _ in range(2):
        indexer.apply(linked(3, 1, upsert(2, b"x", b"k")))
    indexer.apply(linked(4, 3, absent(3, b"x")))
    indexer.apply(linked(3, 1, upsert(2, b"x", b"k")))
    assert conditions(indexer) == [WHOLE]
    assert not indexer.entries.held


def test_a_loss_does_not_take_back_what_is_complete() -> None:
    indexer = linked_and_built()
    indexer.tracker.lose([0])
    assert indexer.complete(1)
    assert indexer.tracker.done_bits(1) == b"\1"


def test_it_is_told_how_far_each_maintenance_connection_is_here() -> None:
    indexer = linked_and_built(vbuckets=4, partitions=2)
    indexer.apply(linked(9, 1), 1)
    assert indexer.tracker.chains.read(2) == (ConnectionRead(1, 1, (1, 9)),)
    indexer.apply(linked(4, 0, connection=7, number=2), 0)
    told = (ConnectionRead(1, 1, (1, 9)), ConnectionRead(1, 7, (4, 0)))
    assert indexer.tracker.chains.read(2) == told
    assert restored(indexer.tracker).chains.read(2) == told


def test_it_is_told_under_which_numbers_vbuckets_are_taken() -> None:
    indexer = linked_and_built(vbuckets=4, partitions=2)
    (taken,) = indexer.tracker.taken()
    assert taken.number == 1
    indexer.apply(linked(1, 0, begin(2, 0, BRANCH, [0]), connection=7, number=5), 0)
    told = indexer.tracker.taken()
    assert [(one.number, one.projector) for one in told] == [(5, 1), (1, 1)]
    assert told[0].vbuckets == b"\4"
    assert told[1].vbuckets == bytes([taken.vbuckets[0] & ~4])
    assert restored(indexer.tracker).taken() == told


def test_under_one_number_it_is_told_from_whom_vbuckets_are_taken() -> None:
    tracker = Tracker(8)
    for vbucket in range(8):
        tracker.load_progress(vbucket, VbucketProgress(number=7, owner=(vbucket % 2, 1)))
    told = tracker.taken()
    assert told == (GenerationTaken(7, 0, b"\x55"), GenerationTaken(7, 1, b"\xaa"))


def test_of_many_numbers_the_highest_are_told() -> None:
    tracker = Tracker(4 * TAKEN_MAX)
    for vbucket in range(4 * TAKEN_MAX):
        tracker.load_progress(vbucket, VbucketProgress(number=1 + vbucket))
    told = tracker.taken()
    assert [one.number for one in told] == list(range(4 * TAKEN_MAX, 3 * TAKEN_MAX, -1))


def test_no_more_connections_are_followed_than_the_bound_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains, "CHAINS_MAX", 3)
    indexer = linked_and_built()
    for connection in range(10, 15):
        indexer.apply(linked(1, 0, kind=CATCHUP, connection=connection))
        indexer.apply(linked(connection, connection - 1 if connection > 10 else 1))
    kept = [connection for _, (_, connection) in indexer.tracker.chains.by_key]
    assert len(kept) == 3
    assert 1 in kept, "who was heard last stays"


# -- seqnos with more items than a record holds --------------------------------------------------


def test_a_seqno_counts_with_its_last_part() -> None:
    indexer = Indexer(*INDEXES, vbuckets=1)
    both = {1: 1, 2: 1}
    indexer.apply(maintenance(begin(0, 0, BRANCH, [0, 1]), builds=both))
    indexer.apply(backfill(begin(0, 0, BRANCH, [0, 1]), Item(END, 0, 0), builds=both))
    progress = indexer.tracker.progress[0]
    first = (upsert(1, b"w", b"k"), upsert(5, b"x", b"k"))
    indexer.apply(record(MAINTENANCE, 1, 1, both, *first, continued=True))
    assert (progress.seqno, progress.reached) == (4, 4)
    indexer.apply(record(MAINTENANCE, 1, 1, both, upsert(5, b"x", b"k", place=1)))
    assert (progress.seqno, progress.reached) == (5, 5)
    assert {(1, b"x"), (2, b"x")} <= indexer.entries.held.keys()


def test_after_a_restart_a_part_of_a_seqno_cannot_be_told_from_the_moment_before_it() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(3, 1, Item(SYNC, 0, 4)))
    indexer.apply(linked(4, 3, upsert(5, b"x", b"k"), continued=True))
    assert indexer.tracker.progress[0].floor < 4, "what came can be taken back"
    again = restored(indexer.tracker).progress[0]
    assert (again.seqno, again.floor) == (4, 5)


def test_what_had_come_in_part_is_nothing_where_a_vbucket_begins_anew_with_nothing() -> None:
    """Otherwise it counts as applied on a branch that has never been so far: as lost, later."""
    indexer = linked_and_built()
    indexer.apply(linked(3, 1, upsert(5, b"x", b"k"), continued=True))
    indexer.tracker.forget(1)
    progress = taken_over(indexer, 2, after=2)
    assert (progress.vbuuid, progress.seqno, progress.applied) == (NEWER, 3, 3)


def test_a_seqno_of_which_a_part_is_missing_is_caught_up() -> None:
    indexer = linked_and_built()
    indexer.apply(linked(3, 1, upsert(5, b"x", b"k"), continued=True))
    indexer.apply(linked(7, 6, Item(SYNC, 0, 9)))
    progress = indexer.tracker.progress[0]
    assert (progress.condition, progress.seqno) == (GAP, 4)


# -- everything at once --------------------------------------------------------------------------


@dataclass
class Store:
    """A key-value store of one branch that remembers the newest mutation of each document."""

    high: list[int] = field(default_factory=lambda: [0] * VBUCKETS)
    newest: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def vbucket_of(document: bytes) -> int:
        return document[1] % VBUCKETS

    def mutate(self, document: bytes, value: int) -> None:
        vbucket = self.vbucket_of(document)
        self.high[vbucket] += 1
        self.newest[document] = (self.high[vbucket], value)

    def after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes, int]]:
        return sorted(
            (at, document, value)
            for document, (at, value) in self.newest.items()
            if self.vbucket_of(document) == vbucket and at > seqno
        )


def place_of(index_id: int, value: int) -> int:
    """Return the slice of a value, -1 where the indexer does not host it; 0 is deleted."""
    return -1 if value == 0 or (value + index_id) % 3 == 0 else value % 2


class Connection:
    """A projector's stream: it reads the store snapshot by snapshot, as slowly as it likes."""

    numbers = iter(range(1, 10**9))

    def __init__(
        self,
        world: World,
        kind: str,
        starts: dict[int, int],
        builds: dict[int, int],
        number: int = 0,
    ) -> None:
        self.world = world
        self.kind = kind
        self.connection = next(self.numbers)
        self.number = number
        self.builds = dict(builds)
        self.at = dict(starts)
        self.until = {v: max(world.store.high[v], s) for v, s in starts.items()}
        self.ordinal = 0
        self.pending: dict[int, list[tuple[int, bytes, int]]] = {v: [] for v in starts}
        self.ends: dict[int, int] = dict(starts)
        self.begun: set[int] = set()

    def send(self, *items: Item) -> None:
        self.ordinal += 1
        message = record(
            *(self.kind, self.connection, self.number, self.builds, *items),
            ordinal=self.ordinal,
            previous=self.ordinal - 1,
        )
        self.world.log.append(message)

    def step(self, vbucket: int, count: int) -> None:
        """Send something of a vbucket, if there is something to send."""
        if vbucket not in self.at:
            return
        if vbucket not in self.begun:
            self.begun.add(vbucket)
            places = range(len(self.builds))
            self.send(begin(vbucket, self.at[vbucket], BRANCH, list(places)))
            return
        if not self.pending[vbucket]:
            self._snapshot(vbucket)
        items: list[Item] = []
        for _ in range(count):
            if not self.pending[vbucket]:
                break
            seqno, document, value = self.pending[vbucket].pop(0)
            items += self._items(vbucket, seqno, document, value)
            self.at[vbucket] = seqno
        if not self.pending[vbucket]:
            end = self.at[vbucket] = self.ends[vbucket]
            if self.kind == MAINTENANCE:
                items.append(Item(SYNC, vbucket, end))
            elif end >= self.until[vbucket]:
                items.append(Item(END, vbucket, end))
                del self.at[vbucket]
        if items:
            self.send(*items)

    def _snapshot(self, vbucket: int) -> None:
        end = self.world.store.high[vbucket]
        if self.kind != MAINTENANCE:
            end = min(end, self.until[vbucket])
        found = self.world.store.after(vbucket, self.at[vbucket])
        self.pending[vbucket] = [mutation for mutation in found if mutation[0] <= end]
        self.ends[vbucket] = max(end, self.at[vbucket])

    def _items(self, vbucket: int, seqno: int, document: bytes, value: int) -> list[Item]:
        """Tell of a mutation in one of the ways in which projectors do, or have done."""
        form = (seqno + self.connection) % 3
        places = [
            (place, piece if piece >= 0 else NO_SLICE, b"%d" % value if piece >= 0 else b"")
            for place, index_id in enumerate(self.builds)
            for piece in (place_of(index_id, value),)
        ]
        there = tuple(place for place in places if place[1] != NO_SLICE)
        if self.kind == BACKFILL and form:
            item = Item(PLACES, vbucket, seqno, document=document, placed=there)
            return [item] if there else []
        if form == 1:
            return [Item(DOCUMENT, vbucket, seqno, document=document, placed=there)]
        if form == 2:
            return [
                Item(PLACES, vbucket, seqno, document=document, placed=(place,)) for place in places
            ]
        found = []
        for place, index_id in enumerate(self.builds):
            piece = place_of(index_id, value)
            if piece >= 0:
                found.append(Item(UPSERT, vbucket, seqno, place, piece, document, b"%d" % value))
            elif self.kind != BACKFILL:
                found.append(Item(ABSENT, vbucket, seqno, place, NO_SLICE, document))
        return found

    def attach(self, index_id: int, build: int) -> None:
        self.builds[index_id] = build
        progress = list(self.builds).index(index_id)
        for vbucket in sorted(self.begun):
            self.send(attach(vbucket, self.at[vbucket], BRANCH, progress))


class World:
    """A store, projectors, the log between, and an indexer that is killed now and then."""

    def __init__(self) -> None:
        self.store = Store()
        self.log: list[Record] = []
        self.indexer = Indexer(*INDEXES)
        self.builds: dict[int, int] = {}
        self.number = 0
        self.next_build = 0
        self.live: Connection | None = None
        self.others: list[Connection] = []
        self.older = [0] * VBUCKETS

    # Each of these is one thing that happens; `a` and `b` choose among its variants.

    def mutate(self, a: int, b: int) -> None:
        self.store.mutate(DOCUMENTS[a % len(DOCUMENTS)], b % 5)

    def build(self, a: int, b: int) -> None:
        """An index is built, again if it was: projectors attach it, in time or not."""
        index_id = INDEXES[a % len(INDEXES)]
        self.next_build += 1
        self.builds[index_id] = self.next_build
        if self.live is None:
            self.renew(b, 0)
        elif b >= 4:
            self.renew(b, 3)
        else:
            self.live.attach(index_id, self.next_build)
            for other in self.others:
                if other.kind == MAINTENANCE and index_id in other.builds and b % 2:
                    other.attach(index_id, self.next_build)

    def drop(self, a: int, _: int) -> None:
        """An index is dropped, and its storage allocated again."""
        index_id = INDEXES[a % len(INDEXES)]
        self.builds.pop(index_id, None)
        self.indexer.tracker.forget(index_id)
        self.indexer.tracker.hold(index_id)
        self.indexer.entries.forget(index_id)

    def renew(self, a: int, b: int) -> None:
        """A new generation begins at the high watermark, before it, or behind it.

        Its projector may not have heard of each index yet.
        """
        if not self.builds:
            return
        here = [self.hw(v) for v in range(VBUCKETS)]
        starts = (here, self.older, [0] * VBUCKETS, list(self.store.high))[a % 4]
        self.older = here
        if self.live is not None:
            self.others.append(self.live)
        self.number += 1
        begins = {v: min(start, self.store.high[v]) for v, start in enumerate(starts)}
        builds = {i: build for i, build in self.builds.items() if i != a - 3}
        self.live = Connection(self, MAINTENANCE, begins, builds, self.number)
        for v in range(VBUCKETS):
            if b >> v & 1:
                self.live.step(v, 0)

    def hw(self, vbucket: int) -> int:
        progress = self.indexer.tracker.progress.get(vbucket)
        return progress.seqno if progress else 0

    def backfill(self, a: int, _: int) -> None:
        """A pass over everything, once the owner carries all the indexes that it is for."""
        live = self.live
        if live is None or len(live.begun) < VBUCKETS or live.builds != self.builds:
            return
        builds = {i: b for n, (i, b) in enumerate(self.builds.items()) if a >> n & 1}
        if builds:
            zero = dict.fromkeys(range(VBUCKETS), 0)
            self.others.append(Connection(self, BACKFILL, zero, builds))
            self.others[-1].until = {v: live.at[v] for v in live.at}

    def catch_up(self, a: int, _: int) -> None:
        gaps = self.indexer.tracker.gaps()
        if gaps and self.builds:
            vbucket = gaps[a % len(gaps)]
            starts = {vbucket: self.older[vbucket] if a == 7 else self.hw(vbucket)}
            number = self.live.number if self.live is not None else 0
            self.others.append(Connection(self, CATCHUP, starts, self.builds, number))

    def flow(self, a: int, b: int) -> None:
        if self.live is not None:
            for index_id in self.builds.keys() - self.live.builds.keys():
                if b == 7:
                    self.live.attach(index_id, self.builds[index_id])
            self.live.step(a % VBUCKETS, 1 + b % 2)

    def flow_aside(self, a: int, b: int) -> None:
        """A zombie, a backfill or a catch-up sends something, or dies."""
        self.others = [other for other in self.others if other.at][-5:]
        if self.others:
            self.others[a % len(self.others)].step(b % VBUCKETS, 1 + b % 2)

    def consume(self, a: int, _: int) -> None:
        for _ in range(1 + a):
            if self.log:
                self.indexer.apply(self.log.pop(0))

    def calm(self, _: int, __: int) -> None:
        """Everybody gets as far as there is something to send, and all of it is taken."""
        for vbucket in range(VBUCKETS):
            self.catch_up(vbucket, 0)
        for connection in filter(None, (self.live, *self.others)):
            for _ in range(4):
                for vbucket in range(VBUCKETS):
                    connection.step(vbucket, 100)
        if self.live is not None and self.live.begun:
            self.live.send()
        while self.log:
            self.indexer.apply(self.log.pop(0))
            self.check()

    def restart(self, _: int, __: int) -> None:
        self.indexer.tracker = restored(self.indexer.tracker)

    def lose(self, a: int, b: int) -> None:
        """Some of the log is gone: ahead of the indexer, which is told, or anywhere, unheard."""
        at = 0 if b % 2 else b % (1 + len(self.log))
        del self.log[at : at + 1 + a % 8]
        if b % 2:
            self.indexer.tracker.lose([0])

    def send_again(self) -> None:
        """What the indexer lacks of a build, though it has read everything, is attached again."""
        live, tracker = self.live, self.indexer.tracker
        if self.log or live is None:
            return
        for index_id in INDEXES:
            tracked = tracker.indexes[index_id]
            if not tracked.state.complete or tracked.state.build != self.builds[index_id]:
                live.attach(index_id, self.builds[index_id])

    # What must hold.

    def check(self) -> None:
        """Where nothing newer than the high watermark is, a whole index is as the store."""
        tracker = self.indexer.tracker
        for index_id, tracked in tracker.indexes.items():
            for document, (seqno, value) in self.store.newest.items():
                vbucket = self.store.vbucket_of(document)
                mark, progress = tracked.marks.get(vbucket), tracker.progress.get(vbucket)
                if mark is None or progress is None or mark.done == NEVER or mark.lacks != NEVER:
                    continue
                if progress.condition == WHOLE and seqno <= progress.seqno:
                    self._agree(index_id, document, seqno, value)

    def _agree(self, index_id: int, document: bytes, seqno: int, value: int) -> None:
        piece = place_of(index_id, value)
        expected = (seqno, piece, b"%d" % value) if piece >= 0 else None
        assert self.indexer.entries.held.get((index_id, document)) == expected

    def settle(self) -> None:
        """Let everything come to its end: then all is built, caught up and the same."""
        self.renew(0, 0)
        for round_number in range(12):
            for index_id in set(INDEXES) - self.builds.keys():
                self.build(INDEXES.index(index_id), 0)
            self.send_again()
            if round_number in (1, 4, 8):
                self.backfill(3, 0)
            self.calm(0, 0)
        tracker = self.indexer.tracker
        assert tracker.gaps() == []
        assert [tracker.progress[v].seqno for v in range(VBUCKETS)] == self.store.high
        for index_id in INDEXES:
            assert self.indexer.complete(index_id)
            for document, (seqno, value) in self.store.newest.items():
                self._agree(index_id, document, seqno, value)
        assert not self.indexer.entries.tombstones


COMMON = (World.mutate, World.flow, World.flow_aside, World.consume, World.backfill, World.catch_up)
RARE = (World.build, World.drop, World.renew, World.restart, World.lose, World.calm)


def swarm(chance: Random) -> list[Callable[[World, int, int], None]]:
    """Return what may happen in a run: much of this, nothing of that."""
    common = [event for event in COMMON for _ in range(chance.choice((3, 10, 30)))]
    return common + [event for event in RARE for _ in range(chance.choice((0, 0, 1, 3)))]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_entries_are_those_of_the_store(seed: int) -> None:
    chance = Random(seed)
    world = World()
    world.build(0, 0)
    world.build(1, 0)
    events = swarm(chance)
    for _ in range(chance.randrange(50, 800)):
        chance.choice(events)(world, chance.randrange(8), chance.randrange(8))
        world.check()
    world.settle()


# -- the floor below which no moment can be told --------------------------------------------------


def test_a_build_counts_from_where_the_owner_is_and_not_from_where_its_backfill_ended() -> None:
    """Between the two, the entries are those of neither moment."""
    tracker = Tracker(1)
    tracker.hold(1)
    for message in (
        record(MAINTENANCE, 1, 1, {1: 0}, begin(0, 0, BRANCH, [0])),
        record(BACKFILL, 2, 1, {1: 0}, begin(0, 0, BRANCH, [0])),
        record(MAINTENANCE, 1, 1, {1: 0}, Item(ABSENT, 0, 9, 0, document=b"d")),
        record(BACKFILL, 2, 1, {1: 0}, Item(END, 0, 4)),
    ):
        tracker.apply(message.head, message.items)
    assert tracker.indexes[1].marks[0].done == 9


def test_below_what_was_held_when_an_index_was_attached_lower_no_moment_is_told() -> None:
    tracker = Tracker(1)
    tracker.hold(1)
    tracker.load_progress(
        0, VbucketProgress(number=1, owner=(1, 1), vbuuid=BRANCH, seqno=9, reached=9)
    )
    tracker.progress[0].floor = 0
    tracker._mark(0, 1, 5)
    assert (tracker.progress[0].seqno, tracker.progress[0].floor) == (5, 9)


@pytest.mark.parametrize("condition", [WHOLE, GAP])
def test_below_what_was_held_when_an_index_is_carried_again_no_moment_is_told(
    condition: int,
) -> None:
    tracker = Tracker(1)
    tracker.hold(1)
    tracker.load_progress(
        0,
        VbucketProgress(
            number=1, owner=(1, 1), vbuuid=BRANCH, seqno=9, condition=condition, reached=12
        ),
    )
    tracker.load_mark(1, 0, Mark(0, 0, lacks=5))
    tracker.progress[0].floor = 0
    tracker._resume(0, 1, 9)
    assert (tracker.progress[0].seqno, tracker.progress[0].floor) == (5, 12)


def test_what_a_catch_up_brings_is_a_floor_at_once() -> None:
    """It may not come to its end."""
    tracker = Tracker(1)
    tracker.hold(1)
    tracker.load_progress(
        0,
        VbucketProgress(
            number=1,
            owner=(1, 1),
            vbuuid=BRANCH,
            seqno=5,
            condition=GAP,
            begun=9,
            reached=9,
            catchup=(1, 3),
        ),
    )
    tracker.load_mark(1, 0, Mark(0, 0))
    message = record(CATCHUP, 3, 1, {1: 0}, Item(ABSENT, 0, 7, 0, document=b"d"))
    tracker.apply(message.head, message.items)
    assert tracker.progress[0].floor == 7

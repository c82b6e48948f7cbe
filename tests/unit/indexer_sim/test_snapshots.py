"""Laws of snapshots at stability timestamps, and of checkpoints, on real RocksDBs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.collation import EVERYTHING, Bounds
from coordinator.core.keys.key_versions import (
    END,
    SYNC,
    UPSERT,
    Item,
    attach,
    begin,
    history,
    unpack,
)
from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    FailoverBranch,
)
from coordinator.core.model.vectors import Places, Vector
from indexer_sim.bucket.checkpoints import About
from indexer_sim.bucket.entries import SLICE, pack_back
from indexer_sim.bucket.leases import LEASE_S, Leases
from indexer_sim.bucket.snapshots import (
    KEPT_MAX,
    UNDO_BYTES,
    WANTED_MAX,
    Timeline,
    Undo,
    overlaid,
    sizes_of,
    taken_back,
)
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import ScanRefused, Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.fed_bucket import (
    DOCUMENTS,
    INDEX,
    NEWER,
    SECOND,
    VBUCKETS,
    Feeder,
    a_rollback,
)
from tests.support.fed_storage import BRANCH, make_rollback
from tests.support.sizes import counted, scanned


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path, "indexer 1 of cluster demo")
    made.know("b", VBUCKETS)
    made.allocate("b", INDEX, frozenset({0, 1}), b"")
    yield made
    made.close()


def test_a_snapshot_is_exactly_at_its_timestamp_although_more_was_applied(
    storage: Storage,
) -> None:
    feeder, chance = Feeder(storage), Random(5)
    for _ in range(30):
        for _ in range(chance.randrange(6)):
            feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
        feeder.sync()
        then, expected = list(feeder.seqnos), sorted(feeder.newest.values())
        for _ in range(chance.randrange(8)):
            feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
        if chance.randrange(2):
            feeder.sync()
        number = feeder.stable(then)
        for _ in range(chance.randrange(4)):
            feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
        assert feeder.held()[-1] == number
        assert feeder.read(number) == expected
        backwards = feeder.read(number, backwards=True)
        assert sorted(backwards) == expected
        assert feeder.read() == sorted(feeder.newest.values())
    assert len(feeder.held()) == KEPT_MAX


def test_a_scan_that_pages_keeps_its_snapshot_until_it_reads_no_more(storage: Storage) -> None:
    feeder, now_s = Feeder(storage), [0.0]
    feeder.bucket.timeline.leases = Leases(clock=lambda: now_s[0])
    feeder.mutate(b"d0", 1)
    feeder.sync()
    number, expected = feeder.stable(), sorted(feeder.newest.values())
    for value in range(2, 30):
        assert feeder.read(number) == expected
        now_s[0] += LEASE_S - 1
        feeder.mutate(b"d0", value)
        feeder.sync()
        feeder.stable()
    assert number not in feeder.held()
    now_s[0] += 1
    with pytest.raises(ScanRefused, match="no timestamp"):
        feeder.read(number)


def test_what_was_lost_is_not_to_be_seen_in_a_snapshot_that_was_read(storage: Storage) -> None:
    feeder = Feeder(storage)
    for document in DOCUMENTS:
        feeder.mutate(document, 3)
    feeder.sync()
    good, left = feeder.stable(), dict(enumerate(feeder.seqnos))
    for document in DOCUMENTS:
        feeder.mutate(document, 4)
    feeder.sync()
    lost = feeder.stable()
    feeder.read(good)
    feeder.read(lost)
    feeder.bucket.roll_back(a_rollback(left))
    assert feeder.bucket.timeline.available().keys() == {good}


def test_a_timestamp_waits_for_what_was_not_applied_yet(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    ahead = [seqno + 1 for seqno in feeder.seqnos]
    number = feeder.stable(ahead)
    with pytest.raises(ScanRefused) as caught:
        feeder.read(number)
    assert caught.value.code == "no_stability_timestamp"
    for document in (b"d0", b"d1"):
        feeder.mutate(document, 3)
    assert feeder.held() == []
    feeder.sync()
    assert feeder.held() == [number]
    assert len(feeder.read(0)) == 2


def test_who_is_far_behind_reaches_the_oldest_timestamp_that_it_waits_for(
    storage: Storage,
) -> None:
    feeder = Feeder(storage)
    first = [1, 0]
    for seqno in range(1, 3 * WANTED_MAX):
        feeder.stable([seqno, 0])
    feeder.mutate(b"d0", 1)
    feeder.sync()
    assert feeder.seqnos == first
    assert feeder.held() == [1]


def test_a_timestamp_within_a_snapshot_of_the_store_is_passed_over(storage: Storage) -> None:
    feeder = Feeder(storage)
    for value in (1, 2, 3):
        feeder.mutate(b"d0", value)
    feeder.sync()
    feeder.stable([2, 0])
    assert feeder.held() == []
    number = feeder.stable([3, 0])
    assert feeder.held() == [number]


def test_what_came_before_a_restart_is_not_told_exactly(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    then = list(feeder.seqnos)
    feeder.mutate(b"d0", 2)
    feeder.bucket.load()
    feeder.stable(then)
    assert feeder.held() == []
    feeder.sync()
    number = feeder.stable()
    assert feeder.held() == [number]


def test_what_a_catch_up_brought_is_not_told_exactly_below_its_end(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.apply(MAINTENANCE, 9, begin(0, 4, BRANCH, [0]), number=2)
    feeder.apply(MAINTENANCE, 9, Item(SYNC, 0, 5), number=2)
    told = (Item(UPSERT, 0, 6, 0, 0, b"d0", b"\x90x\x00"), Item(END, 0, 6))
    feeder.apply(CATCHUP, 10, begin(0, 1, BRANCH, [0]), *told, number=2)
    feeder.stable([5, 0])
    assert feeder.held() == []
    feeder.apply(MAINTENANCE, 9, Item(SYNC, 0, 7), number=2)
    number = feeder.stable([7, 0])
    assert feeder.held() == [number]


def test_the_newest_timestamp_has_what_is_required_or_none_is_told(storage: Storage) -> None:
    feeder = Feeder(storage)
    for value in (1, 2):
        feeder.mutate(b"d0", value)
        feeder.sync()
        feeder.stable()
    view = partial(StorageReading(storage).view, INDEX, (0, 1), shard=0, build=0)
    required = Wanted(timestamp=0, at_least=Places.of({0: (BRANCH, 2), 1: (BRANCH + 1, 0)}))
    with closing(view(wanted=required)) as found:
        assert (found.number, found.held) == (2, (2,))
    with closing(view(wanted=Wanted(timestamp=1, at_least=Places.of({0: (BRANCH, 1)})))) as found:
        assert (found.number, found.held) == (1, (1, 2))
    for timestamp, place in ((0, (BRANCH, 3)), (0, (BRANCH + 1, 1)), (1, (BRANCH, 2))):
        with pytest.raises(ScanRefused) as caught:
            view(wanted=Wanted(timestamp=timestamp, at_least=Places.of({0: place})))
        assert caught.value.code == "timestamp_not_reached"


def test_too_many_changes_are_forgotten_and_then_not_told(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.bucket.timeline = Timeline(undo_bytes_max=3 * (UNDO_BYTES + 60))
    feeder.mutate(b"d0", 1)
    feeder.sync()
    then = list(feeder.seqnos)
    for value in range(2, 6):
        feeder.mutate(b"d0", value)
    feeder.stable(then)
    assert feeder.held() == []


def test_large_changes_fill_what_is_kept_for_undoing_as_many_small_ones_do() -> None:
    timeline = Timeline(undo_bytes_max=100_000)
    large = Undo(0, 1, INDEX, b"d", b"k" * 4_000, b"k" * 4_000)
    small = large._replace(before=None, after=None)
    timeline.add([large._replace(seqno=n) for n in range(1, 40)])
    assert len(timeline._changes) == 100_000 // sizes_of([large])[0]
    timeline.add([small._replace(seqno=n) for n in range(40, 400)])
    assert len(timeline._changes) == 100_000 // sizes_of([small])[0]
    timeline.forget({INDEX})
    timeline.add([large])
    assert len(timeline._changes) == 1


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=8)))
def test_what_is_kept_for_undoing_are_the_newest_changes_that_fit(
    batches: list[list[tuple[int, int]]],
) -> None:
    """Whatever was forgotten of a vbucket, nothing up to it can be undone."""
    timeline, made = Timeline(undo_bytes_max=2_000), list[Undo]()
    for batch in batches:
        more = [
            Undo(vbucket, len(made) + n, INDEX, b"d", None, b"k" * size)
            for n, (vbucket, size) in enumerate(batch, 1)
        ]
        made += more
        timeline.add(more)
        kept = list(timeline._changes)
        lost = made[: len(made) - len(kept)]
        assert lost + kept == made
        assert sum(sizes_of(kept)) <= 2_000
        assert not lost or sum(sizes_of([lost[-1], *kept])) > 2_000
        assert timeline._floors == {c.vbucket: c.seqno for c in lost}
        assert list(timeline._sizes) == sizes_of(kept)


def test_what_is_forgotten_makes_room_for_as_much() -> None:
    one = Undo(0, 1, INDEX, b"d", None, None)
    timeline = Timeline(undo_bytes_max=10 * sizes_of([one])[0])
    timeline.add([one._replace(index_id=INDEX + n % 2, before=b"k" * n) for n in range(8)])
    for left in ({INDEX}, {INDEX + 1}):
        timeline.forget(left)
        assert list(timeline._sizes) == sizes_of(timeline._changes)
        assert timeline._bytes == sum(timeline._sizes)
    timeline.add([one] * 10)
    assert len(timeline._changes) == 10


def test_after_going_back_as_much_can_be_undone_as_ever() -> None:
    small = Undo(0, 1, INDEX, b"d", None, None)
    timeline = Timeline(undo_bytes_max=10 * sizes_of([small])[0])
    timeline.add([small] * 10)
    timeline.go_back(None)
    timeline.add([small] * 10)
    assert len(timeline._changes) == 10


def test_a_snapshot_of_an_index_that_was_not_whole_is_none(storage: Storage) -> None:
    feeder = Feeder(storage)
    storage.allocate("b", 2, frozenset({0}), b"")
    feeder.stable()
    kept = feeder.bucket.timeline.kept[-1]
    assert dict(kept.builds) == {INDEX: 1}


def test_an_index_that_is_built_when_nothing_changes_any_more_is_in_the_newest_snapshot(
    storage: Storage,
) -> None:
    """No other timestamp would come; what has changed since is taken back as ever."""
    fed = Feeder(storage)
    for number, document in enumerate(DOCUMENTS):
        fed.mutate(document, number + 1)
    fed.sync()
    number = fed.stable()
    storage.allocate("b", SECOND, frozenset({0}), b"")
    begun = [attach(v, fed.seqnos[v], BRANCH, 1) for v in range(VBUCKETS)]
    backfill = [begin(v, 0, BRANCH, [0]) for v in range(VBUCKETS)]
    entry = b"\x90\x31\x00"
    items = [Item(UPSERT, v, 1, 0, 0, b"e%d" % v, entry) for v in range(VBUCKETS)]
    ends = [Item(END, v, fed.seqnos[v]) for v in range(VBUCKETS)]
    fed.apply(MAINTENANCE, 1, *begun, indexes=(INDEX, SECOND))
    fed.apply(BACKFILL, 8, *backfill, *items, *ends, indexes=(SECOND,))
    kept = fed.bucket.timeline.kept
    assert [one.number for one in kept] == [number]
    assert kept[-1].builds == {INDEX: 1, SECOND: 1}
    reading = StorageReading(storage)
    view = reading.view(SECOND, (0,), shard=0, build=0, wanted=Wanted(timestamp=number))
    assert len(list(view.entries(0, EVERYTHING, backwards=False))) == VBUCKETS
    view.close()
    fed.mutate(b"d0", 0)
    assert fed.read(number) != fed.read()


# -- rollbacks -----------------------------------------------------------------------------------


def test_a_bucket_goes_back_to_exactly_its_newest_snapshot_that_has_nothing_of_what_was_lost(
    storage: Storage,
) -> None:
    """And so it does after a restart, or after what it does when told twice."""
    feeder, chance = Feeder(storage), Random(7)
    kept: list[tuple[int, list[int], list[bytes]]] = []
    for _ in range(KEPT_MAX):
        for _ in range(1 + chance.randrange(6)):
            feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
        feeder.sync()
        then, entries = list(feeder.seqnos), sorted(feeder.newest.values())
        feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
        kept.append((feeder.stable(then), then, entries))
    for number, seqnos, entries in reversed(kept[1:]):
        lost = dict(enumerate(seqnos))
        said = feeder.bucket.roll_back(a_rollback(lost, number=100 - number))
        assert counted(feeder.bucket) == scanned(feeder.bucket)
        assert said == f"back to timestamp {number}"
        assert feeder.bucket.published.vector.seqnos.tolist() == seqnos
        assert feeder.read_all() == entries
        assert feeder.held()[-1] == number
        assert feeder.bucket.published.recovering
    assert feeder.bucket.roll_back(a_rollback({0: 0}, number=1)) == "", "it was done already"
    feeder.bucket.stale = True
    feeder.storage.reload(feeder.bucket)
    assert feeder.read_all() == kept[1][2]
    assert (feeder.bucket.rolled_back, feeder.bucket.published.recovering) == (98, True)


def test_who_has_applied_nothing_of_what_was_lost_stays_where_he_is(storage: Storage) -> None:
    feeder = Feeder(storage)
    for document in DOCUMENTS:
        feeder.mutate(document, 3)
    entries = feeder.read_all()
    high = dict(enumerate(feeder.seqnos))
    said = feeder.bucket.roll_back(a_rollback(high))
    assert said == "nothing that was lost was held"
    assert feeder.read_all() == entries
    assert feeder.bucket.published.vector.seqnos.tolist() == feeder.seqnos


@pytest.mark.thorough
@pytest.mark.parametrize("why", ["no snapshot", "too low", "forgotten", "restarted"])
def test_where_no_snapshot_is_left_a_bucket_goes_back_to_0(storage: Storage, why: str) -> None:
    feeder = Feeder(storage)
    if why == "forgotten":
        feeder.bucket.timeline = Timeline(undo_bytes_max=2 * (UNDO_BYTES + 60))
    left = 0
    for document in DOCUMENTS:
        feeder.mutate(document, 3)
    feeder.sync()
    if why != "no snapshot":
        feeder.stable()
        left = 0 if why == "too low" else feeder.seqnos[0]
    for document in DOCUMENTS:
        feeder.mutate(document, 4)
    if why == "restarted":
        feeder.bucket.stale = True
        feeder.storage.reload(feeder.bucket)
    assert feeder.bucket.roll_back(a_rollback({0: left})) == "back to 0"
    assert feeder.read_all() == []
    assert not feeder.bucket.published.vector.holds_anything
    assert not feeder.bucket.published.states[INDEX].complete
    assert feeder.bucket.published.states[INDEX].build == 1
    assert feeder.held() == []


def test_what_was_sent_before_a_rollback_counts_no_more_and_what_comes_after_it_does(
    storage: Storage,
) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 3)
    feeder.sync()
    feeder.stable()
    feeder.mutate(b"d0", 4)
    entries = feeder.read_all()
    feeder.bucket.roll_back(a_rollback({0: 1}))
    feeder.mutate(b"d0", 5)
    assert feeder.read_all() != entries
    assert feeder.bucket.published.recovering
    assert feeder.bucket.published.gaps == (0, 1)
    [told] = unpack(history(0, [FailoverBranch(NEWER, 1), FailoverBranch(BRANCH, 0)]))
    starts = told, begin(0, 1, NEWER, [0]), begin(1, 0, BRANCH, [0])
    feeder.apply(MAINTENANCE, 9, *starts, number=6)
    assert not feeder.bucket.published.recovering
    item = Item(UPSERT, 0, 2, 0, 0, b"d0", b"\x907\x00")
    feeder.apply(MAINTENANCE, 9, item, number=6)
    assert feeder.read_all() == [b"0\x907\x00d0"]


def test_another_loss_before_all_has_come_again_is_recovered_from_as_well(
    storage: Storage,
) -> None:
    """The index that the first rollback has emptied is in use, although it is not complete."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 3)
    feeder.bucket.roll_back(a_rollback({0: 0}, number=5))
    feeder.bucket.roll_back(a_rollback({0: 0}, number=6))
    feeder.apply(MAINTENANCE, 9, *(begin(v, 0, NEWER, [0]) for v in range(VBUCKETS)), number=7)
    assert feeder.bucket.published.recovering
    feeder.apply(BACKFILL, 10, *(begin(v, 0, NEWER, [0]) for v in range(VBUCKETS)))
    feeder.apply(BACKFILL, 10, *(Item(END, v, 0) for v in range(VBUCKETS)))
    assert not feeder.bucket.published.recovering
    feeder.apply(MAINTENANCE, 11, begin(0, 3, NEWER, [0]), number=8)
    feeder.bucket.stale = True
    feeder.storage.reload(feeder.bucket)
    assert feeder.bucket.published.gaps == (0,), "that has nothing to do with the rollback"
    assert (feeder.bucket.rolled_back, feeder.bucket.published.recovering) == (6, False)


def test_a_rollback_does_not_wait_for_an_index_that_somebody_has_built_anew(
    storage: Storage,
) -> None:
    """That build may end in an error, and the bucket would recover for ever."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 3)
    feeder.bucket.roll_back(a_rollback({0: 0}, number=5))
    feeder.bucket.begin_builds({INDEX: 2})
    feeder.apply(MAINTENANCE, 9, *(begin(v, 0, NEWER, [0]) for v in range(VBUCKETS)), number=7)
    assert not feeder.bucket.published.states[INDEX].complete
    assert (feeder.bucket.rolled_back, feeder.bucket.published.recovering) == (5, False)
    feeder.bucket.stale = True
    feeder.storage.reload(feeder.bucket)
    assert (feeder.bucket.rolled_back, feeder.bucket.published.recovering) == (5, False)


def test_no_snapshot_is_made_at_a_timestamp_of_a_branch_that_has_lost_more(
    storage: Storage,
) -> None:
    """Nothing below the last snapshot can be undone any more, not even to seqno 0."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 3)
    feeder.sync()
    first = feeder.stable()
    feeder.stable([0, feeder.seqnos[1]])
    assert feeder.held() == [first]


def test_what_is_held_of_a_former_bucket_with_more_vbuckets_is_in_no_snapshot(
    storage: Storage,
) -> None:
    """It was dropped and made anew while its indexer was away: what was held has yet to go."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    number = feeder.stable()
    assert feeder.bucket.about().number == number
    storage.know("b", VBUCKETS - 1)
    assert feeder.bucket.about().number == 0
    held, left = feeder.held(), VBUCKETS - 1
    feeder.stable(feeder.seqnos[:left])
    assert feeder.held() == held


def test_what_an_index_held_before_it_began_anew_does_not_come_back(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.stable()
    feeder.mutate(b"d0", 2)
    assert feeder.bucket.timeline.changes_since(1)
    feeder.bucket.begin_builds({INDEX: 2})
    assert not feeder.bucket.timeline.changes_since(1)


def test_changes_are_laid_over_entries_in_both_directions() -> None:
    entries = [b"b", b"d", b"f"]
    changes = [(b"a", True), (b"b", False), (b"c", True), (b"d", True), (b"g", True)]
    expected = [b"a", b"c", b"d", b"f", b"g"]
    assert list(overlaid(entries, changes, False)) == expected
    assert list(overlaid(entries[::-1], changes[::-1], True)) == expected[::-1]
    assert list(overlaid([], changes, False)) == [b"a", b"c", b"d", b"g"]


def test_taking_back_goes_from_the_last_change_to_the_first() -> None:
    def undo(seqno: int, before: bytes | None, after: bytes | None) -> Undo:
        def back(key: bytes | None) -> bytes | None:
            return None if key is None else pack_back(1, 0, 0, key)

        return Undo(0, seqno, 1, b"|d", back(before), back(after))

    changes = [undo(5, b"k1", b"k2"), undo(6, b"k2", b"k1"), undo(7, b"k1", None)]
    assert taken_back(changes) == {(1, 0): [(b"k1|d", True), (b"k2|d", False)]}


# -- checkpoints ---------------------------------------------------------------------------------


def test_what_a_checkpoint_is_can_be_read_back() -> None:
    changes = (
        Undo(3, 2**64 - 2, 7, b"doc", None, b"after"),
        Undo(0, 1, 2**60, b"", b"", None),
    )
    about = About(9, Vector([BRANCH, 0], [5, 0]), changes)
    assert About.unpack(about.pack()) == about
    assert About.unpack(About(0, Vector.zero(0)).pack()).changes == ()


def commanded(number: int, barrier: int, left: int = 100) -> Rollback:
    """Return a rollback because of vbucket 0, of which that much is left."""
    return make_rollback(number, BRANCH + number, {0: left}, barrier=barrier)


def test_that_a_rollback_is_over_is_not_said_of_the_next_one(storage: Storage) -> None:
    """It would be read after a restart, and scans were answered though not all is here."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.bucket.roll_back(commanded(5, 6))
    begun = [begin(v, seqno, BRANCH, [0]) for v, seqno in enumerate(feeder.seqnos)]
    feeder.apply(MAINTENANCE, 2, *begun, number=7)
    assert not feeder.bucket.published.recovering
    feeder.bucket.roll_back(commanded(8, 9))
    feeder.mutate(b"d0", 2, connection=2, number=7)
    assert feeder.bucket.published.recovering
    feeder.bucket.stale = True
    storage.reload(feeder.bucket)
    assert feeder.bucket.published.recovering
    assert feeder.bucket.published.rollback == 8


def test_a_stream_that_began_before_a_bucket_went_back_is_asked_for_again(
    storage: Storage,
) -> None:
    """On which branch it is nobody says again: what it sends is not to be taken for the old one."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.stable()
    for value in range(1, 6):
        feeder.mutate(b"d2", value)
    newer = BRANCH + 5
    log = (FailoverBranch(newer, 3), FailoverBranch(BRANCH, 0))
    [told] = unpack(history(0, log))
    begun = told, begin(0, 1, newer, [0]), begin(1, 0, BRANCH, [0])
    feeder.apply(MAINTENANCE, 2, *begun, number=11)
    assert feeder.bucket.published.branched == (0,)
    feeder.bucket.roll_back(commanded(5, 10, left=3))
    late = Item(UPSERT, 0, 9, 0, 0, b"d4", b"\x901\x00")
    feeder.apply(MAINTENANCE, 2, late, number=11)
    [taken] = feeder.bucket.published.taken
    assert taken.number > 11, "the projector sees it, and begins again"
    feeder.apply(CATCHUP, 3, *begun, number=11)
    assert not feeder.bucket.published.branched
    feeder.apply(MAINTENANCE, 4, *begun, late, number=13)
    feeder.apply(MAINTENANCE, 4, Item(SYNC, 0, 9), number=13)
    assert not feeder.bucket.published.recovering
    assert feeder.bucket.tracker.progress[0].vbuuid == newer


def test_what_no_index_holds_any_more_is_not_lost_again_and_again(storage: Storage) -> None:
    """The high watermark is of an index that was dropped; the other one has yet to begin."""
    feeder = Feeder(storage)
    for value in range(1, 6):
        feeder.mutate(b"d0", value)
    storage.allocate("b", SECOND, frozenset({0}), b"")
    storage.release(INDEX, frozenset({0, 1}))
    feeder.bucket.roll_back(commanded(5, 10, left=3))
    assert feeder.bucket.published.vector.position(0) == (BRANCH + 5, 3)
    assert not feeder.bucket.published.branched


def damage(folder: Path) -> None:
    """Overwrite the middle of each table, and of what lists them."""
    for path in (*folder.glob("*.sst"), *folder.glob("MANIFEST-*")):
        raw = path.read_bytes()
        path.unlink()  # A checkpoint may have a link to it.
        path.write_bytes(raw[: len(raw) // 3] + b"\xff" * (len(raw) // 3) + raw[-len(raw) // 3 :])


@pytest.fixture
def fed(storage: Storage) -> Feeder:
    """A bucket with a checkpoint, and something after it."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.stable()
    feeder.mutate(b"d1", 1)
    storage.make_checkpoint(feeder.bucket)
    feeder.mutate(b"d2", 2)
    return feeder


def test_a_damaged_bucket_is_made_from_its_checkpoint_and_goes_back(
    storage: Storage, fed: Feeder
) -> None:
    offset = fed.offset
    folder = fed.bucket.database.folder
    storage.close()
    damage(folder)
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    fed.storage = again
    assert again.held == {INDEX: frozenset({0, 1})}
    assert again.recovered
    assert again.epoch > 0
    assert {entry[-2:] for entry in fed.read()} == {b"d0", b"d1"}
    assert fed.bucket.offsets == {0: offset - 1}
    again.close()


def test_a_bucket_that_was_only_begun_is_deleted_without_a_word(storage: Storage) -> None:
    feeder = Feeder(storage)
    database = feeder.bucket.database
    slices = [key for key, _ in database.scan(SLICE)]
    assert slices
    for key in slices:
        database.opened().delete(key)
    storage.close()
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    assert again.held == {}
    assert again.recovered == []
    again.close()


def test_of_what_there_is_a_checkpoint_is_known_after_a_restart(
    storage: Storage, fed: Feeder
) -> None:
    persisted = fed.bucket.last_persistence
    assert persisted
    storage.close()
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    fed.storage = again
    assert fed.bucket.last_persistence == persisted
    newest, *_ = again.checkpoints(fed.bucket).found()
    again.close()
    (newest / "about").write_bytes(b"?")
    third = Storage(storage.folder, "indexer 1 of cluster demo")
    fed.storage = third
    assert fed.bucket.last_persistence == 0
    third.close()


def test_the_newest_checkpoint_that_can_be_read_counts(storage: Storage, fed: Feeder) -> None:
    persisted = fed.bucket.last_persistence
    fed.sync()
    fed.stable()
    storage.make_checkpoint(fed.bucket)
    assert fed.bucket.last_persistence != persisted
    newest, _ = storage.checkpoints(fed.bucket).found()
    folder = fed.bucket.database.folder
    storage.close()
    damage(folder)
    damage(newest / "db")
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    fed.storage = again
    assert {entry[-2:] for entry in fed.read()} == {b"d0", b"d1"}
    assert fed.bucket.last_persistence == persisted
    again.close()


def test_a_bucket_that_disappeared_comes_back_from_its_checkpoint(
    storage: Storage, fed: Feeder
) -> None:
    folder = fed.bucket.database.folder
    storage.close()
    shutil.rmtree(folder)
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    assert again.held == {INDEX: frozenset({0, 1})}
    again.close()


@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["none", "a damaged one"])
def test_without_a_checkpoint_that_can_be_read_a_damaged_bucket_is_gone(
    storage: Storage, has_checkpoint: bool
) -> None:
    """The operator hears of it."""
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.bucket.database.opened().flush()
    if has_checkpoint:
        storage.make_checkpoint(feeder.bucket)
    found = storage.checkpoints(feeder.bucket).found()
    assert len(found) == has_checkpoint
    storage.close()
    for folder in (feeder.bucket.database.folder, *(one / "db" for one in found)):
        damage(folder)
    again = Storage(storage.folder, "indexer 1 of cluster demo")
    assert again.held == {}
    assert again.recovered == [f"{feeder.bucket.name} anew, as no checkpoint of it can be read"]
    again.close()


def test_a_released_bucket_leaves_no_checkpoint(storage: Storage, fed: Feeder) -> None:
    places = storage.checkpoints(fed.bucket)
    assert places.found()
    storage.release(INDEX, frozenset({0, 1}))
    assert not places.found()


def test_a_bucket_that_did_not_change_needs_no_other_checkpoint(
    storage: Storage, fed: Feeder
) -> None:
    for _ in range(5):
        storage.make_checkpoint(fed.bucket)
    assert len(storage.checkpoints(fed.bucket).found()) == 2
    for value in range(5):
        fed.mutate(b"d0", value)
        storage.make_checkpoint(fed.bucket)
    assert len(storage.checkpoints(fed.bucket).found()) == 3
    about = About.unpack((storage.checkpoints(fed.bucket).found()[0] / "about").read_bytes())
    assert about.number == 1
    assert [change.document for change in about.changes][:2] == [b"d1", b"d2"]


def test_bounds_hold_for_what_was_taken_back(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 2)
    feeder.sync()
    then = list(feeder.seqnos)
    feeder.mutate(b"d0", 4)
    number = feeder.stable(then)
    view = StorageReading(storage).view(
        INDEX, (0,), shard=0, build=0, wanted=Wanted(timestamp=number)
    )
    bounds = Bounds(b"\x903", b"\x909")
    assert list(view.entries(0, bounds, backwards=False)) == []
    assert list(view.entries(0, EVERYTHING, backwards=False)) == [b"\x902\x00d0"]

"""What must hold of storage that is emptied, goes back, or is read meanwhile: on a real RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.keys.collation import EVERYTHING
from coordinator.core.keys.key_versions import (
    BRANCH as BRANCH_PAIR,
)
from coordinator.core.keys.key_versions import (
    DOCUMENT,
    END,
    HISTORY,
    PLACES,
    SYNC,
    Item,
    Placed,
    attach,
    begin,
)
from coordinator.core.model.stream_records import BACKFILL, CATCHUP, MAINTENANCE
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import BACK
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import ScanRefused, Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.fed_storage import BRANCH, FedStorage, make_rollback


class Given(FedStorage):
    """A storage whose indexes are built from nothing, and what is read of it."""

    def lose(self, number: int, branch: int, left: Mapping[int, int]) -> str:
        """Roll back: of these vbuckets so much is left, under this branch."""
        return self.bucket.roll_back(make_rollback(number, branch, left))

    def stable(self, *seqnos: int) -> int:
        number = self.stable_at(seqnos)
        assert self.bucket.timeline.kept[-1].number == number
        return number

    def read(
        self, index_id: int, *pieces: int, timestamp: int | None = None, **more: Any
    ) -> dict[int, list[bytes]]:
        view = StorageReading(self.storage).view(
            index_id,
            pieces,
            **({"shard": 0, "build": 0} | more),
            wanted=Wanted(timestamp=timestamp),
        )
        return {p: list(view.entries(p, EVERYTHING, backwards=False)) for p in pieces}


Build = Callable[..., Given]


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Build]:
    """Make so many indexes of so many slices, in a bucket of so many vbuckets."""
    storage = Storage(tmp_path / "folder", "indexer 1 of cluster demo")

    def build(indexes: int, vbuckets: int = 1, pieces: int = 1) -> Given:
        storage.know("b", vbuckets)
        ids = range(1, indexes + 1)
        for index_id in ids:
            storage.allocate("b", index_id, frozenset(range(pieces)), b"")
        return Given(storage, ids, vbuckets)

    yield build
    storage.close()


def document(vbucket: int, seqno: int, name: bytes, *placed: Placed) -> Item:
    return Item(DOCUMENT, vbucket, seqno, document=name, placed=placed)


def place(vbucket: int, seqno: int, name: bytes, *placed: Placed) -> Item:
    return Item(PLACES, vbucket, seqno, document=name, placed=placed)


def in_both(seqno: int, name: bytes, key: bytes) -> Item:
    return document(0, seqno, name, (0, 0, key), (1, 0, key))


def test_an_index_that_one_rollback_has_emptied_is_not_whole_for_the_next(built: Build) -> None:
    """Its build is the same, but what a snapshot has of it was of an earlier life."""
    given = built(indexes=2)
    given.apply(MAINTENANCE, 1, in_both(1, b"d", b"A"), in_both(2, b"e", b"A"))
    given.apply(MAINTENANCE, 1, Item(SYNC, 0, 2))
    first = given.stable(2)
    given.apply(MAINTENANCE, 1, in_both(3, b"d", b"B"), Item(SYNC, 0, 3))
    given.apply(MAINTENANCE, 3, begin(0, 3, BRANCH, [1]), number=2)
    given.apply(MAINTENANCE, 3, place(0, 4, b"x", (1, 0, b"X")), Item(SYNC, 0, 4), number=2)
    given.stable(4)
    given.apply(MAINTENANCE, 3, place(0, 5, b"x", (1, 0, b"Y")), number=2)
    given.lose(10, BRANCH + 1, {0: 4})
    assert not given.bucket.published.states[1].complete
    given.bucket.timeline.leases.renew(
        given.bucket.timeline.kept[0], given.bucket.timeline.leases.revision
    )
    given.lose(20, BRANCH + 2, {0: 2})
    assert given.bucket.published.states[2].complete
    assert not given.bucket.published.states[1].complete
    assert [dict(s.builds) for s in given.bucket.timeline.available().values()] == [{2: 1}]
    given.apply(MAINTENANCE, 9, begin(0, 2, BRANCH, [0, 1]), number=30)
    given.apply(MAINTENANCE, 9, in_both(3, b"d", b"C"), Item(SYNC, 0, 3), number=30)
    given.apply(BACKFILL, 10, begin(0, 0, BRANCH, [0]))
    brought = (place(0, 2, b"e", (0, 0, b"A")), place(0, 3, b"d", (0, 0, b"C")))
    given.apply(BACKFILL, 10, *brought, Item(END, 0, 3))
    assert given.read(1, 0) == {0: [b"Ae", b"Cd"]}
    assert given.read(2, 0) == {0: [b"Ae", b"Cd"]}
    assert first in given.bucket.timeline.available()


def test_an_index_that_an_owner_left_out_is_complete_where_a_rollback_finds_it_whole(
    built: Build,
) -> None:
    given = built(indexes=2)
    given.apply(MAINTENANCE, 1, in_both(1, b"d", b"A"), Item(SYNC, 0, 1))
    given.stable(1)
    given.apply(MAINTENANCE, 3, begin(0, 1, BRANCH, [1]), number=2)
    given.apply(MAINTENANCE, 3, place(0, 2, b"x", (1, 0, b"X")), number=2)
    assert not given.bucket.published.states[1].complete
    given.lose(10, BRANCH + 1, {0: 1})
    assert given.bucket.published.states[1].complete
    given.apply(MAINTENANCE, 9, begin(0, 1, BRANCH, [0, 1]), number=30)
    given.apply(MAINTENANCE, 9, in_both(2, b"d", b"C"), Item(SYNC, 0, 2), number=30)
    assert given.read(1, 0) == given.read(2, 0) == {0: [b"Cd"]}


@pytest.mark.parametrize("swept", [False, True])
def test_no_tombstone_of_what_was_lost_outlives_a_rollback(built: Build, swept: bool) -> None:
    """A gap of one vbucket has left a tombstone in another one, when a slice was swept out."""
    given = built(indexes=1, vbuckets=2, pieces=2)
    changes = [document(1, n, b"d", (0, 0, b"K%d" % n)) for n in range(1, 5)]
    given.apply(MAINTENANCE, 1, *changes, Item(SYNC, 0, 0), Item(SYNC, 1, 4))
    given.stable(0, 4)
    given.apply(MAINTENANCE, 1, *[document(1, n, b"d", (0, 1, b"K%d" % n)) for n in range(5, 10)])
    given.apply(MAINTENANCE, 1, begin(0, 3, BRANCH, [0]))
    assert given.bucket.published.gaps == (0,)
    given.storage.release(1, frozenset({1}))
    if swept:
        given.bucket.sweep()
    given.lose(10, BRANCH + 1, {1: 4})
    given.bucket.load()
    branches = BRANCH_PAIR.pack(BRANCH + 1, 4) + BRANCH_PAIR.pack(BRANCH, 0)
    history = Item(HISTORY, 1, 0, payload=branches)
    begins = (begin(0, 0, BRANCH, [0]), history, begin(1, 6, BRANCH + 1, [0]))
    given.apply(MAINTENANCE, 9, *begins, number=30)
    caught_up = (history, begin(1, 4, BRANCH + 1, [0]), document(1, 6, b"d", (0, 0, b"NEW")))
    given.apply(CATCHUP, 10, *caught_up, Item(END, 1, 6), number=30)
    given.apply(MAINTENANCE, 9, Item(SYNC, 1, 6), number=30)
    assert given.read(1, 0) == {0: [b"NEWd"]}


def test_a_snapshot_that_is_lost_while_it_is_looked_up_is_not_read(
    built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = built(indexes=1)
    for seqno, key in ((1, b"GOOD"), (2, b"LOST")):
        given.apply(MAINTENANCE, 1, document(0, seqno, b"d", (0, 0, key)), Item(SYNC, 0, seqno))
        given.stable(seqno)
    leases = given.bucket.timeline.leases
    renew = leases.renew

    def meanwhile(*found: Any) -> bool:
        monkeypatch.undo()
        given.lose(10, BRANCH + 1, {0: 1})
        return renew(*found)

    monkeypatch.setattr(leases, "renew", meanwhile)
    with pytest.raises(ScanRefused) as caught:
        given.read(1, 0, timestamp=0)
    assert caught.value.code == "index_recovering"
    given.apply(MAINTENANCE, 9, begin(0, 1, BRANCH, [0]), number=30)
    assert given.read(1, 0, timestamp=0) == {0: [b"GOODd"]}


CHANGES: dict[str, Callable[[Given], Any]] = {
    "a build begins": lambda given: given.bucket.begin_builds({1: 2}),
    "it goes back": lambda given: given.lose(10, BRANCH + 1, {0: 0}),
    "a slice is released": lambda given: given.storage.release(1, frozenset({0})),
    "it is allocated again": lambda given: given.storage.allocate("b", 1, frozenset({0, 1}), b""),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_emptied_while_it_is_looked_up_is_not_read_as_if_it_were_whole(
    built: Build, what: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment of the database may be before the change, or after it."""
    given = built(indexes=2, pieces=2)
    given.apply(MAINTENANCE, 1, in_both(1, b"d", b"K"), Item(SYNC, 0, 1))
    moment = given.bucket.database.moment

    def meanwhile() -> Any:
        monkeypatch.undo()
        made = None if is_first else moment()
        CHANGES[what](given)
        return moment() if made is None else made

    shard = given.bucket.shards[1]
    monkeypatch.setattr(given.bucket.database, "moment", meanwhile)
    with pytest.raises(ScanRefused) as caught:
        given.read(1, 0, shard=shard, build=1)
    assert caught.value.code == "index_recovering"


class Emptied:
    """A bucket that is emptied right after somebody has read what is published of it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bucket, name)
        if name == "published":
            self._bucket.begin_builds({1: 2})
        return found


def test_what_is_emptied_right_after_it_was_looked_up_is_not_read(
    built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = built(indexes=1)
    given.apply(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"K")), Item(SYNC, 0, 1))
    bucket = Emptied(given.bucket)
    monkeypatch.setattr(given.storage, "bucket_of", lambda index_id: bucket)
    with pytest.raises(ScanRefused) as caught:
        given.read(1, 0)
    assert caught.value.code == "index_recovering"


def test_a_snapshot_that_is_taken_back_right_after_it_was_found_is_not_leased(
    built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = built(indexes=1)
    for seqno in (1, 2):
        given.apply(MAINTENANCE, 1, document(0, seqno, b"d", (0, 0, b"K")), Item(SYNC, 0, seqno))
        given.stable(seqno)
    timeline = given.bucket.timeline
    available = timeline.available

    def meanwhile() -> Any:
        monkeypatch.undo()
        found = available()
        given.lose(10, BRANCH + 1, {0: 1})
        return found

    monkeypatch.setattr(timeline, "available", meanwhile)
    with pytest.raises(ScanRefused):
        given.read(1, 0, timestamp=0)
    assert timeline.available().keys() == {1}


def test_what_a_rollback_has_emptied_is_swept(built: Build) -> None:
    given = built(indexes=1)
    given.apply(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"K")), Item(SYNC, 0, 1))
    given.lose(10, BRANCH + 1, {0: 0})
    assert not given.bucket.back_index.is_swept
    given.bucket.sweep()
    assert given.bucket.database.scan(BACK) == []


def test_a_snapshot_of_earlier_storage_is_not_read(built: Build) -> None:
    """Nothing changes any more, and the index is built again under its build."""
    given = built(indexes=2, pieces=1)
    given.apply(MAINTENANCE, 1, in_both(1, b"a", b"A"), Item(SYNC, 0, 1))
    number = given.stable(1)
    given.read(1, 0, timestamp=number)
    given.storage.allocate("b", 1, frozenset({1}), b"")
    with pytest.raises(ScanRefused):
        given.read(1, 0, 1, timestamp=0)
    given.apply(MAINTENANCE, 1, attach(0, 1, BRANCH, 0))
    brought = (place(0, 1, b"a", (0, 0, b"A")), place(0, 1, b"z", (0, 1, b"Z")))
    given.apply(BACKFILL, 3, begin(0, 0, BRANCH, [0]), *brought, Item(END, 0, 1))
    wanted = {0: [b"Aa"], 1: [b"Zz"]}
    assert given.read(1, 0, 1) == wanted
    assert given.read(1, 0, 1, timestamp=0) == wanted

"""What must hold of storage that is emptied, goes back, or is read meanwhile: on a real RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from coordinator.core.model.entities import ROLLBACK, Rollback
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    KeyVersions,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import BACK
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import ScanRefused, Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.sizes import counted, scanned

BRANCH = 77


class Given:
    """A storage whose indexes are built from nothing, and what is sent to it."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(folder, "indexer 1 of cluster demo")
        self.indexes: tuple[int, ...] = ()
        self._offset = self._timestamps = 0

    def built(self, indexes: int, vbuckets: int = 1, pieces: int = 1) -> Given:
        self.storage.know("b", vbuckets)
        self.indexes = tuple(range(1, indexes + 1))
        for index_id in self.indexes:
            self.storage.allocate("b", index_id, frozenset(range(pieces)), b"")
        places = list(range(indexes))
        begins = [begin(v, 0, BRANCH, places) for v in range(vbuckets)]
        self.send(MAINTENANCE, 1, *begins)
        self.send(BACKFILL, 2, *begins, *(Item(END, v, 0) for v in range(vbuckets)))
        return self

    @property
    def bucket(self) -> Bucket:
        found = self.storage.bucket("b")
        assert found is not None
        return found

    def send(self, kind: str, connection: int, *items: Item, number: int = 1) -> None:
        self._offset += 1
        head = KeyVersions(
            bucket="b",
            kind=kind,
            projector=1,
            connection=connection,
            ordinal=0,
            number=number,
            indexes=self.indexes,
            builds=(1,) * len(self.indexes),
            items=b"",
            at_ms=0,
        )
        bucket = self.bucket
        if builds := bucket.tracker.newer_builds(head):
            bucket.begin_builds(builds)
        bucket.apply(bucket.tracker.apply(head, items), {0: self._offset})
        assert {k: v for k, v in counted(bucket).items() if v[0]} == {
            k: v for k, v in scanned(bucket).items() if v[0]
        }

    def stable(self, *seqnos: int) -> int:
        self._timestamps += 1
        vector = Vector([BRANCH] * len(seqnos), seqnos)
        record = StabilityTimestamp("b", self._timestamps, *vector.to_bytes(), 0)
        self.bucket.timeline.want(record)
        self.bucket.snap()
        assert self.bucket.timeline.kept[-1].number == self._timestamps
        return self._timestamps

    def lose(self, number: int, branch: int, **left: int) -> str:
        """Roll back: of these vbuckets so much is left, under this branch."""
        seqnos = {int(name[1:]): seqno for name, seqno in left.items()}
        vbuuids, packed = Vector([branch] * len(seqnos), list(seqnos.values())).to_bytes()
        return self.bucket.roll_back(
            Rollback(
                bucket="b",
                number=number,
                state=ROLLBACK,
                vbuckets=tuple(seqnos),
                reason="",
                began_ms=0,
                failover_vbuuids=vbuuids,
                failover_seqnos=packed,
                barrier=number,
            )
        )

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


@pytest.fixture
def given(tmp_path: Path) -> Iterator[Given]:
    made = Given(tmp_path / "folder")
    yield made
    made.storage.close()


def document(vbucket: int, seqno: int, name: bytes, *placed: Placed) -> Item:
    return Item(DOCUMENT, vbucket, seqno, document=name, placed=placed)


def place(vbucket: int, seqno: int, name: bytes, *placed: Placed) -> Item:
    return Item(PLACES, vbucket, seqno, document=name, placed=placed)


def test_an_index_that_one_rollback_has_emptied_is_not_whole_for_the_next(given: Given) -> None:
    """Its build is the same, but what a snapshot has of it was of an earlier life."""
    given.built(indexes=2)
    both = ((0, 0, b"A"), (1, 0, b"A"))
    given.send(MAINTENANCE, 1, document(0, 1, b"d", *both), document(0, 2, b"e", *both))
    given.send(MAINTENANCE, 1, Item(SYNC, 0, 2))
    first = given.stable(2)
    given.send(MAINTENANCE, 1, document(0, 3, b"d", (0, 0, b"B"), (1, 0, b"B")), Item(SYNC, 0, 3))
    given.send(MAINTENANCE, 3, begin(0, 3, BRANCH, [1]), number=2)
    given.send(MAINTENANCE, 3, place(0, 4, b"x", (1, 0, b"X")), Item(SYNC, 0, 4), number=2)
    given.stable(4)
    given.send(MAINTENANCE, 3, place(0, 5, b"x", (1, 0, b"Y")), number=2)
    given.lose(10, BRANCH + 1, v0=4)
    assert not given.bucket.published.states[1].complete
    given.bucket.timeline.leases.renew(
        given.bucket.timeline.kept[0], given.bucket.timeline.leases.revision
    )
    given.lose(20, BRANCH + 2, v0=2)
    assert given.bucket.published.states[2].complete
    assert not given.bucket.published.states[1].complete
    assert [dict(s.builds) for s in given.bucket.timeline.available().values()] == [{2: 1}]
    given.send(MAINTENANCE, 9, begin(0, 2, BRANCH, [0, 1]), number=30)
    given.send(
        MAINTENANCE,
        9,
        document(0, 3, b"d", (0, 0, b"C"), (1, 0, b"C")),
        Item(SYNC, 0, 3),
        number=30,
    )
    given.send(BACKFILL, 10, begin(0, 0, BRANCH, [0]))
    brought = (place(0, 2, b"e", (0, 0, b"A")), place(0, 3, b"d", (0, 0, b"C")))
    given.send(BACKFILL, 10, *brought, Item(END, 0, 3))
    assert given.read(1, 0) == {0: [b"Ae", b"Cd"]}
    assert given.read(2, 0) == {0: [b"Ae", b"Cd"]}
    assert first in given.bucket.timeline.available()


def test_an_index_that_an_owner_left_out_is_complete_where_a_rollback_finds_it_whole(
    given: Given,
) -> None:
    given.built(indexes=2)
    given.send(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"A"), (1, 0, b"A")), Item(SYNC, 0, 1))
    given.stable(1)
    given.send(MAINTENANCE, 3, begin(0, 1, BRANCH, [1]), number=2)
    given.send(MAINTENANCE, 3, place(0, 2, b"x", (1, 0, b"X")), number=2)
    assert not given.bucket.published.states[1].complete
    given.lose(10, BRANCH + 1, v0=1)
    assert given.bucket.published.states[1].complete
    given.send(MAINTENANCE, 9, begin(0, 1, BRANCH, [0, 1]), number=30)
    given.send(
        MAINTENANCE,
        9,
        document(0, 2, b"d", (0, 0, b"C"), (1, 0, b"C")),
        Item(SYNC, 0, 2),
        number=30,
    )
    assert given.read(1, 0) == given.read(2, 0) == {0: [b"Cd"]}


@pytest.mark.parametrize("swept", [False, True])
def test_no_tombstone_of_what_was_lost_outlives_a_rollback(given: Given, swept: bool) -> None:
    """A gap of one vbucket has left a tombstone in another one, when a slice was swept out."""
    given.built(indexes=1, vbuckets=2, pieces=2)
    changes = [document(1, n, b"d", (0, 0, b"K%d" % n)) for n in range(1, 5)]
    given.send(MAINTENANCE, 1, *changes, Item(SYNC, 0, 0), Item(SYNC, 1, 4))
    given.stable(0, 4)
    given.send(MAINTENANCE, 1, *[document(1, n, b"d", (0, 1, b"K%d" % n)) for n in range(5, 10)])
    given.send(MAINTENANCE, 1, begin(0, 3, BRANCH, [0]))
    assert given.bucket.published.gaps == (0,)
    given.storage.release(1, frozenset({1}))
    if swept:
        given.bucket.sweep()
    given.lose(10, BRANCH + 1, v1=4)
    given.bucket.load()
    branches = BRANCH_PAIR.pack(BRANCH + 1, 4) + BRANCH_PAIR.pack(BRANCH, 0)
    history = Item(HISTORY, 1, 0, payload=branches)
    begins = (begin(0, 0, BRANCH, [0]), history, begin(1, 6, BRANCH + 1, [0]))
    given.send(MAINTENANCE, 9, *begins, number=30)
    caught_up = (history, begin(1, 4, BRANCH + 1, [0]), document(1, 6, b"d", (0, 0, b"NEW")))
    given.send(CATCHUP, 10, *caught_up, Item(END, 1, 6), number=30)
    given.send(MAINTENANCE, 9, Item(SYNC, 1, 6), number=30)
    assert given.read(1, 0) == {0: [b"NEWd"]}


def test_a_snapshot_that_is_lost_while_it_is_looked_up_is_not_read(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.built(indexes=1)
    for seqno, key in ((1, b"GOOD"), (2, b"LOST")):
        given.send(MAINTENANCE, 1, document(0, seqno, b"d", (0, 0, key)), Item(SYNC, 0, seqno))
        given.stable(seqno)
    leases = given.bucket.timeline.leases
    renew = leases.renew

    def meanwhile(*found: Any) -> bool:
        monkeypatch.undo()
        given.lose(10, BRANCH + 1, v0=1)
        return renew(*found)

    monkeypatch.setattr(leases, "renew", meanwhile)
    with pytest.raises(ScanRefused) as caught:
        given.read(1, 0, timestamp=0)
    assert caught.value.code == "index_recovering"
    given.send(MAINTENANCE, 9, begin(0, 1, BRANCH, [0]), number=30)
    assert given.read(1, 0, timestamp=0) == {0: [b"GOODd"]}


CHANGES: dict[str, Callable[[Given], None]] = {
    "a build begins": lambda given: given.bucket.begin_builds({1: 2}),
    "it goes back": lambda given: given.lose(10, BRANCH + 1, v0=0),
    "a slice is released": lambda given: given.storage.release(1, frozenset({0})),
    "it is allocated again": lambda given: given.storage.allocate("b", 1, frozenset({0, 1}), b""),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_emptied_while_it_is_looked_up_is_not_read_as_if_it_were_whole(
    given: Given, what: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment of the database may be before the change, or after it."""
    given.built(indexes=2, pieces=2)
    given.send(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"K"), (1, 0, b"K")), Item(SYNC, 0, 1))
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
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.built(indexes=1)
    given.send(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"K")), Item(SYNC, 0, 1))
    bucket = Emptied(given.bucket)
    monkeypatch.setattr(given.storage, "bucket_of", lambda index_id: bucket)
    with pytest.raises(ScanRefused) as caught:
        given.read(1, 0)
    assert caught.value.code == "index_recovering"


def test_a_snapshot_that_is_taken_back_right_after_it_was_found_is_not_leased(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.built(indexes=1)
    for seqno in (1, 2):
        given.send(MAINTENANCE, 1, document(0, seqno, b"d", (0, 0, b"K")), Item(SYNC, 0, seqno))
        given.stable(seqno)
    timeline = given.bucket.timeline
    available = timeline.available

    def meanwhile() -> Any:
        monkeypatch.undo()
        found = available()
        given.lose(10, BRANCH + 1, v0=1)
        return found

    monkeypatch.setattr(timeline, "available", meanwhile)
    with pytest.raises(ScanRefused):
        given.read(1, 0, timestamp=0)
    assert timeline.available().keys() == {1}


def test_what_a_rollback_has_emptied_is_swept(given: Given) -> None:
    given.built(indexes=1)
    given.send(MAINTENANCE, 1, document(0, 1, b"d", (0, 0, b"K")), Item(SYNC, 0, 1))
    given.lose(10, BRANCH + 1, v0=0)
    assert not given.bucket.back_index.is_swept
    given.bucket.sweep()
    assert given.bucket.database.scan(BACK) == []


def test_a_snapshot_of_earlier_storage_is_not_read(given: Given) -> None:
    """Nothing changes any more, and the index is built again under its build."""
    given.built(indexes=2, pieces=1)
    given.send(MAINTENANCE, 1, document(0, 1, b"a", (0, 0, b"A"), (1, 0, b"A")), Item(SYNC, 0, 1))
    number = given.stable(1)
    given.read(1, 0, timestamp=number)
    given.storage.allocate("b", 1, frozenset({1}), b"")
    with pytest.raises(ScanRefused):
        given.read(1, 0, 1, timestamp=0)
    given.send(MAINTENANCE, 1, attach(0, 1, BRANCH, 0))
    brought = (place(0, 1, b"a", (0, 0, b"A")), place(0, 1, b"z", (0, 1, b"Z")))
    given.send(BACKFILL, 3, begin(0, 0, BRANCH, [0]), *brought, Item(END, 0, 1))
    wanted = {0: [b"Aa"], 1: [b"Zz"]}
    assert given.read(1, 0, 1) == wanted
    assert given.read(1, 0, 1, timestamp=0) == wanted

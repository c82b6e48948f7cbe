"""What is read of `failover-log` ends scans of what is lost, before anybody has undone it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.core.keys.collation import EVERYTHING
from coordinator.core.keys.key_versions import UPSERT, Item, begin, history, unpack
from coordinator.core.model.stream_records import MAINTENANCE, FailoverBranch, FailoverLog
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.storage import Storage
from indexer_sim.pipeline.histories import Histories
from indexer_sim.scans.api import ScanRefused, Wanted, read_scan
from indexer_sim.scans.reader import StorageReading
from tests.support.fed_storage import BRANCH, FedStorage, make_rollback

INDEX, VBUCKETS = 1, 2
NEWER, NEWEST = BRANCH + 1, BRANCH + 2


class Record:
    """A record as it comes from Kafka."""

    def __init__(self, offset: int, value: bytes | None, key: bytes = b"b/0") -> None:
        self._fields = offset, value, key

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._fields[0]

    def value(self) -> bytes | None:
        return self._fields[1]

    def key(self) -> bytes:
        return self._fields[2]


class Place:
    """An indexer's storage, what it has heard, and the scans of it."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(folder, "indexer 1 of cluster demo")
        self.storage.know("b", VBUCKETS)
        self.storage.allocate("b", INDEX, frozenset({0}), b"")
        self.fed = FedStorage(self.storage, (INDEX,), VBUCKETS)
        self.bucket = self.fed.bucket
        self.histories = Histories(self.storage)
        self.offset = 0

    def write(self, seqno: int) -> None:
        item = Item(UPSERT, 0, seqno, 0, 0, b"d%d" % seqno, b"\x905\x00")
        self.fed.apply(MAINTENANCE, 1, item)

    def note(self, *branches: tuple[int, int], vbucket: int = 0, bucket: str = "b") -> None:
        found = tuple(FailoverBranch(vbuuid, seqno) for vbuuid, seqno in branches)
        value = codec.encode(FailoverLog(bucket, vbucket, found, 0))
        self.take(value, f"{bucket}/{vbucket}".encode())

    def take(self, value: bytes | None, key: bytes = b"b/0") -> None:
        self.histories.note(Record(self.offset, value, key))  # type: ignore[arg-type]
        self.offset += 1

    def tell(self, *branches: tuple[int, int], vbucket: int = 0) -> None:
        self.note(*branches, vbucket=vbucket)
        self.histories.tell()

    def read(self, wanted: Wanted = Wanted()) -> int:
        """Return how many entries there are. Raises ScanRefused."""
        reading = StorageReading(self.storage, self.histories.heard)
        with closing(reading.view(INDEX, (0,), shard=0, build=0, wanted=wanted)) as view:
            return len(list(view.entries(0, EVERYTHING, backwards=False)))

    def refusal(self, wanted: Wanted = Wanted()) -> str:
        with pytest.raises(ScanRefused) as refused:
            self.read(wanted)
        return refused.value.code


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.storage.close()


def test_what_the_store_has_lost_is_not_shown_although_nobody_has_begun_a_rollback(
    place: Place,
) -> None:
    place.write(1)
    place.write(2)
    place.tell((NEWER, 2), (BRANCH, 0))
    assert place.read() == 2, "a branch that has all that is held loses nothing"
    place.tell((NEWEST, 1), (NEWER, 1), (BRANCH, 0))
    assert place.refusal() == "index_rolling_back"
    assert place.refusal(Wanted(last_good=True)) == "index_rolling_back"
    place.bucket.roll_back(make_rollback(5, NEWEST, {0: 1}))
    assert place.bucket.lost == frozenset()
    assert place.bucket.published.recovering


def test_what_was_on_its_way_when_it_was_lost_is_never_shown(place: Place) -> None:
    """The last records of the old branch are applied after the history was heard."""
    place.write(1)
    place.tell((NEWER, 1), (BRANCH, 0))
    assert place.read() == 1
    seen: list[frozenset[int]] = []
    write = place.bucket.write
    place.bucket.write = lambda *a, **k: (seen.append(place.bucket.lost), write(*a, **k))[1]
    place.write(2)
    assert seen == [frozenset({0})], "it must be known before it can be read"
    assert place.refusal() == "index_rolling_back"


def test_a_history_from_before_the_branch_that_is_held_says_nothing(place: Place) -> None:
    place.write(1)
    place.write(2)
    place.tell((NEWER, 2), (BRANCH, 0))
    [told] = unpack(history(0, [FailoverBranch(NEWER, 2), FailoverBranch(BRANCH, 0)]))
    place.fed.apply(MAINTENANCE, 9, told, begin(0, 2, NEWER, [0]), number=6)
    place.tell((BRANCH, 0))
    assert place.read() == 2


def test_the_last_history_of_a_vbucket_counts_as_it_does_for_who_reads_the_topic_later(
    place: Place,
) -> None:
    place.write(1)
    place.tell((NEWEST, 0), (BRANCH, 0))
    assert place.refusal() == "index_rolling_back"
    place.tell((NEWER, 1), (BRANCH, 0))
    assert place.read() == 1


def test_what_is_lost_stays_so_while_a_write_that_would_undo_it_has_failed(place: Place) -> None:
    place.write(1)
    place.write(2)
    place.tell((NEWER, 1), (BRANCH, 0))
    write = place.bucket.database.write

    def refused(*_: Any, **__: Any) -> None:
        raise StorageError("refused", "the disk is full")

    place.bucket.database.write = refused  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        place.bucket.roll_back(make_rollback(5, NEWER, {0: 1}))
    place.tell((NEWER, 1), (BRANCH, 0))
    place.tell((NEWER, 9), (BRANCH, 0), vbucket=1)
    assert place.refusal() == "index_rolling_back"
    place.bucket.database.write = write  # type: ignore[method-assign]
    place.storage.reload(place.bucket)
    assert place.refusal() == "index_rolling_back"
    place.bucket.roll_back(make_rollback(5, NEWER, {0: 1}))
    assert place.bucket.lost == frozenset()


def test_what_a_checkpoint_brings_back_is_lost_again(place: Place) -> None:
    place.write(1)
    place.write(2)
    place.storage.make_checkpoint(place.bucket)
    place.tell((NEWER, 1), (BRANCH, 0))
    place.bucket.roll_back(make_rollback(5, NEWER, {0: 1}))
    assert place.bucket.lost == frozenset()
    place.bucket.damaged = True
    place.storage.reload(place.bucket)
    assert place.bucket.lost == frozenset({0})


def test_a_scan_waits_until_it_is_known_here_what_is_known_elsewhere(place: Place) -> None:
    place.write(1)
    ahead = Wanted(failover_log=(1, 0, 0, 0))
    assert place.refusal(ahead) == "timestamp_not_reached"
    place.note((NEWER, 0), (BRANCH, 0))
    assert place.refusal(ahead) == "timestamp_not_reached", "it was read, and the bucket not told"
    place.histories.tell()
    assert place.refusal(ahead) == "index_rolling_back"


def test_who_has_read_a_partition_to_its_end_knows_all_of_it(place: Place) -> None:
    place.write(1)
    assert place.refusal(Wanted(failover_log=(7, 0, 0, 2))) == "timestamp_not_reached"
    place.histories.ends({0: 7, 3: 2})
    assert place.read(Wanted(failover_log=(7, 0, 0, 2))) == 1
    assert place.refusal(Wanted(failover_log=(7, 1, 0, 2))) == "timestamp_not_reached"
    place.histories.ends({0: 4})
    assert place.histories.heard("b") == (7, 0, 0, 2)
    place.histories.begin()
    assert place.histories.heard("b") == (0, 0, 0, 0), "it may be another log than before"


def test_a_busy_bucket_is_not_waited_for_and_is_told_later(place: Place) -> None:
    place.write(1)
    place.storage.allocate("c", INDEX + 1, frozenset({0}), b"")
    place.note((NEWER, 0), (BRANCH, 0))
    place.note((NEWEST, 0), (BRANCH, 0))
    place.note((NEWER, 0), (BRANCH, 0), bucket="c")
    held, done = threading.Event(), threading.Event()

    def busy() -> None:
        with place.bucket.lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert held.wait(30)
        place.histories.tell()
        assert place.histories.are_waiting
        assert place.histories.heard("b")[0] == 0
        assert place.histories.heard("c")[0] == 3, "others are not kept"
    finally:
        done.set()
        thread.join()
    place.histories.tell()
    assert not place.histories.are_waiting
    assert place.histories.heard("b")[0] == 3
    assert place.refusal() == "index_rolling_back"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "key"),
    [
        (None, b"b/0"),
        (b"no record", b"b/0"),
        (codec.encode(FailoverLog("b", 0, (), 0)), b"b/0"),
        (codec.encode(FailoverLog("b", 1, (FailoverBranch(NEWER, 0),), 0)), b"b/0"),
        (codec.encode(FailoverLog("b", 2, (FailoverBranch(NEWER, 0),), 0)), b"b/2"),
        (codec.encode(FailoverLog("b", -1, (FailoverBranch(NEWER, 0),), 0)), b"b/-1"),
        (codec.encode(FailoverLog("b", 0, (FailoverBranch(NEWER, 0),) * 257, 0)), b"b/0"),
        (codec.encode(FailoverLog("c", 0, (FailoverBranch(NEWER, 0),), 0)), b"b/0"),
        (codec.encode(FailoverLog("c", 0, (FailoverBranch(NEWER, 0),), 0)), b"c/0"),
        (b"", b"\xff"),
    ],
    ids=[
        "tombstone",
        "garbage",
        "no branches",
        "other vbucket",
        "no such vbucket",
        "negative",
        "long",
        "other bucket",
        "not held",
        "odd key",
    ],
)
def test_whatever_is_written_there_is_read_on_and_keeps_no_scan(
    place: Place, value: bytes | None, key: bytes
) -> None:
    place.write(1)
    place.take(value, key)
    place.histories.tell()
    assert place.read(Wanted(failover_log=(1, 0, 0, 0))) == 1
    assert not place.bucket._histories


def test_a_scan_names_the_end_of_the_log() -> None:
    body = (
        b'{"index":"1","slices":[0],"begin":"","end":"ff","consistency":{"consistent":0},'
        b'"failover_log":[3,0,0,9]}'
    )
    assert read_scan(body, 1).wanted.failover_log == (3, 0, 0, 9)
    assert read_scan(body.replace(b',"failover_log":[3,0,0,9]', b""), 1).wanted.failover_log == ()
    with pytest.raises(ScanRefused):
        read_scan(body.replace(b"[3,0,0,9]", b'["x"]'), 1)


def test_what_a_vbucket_costs_is_not_a_matter_of_the_others(place: Place) -> None:
    """All histories were looked at for each, and at each batch: an indexer fell silent."""
    place.write(1)
    judged: list[int] = []
    lost_of = place.bucket._lost_of
    place.bucket._lost_of = lambda vbuckets: (  # type: ignore[method-assign]
        judged.extend(vbuckets) or lost_of(vbuckets)
    )
    for _ in range(50):
        place.tell((NEWER, 1), (BRANCH, 0))
        place.tell((NEWER, 1), (BRANCH, 0), vbucket=1)
    assert len(judged) == 100
    judged.clear()
    place.fed.apply(MAINTENANCE, 1, Item(UPSERT, 1, 1, 0, 0, b"e1", b"\x905\x00"))
    assert set(judged) == {1}


def test_who_tells_has_other_things_to_do(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer_sim.pipeline.histories.TELL_S", 0.0)
    place.tell((NEWER, 1), (BRANCH, 0))
    assert place.histories.are_waiting
    monkeypatch.undo()
    place.histories.tell()
    assert not place.histories.are_waiting

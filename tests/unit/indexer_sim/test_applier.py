"""Laws of reading records and of applying them, on real RocksDBs."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import WriteBatch

from coordinator import codec
from coordinator.core.keys.collation import EVERYTHING
from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    DOCUMENT,
    END,
    NO_SLICE,
    PLACES,
    SYNC,
    UPSERT,
    Item,
    attach,
    begin,
    pack,
)
from coordinator.core.model.stream_records import (
    BACKFILL,
    MAINTENANCE,
    NOT_SAID,
    ConnectionRead,
    ConsolidatedStability,
    KeyVersions,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.runtime.threads import Threads
from indexer_sim.bucket import bucket
from indexer_sim.bucket.entries import INDEX_KEY, NUMBER_KEY, OFFSET, OLD_OFFSET_VALUE, STATE, State
from indexer_sim.bucket.leases import Leases
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.tracker import Change, Tracker
from indexer_sim.pipeline.applier import Applier
from indexer_sim.pipeline.mutation_reader import (
    ITEM_BYTES,
    Delivery,
    Follows,
    Lost,
    MutationQueue,
    Position,
    Queued,
    read_record,
)
from indexer_sim.scans.api import ScanRefused, Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.indexes import make_sync
from tests.support.limits import file_size_limit

BRANCH = 9
ENDS = {0: 100, 1: 100, 2: 100, 3: 100}


def record(
    kind: str,
    *items: Item,
    connection: int = 1,
    build: int = 1,
    index_id: int = 1,
    bucket: str = "b",
    ordinal: int = 0,
    previous: int = NOT_SAID,
) -> bytes:
    raw = b"".join(map(pack, items))
    return codec.encode(
        KeyVersions(
            bucket=bucket,
            kind=kind,
            projector=1,
            connection=connection,
            ordinal=ordinal,
            number=1,
            indexes=(index_id,),
            builds=(build,),
            items=raw,
            at_ms=0,
            previous=previous,
        )
    )


def stable(number: int, seqno: int, bucket: str = "b") -> StabilityTimestamp:
    return StabilityTimestamp(bucket, number, *Vector([BRANCH], [seqno]).to_bytes(), 0)


def upsert(seqno: int, document: bytes, key: bytes = b"\x90k\x00", piece: int = 0) -> Item:
    return Item(UPSERT, 0, seqno, 0, piece, document, key)


class Bench:
    """A storage with one index of one vbucket, and the applier of it, driven by hand."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(folder, "indexer 1 of cluster demo")
        self.storage.know("b", 1)
        self.storage.allocate("b", 1, frozenset({0, 1}), b"", ENDS)
        self.problems: list[str] = []
        self.said: list[str] = []
        self.news = 0
        self.seen: list[list[bytes]] = []
        """The documents that there were each time that something was applied."""
        self.applied = threading.Event()
        self.dead_letters: list[tuple[int, str]] = []
        self.applier = Applier(
            *(self.storage, MutationQueue(), self.hear, self.problem, lambda _: None),
            *(self.dead_letter, 3_600, Threads(lambda: None), self.said.append, self.note),
        )
        self.offset = 100

    def hear(self) -> None:
        self.news += 1

    def note(self) -> None:
        self.seen.append(self.documents())
        self.applied.set()

    def problem(self, about: str, message: str) -> None:
        self.problems.append(f"{about}: {message}")

    def dead_letter(self, one: Delivery, reason: str) -> None:
        self.dead_letters.append((one.offset, reason))

    def delivery(self, raw: bytes, offset: int | None = None) -> Queued:
        """Return a record as it is read; without an offset, it is the next one."""
        if offset is None:
            offset = self.offset
            self.offset += 1
        return Queued(self.storage.epoch, Delivery(0, offset, *read_record(raw)))

    def feed(self, *raws: bytes) -> None:
        self.applier.apply([self.delivery(raw) for raw in raws])

    def built(self) -> Bench:
        self.feed(
            record(MAINTENANCE, begin(0, 0, BRANCH, [0])),
            record(BACKFILL, begin(0, 0, BRANCH, [0]), Item(END, 0, 0), connection=2),
        )
        return self

    @property
    def bucket(self):
        found = self.storage.bucket("b")
        assert found is not None
        return found

    def documents(self) -> list[bytes]:
        view = StorageReading(self.storage).view(1, (0, 1), shard=0, build=0, wanted=Wanted())
        found = [
            entry[-1:]
            for piece in (0, 1)
            for entry in view.entries(piece, EVERYTHING, backwards=False)
        ]
        view.close()
        return sorted(found)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.storage.close()


# -- applying ------------------------------------------------------------------------------------


def test_it_is_told_soon_that_a_record_without_items_was_read(bench: Bench) -> None:
    """A backfill may wait for that."""
    bench.feed(record(MAINTENANCE, begin(0, 0, BRANCH, (0,))))
    before = bench.news
    bench.feed(record(MAINTENANCE, upsert(1, b"d"), ordinal=1))
    assert bench.news == before, "the next heartbeat will do"
    bench.feed(record(MAINTENANCE, ordinal=2))
    assert bench.news == before + 1
    (read,) = bench.storage.buckets()[0].published.read
    assert read.ordinals[0] == 2


def test_an_entry_moves_when_its_key_or_its_slice_changes(bench: Bench) -> None:
    bench.built()
    bench.feed(record(MAINTENANCE, upsert(1, b"x"), upsert(2, b"y")))
    bench.feed(record(MAINTENANCE, upsert(3, b"x", b"\x90l\x00"), upsert(4, b"y", piece=1)))
    assert bench.documents() == [b"x", b"y"]
    bench.feed(record(MAINTENANCE, upsert(5, b"x", piece=1), Item(ABSENT, 0, 6, 0, NO_SLICE, b"y")))
    assert bench.documents() == [b"x"]
    assert len(bench.bucket.database.scan(b"d")) == 1
    assert len(bench.bucket.database.scan(b"b")) == 1
    assert bench.bucket.published.vector.seqnos.tolist() == [6]


def test_several_changes_of_a_document_in_one_batch_leave_the_last(bench: Bench) -> None:
    bench.built()
    keys = (b"\x90k\x00", b"\x90l\x00", b"\x90m\x00")
    items = [upsert(n, b"x", key, n % 2) for n, key in enumerate(keys, 1)]
    bench.feed(*(record(MAINTENANCE, item) for item in items))
    ((key, _),) = bench.bucket.database.scan(b"d")
    assert key.endswith(b"\x90m\x00x")


def test_what_lies_before_the_first_allocation_is_not_applied(bench: Bench) -> None:
    bench.applier.apply([bench.delivery(record(MAINTENANCE, begin(0, 0, BRANCH, [0])), offset=99)])
    assert not bench.bucket.tracker.progress
    assert bench.bucket.offsets == ENDS


def test_a_record_that_is_read_again_is_applied_once(bench: Bench) -> None:
    bench.built()
    raw = record(MAINTENANCE, upsert(1, b"x"))
    bench.feed(raw)
    before = bench.bucket.database.latest()
    bench.applier.apply([bench.delivery(raw, offset=bench.offset - 1)])
    assert bench.bucket.database.latest() == before


def test_a_position_is_known_at_once_and_written_later(bench: Bench) -> None:
    bench.applier.apply([Queued(0, Position(3, 120))])
    assert bench.bucket.offsets[3] == 120
    bench.bucket.load()
    assert bench.bucket.offsets[3] == 100
    bench.applier.apply([Queued(0, Position(3, 120))])
    bench.applier._write_positions()
    bench.bucket.load()
    assert bench.bucket.offsets[3] == 120


def test_a_lease_that_is_over_is_given_back_though_nobody_reads(bench: Bench) -> None:
    now_s = [0.0]
    leases = bench.built().bucket.timeline.leases = Leases(lease_s=10, clock=lambda: now_s[0])
    bench.applier.apply([Queued(0, stable(1, 0))])
    assert leases.renew(bench.bucket.timeline.kept[0], leases.revision)
    bench.applier._write_positions()
    assert leases._leases
    now_s[0] = 10
    bench.applier._write_positions()
    assert not leases._leases


def test_it_is_told_when_something_was_applied(bench: Bench) -> None:
    bench.built()
    bench.applier.start()
    assert bench.applier._queue.put([bench.delivery(record(MAINTENANCE, upsert(1, b"x")))], 1)
    assert bench.applied.wait(60)
    bench.applier.end()
    bench.applier.join()
    assert bench.seen == [[b"x"]]


@pytest.mark.thorough
def test_sweeping_lets_go_as_soon_as_something_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.built()
    sweeps = threading.Event()

    def sweep() -> bool:
        sweeps.set()
        return True

    monkeypatch.setattr(bench.applier, "sweep", sweep)
    bench.applier.start()
    assert sweeps.wait(60)
    assert bench.applier._queue.put([bench.delivery(record(MAINTENANCE, upsert(1, b"x")))], 1)
    deadline_s = time.monotonic() + 20
    while bench.documents() != [b"x"] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    bench.applier.end()
    bench.applier.join()
    assert bench.documents() == [b"x"]


def test_what_was_read_before_a_bucket_went_back_is_void(bench: Bench) -> None:
    bench.built()
    stale = bench.delivery(record(MAINTENANCE, upsert(1, b"x")))
    bench.storage.epoch += 1
    bench.applier.apply([stale, Queued(0, Position(1, 500))])
    assert bench.documents() == []
    assert bench.bucket.offsets[1] == 100


def test_a_newer_build_begins_from_nothing_in_the_middle_of_a_batch(bench: Bench) -> None:
    bench.built()
    bench.feed(
        record(MAINTENANCE, upsert(1, b"x")),
        record(MAINTENANCE, attach(0, 1, BRANCH, 0), build=2),
        record(MAINTENANCE, upsert(2, b"y"), build=2),
        record(MAINTENANCE, upsert(3, b"z")),
    )
    with pytest.raises(ScanRefused, match="not complete"):
        bench.documents()
    bench.feed(record(BACKFILL, begin(0, 0, BRANCH, [0]), Item(END, 0, 3), connection=3, build=2))
    assert bench.documents() == [b"y"]
    assert bench.news


def test_lost_messages_leave_gaps_and_what_is_held_stays(bench: Bench) -> None:
    bench.built()
    bench.feed(record(MAINTENANCE, upsert(1, b"x")))
    shards = bench.storage.shards
    bench.applier.apply([Queued(0, Lost("b", {0: 500}))])
    assert bench.bucket.published.gaps == (0,)
    assert bench.bucket.offsets == {**ENDS, 0: 500}
    assert bench.storage.shards == shards
    assert bench.documents() == [b"x"]
    bench.bucket.load()
    assert bench.bucket.published.gaps == (0,)


def test_the_leader_of_what_lies_before_an_offset_is_known_after_a_restart(bench: Bench) -> None:
    bench.built()
    bench.applier.apply([Queued(0, Follows("topic")), Queued(0, Position(3, 120, 5))])
    raw = record(MAINTENANCE, upsert(1, b"x"))
    bench.applier.apply([Queued(0, Delivery(0, bench.offset, *read_record(raw), epoch=7))])
    assert (bench.bucket.topic, bench.bucket.epochs) == ("topic", {3: 5, 0: 7})
    bench.applier._write_positions()
    bench.bucket.load()
    assert (bench.bucket.topic, bench.bucket.epochs) == ("topic", {3: 5, 0: 7})
    bench.applier.apply([Queued(0, Lost("b", {0: 90}, "another"))])
    bench.bucket.load()
    assert (bench.bucket.topic, bench.bucket.epochs) == ("another", {3: 5})
    assert bench.bucket.offsets[0] == 90


def test_an_offset_of_a_folder_without_leaders_is_taken_as_it_is(bench: Bench) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(OFFSET + NUMBER_KEY.pack(2), OLD_OFFSET_VALUE.pack(77))
    batch.put(STATE + INDEX_KEY.pack(1), struct.pack(">q??", 4, True, True))
    bench.bucket.database.write(batch, sync=False)
    bench.bucket.load()
    assert (bench.bucket.offsets[2], bench.bucket.epochs) == (77, {})
    assert bench.bucket.published.states[1] == State(4, complete=True)


def test_how_far_connections_are_here_survives_a_restart(bench: Bench) -> None:
    bench.built()
    bench.feed(record(MAINTENANCE, upsert(1, b"x"), ordinal=7, previous=0))
    told = bench.bucket.published.read
    assert told == (ConnectionRead(1, 1, (7, 0, 0, 0)),)
    bench.bucket.load()
    assert bench.bucket.published.read == told
    bench.feed(record(MAINTENANCE, upsert(2, b"y"), ordinal=9, previous=8))
    assert bench.bucket.published.gaps == (0,)


@pytest.mark.thorough
def test_a_full_disk_delays_what_is_applied_and_nothing_is_lost(bench: Bench) -> None:
    bench.built()
    worker = threading.Thread(
        target=bench.feed,
        args=(record(MAINTENANCE, upsert(1, b"x")), record(MAINTENANCE, upsert(2, b"y"))),
    )
    with file_size_limit(0):
        worker.start()
        while not bench.problems:
            worker.join(0.01)
        assert worker.is_alive()
    worker.join(60)
    assert not worker.is_alive()
    assert bench.documents() == [b"x", b"y"]
    assert bench.bucket.offsets[0] == bench.offset


class Poisonous(Tracker):
    """It cannot take what is about the document `poison`, and only notices half-way."""

    def apply(self, record: Any, items: Iterable[Item], partition: int = 0) -> list[Change]:
        found = super().apply(record, items, partition)
        if any(item.document == b"poison" for item in items):
            raise RecursionError("too deep")
        return found


def test_a_record_that_cannot_be_applied_is_a_dead_letter_and_the_others_are_applied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "Tracker", Poisonous)
    bench.built()
    bench.bucket.load()
    assert isinstance(bench.bucket.tracker, Poisonous)
    bench.feed(
        record(MAINTENANCE, upsert(1, b"a"), ordinal=3, previous=0),
        record(MAINTENANCE, upsert(2, b"poison"), ordinal=4, previous=3),
        record(MAINTENANCE, upsert(3, b"b"), ordinal=5, previous=4),
    )
    assert bench.dead_letters == [(103, "RecursionError: too deep")]
    assert bench.documents() == [b"a", b"b"]
    place = bench.bucket.tracker.progress[0]
    assert (place.seqno, bench.bucket.published.gaps) == (1, (0,)), "it is asked for again"
    assert bench.bucket.offsets[0] == bench.offset
    bench.feed(record(MAINTENANCE, upsert(4, b"poison"), ordinal=6, previous=5))
    assert bench.bucket.offsets[0] == bench.offset, "the last one counts as read, too"


@pytest.mark.thorough
def test_an_index_that_is_released_while_the_disk_is_full_stays_released(bench: Bench) -> None:
    bench.built()
    bench.storage.allocate("b", 2, frozenset({0}), b"")
    worker = threading.Thread(target=bench.feed, args=(record(MAINTENANCE, upsert(1, b"x")),))
    with file_size_limit(0):
        worker.start()
        while not bench.problems:
            worker.join(0.01)
    bench.storage.release(1, frozenset({0, 1}))
    worker.join(60)
    assert not bench.bucket.database.scan(b"d")


def test_the_last_timestamp_of_a_bucket_counts_although_it_is_older_than_what_is_held(
    bench: Bench,
) -> None:
    """Where nothing changes any more, no other comes."""
    bench.applier.apply([Queued(0, stable(n, 4 + n, "idle")) for n in (1, 2)])
    bench.storage.know("idle", 1)
    bench.storage.allocate("idle", 2, frozenset({0}), b"", ENDS)
    synced = (begin(0, 6, BRANCH, [0]), Item(SYNC, 0, 6))
    begun = record(MAINTENANCE, *synced, index_id=2, bucket="idle")
    whole = (begin(0, 0, BRANCH, [0]), Item(END, 0, 6))
    bench.feed(begun, record(BACKFILL, *whole, connection=2, index_id=2, bucket="idle"))
    found = bench.storage.bucket("idle")
    assert found is not None
    assert [(kept.number, dict(kept.builds)) for kept in found.timeline.kept] == [(2, {2: 1})]


def test_timestamps_that_come_together_count_each_for_its_bucket(bench: Bench) -> None:
    bench.built()
    together = (stable(3, 0), stable(5, 7, "another"))
    bench.applier.apply([Queued(0, ConsolidatedStability(together))])
    assert [kept.number for kept in bench.bucket.timeline.kept] == [3]


# -- reading -------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_garbage_is_refused_as_a_whole(raw: bytes) -> None:
    with pytest.raises(ValueError):
        read_record(raw)


@given(st.binary(max_size=80))
def test_items_that_are_none_are_refused_as_a_whole(raw: bytes) -> None:
    value = codec.encode(
        KeyVersions(
            bucket="b",
            kind=MAINTENANCE,
            projector=1,
            connection=1,
            ordinal=0,
            number=1,
            indexes=(1,),
            builds=(1,),
            items=raw,
            at_ms=0,
        )
    )
    try:
        _, items = read_record(value)
    except ValueError:
        return
    assert b"".join(map(pack, items)) == raw
    bench = KeyVersions(
        bucket="b",
        kind=MAINTENANCE,
        projector=1,
        connection=1,
        ordinal=0,
        number=1,
        indexes=(1,),
        builds=(1,),
        items=raw,
        at_ms=0,
    )

    tracker = Tracker(1)
    tracker.hold(1)
    tracker.begin_build(1, 1)
    tracker.apply(bench, items)


@pytest.mark.parametrize(
    "item",
    [
        upsert(1, b"x")._replace(place=1),
        Item(DOCUMENT, 0, 1, document=b"x", placed=((0, 0, b"k"), (1, 0, b"k"))),
        Item(PLACES, 0, 1, document=b"x", placed=((7, NO_SLICE, b""),)),
        attach(0, 1, BRANCH, 1),
        Item(ATTACH, 0, 1),
        begin(0, 1, BRANCH, [1]),
        Item(BEGIN, 0, 1, payload=b"short"),
    ],
)
def test_an_item_of_no_index_makes_its_record_none(item: Item) -> None:
    with pytest.raises(ValueError):
        read_record(record(MAINTENANCE, item))


def test_another_record_is_none_of_mutations() -> None:
    with pytest.raises(ValueError, match="KeyVersions"):
        read_record(codec.encode(make_sync(0, projector=1, ordinal=1, vbuuid=1, seqno=1, at_ms=1)))


def test_a_queue_is_full_until_something_is_taken() -> None:
    queue = MutationQueue(items_max=3)
    one = Queued(0, Delivery(0, 1, *read_record(record(MAINTENANCE, *[upsert(1, b"x")] * 2))))
    assert queue.put([one], 0)
    assert queue.put([one], 0)
    assert (queue.waiting, queue.free) == (4, 0)
    assert not queue.put([one], 0.01)
    assert queue.take(1, 0) == [one]
    assert (queue.waiting, queue.free) == (2, 1)
    assert queue.put([one], 0)
    assert queue.take(100, 0) == [one, one]
    assert queue.take(100, 0) == []


def test_large_items_fill_the_queue_as_several_small_ones_do() -> None:
    queue = MutationQueue(items_max=20)
    large = read_record(record(MAINTENANCE, upsert(1, b"x", b"k" * 30 * ITEM_BYTES)))
    assert queue.put([Queued(0, Delivery(0, 1, *large))], 0)
    assert queue.free == 0


def test_positions_of_a_partition_that_follow_one_another_are_one() -> None:
    queue = MutationQueue()
    for offset in range(5):
        queue.put([Queued(0, Position(0, offset))], 0)
    queue.put([Queued(0, Position(1, 7))], 0)
    assert [queued.one for queued in queue.take(10, 0)] == [Position(0, 4), Position(1, 7)]


def test_what_was_absent_first_stays_so_within_one_batch(tmp_path: Path) -> None:
    """The owner took the document back before the backfill brought it."""
    bench = Bench(tmp_path)
    bench.feed(record(MAINTENANCE, begin(0, 0, BRANCH, [0])))
    bench.feed(record(BACKFILL, begin(0, 0, BRANCH, [0]), connection=2))
    bench.feed(
        record(MAINTENANCE, Item(ABSENT, 0, 5, 0, NO_SLICE, b"x")),
        record(BACKFILL, upsert(3, b"x"), Item(END, 0, 5), connection=2),
    )
    assert bench.documents() == []
    bench.storage.close()


def test_who_led_before_a_place_that_was_never_read_is_not_known(tmp_path: Path) -> None:
    bench = Bench(tmp_path).built()
    raw = record(MAINTENANCE, upsert(1, b"x"))
    bench.applier.apply([Queued(0, Delivery(0, bench.offset, *read_record(raw), epoch=7))])
    assert bench.bucket.epochs == {0: 7}
    bench.applier.apply([Queued(0, Lost("b", {0: 500}))])
    assert bench.bucket.epochs == {}
    bench.storage.close()

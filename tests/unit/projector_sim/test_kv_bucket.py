"""Laws of a bucket, on a real RocksDB, against a model that never forgets a mutation."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from projector_sim.kv.bucket import Bucket, make_bucket
from projector_sim.kv.errors import KvError, RollbackError
from projector_sim.kv.layout import KEY_BYTES_MAX, Change, Mutation, Placed
from projector_sim.kv.vbuckets import vbucket_of
from tests.conftest import examples
from tests.support.limits import file_size_limit

VBUCKETS = 2
TAIL_SEQNOS = 4
KEYS = [b"a", b"b", b"c", b"d"]
Documents = dict[bytes, bytes]
MEMORY = Path("/dev/shm")
"""Where there is one: dozens of databases are opened, each with several syncs."""


# -- the model: a list of all mutations, cut off where the tail was lost --------------------------


@dataclass
class History:
    """What one vbucket has been through. No two mutations are the same object."""

    mutations: list[Mutation] = field(default_factory=list)
    before: dict[int, list[Mutation]] = field(default_factory=dict)
    """The mutations under each vbuuid that it had, when it came to its end."""
    high_max: int = 0

    def newest(self, upto: int | None = None) -> dict[bytes, Mutation]:
        return {mutation.key: mutation for mutation in self.mutations[:upto]}

    def documents(self) -> Documents:
        return {key: m.value for key, m in self.newest().items() if m.value is not None}

    def after(self, start_seqno: int, end_seqno: int) -> list[Mutation]:
        newest = sorted(self.newest().values())
        return [mutation for mutation in newest if start_seqno < mutation.seqno <= end_seqno]

    def shared(self, vbuuid: int) -> int:
        """How many mutations that history and the present one have in common."""
        pairs = zip(self.before.get(vbuuid, self.mutations), self.mutations, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))


@dataclass
class Consumer:
    """Follows one vbucket, remembers where it was consistent, and goes back when it is told to."""

    vbucket: int
    kept: list[tuple[int, int, Documents]] = field(default_factory=lambda: [(0, 0, {})])
    """Consistent states: vbuuid, seqno, documents."""
    documents: Documents = field(default_factory=dict)
    vbuuid: int = 0
    seqno: int = 0
    snapshot: tuple[int, int] | None = None

    def follow(self, bucket: Bucket, mutations_max: int, end_seqno: int | None) -> bool:
        """Read on; tell whether it has come to the end of a snapshot."""
        while True:
            try:
                stream = bucket.stream(
                    self.vbucket, self.vbuuid, self.seqno, end_seqno, self.snapshot
                )
                break
            except RollbackError as error:
                while self.kept[-1][1] > error.seqno:
                    self.kept.pop()
                self.vbuuid, self.seqno, kept = self.kept[-1]
                self.documents, self.snapshot = dict(kept), None
        self.vbuuid, self.snapshot = stream.vbuuid, stream.snapshot
        for mutation, left in zip(stream, range(mutations_max, -1, -1), strict=False):
            if not left:
                return False
            self.seqno = mutation.seqno
            if mutation.value is None:
                self.documents.pop(mutation.key, None)
            else:
                self.documents[mutation.key] = mutation.value
        if stream.end_seqno < stream.snapshot[1]:
            self.seqno = stream.end_seqno
            return False
        self.seqno, self.snapshot = stream.end_seqno, None
        self.kept.append((self.vbuuid, self.seqno, dict(self.documents)))
        return True


keys = st.sampled_from(KEYS)
expiries = st.sampled_from([0, 0, 10, 20])
changes = st.lists(
    st.builds(Change, keys, st.sampled_from([b"", b"1", b"2", None]), expiries),
    min_size=1,
    max_size=6,
)
vbuckets = st.integers(0, VBUCKETS - 1)


class BucketMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.vbuuids = count(1)
        make_bucket(self.folder, VBUCKETS, [0], self.new_vbuuid)
        self.bucket = self.opened()
        self.histories = [History() for _ in range(VBUCKETS)]
        self.consumers = [Consumer(vbucket) for vbucket in range(VBUCKETS)]

    def new_vbuuid(self) -> int:
        return next(self.vbuuids)

    def opened(self) -> Bucket:
        return Bucket(self.folder, tail_seqnos=TAIL_SEQNOS, new_vbuuid=self.new_vbuuid)

    def teardown(self) -> None:
        self.bucket.close()
        shutil.rmtree(self.folder)

    def apply(self, change: Change) -> Placed:
        vbucket = vbucket_of(change.key, VBUCKETS)
        history = self.histories[vbucket]
        if change.value is None and change.key not in history.documents():
            return Placed(vbucket, 0)
        seqno = 1 + len(history.mutations)
        history.mutations.append(Mutation(seqno, change.key, change.value, change.expiry_ms))
        history.high_max = max(history.high_max, seqno)
        return Placed(vbucket, seqno)

    @rule(batch=changes)
    def write(self, batch: list[Change]) -> None:
        assert self.bucket.write(batch) == [self.apply(change) for change in batch]

    @rule(now_ms=st.sampled_from([9, 10, 20]), limit=st.integers(0, 4))
    def expire(self, now_ms: int, limit: int) -> None:
        due = [
            (mutation.expiry_ms, vbucket, key)
            for vbucket, history in enumerate(self.histories)
            for key, mutation in history.newest().items()
            if mutation.value is not None and 0 < mutation.expiry_ms <= now_ms
        ]
        expected = [self.apply(Change(key, None, ms)) for ms, _, key in sorted(due)[:limit]]
        assert self.bucket.expire(now_ms, limit) == expected

    @rule(vbucket=vbuckets, data=st.data())
    def lose_tail(self, vbucket: int, data: st.DataObject) -> None:
        history = self.histories[vbucket]
        lost = data.draw(st.integers(0, 4) | st.integers(0, len(history.mutations)))
        seqno = max(0, len(history.mutations) - lost)
        vbuuid = self.bucket.vbuuids()[vbucket]
        try:
            new = self.bucket.lose_tail(vbucket, seqno)
        except KvError as error:
            may_be_refused = 0 < seqno < history.high_max - TAIL_SEQNOS
            if error.code == "too_far" and may_be_refused:
                return
            raise
        assert new == self.bucket.vbuuids()[vbucket] != vbuuid
        assert self.bucket.failover_log(vbucket)[0] == (new, seqno)
        history.before[vbuuid] = history.mutations.copy()
        del history.mutations[seqno:]
        history.high_max = history.high_max if seqno else 0

    @rule()
    def restart(self) -> None:
        self.bucket.close()
        self.bucket = self.opened()

    @rule(vbucket=vbuckets, data=st.data())
    def stream_from_any_point(self, vbucket: int, data: st.DataObject) -> None:
        history = self.histories[vbucket]
        now = self.bucket.vbuuids()[vbucket]
        vbuuid = data.draw(st.sampled_from([now, *history.before]))
        start = data.draw(st.integers(0, 2 + len(history.before.get(vbuuid, history.mutations))))
        end = data.draw(st.none() | st.integers(start, start + 5))
        shared = history.shared(vbuuid)
        known = {branch.vbuuid for branch in self.bucket.failover_log(vbucket)}
        if start > shared and start:
            with pytest.raises(RollbackError) as refused:
                self.bucket.stream(vbucket, vbuuid, start, end)
            assert refused.value.seqno == (shared if vbuuid in known else 0)
        elif vbuuid in known:
            stream = self.bucket.stream(vbucket, vbuuid, start, end)
            high = len(history.mutations)
            assert list(stream) == history.after(start, high if end is None else end)
            assert stream.snapshot == (start, high)

    @rule(
        vbucket=vbuckets, most=st.integers(0, 4) | st.just(100), ahead=st.none() | st.integers(0, 4)
    )
    def follow(self, vbucket: int, most: int, ahead: int | None) -> None:
        consumer = self.consumers[vbucket]
        if consumer.follow(self.bucket, most, None if ahead is None else consumer.seqno + ahead):
            assert consumer.documents == self.histories[vbucket].documents()

    @invariant()
    def all_that_can_be_read_is_as_in_the_model(self) -> None:
        assert self.bucket.high_seqnos() == [len(h.mutations) for h in self.histories]
        documents: Documents = {}
        for history in self.histories:
            documents.update(history.documents())
        assert {m.key: m.value for m in self.bucket.documents()} == documents
        assert {key: self.bucket.get(key) for key in KEYS if self.bucket.get(key)} == {
            key: value for key, value in documents.items() if value
        }
        for vbucket, history in enumerate(self.histories):
            high = len(history.mutations)
            assert list(self.bucket.stream(vbucket, 0, 0)) == history.after(0, high)


BucketMachine.TestCase.settings = settings(
    examples(12),
    stateful_step_count=40,
    phases=[Phase.reuse, Phase.generate],  # Shrinking takes minutes: each step is one on a disk.
)
TestBucketMachine = BucketMachine.TestCase


@pytest.fixture(scope="module")
def shared_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    folder = tmp_path_factory.mktemp("shared")
    make_bucket(folder, 1, [0])
    bucket = Bucket(folder)
    yield bucket
    bucket.close()


steps = st.one_of(
    st.tuples(st.just("write"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)),
    st.tuples(st.just("lose"), st.integers(0, 4)),
    st.tuples(st.just("read"), st.sampled_from([1, 1, 2, 3, 100])),
)


@examples(150)
@given(st.lists(steps, min_size=6, max_size=30))
def test_who_rolls_back_when_told_ends_with_the_documents_that_there_are(
    shared_bucket: Bucket, script: list[tuple[str, Any]]
) -> None:
    bucket = shared_bucket
    bucket.lose_tail(0, 0)
    consumer = Consumer(0)
    for number, (what, how) in enumerate(script):
        if what == "write":
            bucket.write([Change(key, b"%d" % number) for key in how])
        elif what == "lose":
            bucket.lose_tail(0, max(0, bucket.high_seqnos()[0] - how))
        elif consumer.follow(bucket, how, None):
            assert consumer.documents == {m.key: m.value for m in bucket.documents()}
    assert consumer.follow(bucket, 100, None)
    assert consumer.documents == {m.key: m.value for m in bucket.documents()}


# -- cases ---------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    make_bucket(tmp_path / "b", 1, [0])
    bucket = Bucket(tmp_path / "b")
    yield bucket
    bucket.close()


def test_only_the_newest_mutation_of_a_key_is_streamed(bucket: Bucket) -> None:
    for value in (b"1", b"2", b"3"):
        bucket.upsert(b"a", value)
    bucket.upsert(b"b", b"1")
    bucket.delete(b"b")
    stream = bucket.stream(0, 0, 0)
    assert list(stream) == [Mutation(3, b"a", b"3", 0), Mutation(5, b"b", None, 0)]
    assert list(stream) == []


def test_a_stream_shows_one_moment_whatever_is_written_meanwhile(bucket: Bucket) -> None:
    bucket.write([Change(b"%d" % n, b"old") for n in range(100)])
    stream = bucket.stream(0, 0, 0)
    begun = iter(stream)
    first = next(begun)
    bucket.write([Change(b"%d" % n, b"new") for n in range(100)])
    bucket.lose_tail(0, 150)
    assert {m.value for m in [first, *begun]} == {b"old"}
    assert stream.snapshot == (0, 100)
    with pytest.raises(RollbackError):
        bucket.stream(0, stream.vbuuid, 200)


def test_many_streams_can_be_read_at_once(bucket: Bucket) -> None:
    bucket.write([Change(b"%d" % n, b"") for n in range(200)])
    streams = [iter(bucket.stream(0, 0, 0, end)) for end in range(1, 100)]
    read: list[list[int]] = [[] for _ in streams]
    for _ in range(100):
        for seqnos, stream in zip(read, streams, strict=True):
            seqnos.extend(mutation.seqno for mutation in islice(stream, 1))
    assert read == [list(range(1, end + 1)) for end in range(1, 100)]


def test_what_a_newer_mutation_hid_comes_back_when_that_one_is_lost(bucket: Bucket) -> None:
    """A consumer that was told of the newer one only must read the snapshot again."""
    bucket.upsert(b"a", b"first")
    bucket.upsert(b"b", b"")
    stream = bucket.stream(0, 0, 0)
    bucket.upsert(b"a", b"second")
    stream = bucket.stream(0, stream.vbuuid, 0)
    assert next(iter(stream)) == Mutation(2, b"b", b"", 0)
    assert stream.snapshot == (0, 3)
    bucket.lose_tail(0, 2)
    with pytest.raises(RollbackError) as refused:
        bucket.stream(0, stream.vbuuid, 2, snapshot=stream.snapshot)
    assert refused.value.seqno == 0
    assert [mutation.value for mutation in bucket.stream(0, 0, 0)] == [b"first", b""]


def test_a_snapshot_that_is_read_piece_by_piece_keeps_its_start(bucket: Bucket) -> None:
    bucket.write([Change(b"%d" % n, b"") for n in range(6)])
    first = bucket.stream(0, bucket.vbuuids()[0], 2, end_seqno=4)
    assert first.snapshot == (2, 6)
    bucket.upsert(b"6", b"")
    assert bucket.stream(0, first.vbuuid, 4, snapshot=first.snapshot).snapshot == (2, 7)
    assert bucket.stream(0, first.vbuuid, 6, snapshot=first.snapshot).snapshot == (6, 7)


def test_an_expiry_is_a_deletion_that_tells_when(bucket: Bucket) -> None:
    bucket.upsert(b"a", b"1", expiry_ms=10)
    bucket.upsert(b"b", b"1", expiry_ms=10)
    bucket.upsert(b"b", b"2")
    assert bucket.expire(9) == []
    assert bucket.expire(10) == [Placed(0, 4)]
    assert bucket.expire(1000) == []
    assert bucket.newest(b"a") == Mutation(4, b"a", None, 10)
    assert bucket.get(b"b") == b"2"
    bucket.lose_tail(0, 3)
    assert bucket.get(b"a") == b"1"
    assert bucket.expire(10) == [Placed(0, 4)]


def test_what_was_superseded_long_ago_is_no_longer_kept(tmp_path: Path) -> None:
    make_bucket(tmp_path, 1, [0])
    bucket = Bucket(tmp_path, tail_seqnos=10)
    for n in range(1000):
        bucket.upsert(b"a", b"%d" % n)
    assert sum(1 for _ in bucket._database.scan(b"s", b"v")) < 60
    for seqno in (1, 500):
        with pytest.raises(KvError, match="can go back"):
            bucket.lose_tail(0, seqno)
    bucket.lose_tail(0, 990)
    assert bucket.get(b"a") == b"989"
    bucket.lose_tail(0, 0)
    assert list(bucket.documents()) == []
    bucket.upsert(b"a", b"anew")
    bucket.upsert(b"a", b"and again")
    bucket.lose_tail(0, 1)
    assert bucket.get(b"a") == b"anew"
    bucket.close()


def test_a_move_changes_the_owner_and_no_history(tmp_path: Path) -> None:
    make_bucket(tmp_path, 8, [1, 2])
    bucket = Bucket(tmp_path)
    assert bucket.owners() == [1, 1, 1, 1, 2, 2, 2, 2]
    vbuuids = bucket.vbuuids()
    bucket.move([0, 7], 3)
    bucket.close()
    bucket = Bucket(tmp_path)
    assert bucket.owners() == [3, 1, 1, 1, 2, 2, 2, 3]
    assert bucket.owned_by(3) == [0, 7]
    assert bucket.vbuuids() == vbuuids
    bucket.close()


@pytest.mark.parametrize("key", [b"", bytes(KEY_BYTES_MAX + 1)])
def test_a_batch_with_a_key_that_cannot_be_is_refused_whole(bucket: Bucket, key: bytes) -> None:
    with pytest.raises(ValueError, match="a key has"):
        bucket.write([Change(b"a", b""), Change(key, b"")])
    assert bucket.high_seqnos() == [0]
    assert bucket.upsert(bytes(KEY_BYTES_MAX), b"").seqno == 1


def test_after_a_refused_write_the_bucket_goes_on_from_what_the_disk_has(bucket: Bucket) -> None:
    bucket.upsert(b"a", b"before")

    def fill() -> None:
        for n in range(100):
            bucket.write([Change(b"%d" % n, bytes(1000)), Change(b"x%d" % n, bytes(1000))])

    with file_size_limit(4096), pytest.raises(KvError) as refused:
        fill()
    assert refused.value.code == "refused"
    (high,) = bucket.high_seqnos()
    assert high % 2 == 1  # Of a batch of two both are there, or neither.
    assert [mutation.seqno for mutation in bucket.stream(0, 0, 0)] == list(range(1, high + 1))
    assert bucket.upsert(b"b", b"after").seqno == high + 1
    assert bucket.get(b"a") == b"before"


def test_what_is_read_when_the_bucket_is_closed_ends_with_an_error(tmp_path: Path) -> None:
    make_bucket(tmp_path, 2, [0])
    bucket = Bucket(tmp_path)
    bucket.write([Change(b"%d" % n, b"") for n in range(10)])
    readers = [iter(bucket.stream(0, 0, 0)), iter(bucket.stream(1, 0, 0)), bucket.documents()]
    next(readers[0])
    bucket.close()
    for reader in readers:
        with pytest.raises(KvError, match="closed"):
            next(reader)
    with pytest.raises(KvError, match="closed"):
        bucket.high_seqnos() and bucket.get(b"1")
    Bucket(tmp_path).close()  # No reader keeps the files.

"""What the connections of the key-value store promise, whatever happens to what they stream."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector_sim.kv import streams as kv_streams
from projector_sim.kv.errors import KvError
from projector_sim.kv.hub import Hub, Live
from projector_sim.kv.layout import Change
from projector_sim.kv.store import KvStore
from projector_sim.kv.streams import StreamRequest, Wanted
from projector_sim.kv.tail import Tail
from projector_sim.kv.vbuckets import vbucket_of
from projector_sim.protocol.frames import Decoder, End, Mutated, Reason, Sync
from tests.conftest import examples
from tests.support.kv_follower import Documents, Follower

VBUCKETS = 4
KEYS = [b"%d" % n for n in range(16)]
MEMORY = Path("/dev/shm")
History = list[tuple[bytes, bytes | None]]
"""The mutations of a vbucket, in order of their seqnos from 1."""


def at(history: History, seqno: int) -> Documents:
    """Return the documents that there are after the first `seqno` mutations."""
    newest = dict(history[:seqno])
    return {key: value for key, value in newest.items() if value is not None}


class World:
    """A store of two nodes, with what its vbuckets have been through; a reader takes what it may.

    `read` lets a connection's chunks through, as TCP does for one who reads.
    """

    def __init__(self, folder: Path, tail_bytes: int) -> None:
        self.hub = Hub(KvStore(folder), 2)
        self.bucket, _ = self.hub.create("b", VBUCKETS, None)
        self.bucket.tail = Tail(tail_bytes)
        self.histories: list[History] = [[] for _ in range(VBUCKETS)]
        self.lost: dict[tuple[int, int], History] = {}
        """What branches had that ended in a crash, by vbucket and vbuuid."""
        self.faults: list[Exception] = []
        self.count = 0
        self.connections = 0

    def write(self, keys: list[bytes], delete: bool = False) -> None:
        self.count += 1
        value = None if delete else b"%d" % self.count * 5
        changes = [Change(key, value) for key in keys]
        for change, placed in zip(changes, self.bucket.write(changes), strict=True):
            if placed.seqno:
                self.histories[placed.vbucket].append((change.key, change.value))
                assert placed.seqno == len(self.histories[placed.vbucket])

    async def crash(self, node: int, lose: int) -> None:
        before = [self.vbuuid(vbucket) for vbucket in range(VBUCKETS)]
        await self.hub.crash(node, lose, None, None)
        for vbucket, seqno in enumerate(self.bucket.high_seqnos()):
            if self.vbuuid(vbucket) != before[vbucket]:
                self.lost[vbucket, before[vbucket]] = list(self.histories[vbucket])
            del self.histories[vbucket][seqno:]

    def vbuuid(self, vbucket: int) -> int:
        return self.bucket.failover_log(vbucket)[0].vbuuid

    def state(self, vbucket: int, seqno: int) -> Documents:
        return at(self.histories[vbucket], seqno)

    def check(self, vbucket: int, vbuuid: int, seqno: int, documents: Documents) -> None:
        """What was under way when its branch ended comes, too: it is of that branch."""
        history = self.lost.get((vbucket, vbuuid), self.histories[vbucket])
        assert documents == at(history, seqno)

    def connect(
        self,
        node: int,
        wanted: list[Wanted],
        take: Callable[[bytes], Awaitable[None]],
        **options: object,
    ) -> Live:
        self.connections += 1
        name = str(self.connections)
        request = StreamRequest(name, "b", node, "maintenance", tuple(wanted), sync_ms=1, **options)  # type: ignore[arg-type]
        live = self.hub.connect(request)
        live.task = asyncio.create_task(self._run(live, take))
        return live

    async def _run(self, live: Live, take: Callable[[bytes], Awaitable[None]]) -> None:
        try:
            await live.connection.run(take)
        except Exception as error:
            self.faults.append(error)
        finally:
            self.hub.disconnected(live)


class Reader:
    """A follower of one node that reads a chunk when it is told to, and connects again."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node
        self.follower = Follower(VBUCKETS, world.check)
        self.live: Live | None = None
        self._may = asyncio.Semaphore(0)

    def connect(self) -> None:
        mine = self.world.bucket.owned_by(self.node)
        vbuuids, seqnos = self.follower.starts(mine)
        wanted = [
            Wanted(v, int(vbuuid), int(seqno))
            for v, vbuuid, seqno in zip(mine, vbuuids, seqnos, strict=True)
        ]
        self._may = asyncio.Semaphore(0)
        self.live = self.world.connect(self.node, wanted, self._take)

    async def _take(self, chunk: bytes) -> None:
        await self._may.acquire()
        self.follower.feed(chunk)

    async def read(self, chunks: int) -> None:
        """Take some chunks; connect first if need be."""
        if self.is_cut_off():
            await self.disconnect()
            self.connect()
        for _ in range(chunks):
            self._may.release()
        await settled()

    async def catch_up(self) -> None:
        """Read to where all that the node owns is synced."""
        owned = self.world.bucket.owned_by(self.node)
        await self.read(1000)
        # After a rollback, a move to the node, or a crash that was not noticed until now.
        while self.follower.open() != owned or (owned and self.is_cut_off()):
            await self.disconnect()
            await self.read(1000)
        high = self.world.bucket.high_seqnos()
        await until(lambda: all(self.follower.vbuckets[v].whole_at(high[v]) for v in owned))

    def is_cut_off(self) -> bool:
        return self.live is None or self.live.task is None or self.live.task.done()

    async def disconnect(self) -> None:
        if self.live is not None and self.live.task is not None:
            self.live.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.live.task
        self.live = None
        self.follower.disconnected()


async def settled() -> None:
    """Let everything go as far as it goes without more being read."""
    for _ in range(30):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def small_chunks(size: int) -> Iterator[None]:
    before, kv_streams.CHUNK_BYTES = kv_streams.CHUNK_BYTES, size
    try:
        yield
    finally:
        kv_streams.CHUNK_BYTES = before


@contextmanager
def made(tail_bytes: int = 100_000) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    world = World(folder, tail_bytes)
    try:
        yield world
        assert not world.faults
    finally:
        world.hub.store.close()
        shutil.rmtree(folder)


steps = st.one_of(
    st.tuples(st.just("write"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=12)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)),
    st.tuples(st.just("read"), st.sampled_from([1, 1, 2, 5, 50])),
    st.tuples(st.just("move"), st.integers(0, VBUCKETS - 1)),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("disconnect"), st.just(0)),
)


@examples(80)
@given(
    st.lists(steps, min_size=10, max_size=60),
    st.integers(0, 1000),
    st.sampled_from([600, 2000, 100_000]),
)
def test_who_obeys_the_stream_ends_with_the_documents(
    script: list[tuple[str, object]], seed: int, tail_bytes: int
) -> None:
    """Each SYNC is checked against what the vbucket was at that seqno, on its way there, too."""
    with made(tail_bytes) as world, small_chunks(60):
        asyncio.run(play(world, script, random.Random(seed)))


async def play(world: World, script: list[tuple[str, object]], chance: random.Random) -> None:
    readers = [Reader(world, node) for node in range(2)]
    for what, how in script:
        reader = chance.choice(readers)
        if what in ("write", "delete"):
            world.write(how, delete=what == "delete")  # type: ignore[arg-type]
        elif what == "read":
            await reader.read(how)  # type: ignore[arg-type]
        elif what == "move":
            world.hub.move("b", [how], chance.randrange(2))  # type: ignore[list-item]
        elif what == "crash":
            await world.crash(reader.node, how)  # type: ignore[arg-type]
        else:
            await reader.disconnect()
        await settled()
    for reader in readers:
        await reader.catch_up()
        high = world.bucket.high_seqnos()
        for vbucket in world.bucket.owned_by(reader.node):
            documents = reader.follower.vbuckets[vbucket].documents
            assert documents == world.state(vbucket, high[vbucket])
        await reader.disconnect()


# -- cases ---------------------------------------------------------------------------------------


def played(scenario: Callable[[World], Awaitable[None]]) -> None:
    with made() as world:
        asyncio.run(scenario(world))  # type: ignore[arg-type]


class Sink:
    """Takes all that comes; `frames` is what it was."""

    def __init__(self) -> None:
        self.frames: list[object] = []
        self._decoder = Decoder()

    async def __call__(self, chunk: bytes) -> None:
        self.frames.extend(self._decoder.feed(chunk))

    def of(self, kind: type) -> list[object]:
        return [frame for frame in self.frames if isinstance(frame, kind)]


def all_from_start(node: int, until: int | None = None) -> list[Wanted]:
    return [Wanted(v, until=until) for v in range(node * 2, node * 2 + 2)]


def test_who_is_up_to_date_gets_what_is_written_without_a_look_at_the_disk() -> None:
    async def scenario(world: World) -> None:
        world.write(KEYS)
        sink = Sink()
        live = world.connect(0, all_from_start(0), sink, current=True)
        await settled()
        for _ in range(20):
            world.write(KEYS[:4])
            await settled()
        mine = [key for key in KEYS[:4] if vbucket_of(key, VBUCKETS) < 2]
        assert len(sink.of(Mutated)) == 20 * len(mine) > 0
        assert live.connection.sent.pieces_read == 0
        assert live.task is not None
        live.task.cancel()

    played(scenario)


def test_who_is_up_to_date_is_told_so_though_nothing_is_written() -> None:
    """Else nobody could tell that what he holds is the end of a snapshot."""

    async def scenario(world: World) -> None:
        world.write(KEYS)
        high = world.bucket.high_seqnos()
        wanted = [Wanted(v, world.vbuuid(v), high[v]) for v in range(2)]
        for options in ({}, {"current": True}):
            sink = Sink()
            live = world.connect(0, wanted, sink, **options)
            await until(lambda sink=sink: bool(sink.of(Sync)))  # type: ignore[misc]
            found = {pair for frame in sink.of(Sync) for pair in frame.seqnos}  # type: ignore[attr-defined]
            assert found == {(v, high[v]) for v in range(2)}
            assert live.task is not None
            live.task.cancel()

    played(scenario)


def test_the_vbuckets_of_other_nodes_end_at_once_as_moved() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        live = world.connect(0, [Wanted(3, 7, 9)], sink)
        await until(lambda: live.task is not None and live.task.done())
        assert sink.frames == [End(3, 9, Reason.MOVED)]

    played(scenario)


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_a_moved_vbucket_ends_after_all_that_was_written_before(writes: int) -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        live = world.connect(0, all_from_start(0), sink)
        await settled()
        for _ in range(writes):
            world.write(KEYS)
        before = world.bucket.high_seqnos()
        world.hub.move("b", [0, 1], 1)
        world.write(KEYS)
        await until(lambda: live.task is not None and live.task.done())
        assert sink.of(End) == [End(v, before[v], Reason.MOVED) for v in (0, 1)]
        last = {m.vbucket: m.seqno for m in sink.of(Mutated)}  # type: ignore[attr-defined]
        assert last == {v: before[v] for v in (0, 1) if before[v]}

    played(scenario)


def test_a_vbucket_that_moves_within_a_snapshot_is_not_said_to_be_at_its_last_end() -> None:
    async def scenario(world: World) -> None:
        reader = Reader(world, 0)
        await reader.read(1000)
        assert reader.live is not None
        assert reader.live.task is not None
        connection = reader.live.connection
        connection._synced_s, connection._sync_s = time.monotonic(), 60.0
        world.write(KEYS)
        await settled()
        assert connection._pending
        reader._may = asyncio.Semaphore(0)
        for _ in range(3):
            world.write(KEYS)
        await settled()  # It lags: it reads the first piece, which is not taken from it.
        world.hub.move("b", [0, 1], 1)
        for _ in range(100):
            reader._may.release()
        await until(reader.live.task.done)
        assert {end.reason for end in reader.follower.ends} == {Reason.MOVED}
        # That what it was told of is right, the follower has checked.
        await reader.disconnect()

    with made(tail_bytes=600) as world, small_chunks(60):
        asyncio.run(scenario(world))


def test_a_bounded_stream_ends_where_a_snapshot_ends_at_its_bound_or_after_it() -> None:
    async def scenario(world: World) -> None:
        world.write(KEYS)
        world.write(KEYS)
        high = world.bucket.high_seqnos()
        sink = Sink()
        live = world.connect(0, [Wanted(0, until=1), Wanted(1, until=high[1] + 1)], sink)
        await until(lambda: bool(sink.of(End)))
        assert sink.of(End) == [End(0, high[0], Reason.DONE)]
        world.write([key for key in KEYS if vbucket_of(key, VBUCKETS) == 1][:1])
        await until(lambda: live.task is not None and live.task.done())
        assert sink.of(End)[1:] == [End(1, high[1] + 1, Reason.DONE)]

    played(scenario)


def test_a_dropped_bucket_ends_its_streams() -> None:
    async def scenario(world: World) -> None:
        world.write(KEYS)
        sink = Sink()
        live = world.connect(0, all_from_start(0), sink)
        await settled()
        world.hub.drop("b")
        await until(lambda: live.task is not None and live.task.done())
        assert {frame.reason for frame in sink.of(End)} == {Reason.DROPPED}  # type: ignore[attr-defined]

    played(scenario)


@pytest.mark.thorough
def test_syncs_come_at_once_after_a_pause_and_then_not_more_often_than_was_asked() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        world.connect(0, all_from_start(0), sink, current=True)
        live = next(iter(world.hub.connections.values()))
        live.connection._sync_s = 2.0
        await settled()
        world.write(KEYS)
        await settled()
        assert len(sink.of(Sync)) == 1
        for _ in range(10):
            world.write(KEYS)
            await settled()
        assert len(sink.of(Sync)) == 1
        await until(lambda: len(sink.of(Sync)) == 2)
        assert dict(sink.of(Sync)[1].seqnos) == {  # type: ignore[attr-defined]
            v: world.bucket.high_seqno(v) for v in (0, 1)
        }
        assert live.task is not None
        live.task.cancel()

    played(scenario)


def test_a_write_that_failed_leaves_no_gap_in_what_is_followed() -> None:
    """Nobody knows whether it took place: the followers look at the disk."""

    async def scenario(world: World) -> None:
        reader = Reader(world, 0)
        await reader.read(1000)
        world.write(KEYS)
        await settled()
        read = reader.live.connection.sent.pieces_read if reader.live else 0
        world.bucket.tail.break_off()
        world.write(KEYS)
        await until(
            lambda: reader.follower.documents == {**world.state(0, 1000), **world.state(1, 1000)}
        )
        assert reader.live is not None
        assert reader.live.connection.sent.pieces_read > read
        await reader.disconnect()

    played(scenario)


def test_a_connection_has_its_name_alone() -> None:
    async def scenario(world: World) -> None:
        live = world.connect(0, all_from_start(0), Sink())
        await settled()
        with pytest.raises(KvError) as refused:
            world.hub.connect(live.connection.request)
        assert refused.value.code == "exists"
        assert live.task is not None
        live.task.cancel()
        await settled()
        world.hub.connect(live.connection.request)

    played(scenario)

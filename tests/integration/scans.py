"""Indexers that hold what a test puts into them, and a node that scans them: HTTP and RocksDB are
real, how entries and states come there is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry
from rocksdict import WriteBatch

from coordinator.core.catalog.state import EMPTY, evolve
from coordinator.core.consensus.build_progress import Progresses
from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.topology import topology_of
from coordinator.core.model.authority_state import IndexerInfo
from coordinator.core.model.entities import HASH, MAINTENANCE, Index, Shard, Slice
from coordinator.core.model.records import Mutation
from coordinator.http.app import build_app
from coordinator.http.server import HttpServer
from coordinator.node.shell import Shell
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.database import Database, Moment
from indexer_sim.bucket.entries import entries_prefix
from indexer_sim.scans.api import NEWEST, ScanRefused, ScanServer, Wanted
from indexer_sim.scans.reader import SlicesView
from tests.support.indexes import make_index
from tests.support.lone_shell import NoEnds

START_S = 60.0

Rows = list[tuple[tuple[Any, ...], str]]
"""Keys, and the document that has each."""


class StoredReading:
    """An indexer's database.

    `refusal` is what it says to every scan, `released` are indexes that are gone; unless it is
    `going`, it hangs. `seqno` is how far vbucket 0 has come, `snapshots` are its stability
    timestamps.
    """

    def __init__(self, folder: Path) -> None:
        self.database = Database(folder)
        self.database.opened()
        self.pieces: set[tuple[int, int]] = set()
        self.refusal: ScanRefused | None = None
        self.released: set[int] = set()
        self.going = threading.Event()
        self.going.set()
        self.shard = 0
        self.seqno = 0
        self.snapshots: dict[int, Moment] = {}
        self.scans = 0

    def put(self, index_id: int, entries: Iterable[tuple[int, bytes]]) -> None:
        batch = WriteBatch(raw_mode=True)
        for piece, entry in entries:
            batch.put(entries_prefix(index_id, piece) + entry, b"")
        self.database.write(batch, sync=False)

    def snap(self, number: int) -> None:
        self.snapshots[number] = self._moment()

    def _moment(self) -> Moment:
        moment = self.database.moment()
        assert moment is not None
        return moment

    def view(
        self, index_id: int, slices: tuple[int, ...], *, shard: int, build: int, wanted: Wanted
    ) -> SlicesView:
        self.scans += 1
        self.going.wait()
        if self.refusal is not None:
            raise self.refusal
        if shard and self.shard and shard != self.shard:
            raise ScanRefused("slice_not_here", "this is another life of the storage")
        if index_id in self.released:
            raise ScanRefused("index_not_found", f"index {index_id} is not here")
        if any((index_id, piece) not in self.pieces for piece in slices):
            raise ScanRefused("slice_not_here", "no such slice")
        held = tuple(sorted(self.snapshots))
        if wanted.timestamp is not None:
            number = max(held, default=0) if wanted.timestamp == NEWEST else wanted.timestamp
            if number not in self.snapshots:
                raise ScanRefused("no_stability_timestamp", f"{number} of {held}", {"held": held})
            moment = self.snapshots[number]
            return SlicesView(moment, index_id, number=number, digest=number * 17, held=held)
        if wanted.at_least and wanted.at_least.seqnos[0] > self.seqno:
            raise ScanRefused("timestamp_not_reached", f"vbucket 0 is at {self.seqno}")
        return SlicesView(self._moment(), index_id, held=held)

    def close(self) -> None:
        self.database.close()


LIFE = 7


class Fleet:
    """Indexers 1 to n, and one node with a state that a test writes."""

    def __init__(self, folder: Path, indexers: int) -> None:
        self.readings = {n: StoredReading(folder / str(n)) for n in range(1, indexers + 1)}
        threads = Threads(lambda: None)
        self.servers = {n: ScanServer(reading, n, threads) for n, reading in self.readings.items()}
        for server in self.servers.values():
            server.start()
        self.dead: set[int] = set()
        self._cas = 0
        self.node = SimpleNamespace(
            state=EMPTY,
            peers=SimpleNamespace(
                application_of=lambda _: None,
                indexers={n: self._peer(n) for n in self.readings},
                alive=lambda peer: peer is not None and peer.beat.indexer not in self.dead,
                indexer_alive=lambda number: number not in self.dead,
                progress=Progresses(),
            ),
            authority=SimpleNamespace(
                indexers={n: IndexerInfo(n, LIFE, s.address, "") for n, s in self.servers.items()}
            ),
            config=SimpleNamespace(address="http://127.0.0.1:0"),
            master=None,
            is_following=True,
            why_not_ready="",
        )
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = self.run(self._serve())

    def _peer(self, indexer: int) -> Any:
        address = self.servers[indexer].address
        beat = SimpleNamespace(indexer=indexer, address=address, incarnation=LIFE)
        return SimpleNamespace(beat=beat)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    async def _serve(self) -> str:
        self.registry = CollectorRegistry()
        metrics = SimpleNamespace(registry=self.registry)
        shell: Any = SimpleNamespace(
            node=self.node, now=Shell.now, metrics=metrics, failover_log_ends=NoEnds()
        )
        self._app = build_app(shell)
        self._http = HttpServer(self._app, "127.0.0.1", 0)
        assert await self._http.start()
        assert self._http._socket is not None
        return f"http://127.0.0.1:{self._http._socket.getsockname()[1]}"

    def close(self) -> None:
        with ThreadPoolExecutor() as pool:
            stopping = [pool.submit(server.stop) for server in self.servers.values()]
            self.run(self._http.stop())
            self.run(self._app.state.calls.close())
        for stopped in stopping:
            stopped.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()
        for reading in self.readings.values():
            reading.close()

    def scans_that_were(self, outcome: str) -> float | None:
        """Return how many scans had this outcome, as the node counts them."""
        name = "coordinator_scan_seconds_count"
        return self.registry.get_sample_value(name, {"outcome": outcome})

    def kill(self, indexer: int) -> None:
        """End the server of an indexer; its heartbeats are not missed yet."""
        self.servers[indexer].stop()

    # -- the state ---------------------------------------------------------------------------

    def write(self, index: Index) -> Index:
        """Have the node hold an index, and the indexers its slices."""
        self._cas += 1
        mutation = Mutation("IndexChanged", index.key, repr(index).encode(), index)
        self.node.state = evolve(self.node.state, [(mutation, self._cas)])
        for piece in index.slices:
            for host in piece.hosts:
                if host in self.readings:
                    self.readings[host].pieces.add((index.id, piece.number))
        return index

    def index(self, *expressions: str, slices: int = 4, replicas: int = 0, **more: Any) -> Index:
        """Write an index whose slices go round the indexers."""
        hosts = sorted(self.readings)

        def host(place: int) -> int:
            return hosts[place % len(hosts)]

        pieces = tuple(
            Slice(n, host(n), tuple(host(n + k) for k in range(1, replicas + 1)))
            for n in range(slices)
        )
        number = 100 + self._cas
        index = make_index(
            number,
            expressions=expressions,
            slices=pieces,
            shards=tuple(Shard(indexer, 0) for indexer in hosts),
            **{"state": MAINTENANCE, "partitioning": HASH, "build": 1, **more},
        )
        return self.write(index)

    def become(self, index: Index, **changes: Any) -> Index:
        return self.write(replace(index, **changes))

    def fill(self, index: Index, rows: Iterable[tuple[tuple[Any, ...], str]]) -> None:
        """Put documents under their keys, where the topology says, on every host."""
        order, topology = order_of(index), topology_of(index)
        of_host: dict[int, list[tuple[int, bytes]]] = {}
        for key, document in rows:
            raw = order.encode(key)
            piece = topology.slice_of(raw)
            for host in piece.hosts:
                of_host.setdefault(host, []).append((piece.number, raw + document.encode()))
        for host, entries in of_host.items():
            self.readings[host].put(index.id, entries)


def expected(index: Index, rows: Rows, within: Any = lambda key: True) -> list[str]:
    """Return the documents whose keys are `within`, in the order of the index."""
    order = order_of(index)
    found = [(order.encode(key) + name.encode(), name) for key, name in rows if within(key)]
    return [name for _, name in sorted(found)]


def eventually(probe: Callable[[], Any]) -> threading.Thread:
    """Start a thread that does something while a scan waits."""
    thread = threading.Thread(target=probe)
    thread.start()
    return thread

"""What a mutation costs where there are many indexes, of which it concerns few.

The router of a projector and the applier of one indexer, in this process, on a real RocksDB: no
broker, no store. The same changes are measured with three indexes, and with a thousand more for
documents of other types. Processor time is what counts; the ratios say what the others cost.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.baselines import IndexSpec
from benchmarks.data_plane import BUCKET, INDEXES, SKEW
from coordinator import codec
from coordinator.core.model.stream_records import BACKFILL, MAINTENANCE, KeyVersions
from coordinator.kafka.topics import STREAM_PARTITIONS
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.storage import Storage
from indexer_sim.pipeline.applier import Applier
from indexer_sim.pipeline.mutation_reader import Delivery, MutationQueue, Queued, read_record
from projector_sim.kv.generator import Generator
from projector_sim.kv.vbuckets import vbucket_of
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.router import Router
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch
from projector_sim.sources.kv_source import split

OTHERS = 1_000
VBUCKETS = 64
DOCUMENTS, CHANGES, TOGETHER = 2_000, 20_000, 200
BRANCH = 9


def many_indexes() -> dict[str, Any]:
    """Return the processor time of a mutation by step, and how much more the others cost."""
    few, many = _costs(0), _costs(OTHERS)
    ratios = {step: round(many[step] / few[step], 2) for step in few}
    count = len(INDEXES)
    return {f"indexes_{count}": few, f"indexes_{count + OTHERS}": many, "ratio": ratios}


def _costs(others: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-many-indexes-"))
    try:
        return _Bench(folder, others).measure()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Sink:
    """Keeps what goes to the one indexer, as bytes."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None:
        self.sent.append((partition, codec.encode(record)))

    def control(self, vbucket: int, record: Any) -> None:
        codec.encode(record)


class _Bench:
    def __init__(self, folder: Path, others: int) -> None:
        specs = [*INDEXES, *(_other(number) for number in range(others))]
        self._routes = [spec.route(number) for number, spec in enumerate(specs, 1)]
        self._storage = Storage(folder, "bench")
        self._storage.know(BUCKET, VBUCKETS)
        places = dict.fromkeys(range(STREAM_PARTITIONS), 0)
        for route in self._routes:
            numbers = frozenset(route.numbers)
            self._storage.allocate(BUCKET, route.index.id, numbers, b"", places)
        self._applier = Applier(
            *(self._storage, MutationQueue(), _ignored, _failed, _ignored, _failed),
            *(3_600, Threads(_ignored), _ignored, _ignored),
        )
        self._offsets = places
        self._seqnos = dict.fromkeys(range(VBUCKETS), 0)
        self._sink = _Sink()

    def measure(self) -> dict[str, float]:
        """Build the indexes; then change documents, step by step."""
        maintenance = self._begun(MAINTENANCE, 1)
        self._apply(self._deliveries())
        self._build()
        for vbucket, seqno in self._seqnos.items():
            maintenance.run.positions[vbucket] = seqno
        changes = Generator(2, DOCUMENTS, skew=SKEW).changes(CHANGES)
        routed_s, batches = 0.0, []
        while some := list(islice(changes, TOGETHER)):
            mutations = [self._mutation(key, value) for key, value, _ in some]
            began = time.process_time()
            self._route(maintenance, mutations)
            self._route(maintenance, [frames.sync(sorted(self._seqnos.items()))])
            routed_s += time.process_time() - began
            batches.append(self._sink.sent)
            self._sink.sent = []
        began = time.process_time()
        decoded = [self._deliveries(sent) for sent in batches]
        decoded_s = time.process_time() - began
        began = time.process_time()
        for deliveries in decoded:
            self._apply(deliveries)
        applied_s = time.process_time() - began
        self._storage.close()
        whole_s = routed_s + decoded_s + applied_s
        steps = {"route": routed_s, "decode": decoded_s, "apply": applied_s, "together": whole_s}
        return {step: round(1e6 * seconds / CHANGES, 1) for step, seconds in steps.items()}

    def _begun(self, kind: str, connection: int) -> Router:
        run = Run(
            bucket=BUCKET,
            kind=kind,
            connection=connection,
            vbuckets=tuple(range(VBUCKETS)),
            carried={route.index.id: route.index for route in self._routes},
            opened_ms=0,
            number=1,
        )
        router = Router(run, self._routes, self._sink, 1, STREAM_PARTITIONS, lambda: 1)
        log = (Branch(BRANCH, 0),)
        self._route(router, [frames.begin(v, BRANCH, 0, log) for v in range(VBUCKETS)])
        return router

    def _build(self) -> None:
        router = self._begun(BACKFILL, 2)
        loaded = Generator(1, DOCUMENTS).load()
        self._route(router, [self._mutation(key, value) for key, value, _ in loaded])
        ends = [frames.end(v, s, frames.Reason.DONE) for v, s in self._seqnos.items()]
        self._route(router, ends)
        self._apply(self._deliveries())
        bucket = self._storage.bucket(BUCKET)
        assert bucket is not None
        assert all(state.complete for state in bucket.published.states.values())

    def _mutation(self, key: bytes, value: bytes | None) -> bytes:
        vbucket = vbucket_of(key, VBUCKETS)
        self._seqnos[vbucket] += 1
        mutation = frames.pack_mutation(self._seqnos[vbucket], key, value)
        return frames.mutations_head(vbucket, len(mutation)) + mutation

    def _route(self, router: Router, sent: Iterable[bytes]) -> None:
        for data in sent:
            for kind, body in split(bytearray(), data):
                router.route(kind, body)
        router.flush()

    def _deliveries(self, sent: list[tuple[int, bytes]] | None = None) -> list[Queued]:
        if sent is None:
            sent, self._sink.sent = self._sink.sent, []
        found = []
        for partition, raw in sent:
            offset = self._offsets[partition]
            self._offsets[partition] = offset + 1
            delivery = Delivery(partition, offset, *read_record(raw))
            found.append(Queued(self._storage.epoch, delivery))
        return found

    def _apply(self, queued: list[Queued]) -> None:
        self._applier.apply(queued)


def _other(number: int) -> IndexSpec:
    return IndexSpec(f"other_{number}", ("price",), where=f"type = 'other-{number}'")


def _ignored(*_: Any) -> None:
    """What the applier tells others."""


def _failed(*why: Any) -> None:
    raise RuntimeError(f"cannot be applied: {why}")

"""How fast events become state: decoded, with decoding, and in a full synchronisation."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import psutil
from confluent_kafka import Producer

from benchmarks.cluster import free_ports
from coordinator import codec
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus import effects, inputs
from coordinator.core.model.entities import INIT, READY, Index, Setting, Shard, Slice
from coordinator.core.model.records import (
    ClusterFormed,
    Event,
    MasterClaimed,
    Mutation,
    TransactionCommitted,
    TransactionProposed,
)
from coordinator.core.model.types import TxnId
from coordinator.kafka.producers import TransactionalProducer
from coordinator.kafka.topics import COMMIT, ensure_topics, topic_name

GROUP = 256


def mutations(count: int, keys: int) -> list[Mutation]:
    """Return `count` writes of settings over `keys` keys."""
    made = []
    for number in range(count):
        setting = Setting(f"bench/{number % keys}", f'{{"n":{number},"s":"{"x" * 60}"}}')
        value = codec.encode(setting)
        made.append(Mutation("SettingWritten", setting.key, value, setting, "", "bench", number))
    return made


def rates(count: int = 200_000, keys: int = 50_000) -> dict[str, Any]:
    """Return events a second into state, from decoded events and from bytes, on one core."""
    made = mutations(count, keys)
    txn = TxnId(1, 1)
    encoded = [codec.encode(Event(m, txn, 0, 1)) for m in made]
    began = time.process_time()
    state = _fold(EMPTY, made)
    decoded_s = time.process_time() - began
    began = time.process_time()
    again = _fold(EMPTY, [codec.decode(data).mutation for data in encoded])
    bytes_s = time.process_time() - began
    assert again.digest == state.digest
    return {
        "events": count,
        "keys": keys,
        "decoded_per_second": round(count / decoded_s),
        "with_decoding_per_second": round(count / bytes_s),
    }


def _fold(state: StateContext, made: list[Mutation]) -> StateContext:
    """Fold in groups, as transactions come."""
    for first in range(0, len(made), GROUP):
        group = made[first : first + GROUP]
        state = evolve(state, [(m, first + n + 1) for n, m in enumerate(group)])
    return state


def synchronisation(bootstrap_servers: str, count: int = 1_000_000) -> dict[str, Any]:
    """Write a log of `count` events, and time a node with an empty folder until it has them."""
    return _bootstrapped(bootstrap_servers, mutations(count, count), count)


def bootstrap(bootstrap_servers: str, count: int = 100_000) -> dict[str, Any]:
    """The same with the recorded transactions of `count` indexes, each made and then READY.

    No indexer has storage for them.
    """
    return _bootstrapped(bootstrap_servers, list(_index_mutations(count)), count)


def _index_mutations(count: int) -> Iterator[Mutation]:
    """Yield what `count` indexes leave in the log, in groups: proposed, then ready."""
    for first in range(0, count, GROUP):
        numbers = range(first, min(first + GROUP, count))
        for event, state in (("IndexProposed", INIT), ("IndexReady", READY)):
            for number in numbers:
                yield _index_mutation(number, event, state)


def _index_mutation(number: int, event: str, state: str) -> Mutation:
    host = number % 3 + 1
    index = Index(
        id=(1 << 40) | number,
        name=f"index_{number}",
        bucket=f"bucket_{number % 16}",
        expressions=("city", "country"),
        where=None,
        primary=False,
        using="gsi",
        defer_build=False,
        state=state,
        reason=None,
        slices=(Slice(0, host, (host % 3 + 1,)),),
        request="",
        created_ms=number,
        shards=(Shard(1, number), Shard(2, number), Shard(3, number)) if state == READY else (),
    )
    return Mutation(event, index.key, codec.encode(index), index, "", "bench", number)


def _bootstrapped(bootstrap_servers: str, made: list[Mutation], entities: int) -> dict[str, Any]:
    """Write a log of these mutations, and time a node until it has them: empty, and restarted."""
    cluster = f"sync-{uuid.uuid4().hex[:8]}"
    began = time.perf_counter()
    state = _write_log(bootstrap_servers, cluster, made)
    wrote_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory(prefix="bench-node-") as folder:
        empty_s, peak = _until_it_has(bootstrap_servers, cluster, folder, state)
        again_s, _ = _until_it_has(bootstrap_servers, cluster, folder, state)
    return {
        "events": len(made),
        "entities": entities,
        "seconds": round(empty_s, 1),
        "events_per_second": round(len(made) / empty_s),
        "restart_from_its_folder_seconds": round(again_s, 1),
        "rss_peak_mib": round(peak),
        "log_written_in_s": round(wrote_s, 1),
    }


def _until_it_has(
    bootstrap_servers: str, cluster: str, folder: str, state: StateContext
) -> tuple[float, float]:
    """Run a node on `folder` until it serves `state`; return seconds and the peak of its RSS."""
    with _node(bootstrap_servers, cluster, folder) as (url, process):
        began = time.perf_counter()
        peak = 0.0
        members: list[dict[str, Any]] = []
        while True:
            peak = max(peak, process.memory_info().rss / 2**20)
            with contextlib.suppress(httpx.HTTPError):
                members = httpx.get(f"{url}/v1/members", timeout=60).json()["members"]
                if members[0]["cas"] == state.cas:
                    break
            ended = process.status() == psutil.STATUS_ZOMBIE
            if ended or time.perf_counter() - began > 300:
                raise RuntimeError("the node did not synchronise")
            time.sleep(0.1)
        took_s = time.perf_counter() - began
        assert members[0]["digest"] == f"{state.digest:032x}"
        return took_s, peak


def _write_log(bootstrap_servers: str, cluster: str, made: list[Mutation]) -> StateContext:
    """Write genesis, one claim and the transactions of a master of epoch 1, without replicas."""
    ensure_topics(bootstrap_servers, cluster, durable=False)
    answers: SimpleQueue[Any] = SimpleQueue()
    plain = Producer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "enable.idempotence": True}
    )
    producer = TransactionalProducer(bootstrap_servers, cluster, answers.put)
    producer.order(effects.OpenProducer(1))
    _expect(answers, inputs.ProducerOpened)
    formed = ClusterFormed(
        cluster_id=cluster,
        cas_base=1,
        roster=(1,),
        minimum=1,
        log_capacity=1_000,
        request_window_ms=600_000,
        at_ms=0,
    )
    authority = authorities.fold(None, 0, formed).state
    assert authority is not None
    claim = MasterClaimed(
        epoch=1,
        node=1,
        incarnation=1,
        address="http://127.0.0.1:1",
        cas=0,
        digest=0,
        snapshot=authority,
        at_ms=0,
    )
    producer.order(effects.Conclude(2, (formed, claim)))
    _expect(answers, inputs.Ended)
    state = EMPTY
    for seq, first in enumerate(range(0, len(made), GROUP), 1):
        group = tuple(made[first : first + GROUP])
        txn = TxnId(1, seq)
        proposal = TransactionProposed(txn, state.cas, state.digest, (1,), group)
        offset = _append(plain, topic_name(cluster, COMMIT), codec.encode(proposal))
        events = tuple(Event(m, txn, n, len(group)) for n, m in enumerate(group))
        producer.order(effects.WriteEvents(seq, events))
        written = _expect(answers, inputs.Written)
        cas = tuple(1 + at for at in written.offsets)
        state = evolve(state, zip(group, cas, strict=True))
        verdict = TransactionCommitted(
            txn=txn,
            proposal_offset=offset,
            accepted=(1,),
            cas=cas,
            state_digest=state.digest,
            at_ms=0,
        )
        producer.order(effects.Conclude(seq, (verdict,)))
        _expect(answers, inputs.Ended)
    producer.close()
    return state


def _append(producer: Producer, topic: str, value: bytes) -> int:
    """Append a record and return the offset that it got."""
    offsets: list[int] = []
    producer.produce(topic, value, on_delivery=lambda _, m: offsets.append(m.offset()))
    producer.flush(10)
    return offsets[0]


def _expect(answers: SimpleQueue[Any], kind: type) -> Any:
    answer = answers.get(timeout=60)
    assert isinstance(answer, kind), answer
    return answer


@contextlib.contextmanager
def _node(
    bootstrap_servers: str, cluster: str, folder: str
) -> Iterator[tuple[str, psutil.Process]]:
    """Run one node of `cluster` in a folder."""
    port = free_ports(1)
    command = [sys.executable, "-m", "coordinator.process", "--node", "1", "--roster", "1"]
    command += ["--cluster", cluster, "--bootstrap-servers", bootstrap_servers]
    command += ["--data-dir", str(Path(folder) / "node"), "--port", str(port), "--not-durable"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()

"""What a committed mutation costs: latency of one client, throughput of 64, against baselines.

Latency: rounds of bare two-topic Kafka transactions and rounds of writes of a setting take turns
on the same broker, so that both see the same machine; only their ratio means anything.
Throughput: 64 clients with keys of their own for some seconds, then every acknowledged value is
read back from all nodes; etcd, where it is installed, takes the same load in the same run.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import compiled, load
from benchmarks.cluster import Cluster, free_ports

ROUNDS, PER_ROUND, WARM_UP = 12, 40, 100
PAUSE_S = 0.004
"""Between bare transactions: without it, most of them run into the client's back-off of 20 ms,
and the baseline would flatter us."""


def quantile_ms(seconds: list[float], q: float) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 2)


def summary(seconds: list[float]) -> dict[str, float]:
    return {f"p{int(q * 100)}_ms": quantile_ms(seconds, q) for q in (0.5, 0.9, 0.99)}


class BareTransactions:
    """A loop of transactions over two topics, as small as Kafka has them."""

    def __init__(self, bootstrap_servers: str) -> None:
        name = uuid.uuid4().hex
        self._topics = [f"bare-{name}-{number}" for number in (1, 2)]
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        new = [NewTopic(t, 1, 1, config={"flush.messages": "1"}) for t in self._topics]
        for future in admin.create_topics(new).values():
            future.result()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": name,
                "acks": "all",
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions()

    def one(self) -> float:
        """Run one transaction and return its seconds."""
        began = time.perf_counter()
        self._producer.begin_transaction()
        for topic in self._topics:
            self._producer.produce(topic, b"x" * 200)
        self._producer.commit_transaction()
        return time.perf_counter() - began


def latency(cluster: Cluster) -> dict[str, Any]:
    """One client, one setting at a time, against bare transactions in the same minutes."""
    bare = BareTransactions(cluster.bootstrap_servers)
    client = httpx.Client(base_url=cluster.master)

    def put(number: int) -> float:
        began = time.perf_counter()
        client.put(f"/v1/config/k{number % 50}", content=b"%d" % number).raise_for_status()
        return time.perf_counter() - began

    for number in range(WARM_UP):
        put(number)
        bare.one()
    before, counted = cluster.stages(), cluster.stage_buckets()
    transactions: list[float] = []
    mutations: list[float] = []
    for _ in range(ROUNDS):
        for _ in range(PER_ROUND):
            transactions.append(bare.one())
            time.sleep(PAUSE_S)
        mutations.extend(put(number) for number in range(PER_ROUND))
    after = cluster.stages()
    stages = {
        stage: round((after[stage][0] - s) / (after[stage][1] - n) * 1000, 2)
        for stage, (s, n) in before.items()
        if after[stage][1] > n
    }
    bare_p50, our_p50 = quantile_ms(transactions, 0.5), quantile_ms(mutations, 0.5)
    return {
        "bare_transaction": summary(transactions),
        "mutation": summary(mutations),
        "ratio_p50": round(our_p50 / bare_p50, 2),
        "ratio_p99": round(quantile_ms(mutations, 0.99) / quantile_ms(transactions, 0.99), 2),
        "mean_ms_by_stage": stages,
        "p99_at_most_ms_by_stage": _bounds_of(0.99, counted, cluster.stage_buckets()),
    }


def _bounds_of(
    q: float, before: dict[str, dict[float, float]], after: dict[str, dict[float, float]]
) -> dict[str, float]:
    """Return, for each stage, the histogram's bound below which a share `q` of the times lies."""
    found = {}
    for stage, counts in after.items():
        earlier = before.get(stage, {})
        times = {bound: n - earlier.get(bound, 0.0) for bound, n in counts.items()}
        wanted = q * times[float("inf")]
        found[stage] = min(bound for bound, n in times.items() if n >= wanted) * 1000
    return found


def throughput(cluster: Cluster, *, clients: int = 64, seconds: float = 10.0) -> dict[str, Any]:
    """Many clients, then every acknowledged value read back from every node."""
    write = load.coordinator(cluster.master)
    uvloop.run(load.run(write, clients=clients, seconds=2.0, prefix="warm"))
    before = cluster.stages()["total"]
    result = uvloop.run(load.run(write, clients=clients, seconds=seconds))
    after = cluster.stages()["total"]
    groups = after[1] - before[1]
    return {
        "clients": clients,
        "committed_per_second": round(result.per_second),
        "p50_ms": round(result.quantile_ms(0.5), 1),
        "p99_ms": round(result.quantile_ms(0.99), 1),
        "mutations_per_transaction": round(len(result.acknowledged) / max(1, groups), 1),
        "errors": len(result.errors),
        "read_back": read_back(cluster, result),
    }


def read_back(cluster: Cluster, result: load.Result) -> str:
    """Compare the last acknowledged value of each key with what every node holds."""
    last: dict[str, tuple[int, int]] = {}
    for key, value, cas in result.acknowledged:
        if cas > last.get(key, (0, 0))[1]:
            last[key] = (value, cas)
    highest = max(cas for _, cas in last.values())
    for node in range(len(cluster.nodes)):
        held = cluster.get(f"/v1/config?consistency=local&at_least={highest}", node)["config"]
        wrong = [k for k, (v, c) in last.items() if held[k] != {"value": v, "cas": c}]
        if wrong:
            raise AssertionError(f"node {node + 1} holds other values for {wrong[:3]}")
    return f"{len(last)} keys equal on {len(cluster.nodes)} nodes"


def by_connections(cluster: Cluster) -> dict[str, Any] | None:
    """Writes by a compiled client, without ids and with; None where `wrk` is not installed."""
    if not compiled.is_here():
        return None
    master = cluster.master
    return {
        "without_ids": compiled.coordinator(master, ids=False),
        "with_ids": compiled.coordinator(master, ids=True),
    }


def etcd(*, clients: int = 64, seconds: float = 10.0) -> dict[str, Any] | None:
    """Run the same loads on three local etcd nodes; None where etcd is not installed."""
    binary = shutil.which("etcd")
    if binary is None:
        return None
    with etcd_cluster(binary) as urls:
        write = load.etcd(urls)
        uvloop.run(load.run(write, clients=clients, seconds=2.0, prefix="warm"))
        result = uvloop.run(load.run(write, clients=clients, seconds=seconds))
        by_wrk = compiled.etcd(etcd_leader(urls)) if compiled.is_here() else None
    return {
        "clients": clients,
        "committed_per_second": round(result.per_second),
        "p50_ms": round(result.quantile_ms(0.5), 1),
        "p99_ms": round(result.quantile_ms(0.99), 1),
        "errors": len(result.errors),
        "by_connections": by_wrk,
    }


@contextlib.contextmanager
def etcd_cluster(binary: str) -> Iterator[list[str]]:
    """Run three nodes of etcd with their defaults; yield where they answer."""
    folder = Path(tempfile.mkdtemp(prefix="bench-etcd-"))
    port = free_ports(6)
    urls = [f"http://127.0.0.1:{port + number}" for number in range(6)]
    names = ",".join(f"n{number}={urls[3 + number]}" for number in range(3))
    processes = [
        subprocess.Popen(
            [
                binary,
                *("--name", f"n{number}", "--data-dir", str(folder / str(number))),
                *("--listen-client-urls", urls[number]),
                *("--advertise-client-urls", urls[number]),
                *("--listen-peer-urls", urls[3 + number]),
                *("--initial-advertise-peer-urls", urls[3 + number]),
                *("--initial-cluster", names, "--initial-cluster-state", "new"),
                *("--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(3)
    ]
    try:
        _wait_healthy(urls[:3])
        yield urls[:3]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def etcd_leader(urls: list[str]) -> str:
    """Return where etcd's leader answers: our master is asked directly, too."""
    for url in urls:
        status = httpx.post(f"{url}/v3/maintenance/status", json={}, timeout=5).json()
        if status["leader"] == status["header"]["member_id"]:
            return url
    raise RuntimeError("etcd has no leader")


def _wait_healthy(urls: list[str]) -> None:
    end = time.monotonic() + 30
    for url in urls:
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=1).json().get("health") in ("true", True):
                    break
            except httpx.HTTPError:
                pass
            if time.monotonic() > end:
                raise RuntimeError(f"etcd at {url} is not healthy")
            time.sleep(0.1)

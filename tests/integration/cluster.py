"""A real cluster for tests: nodes and indexers as processes of their own, on a real broker.

A `Cluster` has a name, and so topics, of its own: many share one broker. Nothing here waits a
fixed time: `wait_until` polls a condition up to a deadline. Children die with the test process,
whatever kills it; mounts and processes go with `stop`, which every fixture calls in the end.

As under `indexctl run`, a process that ends by itself so as to begin anew is started again: a busy
machine makes one do so now and then. A test that wants to see such an end says that the child is
not `supervised`.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from rocksdict import AccessType, Rdict

from coordinator import codec
from coordinator.client.client import Client
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.inputs import Restored
from coordinator.core.consensus.roles import LEADING
from coordinator.core.model import digest as digests
from coordinator.core.model.records import DdlReply, Event
from coordinator.embedded.children import READY, TIMESTAMPS, timestamps_argv
from coordinator.embedded.ports import LOOPBACK
from coordinator.embedded.processes import end
from coordinator.kafka.history_archive import GONE
from coordinator.kafka.log_reader import read_events
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    DDL_PARTITIONS,
    DDL_REPLIES,
    HISTORY,
    STATECONTEXT,
    topic_name,
)
from coordinator.node.store import Store
from tests.integration.preloaded import PRELOADED, Spawned
from tests.support import limits
from tests.support.ports import reserve_port

T = TypeVar("T")

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
"""What the body of a POST is: without that it is refused."""

KEEPER_S = 0.2
RESTART_S = 0.4
AGAIN = 1
"""The code with which a process ends that may fare better when it begins anew."""

CRASHED = ("broke an invariant", 'File "<frozen runpy>"')
"""What a process says that stops over its own fault, or over an error that nobody caught."""

DEADLINE_S = 120.0
START_S = 150.0
"""Six processes that start together beside whatever else keeps the machine busy."""

IMPATIENCE_S = 0.002
POLL_S, POLL_S_MAX = 0.02, 0.15
"""Who waits asks ever more rarely: each question is work for the processes that it waits for."""

GRACE_S = 15.0
CAS_BASE = 1
MOUNT_BYTES = 96 * 1024 * 1024
SPARK_S = 150.0
TRIGGER_MS = 1000
"""Spark begins a batch so often at most: ten times less than by default. It would have a processor
otherwise, while tests wait for other things."""


def add_partitions(servers: str, topics: Iterable[str], count: int) -> None:
    """Give topics more partitions; return when the broker shows them."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    wanted = [NewPartitions(name, count) for name in topics]
    for future in admin.create_partitions(wanted).values():
        future.result(20)

    def shown() -> bool:
        there = admin.list_topics(timeout=10).topics
        return all(len(there[one.topic].partitions) == count for one in wanted)

    wait_until(shown, f"{count} partitions are shown")


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    deadline_s: float = DEADLINE_S,
    pause_s: float = POLL_S,
) -> T:
    """Return the first true value of `condition`; fail if there is none in time.

    A node that does not answer, or refuses, is a condition that is not true yet.
    """
    end_s = time.monotonic() + deadline_s
    last: object = None
    while time.monotonic() < end_s:
        try:
            value = condition()
        except (httpx.HTTPError, OSError) as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(pause_s)
        pause_s = max(pause_s, min(1.2 * pause_s, POLL_S_MAX))
    raise AssertionError(f"not within {deadline_s:g} s: {what} (last: {last!r})")


@functools.cache
def can_mount() -> bool:
    """Tell whether this process may mount a tmpfs."""
    return os.geteuid() == 0 and sys.platform.startswith("linux")


# -- processes -----------------------------------------------------------------------------------


class Child:
    """A process with a folder and a log; it can be stopped, killed, paused and starved."""

    supervised = True
    """Whether its cluster starts it again where it ends so as to begin anew."""

    prefix: Sequence[str] = ()
    """What runs the command: `nsenter …`, for a process in a namespace."""

    more: Sequence[str] = ()
    """Options that the command gets besides."""

    def __init__(self, name: str, folder: Path, logs: Path) -> None:
        self.name = name
        self.folder = folder
        self.log = logs / f"{name}.log"
        self.process: Spawned | None = None

    def argv(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        assert not self.runs, f"{self.name} runs already"
        with self.log.open("ab") as output:
            self.process = PRELOADED.spawn([*self.prefix, *self.argv(), *self.more], output=output)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """Stop it by SIGTERM; it must end by itself, with 0."""
        assert self.process is not None
        assert end(self.process, grace_s=GRACE_S), f"{self.name} ignored SIGTERM"
        code = self.process.returncode
        assert code == 0, f"{self.name} ended with {code}: {self.said[-2000:]}"

    def stop_impatiently(self) -> None:
        """Stop it by SIGTERM again and again, as a console and a supervisor together do."""
        while self.runs:
            self._signal(signal.SIGTERM)
            time.sleep(IMPATIENCE_S)
        self.stop()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its end and return its exit code."""
        assert self.process is not None
        return self.process.wait(deadline_s)

    # -- a disk that refuses -----------------------------------------------------------------

    def limit_file_size(self, limit_bytes: int = resource.RLIM_INFINITY) -> None:
        """Limit what the running process may write to one file: the kernel refuses the rest."""
        limits.limit_file_size(self.pid, limit_bytes)

    def fill_disk(self) -> None:
        """Write until the file system of the folder is full."""
        block = os.urandom(64 * 1024)
        with (self.folder / "filler").open("ab", buffering=0) as file:
            while len(block) > 1:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]

    def empty_disk(self) -> None:
        (self.folder / "filler").unlink()


class NodeChild(Child):
    """An IndexManager node on a port of its own."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        super().__init__(f"node-{node}", cluster.folder / f"node-{node}", cluster.logs)
        self.cluster = cluster
        self.node = node
        self.port = reserve_port(avoid=cluster.ports)
        self.url = f"http://{LOOPBACK}:{self.port}"

    def argv(self) -> list[str]:
        cluster = self.cluster
        roster = ",".join(str(n) for n in cluster.roster)
        return [
            *(sys.executable, "-m", "coordinator.process"),
            *("--node", str(self.node), "--roster", roster),
            *("--cluster", cluster.name, "--bootstrap-servers", cluster.servers),
            *("--data-dir", str(self.folder), "--port", str(self.port)),
            *cluster.node_options,
        ]

    def restored(self) -> Restored | None:
        """Return what the store holds, read beside the node that may be running on it."""
        store = _ReadOnlyStore(self.folder)
        try:
            return store.restore()
        finally:
            store.close()


class _ReadOnlyStore(Store):
    def _open(self) -> Rdict:
        from coordinator.node import store

        return Rdict(str(self.folder), store._options(), access_type=AccessType.read_only())


class IndexerChild(Child):
    """An indexer."""

    def __init__(self, cluster: Cluster, indexer: int, zone: str) -> None:
        super().__init__(f"indexer-{indexer}", cluster.folder / f"indexer-{indexer}", cluster.logs)
        self.cluster = cluster
        self.indexer = indexer
        self.zone = zone

    def argv(self) -> list[str]:
        cluster = self.cluster
        return [
            *(sys.executable, "-m", "indexer_sim", "--id", str(self.indexer)),
            *("--cluster", cluster.name, "--bootstrap-servers", cluster.servers),
            *("--data-dir", str(self.folder), "--zone", self.zone),
        ]


class KvChild(Child):
    """The key-value store, on a port of its own."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        super().__init__("kv", cluster.folder / "kv", cluster.logs)
        self.nodes = nodes
        self.port = reserve_port(avoid=cluster.ports)
        self.url = f"http://{LOOPBACK}:{self.port}"

    def argv(self) -> list[str]:
        return [
            *(sys.executable, "-m", "projector_sim", "kv", "--port", str(self.port)),
            *("--data-dir", str(self.folder), "--nodes", str(self.nodes)),
        ]


class ProjectorChild(Child):
    """A projector, of the store's node with its number."""

    def __init__(self, cluster: Cluster, projector: int, kv: KvChild) -> None:
        name = f"projector-{projector}"
        super().__init__(name, cluster.folder / name, cluster.logs)
        self.cluster = cluster
        self.projector = projector
        self.kv = kv

    def argv(self) -> list[str]:
        cluster = self.cluster
        return [
            *(sys.executable, "-m", "projector_sim", "projector"),
            *("--projector", str(self.projector), "--cluster", cluster.name),
            *("--bootstrap-servers", cluster.servers, "--kv", self.kv.url),
        ]


class TimestampsChild(Child):
    """The application on Spark that computes timestamps."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(TIMESTAMPS, cluster.folder / TIMESTAMPS, cluster.logs)
        self.cluster = cluster

    def argv(self) -> list[str]:
        cluster = self.cluster
        argv = timestamps_argv(
            cluster=cluster.name,
            bootstrap_servers=cluster.servers,
            data_dir=cluster.folder,
            spark_master="local[1]",
        )
        return [*argv, "--trigger-ms", str(TRIGGER_MS)]

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / READY).unlink(missing_ok=True)
        super().start()

    def ready(self) -> None:
        """Wait for the first batch of this life."""

        def there() -> bool:
            assert self.process is not None
            assert self.process.poll() in (None, AGAIN), self.said[-2000:]
            return self.runs and (self.folder / READY).exists()

        wait_until(there, "timestamps are computed", SPARK_S)


# -- the cluster ---------------------------------------------------------------------------------


def delete_topics(servers: str, prefix: str = "") -> None:
    """Delete the topics whose names begin so, but Kafka's own: a broker that has thousands of
    partitions is slow. One that does not answer keeps them.
    """
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    with suppress(KafkaException):
        known = admin.list_topics(timeout=3).topics
        names = [name for name in known if name.startswith(prefix) and not name.startswith("__")]
        for deleted in admin.delete_topics(names, request_timeout=10).values() if names else ():
            deleted.result(20)


class StartedAgain(UserWarning):
    """A process ended with 1 by its own rule, and its supervisor starts it again."""


class Cluster:
    """Nodes 1 to n and indexers 1 to m, on a broker that is there already."""

    def __init__(
        self,
        folder: Path,
        servers: str,
        *,
        nodes: int = 3,
        indexers: int = 3,
        projectors: int = 0,
        timestamps: bool = False,
        zones: Mapping[int, str] | None = None,
        options: Sequence[str] = (),
        own_disks: Sequence[str] = (),
    ) -> None:
        """`options` go to every node; `own_disks` names children that get a small file system."""
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.servers = servers
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.roster = tuple(range(1, nodes + 1))
        self.node_options = tuple(options)
        self.ports: list[int] = []
        self.nodes: dict[int, NodeChild] = {}
        for number in self.roster:
            self.nodes[number] = NodeChild(self, number)
            self.ports.append(self.nodes[number].port)
        self.indexers = {
            n: IndexerChild(self, n, (zones or {}).get(n, "")) for n in range(1, indexers + 1)
        }
        self.kv = KvChild(self, projectors) if projectors else None
        self.projectors = {
            n: ProjectorChild(self, n, self.kv) for n in range(projectors) if self.kv is not None
        }
        self.timestamps = TimestampsChild(self) if timestamps else None
        self._own_disks = [c for c in self.children if c.name in own_disks]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._stack = ExitStack()
        self.http = self._stack.enter_context(
            httpx.Client(timeout=20, trust_env=False, verify=False)
        )

    @property
    def children(self) -> list[Child]:
        store = [self.kv] if self.kv is not None else []
        spark = [self.timestamps] if self.timestamps is not None else []
        nodes, indexers = self.nodes.values(), self.indexers.values()
        return [*store, *nodes, *spark, *indexers, *self.projectors.values()]

    def start(self) -> Cluster:
        """Start everything that does not run, and return when all of it serves."""
        for child in self._own_disks:
            self._mount(child.folder)
        self._own_disks = []
        for child in self.children:
            if not child.runs:
                child.start()
        if not self._keeper.is_alive():
            self._keeper.start()
        self.settled(deadline_s=START_S)
        self.indexers_alive()
        self.projectors_alive()
        if self.timestamps is not None:
            self.timestamps.ready()
        with self.client() as client:
            # Claims that were given up may still fence the first master.
            client.put_config("started", True)
        self.settled(deadline_s=START_S)
        return self

    def _mount(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        options = f"size={MOUNT_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        self._stack.callback(_unmount, folder)

    def stop(self) -> None:
        """End everything at once, also what is paused, and clean up."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for child in self.children:
            if child.process is not None:
                child.process.kill()
        for child in self.children:
            child.kill()
        self._stack.close()

    def _keep(self) -> None:
        """Do what a supervisor does, until the cluster stops."""
        ended: dict[str, float] = {}
        while not self._stopping.wait(KEEPER_S):
            for child in self.children:
                with self._lock:
                    self._start_again(child, ended)

    def _start_again(self, child: Child, ended: dict[str, float]) -> None:
        now = time.monotonic()
        if child.process is None or child.runs or not self._is_kept(child):
            ended.pop(child.name, None)
        elif child.name not in ended:
            ended[child.name] = now
            self._note_end(child, now)
        elif now - ended[child.name] >= RESTART_S:
            child.start()

    def _is_kept(self, child: Child) -> bool:
        """Tell whether a process has ended so as to begin anew, and not over a fault of its own."""
        again = child.process is not None and child.process.returncode == AGAIN
        return again and child.supervised and not any(mark in child.said for mark in CRASHED)

    def _note_end(self, child: Child, at: float) -> None:
        """A process has ended by itself at a monotonic time: the summary of the tests says so."""
        last = child.said.strip().rpartition("\n")[2]
        warnings.warn(f"{child.name} of {self.name} has ended: {last}", StartedAgain, stacklevel=1)

    def stop_children(self) -> None:
        """Stop every process as an operator does; `start` goes on from what they left."""
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
        for child in self.children:
            child.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        delete_topics(self.servers, self.name)

    # -- asking ------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    @contextmanager
    def client(self, *nodes: int, deadline_s: float = 60.0) -> Iterator[Client]:
        """Yield a client that begins at `nodes`, or at any."""
        urls = [self.nodes[n].url for n in nodes] or self.urls
        with Client(urls, deadline_s=deadline_s) as client:
            yield client

    def ask(self, node: int, method: str, path: str, **more: Any) -> httpx.Response:
        """Send one request to one node, and follow nothing."""
        return self.http.request(method, self.nodes[node].url + path, **more)

    def get(self, node: int, path: str) -> dict[str, Any]:
        """Return the body of an answer, which must be 200."""
        response = self.ask(node, "GET", path)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    def put(self, key: str, value: Any, **headers: str) -> httpx.Response:
        """Write a setting at the master by one request."""
        path = f"/v1/config/{key}"
        return self.ask(self.master(), "PUT", path, json=value, headers=headers)

    def running(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.runs]

    def master(self, *, other_than: int = 0) -> int:
        """Return the node that serves as master, once there is one."""

        def find() -> int:
            for number in self.running():
                with suppress(httpx.HTTPError):
                    ready = self.ask(number, "GET", "/readyz", timeout=1.0)
                    if ready.status_code == 200 and ready.json()["role"] in LEADING:
                        return number if number != other_than else 0
            return 0

        return wait_until(find, "a master")

    def replicas(self) -> list[int]:
        master = self.master()
        return [number for number in self.nodes if number != master]

    def state(self, node: int) -> dict[str, Any]:
        return self.get(node, "/v1/state?consistency=local")

    def settled(self, nodes: Sequence[int] = (), deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Return the state on which all `nodes` (default: all) agree as ready members."""

        def agreed() -> dict[str, Any] | None:
            numbers = nodes or list(self.nodes)
            if any(self.ask(n, "GET", "/readyz").status_code != 200 for n in numbers):
                return None
            shown = [self.state(n) for n in numbers]
            if len({(s["cas"], s["digest"], s["epoch"], s["master"]) for s in shown}) > 1:
                return None
            if any(i["state"] in ("init", "dropping") for i in shown[0]["indexes"].values()):
                return None
            return shown[0]

        try:
            return wait_until(agreed, f"nodes {list(nodes) or 'all'} agree", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._last_words()}") from None

    def _last_words(self) -> str:
        """Return what each process that has ended said at last."""
        ended = [c for c in self.children if c.process is not None and not c.runs]
        return "\n".join(
            f"{c.name} ended with {c.process.returncode if c.process else None}: {c.said[-800:]}"
            for c in ended
        )

    def settled_members(self) -> None:
        """Wait until every node is an active member, whatever else goes on."""

        def members() -> bool:
            rows = self.get(self.master(), "/v1/members")["members"]
            return all(row["alive"] and row["role"] != "outside" for row in rows)

        wait_until(members, "all nodes are members")

    def member(self, node: int, *, seen_by: int | None = None) -> dict[str, Any]:
        """Return the row of `node` in the list of members."""
        body = self.get(seen_by or self.master(), "/v1/members")
        found: dict[str, Any] = next(m for m in body["members"] if m["node"] == node)
        return found

    def indexers_alive(self) -> None:
        master = self.master()

        def alive() -> bool:
            rows = self.get(master, "/v1/indexers")["indexers"]
            return {r["id"] for r in rows if r["alive"]} >= set(self.indexers)

        wait_until(alive, "all indexers are alive")

    def projectors_alive(self) -> None:
        master = self.master()

        def alive() -> bool:
            rows = self.get(master, "/v1/projectors")["projectors"]
            return {r["id"] for r in rows if r["alive"]} >= set(self.projectors)

        wait_until(alive, "all projectors are alive")

    # -- what the logs say -------------------------------------------------------------------

    def topic(self, name: str) -> str:
        return topic_name(self.name, name)

    def read(self, name: str, partition: int = 0) -> list[Message]:
        """Return all committed records that a partition holds now."""
        return read_partition(self.servers, self.topic(name), partition)

    def records(self, name: str, partitions: int = 1) -> list[Any]:
        """Return the decoded records of a topic."""
        return [
            codec.decode(value_of(message))
            for partition in range(partitions)
            for message in self.read(name, partition)
        ]

    def history(self) -> list[Event]:
        return self.records(HISTORY)

    def digest_by_history(self) -> tuple[int, str]:
        """Return CAS and digest after replaying `history` from nothing."""
        return summary(fold(self.history()))

    def digest_by_statecontext(self, cas: int) -> tuple[int, str]:
        """Return CAS and digest of what `statecontext` holds; it is read at least up to `cas`."""
        batches = read_events(
            self.servers,
            self.topic(STATECONTEXT),
            cas_base=CAS_BASE,
            above_cas=0,
            at_least_cas=cas,
            bad=lambda message, reason: None,
        )
        return summary(fold([event for batch in batches for event in batch]))

    def publish(self, name: str, value: bytes, partition: int = 0) -> int:
        """Write a plain record to a topic, and return its offset."""
        return self.publish_all(name, [(value, partition)])[0]

    def publish_all(
        self, name: str, values: Sequence[tuple[bytes, int]], key: str = ""
    ) -> list[int]:
        """Write plain records, each to its partition, and return their offsets.

        `key` is what their keys begin with, for a topic that is compacted: no two have the same.
        """
        offsets = [-1] * len(values)

        def report(number: int) -> Callable[[KafkaError | None, Message], None]:
            def delivered(error: KafkaError | None, message: Message) -> None:
                assert error is None, error
                offsets[number] = message.offset() or 0

            return delivered

        producer = Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 2}
        )
        for number, (value, partition) in enumerate(values):
            producer.produce(
                self.topic(name),
                value,
                f"{key}{number}" if key else None,
                partition=partition,
                on_delivery=report(number),
            )
        assert producer.flush(DEADLINE_S) == 0
        return offsets


Keep = Callable[..., Cluster]
"""Starts the plant of a module with these options, or returns the one that it shares."""


def _unmount(folder: Path) -> None:
    if subprocess.run(["umount", folder], capture_output=True).returncode:
        subprocess.run(["umount", "-l", folder], check=True)


ORDERED = {"acks": "all", "max.in.flight.requests.per.connection": 1}
"""Settings of a producer that keeps the order of records, and may outlive a log that is cut off: an
idempotent one could write nothing more."""


def read_partition(servers: str, topic: str, partition: int = 0) -> list[Message]:
    """Return all committed records of a partition, up to its last stable offset.

    What leaves the topic while it is read is not among them.
    """
    reader = consumer(servers, "test", **{"enable.partition.eof": True})

    def assign() -> None:
        low, _ = reader.get_watermark_offsets(TopicPartition(topic, partition), 10.0)
        reader.assign([TopicPartition(topic, partition, low)])

    try:
        assign()
        found: list[Message] = []
        end_s = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < end_s, f"{topic} does not answer"
            for message in reader.consume(1_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                elif error.code() in GONE:
                    found.clear()
                    assign()
    finally:
        reader.close()


def value_of(message: Message) -> bytes:
    value: Any = message.value()
    return value or b""


def fold(events: Sequence[Event]) -> StateContext:
    """Return the state after `events`, which are in log order."""
    return states.evolve(states.EMPTY, [(event.mutation, event.cas) for event in events])


def summary(state: StateContext) -> tuple[int, str]:
    """Return CAS and digest as the API shows them; the digest is computed from nothing."""
    recomputed = states.recomputed_digest(state)
    assert recomputed == state.digest
    return state.cas, digests.text(recomputed)


def shown(state: Mapping[str, Any]) -> tuple[int, str]:
    """Return CAS and digest of an answer to `GET /v1/state`."""
    return state["cas"], state["digest"]


def replies(cluster: Cluster, *requests: str, count: int = 1) -> list[DdlReply]:
    """Return `count` replies to each request, in the order in which they are asked for."""

    def found() -> list[DdlReply] | None:
        seen = [r for r in cluster.records(DDL_REPLIES, DDL_PARTITIONS) if r.request in requests]
        if len(seen) < count * len(requests):
            return None
        return sorted(seen, key=lambda reply: (requests.index(reply.request), reply.at_ms))

    return wait_until(found, f"{count} replies to {requests}")


def an_index(name: str, bucket: str = "travel", **more: Any) -> dict[str, Any]:
    """Return the body of a CREATE."""
    return {"name": name, "bucket": bucket, "expressions": ["a"], **more}


def error_of(response: httpx.Response) -> str:
    """Return the code of an error, which must have the API's one shape."""
    error = response.json()["error"]
    assert set(error) == {"code", "message", "details"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    code: str = error["code"]
    return code


def in_parallel(*tasks: Callable[[], T]) -> list[T]:
    """Run the tasks in threads, and return their results in order; the first failure is raised."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]

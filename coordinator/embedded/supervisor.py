"""`indexctl run` and `indexctl reset`: a whole cluster on loopback, from one data folder.

Checks everything that can be checked before anything is started, so that a refusal is one line
and leaves nothing behind. What is heavy is imported when it is needed: the supervisor itself
stays small beside what it runs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.embedded.broker_config import copies_of
from coordinator.embedded.ports import LOOPBACK, is_free
from coordinator.runtime.errors import EmbeddedError

if TYPE_CHECKING:
    from coordinator.embedded.brokers import Brokers
    from coordinator.embedded.children import ChildSpec
    from coordinator.embedded.data_folder import ClusterFile
    from coordinator.runtime.files import FileLock

HTTP_PORT = 8600
BROKERS_MAX = 5
EXAMPLE = "examples/travel.sql"
TRAVEL, ORDERS = "travel", "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What `indexctl run` was asked for."""

    nodes: int = 3
    indexers: int = 3
    projectors: int = 2
    """Each streams one node of the key-value store; without any, there is no store."""
    example: str = TRAVEL
    """What is loaded, if it is not there: airports into the store, or orders into a topic."""
    timestamps: bool = True
    """Start the application on Spark that computes timestamps, if there are projectors."""
    spark_master: str = "local[2]"
    archive: bool = False
    """Start the job on Spark that archives the history in Delta Lake."""
    http_port: int = HTTP_PORT
    """Of node 1; node i has the i-th from there."""
    data_dir: Path = Path(".indexctl")
    bootstrap_servers: str | None = None
    """Of an existing Kafka; without, brokers of our own are started."""
    cluster: str = "default"
    durable: bool = True
    brokers: int = 1
    """How many of our own."""
    replication_factor: int | None = None
    """Of an existing Kafka's topics; our own brokers keep as many copies as they can."""
    start_timeout_s: float = 180.0
    log_capacity: int | None = None
    """Rows of the rolling log of transactions; fixed when the cluster is formed."""
    sync_partitions: int | None = None
    """Of the topics `sync`, `stream-begin` and `stream-end`; fixed when the cluster is formed."""
    request_window_ms: int | None = None
    """So long outcomes of requests are remembered; fixed when the cluster is formed."""
    history_retention: str | None = None
    """What is older, such as `30d`, leaves the topic `history` for the archive."""
    history_archive: Path | None = None
    """The folder of the archive; of a Kafka of our own, by default in the data folder."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients reach nodes, indexers and the store."""

    @property
    def copies(self) -> int:
        """Return the replication factor of all topics."""
        return self.replication_factor or copies_of(self.brokers)

    @property
    def has_timestamps(self) -> bool:
        """Tell whether timestamps are computed: without streams there are none."""
        return self.timestamps and self.projectors > 0

    @property
    def http_ports(self) -> range:
        """Return the nodes' ports, node 1's first."""
        return range(self.http_port, self.http_port + self.nodes)

    @property
    def kv_port(self) -> int:
        """Return the key-value store's port: it follows those of the nodes."""
        return self.http_ports.stop

    @property
    def kv_url(self) -> str:
        return f"http://{LOOPBACK}:{self.kv_port}"

    @property
    def ports(self) -> range:
        """Return all ports: those of the nodes, then that of the store, if there is one."""
        return range(self.http_port, self.kv_port + bool(self.projectors))


def run(options: RunOptions) -> int:
    """Run a cluster in the foreground until a signal; return the exit code.

    Raises what refuses the start or ends the run: EmbeddedError, or another exception with `code`
    and `message`. Nothing is left running in any case.
    """
    from coordinator.embedded.data_folder import locked

    began = time.monotonic()
    data_dir = options.data_dir.absolute()
    check_brokers(options)
    check_retention(options)
    try:
        with locked(data_dir) as lock:
            check_ports(options)
            return _run_locked(options, data_dir, lock, began)
    except KeyboardInterrupt:  # Before the first child; later ones are the supervisor's.
        return 130


def check_data_folder(data_dir: Path) -> None:
    """Refuse a folder that is not a cluster's: EmbeddedError `not_a_data_folder`."""
    from coordinator.embedded.data_folder import check_ours

    check_ours(data_dir)


def reset(data_dir: Path) -> None:
    """Forget the cluster in `data_dir`.

    Raises EmbeddedError: `not_a_data_folder`, `data_folder_in_use`, `data_folder_unusable`.
    """
    from coordinator.embedded.data_folder import reset as reset_folder

    reset_folder(data_dir)


def check_brokers(options: RunOptions) -> None:
    """Refuse what does not go together, or a number that cannot be: EmbeddedError `usage`."""
    if not 1 <= options.brokers <= BROKERS_MAX:
        raise EmbeddedError("usage", f"--brokers is 1 to {BROKERS_MAX}")
    if options.bootstrap_servers is not None:
        if options.brokers != 1:
            raise EmbeddedError(
                "usage",
                "--brokers starts Kafka, --bootstrap-servers uses a Kafka that runs: give one",
            )
        if not options.bootstrap_servers.strip():
            raise EmbeddedError("usage", "--bootstrap-servers is empty: HOST:PORT belongs there")
    elif options.copies != copies_of(options.brokers):
        raise EmbeddedError(
            "usage",
            f"--replication-factor goes with --bootstrap-servers: --brokers {options.brokers} "
            f"keeps {_number(copies_of(options.brokers), 'replica')} of each topic",
        )


def check_retention(options: RunOptions) -> None:
    """Refuse a retention that cannot be, or has no archive: EmbeddedError `usage`."""
    from argparse import ArgumentTypeError

    from coordinator.runtime.arguments import duration_ms

    if options.history_retention is None:
        return
    try:
        duration_ms(options.history_retention)
    except ArgumentTypeError as error:
        raise EmbeddedError("usage", f"--history-retention: {error}") from None
    if options.bootstrap_servers is not None and options.history_archive is None:
        raise EmbeddedError(
            "usage",
            "--history-retention on a Kafka that was given needs --history-archive FOLDER: what "
            "leaves that Kafka belongs beside it, not into the folder of this run",
        )


def archive_of(options: RunOptions, data_dir: Path) -> Path | None:
    """Return the folder of the archive of `history`, None if there is none.

    One that an earlier run has made is read on, also where nothing goes there any more.
    """
    from coordinator.embedded.data_folder import HISTORY_ARCHIVE

    if options.history_archive is not None:
        return options.history_archive.absolute()
    own = data_dir / HISTORY_ARCHIVE
    return own if options.history_retention is not None or own.is_dir() else None


def check_archive(options: RunOptions, data_dir: Path) -> None:
    """Refuse a retention whose archive takes no files: EmbeddedError."""
    from coordinator.kafka.archive_segments import ArchiveError
    from coordinator.kafka.history_archive import HistoryArchive

    folder = archive_of(options, data_dir)
    if folder is None or options.history_retention is None:
        return
    try:
        HistoryArchive(folder, options.cluster).check_writable()
    except ArchiveError as error:
        raise EmbeddedError(error.code, error.message) from None


def check_ports(options: RunOptions) -> None:
    """Refuse HTTP ports that do not exist or are taken: EmbeddedError `port_taken`, `usage`."""
    if options.ports.stop > 65_536 or options.http_port < 1:
        raise EmbeddedError(
            "usage",
            f"--http-port {options.http_port} does not fit: {len(options.ports)} ports in a row "
            "are needed, from 1 to 65535",
        )
    for port in options.ports:
        if not is_free(port):
            raise EmbeddedError(
                "port_taken",
                f"port {port} on {LOOPBACK} is taken, perhaps by another `indexctl run`: "
                "stop that one, or choose other ports with --http-port",
            )


def _run_locked(options: RunOptions, data_dir: Path, lock: FileLock, began: float) -> int:
    from coordinator.embedded.data_folder import ClusterFile, claim
    from coordinator.embedded.supervision import Plan, print_line, supervise

    external = options.bootstrap_servers
    mode = "external" if external else "embedded"
    wanted = ClusterFile(
        options.cluster, mode, options.nodes, external or "", brokers=options.brokers
    )
    kept = claim(data_dir, wanted)
    check_archive(options, data_dir)
    brokers = None if external else _prepared_brokers(data_dir, options.brokers)
    if options.has_timestamps or options.archive:
        _prepare_spark(data_dir)
    print_line(f"starting {_counted(options)} in {data_dir}")

    def prepare() -> Sequence[ChildSpec]:
        servers = external or _address_of(brokers)
        confirm_and_make_topics(options, data_dir, kept, servers)
        return child_specs(options, data_dir, servers, pass_fds=(lock.fileno(),))

    def summary(seconds: float) -> str:
        return summary_text(options, data_dir, external or _address_of(brokers), seconds)

    members = brokers.members if brokers is not None else ()
    plan = Plan(
        brokers=members,
        prepare=prepare,
        summary=summary,
        finish=lambda: load_example(options, external or _address_of(brokers)),
        start_timeout_s=options.start_timeout_s,
    )
    return supervise(plan, began=began)


def _prepared_brokers(data_dir: Path, count: int) -> Brokers:
    """Return brokers that have Java and its jars; downloads them, interruptibly, if need be."""
    from coordinator.embedded.brokers import Brokers
    from coordinator.embedded.data_folder import KAFKA

    brokers = Brokers(data_dir / KAFKA, count)
    brokers.prepare()
    return brokers


def _prepare_spark(data_dir: Path) -> None:
    """Have Spark's connectors, and no sign of an earlier life of the applications."""
    from coordinator.embedded.children import ARCHIVER, READY, TIMESTAMPS
    from streaming.spark.jars import spark_classpath

    spark_classpath()
    for name in (TIMESTAMPS, ARCHIVER):
        (data_dir / name / READY).unlink(missing_ok=True)


def _address_of(brokers: Brokers | None) -> str:
    assert brokers is not None
    return brokers.bootstrap_servers


def confirm_and_make_topics(
    options: RunOptions, data_dir: Path, kept: ClusterFile, servers: str
) -> None:
    """Check that Kafka is the folder's, then make and check the topics."""
    from coordinator.embedded.broker import read_cluster_id
    from coordinator.embedded.data_folder import confirm

    kafka_cluster_id = read_cluster_id(servers)
    confirm(data_dir, kept, kafka_cluster_id=kafka_cluster_id, bootstrap_servers=servers)
    make_topics(options, servers)


def make_topics(options: RunOptions, servers: str) -> None:
    """Make and check the topics; of a Kafka that was given, refuse a cluster that runs on it."""
    from coordinator.kafka.errors import KafkaRefusal
    from coordinator.kafka.topics import ensure_topics

    try:
        ensure_topics(
            servers,
            options.cluster,
            replication_factor=options.copies,
            durable=options.durable,
            one_machine=options.bootstrap_servers is None,
            sync_partitions=options.sync_partitions,
        )
    except KafkaRefusal as error:
        if error.code == "topic_mismatch" and "flush.messages" in error.message:
            message = "the topics were made with --not-durable: run it with that again"
            raise EmbeddedError(error.code, f"{message} ({error.message})") from error
        raise
    if options.bootstrap_servers is not None:
        _refuse_if_it_runs(servers, options.cluster)


def _refuse_if_it_runs(servers: str, cluster: str) -> None:
    """Refuse a cluster that has nodes elsewhere: EmbeddedError `cluster_in_use`.

    Both would have a node 1, and fence each other for ever.
    """
    from coordinator.kafka.heartbeats import live_nodes

    alive = live_nodes(servers, cluster)
    if alive:
        where = ", ".join(f"node {beat.node} at {beat.address}" for beat in alive)
        raise EmbeddedError(
            "cluster_in_use",
            f"cluster {cluster!r} runs already on this Kafka ({where}): "
            "stop it, or give this one another name with --cluster",
        )


def child_specs(
    options: RunOptions, data_dir: Path, bootstrap_servers: str, *, pass_fds: tuple[int, ...] = ()
) -> list[ChildSpec]:
    """Return the children of a run: the store, the nodes, the indexers with ids from 1, and the
    projectors with ids from 0, which are those of the store's nodes; timestamps and archive."""
    from coordinator.embedded import children
    from coordinator.embedded.data_folder import LOGS

    def spec(name: str, argv: tuple[str, ...], ready: children.Probe) -> ChildSpec:
        log = data_dir / LOGS / f"{name}.log"
        return children.ChildSpec(name, argv, log, ready, pass_fds)

    allowed = tuple(part for host in options.allowed_hosts for part in ("--allowed-host", host))
    cluster = options.cluster
    roster = range(1, options.nodes + 1)
    specs = []
    if options.projectors:
        argv = children.kv_argv(port=options.kv_port, data_dir=data_dir, nodes=options.projectors)
        specs.append(spec("kv", argv + allowed, children.kv_ready(options.kv_port)))
    for node, port in zip(roster, options.http_ports, strict=True):
        argv = children.node_argv(
            node,
            roster=roster,
            cluster=cluster,
            bootstrap_servers=bootstrap_servers,
            data_dir=data_dir,
            http_port=options.http_port,
            durable=options.durable,
            replication_factor=options.copies,
            log_capacity=options.log_capacity,
            sync_partitions=options.sync_partitions,
            request_window_ms=options.request_window_ms,
            history_archive=archive_of(options, data_dir),
            history_retention=options.history_retention,
        )
        specs.append(spec(f"node-{node}", argv + allowed, children.node_ready(port)))
    for indexer in range(1, options.indexers + 1):
        argv = children.indexer_argv(
            indexer, cluster=cluster, bootstrap_servers=bootstrap_servers, data_dir=data_dir
        )
        ready = children.indexer_ready(options.http_port, indexer)
        specs.append(spec(f"indexer-{indexer}", argv + allowed, ready))
    for projector in range(options.projectors):
        argv = children.projector_argv(
            projector,
            cluster=cluster,
            bootstrap_servers=bootstrap_servers,
            kv=options.kv_url,
        )
        ready = children.projector_ready(options.http_port, projector)
        specs.append(spec(f"projector-{projector}", argv, ready))
    if options.has_timestamps:
        argv = children.timestamps_argv(
            cluster=cluster,
            bootstrap_servers=bootstrap_servers,
            data_dir=data_dir,
            spark_master=options.spark_master,
        )
        # First: it takes longest to start.
        specs.insert(0, spec(children.TIMESTAMPS, argv, children.timestamps_ready(data_dir)))
    if options.archive:
        argv = children.archiver_argv(
            cluster=cluster, bootstrap_servers=bootstrap_servers, data_dir=data_dir
        )
        specs.append(spec(children.ARCHIVER, argv, children.archiver_ready(data_dir)))
    return specs


def load_example(options: RunOptions, bootstrap_servers: str) -> None:
    """Load the example; a cluster without it is a good one, too."""
    if options.projectors and options.example == TRAVEL:
        _load_airports(options)
    elif options.projectors and options.example == ORDERS:
        _load_orders(options, bootstrap_servers)


def _load_airports(options: RunOptions) -> None:
    """Load the airports into a cluster in which nobody has changed anything yet."""
    import httpx

    from coordinator.client.client import Client
    from coordinator.client.errors import CoordinatorError
    from coordinator.embedded import example
    from coordinator.embedded.supervision import print_line

    try:
        with Client(_urls(options)) as client:
            written = 0 if client.buckets()["cas"] else example.load(options.kv_url)
    except (httpx.HTTPError, CoordinatorError) as error:
        print_line(f"the airports were not loaded: {error}")
    else:
        if written:
            print_line(f"loaded {written:,} airports into the bucket {example.BUCKET!r}")


def _load_orders(options: RunOptions, bootstrap_servers: str) -> None:
    from confluent_kafka import KafkaException

    from coordinator.client.errors import CoordinatorError
    from coordinator.embedded import orders_example
    from coordinator.embedded.supervision import print_line

    try:
        written = orders_example.load(bootstrap_servers, _urls(options), options.copies)
    except (KafkaException, CoordinatorError) as error:
        print_line(f"the orders were not loaded: {error}")
    else:
        if written:
            name = orders_example.NAME
            print_line(f"wrote {written:,} orders to the topic {name!r}, which is a bucket now")


def _urls(options: RunOptions) -> list[str]:
    return [f"http://{LOOPBACK}:{port}" for port in options.http_ports]


def summary_text(
    options: RunOptions, data_dir: Path, bootstrap_servers: str, seconds: float
) -> str:
    """Return what is printed once all is ready: where everything is, and what to try."""
    urls = _urls(options)
    where = "started here" if options.bootstrap_servers is None else "existing"
    if options.brokers > 1:
        where += f", {options.copies} replicas of each topic"
    lines = [
        "",
        f"ready in {seconds:.1f} s: {_counted(options)}, cluster {options.cluster!r}",
        f"  nodes   {'  '.join(urls)}",
        f"  Kafka   {bootstrap_servers} ({where})",
        *([f"  store   {options.kv_url}"] if options.projectors else ()),
        f"  data    {data_dir} (logs in {data_dir / 'logs'})",
        "",
        "in another terminal (after `source .venv/bin/activate`), try:",
    ]
    if options.http_port != HTTP_PORT:
        lines.append(f"  export INDEXCTL_URL={shlex.quote(','.join(urls))}")
    if options.projectors and options.example == ORDERS:
        lines += [
            "  indexctl create 'CREATE INDEX by_city ON orders(country, city, total DESC)'",
            "  indexctl scan orders.by_city --prefix CH --prefix Bern",
            f"  python examples/orders.py {bootstrap_servers}",
        ]
    else:
        lines.append(f"  indexctl apply {EXAMPLE}")
    if options.projectors and options.example == TRAVEL:
        lines += [
            "  indexctl build --bucket travel --wait",
            "  indexctl scan travel.by_city --prefix '\"IS\"'",
        ]
    lines += ["  indexctl status", "  indexctl list"]
    return "\n".join([*lines, "", "Ctrl-C stops everything; the state is kept."])


def _counted(options: RunOptions) -> str:
    several = f" ({options.brokers} brokers)" if options.brokers > 1 else ""
    kafka = "" if options.bootstrap_servers else f"Kafka{several}, "
    parts = [_number(options.nodes, "node"), _number(options.indexers, "indexer")]
    if options.projectors:
        parts.append(_number(options.projectors, "projector"))
    if options.has_timestamps:
        parts.append("timestamps on Spark")
    if options.archive:
        parts.append("the archive")
    return f"{kafka}{', '.join(parts[:-1])} and {parts[-1]}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""The Kafka of a data folder, for a command that needs it while `indexctl run` may not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from coordinator.embedded.brokers import Brokers
from coordinator.embedded.data_folder import KAFKA, ClusterFile, claim, locked, read
from coordinator.embedded.supervisor import (
    RunOptions,
    check_brokers,
    confirm_and_make_topics,
    make_topics,
)
from coordinator.runtime.errors import EmbeddedError

Report = Callable[[str], None]


@contextmanager
def kafka_to_read(data_dir: Path, report: Report) -> Iterator[ClusterFile]:
    """Yield what the folder's cluster is, with the addresses of its Kafka, started if need be.

    Raises EmbeddedError: `not_a_data_folder`, and what a start is refused with.
    """
    kept = read(data_dir)
    if kept is None or not kept.kafka_cluster_id:
        raise EmbeddedError(
            "not_a_data_folder",
            f"{data_dir} is not the data folder of a cluster: name it with --data-dir, or give "
            "--bootstrap-servers",
        )
    if kept.mode != "embedded":
        yield kept
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(data_dir))
        except EmbeddedError as error:
            if error.code != "data_folder_in_use":
                raise
            yield kept  # `indexctl run` has its Kafka running.
            return
        claim(data_dir, kept)
        report("starting Kafka")
        brokers = stack.enter_context(Brokers(data_dir / KAFKA, kept.brokers))
        yield replace(kept, bootstrap_servers=brokers.bootstrap_servers)


@contextmanager
def kafka_to_fill(options: RunOptions, report: Report) -> Iterator[str]:
    """Yield the addresses of a Kafka on which the topics of a new cluster are.

    They are those of `--bootstrap-servers`, else of brokers that run in the data folder meanwhile.
    Raises what refuses `indexctl run`.
    """
    check_brokers(options)
    if options.bootstrap_servers is not None:
        make_topics(options, options.bootstrap_servers)
        yield options.bootstrap_servers
        return
    data_dir = options.data_dir.absolute()
    with locked(data_dir):
        wanted = ClusterFile(options.cluster, "embedded", options.nodes, brokers=options.brokers)
        kept = claim(data_dir, wanted)
        report("starting Kafka")
        with Brokers(data_dir / KAFKA, options.brokers) as brokers:
            confirm_and_make_topics(options, data_dir, kept, brokers.bootstrap_servers)
            yield brokers.bootstrap_servers

"""Several Kafka brokers on loopback that are one cluster: each a process with a folder of its own.

Every broker is a controller too, in one static quorum. No broker is ready before a majority runs,
so they are started together, and stopped together. One broker alone lives in the folder itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from coordinator.embedded import broker_config as config
from coordinator.embedded.broker import START_TIMEOUT_S, STATE, STOP_GRACE_S, Broker, new_cluster_id


def folders_of(data_dir: Path, count: int) -> list[Path]:
    """Return the folder of each of `count` brokers."""
    if count == 1:
        return [data_dir]
    return [data_dir / f"broker-{node}" for node in range(1, count + 1)]


def brokers_without_data(data_dir: Path, count: int) -> list[int]:
    """Return the node ids of those of `count` brokers whose folder holds nothing."""
    folders = enumerate(folders_of(data_dir, count), 1)
    return [node for node, folder in folders if not (folder / STATE).exists()]


class Brokers:
    """`count` brokers over `data_dir`; a context manager that starts and stops them."""

    def __init__(
        self,
        data_dir: Path,
        count: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mib_max: int = config.HEAP_MIB_MAX,
    ) -> None:
        kept = [Broker(folder).kept_cluster_id() for folder in folders_of(data_dir, count)]
        cluster_id = next(filter(None, kept), "") or new_cluster_id()
        self.members = tuple(
            Broker(
                folder,
                node=node,
                cluster_id=cluster_id,
                settings=settings,
                heap_mib_max=heap_mib_max,
                makes_archive=node == 1,
            )
            for node, folder in enumerate(folders_of(data_dir, count), 1)
        )

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of every broker, for clients; only after `start`."""
        return ",".join(broker.bootstrap_servers for broker in self.members)

    def prepare(self) -> None:
        """Find Java and the jars, and settle all ports: each broker is told those of the others.

        Raises EmbeddedError, as `Broker.settle` and `Broker.prepare`.
        """
        for broker in self.members:
            broker.prepare()
        if len(self.members) == 1:
            return
        taken: list[int] = []
        for broker in self.members:
            place = broker.settle(avoid=taken)
            taken += [place.port, place.controller_port]
        for broker in self.members:
            broker.join([one.place for one in self.members])

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> Brokers:
        """Start all, and return when each answers as a member. Raises as `Broker.start`."""
        self.prepare()
        with ThreadPoolExecutor(len(self.members)) as pool:
            starts = [pool.submit(one.start, timeout_s=timeout_s) for one in self.members]
        try:
            for start in starts:
                start.result()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop all cleanly, or by force after `grace_s`."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            for stop in [pool.submit(one.stop, grace_s=grace_s) for one in self.members]:
                stop.result()

    def kill(self) -> None:
        """Stop all at once (SIGKILL)."""
        for broker in self.members:
            broker.kill()

    def __enter__(self) -> Brokers:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

"""One broker of several, in the foreground: this process becomes its JVM, and logs to the console.

For containers, and for whatever else restarts a process that ends. Each broker is a controller as
well, in one static quorum: all are told the same places, and the same id of the cluster. Unlike
those of `indexctl run`, they may be on several hosts.

    python -m coordinator.embedded.broker_process --node 1 --cluster-id ID --data-dir DIR \\
        --place 1@kafka-1:9092:9093 --place 2@kafka-2:9092:9093 --place 3@kafka-3:9092:9093

Exit codes before it is a JVM: 1 if it cannot start now, 2 for a wrong command line, 78 if the
folder belongs to another cluster or another broker.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from coordinator.embedded import broker_config as config
from coordinator.runtime.arguments import within
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import write_text
from coordinator.runtime.jars import kafka_classpath
from coordinator.runtime.java import find_java

EX_UNUSABLE, EX_CONFIG = 1, 78
PLACE = re.compile(r"([0-9]{1,5})@([A-Za-z0-9._-]+):([0-9]{1,5}):([0-9]{1,5})")
CLUSTER_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}")


def main(argv: Sequence[str] | None = None) -> int:
    """Become the broker's JVM; return an exit code if that cannot be."""
    arguments = parser().parse_args(argv)
    places = {place.node: place for place in arguments.place}
    if len(places) < len(arguments.place) or arguments.node not in places:
        parser().error("--place: each broker once, and this one among them")
    folder: Path = arguments.data_dir.resolve()
    try:
        command = prepare(
            folder,
            places[arguments.node],
            arguments.place,
            cluster_id=arguments.cluster_id,
            heap_mib_max=arguments.heap_mb,
        )
        os.chdir(folder)
        os.execv(command[0], command)
    except EmbeddedError as error:
        print(f"broker: {error.message} [{error.code}]", file=sys.stderr, flush=True)
        return EX_CONFIG if error.code == "data_folder_mismatch" else EX_UNUSABLE


def prepare(
    folder: Path,
    place: config.Place,
    places: Sequence[config.Place],
    *,
    cluster_id: str,
    heap_mib_max: int = config.HEAP_MIB_MAX,
) -> list[str]:
    """Write the configuration, format the data the first time, and return the JVM's command.

    Raises EmbeddedError: `data_folder_mismatch`, `broker_failed`, and those of Java and the jars.
    """
    java, classpath = find_java(), kafka_classpath()
    folder.mkdir(parents=True, exist_ok=True)
    voters = places if len(places) > 1 else ()
    properties = config.server_properties(place, voters)
    write_text(folder / config.SERVER_PROPERTIES, config.properties_text(properties))
    write_text(folder / config.LOG4J_PROPERTIES, config.CONSOLE_LOG4J_TEXT)
    flags = [*config.jvm_flags(heap_mib_max=heap_mib_max), "-cp", classpath]
    command = [str(java.path), *flags]
    meta = folder / config.DATA / config.META
    if meta.exists():
        check_owner(meta.read_text(), cluster_id, place.node)
    else:
        _format(command, folder, cluster_id, alone=not voters)
    return [*command, "kafka.Kafka", config.SERVER_PROPERTIES]


def check_owner(meta: str, cluster_id: str, node: int) -> None:
    """Raise EmbeddedError `data_folder_mismatch` if Kafka's data are those of another broker."""
    kept = dict(line.split("=", 1) for line in meta.splitlines() if "=" in line)
    found = (kept.get("cluster.id"), kept.get("node.id"))
    if found != (cluster_id, str(node)):
        raise EmbeddedError(
            "data_folder_mismatch",
            f"the data are those of broker {found[1]} of the Kafka cluster {found[0]}, "
            f"not of broker {node} of {cluster_id}",
        )


def _format(java: Sequence[str], folder: Path, cluster_id: str, *, alone: bool) -> None:
    command = [*java, *config.format_arguments(cluster_id, alone=alone)]
    status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL).returncode
    if status != 0:
        raise EmbeddedError(
            "broker_failed", f"formatting the data folder failed with exit code {status}"
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m coordinator.embedded.broker_process",
        description="Run one Kafka broker, a controller too, in the foreground.",
    )
    found.add_argument("--node", type=within(1, 99_999), required=True, help="id of this broker")
    found.add_argument(
        "--cluster-id",
        type=_cluster_id,
        required=True,
        help="id of the Kafka cluster: 16 bytes in URL-safe base 64, the same for all brokers",
    )
    found.add_argument("--data-dir", type=Path, required=True, help="folder of this broker")
    found.add_argument(
        "--place",
        type=_place,
        action="append",
        required=True,
        metavar="NODE@HOST:PORT:CONTROLLER_PORT",
        help="where a broker is; once for each of them, this one included",
    )
    found.add_argument(
        "--heap-mb",
        type=within(64, 65_536),
        default=config.HEAP_MIB_MAX,
        help=f"heap of the JVM ({config.HEAP_MIB_MAX})",
    )
    return found


def _place(text: str) -> config.Place:
    found = PLACE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("NODE@HOST:PORT:CONTROLLER_PORT")
    node, host, port, controller_port = found.groups()
    return config.Place(int(node), int(port), int(controller_port), host)


def _cluster_id(text: str) -> str:
    if not CLUSTER_ID.fullmatch(text):
        raise argparse.ArgumentTypeError("22 letters, digits, '-' and '_'")
    return text


if __name__ == "__main__":
    sys.exit(main())

"""The data folder of `indexctl run`: whose it is, who uses it, and how it is forgotten.

`cluster.json` says which cluster the folder belongs to. A folder is never used for another one:
the nodes' state is only worth something beside the log that it was folded from. `run.lock` is held
by the supervisor and inherited by its children, so it lasts as long as any of them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path

from coordinator.embedded.brokers import brokers_without_data
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import FileLock, make_durably, write_json
from coordinator.runtime.private_files import keep_private

log = logging.getLogger("indexctl")

FORMAT = 1
LOCK_TIMEOUT_S = 1.0  # The children of a supervisor that was killed need a moment to die.
CLUSTER_FILE = "cluster.json"
LOCK_FILE = "run.lock"
KAFKA, LOGS = "kafka", "logs"
HISTORY_ARCHIVE = "history-archive"
OURS = (
    *(KAFKA, LOGS, "node-*", "indexer-*", "kv", "timestamps", "archive", "archiver"),
    HISTORY_ARCHIVE,
    *(CLUSTER_FILE, f".{CLUSTER_FILE}.*.tmp"),
)
WAY_OUT = "use another --data-dir, or delete this one with `indexctl reset --data-dir {}`"
WHOSE_KAFKA = {
    "embedded": "its own Kafka: leave out --bootstrap-servers",
    "external": "on a Kafka that was given: give --bootstrap-servers",
}


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What `cluster.json` says. `kafka_cluster_id` is empty until Kafka has told it."""

    cluster: str
    mode: str
    """`embedded` or `external`."""
    nodes: int
    """The roster is 1 to this."""
    bootstrap_servers: str = ""
    kafka_cluster_id: str = ""
    brokers: int = 1
    """How many there are of our own; 1 too where the mode is `external`."""


@contextmanager
def locked(data_dir: Path) -> Iterator[FileLock]:
    """Hold the folder's lock, making the folder if it is missing; only its owner can look into it.

    If nothing came into the folder meanwhile, what was made here is gone in the end.
    Raises EmbeddedError: `data_folder_in_use`, `data_folder_unusable`.
    """
    made = list(takewhile(lambda folder: not folder.exists(), (data_dir, *data_dir.parents)))
    try:
        if trouble := keep_private(data_dir if _is_for_us(data_dir) else None):
            log.warning("%s", trouble)
        make_durably(data_dir)
        lock = FileLock(data_dir / LOCK_FILE)
        held = lock.acquire(timeout_s=LOCK_TIMEOUT_S)
    except OSError as error:
        raise EmbeddedError(
            "data_folder_unusable",
            f"the data folder {data_dir} cannot be used ({error.strerror}): "
            "choose another with --data-dir",
        ) from error
    if not held:
        raise EmbeddedError(
            "data_folder_in_use",
            f"another `indexctl run` uses {data_dir}: stop it first, or use another --data-dir",
        )
    try:
        yield lock
    finally:
        _clear(data_dir, made)
        lock.release()


def _clear(data_dir: Path, made: Iterable[Path]) -> None:
    """Delete our lock where it is all that the folder has, and those of the folders made for it."""
    with suppress(OSError):  # Somebody uses them, or may change nothing there: then they stay.
        if os.listdir(data_dir) == [LOCK_FILE]:
            (data_dir / LOCK_FILE).unlink()
            for folder in made:
                folder.rmdir()


def _is_for_us(data_dir: Path) -> bool:
    """Tell whether a folder has a cluster in it, or nothing but our lock."""
    if not data_dir.is_dir():
        return False
    held = set(os.listdir(data_dir))
    return CLUSTER_FILE in held or held <= {LOCK_FILE}


def claim(data_dir: Path, wanted: ClusterFile) -> ClusterFile:
    """Return what the folder is, having made it `wanted` if it was nobody's.

    It is nobody's until Kafka has confirmed it once: an attempt that never got that far must not
    bind it.
    `wanted.kafka_cluster_id` is not looked at: Kafka does not run yet (see `confirm`).
    Raises EmbeddedError: `data_folder_mismatch`, `roster_mismatch`, `brokers_mismatch`,
    `data_folder_unusable`.
    """
    kept = read(data_dir)
    if kept is None or not kept.kafka_cluster_id:
        write_json(data_dir / CLUSTER_FILE, {"format": FORMAT, **asdict(wanted)})
        return wanted
    if kept.cluster != wanted.cluster:
        raise _mismatch(data_dir, f"the cluster {kept.cluster!r}, not {wanted.cluster!r}")
    if kept.mode != wanted.mode:
        whose = WHOSE_KAFKA.get(kept.mode, kept.mode)
        raise EmbeddedError(
            "data_folder_mismatch",
            f"{data_dir} belongs to a cluster that runs {whose}, or {WAY_OUT.format(data_dir)}",
        )
    if kept.nodes != wanted.nodes:
        raise EmbeddedError(
            "roster_mismatch",
            f"{data_dir} belongs to a cluster of {kept.nodes} nodes, not {wanted.nodes}: "
            f"run it with --nodes {kept.nodes}, or " + WAY_OUT.format(data_dir),
        )
    if kept.brokers != wanted.brokers:
        raise EmbeddedError(
            "brokers_mismatch",
            f"{data_dir} belongs to a cluster with --brokers {kept.brokers}, not "
            f"{wanted.brokers}: run it with --brokers {kept.brokers}, or "
            + WAY_OUT.format(data_dir),
        )
    if kept.mode == "embedded":
        _check_data(data_dir, kept.brokers)
    return kept


def _check_data(data_dir: Path, brokers: int) -> None:
    """Refuse brokers whose data is gone: an empty one could be taken for one that is up to date."""
    lost = brokers_without_data(data_dir / KAFKA, brokers)
    if len(lost) == brokers:
        raise _mismatch(data_dir, "a Kafka cluster whose data is gone")
    if lost:
        names = ", ".join(f"{KAFKA}/broker-{node}" for node in lost)
        raise _mismatch(data_dir, f"a Kafka cluster of which {names} is gone")


def confirm(
    data_dir: Path, kept: ClusterFile, *, kafka_cluster_id: str, bootstrap_servers: str
) -> None:
    """Check that Kafka is the one that the folder's state came from, and note its address.

    Raises EmbeddedError: `data_folder_mismatch`.
    """
    if kept.kafka_cluster_id and kept.kafka_cluster_id != kafka_cluster_id:
        raise _mismatch(
            data_dir, f"the Kafka cluster {kept.kafka_cluster_id}, not {kafka_cluster_id}"
        )
    now = replace(kept, kafka_cluster_id=kafka_cluster_id, bootstrap_servers=bootstrap_servers)
    if now != kept:
        write_json(data_dir / CLUSTER_FILE, {"format": FORMAT, **asdict(now)})


def read(data_dir: Path) -> ClusterFile | None:
    """Return what `cluster.json` says, or None if there is none.

    Raises EmbeddedError `data_folder_unusable` if it cannot be understood.
    """
    path = data_dir / CLUSTER_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != FORMAT:
            raise ValueError("unknown format")
        return ClusterFile(**fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EmbeddedError(
            "data_folder_unusable", f"{path} cannot be read ({error}): " + WAY_OUT.format(data_dir)
        ) from error


def check_ours(data_dir: Path) -> None:
    """Refuse a folder that has nothing of a cluster: EmbeddedError `not_a_data_folder`."""
    only_a_lock = data_dir.is_dir() and os.listdir(data_dir) == [LOCK_FILE]
    if not (data_dir / CLUSTER_FILE).is_file() and not only_a_lock:
        raise EmbeddedError(
            "not_a_data_folder",
            f"{data_dir} is not the data folder of a cluster (it has no {CLUSTER_FILE})",
        )


def reset(data_dir: Path) -> None:
    """Delete a cluster's state: only what is ours, and the folder itself if nothing is left.

    Raises EmbeddedError: `not_a_data_folder`, `data_folder_in_use`, `data_folder_unusable`.
    """
    check_ours(data_dir)
    with locked(data_dir):
        # The mark that makes the folder ours goes last: an interrupted reset can be repeated.
        for pattern in OURS:
            for path in data_dir.glob(pattern):
                _remove(path)
        (data_dir / LOCK_FILE).unlink()
        if not os.listdir(data_dir):
            data_dir.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _mismatch(data_dir: Path, belongs_to: str) -> EmbeddedError:
    return EmbeddedError(
        "data_folder_mismatch",
        f"{data_dir} belongs to {belongs_to}: " + WAY_OUT.format(data_dir),
    )

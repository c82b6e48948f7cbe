"""`indexctl backup` and `indexctl restore`: a cluster in one file, and a cluster from one."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from coordinator.cli.extras import DISTRIBUTION, require
from coordinator.cli.kafka_options import kafka_at
from coordinator.cli.moments import moment_utc
from coordinator.cli.output import CommandError, plain, print_fields
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from coordinator.backup.contents import Backup
    from coordinator.backup.restoring import Restored

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]
Servers = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,…", help="The Kafka of the cluster, instead of --data-dir."),
]
KafkaConf = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --bootstrap-servers: how to log in there."),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The name of the cluster: that of the folder, or `default`."),
]
HALF = ".part"


def add_to(root: typer.Typer, data_dir: Path) -> None:
    """Add them to the root command; `data_dir` is where `run` has its cluster."""
    folder = typer.Option("--data-dir", help="The data folder of `indexctl run`.")

    @command(root, "backup", local=True, no_args_is_help=True)
    def backup(
        session: Session,
        file: File,
        data_dir: Annotated[Path, folder] = data_dir,
        bootstrap_servers: Servers = None,
        kafka_conf: KafkaConf = None,
        cluster: Cluster = None,
        history_after: Annotated[
            int,
            typer.Option(
                metavar="CAS", min=0, help="Only the changes above this CAS; 0: all of the history."
            ),
        ] = 0,
        history_archive: Annotated[
            Path | None,
            typer.Option(
                metavar="FOLDER",
                help="The archive of `indexctl run --history-retention` (that of the data folder).",
            ),
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    ) -> None:
        """Write indexes, settings and history of a cluster to one file.

        The cluster may go on running: the backup is its state at one CAS (version). It contains no
        documents and no entries of indexes; a restored cluster builds its indexes again.

        indexctl backup monday.backup

        indexctl restore monday.backup --check
        """
        require("server")
        archive = history_archive
        if archive is None and bootstrap_servers is None:
            archive = _own_archive(data_dir)
        servers = kafka_at(bootstrap_servers, kafka_conf)
        _backup(session, file, data_dir, servers, cluster, history_after, archive, force)

    @command(root, "restore", local=True, no_args_is_help=True)
    def restore(
        session: Session,
        file: File,
        data_dir: Annotated[Path, folder] = data_dir,
        bootstrap_servers: Servers = None,
        kafka_conf: KafkaConf = None,
        cluster: Cluster = None,
        nodes: Annotated[
            int | None,
            typer.Option(min=1, max=100, help="Nodes of the new cluster (as in the backup)."),
        ] = None,
        minimum: Annotated[
            int | None,
            typer.Option(min=1, help="Nodes that must hold a change to commit it (a majority)."),
        ] = None,
        brokers: Annotated[int, typer.Option(min=1, max=5, help="Kafka brokers to start.")] = 1,
        replication_factor: Annotated[
            int | None,
            typer.Option(min=1, help="With --bootstrap-servers: replicas of new topics (1)."),
        ] = None,
        not_durable: Annotated[
            bool, typer.Option("--not-durable", help="As in `indexctl run`.")
        ] = False,
        check: Annotated[
            bool, typer.Option("--check", help="Only check FILE, and show what it contains.")
        ] = False,
    ) -> None:
        """Make a cluster from the file of a backup, before its first start.

        Reads and checks the whole file before it writes anything. Then start the cluster with
        `indexctl run`. The backup has no entries of indexes: the cluster builds again those that
        were built. Deferred indexes stay deferred. Documents are not in the backup.

        indexctl restore monday.backup --data-dir restored

        indexctl run --data-dir restored
        """
        require("server")
        with _opened(file) as opened:
            found = _checked(session, opened)
            if check:
                _tell(session, {"checked": _summary(file, found)})
                return
            roster = tuple(range(1, (nodes or len(found.authority.roster)) + 1))
            if minimum is not None and minimum > len(roster):
                text = f"--minimum {minimum} does not fit {len(roster)} nodes"
                raise CommandError("usage", text)
            from coordinator.embedded.supervisor import RunOptions

            options = RunOptions(
                nodes=len(roster),
                data_dir=data_dir,
                bootstrap_servers=kafka_at(bootstrap_servers, kafka_conf),
                cluster=_name(cluster or "default"),
                brokers=brokers,
                replication_factor=replication_factor,
                durable=not not_durable,
            )
            least = minimum or len(roster) // 2 + 1
            _restore(session, file, opened, found, options, roster, least)


def _backup(
    session: Session,
    file: Path,
    data_dir: Path,
    servers: str | None,
    cluster: str | None,
    after: int,
    archive: Path | None,
    force: bool,
) -> None:
    from coordinator.backup.reading import write_backup
    from coordinator.core.model.types import Cas

    _refuse_existing(file, force=force)
    began_s = time.monotonic()
    with (
        _source(session, data_dir, servers, cluster) as (where, name),
        written(file, force=force) as out,
    ):
        version = ""
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(DISTRIBUTION)
        progress = _progress_reporter(session, "read")
        manifest, changes, size = write_backup(
            out, where, name, after=Cas(after), version=version, progress=progress, archive=archive
        )
    body = {
        "file": str(file),
        "cluster": manifest.cluster,
        "cas": manifest.cas,
        "digest": manifest.digest,
        "history_after": manifest.history_after,
        "changes": changes,
        "bytes": size,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    _tell(session, {"backup": body})


def _restore(
    session: Session,
    file: Path,
    opened: BinaryIO,
    found: "Backup",
    options: Any,
    roster: tuple[int, ...],
    minimum: int,
) -> None:
    from coordinator.backup.restoring import Target, restore_backup
    from coordinator.embedded.kafka_of_folder import kafka_to_fill
    from coordinator.kafka.topics import sync_partitions

    began_s = time.monotonic()
    with kafka_to_fill(options, _reporter(session)) as servers:
        target = Target(
            servers=servers,
            cluster=options.cluster,
            roster=roster,
            minimum=minimum,
            principal=os.environ.get("INDEXCTL_PRINCIPAL", ""),
            sync_partitions=sync_partitions(servers, options.cluster),
        )
        made = restore_backup(opened, found, target, _progress_reporter(session, "wrote"))
    _tell(session, {"restored": _summary(file, found) | _made(made, target, began_s)})
    if not session.json:
        where = (
            f"--bootstrap-servers {options.bootstrap_servers} --cluster {options.cluster}"
            if options.bootstrap_servers
            else f"--data-dir {options.data_dir}"
        )
        typer.echo(f"start it: indexctl run --nodes {len(roster)} {where}")


def _summary(file: Path, found: "Backup") -> dict[str, Any]:
    manifest = found.manifest
    kinds = {kind: len(held) for kind, held in sorted(found.state.kinds.items())}
    return {
        "file": str(file),
        "cluster": manifest.cluster,
        "cas": manifest.cas,
        "digest": manifest.digest,
        "history_after": found.base.cas,
        "changes": found.changes,
        "indexes": kinds.get("index", 0),
        "settings": kinds.get("config", 0),
        "made_at_ms": manifest.made_at_ms,
        "version": manifest.version,
        "bytes": found.size,
    }


def _made(made: "Restored", target: Any, began_s: float) -> dict[str, Any]:
    return {
        "cluster": target.cluster,
        "cluster_id": made.authority.cluster_id,
        "roster": list(target.roster),
        "minimum": target.minimum,
        "restored_cas": made.state.cas,
        "next_cas": made.next_cas,
        "seconds": round(time.monotonic() - began_s, 1),
    }


# -- where from, and where to --------------------------------------------------------------------


@contextmanager
def _source(
    session: Session, data_dir: Path, servers: str | None, cluster: str | None
) -> Iterator[tuple[str, str]]:
    """Yield the addresses of Kafka, and the name of the cluster."""
    if servers:
        yield servers, _name(cluster or "default")
        return
    from coordinator.embedded.kafka_of_folder import kafka_to_read

    with kafka_to_read(data_dir, _reporter(session)) as kept:
        yield kept.bootstrap_servers, _name(cluster or kept.cluster)


def _own_archive(data_dir: Path) -> Path | None:
    from coordinator.embedded.data_folder import HISTORY_ARCHIVE

    folder = data_dir / HISTORY_ARCHIVE
    return folder if folder.is_dir() else None


def _name(text: str) -> str:
    from argparse import ArgumentTypeError

    from coordinator.runtime.arguments import cluster

    try:
        return cluster(text)
    except ArgumentTypeError as error:
        raise CommandError("usage", f"--cluster {text}: {error}") from None


def _refuse_existing(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise CommandError("exists", f"{file} exists: name another file, or give --force")


@contextmanager
def written(file: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `file` once it is whole; only its owner can read it.

    Two at once would write into one another: the second ends with CommandError `backup_under_way`.
    """
    from coordinator.runtime.files import FileLock

    half = file.with_name(file.name + HALF)
    lock = FileLock(half)
    try:
        if not lock.acquire():
            text = f"another backup is being written to {file}: wait for it, or name another file"
            raise CommandError("backup_under_way", text)
        try:
            # One that has just ended may have been faster than the look before.
            _refuse_existing(file, force=force)
            os.fchmod(lock.fileno(), 0o600)
            with open(os.dup(lock.fileno()), "wb") as out:
                out.truncate()
                yield out
                out.flush()
                os.fsync(out.fileno())
            os.replace(half, file)
        except BaseException:
            with suppress(OSError):
                half.unlink()
            raise
        finally:
            lock.release()
    except OSError as error:
        text = f"{file} cannot be written ({error.strerror})"
        raise CommandError("backup_failed", text) from error


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with file.open("rb") as opened:
            yield opened
    except FileNotFoundError as error:
        raise CommandError("not_found", f"there is no file {file}") from error
    except OSError as error:
        raise CommandError("backup_unreadable", f"{file}: {error.strerror}") from error


def _checked(session: Session, opened: BinaryIO) -> "Backup":
    from coordinator.backup.contents import read_backup

    return read_backup(opened)


# -- the progress --------------------------------------------------------------------------------


def _progress_reporter(session: Session, verb: str) -> Callable[[int], None]:
    """Return what tells the progress: JSON lines, or a line on a terminal."""

    def report(count: int) -> None:
        if session.json:
            typer.echo(json.dumps({"progress": {"changes": count}}))
        elif sys.stderr.isatty():
            typer.echo(f"{verb} {count:,} changes", err=True)

    return report


def _reporter(session: Session) -> Callable[[str], None]:
    def report(text: str) -> None:
        if not session.json:
            typer.echo(plain(text), err=True)

    return report


def _tell(session: Session, body: dict[str, dict[str, Any]]) -> None:
    if session.json:
        typer.echo(json.dumps(body))
        return
    ((_, fields),) = body.items()
    print_fields(_field(name, value) for name, value in fields.items())


def _field(name: str, value: Any) -> tuple[str, Any]:
    """Return a field as people read it: a time is no number to them."""
    if name == "made_at_ms":
        return "made at", moment_utc(value)
    return name.replace("_", " "), _shown(value)


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "0" if value == 0 else value

"""`indexctl load` and `indexctl mutate`: documents into a bucket, and traffic on them."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from coordinator.cli import kv
from coordinator.cli.extras import require
from coordinator.cli.kv import BucketName, KvUrl
from coordinator.cli.output import CommandError, Exit, plain, print_json
from coordinator.cli.session import TIMEOUT_S, Session, command

if TYPE_CHECKING:
    from coordinator.cli.mutate import Report

AIRPORTS = "airports"
PEOPLE = "people:"
BLOCK_BYTES = 64 * 1024
ERRORS_MAX = 10
RATE_MAX = 1_000_000.0


def add_to(root: typer.Typer) -> None:
    """Add them to the root command, and `indexctl kv`."""
    command(root, "load")(load)
    command(root, "mutate")(mutate)
    root.add_typer(kv.app, name="kv")


# Documents in.


def load(
    session: Session,
    bucket: BucketName,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-|airports|people:N",
            help="A file or standard input with lines of JSON; the airports of the world; or N "
            "generated people.",
        ),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help='Lines are documents, with the id in this field (default: {"id": …, "doc": …}).',
        ),
    ] = None,
    vbuckets: Annotated[
        int | None, typer.Option(min=1, help="Vbuckets of a new bucket, a power of two (1024).")
    ] = None,
    kv_url: KvUrl = None,
) -> None:
    """Load documents into a bucket; makes the bucket if there is none.

    Loads every valid line. Exits with 1 if a line failed.
    """
    from coordinator.cli.kv_client import connect_to_write

    lines = _Lines(source, key)
    with connect_to_write(session, kv_url, bucket) as store:
        store.put("buckets", bucket, body={"vbuckets": vbuckets})
        began = time.monotonic()
        with _progress(session, lines) as blocks:
            answer = store.load(bucket, blocks)
    seconds = max(time.monotonic() - began, 1e-6)
    errors = sorted([*answer["errors"], *lines.errors], key=lambda error: int(error["line"]))
    found = {
        "bucket": bucket,
        **answer,
        "failed": answer["failed"] + lines.failed,
        "errors": errors[:ERRORS_MAX],
        "seconds": round(seconds, 3),
        "per_s": round((answer["written"] + answer["deleted"]) / seconds),
    }
    if session.json:
        print_json(found)
    else:
        _show_loaded(found, hint=key is None and not answer["written"])
    if found["failed"]:
        raise typer.Exit(Exit.FAILED)


def _show_loaded(found: dict[str, Any], *, hint: bool) -> None:
    for error in found["errors"]:
        typer.echo(plain(f"line {error['line']}: {error['message']}"), err=True)
    if found["failed"] > len(found["errors"]):
        typer.echo(f"… and {found['failed'] - len(found['errors'])} more", err=True)
    if found["failed"] and hint:
        typer.echo("if the lines are the documents themselves, give --key FIELD", err=True)
    deleted = f", deleted {found['deleted']:,}" if found["deleted"] else ""
    failed = f", {found['failed']:,} failed" if found["failed"] else ""
    pace = f"{found['seconds']:.1f} s, {found['per_s']:,} a second"
    typer.echo(plain(f"{found['bucket']}: wrote {found['written']:,}{deleted}{failed} ({pace})"))


class _Lines:
    """The lines of a source, in the shape that the store takes; remembers those that are wrong."""

    def __init__(self, source: str, key: str | None) -> None:
        """CommandError `usage`: there is no such source."""
        self.failed = 0
        self.errors: list[dict[str, Any]] = []
        self._key = key
        self._file: BinaryIO | None = None
        self._made: Iterator[Any] = iter(())
        self.total: int | None = None
        """Bytes of a file, or documents."""
        if source == AIRPORTS:
            require("server")
            from projector_sim.kv.airports import airports

            self._made = airports()
        elif source.startswith(PEOPLE):
            from projector_sim.kv.generator import Generator

            self.total = _count(source.removeprefix(PEOPLE))
            self._made = Generator(seed=1, documents=self.total).load()
        else:
            self._file = _opened(source)
            if source != "-":
                self.total = Path(source).stat().st_size

    def blocks(self, advance: Callable[[int], None]) -> Iterator[bytes]:
        """Yield lines, many at a time; `advance` is told how much of the total they are."""
        block: list[bytes] = []
        size = progress = 0
        for line, part in self._lines():
            block.append(line)
            size += len(line)
            progress += part
            if size >= BLOCK_BYTES:
                yield b"".join(block)
                advance(progress)
                block, size, progress = [], 0, 0
        yield b"".join(block)
        advance(progress)

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        for change in self._made:
            yield b'{"id":"%b","doc":%b}\n' % (change.key, change.value), 1
        if self._file is not None:
            with self._file as file:
                for number, line in enumerate(file, 1):
                    yield self._line(number, line), len(line)

    def _line(self, number: int, line: bytes) -> bytes:
        """Return a line for the store; an empty one, so that its numbers stay, for a wrong one."""
        if self._key is None or line.isspace():
            return line
        try:
            document = json.loads(line)
            name = document[self._key]
            if isinstance(name, bool) or not isinstance(name, str | int):
                raise ValueError(f"{self._key} is neither a string nor a whole number")
        except (KeyError, TypeError, IndexError):
            return self._fail(number, "invalid_request", f"there is no field {self._key}")
        except json.JSONDecodeError as error:
            return self._fail(number, "invalid_json", f"no JSON: {error.msg}")
        except ValueError as error:
            return self._fail(number, "invalid_request", f"{error}")
        except RecursionError:
            return self._fail(number, "too_deep", "nested too deeply")
        return b'{"id":%b,"doc":%b}\n' % (json.dumps(str(name)).encode(), line.strip())

    def _fail(self, number: int, code: str, message: str) -> bytes:
        self.failed += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append({"line": number, "code": code, "message": message})
        return b"\n"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise CommandError(
            "usage", f"{PEOPLE}{text}: a number belongs after the colon, as in {PEOPLE}1000"
        )
    return int(text)


def _opened(source: str) -> BinaryIO:
    try:
        return sys.stdin.buffer if source == "-" else open(source, "rb")
    except OSError as error:
        raise CommandError("usage", f"cannot read {source}: {error.strerror}") from None


class _progress:  # noqa: N801
    """A bar on a terminal, nothing elsewhere; as a context it is the blocks to send."""

    def __init__(self, session: Session, lines: _Lines) -> None:
        self._lines = lines
        self._bar: Any = None
        if sys.stderr.isatty() and not session.json:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeRemainingColumn as Remaining

            columns = (TextColumn("loading"), BarColumn(), MofNCompleteColumn(), Remaining())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Iterator[bytes]:
        if self._bar is None:
            return self._lines.blocks(lambda _: None)
        self._bar.start()
        task = self._bar.add_task("", total=self._lines.total)
        return self._lines.blocks(lambda part: self._bar.advance(task, part))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


# Traffic.


def mutate(
    session: Session,
    bucket: BucketName,
    rate: Annotated[float, typer.Option(min=0.01, max=RATE_MAX, help="Changes a second.")] = 100.0,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long (default: until Ctrl-C).")
    ] = None,
    skew: Annotated[
        float,
        typer.Option(
            min=0.0, max=5.0, help="Exponent of Zipf's law; 0: all documents equally often."
        ),
    ] = 1.1,
    updates: Annotated[float, typer.Option(min=0.0, help="Share of updates.")] = 0.8,
    deletes: Annotated[float, typer.Option(min=0.0, help="Share of deletions.")] = 0.1,
    inserts: Annotated[float, typer.Option(min=0.0, help="Share of new documents.")] = 0.1,
    seed: Annotated[
        int | None, typer.Option(help="The same seed makes the same changes (default: random).")
    ] = None,
    kv_url: KvUrl = None,
) -> None:
    """Update, delete and insert documents of a bucket, at a steady rate."""
    from coordinator.cli import mutate as traffic
    from coordinator.cli.kv_client import connect_to_write

    mix = traffic.Mix(updates, deletes, inserts)
    with connect_to_write(session, kv_url, bucket) as store:
        documents = traffic.sample(store, bucket)
        chosen = str(seed if seed is not None else time.time_ns() // 1_000_000)
        changes = traffic.Traffic(documents, mix, skew=skew, seed=chosen)
        show, stop = _rate_line(session, rate)
        try:
            report = traffic.run(
                store,
                bucket,
                changes,
                rate=rate,
                seconds=seconds,
                patience_s=session.timeout_s or TIMEOUT_S,
                show=show,
            )
        finally:
            stop()
    if session.json:
        print_json({"bucket": bucket, "rate": rate, "seed": chosen, **report.as_json()})
    else:
        done = ", ".join(f"{count:,} {what}" for what, count in report.done.items())
        typer.echo(plain(f"{bucket}: {done} in {report.seconds:.1f} s, {report.per_s:,} a second"))
    if report.failed:
        raise typer.Exit(Exit.FAILED)


def _rate_line(session: Session, rate: float) -> tuple[Callable[["Report"], None], Any]:
    """Return what shows a report on a terminal, and what ends that."""
    if session.json or not sys.stderr.isatty():
        return lambda report: None, lambda: None
    from rich.console import Console

    status = Console(stderr=True).status(f"{rate:g} changes a second")
    status.start()

    def show(report: "Report") -> None:
        away = f", {report.retried} times sent again" if report.retried else ""
        status.update(
            f"{report.per_s:,} of {rate:g} changes a second, {report.changes:,} in all{away}"
        )

    return show, status.stop

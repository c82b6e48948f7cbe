"""Sets of jars: resolved by jgo, pinned by checksum, kept in a per-user cache.

Each set was resolved once and is pinned (coordinate, size, sha256): Kafka's in `kafka_jars.py`.
So a start needs neither POM files nor trust in a mirror: whatever a repository serves is checked
against the pin. `python -m coordinator.runtime.jars` resolves Kafka's set again and prints the
pins, for a change of version.

Invariants: a jar appears in the final folder only by a rename of a complete, verified file; a warm
start hashes every jar again (some 40 MB, well under a second), needs no network and takes no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import cache_dir, waiting_lock
from coordinator.runtime.kafka_jars import PINNED, ROOTS, VERSION

DOWNLOADS_MAX = 8
HTTP_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned artifact: its Maven coordinate, size and checksum."""

    coordinate: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """Return `artifact-version.jar`, which is unique within the set."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together: what they are called, and the folder of the cache for them."""

    title: str
    folder: str
    jars: tuple[Jar, ...]


def parse_pins(text: str) -> tuple[Jar, ...]:
    """Return the jars of a pin list: coordinate, size in bytes and sha256, by white space."""
    words = text.split()
    assert len(words) % 3 == 0, "each pin has three words"
    triples = zip(words[::3], words[1::3], words[2::3], strict=True)
    return tuple(Jar(coordinate, int(size), sha256) for coordinate, size, sha256 in triples)


def kafka_classpath(*, jars: tuple[Jar, ...] | None = None, cache: Path | None = None) -> str:
    """Return the classpath of a Kafka broker, downloading what the cache lacks.

    Raises EmbeddedError: `jars_unavailable`, `jars_corrupt`, `cache_unusable`.
    """
    wanted = parse_pins(PINNED) if jars is None else jars
    return classpath(JarSet(f"Apache Kafka {VERSION}", f"kafka-{VERSION}", wanted), cache=cache)


def classpath(wanted: JarSet, *, cache: Path | None = None) -> str:
    """Return the classpath of a set of jars, downloading what the cache lacks.

    Raises EmbeddedError: `jars_unavailable`, `jars_corrupt`, `cache_unusable`.
    """
    folder = (cache or cache_dir()) / "jars" / wanted.folder
    if _missing(folder, wanted.jars):
        _download(folder, wanted)
    return os.pathsep.join(str(folder / jar.filename) for jar in wanted.jars)


def _missing(folder: Path, jars: Iterable[Jar]) -> list[Jar]:
    return [jar for jar in jars if not _is_intact(folder / jar.filename, jar)]


def _is_intact(path: Path, jar: Jar) -> bool:
    """Return whether the file at `path` is the pinned one, by size and then by checksum."""
    try:
        if path.stat().st_size != jar.size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _download(folder: Path, wanted: JarSet) -> None:
    """Bring the missing jars into `folder`, one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with waiting_lock(folder / ".lock"):
            # Another process may have brought them meanwhile.
            missing = _missing(folder, wanted.jars)
            if missing:
                _download_missing(folder, missing, wanted.title)
    except OSError as error:
        raise EmbeddedError(
            "cache_unusable",
            f"the jar cache {folder} cannot be written: {error.strerror or error}; "
            "set INDEXCTL_CACHE to a folder that can",
        ) from error


def _download_missing(folder: Path, jars: list[Jar], title: str) -> None:
    staging = folder / ".staging"
    with _progress(title, len(jars), sum(jar.size for jar in jars)) as progress:
        context = _maven_context(staging, progress.on_bytes)

        def fetch(jar: Jar) -> None:
            _fetch(context, jar, folder)
            progress.on_jar()

        with ThreadPoolExecutor(DOWNLOADS_MAX) as pool:
            try:
                for _ in pool.map(fetch, jars):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    shutil.rmtree(staging, ignore_errors=True)


def _maven_context(repo_cache: Path, on_bytes: Callable[[int], None]) -> Any:
    """Return jgo's context: pure Python, the user's own repositories if jgo.conf names any."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext, PythonResolver

    @contextlib.contextmanager
    def on_file(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield on_bytes

    repositories = GlobalSettings.load().repositories or {"central": MAVEN_CENTRAL_URL}
    return MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        repo_cache=repo_cache,
        remote_repos=repositories,
        timeout=HTTP_TIMEOUT_S,
    )


def _fetch(context: Any, jar: Jar, folder: Path) -> None:
    """Download one jar, check it and move it to its place; what a kill left is tried first."""
    import requests

    artifact = context.create_dependency(jar.coordinate).artifact
    staged = artifact.cached_path
    if staged.exists() and not _is_intact(staged, jar):
        staged.unlink()
    try:
        path = artifact.resolve()
    except (requests.RequestException, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EmbeddedError(
            "jars_unavailable",
            f"could not download {jar.coordinate} ({reason[:200]}); check the network, "
            "or name a Maven mirror under [repositories] in ~/.config/jgo.conf, and try again",
        ) from error
    if not _is_intact(path, jar):
        path.unlink()
        raise EmbeddedError(
            "jars_corrupt",
            f"the download of {jar.coordinate} does not have the pinned checksum; try again, "
            "and if it persists suspect the proxy or mirror in between",
        )
    os.replace(path, folder / jar.filename)


class _PlainProgress:
    """Progress as a few plain lines: one at the start and one each quarter of the jars."""

    def __init__(self, title: str, jars: int, size: int) -> None:
        self._jars, self._done = jars, 0
        self._lock = threading.Lock()
        print(f"downloading {title}: {jars} jars, {size / 1e6:.0f} MB", flush=True)

    def on_bytes(self, count: int) -> None:
        """Ignore bytes: a line a chunk would be noise."""

    def on_jar(self) -> None:
        """Count a finished jar and print a line now and then."""
        with self._lock:
            self._done += 1
            step = max(1, self._jars // 4)
            if self._done % step == 0 or self._done == self._jars:
                print(f"  {self._done} of {self._jars} jars", flush=True)


class _BarProgress:
    """Progress as a bar on a terminal, by bytes."""

    def __init__(self, title: str, bar: Any, size: int) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=size)

    def on_bytes(self, count: int) -> None:
        """Move the bar on."""
        self._bar.update(self._task, advance=count)

    def on_jar(self) -> None:
        """Ignore jars: the bar counts bytes."""


@contextlib.contextmanager
def _progress(title: str, jars: int, size: int) -> Iterator[_PlainProgress | _BarProgress]:
    if not sys.stdout.isatty():
        yield _PlainProgress(title, jars, size)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("downloading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn()) as bar:
        yield _BarProgress(title, bar, size)


def resolve_pins(scratch: Path) -> str:
    """Resolve the roots transitively, download everything and return the pin list as text.

    Each root is resolved alone and an earlier root's choice of a version stands: together they
    would manage each other's versions (log4j's parent POM asks for a much older kafka-clients).
    """
    context = _maven_context(scratch, lambda _count: None)
    chosen: dict[str, Any] = {}
    for coordinate in ROOTS:
        root = context.create_dependency(coordinate)
        root.scope = "compile"
        inputs, transitive = context.resolver.resolve([root])
        for dependency in [*inputs, *transitive]:
            if dependency.scope in ("compile", "runtime"):
                chosen.setdefault(f"{dependency.groupId}:{dependency.artifactId}", dependency)
    return "".join(_pin(name, dependency) for name, dependency in chosen.items())


def pins_of(coordinates: Iterable[str], scratch: Path) -> str:
    """Download these jars, and nothing that they depend on, and return the pin list as text."""
    context = _maven_context(scratch, lambda _count: None)
    dependencies = [context.create_dependency(coordinate) for coordinate in coordinates]
    return "".join(_pin(f"{one.groupId}:{one.artifactId}", one) for one in dependencies)


def _pin(name: str, dependency: Any) -> str:
    content = dependency.artifact.resolve().read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"{name}:{dependency.version} {len(content)}\n    {digest}\n"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        print(resolve_pins(Path(scratch)), end="")

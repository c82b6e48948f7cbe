"""The jar cache believes nothing but checksums; jgo downloads from a repository on loopback."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coordinator.runtime import jars
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import cache_dir
from coordinator.runtime.jars import Jar, kafka_classpath, parse_pins
from coordinator.runtime.kafka_jars import PINNED, ROOTS, VERSION

CONTENTS = {"org.example:one:1.0": b"one" * 1000, "org.example:two:2.0": b"two" * 2000}
WANTED = tuple(
    Jar(coordinate, len(content), hashlib.sha256(content).hexdigest())
    for coordinate, content in CONTENTS.items()
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on loopback that has both jars; returns its folder."""
    root = tmp_path / "repository"
    for coordinate, content in CONTENTS.items():
        path = in_repository(root, coordinate)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    configuration = tmp_path / "jgo.conf"
    configuration.write_text(f"[repositories]\nhere = http://127.0.0.1:{server.server_port}\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield root
    server.shutdown()
    thread.join()
    server.server_close()


def in_repository(root: Path, coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")
    return root / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.jar"


def contents(classpath: str) -> list[bytes]:
    return [Path(path).read_bytes() for path in classpath.split(":")]


def forbid_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a warm start must not touch the network")

    monkeypatch.setattr(jars, "_maven_context", refuse)


def test_a_cold_start_downloads_and_a_warm_one_needs_no_network(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = kafka_classpath(jars=WANTED, cache=tmp_path / "cache")
    assert contents(cold) == list(CONTENTS.values())
    forbid_network(monkeypatch)
    assert kafka_classpath(jars=WANTED, cache=tmp_path / "cache") == cold


@pytest.mark.parametrize("damage", [b"", b"one", b"eno" * 1000])
def test_a_damaged_jar_is_not_believed(repository: Path, tmp_path: Path, damage: bytes) -> None:
    classpath = kafka_classpath(jars=WANTED, cache=tmp_path / "cache")
    Path(classpath.split(":")[0]).write_bytes(damage)
    assert contents(kafka_classpath(jars=WANTED, cache=tmp_path / "cache"))[0] == b"one" * 1000


def test_what_a_killed_download_left_is_not_believed(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "jars" / f"kafka-{VERSION}"
    half = in_repository(folder / ".staging", WANTED[0].coordinate)
    half.parent.mkdir(parents=True)
    half.write_bytes(b"one" * 10)
    assert contents(kafka_classpath(jars=WANTED, cache=tmp_path / "cache")) == [*CONTENTS.values()]
    assert not (folder / ".staging").exists()


def test_a_repository_that_serves_something_else_is_refused(
    repository: Path, tmp_path: Path
) -> None:
    in_repository(repository, WANTED[1].coordinate).write_bytes(b"other")
    with pytest.raises(EmbeddedError) as refusal:
        kafka_classpath(jars=WANTED, cache=tmp_path / "cache")
    assert refusal.value.code == "jars_corrupt"


def test_a_jar_that_cannot_be_had_says_what_to_do(repository: Path, tmp_path: Path) -> None:
    in_repository(repository, WANTED[0].coordinate).unlink()
    with pytest.raises(EmbeddedError) as refusal:
        kafka_classpath(jars=WANTED, cache=tmp_path / "cache")
    assert refusal.value.code == "jars_unavailable"
    assert "\n" not in refusal.value.message


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(EmbeddedError) as refusal:
        kafka_classpath(jars=WANTED, cache=tmp_path / "cache")
    assert refusal.value.code == "cache_unusable"
    assert "INDEXCTL_CACHE" in refusal.value.message


def test_starts_at_the_same_time_do_not_harm_each_other(repository: Path, tmp_path: Path) -> None:
    found: list[list[bytes]] = []
    start = partial(kafka_classpath, jars=WANTED, cache=tmp_path / "cache")
    threads = [threading.Thread(target=lambda: found.append(contents(start()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(CONTENTS.values())] * 4


def test_the_pins_are_one_kafka_and_hold_nothing_twice() -> None:
    pinned = parse_pins(PINNED)
    coordinates = [jar.coordinate for jar in pinned]
    assert set(ROOTS) <= set(coordinates)
    names = [coordinate.rsplit(":", 1)[0] for coordinate in coordinates]
    assert len(set(names)) == len({jar.filename for jar in pinned}) == len(pinned)
    kafka = [name for name in coordinates if name.startswith("org.apache.kafka:")]
    assert all(name.endswith(f":{VERSION}") for name in kafka), "a mixture of versions"
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in pinned)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"INDEXCTL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/index-coordinator"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/index-coordinator"),
        ({"HOME": "/h"}, "/h/.cache/index-coordinator"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("INDEXCTL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(cache_dir()) == expected

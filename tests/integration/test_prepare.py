"""Class archives: JVMs of Kafka and Spark use them, and start also where one is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.embedded.broker import Broker
from coordinator.runtime import class_archive
from coordinator.runtime.files import cache_dir
from coordinator.runtime.jars import kafka_classpath
from coordinator.runtime.java import find_java
from streaming.spark.jars import spark_classpath

pytestmark = pytest.mark.integration

START = """
import sys
from pathlib import Path
from coordinator.runtime import class_archive
class_archive.cache_dir = lambda: Path(sys.argv[1])
from streaming.spark.queries import end_session
from streaming.spark.session import SparkOptions, start
session = start(SparkOptions("damaged", "local[1]", Path(sys.argv[2])))
print(session.range(3).count())
end_session(session)
"""


def cut_in_half(archive: Path | None, to: Path | None) -> Path:
    """Write the first half of an archive; one that ends too early makes a JVM crash."""
    assert archive is not None
    assert to is not None
    whole = archive.read_bytes()
    to.write_bytes(whole[: len(whole) // 2])
    return to


def archive_of_kafka() -> Path | None:
    return class_archive.archive_path(find_java().path, kafka_classpath())


@pytest.mark.matrix
def test_a_broker_starts_though_its_archive_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archive_of_kafka()
    if whole is None or not whole.exists():
        with Broker(tmp_path / "first"):  # It makes one when it stops.
            pass
    monkeypatch.setattr(class_archive, "cache_dir", lambda: tmp_path)
    damaged = cut_in_half(whole, archive_of_kafka())
    for _ in range(2):  # The first time it crashes when it formats the folder, then when it starts.
        with Broker(tmp_path / "kafka", makes_archive=False):
            assert not damaged.exists()
        cut_in_half(whole, damaged)


@pytest.mark.matrix
def test_spark_starts_though_its_archive_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streaming.spark.session import class_archive_of

    whole = class_archive_of(find_java().path, spark_classpath())
    if whole is None or not whole.exists():
        subprocess.run([sys.executable, "-m", "coordinator.embedded.prepare"], check=True)
    monkeypatch.setattr(class_archive, "cache_dir", lambda: tmp_path)
    damaged = cut_in_half(whole, class_archive_of(find_java().path, spark_classpath()))
    command = [sys.executable, "-c", START, str(tmp_path), str(tmp_path / "spark")]
    here = set(os.listdir())
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    # What the first JVM says of its crash comes before.
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3"), done.stderr[-2000:]
    assert not damaged.exists()
    assert set(os.listdir()) == here
    assert (tmp_path / "spark" / "scratch" / "jvm-crash.log").exists()


@pytest.mark.matrix
def test_what_was_prepared_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cache whose path has a space."""
    kafka_classpath()
    spark_classpath()
    cache = tmp_path / "a cache"
    cache.mkdir()
    (cache / "jars").symlink_to(cache_dir() / "jars")
    monkeypatch.setenv("INDEXCTL_CACHE", str(cache))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "coordinator.embedded.prepare"]
    for _ in range(2):  # The second finds all of it there.
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = sorted((cache / "classes").iterdir())
    assert [one.suffix for one in made] == [".jsa", ".jsa"]
    assert os.listdir(tmp_path) == ["a cache"]
    with Broker(tmp_path / "kafka") as broker:
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
    assert sum(str(one) in maps for one in made) == 1
    script = [sys.executable, "-c", START, str(cache), str(tmp_path / "my spark")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr[-2000:]

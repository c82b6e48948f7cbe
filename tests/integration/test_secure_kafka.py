"""A whole cluster on a Kafka that lets nobody in without a certificate and a password."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError, UnavailableError
from coordinator.client.kafka_watch import KafkaWatch
from coordinator.client.publisher import Publisher
from coordinator.kafka.address import KafkaAddress, read_settings
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.topics import ensure_topics
from tests.integration.cluster import wait_until
from tests.integration.secure_broker import SecureBroker, settings_for
from tests.support.certificates import make_certificates
from tests.support.ports import reserve_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

START_S = 120.0
NAME = "secure"
INDEXCTL = str(Path(sys.executable).with_name("indexctl"))


class Secure:
    """`indexctl run` on such a Kafka."""

    def __init__(self, folder: Path, servers: str, conf: Path) -> None:
        self.folder, self.servers, self.conf = folder, servers, conf
        self.port = reserve_port()
        self.log = folder / "run.log"
        self.archive = folder / "old"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def kafka(self) -> list[str]:
        return ["--bootstrap-servers", self.servers, "--kafka-conf", str(self.conf)]

    def start(self, *options: str) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(INDEXCTL, "run", *self.kafka),
                    *("--cluster", NAME, "--nodes", "1", "--indexers", "1", "--projectors", "1"),
                    *("--http-port", str(self.port), "--data-dir", str(self.folder / "data")),
                    *("--not-durable", *options),
                    *("--history-archive", str(self.archive)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, "it is ready", START_S)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return "ready" in self.log.read_text()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def archived(self) -> int:
        """Return the CAS up to which the archive has the history."""
        folder = ("--data-dir", str(self.folder / "data"))
        try:
            found = self.indexctl("sql", "SELECT max(cas) AS cas FROM history", *folder)
        except AssertionError:  # There is no archive yet.
            return 0
        return int(found["rows"][0]["cas"] or 0)

    def indexctl(self, *arguments: str) -> Any:
        done = subprocess.run(
            [INDEXCTL, *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "INDEXCTL_NODES": self.url},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecureBroker, Path]]:
    """The broker, and the settings of those whom it lets in."""
    folder = tmp_path_factory.mktemp("kafka")
    certificates = make_certificates(folder)
    conf = folder / "kafka.conf"
    conf.write_text("".join(f"{n}={v}\n" for n, v in settings_for(certificates).items()))
    with SecureBroker(folder / "broker", certificates) as broker:
        yield broker, conf


@pytest.fixture
def secure(tmp_path: Path, guarded: tuple[SecureBroker, Path]) -> Iterator[Secure]:
    broker, conf = guarded
    made = Secure(tmp_path, broker.servers, conf)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "with_spark",
    [False, pytest.param(True, marks=pytest.mark.matrix)],
    ids=["without Spark", "with Spark"],
)
def test_every_process_logs_in(secure: Secure, with_spark: bool) -> None:
    secure.start(*(["--archive"] if with_spark else ["--no-timestamps"]))
    address = KafkaAddress(secure.servers, read_settings(secure.conf))
    with Client([secure.url]) as client, KafkaWatch(address, NAME) as watch:
        watching = watch.watch("now")
        next(watching)
        with Publisher(address, NAME) as publisher:
            answer = publisher.publish("CREATE INDEX by_zone ON travel(tz, name)").wait()
        index = answer["index"]["id"]
        assert next(one for one in watching if one["type"] == "change")["kind"] == "index"
        client.wait_until(index, timeout_s=60)
        if with_spark:
            wait_until(lambda: _is_stable(client), "there is a timestamp", START_S)
        how = "consistent" if with_spark else "any"
        found = client.scan(index, count=True, consistency=how)
        assert found["count"] > 1_000
        cas = client.state()["cas"]
    if with_spark:
        wait_until(lambda: secure.archived() >= cas, "the archive has all", START_S)
    secure.indexctl("backup", str(secure.folder / "b"), *secure.kafka, "--cluster", NAME)
    checked = secure.indexctl("restore", str(secure.folder / "b"), "--check")
    assert checked["checked"]["cas"] >= cas
    secure.stop()
    assert "SASL" not in secure.log.read_text()


def _is_stable(client: Client) -> bool:
    with suppress(UnavailableError):
        return bool(client.stability("travel"))
    return False


def test_who_cannot_log_in_says_so_and_ends(secure: Secure) -> None:
    wrong = secure.conf.with_name("wrong.conf")
    wrong.write_text(secure.conf.read_text().replace("with", "without"))
    with pytest.raises(CoordinatorError) as refused:
        Publisher(KafkaAddress(secure.servers, read_settings(wrong)), NAME, first_contact_s=3)
    assert "does not let this client in" in refused.value.message
    with pytest.raises(KafkaRefusal) as told:
        ensure_topics(KafkaAddress(secure.servers, read_settings(wrong)), NAME, deadline_s=3)
    assert told.value.code == "kafka_login_refused"
    run = ["run", "--bootstrap-servers", secure.servers, "--kafka-conf", str(wrong)]
    done = subprocess.run(
        [INDEXCTL, *run, "--data-dir", str(secure.folder / "d")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "[kafka_login_refused]" in done.stderr
    assert "coordinator" not in done.stderr, "no name and no password"

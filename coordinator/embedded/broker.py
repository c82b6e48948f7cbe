"""A real Kafka broker in one process, on loopback, with its data in a folder.

KRaft combined mode: broker and controller in one JVM. The folder keeps the cluster id, the ports
of the last run (taken again if they are free, so that clients find a restarted broker) and a lock,
which the JVM inherits: it ends with the JVM, not with the process that started it. A broker is
alone, or one of several (see `brokers.py`).

Invariants: a broker never outlives its parent (see `launcher.py`); `start` either returns a
broker that answers, or raises and leaves nothing running.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from coordinator.embedded import broker_config as config
from coordinator.embedded.ports import LOOPBACK, accepts, is_free, pick_free
from coordinator.embedded.processes import end, spawn
from coordinator.kafka.address import client_settings
from coordinator.runtime import class_archive
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import (
    FileLock,
    last_lines,
    size_of,
    write_json,
    write_text,
)
from coordinator.runtime.jars import kafka_classpath
from coordinator.runtime.java import Java, find_java

START_TIMEOUT_S = 180.0
STOP_GRACE_S = 15.0
CLOSED_GRACE_S = 0.3
LOCK_TIMEOUT_S = 2.0
POLL_S = 0.02
STATE = "broker.json"
LOCK = "broker.lock"
CONSOLE_LOG = "console.log"
CRASHES = frozenset(-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS))
"""How a JVM ends that finds itself in disorder."""

CLEANLY_CLOSED = ".kafka_cleanshutdown"
"""Kafka makes it when it has closed its topics, and removes it when it opens them."""


def new_cluster_id() -> str:
    """Return a random cluster id in Kafka's form: a UUID in URL-safe base 64 that begins well."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # It would look like an option to the format tool.
            return text


def read_cluster_id(bootstrap_servers: str, *, timeout_s: float = 10.0) -> str:
    """Return the id of the cluster that answers at `bootstrap_servers`.

    Raises EmbeddedError: `kafka_unreachable`, `kafka_login_refused`.
    """
    return str(_metadata(bootstrap_servers, timeout_s).cluster_id)


def _metadata(bootstrap_servers: str, timeout_s: float) -> Any:
    """Return what brokers there are, at least one. Raises EmbeddedError: `kafka_unreachable`."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from coordinator.kafka.errors import LoginRefusals, explain

    refusals = LoginRefusals()
    settings = {**client_settings(bootstrap_servers), "log_level": 0, "error_cb": refusals}
    admin = AdminClient(settings)
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        admin.poll(0)
        if refusals.said:
            refusal = explain(error, bootstrap_servers, refusals)
            raise EmbeddedError(refusal.code, refusal.message) from error
        raise EmbeddedError(
            "kafka_unreachable",
            f"no Kafka answers at {bootstrap_servers} ({error.args[0].str()}): "
            "check --bootstrap-servers and that the brokers run",
        ) from error
    if not metadata.brokers or not metadata.cluster_id:
        raise EmbeddedError("kafka_unreachable", f"{bootstrap_servers} names no brokers yet")
    return metadata


class Broker:
    """A broker over `data_dir`; a context manager that starts and stops it.

    `port` and `controller_port` are those of the last run, or free ones, unless given. A given
    `cluster_id` must be that of the folder. `settings` are further server properties. One broker
    of several that are stopped together shall make the class archive.

    Large because a start has many steps, and each has a fault of its own to explain.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        node: int = 1,
        port: int | None = None,
        controller_port: int | None = None,
        cluster_id: str | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mib_max: int = config.HEAP_MIB_MAX,
        makes_archive: bool = True,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.node = node
        self._asked_port, self._asked_controller_port = port, controller_port
        self._asked_cluster_id = cluster_id
        self._settings = dict(settings or {})
        self._heap_mib_max = heap_mib_max
        self._makes_archive = makes_archive
        self._voters: tuple[config.Place, ...] = ()
        self.port = self.controller_port = 0
        self.cluster_id = ""
        self._lock = FileLock(self.data_dir / LOCK)
        self._process: subprocess.Popen[bytes] | None = None
        self._java: Java | None = None
        self._classpath = ""
        self._archive: Path | None = None
        self._log_begin = 0
        self._aborted = False
        self._spawning = threading.Lock()

    # -- What one may ask ------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Return `host:port` for clients; only after `start`."""
        assert self.port, "the broker was never started"
        return f"{LOOPBACK}:{self.port}"

    @property
    def place(self) -> config.Place:
        """Return its node id and ports; only after `settle` or `start`."""
        assert self.port, "the broker has no ports yet"
        return config.Place(self.node, self.port, self.controller_port)

    @property
    def log_path(self) -> Path:
        """Return the file that the broker logs to."""
        return self.data_dir / config.BROKER_LOG

    @property
    def pid(self) -> int | None:
        """Return the process id while the broker runs."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self.exit_status() is None

    def exit_status(self) -> int | None:
        """Return how the process ended (a signal is negative); None while it runs."""
        assert self._process is not None, "the broker was not started"
        return self._process.poll()

    # -- Life ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Find Java and the jars, which may have to be downloaded; `start` does it otherwise."""
        if self._java is None:
            self._java = find_java()
            self._classpath = kafka_classpath()

    def kept_cluster_id(self) -> str:
        """Return the id of the Kafka cluster that the folder belongs to; empty if to none yet."""
        return str(self._kept().get("cluster_id", ""))

    def settle(self, *, avoid: Collection[int] = ()) -> config.Place:
        """Choose the ports before a start, none of `avoid`: others shall be told of them.

        Raises EmbeddedError: `data_folder_in_use`, `data_folder_mismatch`, `port_taken`.
        """
        assert not self.alive, "the broker runs already"
        self._claim_folder()
        try:
            self._choose(avoid)
        finally:
            self._lock.release()
        self._asked_port, self._asked_controller_port = self.port, self.controller_port
        return self.place

    def join(self, voters: Sequence[config.Place]) -> None:
        """Make it one of several from its next start on; its own place is among `voters`."""
        assert self.place in voters
        self._voters = tuple(voters)

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> Broker:
        """Start the broker and return when it answers; also after it stopped, died or was killed.

        Raises EmbeddedError: `data_folder_in_use`, `data_folder_mismatch`, `port_taken`,
        `broker_failed`, `broker_timeout`, and those of Java and of the jars.
        """
        assert not self.alive, "the broker runs already"
        self._forget_process()
        try:
            self._claim_folder()
            self._choose()
            try:
                self._run(timeout_s)
            except EmbeddedError:
                if not self._forget_damaged_archive():
                    raise
                self._run(timeout_s)
            # From now on clients know the address: a restart is at the same or not at all.
            self._asked_port, self._asked_controller_port = self.port, self.controller_port
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the broker cleanly, or by force after `grace_s`; does nothing if it is stopped."""
        if self._process is not None:
            if self.alive and self._voters and self._archive is None:
                self._end_one_of_several(self._process, grace_s)
            elif self.alive:
                end(self._process, grace_s=grace_s)
            self._keep_archive()
        self._forget_process()

    def _end_one_of_several(self, process: subprocess.Popen[bytes], grace_s: float) -> None:
        """End it as soon as its topics are closed cleanly.

        Its controller would wait five seconds more for a successor, which the last ones to stop
        cannot find; the quorum's own log is synced at every append.
        """
        closed = self.data_dir / config.DATA / CLEANLY_CLOSED
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not closed.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(CLOSED_GRACE_S, max(0.0, deadline - time.monotonic())))
        process.kill()
        process.wait()

    def kill(self) -> None:
        """Stop the broker at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget_process()

    def abort(self) -> None:
        """Make a `start` that runs in another thread fail soon; the broker cannot start again."""
        with self._spawning:
            self._aborted = True
            if self._process is not None:
                self._process.kill()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- Steps of a start ------------------------------------------------------------------

    def _claim_folder(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        # A broker whose parent was killed is dying: the lock may be free in a moment.
        if not self._lock.acquire(timeout_s=LOCK_TIMEOUT_S):
            raise EmbeddedError(
                "data_folder_in_use",
                f"another broker runs in {self.data_dir}: stop it, or use another folder",
            )

    def _kept(self) -> dict[str, Any]:
        path = self.data_dir / STATE
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return kept

    def _choose(self, avoid: Collection[int] = ()) -> None:
        """Settle the ports and the cluster id, and keep them in the folder."""
        kept = self._kept()
        asked = self._asked_cluster_id
        self.cluster_id = kept.get("cluster_id") or asked or new_cluster_id()
        if asked and asked != self.cluster_id:
            raise EmbeddedError(
                "data_folder_mismatch",
                f"{self.data_dir} holds the Kafka cluster {self.cluster_id}, not {asked}",
            )
        self.port = _choose_port(
            self._asked_port, self.port or kept.get("port"), avoid=tuple(avoid)
        )
        self.controller_port = _choose_port(
            self._asked_controller_port,
            self.controller_port or kept.get("controller_port"),
            avoid=(*avoid, self.port),
        )
        chosen = {"port": self.port, "controller_port": self.controller_port}
        write_json(self.data_dir / STATE, {"cluster_id": self.cluster_id, **chosen})

    def _run(self, timeout_s: float) -> None:
        """Format the data the first time, start the JVM and wait until the broker answers."""
        self.prepare()
        assert self._java is not None
        deadline = time.monotonic() + timeout_s
        self._log_begin = size_of(self.log_path)
        self._write_configuration()
        java = str(self._java.path)
        flags = config.jvm_flags(heap_mib_max=self._heap_mib_max)
        flags += ["-cp", self._classpath]
        if not (self.data_dir / config.DATA / config.META).exists():
            with_classes = class_archive.flags_with(self._archive_path())
            self._format([java, *flags, *with_classes], deadline)
        flags += self._archive_flags()
        self._spawn([java, *flags, "kafka.Kafka", config.SERVER_PROPERTIES])
        self._wait_until_ready(deadline, timeout_s)

    def _write_configuration(self) -> None:
        properties = config.server_properties(self.place, self._voters, self._settings)
        write_text(self.data_dir / config.SERVER_PROPERTIES, config.properties_text(properties))
        write_text(self.data_dir / config.LOG4J_PROPERTIES, config.LOG4J_TEXT)

    def _spawn(self, command: list[str]) -> None:
        with self._spawning, open(self.data_dir / CONSOLE_LOG, "wb") as output:
            if self._aborted:
                raise EmbeddedError("broker_failed", "the start of the broker was called off")
            self._process = spawn(
                command, output=output, cwd=self.data_dir, pass_fds=[self._lock.fileno()]
            )

    def _format(self, java: list[str], deadline: float) -> None:
        arguments = config.format_arguments(self.cluster_id, alone=not self._voters)
        self._spawn([*java, *arguments])
        assert self._process is not None
        try:
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._timeout("formatting the data folder took too long") from None
        if status != 0:
            raise self._failed(f"formatting the data folder failed with exit code {status}")

    def _wait_until_ready(self, deadline: float, timeout_s: float) -> None:
        """Return when the broker answers a metadata request; watch its process meanwhile."""
        assert self._process is not None
        while time.monotonic() < deadline:
            if accepts(self.port) and self._answers():
                return
            try:
                status = self._process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            raise self._failed(f"the Kafka broker ended at its start with exit code {status}")
        raise self._timeout(f"the Kafka broker did not answer within {timeout_s:g} s")

    def _answers(self) -> bool:
        """Tell whether it answers, as a member of its cluster."""
        try:
            metadata = _metadata(self.bootstrap_servers, timeout_s=1.0)
        except EmbeddedError:
            return False
        return metadata.cluster_id == self.cluster_id and self.node in metadata.brokers

    # -- Class archive, errors, cleaning up ------------------------------------------------

    def _archive_flags(self) -> list[str]:
        """Return the flags that use the class archive of this Java and these jars, or write it."""
        self._archive = None
        archive = self._archive_path()
        if archive is None or archive.exists() or not self._makes_archive:
            return class_archive.flags_with(archive)
        self._archive = archive
        return class_archive.flags_to_write(self._dump_path(archive))

    def _forget_damaged_archive(self) -> bool:
        """Delete the class archive if the JVM has just crashed with it; tell whether it has."""
        if self._process is None or self._process.poll() not in CRASHES:
            return False
        archive = self._archive_path()
        return archive is not None and class_archive.forget(archive)

    def _archive_path(self) -> Path | None:
        assert self._java is not None
        return class_archive.archive_path(self._java.path, self._classpath)

    def _dump_path(self, archive: Path) -> Path:
        return self.data_dir / archive.name

    def _keep_archive(self) -> None:
        """Keep a class archive that a clean stop has written."""
        if self._archive is None:
            return
        written = self._dump_path(self._archive)
        if self._process is not None and self._process.returncode == 143:
            class_archive.keep(written, self._archive)
        else:
            class_archive.forget(written)

    def _forget_process(self) -> None:
        self._process = None
        self._lock.release()

    def _failed(self, what: str) -> EmbeddedError:
        """Return the error for a JVM that ended: the useful line of its log, and where to look."""
        console = useful_line(last_lines(self.data_dir / CONSOLE_LOG, 50))
        reason = console or self._useful_log_line()
        if "Address already in use" in reason:
            return _port_taken(self.port)
        return EmbeddedError("broker_failed", f"{what}: {reason} (see {self.log_path})")

    def _timeout(self, what: str) -> EmbeddedError:
        reason = self._useful_log_line()
        return EmbeddedError("broker_timeout", f"{what}: {reason} (see {self.log_path})")

    def _useful_log_line(self) -> str:
        return useful_line(last_lines(self.log_path, 200, since_byte=self._log_begin))


def useful_line(lines: list[str]) -> str:
    """Return the last line that tells of an error, else the last line, else nothing."""
    telling = re.compile(r" (ERROR|FATAL) |Exception|Error\b")
    frames = re.compile(r"^\s+at |^\s*\.\.\. ")
    for line in reversed(lines):
        if telling.search(line) and not frames.search(line):
            return line.strip()[:300]
    return lines[-1].strip()[:300] if lines else ""


def _choose_port(asked: int | None, kept: int | None, *, avoid: tuple[int, ...] = ()) -> int:
    """Return the asked port, else the kept one if it is free, else a free one."""
    if asked is not None:
        if not is_free(asked):
            raise _port_taken(asked)
        return asked
    if kept and kept not in avoid and is_free(kept):
        return kept
    return pick_free(avoid=avoid)


def _port_taken(port: int) -> EmbeddedError:
    return EmbeddedError(
        "port_taken", f"port {port} on {LOOPBACK} is taken: end what listens there, or use another"
    )

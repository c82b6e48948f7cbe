"""The embedded broker and the supervisor, with real processes.

Nothing here waits a fixed time: `eventually` polls a condition up to a deadline. The supervisor
runs in a process of its own, so that it can be signalled and killed; its children are small
programs that leave a file `<name>.<pid>` in a folder when they run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coordinator.embedded import broker as broker_module
from coordinator.embedded.broker import Broker, read_cluster_id
from coordinator.embedded.ports import accepts, is_free
from coordinator.runtime.errors import EmbeddedError
from tests.integration.cluster import Cluster
from tests.integration.indexctl_run import (
    DEADLINE_S,
    Run,
    Supervised,
    eventually,
    runs,
    state_of,
)
from tests.support.ports import reserve_port

pytestmark = pytest.mark.integration


# -- The broker ----------------------------------------------------------------------------------


def make_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(DEADLINE_S)


def produce(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(DEADLINE_S) == 0


def consume(broker: Broker, topic: str, count: int) -> list[str]:
    """Return the first `count` values of the topic, read as one of a group."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "group.id": "test"})
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, DEADLINE_S)
        return [str(message.value(), "utf-8") for message in messages]
    finally:
        consumer.close()


def test_records_survive_a_stop_a_kill_and_a_change_of_ports(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        address, cluster_id = broker.bootstrap_servers, broker.cluster_id
        make_topic(broker, "t")
        produce(broker, "t", "before the stop")
        broker.stop()
        assert not broker.alive
        assert is_free(broker.port)

        broker.start()
        assert broker.bootstrap_servers == address
        produce(broker, "t", "before the kill")
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        eventually(lambda: not broker.alive, "the broker is dead")

        broker.start()
        assert broker.bootstrap_servers == address
        produce(broker, "t", "before the move")

    moved_to = (reserve_port(), reserve_port())
    with Broker(tmp_path, port=moved_to[0], controller_port=moved_to[1]) as moved:
        assert moved.bootstrap_servers == f"127.0.0.1:{moved_to[0]}"
        assert read_cluster_id(moved.bootstrap_servers) == moved.cluster_id == cluster_id
        produce(moved, "t", "after the move")
        assert consume(moved, "t", 4) == [
            "before the stop",
            "before the kill",
            "before the move",
            "after the move",
        ]


@pytest.mark.parametrize("which", ["port", "controller_port"])
def test_a_taken_port_is_refused_and_nothing_is_left(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", reserve_port())) as server:
        port = server.getsockname()[1]
        broker = Broker(tmp_path, **{which: port})
        with pytest.raises(EmbeddedError) as refusal:
            broker.start()
    assert refusal.value.code == "port_taken"
    assert str(port) in refusal.value.message
    assert not broker.alive
    assert not (tmp_path / "data").exists()


def test_a_broker_that_ends_early_says_why_and_nothing_is_left(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings={"num.io.threads": "0"})
    with pytest.raises(EmbeddedError) as failure:
        broker.start()
    assert failure.value.code == "broker_failed"
    assert "num.io.threads" in failure.value.message
    assert "\n" not in failure.value.message
    assert not broker.alive


def test_a_broker_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with pytest.raises(EmbeddedError) as failure:
        broker.start(timeout_s=0.1)
    assert failure.value.code == "broker_timeout"
    assert not broker.alive


def test_a_folder_serves_one_broker_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "LOCK_TIMEOUT_S", 0.0)
    with pytest.raises(EmbeddedError) as refusal:
        Broker(broker.data_dir).start()
    assert refusal.value.code == "data_folder_in_use"
    assert broker.alive


def test_a_folder_of_another_kafka_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"cluster_id": "one"}')
    with pytest.raises(EmbeddedError) as refusal:
        Broker(tmp_path, cluster_id="two").start()
    assert refusal.value.code == "data_folder_mismatch"


def test_no_kafka_at_an_address_is_one_line() -> None:
    with pytest.raises(EmbeddedError) as refusal:
        read_cluster_id(f"127.0.0.1:{reserve_port()}", timeout_s=0.5)
    assert refusal.value.code == "kafka_unreachable"


OWNER_OF_A_BROKER = """
import sys, threading
from pathlib import Path
from coordinator.embedded.broker import Broker

broker = Broker(Path(sys.argv[1]))
starter = threading.Thread(target=broker.start)  # It ends: the broker must not end with it.
starter.start()
starter.join()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signal")
def test_a_broker_dies_with_its_parent_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER_OF_A_BROKER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as owner:  # type: ignore[call-overload]
        pid = int(owner.stdout.readline())
        assert runs(pid)
        owner.kill()
    eventually(lambda: not runs(pid), "the broker died with its parent")


# -- The supervisor ------------------------------------------------------------------------------


Start = Callable[..., Supervised]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(*children: str, **options: float) -> Supervised:
        started.append(Supervised(tmp_path, *children, **options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_every_child_cleanly(supervised: Start, number: int) -> None:
    run = supervised("steady:a", "steady:b")
    run.said("ready")
    run.process.send_signal(number)
    assert run.ended() == 0
    assert (run.folder / "a.stopped").exists()
    assert (run.folder / "b.stopped").exists()


def test_a_second_signal_kills_what_does_not_stop(supervised: Start) -> None:
    run = supervised("stubborn:a", "steady:b")
    run.said("ready")
    run.process.send_signal(signal.SIGINT)
    run.said("stopping")
    eventually((run.folder / "b.stopped").exists, "the other has stopped")
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 130


def test_a_child_that_was_killed_is_started_again(supervised: Start) -> None:
    run = supervised("steady:a", "steady:b")
    run.said("ready")
    first, other = run.pid("a"), run.pid("b")
    os.kill(first, signal.SIGKILL)
    run.said("a was killed by SIGKILL; starting it again in 0.1 s")
    run.said("a was started again")
    assert run.pid("a") != first
    assert run.pid("b") == other
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0


def test_a_child_that_crashes_at_its_start_is_tried_again(supervised: Start) -> None:
    run = supervised("crashing:a")
    eventually(lambda: len(run.pids("a")) == 3, "the third try")
    run.said("a ended with exit code 3; starting it again")
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0


@pytest.mark.parametrize("kind", ["refusing", "turning"])
def test_a_child_that_refuses_to_run_ends_everything(supervised: Start, kind: str) -> None:
    """It may refuse at once, or when it is started again after a crash."""
    run = supervised("steady:b", f"{kind}:a")
    if kind == "turning":
        run.said("ready")
        os.kill(run.pid("a"), signal.SIGKILL)
    assert run.ended() == 1
    run.said("child_refused: a refuses to run: the log was lost")
    assert run.output.read_text().count("started again") == (kind == "turning")


def test_a_start_that_takes_too_long_names_the_log_and_its_last_lines(supervised: Start) -> None:
    run = supervised("steady:b", "silent:a", start_timeout_s=1.0)
    assert run.ended() == 1
    run.said("start_timeout: a was not ready within 1 s: waiting")
    run.said("logs/a.log")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signal")
def test_a_killed_supervisor_leaves_nothing(supervised: Start) -> None:
    run = supervised("steady:a", "stubborn:b")
    run.said("ready")
    run.process.kill()
    assert run.ended() == -signal.SIGKILL
    assert not (run.folder / "a.stopped").exists()


# -- A whole run, with stand-ins for nodes and indexers -------------------------------------------


def test_a_run_keeps_its_broker_alive_and_its_state_for_the_next(tmp_path: Path) -> None:
    first = Run(tmp_path, "c1")
    first.said("Ctrl-C stops everything")
    state = state_of(tmp_path)
    broker = next(p for p in psutil.Process(first.process.pid).children() if p.name() == "java")
    port = int(str(state["bootstrap_servers"]).rpartition(":")[2])
    broker.kill()
    first.said("kafka was started again")
    assert accepts(port)
    first.process.send_signal(signal.SIGINT)
    assert first.ended() == 0
    assert is_free(port)
    kept = [tmp_path, *(tmp_path / "kafka").rglob("*"), *(tmp_path / "logs").rglob("*")]
    assert len(kept) > 50
    assert [path for path in kept if path.lstat().st_mode & 0o077] == []

    second = Run(tmp_path, "c1")
    second.said("Ctrl-C stops everything")
    assert state_of(tmp_path) == state
    second.process.kill()
    second.process.wait()
    eventually(lambda: is_free(port), "the broker died with the supervisor")

    other = Run(tmp_path, "c2")
    assert other.ended() == 1
    other.said("data_folder_mismatch")


def test_a_run_uses_an_existing_kafka_and_refuses_another(tmp_path: Path, broker: Broker) -> None:
    first = Run(tmp_path, "external", broker.bootstrap_servers)
    first.said("Ctrl-C stops everything")
    assert state_of(tmp_path)["kafka_cluster_id"] == broker.cluster_id
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == 0
    assert broker.alive

    (tmp_path / "cluster.json").write_text(
        json.dumps({**state_of(tmp_path), "kafka_cluster_id": "another"})
    )
    again = Run(tmp_path, "external", broker.bootstrap_servers)
    assert again.ended() == 1
    again.said("data_folder_mismatch")


def test_a_run_is_refused_as_long_as_nodes_of_its_cluster_run_elsewhere(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=1, indexers=1).start()
    refused = Run(tmp_path, cluster.name, cluster.servers)
    assert refused.ended() == 1
    refused.said("cluster_in_use")
    refused.said(f"node 1 at {cluster.urls[0]}")
    cluster.stop_children()
    Run(tmp_path, cluster.name, cluster.servers).said("Ctrl-C stops everything")

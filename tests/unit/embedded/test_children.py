"""The commands of the children, what counts as ready, and what a person is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.embedded import children, supervisor
from coordinator.embedded.brokers import Brokers
from coordinator.embedded.data_folder import ClusterFile
from coordinator.embedded.supervision import broker_units, describe_exit
from coordinator.embedded.supervisor import RunOptions
from coordinator.kafka.errors import KafkaRefusal
from coordinator.runtime.errors import EmbeddedError

DATA = Path("/data")


def test_a_node_is_told_who_it_is_and_where() -> None:
    argv = children.node_argv(
        2,
        roster=(1, 2, 3),
        cluster="demo",
        bootstrap_servers="127.0.0.1:9092",
        data_dir=DATA,
        http_port=8600,
        durable=True,
        replication_factor=3,
    )
    assert argv == tuple(
        f"{sys.executable} -m coordinator.process --node 2 --roster 1,2,3 --cluster demo"
        " --bootstrap-servers 127.0.0.1:9092 --data-dir /data/node-2"
        " --host 127.0.0.1 --port 8601 --replication-factor 3".split()
    )


def test_an_indexer_is_told_who_it_is_and_where() -> None:
    argv = children.indexer_argv(
        1, cluster="demo", bootstrap_servers="127.0.0.1:9092", data_dir=DATA
    )
    assert argv == tuple(
        f"{sys.executable} -m indexer_sim --id 1 --cluster demo"
        " --bootstrap-servers 127.0.0.1:9092 --data-dir /data/indexer-1".split()
    )


def test_every_child_has_a_name_a_log_and_the_lock() -> None:
    options = RunOptions(nodes=2, indexers=1, durable=False)
    specs = supervisor.child_specs(options, DATA, "127.0.0.1:9092", pass_fds=(7,))
    names = ["timestamps", "kv", "node-1", "node-2", "indexer-1", "projector-0", "projector-1"]
    assert [spec.name for spec in specs] == names
    assert [str(spec.log) for spec in specs] == [f"/data/logs/{name}.log" for name in names]
    assert all(spec.pass_fds == (7,) for spec in specs)
    assert [s.name for s in specs if "--not-durable" in s.argv] == ["node-1", "node-2"]
    without = supervisor.child_specs(RunOptions(projectors=0), DATA, "k:1")
    assert not any(s.name.startswith(("kv", "projector", "timestamps")) for s in without)
    alone = supervisor.child_specs(RunOptions(timestamps=False), DATA, "k:1")
    assert "timestamps" not in [s.name for s in alone]


def test_the_archive_is_written_only_if_asked_for(tmp_path: Path) -> None:
    assert "archiver" not in [s.name for s in supervisor.child_specs(RunOptions(), DATA, "k:1")]
    options = RunOptions(archive=True, projectors=0)
    last = supervisor.child_specs(options, tmp_path, "k:1")[-1]
    assert last.name == "archiver"
    assert f"streaming archive --cluster default --bootstrap-servers k:1 --data-dir {tmp_path}" in (
        " ".join(last.argv)
    )
    assert not asyncio.run(last.ready())
    (tmp_path / "archiver").mkdir()
    (tmp_path / "archiver" / "ready").touch()
    assert asyncio.run(last.ready())
    assert "1 indexer and the archive" in supervisor.summary_text(
        RunOptions(archive=True, projectors=0, indexers=1), DATA, "k:1", 1
    )


def test_timestamps_are_ready_when_their_first_batch_is_finished(tmp_path: Path) -> None:
    probe = children.timestamps_ready(tmp_path)
    assert not asyncio.run(probe())
    (tmp_path / "timestamps").mkdir()
    (tmp_path / "timestamps" / "ready").touch()
    assert asyncio.run(probe())


def test_the_store_has_a_node_for_each_projector_and_its_port_follows_the_nodes() -> None:
    options = RunOptions(nodes=2, http_port=9000, projectors=3)
    specs = {s.name: s.argv for s in supervisor.child_specs(options, DATA, "k:1")}
    store = " ".join(specs["kv"])
    assert "projector_sim kv --host 127.0.0.1 --port 9002 --data-dir /data/kv --nodes 3" in store
    assert " ".join(specs["projector-2"]).endswith(
        "projector_sim projector --projector 2 --cluster default"
        " --bootstrap-servers k:1 --kv http://127.0.0.1:9002"
    )
    assert options.ports == range(9000, 9003)


@pytest.mark.parametrize(
    ("body", "alive"),
    [
        (b'{"indexers": [{"id": 1, "alive": true}]}', True),
        (b'{"indexers": [{"id": "1", "alive": true}]}', True),
        (b'{"indexers": [{"id": 1, "alive": false}]}', False),
        (b'{"indexers": [{"id": 2, "alive": true}]}', False),
        (b'{"indexers": []}', False),
        (b'{"error": {"code": "no_master"}}', False),
        (b"[]", False),
        (b"not json", False),
        (b"", False),
    ],
)
def test_an_indexer_is_ready_when_the_node_lists_it_as_alive(body: bytes, alive: bool) -> None:
    assert children.is_listed_alive(body, "indexers", 1) is alive


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(raw: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    return answer


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[int]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("raw", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nbootstrap", False),
        (b"", False),
        (b"SSH-2.0-nonsense\r\n", False),
    ],
)
def test_a_node_is_ready_when_it_says_so(raw: bytes, ready: bool) -> None:
    async def ask() -> bool:
        async with listening(answering(raw)) as port:
            return await children.node_ready(port)()

    assert asyncio.run(ask()) is ready


def test_the_summary_says_where_everything_is_and_what_to_try() -> None:
    text = supervisor.summary_text(RunOptions(), DATA, "127.0.0.1:9092", 7.25)
    assert "ready in 7.2 s: Kafka, 3 nodes, 3 indexers, 2 projectors and timestamps" in text
    for part in ("http://127.0.0.1:8602", "127.0.0.1:9092", "/data", "indexctl status"):
        assert part in text
    assert "INDEXCTL_URL" not in text


def test_the_summary_shows_every_broker() -> None:
    servers = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    text = supervisor.summary_text(RunOptions(brokers=3), DATA, servers, 9)
    assert "ready in 9.0 s: Kafka (3 brokers), 3 nodes, 3 indexers, 2 projectors" in text
    assert f"  Kafka   {servers} (started here, 3 replicas of each topic)" in text


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        (RunOptions(), 1),
        (RunOptions(brokers=2), 2),
        (RunOptions(brokers=3), 3),
        (RunOptions(brokers=5), 3),
        (RunOptions(brokers=3, replication_factor=3), 3),
        (RunOptions(bootstrap_servers="k:1"), 1),
        (RunOptions(bootstrap_servers="k:1", replication_factor=3), 3),
    ],
)
def test_nodes_are_told_how_many_copies_there_are(options: RunOptions, copies: int) -> None:
    supervisor.check_brokers(options)
    specs = supervisor.child_specs(options, DATA, "k:1")
    nodes = [spec for spec in specs if spec.name.startswith("node-")]
    assert len(nodes) == options.nodes
    for spec in nodes:
        assert spec.argv[spec.argv.index("--replication-factor") + 1] == str(copies)


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(brokers=0),
        RunOptions(brokers=6),
        RunOptions(brokers=3, bootstrap_servers="k:1"),
        RunOptions(replication_factor=3),
        RunOptions(brokers=3, replication_factor=2),
        RunOptions(bootstrap_servers=" "),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: RunOptions) -> None:
    with pytest.raises(EmbeddedError) as refusal:
        supervisor.check_brokers(options)
    assert refusal.value.code == "usage"
    assert "\n" not in refusal.value.message


def test_brokers_are_told_apart_by_name_where_there_are_several(tmp_path: Path) -> None:
    def names(count: int) -> list[str]:
        return [unit.name for unit in broker_units(Brokers(tmp_path, count).members)]

    assert names(1) == ["kafka"]
    assert names(3) == ["kafka-1", "kafka-2", "kafka-3"]


def test_the_summary_exports_unusual_addresses_first() -> None:
    lines = supervisor.summary_text(
        RunOptions(http_port=9000, nodes=2), DATA, "127.0.0.1:9092", 7
    ).splitlines()
    at = lines.index("  export INDEXCTL_URL=http://127.0.0.1:9000,http://127.0.0.1:9001")
    assert lines[at + 1] == "  indexctl apply examples/travel.sql"


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-9, "was killed by SIGKILL")],
)
def test_an_exit_is_told_in_words(status: int, text: str) -> None:
    assert describe_exit(status) == text


def test_topics_that_were_made_without_flushing_say_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise KafkaRefusal("topic_mismatch", "t has flush.messages=9, not 1")

    monkeypatch.setattr("coordinator.kafka.topics.ensure_topics", refuse)
    monkeypatch.setattr("coordinator.embedded.broker.read_cluster_id", lambda servers: "id")
    kept = ClusterFile("default", "external", 3, "k:1")
    with pytest.raises(EmbeddedError, match="made with --not-durable: run it with that") as caught:
        supervisor.confirm_and_make_topics(RunOptions(), tmp_path, kept, "k:1")
    assert caught.value.code == "topic_mismatch"


def test_allowed_hosts_go_to_all_who_serve_http() -> None:
    options = RunOptions(nodes=1, indexers=1, allowed_hosts=("proxy.example", "10.0.0.1"))
    given = ("--allowed-host", "proxy.example", "--allowed-host", "10.0.0.1")
    specs = {s.name: s.argv for s in supervisor.child_specs(options, DATA, "k:1")}
    serving = {name for name, argv in specs.items() if argv[-4:] == given}
    assert serving == {"kv", "node-1", "indexer-1"}


def test_the_archive_of_the_history_is_in_the_folder_unless_another_is_given(
    tmp_path: Path,
) -> None:
    def given(**options: Any) -> Any:
        specs = supervisor.child_specs(RunOptions(nodes=1, **options), tmp_path, "k:1")
        argv = next(spec.argv for spec in specs if spec.name == "node-1")
        return {
            name: argv[argv.index(name) + 1]
            for name in ("--history-archive", "--history-retention")
            if name in argv
        }

    own, other = str(tmp_path / "history-archive"), str(tmp_path / "other")
    assert given() == {}
    assert given(history_archive=Path(other)) == {"--history-archive": other}
    both = {"--history-archive": own, "--history-retention": "30d"}
    assert given(history_retention="30d") == both
    assert given(history_retention="30d", history_archive=Path(other)) == {
        **both,
        "--history-archive": other,
    }
    Path(own).mkdir()
    assert given() == {"--history-archive": own}, "what an earlier run has archived is read on"


@pytest.mark.parametrize(
    "options",
    [
        {"history_retention": "30"},
        {"history_retention": "0d"},
        {"history_retention": "30d", "bootstrap_servers": "k:1"},
    ],
)
def test_a_retention_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EmbeddedError) as caught:
        supervisor.check_retention(RunOptions(**options))
    assert caught.value.code == "usage"


def test_a_retention_whose_archive_takes_no_files_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    options = RunOptions(history_retention="30d", history_archive=file / "below")
    with pytest.raises(EmbeddedError) as caught:
        supervisor.check_archive(options, tmp_path)
    assert caught.value.code == "history_archive_unavailable"
    supervisor.check_archive(RunOptions(history_retention="30d"), tmp_path)
    assert (tmp_path / "history-archive").is_dir()

"""What the broker is told, and what is reported of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.embedded import broker_config
from coordinator.embedded.broker import Broker, new_cluster_id, useful_line
from coordinator.embedded.broker_config import Place
from coordinator.embedded.brokers import Brokers, brokers_without_data
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import last_lines

INFO = "2026-01-01 10:00:00,000 INFO Formatting (StorageTool)"
ERROR = "2026-01-01 10:00:01,000 ERROR Exiting Kafka due to fatal exception (Kafka$)"
CAUSE = "Caused by: java.net.BindException: Address already in use"


@pytest.mark.parametrize(
    ("lines", "useful"),
    [
        ([], ""),
        ([INFO], INFO),
        ([INFO, ERROR, INFO], ERROR),
        ([ERROR, CAUSE, "\tat sun.nio.ch.Net.bind(Net.java:1)", "\t... 7 more"], CAUSE),
    ],
)
def test_the_last_line_that_tells_of_an_error_is_reported(lines: list[str], useful: str) -> None:
    assert useful_line(lines) == useful


def test_only_the_lines_of_this_start_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 5) == []
    log.write_text("old\n")
    assert last_lines(log, 5, since_byte=4) == []
    log.write_text("old\nnew\n\nnewer\n")
    assert last_lines(log, 5, since_byte=4) == ["new", "newer"]
    assert last_lines(log, 1) == ["newer"]
    assert last_lines(log, 5, since_byte=1000) == ["old", "new", "newer"], "it was rotated"


def test_the_broker_listens_on_loopback_only_and_keeps_what_it_acknowledged() -> None:
    settings = broker_config.server_properties(Place(1, 1, 2), extra={"num.io.threads": "8"})
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["num.io.threads"] == "8"


def quorum_of(count: int) -> list[Place]:
    return [Place(node, 9000 + node, 9100 + node) for node in range(1, count + 1)]


@pytest.mark.parametrize(
    ("count", "copies", "min_insync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 3, 2), (5, 3, 2)]
)
def test_so_many_brokers_keep_so_many_copies_of_everything(
    count: int, copies: int, min_insync: int
) -> None:
    voters = quorum_of(count)
    settings = broker_config.server_properties(voters[0], voters if count > 1 else ())
    topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic", "default")
    assert {settings[f"{topic}.replication.factor"] for topic in topics} == {str(copies)}
    for key in (
        "min.insync.replicas",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.min.isr",
    ):
        assert settings[key] == str(min_insync), key


def test_brokers_know_one_another_by_a_static_quorum_and_one_alone_by_a_dynamic_one() -> None:
    voters = quorum_of(3)
    several = [broker_config.server_properties(place, voters) for place in voters]
    assert {one["controller.quorum.voters"] for one in several} == {
        "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    }
    assert [one["node.id"] for one in several] == ["1", "2", "3"]
    assert {one["process.roles"] for one in several} == {"broker,controller"}
    assert all("controller.quorum.bootstrap.servers" not in one for one in several)
    alone = broker_config.server_properties(voters[0])
    assert alone["controller.quorum.bootstrap.servers"] == "127.0.0.1:9101"
    assert "controller.quorum.voters" not in alone


def test_each_broker_of_several_has_a_folder_and_ports_that_it_remembers(tmp_path: Path) -> None:
    def settled() -> list[Place]:
        members = Brokers(tmp_path, 3).members
        taken: list[int] = []
        for one in members:
            place = one.settle(avoid=taken)
            taken += [place.port, place.controller_port]
        assert len({one.cluster_id for one in members}) == 1
        assert len(set(taken)) == 6
        return [one.place for one in members]

    assert brokers_without_data(tmp_path, 3) == [1, 2, 3]
    first = settled()
    assert brokers_without_data(tmp_path, 3) == []
    assert settled() == first
    (tmp_path / "broker-2" / "broker.json").unlink()
    assert brokers_without_data(tmp_path, 3) == [2]
    assert [place.node for place in first] == [1, 2, 3]


def test_without_java_a_broker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match="no Java found"):
        Broker(tmp_path / "kafka").start()


@pytest.mark.parametrize("value", ["a\\b", "a\nb", "ä"])
def test_a_setting_that_the_format_would_change_is_a_bug(value: str) -> None:
    with pytest.raises(AssertionError):
        broker_config.properties_text({"key": value})


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)

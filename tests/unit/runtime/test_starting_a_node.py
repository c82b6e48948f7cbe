"""How a node starts: what it looks at before it serves, and how it ends where that cannot be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator import process
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.topics import Ensured
from coordinator.node.shell import EXIT_FAILED, EXIT_REFUSED
from coordinator.node.store import StoreError


def given(folder: Path, *more: str) -> argparse.Namespace:
    needed = {"--node": "1", "--roster": "1", "--cluster": "c", "--port": "8600"}
    words = [word for pair in needed.items() for word in pair]
    kafka = ["--bootstrap-servers", "h:1", "--data-dir", str(folder)]
    arguments = process.options().parse_args([*words, *kafka, *more])
    arguments.bootstrap_servers = "h:1"
    return arguments


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What nodes are configured with that come as far as to serve: Kafka has 8 partitions."""
    found: list[Any] = []

    async def serve(arguments: argparse.Namespace, *_: Any) -> int:
        found.append(process._config(arguments))
        return 0

    monkeypatch.setattr(process, "ensure_topics", lambda *_, **__: Ensured("kafka", 8))
    monkeypatch.setattr(process, "watermarks", lambda *_: (0, 0))
    monkeypatch.setattr(process, "_serve", serve)
    return found


def test_a_node_compares_genesis_with_the_partitions_that_kafka_has(
    tmp_path: Path, served: list[Any]
) -> None:
    assert process._run(given(tmp_path / "node")) == 0
    assert [config.sync_partitions for config in served] == [8]


def no_leader() -> KafkaException:
    return KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION, "no leader yet"))


def test_a_node_waits_for_the_leader_of_a_new_topic_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    served: list[Any],
) -> None:
    ends: list[Any] = [no_leader(), no_leader(), (0, 0)]

    def asked(*_: Any) -> Any:
        end = ends.pop(0)
        if isinstance(end, KafkaException):
            raise end
        return end

    monkeypatch.setattr(process, "watermarks", asked)
    assert process._run(given(tmp_path / "node")) == 0
    assert len(served) == 1
    assert caplog.messages.count("waiting for c.commit: no leader yet") == 2


def test_a_node_that_waits_in_vain_for_a_leader_says_what_kafka_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: list[Any]
) -> None:
    def asked(*_: Any) -> Any:
        raise no_leader()

    monkeypatch.setattr(process, "watermarks", asked)
    monkeypatch.setattr(process, "TOPICS_COME_S", 0.0)
    with pytest.raises(KafkaRefusal) as refusal:
        process._run(given(tmp_path / "node"))
    assert refusal.value.code == "kafka_error"
    assert served == []


def test_a_node_that_cannot_write_to_the_archive_does_not_start(
    tmp_path: Path, served: list[Any]
) -> None:
    """It would find out as the master, when records have to go."""
    archive = tmp_path / "archive"
    archive.touch()
    options = ("--history-archive", str(archive), "--history-retention")
    with pytest.raises(ArchiveError):
        process._run(given(tmp_path / "node", *options, "1d"))
    assert served == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaRefusal("topic_mismatch", "no"), EXIT_REFUSED),
        (StoreError("data_folder_mismatch", "no"), EXIT_REFUSED),
        (KafkaRefusal("kafka_unavailable", "no"), EXIT_FAILED),
        (StoreError("store_unusable", "no"), EXIT_FAILED),
    ],
)
def test_a_node_ends_for_good_where_starting_again_would_fail_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int
) -> None:
    ended: list[int] = []

    def fails(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(process, "_arguments", lambda: given(tmp_path))
    monkeypatch.setattr(process, "_run", fails)
    monkeypatch.setattr(process.sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(process.os, "_exit", ended.append)
    process.main()
    assert ended == [code]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--minimum", "1"), 0),
        (("--minimum", "2"), EXIT_REFUSED),
        (("--history-retention", "1d"), EXIT_REFUSED),
    ],
)
def test_what_one_node_alone_cannot_do_is_refused(
    tmp_path: Path, served: list[Any], options: tuple[str, ...], code: int
) -> None:
    """It cannot hold two copies, nor let history go without a place for it."""
    assert process._run(given(tmp_path / "node", *options)) == code
    assert len(served) == (code == 0)

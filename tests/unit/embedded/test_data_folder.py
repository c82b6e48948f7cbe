"""Whose a data folder is: it is never used for another cluster, nor by two runs at once."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.embedded import data_folder
from coordinator.embedded.data_folder import ClusterFile, claim, confirm, locked, read, reset
from coordinator.embedded.supervisor import RunOptions, check_data_folder, run
from coordinator.runtime.errors import EmbeddedError

DEMO = ClusterFile("demo", "external", 3, "127.0.0.1:9092")


def test_a_folder_remembers_its_cluster(tmp_path: Path) -> None:
    kept = claim(tmp_path, DEMO)
    confirm(tmp_path, kept, kafka_cluster_id="k1", bootstrap_servers="127.0.0.1:9092")
    again = claim(tmp_path, DEMO)
    assert again == replace(DEMO, kafka_cluster_id="k1")
    confirm(tmp_path, again, kafka_cluster_id="k1", bootstrap_servers="127.0.0.1:9999")
    assert read(tmp_path) == replace(again, bootstrap_servers="127.0.0.1:9999")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"cluster": "other"}, "data_folder_mismatch", "indexctl reset"),
        ({"mode": "embedded"}, "data_folder_mismatch", "--data-dir"),
        ({"nodes": 5}, "roster_mismatch", "--nodes 3"),
        ({"brokers": 3}, "brokers_mismatch", "--brokers 1"),
    ],
)
def test_a_folder_of_another_cluster_is_refused(
    tmp_path: Path, change: dict[str, object], code: str, says: str
) -> None:
    kept = claim(tmp_path, DEMO)
    confirm(tmp_path, kept, kafka_cluster_id="k1", bootstrap_servers=DEMO.bootstrap_servers)
    with pytest.raises(EmbeddedError) as refusal:
        claim(tmp_path, replace(DEMO, **change))  # type: ignore[arg-type]
    assert refusal.value.code == code
    assert says in refusal.value.message
    assert "\n" not in refusal.value.message
    assert read(tmp_path) == replace(DEMO, kafka_cluster_id="k1")


def test_an_attempt_that_never_reached_kafka_binds_nothing(tmp_path: Path) -> None:
    claim(tmp_path, DEMO)
    other = replace(DEMO, mode="embedded", nodes=5)
    assert claim(tmp_path, other) == other


@pytest.mark.parametrize("there", ["", "data", "data/deep"])
def test_a_refused_run_leaves_the_folder_as_it_was(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = RunOptions(
            http_port=taken.getsockname()[1], nodes=1, data_dir=tmp_path / "data" / "deep"
        )
        with pytest.raises(EmbeddedError) as refusal:
            run(options)
    assert refusal.value.code == "port_taken"
    assert sorted(tmp_path.rglob("*")) == before


def test_what_came_into_a_folder_is_left_there_with_its_lock(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with locked(folder):
        claim(folder, DEMO)
    assert read(folder) == DEMO
    with locked(folder):
        pass
    assert (folder / "run.lock").exists()


def test_a_folder_with_nothing_but_a_lock_can_be_reset(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "run.lock").touch()
    reset(folder)
    assert not folder.exists()


def test_another_kafka_is_refused(tmp_path: Path) -> None:
    kept = replace(DEMO, kafka_cluster_id="k1")
    with pytest.raises(EmbeddedError, match=r"data_folder_mismatch.*k1, not k2"):
        confirm(tmp_path, kept, kafka_cluster_id="k2", bootstrap_servers="127.0.0.1:9092")


def test_an_embedded_kafka_that_lost_its_data_is_refused(tmp_path: Path) -> None:
    embedded = replace(DEMO, mode="embedded")
    kept = claim(tmp_path, embedded)
    assert claim(tmp_path, embedded) == kept, "without a Kafka id nothing can be lost yet"
    confirm(tmp_path, kept, kafka_cluster_id="k1", bootstrap_servers="127.0.0.1:9092")
    with pytest.raises(EmbeddedError, match="data is gone"):
        claim(tmp_path, embedded)


def test_brokers_of_which_one_lost_its_data_are_refused(tmp_path: Path) -> None:
    """An empty one could be taken for one that has everything, and would overwrite the others."""
    embedded = replace(DEMO, mode="embedded", brokers=3)
    confirm(tmp_path, embedded, kafka_cluster_id="k1", bootstrap_servers="127.0.0.1:9092")
    for node in (1, 2, 3):
        folder = tmp_path / "kafka" / f"broker-{node}"
        folder.mkdir(parents=True)
        (folder / "broker.json").write_text("{}")
    assert claim(tmp_path, embedded).brokers == 3
    (tmp_path / "kafka" / "broker-2" / "broker.json").unlink()
    with pytest.raises(EmbeddedError, match="of which kafka/broker-2 is gone") as refusal:
        claim(tmp_path, embedded)
    assert refusal.value.code == "data_folder_mismatch"


def test_a_folder_from_before_there_were_several_brokers_has_one(tmp_path: Path) -> None:
    kept = {"format": 1, "cluster": "demo", "mode": "embedded", "nodes": 3}
    (tmp_path / data_folder.CLUSTER_FILE).write_text(json.dumps(kept))
    found = read(tmp_path)
    assert found is not None
    assert found.brokers == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "x": 1}'])
def test_a_cluster_file_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / data_folder.CLUSTER_FILE).write_text(text)
    with pytest.raises(EmbeddedError) as refusal:
        read(tmp_path)
    assert refusal.value.code == "data_folder_unusable"


def test_two_runs_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "LOCK_TIMEOUT_S", 0.0)
    claim(tmp_path, DEMO)
    with locked(tmp_path):
        for attempt in (lambda: run(RunOptions(data_dir=tmp_path)), lambda: reset(tmp_path)):
            with pytest.raises(EmbeddedError) as refusal:
                attempt()
            assert refusal.value.code == "data_folder_in_use"
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError) as refusal, locked(tmp_path / "file" / "folder"):
        pass
    assert refusal.value.code == "data_folder_unusable"


def test_reset_deletes_the_state_and_the_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    claim(folder, DEMO)
    for name in ("kafka/data", "node-1", "node-2", "indexer-1", "logs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    reset(folder)
    assert not folder.exists()


def test_reset_deletes_nothing_that_is_not_ours(tmp_path: Path) -> None:
    claim(tmp_path, DEMO)
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / "node-1").mkdir()
    reset(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_can_be_looked_at_before_its_reset(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError) as refusal:
        check_data_folder(tmp_path)
    assert refusal.value.code == "not_a_data_folder"
    claim(tmp_path, DEMO)
    before = sorted(tmp_path.rglob("*"))
    check_data_folder(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_reset_refuses_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    with pytest.raises(EmbeddedError) as refusal:
        reset(tmp_path)
    assert refusal.value.code == "not_a_data_folder"
    assert (tmp_path / "node-1").is_dir()

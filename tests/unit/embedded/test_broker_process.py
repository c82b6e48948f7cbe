"""A broker in the foreground: what it is told, and which folders it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.embedded import broker_process
from coordinator.embedded.broker_config import Place, server_properties
from coordinator.runtime.errors import EmbeddedError

PLACES = [Place(node, 9092, 9093, f"kafka-{node}") for node in (1, 2, 3)]
NAMED = [f"--place={p.node}@{p.host}:{p.port}:{p.controller_port}" for p in PLACES]
ID = "aW5kZXgtY29vcmRpbmF0bw"
META = f"version=1\ncluster.id={ID}\nnode.id=2\n"


def test_a_broker_listens_at_its_own_host_and_knows_the_hosts_of_the_others() -> None:
    settings = server_properties(PLACES[1], PLACES)
    assert settings["listeners"] == "PLAINTEXT://kafka-2:9092,CONTROLLER://kafka-2:9093"
    assert settings["controller.quorum.voters"] == "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"
    assert settings["min.insync.replicas"] == "2"


def test_the_places_of_a_command_line_are_read_as_they_are_written() -> None:
    found = broker_process.parser().parse_args(
        ["--node=2", f"--cluster-id={ID}", "--data-dir=x", *NAMED]
    )
    assert found.place == PLACES


@pytest.mark.parametrize(
    "arguments",
    [
        ["--node=4", *NAMED],
        ["--node=1", *NAMED, NAMED[0]],
        ["--node=1", "--place=1@kafka-1:9092"],
        ["--node=1"],
        ["--node=0", *NAMED],
    ],
)
def test_a_broker_that_is_not_among_the_places_once_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        broker_process.main([f"--cluster-id={ID}", "--data-dir=x", *arguments])


@pytest.mark.parametrize("text", ["", "short", "-W5kZXgtY29vcmRpbmF0bw", f"{ID}x", "x" * 21 + "/"])
def test_an_id_of_a_cluster_is_one_that_kafka_takes(text: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        broker_process.main(["--node=1", f"--cluster-id={text}", "--data-dir=x", *NAMED])


def test_the_data_of_another_broker_or_cluster_are_refused() -> None:
    broker_process.check_owner(META, ID, 2)
    for cluster_id, node in ((ID, 1), ("x" * 22, 2)):
        with pytest.raises(EmbeddedError, match="broker 2 of the Kafka cluster"):
            broker_process.check_owner(META, cluster_id, node)


def test_the_compose_file_has_an_id_that_the_broker_takes() -> None:
    text = (Path(__file__).parents[3] / "docker" / "compose.yaml").read_text()
    found = re.findall(r"\$\{KAFKA_CLUSTER_ID:-([^}]+)\}", text)
    assert found
    assert all(broker_process.CLUSTER_ID.fullmatch(one) for one in found)

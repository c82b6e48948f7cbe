"""The application on a cluster of Spark: workers that are processes, and that are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import RESTART
from tests.integration.spark_cluster import SparkCluster
from tests.integration.streaming import (
    READY_S,
    Timestamps,
    Topics,
    a_long_input,
    checked,
    outcome,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SETTINGS = {"period_ms": 300, "sync_missing_ms": 3_600_000}


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_input_gives_the_same_output_on_worker_processes_as_in_one(
    broker: Broker, tmp_path: Path, workers: int
) -> None:
    outcomes = []
    with SparkCluster(tmp_path / "spark", workers) as spark:
        there = ["--executors-from", "0", *spark.options()]
        for name, options in (("here", []), ("there", there)):
            topics = Topics(broker.bootstrap_servers)
            a_long_input(topics)
            application = Timestamps(topics, tmp_path, name)
            application.begin("--until-read", "--tick-ms", "0", "--offsets-max", "1000", *options)
            assert application.wait(READY_S) == 0, application.said[-2000:]
            outcomes.append(outcome(topics))
        assert "Registered app" in spark.master.said
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "victims",
    [("worker",), pytest.param(("executor", "worker"), marks=pytest.mark.matrix)],
    ids=["worker", "executor and worker"],
)
def test_a_worker_that_is_killed_costs_nothing(
    broker: Broker, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    topics = Topics(broker.bootstrap_servers)
    streams = topics.bucket(**SETTINGS).begin().sync(10)
    application = Timestamps(topics, tmp_path)
    with SparkCluster(tmp_path / "spark", 2) as spark:
        try:
            application.begin(*spark.options())
            topics.reaches(10)
            seqno = 10
            for victim in victims:
                running = [w for w in spark.workers if w.executors()]
                if victim == "executor":
                    running[0].executors()[0].kill()
                else:
                    running[0].kill()
                seqno += 10
                streams.sync(seqno)
                topics.reaches(seqno)
            assert application.runs, application.said[-2000:]
            application.stop()
        finally:
            application.kill()
    checked(topics.history())
    assert topics.letters() == []
    assert topics.read(RESTART) == []

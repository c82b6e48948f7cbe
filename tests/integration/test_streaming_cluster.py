"""The application on a cluster of Spark: workers that are processes, and that are killed."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import RESTART
from streaming.spark.jars import spark_classpath
from tests.integration.cluster import wait_until
from tests.integration.spark_cluster import SparkCluster
from tests.integration.streaming import (
    NOW_MS,
    QUICK,
    READY_S,
    Timestamps,
    Topics,
    a_long_input,
    checked,
    outcome,
)
from tests.integration.submitted import Submitted

pytestmark = [pytest.mark.integration, pytest.mark.matrix, pytest.mark.timeout(600)]


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


def test_an_executor_and_a_worker_that_are_killed_cost_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    topics = Topics(broker.bootstrap_servers)
    streams = topics.bucket(**QUICK).begin().sync(10)
    application = Timestamps(topics, tmp_path)
    with SparkCluster(tmp_path / "spark", 2) as spark:
        try:
            application.begin(*spark.options())
            topics.reaches(10)
            seqno = 10
            for victim in ("executor", "worker"):
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
    assert topics.dead_letters() == []
    assert topics.read(RESTART) == []


def test_a_cluster_without_a_worker_is_told_of_until_there_is_one(
    broker: Broker, tmp_path: Path
) -> None:
    topics = Topics(broker.bootstrap_servers)
    streams = topics.bucket(**QUICK).begin().sync(10)
    application = Timestamps(topics, tmp_path)
    with SparkCluster(tmp_path / "spark", 1) as spark:
        (worker,) = spark.workers
        try:
            application.begin(*spark.options())
            topics.reaches(10)
            executors = worker.executors()
            worker.kill()
            for executor in executors:
                executor.kill()
            streams.sync(20)
            wait_until(lambda: "has given none" in application.said, "it says so", READY_S)
            assert "well again" not in application.said
            worker.start()
            topics.reaches(20)
            wait_until(lambda: "executors: well again" in application.said, "and this", READY_S)
            application.stop()
        finally:
            application.kill()
    checked(topics.history())


def test_spark_submit_has_the_last_word(broker: Broker, tmp_path: Path) -> None:
    """Master, memory and settings are those of its command line; the packages have to be there."""
    topics = Topics(broker.bootstrap_servers)
    topics.bucket(**QUICK).begin().sync(10)
    topics.tick(NOW_MS)
    with SparkCluster(tmp_path / "spark", 1) as spark:
        _, master, *settings = [one.replace("--spark-conf", "--conf") for one in spark.options()]
        given = ["--master", master, *settings, "--driver-memory", "456m"]
        without = Submitted(topics, tmp_path, "without", given)
        without.begin("--until-read")
        assert without.wait(READY_S) == 1
        assert "[spark_packages_missing]" in without.said
        jars = spark_classpath().replace(os.pathsep, ",")
        application = Submitted(topics, tmp_path, "with", [*given, "--jars", jars])
        application.begin("--tick-ms", "0", "--executors-from", "0")
        try:
            topics.reaches(10)
            jvm = psutil.Process(application.pid)
            assert "-Xmx456m" in jvm.cmdline()
            assert "Registered app" in spark.master.said
            application.stop_jvm()
        finally:
            application.kill()
    checked(topics.history())

"""The application on Spark as a process: killed at every point, twice at once, without Kafka.

Each start takes seconds, so each test goes through several faults one after the other: what one
leaves behind is where the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException

from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import RESTART
from coordinator.runtime.java import find_java
from streaming.spark.crash_points import CRASH_POINTS, WITHIN
from streaming.spark.jars import spark_classpath
from streaming.spark.session import class_archive_of
from tests.integration.cluster import wait_until
from tests.integration.streaming import BUCKET, QUICK, READY_S, Timestamps, Topics, checked, jvm_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EX_CONFIG, KILLED = 78, -9

Make = Callable[..., Timestamps]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make applications that end with the test."""
    made: list[Timestamps] = []

    def one(topics: Topics, name: str = "timestamps") -> Timestamps:
        made.append(Timestamps(topics, tmp_path, name))
        return made[-1]

    yield one
    for child in made:
        child.kill()


def uses_class_archive(jvm: psutil.Process) -> bool:
    """Tell whether a JVM of Spark has mapped its class archive, if one was made."""
    archive = class_archive_of(find_java().path, spark_classpath())
    assert archive is not None
    return not archive.exists() or str(archive) in {one.path for one in jvm.memory_maps()}


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "points",
    [(WITHIN,), pytest.param(CRASH_POINTS, marks=pytest.mark.matrix)],
    ids=["one", "all"],
)
def test_whatever_is_killed_when_nothing_is_lost_or_doubled(
    broker: Broker, make: Make, points: tuple[str, ...]
) -> None:
    """What is killed before a transaction leaves less behind than what is killed within it. In the
    end another application takes over: `make chaos` has that."""
    topics = Topics(broker.bootstrap_servers)
    streams = topics.bucket(**QUICK).begin()
    sick = topics.bucket("sick", 4, **QUICK).begin().sync(10)
    application = make(topics)
    seqno = 0
    for number, point in enumerate(points, 1):
        seqno += 10
        streams.sync(seqno)
        streams.ask(number, ())
        sick.lose(0, 5)
        # Not in its first transaction: by then it has published what the one before left.
        application.begin("--crash-at", f"{point}:8", "--tick-ms", "50")
        jvm = _jvm(application)
        assert application.wait(READY_S) == KILLED, application.said[-2000:]
        wait_until(lambda jvm=jvm: gone(jvm), "its JVM is gone")
        checked(topics.history())
    streams.sync(seqno + 10)
    streams.end()
    streams.begin().sync(seqno + 20)
    application.begin()
    topics.reaches(seqno + 20)
    jvm = jvm_of(application)
    assert uses_class_archive(jvm)
    if points != (WITHIN,):
        newer = make(topics, "newer")
        newer.begin()
        assert application.wait(READY_S) == EX_CONFIG, "of two applications the newer one goes on"
        assert "another application" in application.said.splitlines()[-1]
        wait_until(lambda: gone(jvm), "its JVM is gone")
        streams.sync(seqno + 30)
        topics.reaches(seqno + 30)
        application, jvm = newer, jvm_of(newer)
    application.stop()
    wait_until(lambda: gone(jvm), "its JVM is gone")
    checked(topics.history())
    assert topics.stability() == topics.history()[-1]
    assert topics.dead_letters() == []
    told = topics.read(RESTART)
    assert [one.number for one in told if one.bucket == BUCKET] == list(range(1, len(points) + 1))
    assert [one.round for one in told if one.bucket == BUCKET] == list(range(1, len(points) + 1))
    assert [(one.reason, one.vbucket) for one in told if one.bucket == "sick"] == [
        ("seqno_regressed", 0)
    ]


def _jvm(application: Timestamps) -> psutil.Process:
    def found() -> psutil.Process | None:
        try:
            return jvm_of(application)
        except StopIteration:
            return None

    return wait_until(found, "there is a JVM")


def _is_well(topics: Topics) -> None:
    checked(topics.history())
    last = topics.history()[-1]
    assert topics.stability() == last
    assert topics.dead_letters() == []
    assert topics.read(RESTART) == []


@pytest.mark.matrix
def test_an_application_goes_on_when_kafka_was_away_and_ends_while_it_is(
    tmp_path: Path, make: Make
) -> None:
    with Broker(tmp_path / "kafka") as broker:
        topics = Topics(broker.bootstrap_servers)
        streams = topics.bucket(**QUICK).begin().sync(10)
        application = make(topics)
        application.begin()
        topics.reaches(10)
        broker.stop()
        wait_until(lambda: "trying again" in application.said, "it has noticed", 60)
        broker.start()
        streams.sync(20)
        topics.reaches(20)
        assert application.runs
        broker.stop()
        application.stop_impatiently()
        broker.start()
        wait_until(lambda: _leads(topics), "all topics have a leader again")
        _is_well(topics)


def _leads(topics: Topics) -> bool:
    try:
        topics.history()
    except KafkaException:
        return False
    return True


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tick-ms", "-1"],
        ["--spark-conf", "nothing"],
        ["--offsets-max", "1"],
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], tmp_path: Path) -> None:
    from streaming.__main__ import parser

    needed = ["timestamps", "--cluster", "c", "--bootstrap-servers", "s", "--data-dir", "d"]
    assert parser().parse_args(needed).tick_ms == 250
    with pytest.raises(SystemExit) as refused:
        parser().parse_args([*needed, *arguments])
    assert refused.value.code == 2

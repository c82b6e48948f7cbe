"""Whether Spark has executors: what is said, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.kafka.state_follower import StatusLog
from streaming.spark import executors
from streaming.spark.executors import ExecutorWatch, executors_watched

MASTER = "spark://127.0.0.1:7077"
GONE = f"archive: Spark's executors: {MASTER} has given none, and tasks wait; trying again"
BACK = "archive: Spark's executors: well again"


class Cluster:
    """What a session tells of its tasks and executors; the driver is among them."""

    def __init__(self, master: str = MASTER) -> None:
        self.master = master
        self.waits: list[int] = []
        self.executors = 1
        self.asked = 0
        self.sparkContext: Any = self
        self._jsc = SimpleNamespace(sc=lambda: self)

        self.statusTracker = self._tracker
        self.getExecutorMemoryStatus = lambda: SimpleNamespace(size=lambda: self.executors)

    def _tracker(self) -> Any:
        self.asked += 1
        return SimpleNamespace(getActiveStageIds=lambda: self.waits)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_tasks_that_nobody_runs_are_told_of_once_and_that_somebody_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster: Any = Cluster()
    watch = ExecutorWatch(cluster, StatusLog("archive"))
    for waits, others, said in (
        ([], 0, []),
        ([1], 0, []),
        ([1], 0, [GONE]),
        ([1], 0, []),
        ([1], 1, [BACK]),
        ([1], 0, []),
        ([], 0, []),
        ([1], 0, []),
        ([1], 0, [GONE]),
        ([], 2, [BACK]),
    ):
        cluster.waits, cluster.executors = waits, 1 + others
        watch.check()
        assert told(capsys) == said


def test_a_session_without_a_jvm_is_not_its_business(capsys: pytest.CaptureFixture[str]) -> None:
    cluster: Any = Cluster()
    watch = ExecutorWatch(cluster, StatusLog("archive"))
    del cluster._jsc
    for _ in range(3):
        watch.check()
    assert told(capsys) == []


@pytest.mark.parametrize("master", ["local[2]", MASTER])
def test_it_looks_for_as_long_as_it_is_asked_to_where_others_run_the_tasks(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "LOOK_S", 0.001)
    cluster: Any = Cluster(master)
    with executors_watched(cluster, StatusLog("archive")):
        while master == MASTER and cluster.asked < 3:
            pass
    assert (cluster.asked > 0) == (master == MASTER)

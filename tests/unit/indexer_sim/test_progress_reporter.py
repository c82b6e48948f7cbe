"""What an indexer tells of itself: of which buckets, of which builds, and by which client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.model.entities import BACKFILL, MAINTENANCE
from coordinator.kafka.topics import HW
from indexer_sim.bucket.entries import State
from indexer_sim.bucket.storage import Storage
from indexer_sim.pipeline import progress_reporter
from indexer_sim.pipeline.late_beats import LateBeats
from indexer_sim.pipeline.mutation_reader import MutationQueue
from indexer_sim.pipeline.progress_reporter import ProgressReporter, _is_built
from tests.support.indexes import make_index


class Client:
    """A client of Kafka that fails once, as it is told."""

    def __init__(self, fails: list[KafkaError]) -> None:
        self._fails = fails

    def produce(self, *_: Any, **__: Any) -> None:
        if self._fails:
            raise KafkaException(self._fails.pop())

    def poll(self, _: float) -> None:
        pass


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path, "indexer 1 of cluster demo")
    made.allocate("b", 7, frozenset({0}), b"")
    made.know("b", 4)
    yield made
    made.close()


def reporter(storage: Storage) -> ProgressReporter:
    log: Any = SimpleNamespace(problem=lambda *_: None, resolved=lambda _: None)
    threads: Any = SimpleNamespace(make=lambda *_: None)
    return ProgressReporter(
        *("", "c", (1, 1), 1.0),
        *(storage, MutationQueue(), log, threads, tuple, LateBeats(1.0)),
    )


@pytest.mark.parametrize(("is_fatal", "made"), [(True, 2), (False, 1)])
def test_a_client_that_has_failed_for_good_is_made_anew(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, is_fatal: bool, made: int
) -> None:
    fails = [KafkaError(KafkaError._FAIL, "no", fatal=is_fatal)]
    clients: list[Client] = []

    def make(_: Any) -> Client:
        clients.append(Client(fails))
        return clients[-1]

    monkeypatch.setattr(progress_reporter, "Producer", make)
    one = reporter(storage)
    for _ in range(3):
        one._tell()
    assert len(clients) == made
    assert fails == []


def test_of_a_bucket_that_only_the_database_knows_nothing_is_told(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    one = reporter(storage)
    monkeypatch.setattr(one, "_send", lambda topic, *_, **__: told.append(topic))
    (bucket,) = storage.buckets()
    bucket.stale = True
    one._tell()
    assert HW not in told
    bucket.stale = False
    one._tell()
    assert HW in told


@pytest.mark.parametrize(
    ("state", "held", "is_built"),
    [
        (BACKFILL, State(2, True), True),
        (BACKFILL, State(2, False), False),
        (BACKFILL, State(1, True), False),
        (MAINTENANCE, State(2, True), False),
    ],
)
def test_a_build_is_told_of_that_somebody_waits_for(
    state: str, held: State, is_built: bool
) -> None:
    assert _is_built(make_index(7, state=state, build=2), held) is is_built

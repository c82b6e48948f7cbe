"""Agents of a node: what they make of records, how they end, and what is logged meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from coordinator import codec
from coordinator.core.model.records import CommitRecord, Unreadable
from coordinator.core.model.types import Offset
from coordinator.kafka.agents import REPEAT_S, Folds, Sparing, _Agent, _commit_read, _decoded
from coordinator.kafka.errors import KafkaRefusal


def record_of(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", logging.ERROR, "", 0, message, arguments, None)


def test_a_fault_that_lasts_is_told_once_in_a_while() -> None:
    now_s = 0.0
    sparing = Sparing(lambda: now_s)
    assert sparing.filter(record_of("no answer from %d", 1))
    assert not sparing.filter(record_of("no answer from %d", 2))
    assert sparing.filter(record_of("another fault"))
    now_s = REPEAT_S
    assert sparing.filter(record_of("no answer from %d", 1))
    assert not sparing.filter(record_of("no answer from %d", 1))


PLACE = TP("c.commit", 0)


class Stream:
    """Events that are there, and then whatever `end` does."""

    def __init__(self, end: BaseException | None, *values: bytes) -> None:
        self._end, self._values = end, values

    async def events(self) -> AsyncIterator[Any]:
        for offset, value in enumerate(self._values):
            yield SimpleNamespace(message=SimpleNamespace(offset=offset), value=value)
        if self._end is not None:
            raise self._end


def agent_of(folded: list[Any]) -> _Agent:
    return _Agent(PLACE, {PLACE: 0}, _commit_read, folded.append)


def folds_at(servers: str, folder: Path) -> Folds:
    return Folds(
        bootstrap_servers=servers,
        cluster="c",
        group="c.node",
        begin=Offset(0),
        fold_and_store=[].append,
        data_dir=str(folder),
    )


def test_a_start_without_a_broker_is_refused_in_words(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(KafkaRefusal) as refusal:
            await folds_at("localhost:1", tmp_path).start()
        assert refusal.value.code == "kafka_unavailable"
        assert "localhost:1" in refusal.value.message

    asyncio.run(run())


@pytest.mark.parametrize("end", [None, IndexError("odd"), asyncio.CancelledError()])
def test_an_agent_that_reads_no_more_has_failed(end: BaseException | None) -> None:
    async def run() -> None:
        folded: list[Any] = []
        agent = agent_of(folded)
        assert agent.failure == ""
        await asyncio.gather(agent.run(Stream(end, b"a", b"b")), return_exceptions=True)
        assert "c.commit reads no more" in agent.failure
        assert folded == [_commit_read(0, b"a"), _commit_read(1, b"b")]

    asyncio.run(run())


def test_the_consumer_of_the_agents_lives_in_the_loop_of_the_node(tmp_path: Path) -> None:
    async def run() -> None:
        consumer: Any = folds_at("localhost:1", tmp_path).app.consumer
        assert consumer._thread.loop is asyncio.get_running_loop()

    asyncio.run(run())


@pytest.mark.parametrize("error", [RecursionError("deep"), IndexError("odd"), MemoryError()])
def test_nothing_that_stands_on_a_topic_ends_an_agent(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(data: bytes) -> Any:
        raise error

    monkeypatch.setattr(codec, "decode", stumble)
    found = _decoded(b"anything", CommitRecord)
    assert found == Unreadable(f"unreadable: {type(error).__name__}")

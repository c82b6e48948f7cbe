"""The shell without a broker: readers of an earlier mastership, failures, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.codec import Codec
from coordinator.core.consensus import inputs
from coordinator.core.consensus.effects import Examine, ReadDdl, StopDdl
from coordinator.core.model.commands import Position, Request, SkipRecord
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.node import shell as shells
from coordinator.node.shell import EXIT_FAILED, STOPPING, Shell
from coordinator.node.store import Store

NOBODY = "127.0.0.1:1"


def with_shell(folder: Path, check: Callable[[Shell], Coroutine[Any, Any, None]]) -> None:
    """Run `check` with a shell that has no broker and no running node."""

    async def run() -> None:
        config = NodeConfig(node=1, roster=(1,), address="", pid=1, incarnation=1, cluster_id="c")
        shell = Shell(Node(config, Codec()), Store(folder), NOBODY, "c", str(folder))
        try:
            await check(shell)
        finally:
            await shell.close()

    asyncio.run(run())


def test_what_an_earlier_mastership_read_from_ddl_is_not_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(shell: Shell) -> None:
        fed: list[inputs.Input] = []
        monkeypatch.setattr(shell, "feed", fed.append)
        requests = (Request(command=SkipRecord("", b""), position=Position(0, 100)),)
        earlier = shell._ddl_reading
        shell._stop_ddl(StopDdl())
        shell._take_ddl(earlier, requests)
        assert fed == []
        shell._take_ddl(shell._ddl_reading, requests)
        assert fed == [inputs.DdlRead(requests)]

    with_shell(tmp_path, check)


def test_a_master_that_cannot_read_ddl_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> tuple[int, int]:
        raise RuntimeError("the broker is away")

    async def check(shell: Shell) -> None:
        monkeypatch.setattr(shells, "watermarks", fail)
        shell._read_ddl(ReadDdl(()))
        await asyncio.wait_for(shell.stopped.wait(), 5)
        assert shell.exit_code == EXIT_FAILED

    with_shell(tmp_path, check)


AWAY = KafkaError(KafkaError._TIMED_OUT, "Failed to get watermark offsets")


@pytest.mark.thorough
def test_a_master_whose_broker_is_away_reads_ddl_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[KafkaError | None] = [AWAY, None, AWAY, AWAY]

    def ask(*_: object) -> tuple[int, int]:
        error = answers.pop(0) if answers else None
        if error is not None:
            raise KafkaException(error)
        return 0, 5

    async def check(shell: Shell) -> None:
        monkeypatch.setattr(shells, "watermarks", ask)
        shell._read_ddl(ReadDdl(()))
        async with asyncio.timeout(60):
            while shell._ddl is None:
                await asyncio.sleep(0.01)
        assert not answers
        assert not shell.stopped.is_set()

    with_shell(tmp_path, check)


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        pytest.param(AWAY, True, id="the broker is away"),
        pytest.param(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE), False, id="it is lost"),
    ],
)
def test_a_master_reads_the_end_of_the_state_once_the_broker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KafkaError, goes_on: bool
) -> None:
    errors = [error, error]

    def events(*_: object) -> list[list[str]]:
        if errors:
            raise KafkaException(errors.pop())
        return [["an event"], ["another"]]

    async def check(shell: Shell) -> None:
        fed: list[inputs.Input] = []
        monkeypatch.setattr(shell, "feed", fed.append)
        monkeypatch.setattr(shells, "AWAY_PAUSE_S", 0.01)
        monkeypatch.setattr(shell._sources, "events", events)
        async with asyncio.timeout(60):
            await shell._read_above(3, Cas(7))
        assert fed == ([inputs.TailRead(3, ("an event", "another"))] if goes_on else [])  # type: ignore[arg-type]
        assert shell.stopped.is_set() != goes_on

    with_shell(tmp_path, check)


@pytest.mark.parametrize("ends", ["the mastership", "the node"])
def test_nobody_waits_for_a_broker_any_more_who_reads_no_ddl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    asked = threading.Event()

    def away(*_: object) -> tuple[int, int]:
        asked.set()
        raise KafkaException(AWAY)

    async def check(shell: Shell) -> None:
        monkeypatch.setattr(shells, "watermarks", away)
        starting = asyncio.create_task(shell._start_ddl(shell._ddl_reading, {}))
        async with asyncio.timeout(60):
            await asyncio.to_thread(asked.wait)
            if ends == "the mastership":
                shell._stop_ddl(StopDdl())
            else:
                shell.stop()
            await starting
        assert shell._ddl is None
        assert shell.exit_code == 0

    with_shell(tmp_path, check)


def test_callers_hear_of_a_stop_at_once(tmp_path: Path) -> None:
    async def check(shell: Shell) -> None:
        deadline = shell.now().mono_ms + 15_000
        asking = asyncio.create_task(
            shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, 999))
        )
        await asyncio.sleep(0)
        shell.stop()
        assert await asyncio.wait_for(asking, 60) == STOPPING
        late = shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, 999))
        assert await asyncio.wait_for(late, 60) == STOPPING
        assert shell.exit_code == 0

    with_shell(tmp_path, check)


def test_a_signal_does_not_hide_a_failure(tmp_path: Path) -> None:
    async def check(shell: Shell) -> None:
        shell._stop(EXIT_FAILED)
        shell.stop()
        assert shell.exit_code == EXIT_FAILED

    with_shell(tmp_path, check)


class DeadReader:
    has_died = True

    def stop(self) -> None:
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["_beats", "_acks", "_streams", "_ddl"])
def test_a_node_with_a_dead_reader_ends_with_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def check(shell: Shell) -> None:
        monkeypatch.setattr(shell, name, DeadReader())
        await asyncio.wait_for(shell._tick(), 5)
        assert shell.exit_code == EXIT_FAILED

    with_shell(tmp_path, check)


def test_a_task_that_failed_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node waits for what the task would have fed."""

    def fail(*_: object) -> int:
        raise RuntimeError("the consumer is closed")

    async def check(shell: Shell) -> None:
        monkeypatch.setattr(shell._probe_log, "end", fail)
        shell._examine(Examine(1))
        await asyncio.wait_for(shell.stopped.wait(), 5)
        assert shell.exit_code == EXIT_FAILED

    with_shell(tmp_path, check)


def test_what_fails_while_all_ends_changes_no_exit_code(tmp_path: Path) -> None:
    async def check(shell: Shell) -> None:
        shell._stop(0)
        shell._reader_failed("its consumer is closed")
        await asyncio.sleep(0)
        assert shell.exit_code == 0

    with_shell(tmp_path, check)


class Record:
    """A message of the client, as far as readers look at it."""

    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def topic(self) -> str:
        return "c.ddl"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def test_commands_are_handed_over_as_they_are_examined_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that stand behind slow ones need not wait with them, nor those before."""

    async def check(shell: Shell) -> None:
        fed: list[inputs.DdlRead] = []
        monkeypatch.setattr(shell, "feed", fed.append)
        number = 2 * shells.DDL_PORTION + 1
        messages: list[Any] = [Record(n, b"no command") for n in range(number)]
        await asyncio.to_thread(shell._ddl_read, shell._ddl_reading, messages)
        await asyncio.sleep(0)
        assert [len(read.requests) for read in fed] == [shells.DDL_PORTION] * 2 + [1]
        offsets = [r.position.offset for read in fed for r in read.requests if r.position]
        assert offsets == list(range(number))

    with_shell(tmp_path, check)


class StubbornFold:
    """Agents whose stop swallows a cancellation, and takes until `released`."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def stop(self) -> None:
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            await self.released.wait()


class CancelledFold:
    """Agents whose stop ends by a cancellation that nobody here has asked for."""

    released = asyncio.Event()

    async def stop(self) -> None:
        raise asyncio.CancelledError


class BrokenFold(CancelledFold):
    async def stop(self) -> None:
        raise RuntimeError("the consumer is gone")


@pytest.mark.parametrize("kind", [StubbornFold, CancelledFold, BrokenFold])
def test_however_the_agents_end_the_store_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(shells, "FOLD_STOP_S", 0.05)
    closed: list[bool] = []

    async def check(shell: Shell) -> None:
        fold = kind()
        monkeypatch.setattr(shell, "_fold", fold)
        monkeypatch.setattr(shell._store, "close", lambda: closed.append(True))
        async with asyncio.timeout(60):
            await shell.close()
        monkeypatch.undo()
        shell._fold = None
        fold.released.set()

    with_shell(tmp_path, check)
    assert closed == [True]

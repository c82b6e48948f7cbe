"""The shell without a broker: readers of an earlier mastership, failures, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from coordinator import shell as shells
from coordinator.codec import Codec
from coordinator.core import inputs
from coordinator.core.commands import Position, Request, SkipRecord
from coordinator.core.config import NodeConfig
from coordinator.core.effects import ReadDdl, StopDdl
from coordinator.core.node import Node
from coordinator.shell import EXIT_FAILED, STOPPING, Shell
from coordinator.store import Store

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
        requests = (Request(SkipRecord("", b""), position=Position(0, 100)),)
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


def test_callers_hear_of_a_stop_at_once(tmp_path: Path) -> None:
    async def check(shell: Shell) -> None:
        deadline = shell.now().mono_ms + 15_000
        asking = asyncio.create_task(
            shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, 999))
        )
        await asyncio.sleep(0)
        shell.stop()
        assert await asyncio.wait_for(asking, 1) == STOPPING
        late = shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, 999))
        assert await asyncio.wait_for(late, 1) == STOPPING
        assert shell.exit_code == 0

    with_shell(tmp_path, check)


def test_a_signal_does_not_hide_a_failure(tmp_path: Path) -> None:
    async def check(shell: Shell) -> None:
        shell._stop(EXIT_FAILED)
        shell.stop()
        assert shell.exit_code == EXIT_FAILED

    with_shell(tmp_path, check)

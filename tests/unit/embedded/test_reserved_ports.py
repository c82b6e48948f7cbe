"""Ports of tests: nobody else of them gets one that is held."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.runtime.files import FileLock
from tests.support import ports

HELD, OTHER = 29_998, 29_999
PICK = "from tests.support import ports; print(ports.reserve_port())"


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """What is chosen, one after the other, whatever is free; other runs hold theirs elsewhere."""
    monkeypatch.setattr(ports, "FOLDER", tmp_path / "ports")
    chosen = [HELD, OTHER]
    monkeypatch.setattr(ports, "pick_free", lambda **_: chosen.pop(0))
    monkeypatch.setattr(ports, "is_free", lambda _: True)
    monkeypatch.setattr(ports, "_held", [])
    yield chosen
    ports.give_back()


def test_a_port_that_another_holds_is_passed_over(picked: list[int]) -> None:
    ports.FOLDER.mkdir(mode=0o700, exist_ok=True)
    another = FileLock(ports.FOLDER / str(HELD))
    assert another.acquire()
    try:
        assert ports.reserve_port() == OTHER
    finally:
        another.path.unlink()
        another.release()


def test_what_is_given_back_can_be_reserved_again_and_leaves_nothing(picked: list[int]) -> None:
    assert ports.reserve_port() == HELD
    ports.give_back()
    assert not (ports.FOLDER / str(HELD)).exists()
    picked.insert(0, HELD)
    assert ports.reserve_port() == HELD


def test_a_process_that_ends_holds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PICK], capture_output=True, check=True, text=True, env=os.environ
    )
    assert not (ports.FOLDER / done.stdout.strip()).exists()

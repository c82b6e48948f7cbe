"""Ports are checked before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.embedded import ports
from coordinator.embedded.supervisor import RunOptions, run
from coordinator.runtime.errors import EmbeddedError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", ports.pick_free())) as server:
        yield server.getsockname()[1]


def test_a_port_with_a_listener_is_not_free(taken: int) -> None:
    assert not ports.is_free(taken)
    assert ports.accepts(taken)


def test_a_picked_port_is_free_and_none_of_those_to_avoid(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.pick_free()
    monkeypatch.setattr(ports, "PICK_FROM", range(first, first + 2))
    assert ports.is_free(first)
    assert ports.pick_free(avoid=(first,)) != first


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_taken_http_port_refuses_the_run_by_name(tmp_path: Path, taken: int, before: int) -> None:
    with pytest.raises(EmbeddedError) as refusal:
        run(RunOptions(data_dir=tmp_path, http_port=taken - before))
    assert refusal.value.code == "port_taken"
    assert "--http-port" in refusal.value.message
    assert not (tmp_path / "cluster.json").exists()


def test_ports_beyond_the_last_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError) as refusal:
        run(RunOptions(data_dir=tmp_path, http_port=65_534))
    assert refusal.value.code == "usage"

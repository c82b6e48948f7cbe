"""Folders and files of a process are its owner's alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.embedded.data_folder import locked
from coordinator.private import private_folder


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_what_is_made_from_then_on_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    private_folder(folder)
    (folder / "file").write_text("x")
    (folder / "inner").mkdir()
    found = [mode(path) for path in (folder.parent, folder, folder / "inner", folder / "file")]
    assert found == [0o700, 0o700, 0o700, 0o600]


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_the_folder_of_a_run_is_private_and_so_is_all_that_its_children_make(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with locked(folder):
        assert mode(folder) == 0o700
        assert mode(folder / "run.lock") == 0o600
        os.system(f"touch {folder}/log")
        assert mode(folder / "log") == 0o600

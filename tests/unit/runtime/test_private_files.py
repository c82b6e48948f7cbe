"""What a process writes is for its own user alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.embedded.data_folder import locked
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.private_files import keep_private


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_afterwards_is_private(tmp_path: Path) -> None:
    assert keep_private(tmp_path / "new") == ""
    (tmp_path / "new" / "inner").mkdir(parents=True)
    (tmp_path / "new" / "file").write_text("x")
    assert mode(tmp_path / "new") == mode(tmp_path / "new" / "inner") == 0o700
    assert mode(tmp_path / "new" / "file") == 0o600


def test_a_folder_that_is_there_becomes_private(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir(mode=0o755)
    assert keep_private(folder) == ""
    assert mode(folder) == 0o700


def test_a_folder_that_cannot_be_made_private_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(Path, "chmod", refused)
    assert "not yours" in keep_private(tmp_path)


def test_what_is_somebody_elses_keeps_its_mode(tmp_path: Path) -> None:
    """A wrong --data-dir must not shut others out of a folder, or make a file executable."""
    file = tmp_path / "README.md"
    file.write_text("x")
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    with pytest.raises(EmbeddedError, match="cannot be used"), locked(file):
        pass
    assert keep_private(file) == ""
    with locked(tmp_path):
        pass
    assert (mode(file), mode(tmp_path)) == (0o644, 0o755)


def test_the_folder_of_a_run_is_private_and_so_is_all_that_its_children_make(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with locked(folder):
        assert mode(folder) == 0o700
        assert mode(folder / "run.lock") == 0o600
        os.system(f"touch {folder}/log")
        assert mode(folder / "log") == 0o600

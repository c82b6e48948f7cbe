"""What every database keeps to, whoever uses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from coordinator.embedded.data_folder import locked as data_folder_locked
from coordinator.node.store import Store
from coordinator.runtime.files import make_durably
from coordinator.runtime.rocksdb import (
    OPENING,
    READING,
    WRITING,
    Database,
    options_of,
)
from projector_sim.kv.server import _locked as locked
from tests.support.limits import file_size_limit


class FailedError(Exception):
    """What the database of these tests raises."""


class Plain(Database):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, lambda: options_of(write_buffer_bytes=1 << 20, files_max=16))

    def failure(self, doing: str, error: Exception) -> Exception:
        return FailedError(doing)


def batch(*pairs: tuple[bytes, bytes]) -> WriteBatch:
    made = WriteBatch(raw_mode=True)
    for key, value in pairs:
        made.put(key, value)
    return made


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    database = Plain(tmp_path / "a" / "b")
    database.write(batch((b"k", b"v")), sync=True)
    database.let_go()
    assert database.get_all([b"k", b"other"]) == [b"v", None]
    assert database.get(b"k") == b"v"
    database.let_go()
    database.let_go()


def test_a_refused_write_closes_it_and_a_later_one_opens_it_again(tmp_path: Path) -> None:
    database = Plain(tmp_path / "db")
    database.write(batch((b"first", b"1")), sync=True)
    refused = batch(*((b"%d" % n, os.urandom(4096)) for n in range(64)))
    with file_size_limit(64 * 1024), pytest.raises(FailedError, match=WRITING):
        database.write(refused, sync=True)
    assert database._db is None, "RocksDB takes no later batch without the refused one"
    database.write(batch((b"second", b"2")), sync=True)
    assert database.get_all([b"first", b"second"]) == [b"1", b"2"]
    database.let_go()


def test_each_failure_says_what_was_being_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FailedError, match=OPENING):
        Plain(tmp_path / "file" / "db").opened()
    database = Plain(tmp_path / "db")
    database.opened().close()
    with pytest.raises(FailedError, match=READING):
        database.get(b"k")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what was synced, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


def test_a_new_folder_survives_a_power_failure(tmp_path: Path, synced: list[str]) -> None:
    """A folder is an entry in the one above it: that has to be synced, too."""
    make_durably(tmp_path / "a" / "b" / "c")
    above = f"{tmp_path.parent}"
    assert synced == [above, f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/a/b"]


def test_who_comes_after_one_that_was_killed_syncs_it_again(
    tmp_path: Path, synced: list[str]
) -> None:
    (tmp_path / "made").mkdir()
    make_durably(tmp_path / "made")
    assert synced == [f"{tmp_path}"]


def test_the_folder_of_a_node_survives_it_as_well(tmp_path: Path, synced: list[str]) -> None:
    """Or all that this node has acknowledged were gone with it."""
    Store(tmp_path / "new" / "node-1").close()
    assert synced[-2:] == [f"{tmp_path}", f"{tmp_path}/new"]


def test_the_folder_of_the_key_value_store_survives_it_too(
    tmp_path: Path, synced: list[str]
) -> None:
    with locked(tmp_path / "new" / "kv"):
        assert synced[-2:] == [f"{tmp_path}", f"{tmp_path}/new"]


def test_the_folder_of_a_cluster_survives_it_too(tmp_path: Path, synced: list[str]) -> None:
    with data_folder_locked(tmp_path / "new" / "cluster"):
        assert synced[-2:] == [f"{tmp_path}", f"{tmp_path}/new"]

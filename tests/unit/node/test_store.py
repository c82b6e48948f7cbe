"""A folder that RocksDB finds damaged is moved aside; any other fault stays a fault."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.consensus.effects import Save
from coordinator.core.model.authority_state import AuthorityState
from coordinator.node.store import GROUP, GROUP_CHECK_BYTES, Store, StoreError, open_or_replace


def damage(folder: Path, pattern: str) -> None:
    store = Store(folder)
    store.claim_identity("cluster c, node 1")
    store.close()
    next(folder.glob(pattern)).write_bytes(b"garbage" * 10)


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
def test_a_damaged_folder_gives_way_to_an_empty_one(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "node-1"
    damage(folder, pattern)
    store, problem = open_or_replace(folder)
    assert "Corruption" in problem
    assert store.restore() is None
    store.close()
    assert (tmp_path / "node-1.damaged").is_dir()


def test_a_damaged_folder_that_cannot_be_moved_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount point, or where the folder above is not ours."""
    folder = tmp_path / "node-1"
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == folder:
            raise OSError(errno.EBUSY, "busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    for _ in range(2):
        damage(folder, "CURRENT")
        store, problem = open_or_replace(folder)
        assert "(moved to node-1/damaged)" in problem
        assert store.restore() is None
        store.close()
        assert (folder / "damaged" / "CURRENT").read_bytes() == b"garbage" * 10
        Store(folder).close()


def test_a_sound_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "node-1"
    Store(folder).close()
    store, problem = open_or_replace(folder)
    assert problem == ""
    store.close()
    assert not (tmp_path / "node-1.damaged").exists()


def test_a_folder_in_use_is_a_fault_and_is_not_moved(tmp_path: Path) -> None:
    folder = tmp_path / "node-1"
    store = Store(folder)
    with pytest.raises(StoreError) as caught:
        open_or_replace(folder)
    assert caught.value.code == "store_unusable"
    store.close()
    assert folder.is_dir()


@pytest.mark.parametrize("place", ["check", "born_ms", "ids"])
def test_a_byte_that_flips_in_what_is_known_of_a_group_is_noticed(
    tmp_path: Path, place: str
) -> None:
    """The ids of requests and their times are believed without a look at the group itself."""
    authority = AuthorityState(
        cluster_id="c",
        cas_base=1,
        roster=(1,),
        minimum=1,
        log_capacity=100,
        request_window_ms=600_000,
    )
    group = KeptGroup(9, b"value", ("a-request",), 1_000, 1_001)
    store = Store(tmp_path / "node-1")
    store.save(
        Save(
            token=1,
            applied=1,
            authority=authority,
            rows=(),
            prepared=None,
            cas=9,
            digest=0,
            outcomes=((9, group),),
            sync=True,
        )
    )
    restored = store.restore()
    assert restored is not None
    assert restored.outcomes == (group,)
    (key, held), *_ = store._scan(GROUP)
    at = {"check": 0, "born_ms": GROUP_CHECK_BYTES, "ids": held.index(b"request")}[place]
    store._db[key] = held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :]
    with pytest.raises(StoreError) as refused:
        store.restore()
    assert refused.value.code == "store_damaged"
    store.close()

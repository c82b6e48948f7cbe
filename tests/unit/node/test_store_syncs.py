"""What must be on the disk is synced: RocksDB counts it, and a power cut leaves it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.core.catalog.state import Versioned
from coordinator.core.consensus.effects import Save
from coordinator.core.consensus.inputs import PreparedTransaction
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import TransactionProposed
from coordinator.core.model.types import TxnId
from coordinator.node import store as stores
from tests.support.observed_store import ObservedStore

AUTHORITY = AuthorityState(
    cluster_id="c", cas_base=1, roster=(1,), minimum=1, log_capacity=100, request_window_ms=600_000
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObservedStore]:
    made = ObservedStore(tmp_path / "node-1")
    yield made
    made.close()


def batch(applied: int, *, sync: bool, prepared: bool = False, wipe: bool = False) -> Save:
    setting = Setting(f"k{applied}", str(applied))
    held = Versioned(applied, codec.encode(setting), setting)
    proposal = TransactionProposed(TxnId(1, applied), 0, 0, (1,), ())
    local = PreparedTransaction(applied, proposal, codec.encode(proposal)) if prepared else None
    return Save(
        token=applied,
        applied=applied,
        authority=AUTHORITY,
        rows=(),
        prepared=local,
        cas=applied,
        digest=0,
        changes=((setting.key, held),),
        wipe=wipe,
        sync=sync,
    )


def test_a_batch_that_says_so_is_synced_and_no_other(store: ObservedStore) -> None:
    for number, sync in enumerate((True, False, False, True, True, False), 1):
        before = store.syncs
        store.save(batch(number, sync=sync, prepared=sync))
        assert (store.syncs > before) is sync


def test_a_power_cut_after_a_synced_batch_leaves_all_up_to_it(store: ObservedStore) -> None:
    store.save(batch(1, sync=False))
    store.save(batch(2, sync=True, prepared=True))
    store.save(batch(3, sync=False))
    with store.as_of_the_last_sync() as left:
        restored = left.restore()
    assert restored is not None
    assert restored.applied == 2
    assert restored.prepared is not None
    assert restored.prepared.offset == 2
    assert set(restored.state.entities) == {"config/k1", "config/k2"}


@pytest.mark.parametrize(
    "what",
    [
        lambda store: store.claim_identity("cluster c, node 1"),
        lambda store: store.demand_rebuild(),
        lambda store: store.save(replace(batch(9, sync=False), wipe=True)),
    ],
    ids=["identity", "rebuild", "wipe"],
)
def test_what_decides_over_a_folder_is_synced(
    store: ObservedStore, what: Callable[[ObservedStore], None]
) -> None:
    """Whose it is; that it is not to be trusted; that it is empty before it is filled again."""
    store.save(batch(1, sync=True))
    before = store.syncs
    what(store)
    assert store.syncs > before


def test_a_folder_that_is_to_be_rebuilt_is_so_after_a_power_cut(store: ObservedStore) -> None:
    store.save(batch(1, sync=True))
    store.demand_rebuild()
    with store.as_of_the_last_sync() as left:
        assert left.restore() is None


def test_a_store_that_was_reopened_proves_that_it_can_sync(store: ObservedStore) -> None:
    store.save(batch(1, sync=True))
    store._broken = "the disk was full"
    store.probe()
    assert store.syncs == 2, "what it wrote, and that it is gone, since it was opened again"
    store.save(batch(2, sync=True))
    with store.as_of_the_last_sync() as left:
        restored = left.restore()
    assert restored is not None
    assert restored.applied == 2


def test_what_a_start_finds_is_durable_from_then_on(tmp_path: Path) -> None:
    """A process that died left unsynced batches in the system's cache; the next answers for them.

    Opening brings them into tables, which RocksDB syncs: they do not need the log any more.
    """
    first = ObservedStore(tmp_path / "node-1")
    first.save(batch(1, sync=True))
    first.save(batch(2, sync=False, prepared=True))
    shutil.copytree(first.folder, tmp_path / "node-2", ignore=shutil.ignore_patterns("LOCK"))
    first.close()
    second = ObservedStore(tmp_path / "node-2")
    found = second.restore()
    shutil.copytree(second.folder, tmp_path / "node-3", ignore=shutil.ignore_patterns("LOCK"))
    second.close()
    for log in (tmp_path / "node-3").glob("*.log"):
        log.write_bytes(b"")
    third = ObservedStore(tmp_path / "node-3")
    left = third.restore()
    third.close()
    assert found is not None
    assert left is not None
    assert (found.applied, left.applied) == (2, 2)


def test_what_wipes_nothing_is_one_batch_however_large(
    store: ObservedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between two parts would leave an offset with half of its changes."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 64)
    settings = [Setting(f"s{number}", "1") for number in range(20)]
    changes = tuple((s.key, Versioned(2, codec.encode(s), s)) for s in settings)
    written: list[object] = []
    real = store._db

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def write(self, *given: Any) -> None:
            written.append(given)
            real.write(*given)

    counting: Any = Counting()
    store._db = counting
    store.save(replace(batch(2, sync=False), changes=changes))
    store._db = real
    assert len(written) == 1

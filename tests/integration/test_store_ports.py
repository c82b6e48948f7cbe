"""Laws of a node's store that the protocol rests on, on the simulator's disk and on RocksDB."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from immutables import Map

from coordinator import codec
from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.catalog.state import Versioned
from coordinator.core.consensus.effects import Save
from coordinator.core.consensus.inputs import PreparedTransaction, Restored
from coordinator.core.model.authority_state import AuthorityState, TransactionStatus
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import TransactionProposed
from coordinator.core.model.types import TxnId
from tests.integration.cluster import can_mount
from tests.integration.ports import RocksStore, SimulatedStore, StorePort, event

pytestmark = pytest.mark.integration

KINDS = ["simulated", "rocksdb"]
DISK_BYTES = 24 * 1024 * 1024
BIG = "x" * 60_000


def make(kind: str, folder: Path, request: pytest.FixtureRequest) -> StorePort:
    if kind == "simulated":
        return SimulatedStore()
    store = RocksStore(folder / "node")
    request.addfinalizer(store.close)
    return store


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StorePort:
    return make(request.param, tmp_path, request)


@pytest.fixture(params=KINDS)
def small_store(request: pytest.FixtureRequest, tmp_path: Path) -> StorePort:
    """A store on a disk of its own, which is easily filled."""
    if request.param == "rocksdb":
        if not can_mount():
            pytest.skip("only root may mount a small disk")
        options = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", tmp_path], check=True))  # noqa: PT021
    return make(request.param, tmp_path, request)


def put(name: str, cas: int, value: str = "1") -> tuple[str, Versioned]:
    setting = Setting(name, f'"{value}"')
    return setting.key, Versioned(cas, codec.encode(setting), setting)


def authority(rows: int) -> AuthorityState:
    """Return an Authority whose rolling log has had so many rows."""
    log = {n: TransactionStatus(TxnId(1, n + 1), "commit", n + 1, (1, 2), "") for n in range(rows)}
    made = AuthorityState(
        cluster_id="c",
        cas_base=1,
        roster=(1, 2, 3),
        minimum=2,
        log_capacity=4,
        request_window_ms=1_000,
        epoch=1,
        master=1,
        log_next=rows,
    )
    first = max(0, rows - made.log_capacity)
    return replace(made, log=Map({n: row for n, row in log.items() if n >= first}))


def batch(number: int, *changes: tuple[str, Versioned | None], **more: Any) -> Save:
    """Return a whole batch at offset `number`, with a row for each batch so far."""
    held = authority(number)
    newest = tuple((n, held.log[n]) for n in (number - 1,) if n in held.log)
    save = Save(
        token=number,
        applied=number,
        authority=held,
        rows=newest,
        prepared=None,
        cas=number,
        digest=0,
        changes=changes,
    )
    return replace(save, **more)


def a_prepared(offset: int) -> PreparedTransaction:
    proposal = TransactionProposed(TxnId(1, 9), 3, 4, (1, 2), (event(1).mutation,))
    return PreparedTransaction(offset, proposal, codec.encode(proposal))


def seen(restored: Restored | None) -> Any:
    """Return all that was restored, in a form to compare."""
    if restored is None:
        return None
    entities = {key: (v.cas, v.value) for key, v in restored.state.entities.items()}
    prepared = restored.prepared and (restored.prepared.offset, restored.prepared.proposal)
    return restored.applied, restored.state.cas, restored.authority, entities, prepared


def test_an_empty_store_has_nothing(store: StorePort) -> None:
    assert store.restore() is None


def test_what_was_saved_is_restored_with_log_and_rows(store: StorePort) -> None:
    for number in range(1, 8):
        assert store.save(batch(number, put(f"k{number % 3}", number)))
    assert store.save(batch(8, ("config/k1", None), prepared=a_prepared(8), sync=True))
    restored = store.restore()
    assert restored is not None
    assert (restored.applied, restored.state.cas) == (8, 8)
    assert restored.authority == authority(8), "the newest rows of the log, as many as it holds"
    held = {key: v.cas for key, v in restored.state.entities.items()}
    assert held == {"config/k0": 6, "config/k2": 5}
    assert restored.prepared is not None
    assert restored.prepared.proposal == a_prepared(8).proposal
    assert restored.state.digest == states.recomputed_digest(restored.state)


def test_groups_of_outcomes_come_and_go_with_their_batches(store: StorePort) -> None:
    """In ascending order of their CAS, whatever that looks like as text."""
    nine, ten = KeptGroup(9, b"nine", ("a",), 1, 2), KeptGroup(10, b"ten", ("b", "é\n,"), 3, 4)
    late, more = KeptGroup(2**40, b"late", (), 0, 5), KeptGroup(300, b"", ("c" * 300,), 2**42, 6)
    alone = KeptGroup(7, b"alone", ("d",), 7, 8)
    assert store.save(batch(1, outcomes=((9, nine), (10, ten), (2**40, late))))
    assert store.save(batch(2, outcomes=((9, None), (300, more)), sync=True))
    restored = store.restore()
    assert restored is not None
    assert restored.outcomes == (ten, more, late)
    assert store.save(batch(3, wipe=True, outcomes=((7, alone),)))
    restored = store.restore()
    assert restored is not None
    assert restored.outcomes == (alone,)


def test_a_crash_leaves_whole_batches_and_all_that_was_synced(store: StorePort) -> None:
    """Each batch moves the offset, an entity and the log together; none is ever torn."""
    whole = []
    saves = [
        batch(1, put("a", 1), sync=True),
        batch(2, put("a", 2), put("b", 2), prepared=a_prepared(2), sync=True),
        batch(3, put("a", 3), ("config/b", None)),
        batch(4, put("a", 4, "y" * 300), put("c", 4), prepared=a_prepared(4)),
        batch(5, ("config/a", None), put("d", 5)),
    ]
    for save in saves:
        assert store.save(save)
        whole.append(seen(store.crashed()[-1].restore()))
    assert len({repr(w) for w in whole}) == len(saves)
    left = [seen(copy.restore()) for copy in store.crashed()]
    assert all(found in whole[1:] for found in left), "torn, or older than what was synced"
    assert whole[1] in left
    assert whole[-1] in left


def test_a_wipe_leaves_only_what_comes_with_it(store: StorePort) -> None:
    store.save(batch(1, put("a", 1), put("b", 1), prepared=a_prepared(1), sync=True))
    store.save(batch(2, put("c", 2), wipe=True, sync=True))
    restored = store.restore()
    assert restored is not None
    assert set(restored.state.entities) == {"config/c"}
    assert restored.prepared is None


def test_an_unfinished_store_counts_as_empty_until_the_last_batch(store: StorePort) -> None:
    store.save(batch(1, put("a", 1), sync=True))
    store.save(batch(2, authority=None, rows=(), wipe=True, sync=True))
    assert [copy.restore() for copy in store.crashed()][-1] is None
    store.save(batch(3, put("b", 3), wipe=True, sync=True))
    restored = store.restore()
    assert restored is not None
    assert set(restored.state.entities) == {"config/b"}


def test_a_full_disk_refuses_until_there_is_space_again(small_store: StorePort) -> None:
    store = small_store
    assert store.save(batch(1, put("a", 1), sync=True))
    store.fill()
    number = 2
    while store.save(batch(number, *(put(f"k{n}", number, BIG) for n in range(8)), sync=True)):
        number += 1
        assert number < 100, "the disk is never full"
    assert not store.save(batch(number, put("a", 2))), "nothing is taken after a refusal"
    assert not store.probe()
    store.free()
    assert store.probe()
    restored = store.restore()
    assert restored is not None
    assert restored.applied == number - 1, "what was refused is not there"
    assert store.save(batch(number, put("a", number), sync=True))
    again = store.restore()
    assert again is not None
    assert (again.applied, again.state.entities["config/a"].cas) == (number, number)

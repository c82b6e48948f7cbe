"""A store whose first block cannot be read is damaged, like one whose entities cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.node.store import Store, StoreError


class Damaged:
    def get(self, key: bytes) -> bytes:
        raise RuntimeError("Corruption: block checksum mismatch")


def test_an_unreadable_head_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        real = store._db
        store.__dict__["_db"] = Damaged()
        with pytest.raises(StoreError) as raised:
            store.restore()
        assert raised.value.code == "store_damaged"
        store._db = real
    finally:
        store.close()

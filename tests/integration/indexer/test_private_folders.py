"""What processes keep on disk is for their own user."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.model.entities import INIT
from coordinator.kafka.topics import ACKS
from tests.integration.indexer_process import Cluster, Start, an_index
from tests.integration.projectors import Store
from tests.support.permissions import open_to_others

pytestmark = pytest.mark.integration


def test_what_an_indexer_writes_is_private(
    cluster: Cluster,
    start: Start,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "indexer"
    folder.mkdir(mode=0o755)
    start(folder)
    with cluster.listen(ACKS) as acks:
        cluster.write(an_index(1, INIT))
        acks.answer(1, "allocated")
    assert len(list(folder.rglob("*"))) > 5
    assert open_to_others(folder) == []


def test_what_the_store_writes_is_private(tmp_path: Path) -> None:
    store = Store(tmp_path / "kv")
    try:
        store.call("PUT", "/v1/buckets/b", {"vbuckets": 4})
        store.load([("d", {"a": 1})], "b")
        assert len(list((tmp_path / "kv").rglob("*"))) > 5
        assert open_to_others(tmp_path / "kv") == []
    finally:
        store.close()

"""Which buckets have read a record that is not there any more, or not as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.kafka.topics import MUTATIONS, topic_name
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.entries import NO_EPOCH
from indexer_sim.pipeline.mutation_reader import (
    Lost,
    MutationQueue,
    MutationReader,
    Needed,
    Voucher,
)


@pytest.fixture
def reader() -> MutationReader:
    """A reader of a bucket `near`, which stands behind offset 9, and one `far`, behind 14."""
    made = MutationReader(
        *("127.0.0.1:1", "c", 1, MutationQueue(), lambda: Needed(0, {})),
        *(lambda *_: None, lambda _: None, lambda: None, Threads(lambda: None)),
    )
    made._vouchers = {0: [Voucher("near", 9, 3), Voucher("far", 14, 3)]}
    return made


def message(offset: int, epoch: int | None, partition: int = 0, topic: str = MUTATIONS) -> Any:
    return SimpleNamespace(
        topic=lambda: topic_name("c", topic),
        partition=lambda: partition,
        offset=lambda: offset,
        leader_epoch=lambda: epoch,
    )


def test_who_has_read_another_record_at_an_offset_has_lost_a_part(reader: MutationReader) -> None:
    assert reader._betrayed(message(9, 3)) == []
    assert reader._betrayed(message(13, 5)) == []
    assert reader._betrayed(message(14, 5)) == [Lost("far", {0: 15})]
    assert reader._vouchers == {0: []}


def test_who_is_told_of_no_leader_believes_the_offset(reader: MutationReader) -> None:
    for epoch in (None, NO_EPOCH):
        assert reader._betrayed(message(9, epoch)) == []


def test_records_of_other_partitions_and_topics_tell_nothing(reader: MutationReader) -> None:
    assert reader._betrayed(message(9, 5, partition=1)) == []
    assert reader._betrayed(message(9, 5, topic="stability")) == []
    assert reader._betrayed(message(9, 5)) == [Lost("near", {0: 10})]

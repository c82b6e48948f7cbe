"""Which buckets have read a record that is not there any more, or not as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from coordinator.core.keys.key_versions import SYNC, Item
from coordinator.core.model.types import Offset, Seqno
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.topics import MUTATIONS, topic_name
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.entries import NO_EPOCH
from indexer_sim.pipeline import mutation_reader
from indexer_sim.pipeline.log_witness import LogWitness, Voucher
from indexer_sim.pipeline.mutation_reader import (
    GROUP_ITEMS,
    PACE_MOST_S,
    PACE_S,
    Delivery,
    Lost,
    MutationQueue,
    MutationReader,
    Needed,
    Position,
    Queued,
    Stand,
)
from tests.support.indexes import make_key_versions


@pytest.fixture
def reader() -> MutationReader:
    """A reader of a bucket `near`, which stands behind offset 9, and one `far`, behind 14."""
    made = MutationReader(
        *("127.0.0.1:1", "c", 1, MutationQueue(), lambda: Needed(0, {})),
        *(lambda *_: None, lambda _: None, lambda: None, Threads(lambda: None)),
    )
    made._witness.vouch(0, Voucher("near", Offset(9), 3))
    made._witness.vouch(0, Voucher("far", Offset(14), 3))
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
    assert reader._betrayed(message(14, 6)) == []


def test_who_is_told_of_no_leader_believes_the_offset(reader: MutationReader) -> None:
    for epoch in (None, NO_EPOCH):
        assert reader._betrayed(message(9, epoch)) == []


def test_records_of_other_partitions_and_topics_tell_nothing(reader: MutationReader) -> None:
    assert reader._betrayed(message(9, 5, partition=1)) == []
    assert reader._betrayed(message(9, 5, topic="stability")) == []
    assert reader._betrayed(message(9, 5)) == [Lost("near", {0: 10})]


def test_who_has_read_a_record_that_nothing_stands_for_has_lost_a_part(
    reader: MutationReader,
) -> None:
    assert reader._betrayed(message(10, NO_EPOCH)) == [Lost("near", {0: 10})]


def reads(witness: LogWitness, offset: int, epoch: int, partition: int = 0) -> list[str]:
    """Return who has lost a part as a record shows; "doubt" if what came before is to be seen."""
    if witness.doubts(partition, Offset(offset), epoch):
        return ["doubt"]
    return [v.bucket for v in witness.broken(partition, Offset(offset), epoch)]


def read(witness: LogWitness, *records: tuple[int, int]) -> list[str]:
    return [said for offset, epoch in records for said in reads(witness, offset, epoch)]


def begin_anew(witness: LogWitness) -> None:
    last = witness.last(0)
    witness.begin()
    assert last is not None
    witness.vouch(0, Voucher("b", last.offset, last.epoch))


def test_the_first_record_of_another_leader_has_the_last_one_looked_at() -> None:
    witness = LogWitness()
    assert read(witness, (4, 0), (5, 0), (6, 2)) == ["doubt"]
    assert witness.is_in_doubt
    begin_anew(witness)
    assert not witness.is_in_doubt
    assert read(witness, (4, 0), (5, 0), (6, 2), (7, 2)) == []
    assert read(witness, (8, 3)) == ["doubt"]


@pytest.mark.parametrize("again", [[(4, 2), (5, 2)], [(4, 2), (6, 2)], [(6, 2)]])
def test_a_last_record_that_is_another_one_or_gone_was_lost(again: list[tuple[int, int]]) -> None:
    witness = LogWitness()
    assert read(witness, (4, 0), (5, 0), (6, 2)) == ["doubt"]
    begin_anew(witness)
    assert read(witness, *again) == ["b"]
    assert read(witness, (7, 2), (8, 2)) == []


def test_leaders_that_nobody_tells_and_those_of_other_partitions_raise_no_doubt() -> None:
    witness = LogWitness()
    assert read(witness, (4, 0), (5, NO_EPOCH), (6, NO_EPOCH), (7, 0)) == []
    assert reads(witness, 7, 2, partition=1) == []
    assert read(witness, (8, 2)) == ["doubt"]


def test_what_was_lost_with_everybody_s_knowledge_is_forgotten() -> None:
    witness = LogWitness()
    assert read(witness, (4, 0)) == []
    witness.forget(0)
    assert read(witness, (9, 2)) == []


class Bounds:
    """Tells where partitions begin and end, as a consumer does; `fails` for one of them."""

    def __init__(self, *highs: int) -> None:
        self.highs = highs
        self.fails: int | None = None
        self.assigned: list[TopicPartition] = []

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        if place.partition == self.fails:
            self.fails = None
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "bounds"))
        return 0, self.highs[place.partition] if place.topic == topic_name("c", MUTATIONS) else 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places


def queued(reader: MutationReader) -> list[Lost]:
    return [one.one for one in reader._queue.take(1_000, 0) if isinstance(one.one, Lost)]


def begin(reader: MutationReader, bounds: Any, at: int = 100) -> None:
    stand = Stand(dict.fromkeys(range(4), at), {}, "T")
    reader._assign(bounds, Needed(0, {"b": stand}))


@pytest.fixture
def assigning(monkeypatch: pytest.MonkeyPatch, reader: MutationReader) -> MutationReader:
    monkeypatch.setattr(reader, "_topic_id", lambda: "T")
    reader._stall_detector = StallDetector(SimpleNamespace())  # type: ignore[arg-type]
    return reader


def test_reading_begins_at_what_was_read_last_where_that_is_older(
    assigning: MutationReader,
) -> None:
    bounds = Bounds(300, 300, 300, 300)
    begin(assigning, bounds)
    assigning._betrayed(message(90, 5))
    assigning._betrayed(message(120, 5, partition=1))
    begin(assigning, bounds)
    assert [place.offset for place in bounds.assigned] == [90, 100, 100, 100, 0]
    assert assigning._betrayed(message(90, 5)) == []
    assert assigning._betrayed(message(120, 6, partition=1)) == [Lost("b", {1: 121})]


def test_what_was_cut_off_is_told_also_if_kafka_does_not_answer_in_between(
    assigning: MutationReader,
) -> None:
    begin(assigning, Bounds(300, 300, 300, 300))
    assigning._betrayed(message(200, 5))
    shorter = Bounds(150, 300, 300, 300)
    shorter.fails = 1
    with pytest.raises(KafkaException):
        begin(assigning, shorter)
    begin(assigning, shorter)
    assert queued(assigning) == [Lost("b", {0: 100}, "T")]
    begin(assigning, shorter)
    assert queued(assigning) == [], "once"


def test_who_has_lost_a_part_is_told_though_reading_begins_anew() -> None:
    queue = MutationQueue()
    lost = Lost("b", {0: 201})
    queue.put([Queued(0, lost), Queued(0, Position(0, Offset(7)))], 0)
    queue.clear()
    assert [one.one for one in queue.take(10, 0)] == [lost]
    assert queue.waiting == 0


def test_what_was_forgotten_takes_no_room() -> None:
    queue = MutationQueue()
    free = queue.free
    item = Item(SYNC, 0, Seqno(1))
    queue.put([Queued(0, Delivery(0, Offset(7), make_key_versions(1), [item] * 3))], 0)
    assert (queue.waiting, queue.free) == (3, free - 3)
    queue.clear()
    assert (queue.waiting, queue.free) == (0, free)


# -- how much is read at once --------------------------------------------------------------------


def delivery(items: int) -> Any:
    return SimpleNamespace(items=items)


def hand_over(reader: MutationReader, monkeypatch: pytest.MonkeyPatch, *turns: list[int]) -> float:
    """Hand over records of so many items, turn by turn, 20 ms apart; return the next wait."""
    now_s = 10.0
    head = make_key_versions(1)

    def said(message: Any) -> Delivery:
        return Delivery(0, Offset(1), head, [Item(SYNC, 0, Seqno(1))] * message.items)

    monkeypatch.setattr(reader, "_is_doubtful", lambda _: False)
    monkeypatch.setattr(reader, "_betrayed", lambda _: [])
    monkeypatch.setattr(reader, "_said", said)
    monkeypatch.setattr(mutation_reader.time, "monotonic", lambda: now_s)
    for turn in turns:
        now_s += 0.02
        reader._epoch = reader._needed().epoch
        reader._queue.clear()
        assert reader._hand_over(map(delivery, turn))
    return reader._gathering.wait_s


def test_the_more_comes_the_longer_it_is_gathered(
    reader: MutationReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hand_over(reader, monkeypatch, *[[10]] * 20) == PACE_S
    assert hand_over(reader, monkeypatch, *[[1_000]] * 20) == PACE_MOST_S
    assert hand_over(reader, monkeypatch, *[[10]] * 3) == PACE_S


def test_the_ends_of_partitions_do_not_make_it_read_sooner(
    reader: MutationReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hand_over(reader, monkeypatch, *[[1_000], []] * 20) == PACE_MOST_S


def test_what_is_put_into_the_queue_in_pieces_counts(
    reader: MutationReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hand_over(reader, monkeypatch, *[[GROUP_ITEMS]] * 20) == PACE_MOST_S

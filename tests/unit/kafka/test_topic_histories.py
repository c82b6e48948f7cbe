"""Leader epochs as branches: also those that Kafka has forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.topic_logs import EPOCHS_MAX, Epoch, History, vbuuid_of
from coordinator.core.model.types import Seqno
from coordinator.kafka.document_topics import DocumentTopics, TopicFacts
from coordinator.kafka.topic_histories import TopicHistories
from projector_sim.protocol.failover import rollback_seqno
from projector_sim.sources.topic_reading import TopicBranches

TOPIC, PARTITION = "id", 3


def history(*epochs: tuple[int, int], end: int = 100, low: int = 0) -> History:
    """Return a history of these epochs (number, first offset), the newest first."""
    return History(low, end, end, tuple(Epoch(*one) for one in epochs))


def goes_back(known: History, epoch: int, seqno: int, topic: str = TOPIC) -> int | None:
    """Return to where one must go back who has read up to `seqno` under an epoch."""
    log = TopicBranches(TOPIC).log(PARTITION, known)
    vbuuid = vbuuid_of(topic, PARTITION, epoch)
    return rollback_seqno(log, Seqno(known.end), vbuuid, Seqno(seqno))


@pytest.mark.parametrize(
    ("epoch", "seqno", "to"),
    [
        (5, 100, None),
        (5, 101, 100),
        (2, 60, None),
        (2, 61, 60),
        (0, 30, None),
        (0, 31, 30),
        # Epochs of which nothing is left: what was read in them is lost.
        (4, 60, None),
        (4, 75, 60),
        (3, 61, 60),
        (1, 30, None),
        (1, 40, 30),
        # Of one that is yet to come nothing can be known.
        (6, 10, 0),
    ],
)
def test_who_has_read_more_than_is_left_of_an_epoch_goes_back_to_that(
    epoch: int, seqno: int, to: int | None
) -> None:
    assert goes_back(history((5, 60), (2, 30), (0, 0)), epoch, seqno) == to


def test_a_topic_made_anew_shares_nothing() -> None:
    assert goes_back(history((5, 60), (0, 0)), 0, 10, topic="another") == 0
    assert goes_back(history((5, 60), (0, 0)), 0, 0, topic="another") is None


def test_another_reading_shares_nothing() -> None:
    known = history((5, 60), (0, 0))
    log = TopicBranches(TOPIC, 1).log(PARTITION, known)
    before, now = (vbuuid_of(TOPIC, PARTITION, 5, reading) for reading in (0, 1))
    assert rollback_seqno(log, Seqno(known.end), before, Seqno(70)) == 0
    assert rollback_seqno(log, Seqno(known.end), now, Seqno(70)) is None


def test_leaders_who_wrote_nothing_take_nothing_back() -> None:
    """Kafka keeps the last of them only; positions may be under any."""
    idle = history((9, 100), (0, 0))
    for epoch in range(10):
        assert goes_back(idle, epoch, 100) is None


def test_a_lost_end_is_lost_whoever_wrote_it() -> None:
    cut = history((9, 70), (0, 0), end=70)
    for epoch in range(1, 9):
        assert goes_back(cut, epoch, 70) is None
        assert goes_back(cut, epoch, 90) == 70


def test_of_very_many_leaders_only_the_newest_are_known() -> None:
    known = history((EPOCHS_MAX + 10, 100), (0, 0))
    log = TopicBranches(TOPIC).log(PARTITION, known)
    assert len(log) == EPOCHS_MAX
    assert goes_back(known, 11, 100) is None
    assert goes_back(known, 10, 100) == 0


def test_what_it_was_under_an_older_leader() -> None:
    before = history((5, 60), (2, 30), (0, 0)).up_to(2)
    assert before == history((2, 30), (0, 0), end=60)
    assert goes_back(before, 2, 60) is None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), max_size=8),
    st.integers(0, 20),
)
def test_branches_descend_and_the_oldest_begins_at_nothing(
    steps: Sequence[tuple[int, int]], more: int
) -> None:
    number = start = 0
    epochs = [(0, 0)]
    for later, records in steps:
        number, start = number + later, start + records
        if epochs[0][1] == start:
            epochs.pop(0)  # Nothing was written under it: Kafka has forgotten it.
        epochs.insert(0, (number, start))
    known = history(*epochs, end=start + more)
    branches = known.branches()
    numbers = [branch.number for branch in branches]
    assert numbers == list(range(number, number - len(branches), -1)), "none is left out"
    assert all(newer.start >= older.start for newer, older in pairwise(branches))
    assert len(branches) == EPOCHS_MAX or branches[-1].start == 0
    assert {(e.number, e.start) for e in branches} >= {one for one in epochs if one[0] in numbers}


class Admin:
    """A client of which each partition's leader says this offset and epoch."""

    def __init__(self, said: dict[int, tuple[int, int]]) -> None:
        self.said = said

    def list_offsets(self, places: dict[TopicPartition, Any], **_: Any) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {place: Future() for place in places}
        for place, one in found.items():
            offset, epoch = self.said[place.partition]
            one.set_result(SimpleNamespace(offset=offset, leader_epoch=epoch))
        return found


def test_a_leader_that_does_not_answer_is_no_epoch_and_no_offset() -> None:
    """Else a partition whose leader hangs would be one of epoch 0: all after that was lost."""
    facts = TopicFacts("t", "id", 2)
    histories = TopicHistories("127.0.0.1:1")
    try:
        histories.admin = silent = Admin({0: (7, 3), 1: (OFFSET_INVALID, -1)})  # type: ignore[assignment]
        with pytest.raises(KafkaException, match=r"the leader of t \[1\] does not answer"):
            histories.newest(facts, [0, 1])
        assert histories.admin is not silent, "it would ask that leader again"
        histories.admin = heard = Admin({0: (7, 3), 1: (9, 5)})  # type: ignore[assignment]
        assert histories.newest(facts, [0, 1]) == {0: 3, 1: 5}
        assert histories.admin is heard
    finally:
        histories.close()


def test_a_client_that_somebody_has_replaced_already_stays() -> None:
    topics = DocumentTopics("127.0.0.1:1")
    first = topics.admin
    topics.renew(first)
    second = topics.admin
    assert second is not first
    topics.renew(first)
    assert topics.admin is second


def test_what_it_was_under_an_older_leader_ends_where_the_next_one_began() -> None:
    before = history((9, 80), (5, 60), (2, 30), (0, 0)).up_to(2)
    assert before == history((2, 30), (0, 0), end=60)


def test_the_first_leader_may_be_forgotten_too() -> None:
    known = history((2, 60), (1, 30))
    assert [branch.number for branch in known.branches()] == [2, 1, 0]
    assert goes_back(known, 0, 20) is None

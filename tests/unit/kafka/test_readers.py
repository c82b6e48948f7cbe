"""Records that are valid, but on a topic where they do not belong, stop nobody."""

from __future__ import annotations

from coordinator import codec
from coordinator.core.consensus import authority
from coordinator.core.model.records import DeadLetter, ReadBarrier, Unreadable
from coordinator.kafka.agents import _commit_read

FOREIGN = codec.encode(DeadLetter("x", 0, 0, "", b"", 0))


def test_a_record_of_another_topic_on_commit_is_void() -> None:
    (entry,) = _commit_read(3, FOREIGN).entries
    assert entry.record == Unreadable("DeadLetter does not belong here")
    assert entry.raw == FOREIGN
    assert authority.fold(None, entry.offset, entry.record).state is None


def test_a_record_of_commit_is_taken_as_it_is() -> None:
    assert _commit_read(3, codec.encode(ReadBarrier(1, 2))).entries[0].record == ReadBarrier(1, 2)


def test_what_cannot_be_decoded_is_unreadable() -> None:
    assert isinstance(_commit_read(3, b"garbage").entries[0].record, Unreadable)
    assert isinstance(_commit_read(3, None).entries[0].record, Unreadable)

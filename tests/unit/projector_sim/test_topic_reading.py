"""What a connection makes of records, and of what Kafka says of their log."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from coordinator.core.model.topic_logs import Epoch, History
from projector_sim.protocol import frames
from projector_sim.protocol.frames import Begin, Decoder, End, Frame, Mutated, Reason, Sync
from projector_sim.sources.schema_registry import RegistryClosed
from projector_sim.sources.topic_reading import Record, TopicBranches, TopicReading
from projector_sim.sources.topic_records import Document, RecordError

BRANCHES = TopicBranches("topic id")


class Written(NamedTuple):
    """A record of partition 0."""

    at: int
    epoch: int | None = 0
    name: bytes | str | None = b"d"
    text: bytes | str | None = b"{}"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def leader_epoch(self) -> int | None:
        return self.epoch

    def key(self) -> bytes | str | None:
        return self.name

    def value(self) -> bytes | str | None:
        return self.text


def log(*epochs: tuple[int, int], end: int, stable: int | None = None) -> History:
    """Return a log with these epochs (number, first offset), the newest first."""
    known = tuple(Epoch(*one) for one in epochs)
    return History(0, end if stable is None else stable, end, known)


def decode(key: bytes | None, value: bytes | None) -> Document:
    assert isinstance(key, bytes)
    if value == b"closed":
        raise RegistryClosed
    if value == b"deep":
        raise RecursionError
    if value == b"none":
        raise RecordError("bad_json", "no document", key)
    return Document(key, value)


class Reading:
    """A reading of partition 0, whose history is `now`."""

    def __init__(
        self, now: History, *, after: int = 0, until: int | None = None, is_compacted: bool = False
    ) -> None:
        self.now = now
        self.unreadable: list[tuple[int | None, str]] = []
        self.reading = TopicReading(
            BRANCHES,
            lambda partitions: dict.fromkeys(partitions, self.now),
            decode,
            self._note,
            until={} if until is None else {0: until},
            is_compacted=is_compacted,
        )
        self.reading.begin(0, now, (BRANCHES.log(0, now)[0].vbuuid, after))

    def _note(self, record: Record, error: RecordError) -> None:
        self.unreadable.append((record.offset(), error.code))

    def said(self) -> list[Frame]:
        out = self.reading.frames()
        raw = b"".join(frames.HEAD.pack(len(body) + 1, kind) + body for kind, body in out)
        return list(Decoder().feed(raw))

    def take(self, *records: Written) -> None:
        for record in records:
            self.reading.take(record)


def test_another_leader_that_has_all_that_was_read_ends_a_stream_and_begins_it_again() -> None:
    here = Reading(log((0, 0), end=2))
    here.said()
    here.take(Written(0), Written(1))
    here.now = log((3, 2), (0, 0), end=3)
    here.take(Written(2, epoch=3))
    here.reading.end_portion(0)
    one, two, *told, begun, three = here.said()
    assert [m.seqno for m in (one, two, three) if isinstance(m, Mutated)] == [1, 2, 3]
    assert told == [Sync(((0, 2),)), End(0, 2, Reason.MOVED)]
    assert isinstance(begun, Begin)
    newest = BRANCHES.log(0, here.now)
    assert (begun.seqno, begun.vbuuid, begun.failover_log) == (2, newest[0].vbuuid, newest)
    assert [branch.seqno for branch in newest] == [2, 2, 2, 0], "two that Kafka has forgotten"


def test_another_leader_goes_on_at_the_end_of_what_was_passed() -> None:
    """The end of a transaction was passed, and has no record: nobody says so of it again."""
    here = Reading(log((0, 0), end=3))
    here.take(Written(0))
    here.reading.reach_end(0, 3)
    here.now = log((1, 3), (0, 0), end=3)
    here.reading.note_leaders({0: 1})
    here.said()
    here.reading.note_leaders({0: 1})
    here.reading.sync()
    assert here.said() == [Sync(((0, 3),))]


def test_another_leader_without_what_was_passed_goes_on_before_it() -> None:
    """The end of the transaction is lost; what is written next has its offset."""
    here = Reading(log((0, 0), end=3))
    here.take(Written(0), Written(1))
    here.reading.reach_end(0, 3)
    here.now = log((1, 2), (0, 0), end=2)
    here.reading.note_leaders({0: 1})
    here.reading.note_leaders({0: 1})
    assert here.reading.partitions[0].at == 2
    here.take(Written(2, epoch=1))
    here.reading.end_portion(0)
    assert [one.seqno for one in here.said() if isinstance(one, Mutated)] == [1, 2, 3]


def test_another_leader_without_what_was_read_ends_a_stream() -> None:
    here = Reading(log((0, 0), end=3))
    here.take(Written(0), Written(1), Written(2))
    here.now = log((1, 1), (0, 0), end=2)
    here.reading.note_leaders({0: 1})
    assert here.said()[-1] == End(0, 3, Reason.CRASHED)
    assert not here.reading.partitions


def test_a_record_of_another_leader_ends_a_stream_that_has_read_what_was_lost() -> None:
    here = Reading(log((0, 0), end=3))
    here.take(Written(0), Written(1), Written(2))
    here.now = log((1, 1), (0, 0), end=4)
    here.take(Written(3, epoch=1))
    assert here.said()[-1] == End(0, 3, Reason.CRASHED)


def test_a_leader_that_has_changed_again_ends_a_stream() -> None:
    """What the record's epoch is of is not known any more: whoever asks again is told."""
    here = Reading(log((0, 0), end=1))
    here.take(Written(0))
    here.now = log((0, 0), end=1)
    here.reading.note_leaders({0: 1})
    assert here.said()[-1] == End(0, 1, Reason.CRASHED)


def test_what_is_no_document_is_its_deletion_and_what_closes_the_registry_ends_the_reading() -> (
    None
):
    here = Reading(log((0, 0), end=9))
    here.take(Written(0, text=b"none"), Written(1, text=b"deep"), Written(2, name="e", text="{}"))
    here.reading.end_portion(0)
    found = [(one.key, one.document) for one in here.said() if isinstance(one, Mutated)]
    assert found == [(b"d", None), (b"d", None), (b"e", b"{}")]
    assert here.unreadable == [(0, "bad_json"), (1, "bad_record")]
    with pytest.raises(RegistryClosed):
        here.take(Written(3, text=b"closed"))


def test_who_is_moved_away_is_told_how_far_it_was_read() -> None:
    here = Reading(log((0, 0), end=2))
    here.take(Written(0))
    here.reading.end(0, Reason.MOVED)
    here.take(Written(1))
    assert [one for one in here.said() if isinstance(one, End)] == [End(0, 1, Reason.MOVED)]


def test_a_compacted_topic_that_is_written_to_all_the_time_has_snapshots() -> None:
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.take(Written(0), Written(1))
    here.reading.note_log_end(0, 9)
    here.reading.end_portion(0)
    assert not here.reading.pending
    here.take(Written(8))
    here.reading.note_log_end(0, 9)
    here.reading.end_portion(0)
    assert here.reading.pending == {0: 9}

"""What a connection makes of records, and of what Kafka says of their log."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from coordinator.core.model.topic_logs import Epoch, History
from projector_sim.protocol import frames
from projector_sim.protocol.frames import (
    Begin,
    Decoder,
    End,
    Frame,
    Mutated,
    Reason,
    Rollback,
    Sync,
)
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
        out = self.reading.drain()
        raw = b"".join(frames.HEAD.pack(len(body) + 1, kind) + body for kind, body in out)
        return list(Decoder().feed(raw))

    def take(self, *records: Written) -> None:
        for record in records:
            self.reading.take(record)

    def portion(self, *records: Written, log_end: int = -1) -> None:
        """Take what comes at once; `log_end`: what is known of the end of the log then."""
        self.take(*records)
        if log_end >= 0:
            self.reading.note_log_end(0, log_end)
        self.reading.end_portion(0)


def test_another_leader_that_has_all_that_was_read_ends_a_stream_and_begins_it_again() -> None:
    here = Reading(log((0, 0), end=2))
    here.said()
    here.take(Written(0), Written(1))
    here.now = log((3, 2), (0, 0), end=3)
    here.take(Written(2, epoch=3), Written(3, epoch=3))
    assert here.reading.gone_over == {0}, "these are fetched again, of the next leader"
    here.reading.begin_anew(0)
    here.portion(Written(2, epoch=3))
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
    here.reading.reach_end(0, 3)
    here.reading.begin_anew(0)
    assert here.reading.partitions[0].at == here.reading.partitions[0].reached == 2
    here.portion(Written(2, epoch=1))
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


@pytest.mark.parametrize(("offset", "is_there"), [(59, True), (60, False), (61, False)])
def test_a_record_of_an_earlier_leader_counts_up_to_where_the_next_one_began(
    offset: int, is_there: bool
) -> None:
    """It was fetched of one that does not know yet that it leads no more."""
    here = Reading(log((3, 60), (0, 0), end=70), after=50)
    here.take(Written(offset, epoch=0))
    assert (0 in here.reading.partitions) == is_there
    if is_there:
        here.reading.end_portion(0)
        assert here.said()[-1] == Mutated(0, 60, b"d", b"{}")
    else:
        assert here.said()[-1] == End(0, 50, Reason.CRASHED)


def test_a_record_of_an_epoch_that_is_forgotten_counts_up_to_the_next_one() -> None:
    here = Reading(log((3, 60), (0, 0), end=70))
    here.take(Written(61, epoch=2))
    assert here.said()[-1] == End(0, 0, Reason.CRASHED)


def test_what_follows_the_end_of_the_log_says_that_all_had_been_read() -> None:
    """A transaction has ended at the offset 2, and something is written all the time."""
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.reading.sync()
    here.said()
    here.portion(Written(0), Written(1), log_end=3)
    assert not here.reading.pending
    here.portion(Written(3), log_end=5)
    assert [type(one) for one in here.said()] == [Mutated, Mutated, Sync, Mutated]
    here.portion(Written(5))
    assert [type(one) for one in here.said()] == [Mutated], "it is not time for another one"
    here.reading.sync()
    here.reading.note_log_end(0, 7)
    here.portion(Written(6), Written(7))
    assert [type(one) for one in here.said()] == [Mutated, Mutated], (
        "one was between, and what it replaces may have been removed since"
    )


def test_where_something_may_have_been_removed_since_the_log_ended_nothing_ends() -> None:
    here = Reading(log((0, 0), end=9), is_compacted=True, until=8)
    here.reading.sync()
    here.portion(Written(1), log_end=8)
    here.reading.doubt_log_end(0)
    here.said()
    here.portion(Written(12))
    assert [type(one) for one in here.said()] == [Mutated]


def test_a_backfill_ends_where_the_log_ended_when_something_follows() -> None:
    here = Reading(log((0, 0), end=3), is_compacted=True, until=3)
    here.portion(Written(0), Written(1), log_end=3)
    assert 0 in here.reading.partitions
    here.take(Written(3))
    assert here.said()[-1] == End(0, 3, Reason.DONE)


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
    here.portion(
        Written(0, text=b"none"), Written(1, text=b"deep"), Written(2, name="e", text="{}")
    )
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
    here.portion(Written(0), Written(1), log_end=9)
    assert not here.reading.pending
    here.portion(Written(8), log_end=9)
    assert here.reading.pending == {0: 9}


def test_who_must_go_back_to_what_was_removed_begins_anew() -> None:
    now = History(5, 9, 9, (Epoch(2, 3), Epoch(0, 0)))
    here = Reading(now)
    here.said()
    older = BRANCHES.log(0, now)[-1].vbuuid
    here.reading.begin(0, now, (older, 6), lambda: True)
    assert here.said() == [Rollback(0, 0)]


def test_who_is_refused_is_told_where_it_was_and_nothing_that_follows() -> None:
    here = Reading(log((0, 0), end=9))
    here.said()
    del here.reading.partitions[0]
    here.reading.begin(0, here.now, (BRANCHES.log(0, here.now)[0].vbuuid, 4), lambda: True)
    assert here.said() == [End(0, 4, Reason.MOVED)]
    assert not here.reading.partitions


def test_a_partition_without_a_position_begins_with_the_next_record() -> None:
    """Behind the last stable record a transaction goes on: what it commits is still to come."""
    here = Reading(log((0, 0), end=9, stable=4))
    here.said()
    here.reading.begin(0, here.now, None)
    assert here.reading.partitions[0].at == 4


def test_who_has_all_is_at_the_end_of_a_snapshot_also_on_another_branch() -> None:
    """The client says nothing of a partition's end again."""
    here = Reading(log((0, 0), end=2), after=2)
    here.reading.sync()
    assert here.said()[-1] == Sync(((0, 2),))
    here.now = log((1, 2), (0, 0), end=2)
    here.reading.note_leaders({0: 1})
    here.said()
    here.reading.sync()
    assert here.said() == [Sync(((0, 2),))]


def test_a_record_behind_the_end_is_not_the_end() -> None:
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.take(Written(0))
    here.reading.reach_end(0, 1)
    here.portion(Written(1))
    assert not here.reading.pending


def test_a_record_of_nothing_is_no_mutation() -> None:
    """What is no document, and does not say of which it is the deletion, is passed."""
    here = Reading(log((0, 0), end=9))
    here.portion(Written(0, name=None))
    assert not [one for one in here.said() if isinstance(one, Mutated)]
    assert here.unreadable == [(0, "bad_record")]
    assert here.reading.partitions[0].at == 1


def test_an_end_that_was_heard_counts_whatever_is_known_of_the_log() -> None:
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.take(Written(0))
    here.reading.reach_end(0, 1)
    here.reading.note_log_end(0, -1)
    here.reading.end_portion(0)
    assert here.reading.pending == {0: 1}


def test_who_has_not_heard_of_a_leader_yet_takes_nothing_back() -> None:
    here = Reading(log((0, 0), end=1))
    here.take(Written(0))
    here.now = log((1, 1), (0, 0), end=2)
    here.take(Written(1, epoch=1))
    here.said()
    here.reading.note_leaders({0: 0})
    assert not [one for one in here.said() if isinstance(one, End)]
    assert here.reading.partitions[0].epoch == 1


def test_a_leader_after_the_one_of_a_record_comes_after_it() -> None:
    here = Reading(log((0, 0), end=1))
    here.take(Written(0))
    here.now = log((2, 2), (1, 1), (0, 0), end=3)
    for epoch in (1, 2):
        here.take(Written(epoch, epoch=epoch))
        here.reading.begin_anew(0)
        here.take(Written(epoch, epoch=epoch))
    begun = [(one.vbuuid, one.seqno) for one in here.said() if isinstance(one, Begin)]
    newest, before, first = BRANCHES.log(0, here.now)
    assert begun == [(first.vbuuid, 0), (before.vbuuid, 1), (newest.vbuuid, 2)]


def test_a_compacted_topic_has_no_snapshot_where_another_leader_begins() -> None:
    """A record that was replaced is not there, and the one that has replaced it is to come."""
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.take(Written(0))
    here.reading.reach_end(0, 1)
    here.reading.end_portion(0)
    assert here.reading.pending == {0: 1}
    here.take(Written(2))
    here.now = log((1, 3), (0, 0), end=9)
    here.take(Written(3, epoch=1))
    told = here.said()
    assert End(0, 3, Reason.MOVED) in told
    assert not [one for one in told if isinstance(one, Sync)]


def test_what_was_at_an_end_and_goes_on_is_at_none() -> None:
    here = Reading(log((0, 0), end=9), is_compacted=True)
    here.take(Written(0))
    here.reading.reach_end(0, 1)
    here.reading.end_portion(0)
    here.portion(Written(1))
    assert here.reading.pending == {}


def test_an_end_is_told_once() -> None:
    here = Reading(log((0, 0), end=9))
    here.take(Written(0))
    here.reading.reach_end(0, 1)
    here.reading.end_portion(0)
    here.reading.sync()
    here.reading.end_portion(0)
    assert here.reading.pending == {}


def test_an_end_that_was_not_told_is_told_before_a_partition_ends_and_not_after() -> None:
    here = Reading(log((0, 0), end=2))
    here.portion(Written(0))
    here.reading.end(0, Reason.MOVED)
    assert here.said()[-2:] == [Sync(((0, 1),)), End(0, 1, Reason.MOVED)]
    assert here.reading.pending == {}

"""What a connection to a topic makes of what Kafka's client says: without Kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.model.topic_logs import Cleaning, Epoch, History
from coordinator.kafka.document_topics import TopicFacts
from projector_sim.protocol import frames
from projector_sim.protocol.frames import Begin, Decoder, End, Mutated, Reason, Rollback, Sync
from projector_sim.sources import topic_stream
from projector_sim.sources.deletions import DeletionWatch
from projector_sim.sources.topic_reading import TopicBranches
from projector_sim.sources.topic_records import Document
from projector_sim.sources.topic_stream import (
    PARTITION_END,
    TopicPlace,
    TopicStream,
)

PLAIN, COMPACTED = Cleaning(False, True, 0), Cleaning(True, False, 10**12)
FACTS = TopicFacts("t", "topic id", 1)
WAIT_S = 30.0


class Message:
    """A record at an offset, or with `code` what the client says instead of one."""

    def __init__(self, offset: int, key: bytes = b"", code: int | None = None) -> None:
        self._offset, self._key, self._code = offset, key, code

    def error(self) -> Any:
        return None if self._code is None else SimpleNamespace(code=lambda: self._code)

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int:
        return 0

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return b"{}"


class Client:
    """Kafka's client: says this, one after the other, then breaks the connection off."""

    def __init__(self, *said: Message) -> None:
        self.said = list(said)
        self.began: list[int] = []
        self.log_end = -1
        self.stream: TopicStream | None = None
        self.is_known = threading.Event()

    def assign(self, places: list[Any]) -> None:
        self.began = [place.offset for place in places]

    def poll(self, _: float) -> Message | None:
        if self.said:
            return self.said.pop(0)
        assert self.is_known.wait(WAIT_S)
        assert self.stream is not None
        self.stream.close()
        return None

    def consume(self, *_: float) -> list[Message]:
        return []

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, self.log_end

    def incremental_unassign(self, _: Any) -> None:
        pass

    def incremental_assign(self, places: list[Any]) -> None:
        self.began += [place.offset for place in places]

    def close(self) -> None:
        pass


def told(
    patch: pytest.MonkeyPatch,
    client: Client,
    history: History,
    *,
    after: int = 0,
    until: int | None = None,
    cleaning: Cleaning = PLAIN,
    vbuuid: int | None = None,
) -> list[frames.Frame]:
    """Return the frames of a connection to one partition."""
    branch = TopicBranches(FACTS.id).log(0, history)[0].vbuuid if vbuuid is None else vbuuid
    request: Any = SimpleNamespace(
        bucket="b",
        kind="backfill",
        vbuckets=(0,),
        starts={0: (branch, after)},
        until={} if until is None else {0: until},
    )
    histories: Any = SimpleNamespace(
        histories=lambda *_: {0: history}, newest=lambda *_: {0: 0}, first_since=lambda *_: {}
    )
    patch.setattr(topic_stream, "consumer", lambda *_, **__: client)
    silent = dict.fromkeys(("assigned", "unassigned", "note", "check"), lambda *_: None)
    patch.setattr(topic_stream, "StallDetector", lambda _: SimpleNamespace(**silent))
    stream = TopicStream(
        TopicPlace("", "", FACTS, cleaning, histories),
        request,
        decoder=lambda _: lambda key, value: Document(key or b"", value),
        owned=lambda: frozenset({0}),
        unreadable=lambda *_: None,
        forgotten=lambda _: True,
        is_slow=lambda _: None,
        failed=lambda _: None,
        sync_ms=0,
        wake=lambda: None,
    )
    client.stream = stream
    client.is_known.set()
    stream._thread.join(WAIT_S)
    found: list[frames.Frame] = []
    while (batch := stream.poll()) is not None:
        raw = b"".join(frames.HEAD.pack(len(body) + 1, kind) + body for kind, body in batch)
        found += Decoder().feed(raw)
    assert not stream._thread.is_alive()
    return found


def a_history(low: int, end: int) -> History:
    return History(low, end, end, (Epoch(0, 0),))


def test_a_backfill_ends_where_no_record_is_left_though_the_last_offsets_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ends a transaction, and what was aborted, has an offset and is no record."""
    for cleaning in (PLAIN, COMPACTED):
        client = Client(Message(0, b"a"), Message(1, b"b"), Message(4, code=PARTITION_END))
        found = told(monkeypatch, client, a_history(0, 4), until=4, cleaning=cleaning)
        mutated = [(one.seqno, one.key) for one in found if isinstance(one, Mutated)]
        assert mutated == [(1, b"a"), (2, b"b")]
        assert found[-1] == End(0, 4, Reason.DONE)


def test_a_snapshot_of_a_compacted_topic_ends_where_all_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = Message(0, b"a"), Message(1, b"b"), Message(2, code=PARTITION_END)
    for cleaning, ends in ((PLAIN, {1, 2}), (COMPACTED, {2})):
        found = told(monkeypatch, Client(*said), a_history(0, 2), cleaning=cleaning)
        assert {one.seqnos for one in found if isinstance(one, Sync)} == {((0, n),) for n in ends}


def test_who_is_behind_what_is_left_begins_there_and_another_branch_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(Message(5, b"f"))
    found = told(monkeypatch, client, a_history(5, 6), after=3)
    assert isinstance(found[0], Begin)
    assert client.began == [5]
    assert told(monkeypatch, Client(), a_history(5, 6), after=6, vbuuid=1) == [Rollback(0, 0)]


class Said(Message):
    """What the client says of partition 0, instead of a record."""

    def __init__(self, code: int, offset: int = -1001) -> None:
        super().__init__(offset)
        self.code = code

    def error(self) -> KafkaError:
        return KafkaError(self.code)


class Connection:
    """A connection to partitions of one topic, all with the same history."""

    def __init__(self, history: History, *partitions: int) -> None:
        self.history, self.partitions = history, partitions or (0,)
        self.after: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.owned = [frozenset(self.partitions)]
        """What may be read, each time it is asked; the last one then stays."""
        self.since: Mapping[int, int] = {}
        self.newest: Mapping[int, int] = dict.fromkeys(self.partitions, 0)
        self.cleaning: Cleaning = PLAIN
        self.stalls = 0
        """So often the client is found to stand still."""
        self.unassigned: list[list[int]] = []
        """What the stall detector was told, and the client."""
        self.forgotten: list[int] = []
        self.slow: list[int] = []
        self.failed: list[str] = []
        self.begins_all_the_same = False
        self.noted: list[Any] = []
        self.reason = ""

    def _owned(self) -> frozenset[int]:
        return self.owned.pop(0) if len(self.owned) > 1 else self.owned[0]

    def _check(self) -> None:
        if self.stalls:
            self.stalls -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def told(self, patch: pytest.MonkeyPatch, *clients: Client) -> list[frames.Frame]:
        """Return the frames of it; clients read it, one after the other."""
        log = {p: TopicBranches(FACTS.id).log(p, self.history) for p in self.partitions}
        request: Any = SimpleNamespace(
            bucket="b",
            kind="maintenance",
            vbuckets=self.partitions,
            starts={p: (log[p][0].vbuuid, self.after.get(p, 0)) for p in self.partitions},
            until=self.until,
        )
        histories: Any = SimpleNamespace(
            histories=lambda _, partitions: dict.fromkeys(partitions, self.history),
            newest=self._newest,
            first_since=lambda *_: self.since,
            ends=lambda *_: {0: self.history.stable},
        )
        makes = iter(clients)
        patch.setattr(topic_stream, "consumer", lambda *_, **__: next(makes))
        detector = SimpleNamespace(
            assigned=lambda _: None,
            unassigned=self._unassigned,
            note=self.noted.append,
            check=self._check,
        )
        patch.setattr(topic_stream, "StallDetector", lambda _: detector)
        for client in clients:
            patch.setattr(client, "incremental_unassign", self._unassigned)
        stream = TopicStream(
            TopicPlace("", "", TopicFacts("t", FACTS.id, 2), self.cleaning, histories),
            request,
            decoder=lambda _: lambda key, value: Document(key or b"", value),
            owned=self._owned,
            unreadable=lambda *_: None,
            forgotten=self._forgotten,
            is_slow=self.slow.append,
            failed=self.failed.append,
            sync_ms=0,
            wake=lambda: None,
        )
        for client in clients:
            client.stream = stream
            client.is_known.set()
        stream._thread.join(WAIT_S)
        assert not stream._thread.is_alive()
        self.reason = stream.reason
        found: list[frames.Frame] = []
        while (batch := stream.poll()) is not None:
            raw = b"".join(frames.HEAD.pack(len(body) + 1, kind) + body for kind, body in batch)
            found += Decoder().feed(raw)
        return found

    def _forgotten(self, p: int) -> bool:
        self.forgotten.append(p)
        return self.begins_all_the_same

    def _newest(self, *_: Any) -> Mapping[int, int]:
        return self.newest

    def _unassigned(self, places: list[Any]) -> None:
        self.unassigned.append([place.partition for place in places])


def test_a_client_that_stands_still_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Connection(a_history(0, 2))
    here.stalls = 1
    second = Client(Message(1, b"b"))
    found = here.told(monkeypatch, Client(Message(0, b"a")), second)
    assert [one.seqno for one in found if isinstance(one, Mutated)] == [1, 2]
    assert second.began == [1], "it goes on where the first one was"


def test_what_another_projector_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(a_history(0, 9))
    here.owned, here.after = [frozenset()], {0: 7}
    assert here.told(monkeypatch) == [End(0, 7, Reason.MOVED)]


def test_what_another_projector_gets_meanwhile_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(a_history(0, 2))
    here.owned = [frozenset({0}), frozenset()]
    found = here.told(monkeypatch, Client(Message(0, b"a")))
    assert found[-1] == End(0, 1, Reason.MOVED)


@pytest.mark.parametrize(
    ("low", "after", "since", "is_forgotten"),
    [
        (0, 3, {0: 5}, True),
        (0, 5, {0: 5}, False),
        (0, 0, {0: 5}, False),
        (0, 6, {0: 9}, False),
        (4, 3, {}, True),
        (4, 4, {}, False),
    ],
)
def test_who_may_miss_deletions_is_noted(
    monkeypatch: pytest.MonkeyPatch,
    low: int,
    after: int,
    since: dict[int, int],
    is_forgotten: bool,
) -> None:
    """It is so where Kafka may have removed one after the position: it is behind the last stable
    record that none can be."""
    here = Connection(History(low, 6, 9, (Epoch(0, 0),)))
    here.after, here.since, here.cleaning = {0: after}, since, Cleaning(True, False, 1_000)
    found = here.told(monkeypatch, Client())
    assert here.forgotten == [0] * is_forgotten
    assert (End(0, after, Reason.MOVED) in found) == is_forgotten, "it would hide what is missed"


@pytest.mark.parametrize(("known_for_s", "is_over"), [(5.0, True), (-1.0, False)])
def test_the_end_of_a_log_is_believed_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, known_for_s: float, is_over: bool
) -> None:
    """Between two fetches that are far from each other, something may have been removed."""
    monkeypatch.setattr(topic_stream, "LOG_END_S", known_for_s)
    client = Client(Message(1, b"a"), Message(12, b"x"))
    client.log_end = 9
    here = Connection(a_history(0, 9))
    here.until, here.cleaning = {0: 8}, COMPACTED
    found = here.told(monkeypatch, client)
    assert (End(0, 8, Reason.DONE) in found) == is_over


def test_who_has_said_for_long_that_something_is_missed_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Connection(a_history(0, 9))
    here.after, here.since, here.cleaning = {0: 3}, {0: 5}, Cleaning(True, False, 1_000)
    here.begins_all_the_same = True
    found = here.told(monkeypatch, Client(Message(3, b"a")))
    assert here.forgotten == [0]
    assert [one.seqno for one in found if isinstance(one, Mutated)] == [4]


@pytest.mark.parametrize(("missed", "slow"), [({0}, set()), (set(), {0})])
def test_who_is_held_back_for_too_long_is_noted(
    monkeypatch: pytest.MonkeyPatch, missed: set[int], slow: set[int]
) -> None:
    looked: list[tuple[dict[int, int], dict[int, int]]] = []

    def look(
        _: DeletionWatch, places: dict[int, int], ends: dict[int, int], now_ms: int
    ) -> tuple[set[int], set[int]]:
        looked.append((places, ends))
        return missed, slow

    here = Connection(a_history(0, 9))
    here.cleaning = Cleaning(True, False, 10_000)
    monkeypatch.setattr(DeletionWatch, "is_due", lambda self, now_ms: True)
    monkeypatch.setattr(DeletionWatch, "look", look)
    here.told(monkeypatch, Client(Message(4, b"a")))
    assert ({*here.forgotten}, {*here.slow}) == (missed, slow)
    assert looked[0] == ({0: 5}, {0: 9})


def test_a_partition_that_is_over_is_taken_from_the_client_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Connection(a_history(0, 4), 0, 1)
    here.until = {0: 1}
    client = Client(Message(0, b"a"), Message(1, b"b"), Message(2, b"c"))
    found = here.told(monkeypatch, client)
    assert End(0, 1, Reason.DONE) in found
    assert here.unassigned == [[0], [0]], "the client and the stall detector, once each"


def test_a_partition_that_has_lost_what_was_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(a_history(0, 4), 0, 1)
    client = Client(Message(0, b"a"), Said(KafkaError.OFFSET_OUT_OF_RANGE))
    found = here.told(monkeypatch, client)
    assert [one for one in found if isinstance(one, End)] == [End(0, 1, Reason.CRASHED)]


def test_a_topic_that_is_gone_ends_in_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(a_history(0, 4), 0, 1)
    client = Client(Message(0, b"a"), Said(KafkaError.UNKNOWN_TOPIC_OR_PART))
    found = here.told(monkeypatch, client)
    ends = {one for one in found if isinstance(one, End)}
    assert ends == {End(0, 1, Reason.DROPPED), End(1, 0, Reason.DROPPED)}


def test_what_passes_by_itself_ends_nothing_and_all_else_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code, seqnos in (
        (KafkaError._TRANSPORT, [1, 2]),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, []),
    ):
        here = Connection(a_history(0, 4))
        client = Client(Message(0, b"a"), Said(code), Message(1, b"b"))
        found = here.told(monkeypatch, client)
        # What came right before is not lost: whoever asks again goes on after what was sent.
        assert [one.seqno for one in found if isinstance(one, Mutated)][-2:] == (seqnos or [1])
        assert here.reason.startswith("KafkaException") == (not seqnos)


def test_it_is_looked_who_leads_but_not_for_what_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_stream, "LOOK_S", 0.0)
    for until, begun in (({}, [0, 2]), ({0: 3}, [0])):
        here = Connection(a_history(0, 2))
        here.until = until
        here.newest = {0: 1}
        client = Client(Message(0, b"a"), Message(1, b"b"))
        takes = client.poll

        def poll(patience_s: float, here: Connection = here, takes: Any = takes) -> Any:
            message = takes(patience_s)
            if message is not None and message.offset() == 0:
                here.newest = {0: 0}
            else:
                here.newest = {0: 1}
                here.history = History(0, 2, 2, (Epoch(1, 2), Epoch(0, 0)))
            return message

        monkeypatch.setattr(client, "poll", poll)
        found = here.told(monkeypatch, client)
        assert [one.seqno for one in found if isinstance(one, Begin)] == begun


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_why_a_stream_has_failed_is_told(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    here = Connection(a_history(0, 4))
    here.told(monkeypatch, Client(Message(0, b"a"), Said(code)))
    assert len(here.failed) == 1
    assert here.failed[0].startswith("KafkaException")


def test_a_stream_that_ends_by_itself_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(a_history(0, 1))
    here.until = {0: 1}
    here.told(monkeypatch, Client(Message(0, b"a"), Said(KafkaError._PARTITION_EOF, offset=1)))
    assert here.failed == []

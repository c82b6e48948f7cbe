"""What a connection to a topic makes of what Kafka's client says: without Kafka."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.model.topic_logs import Epoch, History
from coordinator.kafka.document_topics import Cleaning, TopicFacts
from projector_sim.protocol import frames
from projector_sim.protocol.frames import Begin, Decoder, End, Mutated, Reason, Rollback, Sync
from projector_sim.sources import topic_stream
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
        return 0, -1

    def incremental_unassign(self, _: Any) -> None:
        pass

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
        forgotten=lambda _: None,
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

"""The parts of the key-value store's process: frames, the tail, faults, and lines of documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector_sim.kv import documents as kv_documents
from projector_sim.kv.bucket import Bucket, make_bucket
from projector_sim.kv.documents import (
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    ERRORS_MAX,
    LINE_BYTES_MAX,
    DocumentError,
    Loader,
    dump,
    loads,
)
from projector_sim.kv.faults import Faults
from projector_sim.kv.layout import Change
from projector_sim.kv.tail import Tail
from projector_sim.protocol import frames
from projector_sim.protocol.failover import Branch
from projector_sim.protocol.frames import Decoder, Reason

vbuckets = st.integers(0, 2**15 - 1)
numbers = st.integers(0, 2**63 - 1)
branches = st.lists(st.builds(Branch, numbers, numbers), max_size=3).map(tuple)
mutated = st.builds(
    frames.Mutated, vbuckets, numbers, st.binary(max_size=4_096), st.none() | st.binary(max_size=99)
)
any_frame = st.one_of(
    st.builds(frames.Begin, vbuckets, numbers, numbers, branches),
    mutated,
    st.builds(frames.Sync, st.lists(st.tuples(vbuckets, numbers), max_size=4).map(tuple)),
    st.builds(frames.End, vbuckets, numbers, st.sampled_from(Reason)),
    st.builds(frames.Rollback, vbuckets, numbers),
    st.builds(frames.Close, st.text(max_size=20)),
)


def packed(frame: frames.Frame) -> bytes:
    if isinstance(frame, frames.Begin):
        return frames.begin(*frame)
    if isinstance(frame, frames.Mutated):
        mutation = frames.pack_mutation(frame.seqno, frame.key, frame.document)
        return frames.mutations_head(frame.vbucket, len(mutation)) + mutation
    if isinstance(frame, frames.Sync):
        return frames.sync(frame.seqnos)
    if isinstance(frame, frames.End):
        return frames.end(*frame)
    if isinstance(frame, frames.Rollback):
        return frames.rollback(*frame)
    return frames.close(frame.reason)


@given(st.lists(any_frame, max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_frames_are_read_as_they_were_written_wherever_they_are_cut(
    sent: list[frames.Frame], cuts: list[int]
) -> None:
    data = b"".join(map(packed, sent))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    decoder = Decoder()
    read: list[frames.Frame] = []
    for begin, end in pairwise(places):
        read.extend(decoder.feed(data[begin:end]))
    assert read == sent


def test_a_frame_of_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="type 9"):
        list(Decoder().feed(frames.HEAD.pack(1, 9)))


# -- the tail ------------------------------------------------------------------------------------


def test_the_tail_keeps_what_its_bound_allows_and_tells_who_fell_behind() -> None:
    tail = Tail(bytes_max=1000)
    woken: list[int] = []
    tail.follow(lambda: woken.append(tail.end))
    for seqno in range(1, 11):
        tail.append([(0, seqno, bytes(100))])
    assert woken == list(range(1, 11))
    assert [tail.batch(n)[0][1] for n in range(tail.begin, tail.end)] == [6, 7, 8, 9, 10]
    assert [tail.has(n) for n in (4, 5, 10)] == [False, True, True]
    tail.append([(0, 11, bytes(2000))])
    assert tail.begin == tail.end == 11


def test_a_tail_that_nobody_follows_keeps_nothing() -> None:
    tail = Tail()
    tail.append([(0, 1, b"")])
    assert not tail.followed
    assert tail.begin == tail.end == 0
    wake = object.__new__(type("Wake", (), {"__call__": lambda self: None}))
    tail.follow(wake)
    tail.append([(0, 1, b"")])
    assert (tail.begin, tail.end) == (0, 1)
    tail.leave(wake)
    assert (tail.begin, tail.end) == (1, 1)


def test_after_a_break_no_follower_goes_on_from_the_tail() -> None:
    tail = Tail()
    tail.follow(lambda: None)
    tail.append([(0, 1, b"")])
    cursor = tail.end
    tail.break_off()
    assert not tail.has(cursor)
    assert tail.has(tail.end)


# -- faults --------------------------------------------------------------------------------------


def test_a_fault_is_for_what_it_names_and_is_forgotten_after_its_last_use() -> None:
    faults = Faults()
    fault = faults.add("end", "drop", bucket="b", vbuckets=[1], stream="backfill", count=2)
    for miss in (("sync", "b", 1), ("end", "c", 1), ("end", "b", 2)):
        assert faults.trigger(*miss, "backfill") is None
    assert faults.trigger("end", "b", 1, "maintenance") is None
    assert [faults.trigger("end", "b", 1, "backfill") for _ in range(3)] == [fault, fault, None]
    assert fault.hits == 2
    assert not faults


def test_the_first_fault_that_matches_counts() -> None:
    faults = Faults()
    first = faults.add("sync", "delay", delay_ms=1)
    second = faults.add("sync", "drop")
    assert faults.trigger("sync", "b", 0, "maintenance") is first
    assert faults.remove(first.id)
    assert not faults.remove(first.id)
    assert faults.trigger("sync", "b", 0, "maintenance") is second
    assert faults.clear() == 1


@pytest.mark.parametrize(
    ("kind", "action", "delay_ms"),
    [("mutations", "drop", 0), ("end", "delay", 0), ("end", "drop", 5), ("x", "drop", 0)],
)
def test_a_fault_that_cannot_be_is_refused(kind: str, action: str, delay_ms: int) -> None:
    with pytest.raises(ValueError):
        Faults().add(kind, action, delay_ms=delay_ms)


# -- documents -----------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    make_bucket(tmp_path / "b", 4, [0])
    bucket = Bucket(tmp_path / "b")
    yield bucket
    bucket.close()


def test_a_load_does_the_same_wherever_it_is_cut(bucket: Bucket) -> None:
    data = b'{"id":"a","doc":1}\n\n{"id":"b","doc":"\xc3\xbc"}\nx\n{"id":"a","deleted":true}'
    for size in (1, 2, 7, len(data)):
        loader = Loader(bucket, 0)
        for place in range(0, len(data), size):
            loader.feed(data[place : place + size])
        loaded = loader.finish()
        assert (loaded.written, loaded.deleted, loaded.failed) == (2, 1, 1)
        assert [error["line"] for error in loaded.errors] == [4]
        assert {m.key: m.value for m in bucket.documents()} == {b"b": '"ü"'.encode()}
        assert bucket.count() == 1


def nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


def test_a_document_that_cannot_be_kept_is_refused_and_its_neighbours_are_written(
    bucket: Bucket,
) -> None:
    documents = {
        "too_deep": (nested(DEPTH_MAX + 1), nested(300), nested(2_000), nested(1_020, "1" * 20)),
        "number_out_of_range": (
            str(2**64),
            str(-(2**63) - 1),
            "9" * 5_000,
            "1e400",
            f'{{"a":[{{"b":{2**64}}}]}}',
            nested(200, str(2**64)),
            f"[0.{'1' * 30},{2**65}]",
            f'{{"{"7" * 20}":"-{"8" * 19}","x":{-(2**80)}}}',
        ),
        "invalid_json": ("nonsense", '"\\ud800"'),
        "value_too_large": (json.dumps("x" * DOCUMENT_BYTES_MAX),),
    }
    wrong = [(code, text) for code, texts in documents.items() for text in texts]
    lines, codes = [], {}
    for number, (code, text) in enumerate(wrong):
        lines += [f'{{"id":"w{number}","doc":{text}}}', f'{{"id":"g{number}","doc":{number}}}']
        codes[2 * number + 1] = code
    loader = Loader(bucket, 0)
    loader.feed("\n".join(lines).encode())
    loaded = loader.finish()
    assert (loaded.written, loaded.failed) == (len(wrong), len(wrong))
    assert {m.key for m in bucket.documents()} == {b"g%d" % n for n in range(len(wrong))}
    told = [(error["line"], error["code"]) for error in loaded.errors]
    assert told == list(codes.items())[:ERRORS_MAX]
    for _, text in wrong:
        with pytest.raises(DocumentError):
            kv_documents.packed(loads(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        nested(DEPTH_MAX),
        str(2**64 - 1),
        str(-(2**63)),
        f'{{"text":"{"1" * 40}","-{"2" * 30}":1700000000000000000}}',
        f"[0.{'1' * 30},1e{'0' * 25}5,-0.{'0' * 25}1,123456789012345678]",
        "1e30",
        "-1.5e300",
    ],
)
def test_what_can_be_kept_is_kept_as_it_is(text: str) -> None:
    assert json.loads(kv_documents.packed(loads(text.encode()))) == json.loads(text)


@given(
    value=st.integers(-(2**70), 2**70),
    before=st.text(alphabet='0123456789.-ex "\\[', max_size=40),
    width=st.integers(0, 20),
)
def test_an_integer_is_kept_exactly_or_refused_wherever_it_stands(
    value: int, before: str, width: int
) -> None:
    text = json.dumps({"s": before, "p": "x" * width, "n": [value]}).encode()
    if -(2**63) <= value < 2**64:
        (kept,) = loads(text)["n"]
        assert (type(kept), kept) == (int, value)
    else:
        with pytest.raises(DocumentError, match="does not fit"):
            loads(text)


def test_a_line_that_fails_in_a_way_nobody_thought_of_stops_no_other(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(text: str) -> bytes:
        if text == "odd":
            raise RuntimeError("nobody knows")
        return text.encode()

    monkeypatch.setattr(kv_documents, "document_key", odd)
    loader = Loader(bucket, 0)
    loader.feed(b'{"id":"odd","doc":1}\n{"id":"a","doc":1}\n')
    loaded = loader.finish()
    assert (loaded.written, loaded.failed) == (1, 1)
    assert "nobody knows" in loaded.errors[0]["message"]


def test_a_line_that_never_ends_is_not_kept(bucket: Bucket) -> None:
    loader = Loader(bucket, 0)
    for _ in range(5):
        loader.feed(bytes(LINE_BYTES_MAX))
        assert len(loader._rest) <= LINE_BYTES_MAX
    loader.feed(b'\n{"id":"a","doc":1}\n')
    loaded = loader.finish()
    assert (loaded.written, loaded.failed, loaded.errors[0]["line"]) == (1, 1, 1)


def test_a_dump_has_every_document_with_its_place_and_a_sample_has_some(bucket: Bucket) -> None:
    bucket.write([Change(b"%d" % n, b'{"n":%d}' % n) for n in range(200)])
    bucket.delete(b"0")
    lines = [json.loads(line) for line in b"".join(dump(bucket)).splitlines()]
    assert {line["id"]: line["doc"]["n"] for line in lines} == {str(n): n for n in range(1, 200)}
    for line in lines:
        newest = bucket.newest(line["id"].encode())
        assert newest is not None
        assert line["seqno"] == str(newest.seqno)
    assert 20 < len(b"".join(dump(bucket, every=4, ids_only=True)).splitlines()) < 90


def test_the_count_of_documents_survives_losses_and_restarts(tmp_path: Path) -> None:
    make_bucket(tmp_path, 1, [0])
    bucket = Bucket(tmp_path)
    bucket.write([Change(b"%d" % n, b"1") for n in range(10)])
    bucket.write([Change(b"%d" % n, None) for n in range(5)])
    bucket.upsert(b"0", b"2")
    counts = [bucket.count()]
    for seqno in (15, 12, 10, 3):
        bucket.lose_tail(0, seqno)
        counts.append(bucket.count())
        assert bucket.count() == sum(1 for _ in bucket.documents())
    assert counts == [6, 5, 8, 10, 3]
    bucket.close()
    bucket = Bucket(tmp_path)
    assert bucket.count() == 3
    bucket.close()

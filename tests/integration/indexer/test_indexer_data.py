"""The data plane of an indexer, as a real process: streams in, entries and high watermarks out."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from coordinator import codec
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    PENDING,
)
from coordinator.core.model.records import SliceLoads
from coordinator.core.model.stream_records import (
    CatchUpRequested,
    GenerationTaken,
    KeyVersions,
)
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import DEAD_LETTER, STREAM_REQUEST
from indexer_sim.bucket.snapshots import KEPT_MAX
from tests.integration.indexer_bench import Bench
from tests.integration.indexer_process import until
from tests.integration.indexing import (
    BRANCH,
    BUCKET,
    VBUCKETS,
    an_index,
    backfill,
    catchup,
    entry,
    maintenance,
)

pytestmark = pytest.mark.integration

ALL = ((1 << VBUCKETS) - 1).to_bytes(VBUCKETS // 8, "little")
"""All vbuckets, as bits."""


def test_an_index_is_built_and_kept_up_to_date(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris"), 1: ("b", "Rome"), 5: ("c", "Berlin")})
    scans = bench.scans()
    assert scans.entries() == {entry("a", "Paris"), entry("b", "Rome"), entry("c", "Berlin")}
    stream.put(11, {0: ("a", "Oslo"), 1: ("b", ""), 2: ("d", "Nice")})
    stream.sync(11)
    beat = bench.watermarks.reach(11)
    assert scans.entries() == {entry("a", "Oslo"), entry("c", "Berlin"), entry("d", "Nice")}
    assert beat.taken == (GenerationTaken(1, 1, ALL),)


def test_what_slices_weigh_is_told_apart_from_heartbeats(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris"), 1: ("b", "Rome"), 5: ("c", "Berlin")})
    stream.put(11, {2: ("d", "Nice")})
    stream.sync(11)
    told: SliceLoads = bench.beats.hears(
        "four entries",
        lambda r: isinstance(r, SliceLoads) and sum(one.entries for one in r.loads) == 4,
    )
    assert {one.index_id for one in told.loads} == {1}
    assert all(one.bytes > 0 for one in told.loads)


def test_who_waits_for_an_index_that_is_dropped_waits_in_vain_and_the_other_goes_on(
    bench: Bench,
) -> None:
    stream = bench.build({0: ("a", "Paris")})
    bench.allocate(2)
    bench.state.write(an_index(2, PENDING))
    stream.attach(2, 1, 10)
    bench.state.write(an_index(2, BACKFILL))
    filling = backfill(bench.sender, {2: 1}).begin()
    filling.put(4, {0: ("a", "x")}, index_id=2)
    bench.state.write(an_index(2, DROPPING))
    bench.acks.answer(2, "released")
    filling.put(5, {1: ("b", "y")}, index_id=2)
    filling.end(10)
    stream.put(11, {0: ("c", "Rome")})
    stream.put(12, {0: ("c", "zz")}, index_id=2)
    bench.watermarks.reach(12, *[10] * 7)
    scans = bench.scans()
    assert scans.entries() == {entry("a", "Paris"), entry("c", "Rome")}
    assert scans.refusal(2) == "index_not_found"


def test_an_indexer_that_is_killed_at_any_time_ends_where_another_does(bench: Bench) -> None:
    stream = bench.build()
    chance = Random(7)
    expected: dict[str, tuple[int, bytes]] = {}
    for seqno in range(11, 200):
        vbucket = chance.randrange(VBUCKETS)
        document, text = f"d{vbucket}-{chance.randrange(3)}", chance.choice(("", "ab", "abc"))
        stream.put(seqno, {vbucket: (document, text)})
        expected.pop(document, None)
        if text:
            expected[document] = entry(document, text)
        if seqno % 40 == 0:
            bench.restart()
    stream.sync(200)
    bench.watermarks.reach(200)
    assert bench.scans().entries() == set(expected.values())


def test_a_build_goes_on_after_a_kill(bench: Bench) -> None:
    bench.allocate(1)
    bench.state.write(an_index(1, PENDING))
    stream = maintenance(bench.sender, {1: 1}).begin(10)
    bench.state.write(an_index(1, BACKFILL))
    filling = backfill(bench.sender, {1: 1}).begin()
    stream.put(11, {0: ("a", "")})
    bench.watermarks.reach(11, *[10] * 7)
    assert bench.scans().refusal(1) == "index_building"
    bench.restart()
    filling.put(4, {0: ("a", "Paris"), 1: ("b", "Rome")})
    filling.end(10)
    bench.built()
    bench.built()
    assert bench.scans().entries() == {entry("b", "Rome")}


def test_a_new_build_begins_from_nothing(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris")})
    bench.state.write(an_index(1, PENDING, build=2))
    stream.attach(1, 2, 12)
    bench.state.write(an_index(1, BACKFILL, build=2))
    backfill(bench.sender, {1: 1}).begin().end(12)
    filling = backfill(bench.sender, {1: 2}).begin()
    filling.put(5, {3: ("b", "Rome")})
    filling.end(12)
    bench.built(build=2)
    assert bench.scans().entries() == {entry("b", "Rome")}


def test_what_is_no_record_is_a_dead_letter_and_the_rest_is_applied(bench: Bench) -> None:
    stream = bench.build()
    mine = [("indexer", b"1")]
    whole = codec.encode(
        KeyVersions(
            bucket=BUCKET,
            kind="maintenance",
            projector=1,
            connection=1,
            ordinal=1,
            number=1,
            indexes=(1,),
            builds=(1,),
            items=b"\x01\x00",
            at_ms=0,
        )
    )
    for value, headers in (
        (b"garbage", mine),
        (whole, mine),
        (b"", None),
        (b"x", [("indexer", b"2")]),
    ):
        bench.sender.send_raw(value, 1, headers)
    with bench.cluster.listen(DEAD_LETTER) as dead_letters:
        stream.put(11, {1: ("a", "Paris")})
        stream.sync(11)
        bench.watermarks.reach(11)
        for value in (b"garbage", whole, b""):
            letter = dead_letters.hears("a dead letter", lambda r, v=value: r.value == v)
            assert letter.topic.endswith(".mutations")
        assert not dead_letters.records
    assert bench.scans().entries() == {entry("a", "Paris")}


def test_a_gap_is_asked_for_until_it_is_caught_up(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris")})
    stream.put(11, {0: ("b", "Rome")})
    stream.sync(11)
    bench.watermarks.reach(11)
    later = maintenance(bench.sender, {1: 1}, number=2)
    later.begin(20)
    later.put(21, {0: ("b", ""), 1: ("c", "Oslo")})
    later.sync(21)
    with bench.cluster.listen(STREAM_REQUEST) as requests:
        for _ in range(2):
            asked: CatchUpRequested = requests.hears("a request", lambda r: r.indexer == 1)
            assert asked.vbuckets == tuple(range(VBUCKETS))
            vector = Vector.from_bytes(asked.vbuuids, asked.seqnos)
            assert vector == Vector([BRANCH] * VBUCKETS, [11] * VBUCKETS)
    filling = catchup(bench.sender, {1: 1}, number=2).begin(11)
    filling.put(15, {0: ("b", "stale"), 2: ("d", "Nice")})
    filling.end(20)
    bench.watermarks.reach(21)
    scans = bench.scans()
    assert scans.entries() == {entry("a", "Paris"), entry("c", "Oslo"), entry("d", "Nice")}


def test_a_snapshot_is_exactly_at_its_timestamp(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris"), 1: ("b", "Rome")})
    stream.put(12, {0: ("a", "Oslo"), 1: ("b", "")})
    stream.sync(12)
    stream.put(13, {0: ("a", ""), 2: ("c", "Nice")})
    stream.put(14, {1: ("b", "Bern")})
    stream.sync(15)
    bench.watermarks.reach(15)
    stable = bench.sender.stable(5, [12] * VBUCKETS)
    digest = Vector.from_bytes(stable.vbuuids, stable.seqnos).digest()
    until("it was made", lambda: (b := bench.watermarks.poll()) and b.last_stability == digest)
    scans = bench.scans()
    assert scans.entries(consistency={"consistent": 5}) == {entry("a", "Oslo")}
    assert scans.entries() == {entry("b", "Bern"), entry("c", "Nice")}
    behind = {"vbuckets": {"0": [BRANCH, 15]}}
    assert len(scans.entries(consistency={"at_least": behind})) == 2
    ahead = {"vbuckets": {"0": [BRANCH, 16]}}
    assert scans.refusal(1, consistency={"at_least": ahead}) == "timestamp_not_reached"


def test_a_snapshot_that_is_read_stays_though_many_newer_ones_come(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris")})
    scans = bench.scans()

    def stable(number: int, seqno: int) -> None:
        stream.put(seqno, {0: ("a", f"{seqno}")})
        stream.sync(seqno)
        bench.watermarks.reach(seqno)
        made = bench.sender.stable(number, [seqno] * VBUCKETS)
        digest = Vector.from_bytes(made.vbuuids, made.seqnos).digest()
        until("it was made", lambda: (b := bench.watermarks.poll()) and b.last_stability == digest)

    stable(1, 11)
    for number in range(2, 3 * KEPT_MAX):
        assert scans.entries(consistency={"consistent": 1}) == {entry("a", "11")}
        stable(number, 10 + number)
    assert scans.entries(consistency={"consistent": 1}) == {entry("a", "11")}
    assert scans.refusal(1, consistency={"consistent": 2}) == "timestamp_gone", "nobody read it"


def test_a_damaged_bucket_comes_back_from_a_checkpoint_and_reads_on(
    bench: Bench, tmp_path: Path
) -> None:
    stream = bench.build({0: ("a", "Paris")})
    checkpoints = tmp_path / "indexer" / "checkpoints" / BUCKET
    stream.put(11, {1: ("b", "Rome")})
    bench.watermarks.reach(10, 11, *[10] * 6)
    bench.restart("--checkpoint-s", "0.2")
    until("a checkpoint", lambda: list(checkpoints.glob("[0-9]*")))
    bench.process.kill()
    stream.put(12, {2: ("c", "Bern")})
    folder = tmp_path / "indexer" / "buckets" / BUCKET
    for path in folder.glob("MANIFEST-*"):
        path.unlink()
        path.write_bytes(b"\xff" * 1000)
    bench.process = bench.start()
    bench.watermarks.reach(10, 11, 12, *[10] * 5)
    until("the operator is told", lambda: "was damaged" in bench.process.said)
    assert bench.scans().entries() == {entry("a", "Paris"), entry("b", "Rome"), entry("c", "Bern")}

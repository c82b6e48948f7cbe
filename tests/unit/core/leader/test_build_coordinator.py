"""Builds and streams as tables: what a command yields, and how progress is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog.builds import RESTARTED_MAX
from coordinator.core.catalog.decisions import Accepted, Parked, Unchanged
from coordinator.core.consensus.build_progress import Progress, Progresses, entries_told, of_filling
from coordinator.core.model.commands import (
    AdoptBucket,
    BuildIndexes,
    DropIndex,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    MarkRouted,
    MoveShards,
    RenewStream,
)
from coordinator.core.model.entities import NOWHERE, Origin, Shard, Slice, Source, Stream
from coordinator.core.model.records import (
    BackfillProgress,
    ProjectorHeartbeat,
    SliceLoad,
    SliceLoads,
)
from tests.support.builds_bench import Bench
from tests.support.indexes import make_index


def renew(number: int, *projectors: tuple[int, int], **more: Any) -> RenewStream:
    return RenewStream(bucket="b", number=number, projectors=projectors, **more)


def test_a_bucket_has_as_many_vbuckets_as_the_store_says() -> None:
    held = Bench("i").state.bucket("b")
    assert held is not None
    assert held.entity.vbuckets == 4  # type: ignore[union-attr]


def test_a_bucket_takes_the_number_of_the_store_until_something_was_streamed() -> None:
    bench = Bench("i")
    assert bench.events(bench.do(AdoptBucket("b", 64))) == ["BucketAdopted"]
    assert isinstance(bench.do(AdoptBucket("b", 64)), Unchanged)
    assert isinstance(bench.do(AdoptBucket("unknown", 64)), Unchanged)
    bench.do(renew(0, (0, 7)))
    assert isinstance(bench.do(AdoptBucket("b", 128)), Unchanged)
    held = bench.state.bucket("b")
    assert held is not None
    assert held.entity.vbuckets == 64  # type: ignore[union-attr]


def test_a_build_goes_from_ready_to_maintenance() -> None:
    bench = Bench("i")
    i = bench.index("i").id
    assert bench.events(bench.do(BuildIndexes((i,)))) == ["BuildRequested"]
    build = bench.index("i").build
    assert bench.index("i").state == "pending"
    assert build > 0
    assert bench.events(bench.do(MarkRouted(i, build))) == ["BuildRouted"]
    assert bench.events(bench.do(MarkBuilt(i, build))) == ["IndexBuilt"]
    assert bench.index("i").state == "maintenance"


def test_what_is_said_of_another_build_changes_nothing() -> None:
    bench = Bench("i")
    i = bench.index("i").id
    bench.do(BuildIndexes((i,)))
    for command in (MarkRouted(i, 99), MarkFailed(i, 99, "x"), MarkBuilt(i, 99), MarkRouted(8, 1)):
        assert isinstance(bench.do(command), Unchanged)
    assert bench.index("i").state == "pending"


@pytest.mark.parametrize(
    ("command", "built"),
    [
        (BuildIndexes(bucket="b"), {"i", "j"}),
        (BuildIndexes(bucket="b", names=("j",)), {"j"}),
        (BuildIndexes(bucket="b", names=("i", "k")), {"i", "k"}),
    ],
)
def test_one_many_or_all_deferred_indexes_are_built_at_once(
    command: BuildIndexes, built: set[str]
) -> None:
    bench = Bench("i", "j")
    bench.do(ddl.CreateIndex(name="k", bucket="b", expressions=("x",)))
    bench.do(MarkReady(bench.index("k").id))
    bench.do(command)
    assert {n for n in ("i", "j", "k") if bench.index(n).state == "pending"} == built


def test_what_is_built_already_is_not_built_again() -> None:
    bench = Bench("i")
    bench.do(BuildIndexes(bucket="b", names=("i",)))
    again = bench.do(BuildIndexes(bucket="b", names=("i",)))
    assert isinstance(again, Unchanged)
    assert again.outcome.answer["indexes"][0]["state"] == "pending"


def test_an_index_that_is_being_made_is_waited_for() -> None:
    bench = Bench()
    bench.do(ddl.CreateIndex(name="i", bucket="b", expressions=("x",), defer_build=True))
    assert bench.do(BuildIndexes(bucket="b", names=("i",))) == Parked(bench.index("i").id)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (BuildIndexes((77,)), "index_not_found"),
        (BuildIndexes(bucket="b", names=("i", "z")), "index_not_found"),
        (BuildIndexes(), "invalid_request"),
    ],
)
def test_a_build_of_nothing_that_is_there_is_refused(command: BuildIndexes, code: str) -> None:
    decision = Bench("i").do(command)
    assert isinstance(decision, Unchanged)
    assert decision.outcome.code == code


def test_too_many_indexes_at_once_are_refused_by_number() -> None:
    decision = Bench("i").decide(BuildIndexes(bucket="b", names=("i",) * 201))
    assert decision.outcome.code == "value_too_large"


def test_a_dropped_index_is_not_built() -> None:
    bench = Bench("i")
    i = bench.index("i").id
    bench.do(DropIndex(i))
    assert bench.do(BuildIndexes((i,))).outcome.code == "index_not_found"


def test_a_failed_build_says_why_and_is_repeated_on_request() -> None:
    bench = Bench("i")
    i = bench.index("i").id
    bench.do(BuildIndexes((i,)))
    bench.do(MarkFailed(i, bench.index("i").build, "no such bucket"))
    assert (bench.index("i").state, bench.index("i").reason) == ("error", "no such bucket")
    first = bench.index("i").build
    bench.do(BuildIndexes((i,)))
    assert bench.index("i").build > first
    assert (bench.index("i").state, bench.index("i").reason) == ("pending", None)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_index_whose_storage_was_lost_is_built_again(steps: int) -> None:
    bench = Bench("i")
    i = bench.index("i").id
    bench.do(BuildIndexes((i,)))
    build = bench.index("i").build
    for step in (MarkRouted(i, build), MarkBuilt(i, build))[:steps]:
        bench.do(step)
    bench.do(MoveShards(i, (Shard(1, 12),)))
    assert bench.index("i").state == "pending"
    assert bench.index("i").build > build


def test_lost_storage_of_what_was_never_built_is_only_noted() -> None:
    bench = Bench("i")
    bench.do(MoveShards(bench.index("i").id, (Shard(1, 12),)))
    assert (bench.index("i").state, bench.index("i").build) == ("ready", 0)


def test_a_generation_names_those_who_wait_and_keeps_the_others() -> None:
    bench = Bench("i")
    bench.do(renew(0, (0, 7), (1, 8)))
    held = bench.state.stream("b")
    assert held is not None
    assert isinstance(held.entity, Stream)
    first = held.entity.number
    bench.do(renew(first, (1, 9), vbuuids=b"v" * 32, seqnos=b"s" * 32, reason="why"))
    held = bench.state.stream("b")
    assert held is not None
    assert isinstance(held.entity, Stream)
    assert held.entity.number > first
    second = held.entity.number
    assert held.entity.sources == (Source(0, 7, first, first), Source(1, 9, second, second))
    assert (held.entity.vbuuids, held.entity.reason) == (b"v" * 32, "why")


def test_who_streams_already_begins_what_it_lacks_and_what_was_lost_unless_that_is_all() -> None:
    bench = Bench("i")

    def renewed(*projectors: tuple[int, int], **more: Any) -> tuple[int, Source]:
        held = bench.state.stream("b")
        bench.do(renew(held.entity.number if held else 0, *projectors, **more))  # type: ignore[union-attr]
        stream = bench.state.stream("b").entity  # type: ignore[union-attr]
        assert isinstance(stream, Stream)
        return stream.number, stream.sources[-1]

    first, _ = renewed((1, 8), vbuckets=(3,))
    second, source = renewed((1, 8))
    assert source == Source(1, 8, second, first)
    third, source = renewed((1, 8), vbuckets=(5, 3))
    assert source == Source(1, 8, third, first, (3, 5), (third, third))
    fourth, source = renewed((1, 8), vbuckets=(3, 7))
    assert source == Source(1, 8, fourth, first, (3, 5, 7), (fourth, third, fourth))
    fifth, source = renewed((1, 8), vbuckets=(3,), whole=frozenset({(1, 8)}))
    assert source == Source(1, 8, fifth, fifth)
    sixth, source = renewed((1, 8), vbuckets=tuple(range(RESTARTED_MAX + 1)))
    assert source == Source(1, 8, sixth, sixth), "so many that all of them may begin"
    seventh, source = renewed((1, 9))
    assert source == Source(1, 9, seventh, seventh), "it has had no streams yet"


def test_a_generation_that_was_decided_against_an_older_one_is_not_made() -> None:
    bench = Bench("i")
    bench.do(renew(0, (0, 7)))
    assert isinstance(bench.do(renew(0, (0, 8))), Unchanged)


def test_a_build_with_an_expected_cas_compares_it() -> None:
    bench = Bench("i")
    i = bench.index("i").id
    decision = bench.decide(BuildIndexes((i,)), expected_cas=1)
    assert decision.outcome.code == "cas_mismatch"
    cas = bench.state.cas_of(f"index/{i}")
    assert isinstance(bench.decide(BuildIndexes((i,)), expected_cas=cas), Accepted)


# -- progress ------------------------------------------------------------------------------------

BEAT = ProjectorHeartbeat(projector=0, incarnation=1, address="p", pid=1, at_ms=0)


def said(projector: int, sent: int, total: int, build: int = 1) -> ProjectorHeartbeat:
    part = BackfillProgress(77, build, sent, total)
    return replace(BEAT, projector=projector, backfills=(part,))


def test_progress_is_the_sum_over_projectors_at_the_rate_of_the_last_seconds() -> None:
    progresses = Progresses()
    for at_ms, sent in ((0, 0), (1_000, 100), (2_000, 300)):
        progresses.note(said(0, sent, 1_000), at_ms)
        progresses.note(said(1, sent, 1_000), at_ms)
    found = progresses.of(77, 1)
    assert found == Progress(600, 2_000, 300.0)
    assert (found.percent, found.remaining_s) == (30.0, pytest.approx(1_400 / 300))
    assert progresses.of(77, 2) is None


def test_nothing_to_send_is_all_of_it() -> None:
    assert Progress(0, 0, 0.0).percent == 100.0
    assert Progress(5, 10, 0.0).remaining_s is None


def test_old_builds_make_room() -> None:
    progresses = Progresses()
    for build in range(1_100):
        progresses.note(said(0, 1, 2, build), build)
    assert progresses.of(77, 0) is None
    assert progresses.of(77, 1_099) is not None
    assert len(progresses.all()) == 1_000


def test_a_part_that_is_filled_is_as_far_as_it_has_entries_of_its_origins() -> None:
    origins = (Origin(0, 1, 7, 3, 1), Origin(2, 2, 7, 4, 1))
    slices = (Slice(0, 3), Slice(1, NOWHERE), Slice(2, 3))
    part = make_index(8, part_of=7, origins=origins, slices=slices)
    assert of_filling(part, {}) is None
    loads = {
        1: SliceLoads(1, 1, (SliceLoad(7, 0, 60, 0, 0), SliceLoad(7, 1, 999, 0, 0)), 0, 0),
        2: SliceLoads(2, 1, (SliceLoad(7, 2, 40, 0, 0),), 0, 0),
        3: SliceLoads(3, 1, (SliceLoad(8, 0, 10, 0, 0), SliceLoad(8, 2, 15, 0, 0)), 0, 0),
    }
    found = of_filling(part, entries_told(loads))
    assert found == Progress(25, 100, 0.0)
    assert found.percent == 25.0
    assert of_filling(replace(part, origins=()), entries_told(loads)) is None

"""What a projector has to do, given the state, the store and what runs: the laws of its desk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest

from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    ERROR,
    MAINTENANCE,
    PENDING,
    READY,
    Bucket,
    Index,
    Origin,
    Rollback,
    Slice,
    Source,
    Stream,
)
from coordinator.core.model.records import BucketSeen, StreamAwaited
from coordinator.core.model.stream_records import (
    BuildProgress,
    ConnectionRead,
    GenerationTaken,
)
from coordinator.core.model.types import Vbuuid
from coordinator.core.model.vectors import Vector
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.stream_planner import (
    AGAIN_MS,
    AGAIN_MS_MAX,
    BEGIN_TIMEOUT_MS,
    CONNECTIONS_MAX,
    IGNORED_MS,
    LISTEN_MS,
    LOOK_MS,
    PAUSE_MS,
    SILENT_MS,
    Action,
    Carry,
    Close,
    GiveUp,
    MakeBucket,
    Open,
    Probe,
    SourceBucket,
    StreamPlanner,
)
from tests.support.indexes import make_watermarks
from tests.support.projected_indexes import BRANCH, an_index, request

ME, LIFE = 1, 77
NOTHING = (b"", b"")
VBUCKETS = 8
OWNED = frozenset({0, 1, 2, 3})


class Given:
    """A desk, a clock, and what becomes of its connections."""

    def __init__(self, *indexes: Index, why_not: Callable[[Index], str] = lambda _: "") -> None:
        numbers = count(1)
        self.planner = StreamPlanner(ME, LIFE, lambda: next(numbers), why_not)
        self.now = 10_000
        self.planner.listening_since_ms = self.now - LISTEN_MS
        self.observe(Bucket("b", VBUCKETS), *indexes)
        self.planner.caught_up()
        self.own(OWNED)

    def observe(self, *entities: Index | Bucket | Stream | Rollback) -> None:
        for entity in entities:
            self.planner.observe(entity.key, entity)

    def own(self, owned: frozenset[int], vbuckets: int = VBUCKETS) -> None:
        self.planner.see({"b": SourceBucket(vbuckets, owned)})

    def renew(
        self,
        number: int,
        mine: int | None = None,
        life: int = LIFE,
        vbuuids: bytes = b"",
        seqnos: bytes = b"",
        **source: Any,
    ) -> None:
        """The master commits a generation, in which this life has its own number."""
        own = Source(ME, life, number if mine is None else mine, **source)
        fields = {"vbuuids": vbuuids, "seqnos": seqnos, "reason": ""}
        self.observe(Stream("b", number, (Source(0, 5, number), own), **fields))

    def plan(self, kind: type = object) -> list[Any]:
        return [action for action in self.planner.plan(self.now) if isinstance(action, kind)]

    def opened(self) -> Run:
        (action,) = self.plan(Open)
        found: Run = action.run
        return found

    def streaming(self, number: int = 1, at: int = 10) -> Run:
        """Return maintenance that has begun."""
        self.renew(number)
        self.opens = self.plan(Open)
        run: Run = self.opens[0].run
        self.begun(run, at)
        return run

    def beside(self, at: int = 10) -> tuple[Run, Run]:
        """Return maintenance of what was owned, and that of vbucket 6, which came later."""
        first = self.streaming(1)
        self.own(OWNED | {6})
        self.renew(2, began=1)
        second = self.opened()
        self.begun(second, at)
        return first, second

    def begun(self, run: Run, at: int = 10) -> None:
        for vbucket in run.vbuckets:
            run.vbuuids[vbucket], run.positions[vbucket] = BRANCH, at

    def finish(self, run: Run, *vbuckets: int) -> None:
        """A bounded stream comes to its end, of some or all vbuckets."""
        for vbucket in vbuckets or run.vbuckets:
            run.vbuuids[vbucket] = BRANCH
            run.positions.pop(vbucket, None)
            run.ended[vbucket] = 0
            run.done.append(vbucket)

    def hw(
        self, indexer: int, done: int, build: int = 1, read: int = 0, transfers: bool = False
    ) -> None:
        """An indexer says of index 1 which vbuckets it has: bits; and how far it has read."""
        progress = (BuildProgress(1, build, bytes([done]), transfers),)
        runs = self.planner.maintenance.get("b", ())
        reads = tuple(ConnectionRead(ME, run.connection, (read, read)) for run in runs)
        record = make_watermarks(indexer, NOTHING, indexes=(1,), builds=progress, read=reads)
        self.planner.note_heartbeat(record)

    def sent(self, *indexes: Index) -> Run:
        """Return maintenance of which everything was sent, up to the ordinal 50."""
        run = self.streaming(1)
        run.ordinal = 50
        for index in self.plan(Open):
            self.finish(index.run)
            self.planner.closed(index.run, self.now)
        self.later()
        return run

    def later(self) -> list[Any]:
        """Return what is done when it is time to look at what hosts have."""
        self.now += LOOK_MS
        return self.plan()

    def waiting(self) -> list[int]:
        return [awaited.number for awaited in self.planner.waiting(self.now)]

    def takes(self, number: int, *vbuckets: int, bucket: str = "b", by: int = 0) -> None:
        """An indexer says that it takes these vbuckets from another under this number."""
        taken = (GenerationTaken(number, by, bytes([sum(1 << v for v in vbuckets)])),)
        record = make_watermarks(1, NOTHING, bucket=bucket, indexes=(1,), taken=taken)
        self.planner.note_heartbeat(record)

    def waits_when_it_is_certain(self) -> list[int]:
        """Return for what it waits once it has been so for long enough."""
        assert self.waiting() == []
        self.now += IGNORED_MS
        return self.waiting()


# -- maintenance -----------------------------------------------------------------------------------


def test_a_life_that_no_stream_names_waits_and_streams_nothing() -> None:
    given = Given(an_index())
    assert given.plan() == []
    assert given.planner.waiting(given.now) == (StreamAwaited("b", 0),)
    given.renew(3, life=LIFE + 1)
    assert given.plan() == []
    assert given.waiting() == [0]


def test_a_number_opens_one_connection_for_all_that_is_owned() -> None:
    given = Given(an_index())
    given.renew(4)
    run = given.opened()
    assert (run.kind, run.number, run.vbuckets) == ("maintenance", 4, (0, 1, 2, 3))
    assert run.starts is None, "an empty vector: what comes next"
    assert given.waiting() == []
    given.begun(run)
    given.planner.closed(run, given.now)
    assert given.plan(Open) == []
    assert given.waiting() == [4]


def test_streams_begin_after_the_vector_of_the_generation() -> None:
    given = Given(an_index())
    vbuuids, seqnos = Vector(range(1, 9), range(11, 19)).to_bytes()
    given.renew(1, vbuuids=vbuuids, seqnos=seqnos)
    assert given.opened().starts == {v: (v + 1, v + 11) for v in OWNED}


def test_a_generation_of_others_leaves_a_stream_alone() -> None:
    given = Given(an_index())
    run = given.streaming(1)
    given.renew(2, mine=1)
    assert given.plan(Close) == []
    assert given.planner.maintenance["b"] == [run]
    assert given.waiting() == []


def test_an_old_number_of_its_own_is_not_streamed_under() -> None:
    """The vector is that of the newest generation: where the old one began, nobody knows."""
    given = Given(an_index())
    given.renew(2, mine=1)
    assert given.plan() == []
    assert given.waiting() == [1]


def test_a_newer_number_replaces_the_connection() -> None:
    given = Given(an_index(state=MAINTENANCE))
    old = given.streaming(1)
    given.renew(2)
    closed, opened = given.plan()
    assert (closed.run, closed.reason) == (old, "replaced")
    assert opened.run.number == 2


def test_a_vbucket_that_comes_needs_a_new_generation() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.own(OWNED | {6})
    assert given.plan() == []
    assert given.waiting() == [1]
    given.renew(2)
    (opened,) = given.plan(Open)
    assert opened.run.vbuckets == (0, 1, 2, 3, 6)


def test_under_a_new_number_only_what_is_lacking_begins() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.own(OWNED | {6})
    vbuuids, seqnos = Vector(range(1, 9), range(11, 19)).to_bytes()
    given.renew(2, began=1, vbuuids=vbuuids, seqnos=seqnos)
    assert [type(action) for action in given.plan()] == [Open]
    _, second = given.planner.maintenance["b"]
    assert (second.number, second.vbuckets, second.starts) == (2, (6,), {6: (7, 17)})
    given.begun(second)
    assert given.waiting() == []
    assert first.begun() == OWNED


def test_a_connection_that_breaks_takes_nothing_of_the_other_with_it() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first, _ = given.beside()
    given.planner.closed(first, given.now)
    assert given.waiting() == [2]
    given.renew(3, began=1)
    assert given.opened().vbuckets == (0, 1, 2, 3)
    assert [run.number for run in given.planner.maintenance["b"]] == [2, 3]


def test_a_vbucket_whose_stream_was_lost_unnoticed_is_taken_over_from_its_connection() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.renew(2, began=1, restarted=(2, 7), under=(2, 2))
    gave_up, opened = given.plan()
    assert gave_up == GiveUp(first, frozenset({2}))
    assert (opened.run.number, opened.run.vbuckets) == (2, (2,)), "7 is another's"
    assert first.begun() == {0, 1, 3}
    given.begun(opened.run)
    given.renew(3, began=1, restarted=(2, 7), under=(2, 2))
    assert given.plan() == [], "what had begun again under an earlier number does not once more"


def test_of_a_number_that_was_never_seen_nothing_is_missed() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.renew(3, began=1, restarted=(0, 2), under=(3, 2))
    assert given.plan(Open)[0].run.vbuckets == (0, 2)


@pytest.mark.parametrize("began", [0, 2])
def test_all_streams_begin_if_the_number_says_so_or_nothing(began: int) -> None:
    """An older master does not say it."""
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.renew(2, began=began)
    closed, opened = given.plan()
    assert (closed.run, opened.run.vbuckets) == (first, (0, 1, 2, 3))
    assert given.planner.maintenance["b"] == [opened.run]


def test_what_is_refused_on_two_connections_is_asked_for_no_more_often_than_on_one() -> None:
    """It waits for a rollback. Found by an attack: each new number closed the other connection."""
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.own(OWNED | {6})
    given.renew(2, began=1)
    given.opened().refused[6] = 0
    given.own(OWNED | {6, 7})
    given.renew(3, began=1)
    run = given.opened()
    assert run.vbuckets == (6, 7), "what is refused goes along"
    run.refused |= {6: 0, 7: 0}
    run.heard_ms = given.now
    assert given.waiting() == []
    given.now += BEGIN_TIMEOUT_MS
    assert given.waiting() == [3]


@pytest.mark.parametrize("source", [{"began": 1, "restarted": (2,), "under": (2,)}, {"began": 2}])
def test_who_sees_a_number_of_its_own_after_that_of_another_asks_for_the_next(
    source: dict[str, Any],
) -> None:
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.renew(3, mine=2, **source)
    assert given.plan() == []
    assert given.waiting() == [2]
    given.renew(4, **source)
    gave_up_or_closed, opened = given.plan()
    assert gave_up_or_closed.run is first
    assert 2 in opened.run.vbuckets
    assert given.waiting() == []


def test_a_vbucket_that_came_back_before_its_end_was_read_ends_where_it_was() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.own(OWNED - {2})
    given.own(OWNED)
    given.renew(2, began=1)
    gave_up, opened = given.plan()
    assert gave_up == GiveUp(first, frozenset({2}))
    assert opened.run.vbuckets == (2,)


def test_a_number_under_which_nothing_is_lacking_any_more_opens_nothing() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first = given.streaming(1)
    given.own(OWNED | {6})
    assert given.waiting() == [1]
    given.own(OWNED)
    given.renew(2, began=1)
    assert given.plan() == []
    assert given.planner.maintenance["b"] == [first]
    given.own(OWNED | {6})
    assert given.waiting() == [2]


def test_a_bucket_has_a_few_connections_and_a_new_one_takes_over_from_the_smallest() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.own(frozenset({0, 1, 2}))
    given.streaming(1)
    for number, vbucket in enumerate((3, 4, 5, 6, 7), 2):
        given.own(frozenset(range(vbucket + 1)))
        given.renew(number, began=1)
        given.begun(given.opened())
        streamed = [sorted(run.begun()) for run in given.planner.maintenance["b"]]
        assert sorted(v for vbuckets in streamed for v in vbuckets) == list(range(vbucket + 1))
        assert len(streamed) <= CONNECTIONS_MAX
    assert streamed[0] == [0, 1, 2], "the largest goes on"


def test_what_each_connection_brings_is_backfilled_under_its_number() -> None:
    given = Given(an_index())
    _, beside = given.beside(at=20)
    first = given.opened()
    assert (first.number, first.vbuckets) == (1, (0, 1, 2, 3))
    assert given.planner.carrier(first) is given.planner.maintenance["b"][0]
    given.finish(first)
    given.planner.closed(first, given.now)
    second = given.opened()
    assert (second.number, second.vbuckets, second.until) == (2, (6,), {6: 20})
    assert given.planner.carrier(second) is beside
    assert given.planner.progress()[0].total == 60


def test_what_a_host_lacks_of_either_connection_is_sent_again() -> None:
    given = Given(an_index())
    given.beside()
    for _ in range(2):
        run = given.opened()
        given.finish(run)
        given.planner.closed(run, given.now)
    for run in given.planner.maintenance["b"]:
        run.ordinal = 50
    given.hw(1, 0b1110)
    assert [action.run.number for action in given.later() if isinstance(action, Probe)] == [1, 2]
    given.hw(1, 0b1110, read=51)
    carried = [action for action in given.later() if isinstance(action, Carry)]
    assert [(c.run.number, set(c.vbuckets)) for c in carried] == [(1, {0}), (2, {6})]
    assert given.planner.passes["b"].vbuckets == (0,)


def test_a_catch_up_over_two_connections_is_two() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.beside()
    given.planner.request(request(0, 6))
    assert [(a.run.number, a.run.vbuckets) for a in given.plan(Open)] == [(1, (0,)), (2, (6,))]


def test_what_is_ignored_of_one_connection_leaves_the_other_alone() -> None:
    given = Given(an_index(state=MAINTENANCE))
    first, _ = given.beside()
    given.takes(5, 1)
    assert given.waits_when_it_is_certain() == [2]
    given.renew(6, began=1)
    gave_up, opened = given.plan()
    assert (gave_up.run, gave_up.vbuckets) == (first, {1})
    assert opened.run.vbuckets == (1,)


def test_a_vbucket_that_went_and_came_back_needs_a_new_generation() -> None:
    """Its stream has ended, even if the END was lost."""
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.own(OWNED - {2})
    assert given.waiting() == []
    given.own(OWNED)
    assert given.waiting() == [1]


def test_a_vbucket_that_does_not_begin_in_time_needs_a_new_generation() -> None:
    given = Given(an_index(state=MAINTENANCE))
    run = given.streaming(1)
    del run.positions[2]
    assert given.waiting() == []
    given.now += BEGIN_TIMEOUT_MS
    assert given.waiting() == [1]


@pytest.mark.parametrize("state", ["started", "prepare", "restart"])
def test_no_stream_of_any_bucket_runs_until_it_is_known_after_what_they_begin_again(
    state: str,
) -> None:
    given = Given(an_index())
    run = given.streaming(1)
    given.observe(a_rollback("other", state))
    assert [(action.run, type(action)) for action in given.plan()] == [(run, Close)]
    given.renew(2)
    assert given.plan() == []
    given.observe(a_rollback("other", "rollback"))
    assert given.opened().number == 2


def a_rollback(bucket: str, state: str) -> Rollback:
    return Rollback(bucket=bucket, number=1, state=state, vbuckets=(), reason="", began_ms=0)


def test_a_vbucket_that_must_roll_back_is_asked_for_again_after_a_while() -> None:
    """Who holds what was lost has gone back by then; if nobody does, nobody else asks."""
    given = Given(an_index(state=PENDING))
    run = given.streaming(1)
    run.refused[2] = run.positions.pop(2)
    run.heard_ms = given.now
    given.now += BEGIN_TIMEOUT_MS - 1
    assert given.waiting() == []
    assert given.planner.routed() == [], "it is not carried everywhere"
    given.now += 1
    assert given.waiting() != []


def test_a_store_that_refuses_is_asked_less_and_less_often() -> None:
    given = Given(an_index())
    pauses = []
    for number in range(1, 5):
        given.renew(number)
        given.planner.closed(given.opened(), given.now)
        begin = given.now
        while not given.waiting():
            given.now += PAUSE_MS // 2
        pauses.append(given.now - begin)
    assert pauses == [PAUSE_MS << n for n in range(4)]


def test_without_the_store_nobody_waits_and_what_runs_goes_on() -> None:
    given = Given(an_index(state=MAINTENANCE))
    run = given.streaming(1)
    given.planner.see(None)
    assert given.plan() == []
    given.planner.closed(run, given.now)
    assert given.waiting() == []
    assert given.planner.seen() == ()


def test_a_bucket_without_streamed_indexes_has_no_stream() -> None:
    given = Given(an_index(state=MAINTENANCE), an_index(2, READY))
    run = given.streaming(1)
    given.observe(an_index(state=DROPPING))
    assert given.plan() == [Close(run, "no index")]
    assert given.waiting() == []
    given.observe(an_index(2, PENDING))
    assert given.plan() == []
    assert given.waiting() == [1], "the number has been used"


def test_a_bucket_that_the_store_lacks_is_made_as_the_state_says() -> None:
    given = Given(an_index())
    given.planner.see({})
    assert given.plan() == [MakeBucket("b", VBUCKETS)]
    assert given.waiting() == []


def test_nothing_is_done_before_the_log_was_read_to_its_end() -> None:
    given = Given(an_index(state=PENDING))
    given.streaming(1)
    given.planner.read_again()
    given.observe(an_index(state=DROPPING))
    assert given.plan() == []
    assert given.waiting() == []
    assert given.planner.routed() == []
    given.planner.caught_up()
    assert "b" not in given.planner.buckets, "what the log does not name any more is gone"


# -- which indexes are carried ---------------------------------------------------------------------


def test_an_index_that_comes_is_attached_to_what_runs() -> None:
    given = Given(an_index(state=MAINTENANCE))
    run = given.streaming(1)
    given.observe(an_index(2, PENDING))
    assert given.plan() == [Carry(run, (2,))]
    assert given.plan() == []
    given.observe(an_index(2, MAINTENANCE))
    assert given.plan() == [], "its items go where they went"


def test_a_new_build_is_attached_again() -> None:
    given = Given(an_index(state=MAINTENANCE))
    run = given.streaming(1)
    given.observe(an_index(state=PENDING, build=2))
    assert given.plan() == [Carry(run, (1,))]


def test_an_index_that_goes_is_carried_no_more() -> None:
    given = Given(an_index(state=MAINTENANCE), an_index(2, MAINTENANCE))
    run = given.streaming(1)
    given.observe(an_index(2, DROPPING))
    assert given.plan() == [Carry(run, ())]
    assert run.carried.keys() == {1}


# -- answers ---------------------------------------------------------------------------------------


def test_an_index_is_routed_when_each_owned_vbucket_carries_it() -> None:
    given = Given(an_index(state=PENDING))
    assert given.planner.routed() == []
    run = given.streaming(1)
    assert [(i.id, reason) for i, reason in given.planner.routed()] == [(1, "")]
    del run.positions[3]
    assert given.planner.routed() == []


def test_a_build_that_is_not_attached_yet_is_not_routed() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.observe(an_index(state=PENDING, build=2))
    assert given.planner.routed() == []
    given.plan()
    assert [i.build for i, _ in given.planner.routed()] == [2]


def test_who_owns_nothing_routes_everything() -> None:
    given = Given(an_index(state=PENDING))
    given.own(frozenset())
    assert [reason for _, reason in given.planner.routed()] == [""]
    assert given.waiting() == []


def test_only_pending_indexes_are_answered() -> None:
    given = Given(an_index(state=BACKFILL), an_index(2, MAINTENANCE))
    given.streaming(1)
    assert given.planner.routed() == []


def test_why_an_index_cannot_be_routed_is_said() -> None:
    given = Given(an_index(state=PENDING), why_not=lambda index: f"no such {index.name}")
    assert [reason for _, reason in given.planner.routed()] == ["no such i1"]
    assert given.waiting() == []
    given = Given(an_index(state=PENDING))
    given.renew(1)
    given.own(OWNED, vbuckets=16)
    assert "16 vbuckets" in given.planner.routed()[0][1]
    assert given.waiting() == []
    assert given.planner.seen() == (BucketSeen("b", 16),)


def test_a_number_of_vbuckets_that_the_master_will_take_is_no_reason() -> None:
    """The refusal of one projector came after the master had taken the number for another's."""
    given = Given(an_index(state=PENDING))
    given.own(OWNED, vbuckets=16)
    assert given.planner.routed() == []
    assert given.waiting() == []
    assert given.planner.seen() == (BucketSeen("b", 16),)
    given.observe(Bucket("b", 16))
    given.streaming(1)
    assert [reason for _, reason in given.planner.routed()] == [""]


def test_a_topic_that_has_got_more_partitions_is_a_reason_at_once() -> None:
    given = Given(an_index(state=PENDING))
    given.observe(Bucket("b", VBUCKETS, topic="orders"))
    given.planner.see_topics({"b": SourceBucket(16, OWNED)})
    assert "16 partitions" in given.planner.routed()[0][1]


# -- backfills -------------------------------------------------------------------------------------


ORIGIN = Origin(0, 5, 7, 3, 1)
A_PART: dict[str, Any] = {"part_of": 7, "origins": (ORIGIN,), "slices": (Slice(0, 1),)}


def test_a_part_that_its_host_fills_is_not_backfilled() -> None:
    given = Given(an_index(state=BACKFILL, **A_PART))
    given.streaming(1)
    assert given.plan(Open) == [], "the host has not said whether it fills it"
    given.hw(1, done=0, build=9)
    assert given.plan(Open) == [], "nor of this build"
    given.hw(1, done=0, transfers=True)
    given.now += 10 * LISTEN_MS
    assert given.plan(Open) == []
    assert given.planner.progress() == (), "nobody's progress"
    given.hw(1, done=0b0011, transfers=False)
    assert given.opened().vbuckets == (2, 3), "it has given it up: what it lacks"


def test_a_part_that_nobody_has_is_backfilled_whatever_its_host_says() -> None:
    given = Given(an_index(state=BACKFILL, part_of=7))
    given.streaming(1)
    assert given.opens[1:] != [] or given.plan(Open) != []


def test_what_a_part_in_use_lacks_is_sent_again() -> None:
    """It was filled once; what its host lacks now was lost since."""
    given = Given(an_index(state=MAINTENANCE, **A_PART))
    run = given.streaming(1)
    run.ordinal = 50
    given.hw(1, done=0b1110, read=40, transfers=True)
    given.later()
    given.hw(1, done=0b1110, read=60, transfers=True)
    given.later()
    assert given.planner.passes["b"].vbuckets == (0,)


def test_one_pass_is_for_all_that_is_to_be_backfilled_up_to_where_maintenance_is() -> None:
    given = Given(an_index(1), an_index(2), an_index(3, PENDING))
    source = given.streaming(1)
    source.positions[2] = 25
    run = given.opened()
    assert (run.kind, run.number, run.carried.keys()) == ("backfill", 1, {1, 2})
    assert run.starts == dict.fromkeys(OWNED, (BRANCH, 0))
    assert run.until == {0: 10, 1: 10, 2: 25, 3: 10}
    assert given.plan() == []


def test_a_pass_waits_for_maintenance_to_begin_everywhere() -> None:
    given = Given(an_index())
    given.renew(1)
    source = given.opened()
    assert given.plan() == []
    given.begun(source)
    del source.positions[0]
    assert given.plan() == []
    source.ended[0] = 1
    assert given.opened().vbuckets == (1, 2, 3)


def test_an_index_that_comes_later_has_the_next_pass() -> None:
    given = Given(an_index(1))
    given.streaming(1)
    first = given.opened()
    given.observe(an_index(2))
    assert given.plan(Open) == []
    given.finish(first)
    given.planner.closed(first, given.now)
    second = given.opened()
    assert second.carried.keys() == {2}
    given.finish(second)
    given.planner.closed(second, given.now)
    assert given.plan() == []


def test_what_a_broken_pass_did_not_send_is_sent_by_the_next_one() -> None:
    given = Given(an_index())
    given.streaming(1)
    first = given.opened()
    given.begun(first, 5)
    given.finish(first, 0, 2)
    given.planner.closed(first, given.now)
    assert given.opened().vbuckets == (1, 3)


def sent_again(state: str) -> tuple[Given, Run]:
    """Return a pass over an index that is built, or a catch-up of one that is, up to seqno 40."""
    given = Given(an_index(state=state))
    given.streaming(1, at=40)
    if state == MAINTENANCE:
        given.planner.request(request(1))
    return given, given.opened()


@pytest.mark.parametrize("state", [BACKFILL, MAINTENANCE])
def test_what_is_to_end_on_a_branch_that_is_gone_is_broken_off(state: str) -> None:
    """The vbucket may have lost that, and would never get there."""
    given, run = sent_again(state)
    given.begun(run, 5)
    newer = given.streaming(2, at=34)
    newer.vbuuids[0] = Vbuuid(BRANCH + 1)
    run.positions.pop(0, None)
    run.ended[0] = 0
    assert given.plan(Close) == [], "vbucket 0 is sent already, or was not asked for"
    newer.vbuuids[1] = Vbuuid(BRANCH + 1)
    assert [action.run for action in given.plan(Close)] == [run]
    if state == MAINTENANCE:
        given.planner.request(request(1))
    assert given.opened().until[1] == 34


@pytest.mark.parametrize("state", [BACKFILL, MAINTENANCE])
def test_so_is_what_has_not_begun_and_never_may(state: str) -> None:
    """It begins on another branch, which is none of what was asked for: a topic was made anew."""
    given, run = sent_again(state)
    assert given.plan(Close) == []
    given.streaming(2, at=0).vbuuids[1] = Vbuuid(BRANCH + 1)
    assert [action.run for action in given.plan(Close)] == [run]


def test_a_vbucket_is_sent_again_under_a_new_number_unless_all_hosts_have_it() -> None:
    given = Given(an_index())
    given.streaming(1)
    first = given.opened()
    given.finish(first)
    given.planner.closed(first, given.now)
    given.hw(1, done=0b0111)
    given.hw(2, done=0b0101)
    given.streaming(2)
    assert given.plan(Open) == [], "the hosts have some time to say what they have"
    given.now += LISTEN_MS
    assert given.opened().vbuckets == (1, 3)


def test_a_new_life_does_not_send_what_all_hosts_have() -> None:
    given = Given(an_index())
    given.planner.listening_since_ms = given.now
    given.streaming(1)
    assert given.plan(Open) == []
    given.hw(1, done=0b1111)
    assert given.plan(Open) == [], "the other host has not said anything"
    given.hw(2, done=0b1110)
    assert given.opened().vbuckets == (0,)


def test_what_hosts_say_of_another_build_does_not_count() -> None:
    given = Given(an_index(build=2))
    given.hw(1, done=0b1111)
    given.hw(2, done=0b1111)
    given.streaming(1)
    assert given.opened().vbuckets == (0, 1, 2, 3)


def test_a_host_that_says_nothing_is_not_waited_for_for_ever() -> None:
    given = Given(an_index())
    given.planner.listening_since_ms = given.now
    given.streaming(1)
    given.hw(1, done=0)
    assert given.plan(Open) == []
    given.now += LISTEN_MS
    assert given.opened().vbuckets == (0, 1, 2, 3)


def test_what_indexers_take_from_another_only_is_streamed_again_under_a_higher_number() -> None:
    """It read the state late: another one had vbucket 2 under 5, which it learns afterwards."""
    given = Given(an_index())
    given.streaming(4)
    given.renew(5, mine=4)
    given.takes(5, 2, 7)
    assert given.waits_when_it_is_certain() == [4]
    given.renew(6)
    run = given.opened()
    given.begun(run)
    given.now += IGNORED_MS
    assert given.waiting() == []


def test_what_an_indexer_takes_under_this_number_or_is_not_here_is_not_ignored() -> None:
    given = Given(an_index())
    given.streaming(4)
    given.renew(5, mine=4)
    given.takes(4, 0, 1, 2, 3, by=ME)
    assert given.waits_when_it_is_certain() == []
    given.takes(5, 4, 7)
    assert given.waits_when_it_is_certain() == []
    given.takes(5, 2, bucket="another")
    assert given.waits_when_it_is_certain() == []
    given.takes(5, 2)
    assert given.waiting() == []
    given.own(OWNED - {2})
    given.now += IGNORED_MS
    assert given.waiting() == [], "the store has told that it went"


def test_of_two_under_the_same_number_the_one_that_is_ignored_begins_again() -> None:
    """What the other sent before it lost the vbucket arrived after what this one sent."""
    given = Given(an_index())
    given.streaming(4)
    given.takes(4, 2)
    assert given.waits_when_it_is_certain() == [4]


def test_a_number_that_no_renewal_exceeds_costs_ever_fewer_of_them() -> None:
    """Nobody has committed it: somebody made it up."""
    given = Given(an_index())
    given.streaming(4)
    given.takes(2**62, 2)
    assert given.waits_when_it_is_certain() == [4]
    renewals = 0
    for _ in range(3_600):
        if given.waiting():
            renewals += 1
            given.renew(4 + renewals)
            given.begun(given.opened())
        given.now += 1_000
    assert 10 < renewals < 25


def test_what_was_ignored_for_a_moment_only_is_not_asked_for_again() -> None:
    given = Given(an_index())
    given.streaming(4)
    given.renew(5, mine=4)
    for _ in range(3):
        given.takes(5, 2)
        assert given.waiting() == []
        given.takes(4, 2, by=ME)
        given.now += IGNORED_MS
        assert given.waiting() == []


def test_what_a_host_lacks_after_it_has_read_everything_is_attached_and_sent_again() -> None:
    given = Given(an_index())
    run = given.sent()
    given.hw(1, done=0xFF, read=50)
    given.hw(2, done=0b0111_1101, read=50)
    assert given.later() == [Probe(run)], "it may not have read what was sent last"
    run.ordinal = 54
    given.hw(2, done=0b0111_1101, read=50)
    assert given.later() == [Probe(run)]
    given.hw(2, done=0b0111_1101, read=51)
    carry, opened = given.later()
    assert carry == Carry(run, (1,), frozenset({1})), "the other one is somebody else's"
    assert (opened.run.kind, opened.run.vbuckets) == ("backfill", (1,))
    assert opened.run.until == {1: 10}, "not below where it is attached"


def test_a_host_that_says_nothing_is_sent_nothing_again() -> None:
    given = Given(an_index())
    given.sent()
    given.hw(1, done=0xFF, read=99)
    assert given.later() == []


def test_what_is_lacking_is_no_longer_when_the_host_says_that_it_has_it() -> None:
    given = Given(an_index())
    run = given.sent()
    given.hw(2, done=0b1111_1110, read=50)
    assert given.later() == [Probe(run)]
    given.hw(2, done=0xFF, read=60)
    assert given.later() == []


def test_a_host_that_lacks_something_of_an_index_in_use_is_sent_it() -> None:
    given = Given(an_index(state=MAINTENANCE))
    run = given.streaming(1)
    given.hw(1, done=0xFF)
    given.hw(2, done=0b1111_0111, read=5)
    run.ordinal = 7
    assert given.later() == [Probe(run)]
    given.hw(2, done=0b1111_0111, read=8)
    carry, opened = given.later()
    assert carry == Carry(run, (1,), frozenset({3}))
    assert opened.run.vbuckets == (3,)
    assert given.later() == [], "one pass is enough"


def test_how_far_an_older_connection_was_read_tells_nothing_of_the_new_one() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1).ordinal = 70
    given.hw(1, done=0xFF)
    given.hw(2, done=0b1111_0111, read=5)
    given.later()
    given.hw(2, done=0b1111_0111, read=71)
    run = given.streaming(2)
    run.ordinal = 2
    assert given.later() == [Probe(run)]
    given.hw(2, done=0b1111_0111, read=3)
    carry, _ = given.later()
    assert carry == Carry(run, (1,), frozenset({3}))


def test_what_a_host_does_not_take_is_sent_again_ever_more_rarely() -> None:
    given = Given(an_index())
    run = given.sent()
    times: list[int] = []
    while given.now < 10 * AGAIN_MS_MAX:
        run.ordinal += 1
        given.hw(2, done=0b1111_1110, read=run.ordinal)
        for action in given.later():
            if isinstance(action, Open):
                times.append(given.now)
                given.finish(action.run)
                given.planner.closed(action.run, given.now)
    waits = [after - before for before, after in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[0] <= AGAIN_MS + 2 * LOOK_MS
    assert AGAIN_MS_MAX <= waits[-1] <= AGAIN_MS_MAX + 3 * LOOK_MS


def test_indexes_in_one_pass_may_lack_different_vbuckets() -> None:
    given = Given(an_index(1), an_index(2))
    given.hw(1, done=0b0001)
    given.hw(2, done=0b0001)
    given.streaming(1)
    run = given.opened()
    assert run.vbuckets == (0, 1, 2, 3)
    assert run.shares == {0: frozenset({2})}
    run.done.append(0)
    given.plan()
    sent = {build[0]: known.sent_under for build, known in given.planner._backfills.items()}
    assert sent == {1: {}, 2: {0: 1}}, "only what was sent of each"


def test_a_dropped_index_leaves_the_pass_and_the_last_one_ends_it() -> None:
    given = Given(an_index(1), an_index(2))
    given.streaming(1)
    run = given.opened()
    given.observe(an_index(1, DROPPING))
    assert Carry(run) in given.plan()
    assert run.carried.keys() == {2}
    given.planner.observe("index/2", None)
    assert Close(run, "no index") in given.plan()
    assert given.planner.passes == {}


@pytest.mark.parametrize(
    "anew", [an_index(state=PENDING, build=2), an_index(build=2), an_index(state=ERROR)]
)
def test_a_pass_whose_build_was_begun_anew_ends_at_once(anew: Index) -> None:
    """Else its END might be taken for that of the new build."""
    given = Given(an_index(1), an_index(2))
    given.streaming(1)
    run = given.opened()
    given.observe(anew)
    actions = given.plan()
    assert Close(run, "a build was begun anew") in actions
    (again,) = given.plan(Open)
    assert again.run.carried.keys() >= {2}


def test_an_index_that_is_built_leaves_the_pass_and_if_begun_anew_ends_it() -> None:
    given = Given(an_index(1), an_index(2))
    given.streaming(1)
    run = given.opened()
    given.observe(an_index(1, MAINTENANCE))
    assert given.plan() == [Carry(run)]
    given.observe(an_index(1, PENDING, build=2))
    assert Close(run, "a build was begun anew") in given.plan()


def test_progress_is_told_in_seqnos() -> None:
    given = Given(an_index())
    given.streaming(1, at=10)
    run = given.opened()
    (told,) = given.planner.progress()
    assert (told.index_id, told.build, told.sent, told.total) == (1, 1, 0, 40)
    given.begun(run, 0)
    run.positions |= {0: 4, 1: 12}
    assert given.planner.progress()[0].sent == 14
    given.finish(run, 0, 1)
    given.plan()
    assert given.planner.progress()[0].sent == 20
    given.finish(run, 2, 3)
    given.planner.closed(run, given.now)
    assert (given.planner.progress()[0].sent, given.planner.progress()[0].total) == (40, 40)
    given.observe(an_index(state=MAINTENANCE))
    assert given.planner.progress() == ()


# -- catching up -----------------------------------------------------------------------------------


def test_a_catch_up_goes_from_where_an_indexer_is_to_where_maintenance_is() -> None:
    given = Given(an_index(1, MAINTENANCE), an_index(2, MAINTENANCE, slices=(Slice(0, 1),)))
    given.streaming(1, at=10)
    given.planner.request(request(1, 3, 6))
    run = given.opened()
    assert (run.kind, run.indexer, run.vbuckets) == ("catch-up", 2, (1, 3)), "6 is not here"
    assert run.carried.keys() == {1}, "what that indexer hosts"
    assert run.starts == {1: (BRANCH, 3), 3: (BRANCH, 3)}
    assert run.until == {1: 10, 3: 10}


def test_a_request_that_is_repeated_is_not_answered_twice() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.streaming(1)
    given.planner.request(request(1, 3))
    run = given.opened()
    given.planner.request(request(1, 2, 3))
    given.planner.request(request(1, 3, indexer=1))
    second, third = given.plan(Open)
    assert second.run.vbuckets == (2,)
    assert (third.run.indexer, third.run.vbuckets) == (1, (1, 3))
    given.finish(run)
    given.planner.closed(run, given.now)
    given.planner.request(request(1))
    assert given.opened().vbuckets == (1,)


def test_after_a_catch_up_its_indexer_hears_how_far_maintenance_is() -> None:
    """What came since it was asked for is perhaps lost, and nothing may follow it."""
    given = Given(an_index(state=MAINTENANCE))
    source = given.streaming(1)
    given.planner.request(request(1, 2, 3))
    run = given.opened()
    given.finish(run)
    run.done = [1, 3]
    given.planner.closed(run, given.now)
    assert given.plan() == [Probe(source, frozenset({1, 3}))]
    assert given.plan() == []


def test_requests_that_make_no_sense_are_ignored() -> None:
    given = Given(an_index(state=MAINTENANCE))
    given.planner.request(request(1))
    assert given.plan() == [], "no maintenance"
    given.streaming(1, at=10)
    given.planner.request(request(1, indexer=9))
    given.planner.request(request(1, seqno=11))
    given.planner.request(replace(request(1), seqnos=b"123"))
    given.planner.request(replace(request(1), bucket="x"))
    assert given.plan() == []


def test_a_catch_up_ends_with_the_last_index() -> None:
    given = Given(an_index(1, MAINTENANCE), an_index(2, MAINTENANCE))
    given.streaming(1)
    given.planner.request(request(1))
    run = given.opened()
    given.observe(an_index(1, DROPPING))
    assert Carry(run) in given.plan()
    given.observe(an_index(2, DROPPING))
    actions: list[Action] = given.plan()
    assert Close(run, "no index") in actions
    assert given.planner.catchups == []


# -- buckets of topics -----------------------------------------------------------------------------


def of_topic(*indexes: Index) -> Given:
    """A desk whose bucket is a topic's; the store is there, and has none of that name."""
    here = Given(*indexes)
    here.observe(Bucket("b", VBUCKETS, "orders", "json"))
    here.planner.see({})
    here.planner.see_topics({"b": SourceBucket(VBUCKETS, OWNED)})
    return here


def test_a_bucket_of_a_topic_is_streamed_as_the_group_has_dealt_it() -> None:
    here = of_topic(an_index(1))
    run = here.streaming()
    assert set(run.vbuckets) == OWNED
    here.planner.see_topics({"b": SourceBucket(VBUCKETS, frozenset())})
    assert run.departed == OWNED


def test_the_store_makes_no_bucket_for_a_topic_and_ends_none_of_its_streams() -> None:
    here = of_topic(an_index(1))
    run = here.streaming()
    here.planner.see({"b": SourceBucket(VBUCKETS, frozenset())})
    assert not run.departed
    here.planner.see(None)
    assert not here.plan(Close)
    here.planner.see_topics({})
    here.planner.see({})
    assert not here.plan(MakeBucket)


def test_a_topic_that_is_away_is_waited_for() -> None:
    here = of_topic(an_index(1))
    here.renew(1)
    here.planner.see_topics({})
    assert not here.plan(Open)
    here.planner.see_topics({"b": SourceBucket(VBUCKETS, OWNED)})
    assert here.plan(Open)


def test_a_topic_with_another_number_of_partitions_is_no_bucket_any_more() -> None:
    here = of_topic(an_index(1, PENDING))
    here.planner.see_topics({"b": SourceBucket(VBUCKETS + 1, OWNED)})
    ((_, reason),) = here.planner.routed()
    assert "topic orders" in reason
    here.renew(1)
    assert not here.plan(Open)


def test_only_buckets_of_the_store_are_told_as_such() -> None:
    here = of_topic(an_index(1))
    assert here.planner.seen() == ()


# -- how far hosts have read ----------------------------------------------------------------------


def test_a_backfill_waits_for_the_host_that_has_read_least() -> None:
    given = Given(an_index())
    run = given.streaming()
    assert given.planner.read_by_hosts(run, given.now) is None
    for indexer, read in ((1, 9), (2, 5)):
        given.hw(indexer, 0, read=read)
    assert given.planner.read_by_hosts(run, 0) == 5
    assert given.planner.read_by_hosts(run, SILENT_MS - 1) == 5


def test_who_says_of_no_partition_how_far_it_has_read_has_read_nothing() -> None:
    given = Given(an_index())
    run = given.streaming()
    read = (ConnectionRead(ME, run.connection, ()),)
    given.planner.note_heartbeat(make_watermarks(1, NOTHING, indexes=(1,), read=read))
    assert given.planner.read_by_hosts(run, 0) == 0


def test_who_is_not_heard_is_not_waited_for() -> None:
    given = Given(an_index())
    run = given.streaming()
    given.hw(1, 0, read=9)
    assert given.planner.read_by_hosts(run, SILENT_MS) is None
    del given.planner.maintenance["b"]
    assert given.planner.read_by_hosts(run, 0) is None

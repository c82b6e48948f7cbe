"""A master with its whole core, driven by hand: what it admits it can end, and it stays quick."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.request_ids import uuid7
from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import AHEAD_MS_MAX
from coordinator.core.consensus import effects, inputs
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.durability import UNSYNCED_SAVES_MAX
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader.build_coordinator import STRANGE_MAX
from coordinator.core.leader.group_commit import PLAIN_BYTES
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    UNKNOWN,
    AddBucket,
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Position,
    PutSetting,
    Request,
    RewriteEntities,
)
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import (
    ClusterFormed,
    DdlReply,
    MemberLeft,
    ProjectorHeartbeat,
    ProposalAnswered,
    TopicSeen,
    TransactionCommitted,
    TransactionRolledBack,
)
from coordinator.core.model.stream_records import FailoverBranch, FailoverLog
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Vector
from tests.support.indexes import make_indexer_beat, make_watermarks
from tests.support.lone_node import LoneNode

GROUP_BYTES = 512 * 1024


@pytest.fixture
def lone() -> LoneNode:
    return LoneNode().start()


def ranged(size: int) -> CreateIndex:
    """Return an index with 255 bounds that weigh `size` bytes together."""
    length, more = divmod(size, 255)
    bounds = [[f"{n:05d}{'k' * (length - 12 + (n < more))}"] for n in range(255)]
    return CreateIndex(
        name="big",
        bucket="b",
        expressions=("name",),
        slices=0,
        partitioning="range",
        bounds_json=json.dumps(bounds, separators=(",", ":")),
    )


# -- what genesis fixes --------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [8, 4])
def test_a_node_that_finds_another_number_of_sync_partitions_than_genesis_does_not_run(
    seen: int,
) -> None:
    """Somebody has added partitions: records of one vbucket would be in two, in no order."""
    first = LoneNode({"sync_partitions": 8}).start()
    (formed,) = (r for r in map(codec.decode, first.log) if isinstance(r, ClusterFormed))
    assert first.node.authority is not None
    assert formed.sync_partitions == first.node.authority.sync_partitions == 8
    again = LoneNode({"sync_partitions": seen}, log=first.log, topic=first.topic)
    again.begin()
    says = f"sync has {seen} partitions, but the cluster was formed with 8"
    assert again.halted == (None if seen == 8 else fx.Halt("topic_mismatch", says, final=True))


def test_a_node_compares_them_also_when_it_goes_on_from_its_store() -> None:
    first = LoneNode().start()
    restored = inp.Restored(
        first.node.applied, first.node.authority, first.node.follower.state, None
    )
    again = LoneNode({"sync_partitions": 8}, log=first.log, topic=first.topic)
    again.feed(inp.Started(restored, 0, len(first.log)))
    assert again.halted is not None
    assert again.halted.code == "topic_mismatch"


# -- what is admitted can end --------------------------------------------------------------------


@pytest.mark.thorough
def test_the_largest_index_that_is_admitted_becomes_ready_and_can_be_dropped(
    lone: LoneNode,
) -> None:
    """READY weighs more than INIT: the shards of its hosts come in. The bucket is there already."""
    small = CreateIndex(name="small", bucket="b", expressions=("name",))
    lone.create(small, "first")
    low, high = 0, 2 * GROUP_BYTES
    while high - low > 1:
        size = (low + high) // 2
        fresh = LoneNode().start()
        fresh.create(small, "first")
        if fresh.create(ranged(size), "create").status == OK:
            low = size
        else:
            high = size
    assert low > GROUP_BYTES // 2, "and a large one is admitted"
    outcome = lone.create(ranged(low), "create")
    assert outcome.status == OK
    assert {index.state for index, _ in lone.node.state.indexes()} == {"ready"}
    weights: Counter[str] = Counter()
    for _, event in lone.topic:
        mutation = event.mutation
        weights[str(event.txn)] += len(mutation.key) + len(mutation.value or b"") + PLAIN_BYTES
    assert max(weights.values()) <= GROUP_BYTES
    assert lone.ask(DropIndex(bucket="b", name="big"), "drop").status == OK
    lone.until(lambda: (lone.indexer_answers(), len(list(lone.node.state.indexes())) == 1)[1])


def test_an_index_that_could_not_grow_is_refused_at_the_door(lone: LoneNode) -> None:
    outcome = lone.create(ranged(GROUP_BYTES - 100), "create")
    assert (outcome.status, outcome.code) == (REFUSED, "value_too_large")
    assert outcome.details["limit"] == GROUP_BYTES
    assert not lone.node.state.indexes()
    lone.publish(DropIndex(0, "b", "other"), "next", 0)
    lone.until(lambda: lone.written)


def test_what_the_master_itself_has_to_do_is_never_dropped(lone: LoneNode) -> None:
    """It goes alone where it does not fit into a group."""
    keys = []
    for number in range(12):
        assert lone.ask(PutSetting(f"k{number}", json.dumps("v" * 60_000))).status == OK
        keys.append(f"config/k{number}")
    before = lone.node.state.cas
    lone.master.requests.want("rewrite/0", RewriteEntities(tuple(keys)))
    lone.until(lambda: "rewrite/0" not in lone.master.requests.upkeep)
    assert all(lone.node.state.cas_of(key) > before for key in keys)


# -- outcomes ------------------------------------------------------------------------------------


def test_a_client_whose_clock_is_ahead_overwrites_nobody_after_the_window(lone: LoneNode) -> None:
    """Its id is remembered for as long as it is not expired."""
    window_ms = lone.node.config.request_window_ms
    request_id = uuid7(lone.wall_ms + 60_000, 1)
    command = PutSetting("counter", '"a"')
    first = lone.ask(command, request_id)
    assert lone.ask(PutSetting("counter", '"b"')).status == OK
    seen = set()
    for _ in range(8):
        lone.run(window_ms // 4, step_ms=1_000)
        again = lone.ask(command, request_id)
        if again.status == OK:
            assert (again.cas, again.txn) == (first.cas, first.txn)
        seen.add(again.code)
        held = lone.node.state.setting("counter")
        assert held is not None
        assert held.entity.value_json == '"b"'  # type: ignore[union-attr]
    assert seen == {"", "request_expired"}
    assert len(lone.node.outcomes) == 0, "an idle master forgets as well"


def test_a_published_command_outlives_any_outage_and_its_late_repeats_execute_never(
    lone: LoneNode,
) -> None:
    window_ms = lone.node.config.request_window_ms
    command, request_id = PutSetting("counter", '"a"'), uuid7(lone.wall_ms + 1_000, 1)
    assert lone.ask(PutSetting("other", "1"), uuid7(lone.wall_ms, 2)).status == OK
    later = LoneNode(
        log=list(lone.log), topic=list(lone.topic), wall_ms=lone.wall_ms + 3 * window_ms
    ).start()
    later.publish(command, request_id, 0)
    later.until(lambda: later.written)
    later.publish(command, request_id, 0, partition=1)
    later.until(lambda: len(later.written) == 2)
    first, second = later.written
    assert (first.status, first.cas, first.txn) == (OK, second.cas, second.txn)
    assert first.cas
    assert later.ask(PutSetting("counter", '"b"')).status == OK
    codes = set()
    for turn in range(1, 9):
        later.run(window_ms // 4, step_ms=1_000)
        later.publish(command, request_id, turn)
        later.until(lambda told=turn: len(later.written) == 2 + told)  # type: ignore[misc]
        reply = later.written[-1]
        codes.add(reply.error_code)
        assert reply.error_code or reply.cas == first.cas
    assert codes == {"", "request_expired"}
    held = later.node.state.setting("counter")
    assert held is not None
    assert held.entity.value_json == '"b"'  # type: ignore[union-attr]


def test_where_outcomes_weigh_too_much_new_requests_wait_and_none_is_forgotten_early() -> None:
    lone = LoneNode({"request_window_ms": 60_000, "outcomes_bytes_max": 2_000}).start()
    accepted = 0
    while (outcome := lone.ask(PutSetting("k", str(accepted)), f"r{accepted}")).status == OK:
        accepted += 1
    assert (outcome.status, outcome.code) == (UNKNOWN, "overloaded")
    assert 2_000 <= lone.node.outcomes.size_bytes < 3_000
    assert len(lone.node.outcomes) == accepted
    assert lone.master.is_behind, "nothing is read from ddl"
    assert lone.ask(PutSetting("k", "0"), "r0").status == OK, "a repeat adds nothing"
    assert lone.ask(PutSetting("k", "without an id".join('""'))).status == OK
    lone.run(150_000, step_ms=1_000)
    assert lone.node.outcomes.size_bytes == 0
    assert not lone.master.is_behind
    assert lone.ask(PutSetting("k", "1"), "later").status == OK


def test_a_request_costs_no_mutation_of_its_own(lone: LoneNode) -> None:
    before = len(lone.topic)
    for number in range(5):
        lone.ask(PutSetting("k", str(number)), f"r{number}")
    assert len(lone.topic) - before == 5
    assert len(lone.node.outcomes) == 5


@pytest.mark.thorough
def test_forgetting_keeps_up_with_any_number_of_waiting_clients() -> None:
    """What is remembered is bounded by what came within the window, however many wait."""
    lone = LoneNode({"request_window_ms": 1_500}).start()
    most = 0
    for number in range(150):
        lone.held.add(fx.WriteEvents)
        for one in range(128):
            command = PutSetting(f"k{one}", "1")
            lone.send(command, id=f"r{number}-{one}", recorded=True, fingerprint=1)
        lone.release()
        lone.run(50)
        most = max(most, len(lone.node.outcomes))
    per_window = 128 * (1_500 // 50 + 2)
    assert most <= per_window, (most, per_window)


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [128, 4_000])
def test_forming_a_group_looks_at_what_goes_into_it_and_not_at_all_that_waits(
    lone: LoneNode, waiting: int
) -> None:
    """Counted, not timed: how many commands are decided to form the next group."""
    value = json.dumps("x" * 15_000)
    lone.held.add(fx.WriteEvents)
    lone.send(PutSetting("first", "1"))
    for number in range(waiting):
        lone.send(PutSetting(f"k{number}", value), id=f"r{number}", recorded=True)
    decided = []
    mutation = lone.master.groups._mutation

    def counted(*args: object) -> object:
        decided.append(1)
        return mutation(*args)  # type: ignore[arg-type]

    lone.master.groups._mutation = counted  # type: ignore[method-assign, assignment]
    lone.release_first()
    group = lone.kept[0]
    assert isinstance(group, fx.WriteEvents)
    assert 20 < len(group.events) < 40
    assert len(decided) <= len(group.events) + 1, "one more than fits, and no other"


def test_commands_on_one_key_do_not_hold_all_others_up(lone: LoneNode) -> None:
    lone.held.add(fx.WriteEvents)
    lone.send(PutSetting("first", "1"))
    for number in range(200):
        lone.send(PutSetting("same", str(number)))
    other = lone.send(PutSetting("other", "1"))
    lone.release_first()
    (group,) = lone.kept
    assert isinstance(group, fx.WriteEvents)
    assert [e.mutation.key for e in group.events] == ["config/same", "config/other"]
    assert other not in lone.replies


@pytest.mark.parametrize(
    ("settings", "size", "taken"),
    [({"queue_bytes_max": 1_000_000}, 60_000, 17), ({"queue_max": 50}, 1, 49)],
    ids=["bytes", "callers"],
)
def test_the_queue_is_bounded(settings: dict[str, int], size: int, taken: int) -> None:
    lone = LoneNode(settings).start()
    lone.held.add(fx.WriteEvents)
    lone.send(PutSetting("first", "1"))
    sent = [lone.send(PutSetting(f"k{n}", json.dumps("x" * size))) for n in range(80)]
    refused = [lone.replies[token] for token in sent if token in lone.replies]
    assert {(a.status, a.code) for a in refused} == {(UNKNOWN, "overloaded")}
    assert len(sent) - len(refused) == taken
    lone.release()
    lone.until(lambda: all(token in lone.replies for token in sent))
    assert lone.master.requests.callers == 0
    assert lone.ask(PutSetting("again", "1")).status == OK


@pytest.mark.parametrize("linearizable", [True, False])
def test_readers_that_wait_are_bounded(linearizable: bool) -> None:
    lone = LoneNode({"readers_max": 10}).start()
    lone.held.add(fx.Append)
    for token in range(100, 120):
        deadline_ms = lone.mono_ms + 5_000
        lone.feed(inp.ReadRequested(token, deadline_ms, linearizable, at_least=10**6))
    codes = [lone.replies[t].code for t in range(100, 120) if t in lone.replies]
    assert codes == ["overloaded"] * 10


# -- two processes under one number --------------------------------------------------------------


def test_another_process_under_a_members_number_is_no_copy(lone: LoneNode) -> None:
    lone.held.add(fx.WriteEvents)
    lone.send(PutSetting("k", "1"))
    attempt = lone.master.committer.attempt
    assert attempt is not None
    assert attempt.offset is not None
    attempt.answers.clear()
    stranger = ProposalAnswered(1, 8, attempt.proposal.txn, attempt.offset, "accepted", "")
    attempt.count(stranger)
    assert attempt.missing == (1,)
    own = ProposalAnswered(1, 7, attempt.proposal.txn, attempt.offset, "accepted", "")
    attempt.count(own)
    assert attempt.missing == ()


# -- what a node refuses to believe ---------------------------------------------------------------


def alter(lone: LoneNode, kind: type, **more: object) -> None:
    """Change the next record of a kind on its way to the log."""
    conclude = lone._conclude

    def altered(effect: fx.Conclude) -> None:
        records = tuple(replace(r, **more) if isinstance(r, kind) else r for r in effect.records)
        conclude(replace(effect, records=records))

    lone.replaced[fx.Conclude] = altered


def test_a_verdict_with_another_digest_stops_the_node(lone: LoneNode) -> None:
    alter(lone, TransactionCommitted, state_digest=1)
    lone.send(PutSetting("k", "1"))
    assert lone.halted is not None
    assert (lone.halted.code, lone.halted.rebuild) == ("digest_mismatch", True)


def test_a_verdict_with_another_digest_of_the_outcomes_stops_the_node(lone: LoneNode) -> None:
    alter(lone, TransactionCommitted, outcomes_digest=1)
    lone.send(PutSetting("k", "1"), id="r", recorded=True)
    assert lone.halted is not None
    assert (lone.halted.code, lone.halted.rebuild) == ("digest_mismatch", True)


def test_a_void_verdict_stops_the_node(lone: LoneNode) -> None:
    alter(lone, TransactionCommitted, proposal_offset=0)
    lone.send(PutSetting("k", "1"))
    assert lone.halted is not None
    assert lone.halted.code == "void_commit"


@pytest.mark.parametrize("what", ["cas", "digest", "outcomes"])
def test_a_store_that_holds_something_else_is_not_trusted(lone: LoneNode, what: str) -> None:
    lone.ask(PutSetting("k", "1"), "r1")
    node = lone.node
    restored = inp.Restored(
        node.applied, node.authority, node.state, None, tuple(node.outcomes.kept())
    )
    fresh = LoneNode(log=list(lone.log))
    if what == "outcomes":
        restored = replace(restored, outcomes=())
    elif what == "digest":
        restored = replace(restored, state=node.state._replace(digest=1))
    else:
        restored = replace(restored, state=states.without(node.state, ["config/k"]))
    fresh.feed(inp.Started(restored, 0, len(lone.log)))
    assert fresh.halted is not None
    assert fresh.halted.rebuild


def test_a_proposal_that_builds_on_another_state_is_not_accepted(lone: LoneNode) -> None:
    """The fold would not open it; a node that stands elsewhere all the same says so, and ends."""
    lone.ask(PutSetting("k", "1"))
    lone.held.add(fx.Save)
    lone.send(PutSetting("k", "2"))
    node = lone.node
    assert node.prepared is not None
    node.follower.state = node.state._replace(cas=node.state.cas - 1)
    answers: list[ProposalAnswered] = []
    take = lone.master.answered

    def answered(view: NodeView, record: Any) -> list[Result]:
        answers.append(record)
        return take(view, record)

    lone.master.answered = answered  # type: ignore[method-assign]
    (saved,) = (e for e in lone.kept if isinstance(e, fx.Save) and e.sync)
    lone.feed(inp.Stored(saved.token))
    assert [answer.answer for answer in answers] in ([], ["behind"])
    assert lone.halted is not None
    assert lone.halted.code == "gap"


def test_not_everything_waits_for_a_proposal_to_be_synced(lone: LoneNode) -> None:
    """What is only installed need not be synced at once, but is now and then."""
    since = longest = 0
    for number in range(3 * UNSYNCED_SAVES_MAX):
        seen = len(lone.saves)
        beat = make_indexer_beat(3, incarnation=5, address=f"http://{number}", at_ms=lone.wall_ms)
        lone.feed(inp.BeatsRead((beat,)))
        lone.run(50)
        for save in lone.saves[seen:]:
            since = 0 if save.sync else since + 1
            longest = max(longest, since)
    assert len(lone.saves) > 3 * UNSYNCED_SAVES_MAX
    assert longest < UNSYNCED_SAVES_MAX


# -- order, and who is held up -------------------------------------------------------------------


def published(number: int, command: Command, request_id: str = "") -> Request:
    """Return a command as it stands on partition 0 of the `ddl` topic."""
    print_ = codec.fingerprint(command, None)
    place = Position(0, number)
    name = request_id or f"r{number}"
    return Request(command=command, id=name, fingerprint=print_, recorded=True, position=place)


def replies(lone: LoneNode) -> dict[str, tuple[str, str]]:
    found = [r for r in lone.written if isinstance(r, DdlReply)]
    return {r.request: (r.status, r.error_code) for r in found}


@pytest.mark.parametrize(
    ("then", "left"),
    [
        (DropIndex(bucket="b", name="x"), []),
        (BuildIndexes(bucket="b", names=("x",)), ["pending"]),
    ],
)
def test_what_stands_behind_a_creation_in_its_partition_is_decided_after_it(
    then: Command, left: list[str]
) -> None:
    """Also if both are read at once, as they are under load and after a failover."""
    lone = LoneNode(serves=True).start()
    lone.run(1_000)
    creation = CreateIndex(name="x", bucket="b", expressions=("a",), defer_build=True)
    lone.feed(inp.DdlRead((published(0, creation), published(1, then))))
    lone.until(lambda: len(replies(lone)) == 2)
    lone.run(2_000)
    assert replies(lone) == {"r0": (OK, ""), "r1": (OK, "")}
    assert [held.entity.state for held in lone.node.state.of_kind("index")] == left


def test_a_command_that_is_read_twice_is_queued_once(
    lone: LoneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that connects again may begin with what it had read."""
    queued: list[Request] = []
    monkeypatch.setattr(lone.master.requests.queue, "append", queued.append)
    first, second = (published(n, DropIndex(bucket="b", name="z")) for n in range(2))
    for read in ((first,), (first, second), (second,)):
        lone.feed(inp.DdlRead(read))
    assert queued == [first, second]


MESSAGE_BYTES_MAX = 1_000_000
"""A message on `ddl-replies` has 1 MiB at most, with what Kafka adds to it."""


@pytest.mark.thorough
def test_a_reply_fits_on_its_topic_however_much_its_command_names() -> None:
    """Kafka would refuse one that did not, with its transaction: nobody could be master again."""
    lone = LoneNode(serves=True).start()
    names = tuple(f"i{number}" for number in range(33))
    keys = tuple(letter * 4_000 for letter in "abcdefgh")
    for name in names:
        lone.create(CreateIndex(name=name, bucket="b", expressions=keys, defer_build=True))
    for begin in range(0, len(names), 11):
        lone.ask(BuildIndexes(bucket="b", names=names[begin : begin + 11]))
    lone.publish(BuildIndexes(bucket="b", names=names[:11]), "some", 0)
    lone.publish(BuildIndexes(bucket="b", names=names), "all", 1)
    for offset in (2, 3):  # A repeat has the same answer.
        lone.publish(BuildIndexes(bucket="b", names=names), "all", offset)
    lone.until(lambda: len(lone.written) == 4)
    some, *others = lone.written
    assert json.loads(some.answer_json)["indexes"][0]["expressions"] == list(keys)
    for reply in others:
        assert len(codec.encode(reply)) <= MESSAGE_BYTES_MAX
        assert (reply.request, reply.status) == ("all", "ok")
        told = json.loads(reply.answer_json)["indexes"]
        assert [index["name"] for index in told] == list(names)
        assert set(told[0]) == {"id", "name", "bucket", "state", "build"}


def test_another_command_under_the_id_of_a_creation_does_not_hide_it(lone: LoneNode) -> None:
    """Its refusal is told, and not remembered: under that id something takes effect."""
    lone.indexer_answers()
    lone.until(lambda: lone.node.authority and lone.node.authority.indexers)
    creation = CreateIndex(name="x", bucket="b", expressions=("a",))
    print_ = codec.fingerprint(creation, None)
    first = lone.send(creation, id="X", recorded=True, fingerprint=print_)
    lone.run(500)
    lone.feed(inp.DdlRead((published(0, DropIndex(bucket="b", name="z"), "X"),)))
    lone.until(lambda: "X" in replies(lone))
    assert replies(lone)["X"] == (REFUSED, "request_mismatch")
    second = lone.send(creation, id="X", recorded=True, fingerprint=print_)
    lone.serves = True
    lone.until(lambda: {first, second} <= lone.replies.keys())
    assert [lone.replies[token].status for token in (first, second)] == [OK, OK]
    assert lone.ask(creation, "X").status == OK


def test_an_id_of_a_far_year_is_refused_for_good_and_forgotten_in_time() -> None:
    """Published again when its year has come it would take effect, after a refusal was told."""
    lone = LoneNode({"request_window_ms": 2_000}).start()
    ahead = uuid7(lone.wall_ms + 10**12, 0)
    lone.feed(inp.DdlRead((published(0, DropIndex(bucket="b", name="z"), ahead),)))
    lone.until(lambda: ahead in replies(lone))
    assert replies(lone)[ahead] == (REFUSED, "clock_ahead")
    assert len(lone.node.outcomes) == 1
    lone.run(AHEAD_MS_MAX + 10_000, 500)
    assert len(lone.node.outcomes) == 0


def test_a_partition_that_is_held_up_holds_up_nobody_else(lone: LoneNode) -> None:
    """However many commands stand behind a creation that no indexer answers."""
    lone.indexer_answers()
    lone.until(lambda: lone.node.authority and lone.node.authority.indexers)
    again = CreateIndex(name="x", bucket="b", expressions=("a",), if_not_exists=True)
    lone.feed(
        inp.DdlRead(
            (
                published(0, CreateIndex(name="x", bucket="b", expressions=("a",))),
                published(1, again),
            )
        )
    )
    lone.run(200)
    behind = lone.node.config.examined_max + 500
    drop = DropIndex(bucket="b", name="z", if_exists=True)
    lone.feed(inp.DdlRead(tuple(published(2 + n, drop) for n in range(behind))))
    lone.run(200)
    assert len(lone.master.requests.queue) >= behind
    token = lone.send(PutSetting("k", "1"))
    lone.run(500)
    assert lone.replies[token].status == OK


def test_a_reader_does_not_share_a_barrier_that_was_sent_before_it_came() -> None:
    """Another node may have committed in between: what the reader sees would be stale."""
    lone = LoneNode().start()
    lone.held = {effects.Append}
    for token in (901, 902):
        lone.feed(inputs.ReadRequested(token, lone.mono_ms + 15_000, True))
    lone.release_first()
    assert set(lone.replies) & {901, 902} == {901}
    lone.release_first()
    assert set(lone.replies) >= {901, 902}


def test_who_was_refused_waits_no_more() -> None:
    """A count that only rises would answer `overloaded` to everybody in the end."""
    lone = LoneNode(settings={"queue_max": 3}).start()
    for _ in range(5):
        assert lone.ask(DeleteSetting("nobody")).code == "config_not_found"


def test_statecontext_is_compared_again_and_again() -> None:
    lone = LoneNode(settings={"scrub_ms": 5_000}).start()
    lone.ask(PutSetting("k", "1"))
    lone.until(lambda: lone.node.counters.scrubs == 2)


def test_a_life_that_has_left_says_nothing_of_the_one_after_it() -> None:
    """A wiped node folds the whole log: its earlier life has left, this one has not."""
    lone = LoneNode().start()
    entry = inputs.Entry(len(lone.log), MemberLeft(1, 1, 6, "operator", 0), b"")
    lone.node._on_membership(entry, None)
    assert not lone.node.admission.has_left


def test_a_stray_above_all_that_was_committed_is_mended_while_nothing_happens() -> None:
    """It would be taken for the state of its entity by whoever reads `statecontext` alone."""
    lone = LoneNode(settings={"scrub_ms": 5_000}).start()
    lone.ask(PutSetting("k", "1"))
    offset, event = lone.topic[-1]
    stray = replace(event, cas=event.cas + 1)
    lone.topic.append((offset + 1, stray))
    lone._end = offset + 2
    lone.until(lambda: lone.node.counters.strays_found)
    lone.until(lambda: lone.topic[-1][1].cas > stray.cas)
    assert lone.topic[-1][1].mutation.key == "config/k"
    scrubs = lone.node.counters.scrubs
    lone.until(lambda: lone.node.counters.scrubs > scrubs)
    assert lone.node.counters.strays_found == 1


def test_a_deposed_master_tells_its_callers_that_their_transaction_was_rolled_back() -> None:
    """It wrote the verdict and lost its producer before it read it: no need to wait for a claim."""
    lone = LoneNode().start()
    lone.held |= {fx.Conclude, fx.OpenProducer}
    token = lone.send(PutSetting("k", "1"))
    attempt = lone.master.committer.attempt
    assert attempt is not None
    lone.feed(inp.ProducerFailed(attempt.token, "cut off"))
    assert lone.node.master is None
    assert token not in lone.replies
    verdict = TransactionRolledBack(attempt.proposal.txn, len(lone.log) - 1, "refused", 0)
    lone.append(verdict)
    assert lone.replies[token].status == UNKNOWN
    assert lone.replies[token].code == "unavailable"


@pytest.mark.thorough
def test_the_largest_alter_that_is_admitted_can_end_both_indexes(lone: LoneNode) -> None:
    """Until then the log takes each by itself; their end is one transaction."""
    admitted = set()
    for size in range(150_000, 300_001, 10_000):
        fresh = LoneNode().start()
        assert fresh.create(ranged(size), "create").status == OK
        alter = AlterIndex(bucket="b", name="big", where="TRUE")
        token = fresh.send(alter, id="alter", recorded=True, fingerprint=1)
        fresh.run(200)
        if token in fresh.replies:
            assert fresh.replies[token].code == "value_too_large"
        else:
            assert fresh.ask(DropIndex(bucket="b", name="big"), "drop").status == OK
            assert fresh.replies[token].code == "alter_abandoned"
        admitted.add(token not in fresh.replies or fresh.replies[token].code != "value_too_large")
    assert admitted == {True, False}


def test_what_strangers_say_that_they_hold_is_not_kept(lone: LoneNode) -> None:
    """A record weighs up to 4 MiB, and is kept for as long as the process lives."""
    lone.create(CreateIndex(name="i", bucket="b", primary=True, defer_build=True))
    said = [("b", 0), ("b", 250), *(("b", n) for n in (-1, 251, 2**40))]
    said += [(f"stranger-{n}", 0) for n in range(200)]
    for bucket, indexer in said:
        beat = make_watermarks(indexer, Vector.zero(2), bucket=bucket)
        lone.feed(inp.StreamsRead((beat,)))
    assert set(lone.node.peers.watermarks) == {("b", 0), ("b", 250)}
    assert set(lone.master.building._watermarks) == {("b", 0), ("b", 250)}


def test_of_buckets_that_there_are_not_few_histories_are_kept(lone: LoneNode) -> None:
    """They are read once, and may be read before the bucket is made."""
    lone.create(CreateIndex(name="i", bucket="b", primary=True, defer_build=True))
    branches = (FailoverBranch(Vbuuid(1), Seqno(0)),)
    for bucket in ("b", *(f"stranger-{n}" for n in range(200)), "soon"):
        for vbucket in (-1, 0, 1, 2**31 - 1):
            lone.feed(inp.StreamsRead((FailoverLog(bucket, vbucket, branches, 0),)))
    kept = lone.master.building._logs
    assert {"b", "soon"} <= kept.keys()
    assert len(kept) == STRANGE_MAX + 1
    assert all(one.keys() == {0, 1} for one in kept.values())


# -- a repeat of an ALTER whose build goes on ----------------------------------------------------


def being_rebuilt(**settings: Any) -> LoneNode:
    """Return a node whose index `x` is altered, by the published request `alter`; it is built for
    as long as no projector comes."""
    lone = LoneNode(settings, serves=True).start()
    assert lone.create(CreateIndex(name="x", bucket="b", expressions=("a",))).status == OK
    beat = ProjectorHeartbeat(
        projector=0, incarnation=1, address="http://127.0.0.1:2", pid=1, at_ms=lone.wall_ms
    )

    def is_pending() -> bool:
        lone.feed(inp.BeatsRead((beat,)))
        return [index.state for index, _ in lone.node.state.indexes()] == ["pending"]

    lone.until(is_pending)
    return lone


REBUILT = AlterIndex(bucket="b", name="x", expressions=("a", "c"))


def replies_of(lone: LoneNode) -> Counter[tuple[str, str]]:
    """Return how often each request was answered how, on the topic of replies."""
    found = (record for record in lone.written if isinstance(record, DdlReply))
    return Counter((reply.request, reply.error_code or reply.status) for reply in found)


def test_a_published_repeat_of_an_alter_does_not_hold_its_partition_up() -> None:
    """A DROP behind it is what ends a build that does not end."""
    lone = being_rebuilt()
    lone.publish(REBUILT, "alter", 0)
    lone.run(1_000)
    lone.publish(REBUILT, "alter", 1)
    lone.publish(PutSetting("k", "1"), "later", 2)
    lone.run(500)
    assert replies_of(lone) == {("later", OK): 1}
    assert not lone.master.requests.parked
    lone.publish(DropIndex(bucket="b", name="x"), "drop", 3)
    lone.run(1_000)
    assert replies_of(lone) == {("later", OK): 1, ("drop", OK): 1, ("alter", "alter_abandoned"): 1}


def test_who_publishes_what_was_asked_for_otherwise_hears_of_its_end_too() -> None:
    lone = being_rebuilt()
    token = lone.send(
        REBUILT, id="alter", recorded=True, fingerprint=codec.fingerprint(REBUILT, None)
    )
    lone.run(1_000)
    lone.publish(REBUILT, "alter", 0)
    lone.publish(PutSetting("k", "1"), "later", 1)
    lone.run(500)
    assert replies_of(lone) == {("later", OK): 1}
    assert token not in lone.replies
    lone.publish(DropIndex(bucket="b", name="x"), "drop", 2)
    lone.run(1_000)
    assert replies_of(lone)["alter", "alter_abandoned"] == 1
    assert lone.replies[token].code == "alter_abandoned"


def test_a_repeat_of_an_alter_is_never_too_large() -> None:
    """Its index has grown since; it does not grow by that much once more."""
    refused = being_rebuilt(group_bytes_max=3_000).ask(REBUILT, "alter")
    assert refused.code == "value_too_large"
    [weighs] = [int(word) for word in refused.message.split() if word.isdigit()][:1]
    lone = being_rebuilt(group_bytes_max=weighs)
    token = lone.send(
        REBUILT, id="alter", recorded=True, fingerprint=codec.fingerprint(REBUILT, None)
    )
    lone.run(2_000)
    assert token not in lone.replies
    lone.publish(REBUILT, "alter", 0)
    lone.run(500)
    assert replies_of(lone) == {}
    assert lone.ask(DropIndex(bucket="b", name="x")).status == OK
    assert replies_of(lone) == {("alter", "alter_abandoned"): 1}


def test_a_repeat_of_an_alter_over_http_waits_for_its_end() -> None:
    lone = being_rebuilt()
    lone.publish(REBUILT, "alter", 0)
    lone.run(1_000)
    token = lone.send(
        REBUILT, id="alter", recorded=True, fingerprint=codec.fingerprint(REBUILT, None)
    )
    lone.run(1_000)
    assert token not in lone.replies
    assert lone.ask(DropIndex(bucket="b", name="x")).status == OK
    lone.until(lambda: token in lone.replies)
    assert lone.replies[token].code == "alter_abandoned"


def test_who_waits_for_an_index_to_be_made_goes_on_when_it_is_made() -> None:
    """Not when it takes the place of another one: that may take for ever."""
    lone = being_rebuilt()
    lone.serves = False
    lone.publish(REBUILT, "alter", 0)
    lone.run(500)
    second = next(index for index, _ in lone.node.state.indexes() if index.replaces)
    assert second.state == "init"
    lone.publish(BuildIndexes(indexes=(second.id,)), "build", 1)
    lone.publish(REBUILT, "alter", 2)
    lone.publish(PutSetting("k", "1"), "later", 3)
    lone.run(500)
    assert replies_of(lone) == {}
    lone.serves = True
    lone.run(2_000)
    assert replies_of(lone) == {("build", OK): 1, ("later", OK): 1}
    assert not lone.master.requests.parked


def test_a_master_that_stood_still_has_waited_for_no_indexer_meanwhile(lone: LoneNode) -> None:
    """What its indexers have answered is read right after."""
    lone.indexer_answers()
    lone.until(lambda: lone.node.authority and lone.node.authority.indexers)
    command = CreateIndex(name="x", bucket="b", expressions=("a",))
    token = lone.send(command, id="create", recorded=True, fingerprint=1)
    assert [index.state for index, _ in lone.node.state.indexes()] == ["init"]
    lone.mono_ms += 11_000
    lone.wall_ms += 11_000
    lone.feed(inp.Tick())
    lone.indexer_answers()
    lone.run(500)
    assert lone.replies[token].status == OK


def test_a_topic_is_read_again_where_a_projector_may_have_missed_a_deletion() -> None:
    """Once: what it says of a reading that is over counts no more."""
    lone = LoneNode(serves=True).start().run(2_000)
    lone.ask(AddBucket("orders", "shop.orders", 6, "json"))

    def says(forgetful: int) -> int:
        """Let the projector tell of the reading in which it missed something."""
        for _ in range(3):
            topics = (TopicSeen("orders", 6, 0, "", forgetful), TopicSeen("none", 1, 0, "", 0))
            beat = ProjectorHeartbeat(
                projector=0, incarnation=1, address="p", pid=1, at_ms=lone.wall_ms, topics=topics
            )
            lone.feed(inputs.BeatsRead((beat,)))
            lone.run(500)
        held = lone.node.state.bucket("orders")
        assert held is not None
        assert isinstance(held.entity, Bucket)
        return held.entity.reading

    assert says(-1) == 0
    assert says(0) == 1
    assert says(0) == 1
    assert says(1) == 2

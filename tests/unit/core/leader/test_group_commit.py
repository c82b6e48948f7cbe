"""Which commands go into one transaction, and which wait.

The part alone: a table of requests in, a group out. `docs/protocol.md` has the same in words
("Commit in two phases", "Commands from the ddl topic", "Bounds").
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from immutables import Map

from coordinator.client.request_ids import uuid7
from coordinator.core.catalog import ddl
from coordinator.core.catalog.decisions import recorded
from coordinator.core.catalog.placement import Candidate
from coordinator.core.catalog.subscriptions import DELIVERIES_MAX
from coordinator.core.consensus.peers import Peer
from coordinator.core.leader.group_commit import PLAIN_BYTES, Group, GroupCommit
from coordinator.core.leader.request_table import RequestTable
from coordinator.core.model.authority_state import IndexerInfo
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    Command,
    Comparison,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    MarkReady,
    Outcome,
    Position,
    PutSetting,
    Request,
    RewriteEntities,
    SkipRecord,
    Subscribe,
    Transact,
)
from coordinator.core.model.entities import (
    INIT,
    Bucket,
    Consumed,
    Index,
    Setting,
    Subscription,
    Topic,
)
from coordinator.core.model.outcome_records import OutcomesRecorded
from coordinator.core.model.records import BucketSeen, ProjectorHeartbeat
from coordinator.core.model.types import Cas, TxnId
from tests.support.indexes import make_index, make_indexer_beat
from tests.support.subscriptions import make_subscription
from tests.support.views import (
    CODEC,
    OWN_AUTHORITY,
    WALL_MS,
    a_state_of,
    a_view,
    some_peers,
    writes,
)

TXN = TxnId(4, 9)
DEADLINE_MS = 99_999


def indexers(*numbers: int) -> Map[int, IndexerInfo]:
    return Map({n: IndexerInfo(n, 1, "x", "") for n in numbers})


def a_master(settings: dict[str, int] | None = None, **fields: Any) -> Any:
    """Return what the master sees at CAS 50: the setting `k`, and the indexers 1 and 2 alive."""
    peers = some_peers(5_000)
    for number in (1, 2):
        peers.indexers[number] = Peer(5_000, make_indexer_beat(number))
    authority = replace(OWN_AUTHORITY, indexers=indexers(1, 2))
    state = a_state_of(50, Setting("k", "1"))
    known = {"authority": authority, "peers": peers, "state": state}
    return a_view(settings=settings, **(known | fields))


def asked(command: Command, token: int = 0, **fields: Any) -> Request:
    return Request(command=command, token=token, deadline_ms=DEADLINE_MS, **fields)


def put(name: str, value: str = "2", **fields: Any) -> Request:
    return asked(PutSetting(name, value), **fields)


def create(name: str, bucket: str = "b") -> CreateIndex:
    return CreateIndex(name=name, bucket=bucket, expressions=("a",))


def published(command: Command, offset: int, partition: int = 0, **fields: Any) -> Request:
    known = {"id": f"r{partition}-{offset}", "recorded": True, "fingerprint": 5}
    return asked(command, position=Position(partition, offset), **(known | fields))


def formed(*waiting: Request, view: Any = None, **parked: Request) -> tuple[Group, RequestTable]:
    """Form a group of what waits; `i7=` is parked behind the creation of index 7."""
    table = RequestTable()
    for request in waiting:
        if request.key:
            table.upkeep[request.key] = request
        else:
            table.queue.append(request)
    for name, request in parked.items():
        table.park(int(name[1:]), request)
    return GroupCommit(table, CODEC).form(view or a_master(), TXN), table


def keys(group: Group) -> list[str]:
    return [mutation.key for mutation in group.mutations]


def left(table: RequestTable) -> list[str]:
    """Return the names of the settings and indexes for which commands wait, in their order."""
    return [getattr(request.command, "name", "?") for request in table.queue]


def weight(name: str, value: str = "2") -> int:
    """Return what the writing of a setting takes of a group's bytes."""
    mutation = writes(name, value)
    return len(mutation.key) + len(mutation.value or b"") + PLAIN_BYTES


# -- what goes in --------------------------------------------------------------------------------


def test_all_that_waits_goes_into_one_transaction_in_its_order() -> None:
    first, second = put("a", token=1, principal="me"), put("b", token=2)
    group, table = formed(first, second)
    assert group.txn == TXN
    assert [(m.event, m.key, m.value) for m in group.mutations] == [
        (m.event, m.key, m.value) for m in (writes("a"), writes("b"))
    ]
    assert [(m.principal, m.at_ms) for m in group.mutations] == [("me", WALL_MS), ("", WALL_MS)]
    assert [(held.request, held.first, held.subject) for held in group.enlisted] == [
        (first, 0, 0),
        (second, 1, 0),
    ]
    assert group.enlisted[0].outcome == Outcome(OK, answer={"key": "a", "value": 2})
    assert len(table.queue) == 0


def test_a_command_of_two_changes_has_both_and_answers_the_cas_of_its_own() -> None:
    group, _ = formed(put("a"), asked(create("x")), put("c"))
    assert [held.first for held in group.enlisted] == [0, 1, 3]
    index = group.mutations[1].entity
    assert isinstance(index, Index)
    assert keys(group) == ["config/a", index.key, "bucket/b", "config/c"]
    assert (group.enlisted[1].waits_for, group.enlisted[0].waits_for) == ((index.id,), ())


def test_an_empty_table_makes_an_empty_group() -> None:
    group, _ = formed()
    assert (group.enlisted, group.mutations, group.answered) == ([], [], [])


# -- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "taken"), [(2, 1), (3, 2), (4, 3), (5, 4)])
def test_a_group_ends_where_the_next_command_might_not_fit_by_number(
    bound: int, taken: int
) -> None:
    """A command may change two entities."""
    names = [f"n{number}" for number in range(6)]
    view = a_master({"group_mutations_max": bound})
    group, table = formed(*(put(name) for name in names), view=view)
    assert keys(group) == [f"config/{name}" for name in names[:taken]]
    assert left(table) == names[taken:]


def test_a_command_that_changes_too_much_for_what_is_left_closes_the_group() -> None:
    """The partition of the topic that it came from is one change more."""
    for bound, fits in ((4, True), (3, False)):
        view = a_master({"group_mutations_max": bound})
        group, table = formed(put("a"), published(create("x"), 7), view=view)
        assert (len(group.mutations), len(group.enlisted)) == ((4, 2) if fits else (1, 1))
        assert left(table) == ([] if fits else ["x"])


def test_a_group_takes_bytes_up_to_the_bound_and_not_one_more() -> None:
    both = weight("a") + weight("b")
    for bound, names in ((both, ["config/a", "config/b"]), (both - 1, ["config/a"])):
        group, _ = formed(put("a"), put("b"), view=a_master({"group_bytes_max": bound}))
        assert keys(group) == names
        assert group.size_bytes == sum(weight(name[-1]) for name in names)


def test_a_group_ends_at_the_first_that_does_not_fit_and_nothing_overtakes_it() -> None:
    large = json.dumps("x" * 100)
    bound = weight("a") + weight("b", large) - 1
    view = a_master({"group_bytes_max": bound})
    group, table = formed(put("a"), put("b", large), put("c"), put("d"), view=view)
    assert keys(group) == ["config/a"]
    assert left(table) == ["b", "c", "d"]


def test_no_more_commands_are_looked_at_than_the_bound_says() -> None:
    waiting = [put("same", str(number)) for number in range(4)]
    for bound, found in ((4, ["config/same"]), (5, ["config/same", "config/other"])):
        view = a_master({"examined_max": bound})
        group, table = formed(*waiting, put("other"), view=view)
        assert keys(group) == found
        assert len(table.queue) == 5 - len(found)


def test_refusals_by_the_topic_fill_a_group_by_number_and_by_bytes() -> None:
    """Each costs a reply, and no mutation but one for its partition."""
    refusals = [published(DeleteSetting(f"n{number}"), number) for number in range(6)]
    group, table = formed(*refusals, view=a_master({"group_mutations_max": 3}))
    assert (len(group.enlisted), len(table.queue)) == (3, 3)
    (one,) = formed(refusals[0])[0].enlisted
    size = len(json.dumps(one.outcome.details)) + len(json.dumps(one.outcome.answer))
    for bound, taken in ((2 * size, 2), (2 * size - 1, 1)):
        group, table = formed(*refusals, view=a_master({"group_bytes_max": bound}))
        assert (len(group.enlisted), left(table)[0]) == (taken, f"n{taken}")


TOO_LARGE = json.dumps("x" * 300)


def test_a_command_that_is_too_large_for_any_transaction_is_refused_by_name() -> None:
    size = weight("a", TOO_LARGE)
    view = a_master({"group_bytes_max": size - 1})
    group, table = formed(put("a", TOO_LARGE, token=1), put("b"), view=view)
    ((request, outcome),) = group.answered
    assert (request.token, outcome.status, outcome.code) == (1, REFUSED, "value_too_large")
    assert outcome.details == {"limit": size - 1}
    assert f"{size} bytes in 1 changes" in outcome.message
    assert keys(group) == ["config/b"], "it holds nobody up"
    assert len(table.queue) == 0
    assert keys(formed(put("a", TOO_LARGE), view=a_master({"group_bytes_max": size}))[0])


def test_a_command_with_too_many_changes_is_refused_by_name() -> None:
    group, _ = formed(asked(create("x"), 1), view=a_master({"group_mutations_max": 2}))
    assert group.answered == []
    group, _ = formed(published(create("x"), 7), view=a_master({"group_mutations_max": 2}))
    (held,) = group.enlisted
    assert held.outcome.code == "value_too_large"
    assert held.record is not None
    assert held.record.error_code == "value_too_large"
    assert keys(group) == ["consumed/0"]


def test_an_index_is_let_in_only_if_it_can_still_grow() -> None:
    """By a reason, numbers, and a shard on each of its hosts."""
    (index, bucket) = formed(asked(create("x")))[0].mutations
    size = sum(len(m.key) + len(m.value or b"") + PLAIN_BYTES for m in (index, bucket))
    grown = size + ddl.GROWTH_BYTES + ddl.SHARD_BYTES
    for bound, fits in ((grown, True), (grown - 1, False)):
        group, _ = formed(asked(create("x"), 1), view=a_master({"group_bytes_max": bound}))
        assert len(group.mutations) == (2 if fits else 0)
        assert [outcome.code for _, outcome in group.answered] == (
            [] if fits else ["value_too_large"]
        )


# -- what meets what -----------------------------------------------------------------------------


def test_two_commands_on_one_key_never_share_a_group() -> None:
    group, table = formed(put("a", "1"), put("a", "2"), put("b"), put("a", "3"))
    assert keys(group) == ["config/a", "config/b"]
    waiting = [r.command.value_json for r in table.queue]  # type: ignore[union-attr]
    assert waiting == ["2", "3"], "in their order"


def test_subscriptions_to_two_topics_are_decided_apart_so_that_all_together_have_a_bound() -> None:
    """Each alone would be the last delivery that there may be."""
    there = [a_delivery("a", f"s{number}", number) for number in range(DELIVERIES_MAX - 1)]
    state = a_state_of(50, Topic("a", "{}", 0), Topic("b", "{}", 0), *there)
    asking = [
        asked(Subscribe(topic=topic, subscriber="new", deliver_to="out"), token)
        for token, topic in enumerate("ab", start=1)
    ]
    group, table = formed(*asking, view=a_master(state=state))
    assert keys(group) == ["subscription/a/new"]
    assert [*table.queue] == [asking[1]]


def a_delivery(topic: str, subscriber: str, number: int) -> Subscription:
    return make_subscription(
        topic=topic, id=subscriber, number=number, deliver_to="out", expires_after_ms=0
    )


def test_a_refusal_that_rests_on_what_its_own_group_writes_waits() -> None:
    """Told now, it would tell of something that may be rolled back."""
    group, table = formed(put("n", token=1), asked(DeleteSetting("n"), 2, expected_cas=7))
    assert keys(group) == ["config/n"]
    assert group.answered == []
    assert left(table) == ["n"]


def test_a_refusal_that_rests_on_the_committed_state_alone_is_told_behind_a_barrier() -> None:
    group, table = formed(asked(DeleteSetting("n"), 2), put("n", token=1))
    ((request, outcome),) = group.answered
    assert (request.token, outcome.code) == (2, "config_not_found")
    assert keys(group) == ["config/n"], "a refusal touches nothing"
    assert len(table.queue) == 0


def test_what_waits_holds_back_whatever_meets_it() -> None:
    """Else what came later would be decided first: a drop would find nothing to drop."""
    drop = asked(DropIndex(bucket="b", name="y"), 3)
    group, table = formed(asked(create("x"), 1), asked(create("y"), 2), drop, put("free"))
    assert keys(group)[1:] == ["bucket/b", "config/free"]
    assert left(table) == ["y", "y"], "the bucket is being made: the second creation waits"
    assert group.answered == []


def test_a_repeat_within_a_group_waits_for_the_first() -> None:
    first = put("a", token=1, id="r", recorded=True, fingerprint=5)
    again = put("b", token=2, id="r", recorded=True, fingerprint=6)
    group, table = formed(first, again)
    assert keys(group) == ["config/a"]
    assert left(table) == ["b"]
    unrecorded = [replace(one, recorded=False) for one in (first, again)]
    assert keys(formed(*unrecorded)[0]) == ["config/a", "config/b"]


def test_a_repeat_of_what_was_refused_in_this_group_waits_too() -> None:
    gone = published(DeleteSetting("n"), 7, id="r")
    group, table = formed(gone, put("b", token=2, id="r", recorded=True, fingerprint=6))
    assert [held.request for held in group.enlisted] == [gone]
    assert left(table) == ["b"]


def test_a_repeat_gets_its_first_outcome_and_changes_nothing() -> None:
    first = put("a", "2", id="r", recorded=True, fingerprint=5, token=1)
    record = recorded(first, Outcome(OK, answer={"key": "a"}))
    view = a_master()
    group = OutcomesRecorded(TxnId(3, 2), 40, WALL_MS, (replace(record, cas=40),))
    view.outcomes.add(40, CODEC.encode_outcomes(group), view.now)
    found, _ = formed(first, replace(first, recorded=False, token=2), view=view)
    ((request, outcome),) = found.answered
    assert (request.token, outcome.cas, outcome.txn) == (1, 40, "3-2")
    assert keys(found) == ["config/a"], "under an id that is not recorded it is decided anew"


@pytest.mark.parametrize(
    ("authority", "expired"),
    [({}, False), ({"request_window_ms": 1_000}, True), ({"outcomes_forgotten_ms": WALL_MS}, True)],
    ids=["known", "older-than-the-clusters-window", "older-than-what-was-forgotten"],
)
def test_an_id_of_which_nothing_could_be_known_any_more_is_refused(
    authority: dict[str, int], expired: bool
) -> None:
    """By what the log says, not by how this node is configured."""
    request = put("a", token=1, id=uuid7(WALL_MS - 1_001, 1), recorded=True)
    view = a_master(authority=replace(OWN_AUTHORITY, **authority))
    group, _ = formed(request, view=view)
    codes = [outcome.code for _, outcome in group.answered]
    assert codes == (["request_expired"] if expired else [])


def test_what_waits_for_an_index_is_parked_and_holds_back_whatever_meets_it() -> None:
    making = make_index(7, bucket="b", name="x", state=INIT)
    view = a_master(state=a_state_of(50, making, Bucket("b", 64)))
    second = asked(create("x"), 1)
    group, table = formed(second, asked(DropIndex(index_id=7), 2), put("a"), view=view)
    assert keys(group) == ["config/a"]
    assert table.parked == {7: [second]}
    assert left(table) == [""], "the drop names the id, and meets the name all the same"


# -- the ddl topic -------------------------------------------------------------------------------


def consumed(group: Group) -> list[Any]:
    return [m.entity for m in group.mutations if isinstance(m.entity, Consumed)]


def test_a_group_says_last_how_far_each_partition_was_decided() -> None:
    group, _ = formed(
        published(PutSetting("a", "1"), 7),
        published(PutSetting("b", "1"), 3, partition=1),
        published(PutSetting("c", "1"), 8),
    )
    assert keys(group) == ["config/a", "config/b", "config/c", "consumed/0", "consumed/1"]
    assert consumed(group) == [Consumed(0, 8), Consumed(1, 3)]
    assert group.mutations[-1].event == "DdlConsumed"


def test_each_partition_is_decided_in_its_order_and_waits_for_no_other() -> None:
    """The second of partition 0 meets the first: what follows it waits, whatever it is."""
    group, table = formed(
        published(PutSetting("a", "1"), 1),
        published(PutSetting("a", "2"), 2),
        published(PutSetting("free", "1"), 3),
        published(PutSetting("b", "1"), 1, partition=1),
        put("c"),
    )
    assert keys(group) == ["config/a", "config/b", "config/c", "consumed/0", "consumed/1"]
    assert consumed(group) == [Consumed(0, 1), Consumed(1, 1)]
    assert left(table) == ["a", "free"]


def test_what_is_parked_holds_its_partition_up_in_this_group_and_in_the_next() -> None:
    making = make_index(7, bucket="b", name="x", state=INIT)
    view = a_master(state=a_state_of(50, making, Bucket("b", 64)))
    waiting = published(DropIndex(bucket="b", name="x"), 1)
    behind = [published(PutSetting("a", "1"), 2), published(PutSetting("b", "1"), 1, partition=1)]
    group, table = formed(waiting, *behind, view=view)
    assert keys(group) == ["config/b", "consumed/1"]
    assert table.parked == {7: [waiting]}
    group, table = formed(*behind, view=view, i7=waiting)
    assert keys(group) == ["config/b", "consumed/1"]
    assert left(table) == ["a"]


def test_those_behind_in_a_partition_that_is_held_up_are_not_looked_at() -> None:
    waiting = published(DropIndex(bucket="b", name="x"), 1)
    behind = [published(PutSetting(f"n{n}", "1"), 2 + n) for n in range(9)]
    group, table = formed(*behind, put("c"), view=a_master({"examined_max": 1}), i7=waiting)
    assert keys(group) == ["config/c"]
    assert left(table) == [f"n{n}" for n in range(9)]


def test_a_refusal_by_the_topic_is_recorded_and_moves_its_partition_on() -> None:
    group, _ = formed(published(DeleteSetting("n"), 7))
    (held,) = group.enlisted
    assert (held.outcome.code, held.subject) == ("config_not_found", -1)
    assert held.record is not None
    assert (held.record.id, held.record.error_code) == ("r0-7", "config_not_found")
    assert consumed(group) == [Consumed(0, 7)]
    assert group.answered == []


def test_a_refusal_by_the_topic_that_does_not_fit_closes_the_group() -> None:
    """It tells the value that is there, which is more than is left: nothing overtakes it."""
    bound = weight("a") + weight("c")
    state = a_state_of(50, Setting("k", TOO_LARGE))
    refusal = published(PutSetting("k", "1"), 7, expected_cas=7)
    behind = (refusal, published(PutSetting("b", "1"), 8), put("c"))
    view = a_master({"group_bytes_max": bound}, state=state)
    group, table = formed(put("a"), *behind, view=view)
    assert keys(group) == ["config/a"]
    assert left(table) == ["k", "b", "c"]
    alone, _ = formed(*behind, view=view)
    assert keys(alone) == ["consumed/0"], "the first of a group always fits"


def test_a_record_that_is_no_command_is_passed_over_and_not_remembered() -> None:
    group, _ = formed(published(SkipRecord("not_avro", b"\x00"), 7, recorded=False))
    (held,) = group.enlisted
    assert (held.outcome.code, held.record) == ("invalid_request", None)
    assert consumed(group) == [Consumed(0, 7)]


@pytest.mark.parametrize("where", ["window", "state"])
def test_a_refusal_under_an_id_that_something_has_is_told_and_not_remembered(where: str) -> None:
    """Else the repeat of what took effect under the id would be told the refusal."""
    making = make_index(7, bucket="b", name="x", state=INIT, request="r", request_fingerprint=9)
    view = a_master(state=a_state_of(50, *([making] if where == "state" else [])))
    if where == "window":
        record = recorded(put("a", id="r", fingerprint=9), Outcome(OK, answer={"key": "a"}))
        group = OutcomesRecorded(TxnId(3, 2), 40, WALL_MS, (record,))
        view.outcomes.add(40, CODEC.encode_outcomes(group), view.now)
    found, _ = formed(published(DeleteSetting("n"), 7, id="r"), view=view)
    (held,) = found.enlisted
    assert (held.outcome.code, held.record) == ("request_mismatch", None)


# -- what the master itself has to do ------------------------------------------------------------


def upkeep(key: str, command: Command) -> Request:
    return Request(command=command, principal="coordinator", key=key)


def test_what_the_master_wants_itself_goes_in_front() -> None:
    making = make_index(7, bucket="b", name="x", state=INIT)
    view = a_master(state=a_state_of(50, making, Bucket("b", 64)))
    group, table = formed(put("a"), upkeep("index/7", MarkReady(7)), view=view)
    assert keys(group) == ["index/7", "config/a"]
    assert list(table.upkeep) == ["index/7"], "until its verdict is read back"


def test_what_the_master_wants_and_nothing_changes_by_is_done_with() -> None:
    group, table = formed(upkeep("index/7", MarkReady(7)))
    assert (group.enlisted, group.answered, table.upkeep) == ([], [], {})


def test_what_the_master_wants_is_never_dropped_and_goes_alone_where_it_is_too_large() -> None:
    made = [make_index(n, bucket="b", name=f"x{n}", state=INIT) for n in (7, 8)]
    state = a_state_of(50, *made, Bucket("b", 64))
    view = a_master({"group_bytes_max": 40}, state=state)
    two = [upkeep(f"index/{n}", MarkReady(n)) for n in (7, 8)]
    group, table = formed(put("a"), *two, view=view)
    assert keys(group) == ["index/7"]
    assert list(table.upkeep) == ["index/7", "index/8"]
    assert left(table) == ["a"], "what does not fit closes the group"


def test_what_the_master_wants_first_and_does_not_fit_is_not_overtaken() -> None:
    """Neither by what else it wants, nor by anybody's command."""
    wanted = [upkeep("u0", PutSetting("a", "2")), upkeep("u1", PutSetting("b", TOO_LARGE))]
    wanted.append(upkeep("u2", PutSetting("c", "2")))
    view = a_master({"group_bytes_max": weight("b", TOO_LARGE)})
    group, table = formed(put("d"), *wanted, view=view)
    assert keys(group) == ["config/a"]
    assert left(table) == ["d"]


def test_entities_that_strays_touched_are_rewritten_before_anything_else_and_alone() -> None:
    first, second = (upkeep(f"rewrite/{n}", RewriteEntities(("config/k",))) for n in (0, 1))
    group, table = formed(put("a"), upkeep("index/7", MarkReady(7)), first, second)
    assert keys(group) == ["config/k"]
    assert [held.request for held in group.enlisted] == [first]
    assert left(table) == ["a"]
    assert list(table.upkeep) == ["index/7", "rewrite/0", "rewrite/1"]


# -- where indexes go ----------------------------------------------------------------------------


def slices(group: Group) -> list[tuple[int, ...]]:
    indexes = [m.entity for m in group.mutations if isinstance(m.entity, Index)]
    return [tuple(piece.master for piece in index.slices) for index in indexes]


def test_indexes_of_one_group_have_ids_of_their_own_and_are_spread() -> None:
    group, _ = formed(asked(create("x", "a")), asked(create("y", "b")), asked(create("z", "c")))
    ids = [m.entity.id for m in group.mutations if isinstance(m.entity, Index)]
    assert ids == [(4 << 40) | (9 << 10) | number for number in (0, 2, 4)]
    assert slices(group) == [(1,), (2,), (1,)]


def test_an_index_goes_to_who_is_registered_and_alive() -> None:
    view = a_master()
    view.peers.indexers[2] = Peer(0, make_indexer_beat(2))
    view.peers.indexers[3] = Peer(5_000, make_indexer_beat(3))
    view.peers.indexers[1] = Peer(5_000, make_indexer_beat(1, zone="z"))
    group, _ = formed(asked(create("x")), view=view)
    assert group.indexers == [Candidate(1, "z")]
    assert slices(group) == [(1,)]


def test_a_bucket_has_the_vbuckets_that_a_live_projector_has_seen() -> None:
    def seen(vbuckets: int) -> ProjectorHeartbeat:
        bucket = (BucketSeen("b", vbuckets),)
        return ProjectorHeartbeat(
            projector=0, incarnation=1, address="x", pid=1, at_ms=0, buckets=bucket
        )

    for heard_ms, vbuckets in ((5_000, 64), (0, ddl.VBUCKETS)):
        view = a_master()
        view.peers.projectors[0] = Peer(heard_ms, seen(64))
        group, _ = formed(asked(create("x")), view=view)
        assert group.mutations[1].entity == Bucket("b", vbuckets)


# -- transactions of clients ---------------------------------------------------------------------


def whole_group() -> Request:
    """Return a transaction that nothing else fits beside."""
    puts = tuple(PutSetting(f"t/{number}", "1") for number in range(256))
    return asked(Transact(then=puts), token=7)


def test_a_command_that_needs_a_group_for_itself_gets_the_next_one() -> None:
    """Also while the master has something of its own to do for each group."""
    view, table = a_master(state=a_state_of(50, make_index(7, state=INIT))), RequestTable()
    groups = GroupCommit(table, CODEC)
    for request in (whole_group(), put("later")):
        table.queue.append(request)
    sizes = []
    for _ in range(3):
        table.want("index/7", MarkReady(7))
        sizes.append(len(groups.form(view, TXN).mutations))
    assert sizes == [1, 256, 2]


def test_what_is_too_much_for_a_transaction_is_said_so() -> None:
    """Of all a client asks for at once, only its transactions have a code of their own."""
    creates = tuple(create(f"i{number}", "fresh") for number in range(256))
    group, _ = formed(asked(Transact(then=creates), token=7))
    (answered,) = group.answered
    assert answered.outcome.code == "too_large"


def test_what_is_remembered_of_a_transaction_counts_for_the_size_of_a_group() -> None:
    compare = tuple(Comparison(key=f"config/{number}", cas=Cas(0)) for number in range(256))
    command = Transact(compare=compare, then=(PutSetting("a", "1"),))
    group, _ = formed(asked(command, id="r", recorded=True, token=7))
    assert group.size_bytes > 256 * len('{"cas":0,"key":"config/9"}')


def test_indexes_of_one_transaction_become_ready_together() -> None:
    indexes = [
        make_index(n, name=f"x{n}", state=INIT, request="r", request_fingerprint=0) for n in (7, 8)
    ]
    view, table = a_master(state=a_state_of(50, *indexes)), RequestTable()
    for index in indexes:
        table.want(index.key, MarkReady(index.id))
    group = GroupCommit(table, CODEC).form(view, TXN)
    assert keys(group) == ["index/7", "index/8"]

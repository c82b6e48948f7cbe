"""The commands that a master has taken: each caller is told exactly once, in whatever order.

The part alone. `docs/protocol.md` has the same in words ("What may fail during a commit", "DDL: the
prepare phase", "Commands from the ddl topic", "Bounds").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.catalog.state import EMPTY
from coordinator.core.consensus.effects import Reply
from coordinator.core.leader.request_table import (
    BACKLOG_BYTES_MAX,
    BACKLOG_MAX,
    UNDER_WAY,
    RequestTable,
)
from coordinator.core.leader.transaction import Enlisted
from coordinator.core.model.commands import (
    OK,
    CreateIndex,
    ForgetIndex,
    MarkReady,
    Outcome,
    Position,
    PutSetting,
    Request,
    SkipRecord,
    Transact,
    UndoIndex,
    refused,
    unknown,
    weight,
)
from coordinator.core.model.records import TransactionCommitted
from coordinator.core.model.types import TxnId
from tests.support.views import CONFIG

ATTEMPTS = CONFIG.attempts_max
OVERLOADED = unknown("overloaded", "too many commands wait: retry")
CREATE = CreateIndex(name="x", bucket="b", expressions=("a",))
COMMIT = TransactionCommitted(
    txn=TxnId(4, 1), proposal_offset=9, accepted=(1,), cas=(61, 62), state_digest=0, at_ms=0
)
LATE = "no verdict"


def a_request(name: str = "k", **fields: Any) -> Request:
    return Request(command=PutSetting(name, "1"), **fields)


def called(token: int, **fields: Any) -> Request:
    """Return what a caller asks for who waits until 100."""
    return a_request(f"k{token}", **({"token": token, "deadline_ms": 100} | fields))


def published(offset: int, partition: int = 0, **fields: Any) -> Request:
    """Return a command from the `ddl` topic."""
    place = Position(partition, offset)
    return a_request(
        f"p{partition}-{offset}", id=f"r{partition}-{offset}", position=place, **fields
    )


def enlisted(request: Request, **fields: Any) -> Enlisted:
    known: dict[str, Any] = {"outcome": Outcome(OK), "first": 0, "subject": 0}
    return Enlisted(request=request, **(known | fields))


def a_table(*waiting: Request) -> RequestTable:
    """Return a table in which these wait, the callers among them counted."""
    table = RequestTable()
    for request in waiting:
        if request.token:
            assert table.requested(CONFIG, request) == []
        else:
            table.queue.append(request)
    return table


def told(outcome: Outcome, *tokens: int) -> list[Any]:
    return [Reply(token, outcome) for token in tokens]


# -- at the door ---------------------------------------------------------------------------------


def test_callers_are_taken_up_to_a_bound_and_again_when_one_was_answered() -> None:
    config, table = replace(CONFIG, queue_max=2), RequestTable()
    assert table.requested(config, called(1)) == table.requested(config, called(2)) == []
    assert table.requested(config, called(3)) == told(OVERLOADED, 3)
    assert [request.token for request in table.queue] == [1, 2]
    table.reply(table.queue.pop(), Outcome(OK))
    assert table.requested(config, called(4)) == []
    assert table.callers == 2


def test_callers_in_flight_count_as_those_that_wait() -> None:
    config, table = replace(CONFIG, queue_max=1), RequestTable()
    table.requested(config, called(1))
    table.queue.pop()
    assert table.requested(config, called(2)) == told(OVERLOADED, 2)


def test_commands_are_taken_up_to_a_bound_of_bytes() -> None:
    heavy = weight(called(1))
    for limit, taken in ((heavy, True), (heavy - 1, False)):
        config, table = replace(CONFIG, queue_bytes_max=limit), RequestTable()
        table.requested(config, called(1))
        found = table.requested(config, called(2))
        assert found == ([] if taken else told(OVERLOADED, 2))
        assert table.callers == 1 + taken


def test_those_that_come_early_count_and_come_first_when_they_are_let_in() -> None:
    table, config = RequestTable(), replace(CONFIG, queue_bytes_max=2 * weight(a_request()))
    late = a_request("late", token=9)
    for token in (1, 2, 3):
        assert table.requested(config, a_request(token=token), is_early=True) == []
    assert table.requested(config, late, is_early=True) == [Reply(9, OVERLOADED)]
    assert table.requested(config, late) == [Reply(9, OVERLOADED)]
    assert len(table.queue) == 0
    table.let_in()
    assert [request.token for request in table.queue] == [1, 2, 3]
    assert table.requested(config, late) == [Reply(9, OVERLOADED)]


def test_those_that_come_early_are_told_at_their_deadline_and_when_the_master_changes() -> None:
    table = RequestTable()
    table.requested(CONFIG, a_request(token=1, deadline_ms=5), is_early=True)
    table.requested(CONFIG, a_request(token=2, deadline_ms=50), is_early=True)
    assert table.expire(10, LATE) == [Reply(1, unknown("timeout", LATE))]
    assert table.depose(UNDER_WAY) == [Reply(2, UNDER_WAY)]
    table.let_in()
    assert len(table.queue) == table.callers == 0


def test_nothing_is_read_from_the_topic_while_much_waits() -> None:
    table = RequestTable()
    for number in range(BACKLOG_MAX):
        table.queue.append(a_request(f"k{number}"))
    assert not table.is_long
    table.queue.append(a_request())
    assert table.is_long
    large = RequestTable()
    large.queue.append(Request(command=SkipRecord("", b"x" * (BACKLOG_BYTES_MAX - 512))))
    assert not large.is_long
    large.queue.append(a_request())
    assert large.is_long


def test_what_the_master_wants_itself_stands_there_once_until_it_is_decided() -> None:
    table = RequestTable()
    table.want("index/7", MarkReady(7))
    table.want("index/7", UndoIndex(7, "too late"))
    first = table.upkeep["index/7"]
    assert (first.command, first.principal, first.key) == (MarkReady(7), "coordinator", "index/7")
    table.decided(replace(first, attempts=1))
    table.decided(a_request())
    assert table.upkeep == {"index/7": first}, "another one of the name decides nothing"
    table.decided(first)
    assert table.upkeep == {}
    table.want("index/7", ForgetIndex(7))
    assert table.upkeep["index/7"].command == ForgetIndex(7)


# -- a commit ------------------------------------------------------------------------------------


def test_a_caller_hears_of_the_commit_with_the_cas_of_its_change() -> None:
    table, request = a_table(), called(1)
    table.callers = 1
    held = enlisted(request, outcome=Outcome(OK, answer={"a": 1}), first=1)
    answer = Outcome(OK, answer={"a": 1}, cas=62, txn="4-1")
    assert table.committed(EMPTY, held, COMMIT, is_deposed=False) == told(answer, 1)
    assert table.callers == 0


def test_what_nobody_waits_for_is_told_nobody() -> None:
    table = a_table()
    assert table.committed(EMPTY, enlisted(published(7)), COMMIT, is_deposed=False) == []
    assert table.callers == 0


def test_a_commit_decides_what_the_master_wanted_itself() -> None:
    table = a_table()
    table.want("index/7", ForgetIndex(7))
    assert table.committed(EMPTY, enlisted(table.upkeep["index/7"]), COMMIT, is_deposed=False) == []
    assert table.upkeep == {}


def creating(*tokens: int) -> RequestTable:
    """Return a table in which these have created the index 7, and wait for its end."""
    table = RequestTable()
    table.callers = len(tokens)
    for token in tokens:
        held = enlisted(Request(command=CREATE, token=token, deadline_ms=100), waits_for=(7,))
        assert table.committed(EMPTY, held, COMMIT, is_deposed=False) == []
    return table


def test_who_creates_an_index_hears_when_it_is_ready() -> None:
    table = creating(1)
    for other in (MarkReady(8), UndoIndex(8, "no room"), ForgetIndex(7)):
        held = enlisted(Request(command=other))
        assert table.committed(EMPTY, held, COMMIT, is_deposed=False) == []
    ready = enlisted(Request(command=MarkReady(7)), outcome=Outcome(OK, answer={"index": 7}))
    answer = Outcome(OK, answer={"index": 7}, cas=61, txn="4-1")
    assert table.committed(EMPTY, ready, COMMIT, is_deposed=False) == told(answer, 1)
    assert table.committed(EMPTY, ready, COMMIT, is_deposed=False) == []
    assert (table.callers, table.creators) == (0, {})


def test_who_creates_an_index_hears_when_it_is_undone_and_why() -> None:
    table = creating(1)
    undone = enlisted(Request(command=UndoIndex(7, "indexer 3: no room")))
    answer = refused("indexer_refused", "indexer 3: no room")
    assert table.committed(EMPTY, undone, COMMIT, is_deposed=False) == told(answer, 1)


def test_who_creates_indexes_at_once_hears_when_the_last_of_them_is_done() -> None:
    table = RequestTable()
    table.callers = 1
    results = [{"key": "index/7", "change": 0}, {"key": "index/8", "change": 1}]
    answer = {"succeeded": True, "compared": [], "results": results, "changes": 2}
    request = Request(command=Transact(), token=1, deadline_ms=100)
    held = enlisted(request, outcome=Outcome(OK, answer=answer), subject=1, waits_for=(7, 8))
    assert table.committed(EMPTY, held, COMMIT, is_deposed=False) == []
    undone = enlisted(Request(command=UndoIndex(8, "no room")))
    assert table.committed(EMPTY, undone, COMMIT, is_deposed=False) == []
    ready = enlisted(Request(command=MarkReady(7)))
    (reply,) = table.committed(EMPTY, ready, COMMIT, is_deposed=False)
    assert isinstance(reply, Reply)
    one, other = reply.outcome.answer["results"]
    assert (one["cas"], "error" in one) == (61, False)
    assert other["error"] == {"code": "indexer_refused", "message": "no room"}
    assert (table.callers, table.creators) == (0, {})


def test_a_creation_that_was_published_has_no_caller_to_wait() -> None:
    table = RequestTable()
    held = enlisted(Request(command=CREATE, position=Position(0, 7)), waits_for=(7,))
    assert table.committed(EMPTY, held, COMMIT, is_deposed=False) == []
    assert table.creators == {}


def test_who_creates_an_index_under_a_deposed_master_is_told_to_repeat() -> None:
    table = RequestTable()
    table.callers = 1
    held = enlisted(Request(command=CREATE, token=1), waits_for=(7,))
    assert table.committed(EMPTY, held, COMMIT, is_deposed=True) == told(UNDER_WAY, 1)
    assert table.creators == {}
    other = enlisted(called(2))
    answer = Outcome(OK, cas=61, txn="4-1")
    assert table.committed(EMPTY, other, COMMIT, is_deposed=True) == told(answer, 2)


# -- a rollback ----------------------------------------------------------------------------------


def test_what_was_rolled_back_is_tried_again_in_front_of_all_others() -> None:
    table = a_table(called(3))
    held = [enlisted(called(1)), enlisted(published(7)), enlisted(called(2))]
    assert table.rolled_back(CONFIG, held, "full") == []
    assert [(r.token, r.attempts) for r in table.queue] == [(1, 1), (0, 1), (2, 1), (3, 0)]


def test_a_caller_is_told_after_so_many_attempts_that_it_is_not_known() -> None:
    table, request = a_table(called(1)), called(1)
    for attempt in range(1, ATTEMPTS):
        request = table.queue.pop()
        assert table.rolled_back(CONFIG, [enlisted(request)], "full") == [], attempt
    request = table.queue.pop()
    answer = unknown("unavailable", "rolled back: full")
    assert table.rolled_back(CONFIG, [enlisted(request)], "full") == told(answer, 1)
    assert (len(table.queue), table.callers) == (0, 0)


def test_what_came_by_the_topic_is_tried_for_ever() -> None:
    table, request = a_table(), published(7)
    for attempt in range(1, 3 * ATTEMPTS):
        assert table.rolled_back(CONFIG, [enlisted(request)], "full") == []
        request = table.queue.pop()
        assert request.attempts == attempt


def test_what_the_master_wants_itself_stays_wanted_and_does_not_queue() -> None:
    table = a_table()
    table.want("index/7", MarkReady(7))
    assert table.rolled_back(CONFIG, [enlisted(table.upkeep["index/7"])], "full") == []
    assert (len(table.queue), list(table.upkeep)) == (0, ["index/7"])


def test_after_a_rollback_what_was_published_is_decided_again_in_its_order() -> None:
    """A command that is parked behind an index rests on those before it, which are tried again."""
    table = a_table(called(9))
    for index_id, request in ((7, published(5)), (8, published(3)), (7, published(4, 1))):
        table.park(index_id, request)
    table.park(7, called(1))
    table.rolled_back(CONFIG, [enlisted(published(2))], "full")
    places = [(r.position.partition, r.position.offset) for r in table.queue if r.position]
    assert places == [(0, 2), (0, 3), (0, 5), (1, 4)]
    assert [request.token for request in table.queue] == [0, 0, 0, 0, 9]
    assert {number: [r.token for r in rs] for number, rs in table.parked.items()} == {7: [1]}


# -- what waits for an index ---------------------------------------------------------------------


def test_what_waited_for_an_index_comes_first_when_its_creation_has_ended() -> None:
    table = a_table(called(9))
    for token in (1, 2):
        table.park(7, called(token))
    table.park(8, called(3))
    table.unpark(6)
    assert [request.token for request in table.queue] == [9]
    table.unpark(7)
    assert [request.token for request in table.queue] == [1, 2, 9]
    assert list(table.parked) == [8]


# -- the end of patience -------------------------------------------------------------------------


def everywhere(deadline_ms: int) -> RequestTable:
    """Return a table where one caller waits in each place, and one command that was published."""
    table = creating(3)
    creator = table.creators[7]
    creator.request = replace(creator.request, deadline_ms=deadline_ms)
    table.requested(CONFIG, called(1, deadline_ms=deadline_ms))
    table.callers += 1
    table.park(7, called(2, deadline_ms=deadline_ms))
    table.queue.append(published(7))
    table.park(7, published(8))
    return table


def test_a_caller_is_told_at_its_deadline_wherever_it_waits() -> None:
    table = everywhere(100)
    assert table.expire(99, LATE) == []
    assert table.expire(100, LATE) == told(unknown("timeout", LATE), 1, 2, 3)
    assert table.expire(101, LATE) == []
    assert (table.callers, table.creators) == (0, {})
    assert [r.id for r in table.queue] == ["r0-7"], "what was published waits on"
    assert [r.id for r in table.parked[7]] == ["r0-8"]


def test_who_still_has_time_waits_on() -> None:
    table = everywhere(200)
    assert table.expire(199, LATE) == []
    assert table.callers == 3
    assert [r.token for r in table.queue] == [1, 0]
    assert [r.token for r in table.parked[7]] == [2, 0]


def test_nobody_waits_for_an_index_any_more_where_all_have_gone() -> None:
    table = RequestTable()
    table.callers = 1
    table.park(7, called(1))
    table.expire(100, LATE)
    assert table.parked == {}


def test_a_caller_in_flight_is_told_at_its_deadline_and_not_again_with_the_verdict() -> None:
    """What becomes of its request stays open: it is not known."""
    table = RequestTable()
    table.callers = 2
    held = [enlisted(called(1)), enlisted(called(2, deadline_ms=200)), enlisted(published(7))]
    assert table.expire_enlisted(held, 99, LATE) == []
    assert table.expire_enlisted(held, 100, LATE) == told(unknown("timeout", LATE), 1)
    assert table.expire_enlisted(held, 101, LATE) == []
    assert table.callers == 1
    answers = [table.committed(EMPTY, one, COMMIT, is_deposed=False) for one in held]
    assert answers == [[], told(Outcome(OK, cas=61, txn="4-1"), 2), []]
    assert table.callers == 0


def test_a_request_whose_caller_has_gone_is_not_tried_again_after_a_rollback() -> None:
    table = RequestTable()
    table.callers = 1
    held = [enlisted(called(1))]
    table.expire_enlisted(held, 100, LATE)
    assert table.rolled_back(CONFIG, held, "full") == []
    assert (len(table.queue), table.callers) == (0, 0)


# -- the end of the mastership -------------------------------------------------------------------


def test_at_the_end_of_a_mastership_everybody_hears_once() -> None:
    """Those of whom nothing was proposed try the next master; creators repeat with their id."""
    table, answer = everywhere(100), unknown("no_master", "the master is changing: retry")
    assert table.depose(answer) == [*told(answer, 1, 2), *told(UNDER_WAY, 3)]
    assert (len(table.queue), table.queue.size_bytes) == (0, 0)
    assert (table.parked, table.creators, table.callers) == ({}, {}, 0)
    assert table.depose(answer) == []

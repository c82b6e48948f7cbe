"""Who is expired, who may leave, and when an operator is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.codec import Codec
from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Reply
from coordinator.core.consensus.inputs import MembershipRequested
from coordinator.core.consensus.view import Tokens
from coordinator.core.leader.membership import (
    FORGET_PAUSE_MS,
    REQUESTS_MAX,
    Membership,
    _why_not_leave,
)
from coordinator.core.model.commands import (
    OK,
    Leave,
    Outcome,
    Reform,
    RemoveService,
    StepDown,
    refused,
)
from coordinator.core.model.records import JoinRequested, MemberLeft, ServiceRemoved

TIMEOUT_MS = 1_500


class Given:
    """Node 1 is the master of epoch 3; of the others, nothing was heard for long."""

    def __init__(self, members: int, minimum: int, accepted: tuple[int, ...] = ()) -> None:
        nodes = tuple(range(1, members + 1))
        beat = SimpleNamespace(incarnation=7)
        authority = SimpleNamespace(
            roster=(*nodes, members + 1),
            members={n: SimpleNamespace(incarnation=7) for n in nodes},
            active=nodes,
            eligible=accepted or nodes,
            minimum=minimum,
            master=1,
            open=None,
            last_txn="3-9",
            shape={},
        )
        self.view: Any = SimpleNamespace(
            authority=authority,
            config=SimpleNamespace(node=1, election_timeout_ms=TIMEOUT_MS, admission_hold_ms=0),
            now=SimpleNamespace(mono_ms=10_000, wall_ms=5),
            peers=SimpleNamespace(
                clock_ms=10_000,
                nodes={n: SimpleNamespace(heard_ms=0, beat=beat) for n in (*nodes, members + 1)},
                alive=lambda peer: True,
                node_alive=lambda number: True,
            ),
        )
        self.membership = Membership(self.view, 3, Codec(), Copies(Tokens(), Counters()))

    def expired(self) -> list[int]:
        lapsed: list[Any] = self.membership._lapsed(self.view)
        return [record.node for record in lapsed]


@pytest.mark.parametrize(
    ("members", "minimum", "expired"), [(3, 3, []), (3, 2, [2]), (4, 2, [2, 3]), (2, 2, [])]
)
def test_no_more_members_are_expired_than_leave_enough_copies(
    members: int, minimum: int, expired: list[int]
) -> None:
    assert Given(members, minimum).expired() == expired


@pytest.mark.parametrize(("accepted", "may"), [((1, 2, 3), True), ((1, 3), False)])
def test_who_leaves_must_leave_enough_who_accepted_the_last_transaction(
    accepted: tuple[int, ...], may: bool
) -> None:
    given = Given(3, 2, accepted)
    why = _why_not_leave(given.view.authority, 3)
    assert ("have accepted 3-9" in why) is not may


@pytest.mark.parametrize(
    ("members", "minimum", "why"),
    [
        (2, 2, "1 node would be active, 2 copies are needed"),
        (3, 3, "2 nodes would be active, 3 copies are needed"),
    ],
)
def test_who_may_not_leave_is_told_how_many_would_be_left(
    members: int, minimum: int, why: str
) -> None:
    given = Given(members, minimum)
    assert _why_not_leave(given.view.authority, members) == why


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (Reform(1, (9,)), "node 9 is not in the roster: 1, 2, 3"),
        (Reform(1, (2, 8, 9)), "nodes 8, 9 are not in the roster: 1, 2, 3"),
        (Leave(9), "node 9 is not in the roster: 1, 2, 3"),
    ],
)
def test_an_operator_who_names_a_node_that_is_not_there_is_refused(command: Any, why: str) -> None:
    given = Given(2, 1)
    event = MembershipRequested(17, 99, command, "operator")
    assert given.membership.requested(given.view, event) == [
        Reply(17, refused("member_not_found", why))
    ]


def test_who_has_left_is_not_admitted_by_an_older_request_of_its_own() -> None:
    given = Given(2, 1)
    membership, view = given.membership, given.view
    request = JoinRequested(3, 7, "http://x", 0, 0)
    membership.join_requested(view, request)
    assert membership.joiners
    membership.changed(view, MemberLeft(3, 3, 7, "operator", 0))
    membership.join_requested(view, request)
    assert not membership.joiners


def test_an_operator_is_answered_for_what_was_written_in_this_epoch() -> None:
    given = Given(3, 1)
    membership, view = given.membership, given.view
    membership.requested(view, MembershipRequested(17, 99, Leave(3), "operator"))
    assert membership.changed(view, MemberLeft(4, 3, 7, "operator", 0)) == []
    (reply,) = membership.changed(view, MemberLeft(3, 3, 7, "operator", 0))
    assert isinstance(reply, Reply)
    assert reply.token == 17
    assert isinstance(reply.outcome, Outcome)


def test_a_member_of_which_nothing_was_heard_yet_has_the_time_of_all_others() -> None:
    """A master that has just begun has heard nobody."""
    given = Given(3, 1)
    given.view.peers.nodes.clear()
    given.view.peers.clock_ms += TIMEOUT_MS
    assert given.expired() == []
    given.view.peers.clock_ms += 1
    assert given.expired() == [2, 3]


def test_nobody_holds_proposals_back_by_asking_again() -> None:
    given = Given(2, 1)
    given.view.config.admission_hold_ms = 100
    for _ in range(4):
        given.membership.join_requested(given.view, JoinRequested(3, 7, "http://x", 0, 0))
        given.view.now.mono_ms += 30
    assert not given.membership.holds_back(given.view)


def step_down(given: Given, **terms: Any) -> tuple[Any, bool]:
    """Return the outcome of a step down, and whether the master resigns."""
    event = MembershipRequested(17, 99, StepDown(**terms), "operator")
    told: list[Any] = given.membership.requested(given.view, event)
    return (told[0].outcome if told else None), given.membership.resigning is event


def test_a_master_steps_down_only_where_somebody_is_there_to_follow() -> None:
    given = Given(3, 2)
    given.view.peers.node_alive = lambda number: False
    outcome, resigns = step_down(given)
    assert (outcome.code, resigns) == ("no_successor", False)
    given.view.peers.node_alive = lambda number: number == 2
    assert step_down(given, successor=3)[0].code == "no_successor"
    assert step_down(given, successor=2) == (None, True)


def test_a_repeat_of_a_step_down_does_not_depose_the_successor() -> None:
    given = Given(3, 2)
    given.view.config.address = "http://n1"
    outcome, resigns = step_down(given, epoch=2)
    assert (outcome.status, outcome.answer["epoch"], resigns) == (OK, 3, False)
    assert step_down(given, epoch=3) == (None, True)


def test_no_more_operators_wait_than_there_may() -> None:
    given = Given(4, 1)
    events = [MembershipRequested(n, 99, Leave(3), "o") for n in range(1, REQUESTS_MAX + 2)]
    told = [given.membership.requested(given.view, event) for event in events]
    assert told[:-1] == [[]] * REQUESTS_MAX
    (reply,) = told[-1]
    assert isinstance(reply, Reply)
    assert reply.outcome.code == "overloaded"


def test_a_master_that_is_idle_looks_for_old_outcomes_now_and_then() -> None:
    given = Given(1, 1)
    looked: list[int] = []
    given.view.authority.request_window_ms = 5
    given.view.outcomes = SimpleNamespace(due=lambda now, *_: looked.append(now.mono_ms) or 0)
    for _ in range(2 * FORGET_PAUSE_MS // 500):
        given.view.now.mono_ms += 500
        given.membership._forgotten(given.view)
    assert looked == [10_000 + FORGET_PAUSE_MS, 10_000 + 2 * FORGET_PAUSE_MS]


# -- indexers and projectors that are gone -------------------------------------------------------


def removing(
    kind: str = "indexer", *, is_alive: bool = False, load: int = 0, number: int = 2
) -> tuple[Given, MembershipRequested, Any]:
    """Ask for the removal of a service; return what is written, or what is answered."""
    given = Given(2, 1)
    view = given.view
    view.authority.indexers, view.authority.projectors = {2: object()}, {2: object()}
    view.authority.outcomes_apart = True
    view.peers.indexers = view.peers.projectors = {2: object()}
    view.peers.alive = lambda peer: is_alive
    view.state = SimpleNamespace(load={2: load})
    event = MembershipRequested(17, 99, RemoveService(kind, number), "operator")
    assert given.membership.requested(view, event) == []
    return given, event, given.membership._next_granted(view)


@pytest.mark.parametrize("kind", ["indexer", "projector"])
def test_a_service_that_is_gone_is_removed_and_its_operator_hears(kind: str) -> None:
    given, event, (record, told) = removing(kind)
    assert (record, told) == (ServiceRemoved(3, kind, 2, "operator", 5), [])
    assert given.membership.changed(given.view, ServiceRemoved(2, kind, 2, "", 5)) == []
    assert given.membership.changed(given.view, record) == [
        Reply(event.token, Outcome(OK, answer={"kind": kind, "id": 2}))
    ]


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"is_alive": True}, "indexer_alive"),
        ({"is_alive": True, "kind": "projector"}, "projector_alive"),
        ({"load": 1}, "indexer_in_use"),
        ({"number": 3}, "indexer_not_found"),
        ({"number": 3, "kind": "projector"}, "projector_not_found"),
    ],
)
def test_a_service_that_is_needed_or_is_not_there_is_not_removed(
    terms: dict[str, Any], code: str
) -> None:
    _, _, (record, [reply]) = removing(**terms)
    assert record is None
    assert (reply.token, reply.outcome.code) == (17, code)


def test_a_projector_is_removed_whatever_an_indexer_of_its_number_holds() -> None:
    _, _, (record, _) = removing("projector", load=5)
    assert record is not None

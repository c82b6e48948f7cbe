"""Every entity is told of in words: no change of one has an empty value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from coordinator.core.catalog.state import Versioned
from coordinator.core.history import shown
from coordinator.core.history.changes import Change
from coordinator.core.model.entities import (
    NOWHERE,
    ROLLBACK,
    ROLLBACK_DONE,
    ROLLBACK_STATES,
    Bucket,
    Consumed,
    Entity,
    Move,
    Rebalance,
    RequestOutcome,
    Rollback,
    Setting,
    Source,
    Stream,
    Subscription,
    Topic,
)
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, Offset, TxnId
from coordinator.http.rollback_views import rollbacks
from tests.support.indexes import make_index
from tests.support.views import a_state_of

PLACES = b"\x01" * 8, b"\x02" * 8
STREAM = Stream("b", 6, (Source(0, 1, 5), Source(1, 2, 6)), *PLACES, "why")
COMMANDED = Rollback(
    bucket="b",
    number=2**62 + 1,
    state=ROLLBACK,
    vbuckets=(1, 3),
    reason="2 vbuckets have lost what indexers hold",
    began_ms=5,
    failover_vbuuids=PLACES[0] * 2,
    failover_seqnos=PLACES[1] * 2,
    restart_vbuuids=PLACES[0],
    restart_seqnos=PLACES[1],
    barrier=2**62 + 2,
)
ENDED = replace(COMMANDED, state=ROLLBACK_DONE, ended_ms=9)
MOVING = Rebalance(
    id=9,
    state="running",
    moves=(Move(index=7, slice=1, source=NOWHERE, target=2, bytes=10),),
    began_ms=5,
    drain=(3,),
)
ENTITIES: list[Entity] = [
    make_index(1),
    Bucket("b", 4),
    STREAM,
    COMMANDED,
    MOVING,
    Setting("a", "1"),
    Consumed(0, Offset(5)),
    Topic("t", "{}", 5),
    Subscription(
        topic="t",
        id="s",
        number=1,
        filter_json="{}",
        after=Cas(0),
        deliver_to="",
        expires_after_ms=0,
        state="active",
        created_ms=5,
    ),
]


def value_of(entity: Entity) -> Any:
    return json.loads(shown.value(Versioned(Cas(3), b"x", entity)))


def test_no_entity_is_shown_as_an_empty_object() -> None:
    kinds = {type(one) for one in ENTITIES} | {RequestOutcome}
    assert kinds == {*get_args(Entity)}
    assert [one for one in ENTITIES if value_of(one) in ({}, None)] == []


def test_a_stream_is_shown_with_who_sends_it_and_without_its_vector() -> None:
    sources = [{"projector": 0, "number": 5}, {"projector": 1, "number": 6}]
    assert value_of(STREAM) == {
        "bucket": "b",
        "number": 6,
        "projectors": sources,
        "reason": "why",
    }


def test_a_rebalance_is_shown_with_its_moves_and_a_part_with_what_it_is_a_part_of() -> None:
    found = value_of(MOVING)
    assert (found["id"], found["state"], found["drain"], found["ended_ms"]) == (
        *("9", "running"),
        ["3"],
        None,
    )
    [move] = found["moves"]
    assert (move["index"], move["slice"], move["from"], move["to"]) == ("7", 1, None, "2")
    assert value_of(make_index(8, part_of=7))["part_of"] == "7"
    assert "part_of" not in value_of(make_index(8))


def test_a_step_of_a_rollback_is_shown_with_the_step_before_it_and_without_vectors() -> None:
    mutation = Mutation("RollbackEnded", ENDED.key, b"x", ENDED)
    event = Event(mutation, TxnId(1, 2), 0, 1, Cas(9))
    made = json.loads(shown.change(Change(event, Versioned(Cas(3), b"x", COMMANDED))))
    both = {
        "bucket": "b",
        "number": str(2**62 + 1),
        "reason": "2 vbuckets have lost what indexers hold",
        "vbuckets": [1, 3],
        "began_ms": 5,
    }
    assert (made["kind"], made["event"], made["before_cas"]) == ("rollback", "RollbackEnded", 3)
    assert made["before"] == both | {"state": "rollback", "ended_ms": None}
    assert made["value"] == both | {"state": "done", "ended_ms": 9}


@pytest.mark.parametrize("state", ROLLBACK_STATES)
def test_a_rollback_is_shown_alike_in_the_history_and_among_the_rollbacks(state: str) -> None:
    one = replace(ENDED if state == ROLLBACK_DONE else COMMANDED, state=state)
    [row] = rollbacks(a_state_of(4, one), None)["rollbacks"]
    assert value_of(one) == {
        name: field
        for name, field in row.items()
        if name not in ("failover", "restart", "indexers")
    }

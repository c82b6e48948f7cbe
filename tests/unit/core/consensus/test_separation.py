"""A cluster that an older version made goes on: its log folds to its digests, and to new ones.

The log in `data/` was written by the version in which outcomes of requests were entities.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.request_ids import uuid7
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import EMPTY
from coordinator.core.consensus.separation import separation
from coordinator.core.model.commands import OK, CreateIndex, DeleteSetting, PutSetting
from coordinator.core.model.entities import RequestOutcome
from coordinator.core.model.records import Mutation, OutcomesSeparated
from coordinator.core.model.types import Instant
from tests.support.lone_node import LoneNode

DATA = json.loads(
    (Path(__file__).parent / "data" / "log_before_outcomes_were_separated.json").read_text()
)
COMMANDS = {
    "order-1": PutSetting("quota", "10"),
    "order-2": PutSetting("quota", "20"),
    "create-1": CreateIndex(
        name="by_city", bucket="travel", expressions=("city",), defer_build=True
    ),
    "order-3": DeleteSetting("quota"),
    "order-4": PutSetting("quota", "30"),
}


def events() -> list[tuple[int, Any]]:
    """Return the events of `statecontext`, with their offsets."""
    return [
        (offset, replace(codec.decode(base64.b64decode(raw)), cas=offset + 1))
        for offset, raw in DATA["statecontext"]
    ]


@pytest.fixture
def upgraded() -> LoneNode:
    """A node of this version, without a folder, on that log; the next minute has begun."""
    log = [base64.b64decode(raw) for raw in DATA["commit"]]
    return LoneNode(wall_ms=DATA["wall_ms"] + 60_000, log=log, topic=events()).start()


def test_the_old_history_folds_to_its_old_digest() -> None:
    state = states.evolve(EMPTY, [(event.mutation, event.cas) for _, event in events()])
    assert (state.cas, f"{state.digest:032x}") == (DATA["cas"], DATA["digest"])


def test_the_first_master_takes_the_outcomes_out_of_the_state(upgraded: LoneNode) -> None:
    upgraded.until(lambda: upgraded.node.authority and upgraded.node.authority.outcomes_apart)
    node = upgraded.node
    assert upgraded.halted is None
    assert not [key for key in node.state.entities if key.startswith("request/")]
    assert node.state.digest == states.recomputed_digest(node.state)
    assert f"{node.state.digest:032x}" != DATA["digest"]
    separated = [r for r in map(codec.decode, upgraded.log) if isinstance(r, OutcomesSeparated)]
    assert [(r.cas, f"{r.digest:032x}") for r in separated] == [(DATA["cas"], DATA["digest"])]


@pytest.mark.parametrize("request_id", COMMANDS)
def test_a_repeat_after_the_upgrade_gets_its_first_outcome(
    upgraded: LoneNode, request_id: str
) -> None:
    outcome = upgraded.ask(COMMANDS[request_id], request_id)
    assert [outcome.cas, outcome.txn] == DATA["answers"][request_id]
    if request_id == "create-1":
        assert outcome.answer["index"]["id"] == DATA["index"]


def test_who_reads_the_log_later_comes_to_the_same(upgraded: LoneNode) -> None:
    upgraded.until(lambda: upgraded.node.authority and upgraded.node.authority.outcomes_apart)
    assert upgraded.ask(PutSetting("quota", "40"), "order-5").status == OK
    later = LoneNode(wall_ms=upgraded.wall_ms, log=list(upgraded.log), topic=list(upgraded.topic))
    later.start()
    assert later.node.state.digest == upgraded.node.state.digest
    assert later.node.outcomes.digest == upgraded.node.outcomes.digest
    assert later.ask(COMMANDS["order-1"], "order-1").cas == DATA["answers"]["order-1"][0]


def test_what_an_upgrade_leaves_out_is_refused_and_never_executed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of too many outcomes the oldest are left out; how young they were, the log knows."""
    monkeypatch.setattr("coordinator.core.consensus.separation.TAKEN_MAX", 2)
    wall_ms = 1_800_000_000_000
    changes = []
    for number in range(4):
        made_ms = wall_ms - 10_000 + 1_000 * number
        outcome = RequestOutcome(
            id=uuid7(made_ms, number),
            status="done",
            fingerprint=7,
            index_id=0,
            txn_epoch=1,
            txn_seq=number,
            distance=0,
            answer_json="{}",
            error_code="",
            error_message="",
            error_details_json="",
            by_topic=False,
            at_ms=made_ms,
        )
        mutation = Mutation("RequestDone", outcome.key, codec.encode(outcome), outcome)
        changes.append((mutation, 10 + number))
    state = states.evolve(EMPTY, changes)
    record = separation(state, codec.Codec(), 1, Instant(0, wall_ms))
    assert len(record.groups) == 2
    assert record.forgotten_ms == wall_ms - 9_000
    assert codec.decode(codec.encode(record)) == record

"""A new master serves settings at once, and DDL once it has heard of everybody, or later."""

from __future__ import annotations

import pytest

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.leader.first_handshakes import waits_for_them
from coordinator.core.model.commands import (
    Command,
    CreateIndex,
    DropIndex,
    PutSetting,
    Subscribe,
    Transact,
)
from coordinator.core.model.entities import Index
from coordinator.core.model.records import Holding, HoldingsReported, HoldingsRequested
from tests.support.indexes import make_indexer_beat
from tests.support.lone_node import INDEXER, INDEXER_URL, LoneNode

BEAT = make_indexer_beat(INDEXER, incarnation=5, address=INDEXER_URL)
CREATE = CreateIndex(name="i", bucket="b", expressions=("x",), defer_build=True)


@pytest.fixture
def asks() -> list[HoldingsRequested]:
    """What the master has asked its indexer."""
    return []


@pytest.fixture
def lone(asks: list[HoldingsRequested]) -> LoneNode:
    """A node that was restarted beside an indexer that has a slice, and leads from now on."""
    before = LoneNode().start()
    assert before.create(CREATE).status == "ok"
    lone = LoneNode(log=before.log, topic=before.topic, wall_ms=before.wall_ms)

    def note(effect: fx.Beat) -> None:
        if isinstance(effect.record, HoldingsRequested):
            asks.append(effect.record)
        lone._beat(effect)

    lone.replaced[fx.Beat] = note
    lone.begin()

    def leads() -> bool:
        lone.feed(inp.BeatsRead((BEAT,)))
        return lone.node.master is not None and lone.master.active

    return lone.until(leads)


def the_index(lone: LoneNode) -> Index:
    (index, _), *_ = lone.node.state.indexes()
    return index


def reads_ddl(lone: LoneNode) -> bool:
    return lone.master.first_handshakes.are_over


def test_settings_are_served_at_once_and_ddl_after_the_handshakes(
    lone: LoneNode, asks: list[HoldingsRequested]
) -> None:
    index = the_index(lone)
    dropping = lone.send(DropIndex(index.id))
    setting = lone.send(PutSetting("a", "1"))
    lone.run(100)
    assert lone.replies[setting].status == "ok"
    assert dropping not in lone.replies
    assert not reads_ddl(lone)
    held = Holding(index.id, 1, (0,))
    lone.feed(
        inp.AcksRead(
            (
                HoldingsReported(
                    indexer=INDEXER,
                    incarnation=5,
                    round=asks[-1].round,
                    part=0,
                    parts=1,
                    cas=lone.node.state.cas,
                    holdings=(held,),
                ),
            )
        )
    )
    lone.run(200)
    assert reads_ddl(lone)
    assert lone.replies[dropping].status == "ok"


def test_nobody_is_waited_for_longer_than_a_second(lone: LoneNode) -> None:
    """The indexer is alive all the time, and does not answer."""
    dropping = lone.send(DropIndex(the_index(lone).id))
    began_ms = lone.mono_ms
    while dropping not in lone.replies:
        assert lone.mono_ms - began_ms < lone.node.config.first_handshakes_ms + 300
        lone.feed(inp.BeatsRead((BEAT,)))
        lone.run(50)
    assert lone.replies[dropping].status == "ok"
    assert lone.mono_ms - began_ms > lone.node.config.first_handshakes_ms - 300


def test_callers_that_wait_for_them_are_told_when_the_master_changes(lone: LoneNode) -> None:
    token = lone.send(CREATE)
    results = lone.master.depose("another one leads")
    assert [r.outcome.code for r in results if isinstance(r, fx.Reply) and r.token == token] == [
        "no_master"
    ]


def test_a_new_cluster_waits_for_nobody() -> None:
    lone = LoneNode().start()
    lone.run(50)
    assert reads_ddl(lone)


@pytest.mark.parametrize(
    ("command", "waits"),
    [
        (PutSetting("a", "1"), False),
        (Subscribe(topic="t", subscriber="s"), False),
        (CREATE, True),
        (Transact(then=(PutSetting("a", "1"),)), False),
        (Transact(then=(PutSetting("a", "1"),), otherwise=(CREATE,)), True),
    ],
    ids=["setting", "subscription", "index", "settings", "settings and an index"],
)
def test_what_is_about_indexes_waits(command: Command, waits: bool) -> None:
    assert waits_for_them(command) == waits

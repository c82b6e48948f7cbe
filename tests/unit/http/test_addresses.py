"""Clients and nodes go where the Authority says: not to addresses that only a heartbeat names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from coordinator.core.consensus import inputs
from coordinator.core.model.records import ProjectorHeartbeat
from coordinator.http import views
from tests.support.indexes import make_indexer_beat
from tests.support.lone_node import HOST, INDEXER, INDEXER_URL, LoneNode, other_beat
from tests.support.lone_shell import LoneShell

EVIL = "http://evil.example:1"


def lone() -> LoneNode:
    """Return a master with a registered indexer and a registered projector."""
    node = LoneNode(serves=True).start().run(2_000)
    node.feed(inputs.BeatsRead((projector(),)))
    return node.run(200)


def projector(**more: Any) -> ProjectorHeartbeat:
    fields = {"incarnation": 3, "address": "projector-0", "pid": 1, "at_ms": 1, "kv": "http://kv"}
    return ProjectorHeartbeat(projector=0, **{**fields, **more})


def rows(shown: dict[str, Any], key: str, number: str) -> dict[int, Any]:
    return {row[number]: row for row in shown[key]}


def test_a_member_is_at_the_address_that_it_was_admitted_with() -> None:
    one = lone()
    one.feed(inputs.BeatsRead((other_beat(1, address=EVIL), other_beat(9, address=EVIL))))
    shown = rows(views.members(one.node), "members", "node")
    assert shown[1]["address"] == f"http://{HOST}"
    assert shown[9]["address"] == ""


def test_an_indexer_is_at_the_address_that_is_registered_for_the_life_that_is_heard() -> None:
    one = lone()
    assert views.scan_address(one.node, INDEXER) == INDEXER_URL
    assert rows(views.indexers(one.node), "indexers", "id")[INDEXER]["address"] == INDEXER_URL
    beat = one.node.peers.indexers[INDEXER].beat
    for odd in (replace(beat, address=EVIL), replace(beat, incarnation=9)):
        one.node.peers.indexers[INDEXER].beat = odd
        assert views.scan_address(one.node, INDEXER) is None
        assert rows(views.indexers(one.node), "indexers", "id")[INDEXER]["address"] == INDEXER_URL
    unheard = make_indexer_beat(8, address=EVIL, pid=9, at_ms=1)
    one.node.step(one.now, inputs.BeatsRead((unheard,)))
    assert views.scan_address(one.node, 8) is None
    assert rows(views.indexers(one.node), "indexers", "id")[8]["address"] == ""


def test_the_store_is_where_a_registered_projector_says() -> None:
    one = lone()
    shown = rows(views.projectors(one.node), "projectors", "id")[0]
    assert (shown["kv"], shown["registered"]) == ("http://kv", True)
    one.node.step(one.now, inputs.BeatsRead((projector(incarnation=4, kv=EVIL),)))
    assert rows(views.projectors(one.node), "projectors", "id")[0]["kv"] == ""


def test_the_api_shows_no_address_that_only_a_heartbeat_names() -> None:
    async def run() -> None:
        shell = LoneShell(LoneNode().start())
        shell.node.step(
            shell.now(),
            inputs.BeatsRead((other_beat(9, address=EVIL), projector(kv=EVIL, address=EVIL))),
        )
        async with shell.client() as http:
            for path in ("members", "indexers", "projectors"):
                assert EVIL not in (await http.get(f"/v1/{path}")).text
        shell.examiner.close()

    asyncio.run(run())

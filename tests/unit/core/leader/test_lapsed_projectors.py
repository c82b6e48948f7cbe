"""The master closes connections in the place of projectors that have lapsed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from coordinator.core.consensus.effects import CloseConnection
from coordinator.core.leader.lapsed_projectors import REPEAT_MS, TOLD_MAX, LapsedProjectors
from coordinator.core.model.entities import Source
from coordinator.core.model.records import StreamOwner
from coordinator.core.model.stream_records import MAINTENANCE, ORDINAL_MAX, ConnectionClosed
from coordinator.core.model.types import Instant

LAPSED_MS = 2_000
FIRST = StreamOwner("travel", 71, 0, 5, 512)
SECOND = StreamOwner("travel", 72, 1, 5, 512)


class View:
    """A master that knows two projectors, and what the application says of their connections."""

    def __init__(self, *owners: StreamOwner) -> None:
        self.silent = {0: 0, 1: 0}
        self.applies = True
        self.now = Instant(mono_ms=1_000, wall_ms=50)
        self.authority = SimpleNamespace(projectors={0: None, 1: None})
        beat = SimpleNamespace(owners=owners)
        self.peers = SimpleNamespace(
            applications={"0/1": SimpleNamespace(beat=beat)},
            alive=lambda peer: self.applies,
            projector_lapsed=lambda number: self.silent[number] > LAPSED_MS,
        )

    def advance(self, by_ms: int) -> None:
        self.now = Instant(mono_ms=self.now.mono_ms + by_ms, wall_ms=self.now.wall_ms + by_ms)


def closed(lapsed: LapsedProjectors, view: Any) -> list[int]:
    return [effect.record.connection for effect in lapsed.tick(view)]


def beat(projector: int, incarnation: int = 9) -> Any:
    return SimpleNamespace(projector=projector, incarnation=incarnation)


def test_what_a_projector_owns_that_has_lapsed_is_closed() -> None:
    view: Any = View(FIRST, SECOND)
    lapsed = LapsedProjectors()
    view.silent[1] = LAPSED_MS
    assert lapsed.tick(view) == []
    view.silent[1] = LAPSED_MS + 1
    record = ConnectionClosed(
        "travel", MAINTENANCE, 1, 72, ORDINAL_MAX, "the projector has lapsed", 50
    )
    assert lapsed.tick(view) == [CloseConnection(record)]


def test_it_is_said_again_while_it_owns_something_and_not_more_often() -> None:
    view: Any = View(SECOND)
    lapsed = LapsedProjectors()
    view.silent[1] = LAPSED_MS + 1
    assert closed(lapsed, view) == [72]
    view.advance(REPEAT_MS - 1)
    assert closed(lapsed, view) == []
    view.peers.applications["0/1"].beat.owners = (replace(SECOND, vbuckets=511),)
    assert closed(lapsed, view) == [], "some of its vbuckets have another owner by now"
    view.advance(1)
    assert closed(lapsed, view) == [72]
    view.peers.applications = {}
    view.advance(REPEAT_MS)
    assert closed(lapsed, view) == []


def test_of_many_connections_that_were_closed_the_last_are_known() -> None:
    """Those of an application gone wrong may be of buckets that nobody has."""
    view: Any = View()
    view.silent[1] = LAPSED_MS + 1
    lapsed = LapsedProjectors()
    for connection in range(TOLD_MAX + 10):
        owner = replace(SECOND, bucket=f"b{connection}", connection=connection)
        view.peers.applications["0/1"].beat.owners = (owner,)
        assert closed(lapsed, view) == [connection]
    assert lapsed.buckets == {f"b{n}" for n in range(10, TOLD_MAX + 10)}


def test_an_application_that_is_away_says_nothing_of_owners() -> None:
    view: Any = View(SECOND)
    view.silent[1] = LAPSED_MS + 1
    view.applies = False
    assert LapsedProjectors().tick(view) == []


def test_one_that_was_only_paused_streams_anew() -> None:
    view: Any = View(FIRST, SECOND)
    lapsed = LapsedProjectors()
    numbers = {"travel": {(0, 9): Source(0, 9, 5, 5), (1, 9): Source(1, 9, 5, 5)}}
    assert lapsed.returned([beat(0), beat(1)], numbers) == {}
    view.silent[1] = LAPSED_MS + 1
    lapsed.tick(view)
    assert lapsed.returned([beat(0)], numbers) == {}, "it is away"
    assert lapsed.returned([beat(0), beat(1)], numbers) == {"travel": ((1, 9),)}
    assert lapsed.buckets == {"travel"}
    in_part = {"travel": {(1, 9): Source(1, 9, 6, 5)}}
    assert lapsed.returned([beat(1)], in_part) == {"travel": ((1, 9),)}
    renewed = {"travel": {(0, 9): Source(0, 9, 5, 5), (1, 9): Source(1, 9, 7, 7)}}
    assert lapsed.returned([beat(0), beat(1)], renewed) == {}
    assert lapsed.buckets == set()
    assert lapsed.returned([beat(0), beat(1)], numbers) == {}


def test_one_that_was_restarted_has_a_generation_of_its_own() -> None:
    view: Any = View(SECOND)
    lapsed = LapsedProjectors()
    view.silent[1] = LAPSED_MS + 1
    lapsed.tick(view)
    numbers = {"travel": {(1, 9): Source(1, 9, 5, 5)}}
    assert lapsed.returned([beat(1, incarnation=10)], numbers) == {}

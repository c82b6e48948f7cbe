"""Who is alive: a process is given four of its own heartbeats, and no less than the node itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.consensus.peers import PERIOD_MS_MAX, Peers
from coordinator.core.model.records import ProjectorHeartbeat, TimestampsHeartbeat
from coordinator.core.model.types import Instant
from coordinator.core.timestamps.shards import shard_of
from tests.support.indexes import make_indexer_beat
from tests.support.lone_node import LoneNode

CONFIG = LoneNode().node.config
STEP_MS = CONFIG.heartbeat_ms
PROJECTOR = ProjectorHeartbeat(projector=3, incarnation=1, address="p", pid=1, at_ms=0)
APPLICATION = TimestampsHeartbeat(incarnation=1, pid=1, batch=1, at_ms=0)


class Listener:
    """Peers of a node, whose clock goes on."""

    def __init__(self) -> None:
        self.now = Instant(mono_ms=0, wall_ms=0)
        self.peers = Peers(CONFIG)

    def listen(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now = Instant(mono_ms=self.now.mono_ms + STEP_MS, wall_ms=0)
            self.peers.listen(self.now)


@pytest.mark.parametrize(
    ("period_ms", "alive_ms"),
    [
        pytest.param(0, CONFIG.liveness_ms, id="it does not say how often"),
        pytest.param(50, CONFIG.liveness_ms, id="more often than the node"),
        pytest.param(500, 2_000, id="less often than the node"),
        pytest.param(60_000, 240_000, id="as seldom as can be"),
        pytest.param(2**31 - 1, 4 * PERIOD_MS_MAX, id="a period that nobody has"),
        pytest.param(-5, CONFIG.liveness_ms, id="no period"),
    ],
)
def test_each_is_alive_for_four_of_its_own_heartbeats(period_ms: int, alive_ms: int) -> None:
    one = Listener()
    for beat in (make_indexer_beat(1), PROJECTOR, APPLICATION):
        one.peers.remember(replace(beat, period_ms=period_ms), one.now)  # type: ignore[type-var]
    one.listen(alive_ms)
    peers = one.peers
    assert peers.indexer_alive(1)
    assert peers.alive(peers.projectors[3])
    assert peers.application_of("any") is not None
    one.listen(STEP_MS)
    assert not peers.indexer_alive(1)
    assert not peers.alive(peers.projectors[3])
    assert peers.application_of("any") is None


@pytest.mark.parametrize(
    ("period_ms", "lapses_after_ms"),
    [(0, CONFIG.lapsed_projector_ms), (500, CONFIG.lapsed_projector_ms), (3_000, 12_000)],
)
def test_a_projector_lapses_after_no_fewer_than_four_heartbeats(
    period_ms: int, lapses_after_ms: int
) -> None:
    one = Listener()
    one.peers.remember(replace(PROJECTOR, period_ms=period_ms), one.now)
    one.listen(lapses_after_ms)
    assert not one.peers.projector_lapsed(3)
    one.listen(STEP_MS)
    assert one.peers.projector_lapsed(3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_applications_that_own_a_bucket_the_one_that_was_heard_last_counts(
    order: tuple[int, int],
) -> None:
    """While the shards are being changed."""
    of_it = next(n for n in ("1/2", "2/2") if shard_of(n).owns("orders"))
    beats = [APPLICATION, replace(APPLICATION, shard=of_it)]
    one = Listener()
    for place in order:
        one.peers.remember(beats[place], one.now)
        one.listen(STEP_MS)
    found = one.peers.application_of("orders")
    assert found is not None
    assert found.beat == beats[order[-1]]

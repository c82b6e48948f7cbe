"""Who is busy for seconds is not dead; who is stuck is."""

from __future__ import annotations

from indexer_sim.pipeline.late_beats import STUCK_S, LateBeats
from tests.support.indexes import make_indexer_beat

BEAT = make_indexer_beat(1)


def test_nothing_is_repeated_while_the_loop_is_in_time() -> None:
    late = LateBeats(0.5)
    assert late.due(100.0, 1) is None, "it has not said anything yet"
    for tenth in range(100):
        if tenth % 5 == 0:
            late.sent(BEAT, 100 + tenth / 10)
        assert late.due(100 + tenth / 10, 1) is None


def test_a_late_loop_is_stood_in_for_once_a_period_until_it_may_be_stuck() -> None:
    late = LateBeats(0.5)
    late.sent(BEAT, 100.0)
    times = [100 + n / 100 for n in range(2_000)]
    found = {now_s: beat for now_s in times if (beat := late.due(now_s, int(now_s)))}
    assert len(found) == (STUCK_S - 0.75) // 0.5 + 1
    assert min(found) == 100.75
    assert max(found) < 100 + STUCK_S
    assert found[100.75].at_ms == 100
    assert found[100.75].indexer == BEAT.indexer
    late.sent(BEAT, 130.0)
    assert late.due(130.7, 1) is None
    assert late.due(130.8, 1) is not None

"""What a reader of the history remembers of it: little, however much is asked."""

from __future__ import annotations

import random
from itertools import pairwise

from coordinator.kafka.history_log import NEAR, HistoryLog, Mark
from tests.support.ports import reserve_port


def test_places_that_are_remembered_are_in_order_and_not_near_each_other() -> None:
    log = HistoryLog(f"127.0.0.1:{reserve_port()}", "c")
    try:
        chance = random.Random(14)
        for _ in range(5_000):
            offset = chance.randrange(100_000)
            log._mark(Mark(offset + 1, offset))
        offsets = [mark.offset for mark in log._marks]
    finally:
        log.close()
    assert offsets == sorted(offsets)
    assert all(later - earlier >= NEAR for earlier, later in pairwise(offsets))
    assert 50 < len(offsets) <= 1 + 100_000 // NEAR

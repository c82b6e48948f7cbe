"""What Kafka removes from a topic, and since when it has not."""

from __future__ import annotations

import pytest

from coordinator.core.model.topic_logs import Cleaning

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("cleaning", "read_from_ms", "since_ms"),
    [
        pytest.param(Cleaning(False, False, DAY_MS), 0, None, id="nothing goes"),
        pytest.param(Cleaning(True, False, DAY_MS), 0, NOW_MS - DAY_MS, id="read long ago"),
        pytest.param(
            Cleaning(True, False, DAY_MS), NOW_MS - DAY_MS - 1, NOW_MS - DAY_MS, id="just too long"
        ),
        pytest.param(Cleaning(True, False, DAY_MS), NOW_MS - DAY_MS, None, id="not yet too long"),
        pytest.param(Cleaning(True, False, DAY_MS), NOW_MS + 5, None, id="a clock ahead"),
        pytest.param(Cleaning(True, False, 2**63 - 1), 0, None, id="kept for ever"),
    ],
)
def test_since_when_no_deletion_is_forgotten(
    cleaning: Cleaning, read_from_ms: int, since_ms: int | None
) -> None:
    assert cleaning.kept_since_ms(NOW_MS, read_from_ms) == since_ms

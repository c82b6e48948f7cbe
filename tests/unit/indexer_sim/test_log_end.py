"""A log that seems to end before what was followed: for a moment that is nothing, then it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from indexer_sim import process
from indexer_sim.process import SHORT_S, Indexer, LogReplacedError


def test_a_broker_that_does_not_know_yet_that_another_leads_is_not_believed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(process.time, "monotonic", lambda: now)
    indexer: Any = SimpleNamespace(position=872, _short_since_s=None)

    def look(end: int) -> None:
        Indexer._check_end(indexer, "statecontext", end)

    look(872)
    for later_s in (0.0, SHORT_S - 0.1):
        now = 100.0 + later_s
        with pytest.raises(KafkaException, match="up to offset 872, but the log ends at 835"):
            look(835)
    look(900)
    now = 100.0 + 2 * SHORT_S
    with pytest.raises(KafkaException):
        look(835)
    now += SHORT_S
    with pytest.raises(LogReplacedError, match="lost or replaced"):
        look(835)

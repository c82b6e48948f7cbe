"""What a projector says while its client takes no more records."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from projector_sim.projector.process import Options, Projector


def test_while_the_sink_waits_a_heartbeat_is_sent_and_no_record_comes_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A BEGIN waited for Kafka, and its vbucket was spoken of before it had begun."""
    options = Options(projector=1, cluster="c", bootstrap_servers="127.0.0.1:1", kv="http://kv")
    projector = Projector(options, threading.Event())
    beats: list[Any] = []
    monkeypatch.setattr(projector._follower, "beat", beats.append)

    def repeat() -> None:
        raise AssertionError("a record comes between")

    line: Any = SimpleNamespace(router=SimpleNamespace(repeat=repeat, errors=Counter()))
    projector._lines.append(line)
    projector._sink._while_waiting()
    assert len(beats) == 1
    with pytest.raises(AssertionError, match="comes between"):
        projector._repeat_if_due()

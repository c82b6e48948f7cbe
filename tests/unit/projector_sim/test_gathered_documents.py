"""What a projector sends of a connection is gathered for longer where much comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.model.stream_records import BACKFILL, CATCHUP, MAINTENANCE
from projector_sim.projector import process
from projector_sim.projector.process import FLUSH_MOST_S, FLUSH_S, Line, gathering_of


class Sent:
    """A line of maintenance, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 10.0
        self.flushes = 0
        self.router: Any = SimpleNamespace(documents=0, flush=self._flush)
        run: Any = SimpleNamespace(kind=MAINTENANCE)
        stream: Any = None
        gathering = gathering_of(MAINTENANCE)
        self.line = Line(run=run, stream=stream, router=self.router, gathering=gathering)
        monkeypatch.setattr(process.time, "monotonic", lambda: self.now_s)

    def _flush(self) -> None:
        self.flushes += 1

    def send(self, documents: int) -> float:
        """Send so many documents when it is time to; return when the next are due."""
        self.now_s = max(self.now_s + 0.001, self.line.due_s)
        self.router.documents += documents
        self.line.waits = True
        self.line.flush()
        assert not self.line.waits
        return self.line.due_s - self.now_s


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def test_little_is_sent_soon_and_much_is_gathered(sent: Sent) -> None:
    soon_s = FLUSH_S[MAINTENANCE]
    assert [sent.send(1) for _ in range(20)] == [pytest.approx(soon_s)] * 20
    assert [sent.send(500) for _ in range(20)][-1] == pytest.approx(FLUSH_MOST_S)
    assert [sent.send(1) for _ in range(2)][-1] == pytest.approx(soon_s)
    assert sent.flushes == 42


@pytest.mark.parametrize(
    ("kind", "wait_s"),
    [
        (MAINTENANCE, FLUSH_S[MAINTENANCE]),
        (CATCHUP, FLUSH_S[CATCHUP]),
        (BACKFILL, FLUSH_MOST_S),
    ],
)
def test_a_write_waits_less_than_what_is_built(kind: str, wait_s: float) -> None:
    assert gathering_of(kind).wait_s == wait_s
    assert FLUSH_S[MAINTENANCE] < FLUSH_S[CATCHUP] < FLUSH_MOST_S

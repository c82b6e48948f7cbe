"""A node watches over its own reading and being heard: what it concludes from what Kafka says.

The part alone. `docs/protocol.md` has the same in words ("Silent stalls").
"""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.consensus.effects import Append, Examine, Halt
from coordinator.core.consensus.inputs import Examined
from coordinator.core.consensus.liveness import AWAKE_STEP_MS_MAX, EXAMINE_MS, Liveness
from coordinator.core.consensus.signals import BlockedAtStableOffset
from coordinator.core.consensus.view import CATCHING_UP, Tokens
from tests.support.views import MONO_MS, a_view

STEP_MS = 50
PULSE_MS, STALL_MS, LOOK_MS = 2_000, 10_000, 500
APPLIED = 100
END = APPLIED + 1
"""Where the log ends for a node that has read all of it."""


class Watch:
    """A watch over a node that has begun to read, and time that goes on in small steps."""

    def __init__(self, **fields: Any) -> None:
        self.liveness = Liveness(Tokens())
        self.now_ms = MONO_MS
        self.fields = fields
        self.asked: list[Any] = []
        self.liveness.started(self.view.now)
        self.liveness.read(self.view)

    @property
    def view(self) -> Any:
        return a_view(self.now_ms, applied=APPLIED, **self.fields)

    def passes(self, ms: int, reads: bool = False, hears: bool = True) -> list[Any]:
        """Let time pass; return what was asked for, repeated barriers left out."""
        found: list[Any] = []
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            if reads:
                self.liveness.read(self.view)
            if hears:
                self.liveness.note_own_heartbeat(self.view)
            found += self.liveness.tick(self.view)
        asked = [one for one in found if not isinstance(one, Append)]
        self.asked += asked
        return asked

    def asks(self) -> int:
        """Have Kafka asked, unless it is, and return the token of that."""
        self.asked += self.liveness.examine()
        return self.asked[-1].token

    def told(self, end: int, written: int = -1) -> list[Any]:
        """Have Kafka say where the log ends."""
        return self.liveness.examined(self.view, Examined(self.asks(), end, written, "cut off"))


def test_kafka_is_asked_when_nothing_was_read_for_a_while_and_not_before() -> None:
    watch = Watch()
    assert watch.passes(4 * PULSE_MS, reads=True) == []
    assert watch.passes(PULSE_MS - STEP_MS) == []
    (asked,) = watch.passes(STEP_MS)
    assert isinstance(asked, Examine)
    assert watch.passes(PULSE_MS) == [], "once in a while"
    assert len(watch.passes(STEP_MS)) == 1


def test_kafka_is_asked_when_a_nodes_own_heartbeats_stay_away() -> None:
    watch = Watch()
    assert watch.passes(STALL_MS // 2, reads=True, hears=False) == []
    assert len(watch.passes(STEP_MS, reads=True, hears=False)) == 1


def test_a_process_that_was_stopped_has_not_noticed_a_silence() -> None:
    watch = Watch()
    watch.now_ms += 10 * STALL_MS
    assert watch.liveness.tick(watch.view) == []
    assert watch.passes(PULSE_MS - AWAKE_STEP_MS_MAX) == []
    assert len(watch.passes(STEP_MS)) == 1


def test_at_a_start_a_barrier_that_is_held_back_is_looked_after_sooner() -> None:
    for phase, asked in ((CATCHING_UP, 1), ("following", 0)):
        watch = Watch(phase=phase)
        watch.liveness.send_barrier(watch.view)
        assert watch.passes(LOOK_MS) == []
        assert len(watch.passes(STEP_MS)) == asked


def test_one_answer_is_waited_for_at_a_time_and_no_other_counts() -> None:
    watch = Watch()
    token = watch.asks()
    assert watch.liveness.examine() == []
    assert watch.liveness.examined(watch.view, Examined(token + 1, -1, -1, "late")) == []
    assert watch.liveness.trouble == ""
    watch.liveness.examined(watch.view, Examined(token, -1, -1, "no broker"))
    assert watch.liveness.trouble == "Kafka is out of reach: no broker"
    assert watch.liveness.examined(watch.view, Examined(token, END, -1)) == []
    assert watch.liveness.trouble != "", "it was answered once"


def test_while_kafka_is_away_a_node_goes_on_trying() -> None:
    """A restart would not help: neither its reader nor its heartbeats are to blame."""
    watch = Watch()
    for _ in range(4):
        watch.passes(STALL_MS, hears=False)
        assert watch.told(-1) == []
        assert watch.liveness.trouble == "Kafka is out of reach: cut off"
    watch.passes(STEP_MS, reads=True, hears=False)
    assert watch.liveness.trouble == ""
    assert watch.told(END) == [], "nor right after: its heartbeats are given time to come back"
    assert watch.liveness.trouble == ""


@pytest.mark.parametrize("end", [END, END - 1])
def test_a_node_that_has_read_everything_has_no_trouble(end: int) -> None:
    watch = Watch()
    watch.passes(2 * STALL_MS)
    assert watch.told(end) == []
    assert watch.liveness.trouble == ""


def stalls(watch: Watch, written: int) -> list[Any]:
    """Let the log go on, and nothing be read of it; return what the node does in the end."""
    watch.passes(PULSE_MS + STEP_MS)
    (barrier,) = watch.told(END + 10, written)
    assert isinstance(barrier, Append), "perhaps only markers are unread"
    watch.passes(STALL_MS - 2 * EXAMINE_MS)
    assert watch.told(END + 10, written) == []
    watch.passes(2 * EXAMINE_MS + STEP_MS)
    return watch.told(END + 10, written)


UNREAD = f"nothing was read after offset {APPLIED}, and commit goes on to {END + 10}"


@pytest.mark.parametrize(
    ("written", "stopped"),
    [(APPLIED + 5, "reader"), (APPLIED, "producer"), (-1, "producer")],
)
def test_a_reader_or_a_producer_that_stands_still_ends_the_process(
    written: int, stopped: str
) -> None:
    """The barrier was acknowledged behind what is read: who wrote works, who reads does not."""
    message = f"{UNREAD}: the {stopped} has stopped"
    assert stalls(Watch(), written) == [Halt(f"{stopped}_stalled", message)]


def test_a_record_that_is_read_meanwhile_begins_the_patience_anew() -> None:
    watch = Watch()
    watch.passes(PULSE_MS + STEP_MS)
    (barrier,) = watch.told(END + 10)
    assert watch.liveness.trouble == UNREAD
    watch.liveness.barrier_read(barrier.record)
    watch.passes(STEP_MS, reads=True)
    assert watch.liveness.trouble == ""
    assert stalls(watch, APPLIED + 5) != []


def test_an_open_transaction_that_holds_the_log_back_is_told_apart() -> None:
    """What the node wrote stands behind the end that committed readers see."""
    watch = Watch()
    watch.passes(PULSE_MS + STEP_MS)
    watch.told(END + 10)
    assert watch.told(END + 10, written=END + 10) == [BlockedAtStableOffset()]
    held = f"an open transaction holds commit back at offset {END + 10}"
    assert watch.liveness.trouble == held
    strange = Watch(authority=None)
    strange.passes(PULSE_MS + STEP_MS)
    strange.told(END + 10)
    assert strange.told(END + 10, written=END + 10) == [], "what is unread may be everything"


@pytest.mark.parametrize(
    ("end", "written", "blocked"),
    [
        (END, END, True),
        (0, END, True),
        (END + 1, END + 1, False),
        (END, APPLIED, False),
        (-1, END, False),
    ],
    ids=["all-read", "and-more", "not-all-read", "not-yet-written", "no-answer"],
)
def test_a_barrier_that_stands_behind_all_that_can_be_read_need_not_come_back(
    end: int, written: int, blocked: bool
) -> None:
    watch = Watch()
    watch.liveness.send_barrier(watch.view)
    assert watch.told(end, written) == ([BlockedAtStableOffset()] if blocked else [])
    assert Watch().told(end, written) == [], "without a barrier there is nothing to wait for"


def test_a_node_that_nobody_hears_ends_although_it_reads() -> None:
    watch = Watch()
    watch.passes(STALL_MS - 2 * EXAMINE_MS, reads=True, hears=False)
    assert watch.told(END) == []
    assert "own heartbeats have not come back" in watch.liveness.trouble
    watch.passes(2 * EXAMINE_MS + STEP_MS, reads=True, hears=False)
    (halt,) = watch.told(END)
    assert isinstance(halt, Halt)
    assert halt.code == "heartbeat_stalled"

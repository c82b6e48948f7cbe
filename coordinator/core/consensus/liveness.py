"""Reading the log to its end, and noticing when reading or writing has silently stopped.

Pure. A read barrier is a plain record without content. Once a node has read its barrier back, it
has read everything before it. So a node knows that it has caught up, and a candidate knows that
there is no newer claim.

A reader, a producer or the consumer of a topic can stop without any error. So a node that has read
nothing for a while asks Kafka, over another connection, where the log ends. If the log has grown
(perhaps only by transaction markers), the node writes a barrier. If the barrier does not come
back, the node knows which part has stopped. It watches its own heartbeats in the same way. Time
counts only while the process runs: a process that was stopped has not missed anything.
"""

from __future__ import annotations

from coordinator.core.consensus.effects import Append, Examine, Halt
from coordinator.core.consensus.inputs import Examined
from coordinator.core.consensus.signals import BlockedAtStableOffset, Result
from coordinator.core.consensus.view import CATCHING_UP, NodeView, Tokens, unique
from coordinator.core.model.records import ReadBarrier
from coordinator.core.model.types import Epoch, Instant

EXAMINE_MS = 1_000
"""An answer is not waited for longer than this before Kafka is asked again."""

START_PATIENCE = 3
"""Until its first record a reader has this many times `stall_ms`."""

AWAKE_STEP_MS_MAX = 200
"""Between two ticks that are further apart than this, the process was not running."""


class Liveness:
    """The read barrier of a node, and its watch over its own readers and producers."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.trouble = ""
        """What keeps the node from reading or being heard; empty while all is well."""
        self.nonce = 0
        """That of the barrier that is out; 0 if none is."""
        self._sent_ms = 0
        self._ticked_ms = 0
        self._awake_ms = 0
        self._has_read = False
        self._read_at = 0
        self._heard_at = 0
        self._examined_at = 0
        self._examining = 0
        self._suspected_at = -1

    # -- the barrier -------------------------------------------------------------------------

    def send_barrier(self, view: NodeView) -> list[Result]:
        """Write a barrier, in place of any that is still out."""
        self.nonce = unique(view, self._tokens.next())
        return self._append(view)

    def _append(self, view: NodeView) -> list[Result]:
        self._sent_ms = view.now.mono_ms
        epoch = view.authority.epoch if view.authority else Epoch(0)
        return [Append(0, ReadBarrier(epoch, self.nonce))]

    def barrier_read(self, record: ReadBarrier) -> bool:
        """Tell whether this is the barrier that is out; it is not any more."""
        if record.nonce != self.nonce:
            return False
        self.nonce = 0
        return True

    # -- the watch ---------------------------------------------------------------------------

    def started(self, now: Instant) -> None:
        self._ticked_ms = now.mono_ms

    def read(self, view: NodeView) -> None:
        """Records of `commit` came."""
        self._has_read = True
        self._read_at = self._awake_ms
        self._suspected_at = -1
        self._settle(view)

    def note_own_heartbeat(self, view: NodeView) -> None:
        """The node's own heartbeat came back."""
        self._heard_at = self._awake_ms
        self._settle(view)

    def _settle(self, view: NodeView) -> None:
        """All is well again, if both go on."""
        if self.trouble and not self._is_deaf(view) and self._suspected_at < 0:
            self.trouble = ""

    def _is_deaf(self, view: NodeView) -> bool:
        """Tell whether the node's own heartbeats stay away."""
        return self._awake_ms - self._heard_at > view.config.stall_ms // 2

    def is_reading(self, view: NodeView) -> bool:
        """Tell whether records of `commit` came lately: Kafka can be reached."""
        return self._awake_ms - self._read_at <= view.config.pulse_ms

    def tick(self, view: NodeView) -> list[Result]:
        """Repeat a barrier that may be lost; ask where the log ends when nothing comes."""
        now, config = view.now.mono_ms, view.config
        self._awake_ms += min(now - self._ticked_ms, AWAKE_STEP_MS_MAX)
        self._ticked_ms = now
        found: list[Result] = []
        if self.nonce and now - self._sent_ms > 2 * config.ack_timeout_ms:
            found += self._append(view)
        due = self._awake_ms - self._examined_at > config.pulse_ms
        held = self.nonce and self._awake_ms - self._read_at > config.look_ms
        silent = not self.is_reading(view) or self._is_deaf(view)
        if (due and silent) or (held and view.phase == CATCHING_UP):
            found += self.examine()
        return found

    def examine(self) -> list[Result]:
        """Have Kafka asked where the log ends, unless an answer is due."""
        if self._examining and self._awake_ms - self._examined_at <= EXAMINE_MS:
            return []
        self._examined_at = self._awake_ms
        self._examining = self._tokens.next()
        return [Examine(self._examining)]

    def examined(self, view: NodeView, event: Examined) -> list[Result]:
        """Kafka said where the log ends: say what is wrong, and stop where a restart helps."""
        if event.token != self._examining:
            return []
        self._examining = 0
        found: list[Result] = []
        if self.nonce and 0 <= event.end <= view.applied + 1 <= event.written:
            found.append(BlockedAtStableOffset())
        if event.end < 0:
            # Who hears nothing then has no reason to suspect itself, also for a while after.
            self._suspected_at = -1
            self._heard_at = self._awake_ms
            self.trouble = f"Kafka is out of reach: {event.problem}"
        elif self._is_deaf(view):
            found += self._deaf(view)
        elif self.is_reading(view) or event.end <= view.applied + 1:
            self._suspected_at = -1
            self.trouble = ""
        else:
            found += self._behind(view, event)
        return found

    def _deaf(self, view: NodeView) -> list[Result]:
        awake_ms = self._awake_ms - self._heard_at
        self.trouble = f"this node's own heartbeats have not come back for {awake_ms} ms"
        if awake_ms <= view.config.stall_ms:
            return []
        return [Halt("heartbeat_stalled", f"{self.trouble}: starting again")]

    def _behind(self, view: NodeView, event: Examined) -> list[Result]:
        """The log goes on, and nothing is read."""
        applied = view.applied
        self.trouble = f"nothing was read after offset {applied}, and commit goes on to {event.end}"
        if self._suspected_at < 0:
            self._suspected_at = self._awake_ms
            return [] if self.nonce else self.send_barrier(view)
        if event.written > applied and event.end <= event.written:
            self.trouble = f"an open transaction holds commit back at offset {event.end}"
            # What is unread may be markers alone, or everything: then nothing is known.
            return [BlockedAtStableOffset()] if view.authority is not None else []
        if self._awake_ms - self._suspected_at > self._patience_ms(view):
            stalled = "reader" if event.written > applied else "producer"
            return [Halt(f"{stalled}_stalled", f"{self.trouble}: the {stalled} has stopped")]
        return []

    def _patience_ms(self, view: NodeView) -> int:
        """How long a reader may stand still: longer before it has begun, on a busy machine."""
        return view.config.stall_ms * (1 if self._has_read else START_PATIENCE)

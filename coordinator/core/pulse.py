"""Reading the log to its end, and noticing when reading or writing has silently stopped.

Pure. A barrier is a plain record that says nothing: once it is read back, everything before it
was. That is how a node knows that it has caught up, and how a candidate knows that nothing speaks
against its claim.

A reader, a producer or a topic's consumer can stop without any error. So a node that has read
nothing for a while has Kafka asked, over another connection, where the log ends. If that is
further on than the node, perhaps by markers alone, it writes a barrier; one that does not come
back tells which part has stopped. The same holds for the node's own heartbeats, which it hears.
Time counts only while the node is awake: a process that was stopped has not noticed a silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.core.effects import Append, Examine
from coordinator.core.inputs import Examined
from coordinator.core.records import ReadBarrier

if TYPE_CHECKING:
    from coordinator.core.node import Node

EXAMINE_MS = 1_000
"""An answer is not waited for longer than this before Kafka is asked again."""

START_PATIENCE = 3
"""Until its first record a reader has this many times `stall_ms`."""

AWAKE_STEP_MS_MAX = 200
"""Between two ticks that are further apart than this, the process was not running."""


class Pulse:
    """The barriers of a node, and its watch over its own readers and producers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.trouble = ""
        self.nonce = 0
        self._sent_ms = 0
        self._ticked_ms = 0
        self._awake_ms = 0
        self._has_read = False
        self._read_at = 0
        self._heard_at = 0
        self._examined_at = 0
        self._examining = 0
        self._suspected_at = -1

    # -- barriers ----------------------------------------------------------------------------

    def send(self) -> None:
        """Write a barrier, in place of any that is still out."""
        config = self.node.config
        self.nonce = (config.incarnation << 20) % 2**62 + self.node.token()
        self._append()

    def _append(self) -> None:
        self._sent_ms = self.node.now.mono_ms
        authority = self.node.authority
        self.node.emit(Append(0, ReadBarrier(authority.epoch if authority else 0, self.nonce)))

    def take(self, record: ReadBarrier) -> bool:
        """Tell whether this is the barrier that is out; it is not any more."""
        if record.nonce != self.nonce:
            return False
        self.nonce = 0
        return True

    # -- the watch ---------------------------------------------------------------------------

    def started(self) -> None:
        self._ticked_ms = self.node.now.mono_ms

    def read(self) -> None:
        """Records of `commit` came."""
        self._has_read = True
        self._read_at = self._awake_ms
        self._suspected_at = -1
        self._settle()

    def heard(self) -> None:
        """The node's own heartbeat came back."""
        self._heard_at = self._awake_ms
        self._settle()

    def _settle(self) -> None:
        """All is well again, if both go on."""
        if self.trouble and not self._silent and self._suspected_at < 0:
            self.trouble = ""

    @property
    def _silent(self) -> bool:
        """Tell whether the node's own heartbeats stay away."""
        return self._awake_ms - self._heard_at > self.node.config.stall_ms // 2

    @property
    def reading(self) -> bool:
        """Tell whether records of `commit` came lately: Kafka can be reached."""
        return self._awake_ms - self._read_at <= self.node.config.pulse_ms

    def tick(self) -> None:
        """Repeat a barrier that may be lost; ask where the log ends when nothing comes."""
        now, config = self.node.now.mono_ms, self.node.config
        self._awake_ms += min(now - self._ticked_ms, AWAKE_STEP_MS_MAX)
        self._ticked_ms = now
        if self.nonce and now - self._sent_ms > 2 * config.ack_timeout_ms:
            self._append()
        due = self._awake_ms - self._examined_at > config.pulse_ms
        held = self.nonce and self._awake_ms - self._read_at > config.look_ms
        if (due and (not self.reading or self._silent)) or (held and self.node.is_catching_up):
            self.examine()

    def examine(self) -> None:
        """Have Kafka asked where the log ends, unless an answer is due."""
        if self._examining and self._awake_ms - self._examined_at <= EXAMINE_MS:
            return
        self._examined_at = self._awake_ms
        self._examining = self.node.token()
        self.node.emit(Examine(self._examining))

    def examined(self, event: Examined) -> None:
        """Kafka said where the log ends: say what is wrong, and stop where a restart helps."""
        if event.token != self._examining:
            return
        self._examining = 0
        if self.nonce and 0 <= event.end <= self.node.applied + 1 <= event.written:
            self.node.log_is_held()
        if event.end < 0:
            # Who hears nothing then has no reason to suspect itself, also for a while after.
            self._suspected_at = -1
            self._heard_at = self._awake_ms
            self.trouble = f"Kafka is out of reach: {event.problem}"
        elif self._silent:
            self._deaf()
        elif self.reading or event.end <= self.node.applied + 1:
            self._suspected_at = -1
            self.trouble = ""
        else:
            self._behind(event)

    @property
    def _patience_ms(self) -> int:
        """How long a reader may stand still: longer before it has begun, on a busy machine."""
        return self.node.config.stall_ms * (1 if self._has_read else START_PATIENCE)

    def _deaf(self) -> None:
        awake_ms = self._awake_ms - self._heard_at
        self.trouble = f"this node's own heartbeats have not come back for {awake_ms} ms"
        if awake_ms > self.node.config.stall_ms:
            self.node.halt("heartbeat_stalled", f"{self.trouble}: starting again")

    def _behind(self, event: Examined) -> None:
        """The log goes on, and nothing is read."""
        applied = self.node.applied
        self.trouble = f"nothing was read after offset {applied}, and commit goes on to {event.end}"
        if self._suspected_at < 0:
            self._suspected_at = self._awake_ms
            if not self.nonce:
                self.send()
        elif event.written > applied and event.end <= event.written:
            self.trouble = f"an open transaction holds commit back at offset {event.end}"
            if self.node.authority is not None:
                # What is unread may be markers alone, or everything: then nothing is known.
                self.node.log_is_held()
        elif self._awake_ms - self._suspected_at > self._patience_ms:
            stalled = "reader" if event.written > applied else "producer"
            self.node.halt(f"{stalled}_stalled", f"{self.trouble}: the {stalled} has stopped")

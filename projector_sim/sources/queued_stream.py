"""A stream that a thread of its own reads: its queue is bounded, so that a slow projector holds the
source back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from projector_sim.protocol.frames import Kind
from projector_sim.protocol.source import Frame

BATCHES_MAX = 16
PUT_S = 0.2


class QueuedStream:
    """A `SourceStream` without a source: `_read` puts frames until it returns or raises."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.reason = ""
        self._wake = wake
        self._batches: queue.Queue[list[Frame]] = queue.Queue(BATCHES_MAX)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def poll(self) -> list[Frame] | None:
        """Return the frames of one piece, None if nothing has come."""
        try:
            return self._batches.get_nowait()
        except queue.Empty:
            return None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more will come; then `reason` says why."""
        return self._ended.is_set() and self._batches.empty()

    def close(self) -> None:
        """Break the connection off; does not wait."""
        self._stopping.set()

    def _read(self) -> None:
        raise NotImplementedError

    def _has_failed(self, reason: str) -> None:
        """Hear that something has ended the stream that nobody has thought of."""

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            # Whatever has ended it, nobody else would hear of it: who reads the frames is told, and
            # asks for what is missing.
            self.reason = self.reason or f"{type(error).__name__}: {error}"
            self._has_failed(self.reason)
        finally:
            self._ended.set()
            self._wake()

    def _put(self, frames: list[Frame]) -> bool:
        """Wait for room, and add frames; False: nobody wants them any more."""
        kind, body = frames[-1]
        if kind == Kind.CLOSE:
            self.reason = body.decode("utf-8", "replace") or "closed by the store"
        while not self._stopping.is_set():
            try:
                self._batches.put(frames, timeout=PUT_S)
            except queue.Full:
                continue
            self._wake()
            return True
        return False


class EndedStream:
    """A `SourceStream` that could not begin."""

    def __init__(self, reason: str, wake: Callable[[], None]) -> None:
        self.reason = reason
        self.is_over = True
        wake()

    def poll(self) -> list[Frame] | None:
        """Return None: nothing will come."""
        return None

    def close(self) -> None:
        """There is nothing to break off."""

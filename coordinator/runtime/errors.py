"""The one exception of the embedded parts: an operating fault with a stable code.

The message is one line that says what is wrong and what to do about it; the command line prints
it as it is, without a traceback.
"""

from __future__ import annotations


class EmbeddedError(Exception):
    """An operating fault: `code` is stable (for scripts and tests), `message` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

"""Why a backup was not made, or not restored: an expected failure with a stable code."""

from __future__ import annotations


class BackupError(Exception):
    """A clear refusal; `code` is stable, `message` says what is wrong and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

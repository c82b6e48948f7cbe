"""What the key-value store may refuse, or fail to do."""

from __future__ import annotations

from coordinator.core.model.types import Seqno


class KvError(Exception):
    """The store could not do it.

    `code` is `refused` (the disk did not take it), `unusable` (it cannot be read), `closed`,
    `exists`, `not_found` or `too_far` (what is to come back is no longer kept).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RollbackError(Exception):
    """A stream cannot begin there: this is not, or not to that point, the vbucket's history.

    Who asked has to roll back to `seqno` or before, and to ask again from there.
    """

    def __init__(self, vbucket: int, seqno: Seqno) -> None:
        super().__init__(f"vbucket {vbucket}: roll back to seqno {seqno}")
        self.vbucket = vbucket
        self.seqno = seqno

"""What is remembered of a request: how it ended, and what was answered. Pure, frozen data.

An outcome refers to what it is about, and does not repeat it. Its CAS is stored, since an entity
that is written again gets another.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model.types import Cas, TxnId

DONE, REFUSED = "done", "refused"

NOTHING, SETTING, INDEX, INDEXES, EXISTED, LITERAL, TRANSACTION = ANSWERS = (
    "nothing",
    "setting",
    "index",
    "indexes",
    "existed",
    "literal",
    "transaction",
)
"""What was answered: the setting that the request names; an index, or several; an index that was
there already; a text as it stands, which only older versions have recorded; the results of a
transaction, where those that changed something have the number of the change instead of its CAS."""

MESSAGE_LENGTH_MAX = 1_000
DETAILS_BYTES_MAX = 1_024
"""Longer details of a refusal are not remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOutcome:
    """What became of one request.

    `fingerprint` tells a repeat from another command under the same id. `cas` is that of the
    effect, 0 where there was none. `index_ids` are the indexes that the answer is about.
    """

    id: str
    status: str
    fingerprint: int
    answer: str = NOTHING
    index_ids: tuple[int, ...] = ()
    cas: Cas = Cas(0)
    by_topic: bool = False
    answer_json: str = ""
    error_code: str = ""
    error_message: str = ""
    error_details_json: str = "{}"


@dataclass(frozen=True, slots=True)
class OutcomesRecorded:
    """The outcomes that one transaction brought; `cas` is that of its last mutation."""

    txn: TxnId
    cas: Cas
    at_ms: int
    outcomes: tuple[RecordedOutcome, ...]

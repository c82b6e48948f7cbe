"""Takes the outcomes of requests out of the state of a cluster that an older version made.

Pure. The older version kept outcomes as entities under `request/`, and its digest counted them. A
new master takes them out once, by a record on the log. From the CAS of this record on, the digest
leaves them out, and the newest of them stay in the window. What the log holds before the record
folds to its old digests.
"""

from __future__ import annotations

from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import AHEAD_MS_MAX, OutcomeWindow, time_of_uuid7
from coordinator.core.catalog.state import StateContext
from coordinator.core.model import outcome_records
from coordinator.core.model.entities import RequestOutcome
from coordinator.core.model.outcome_records import LITERAL, OutcomesRecorded, RecordedOutcome
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import OutcomesSeparated
from coordinator.core.model.types import Cas, Epoch, Instant, TxnId

PENDING = "pending"
TAKEN_MAX = 4_096
"""So many outcomes, the newest, an upgrade takes along: they stand in one record."""

TAKEN_BYTES_MAX = 2 * 1024 * 1024


def legacy_outcomes(state: StateContext) -> list[str]:
    """Return the keys of outcomes that are entities."""
    return [held.entity.key for held in state.of_kind("request")]


def separation(
    state: StateContext, codec: EntityCodec, epoch: Epoch, now: Instant
) -> OutcomesSeparated:
    """Return the record that takes the outcomes out of `state`; the newest go on in the window."""
    held = sorted(state.of_kind("request"), key=lambda one: one.cas, reverse=True)
    groups: list[bytes] = []
    size = forgotten_ms = 0
    for cas, entity in ((one.cas, one.entity) for one in held):
        assert isinstance(entity, RequestOutcome)
        if entity.status == PENDING:
            continue
        if len(groups) < TAKEN_MAX and size < TAKEN_BYTES_MAX:
            groups.append(codec.encode_outcomes(_group(entity, cas)))
            size += len(groups[-1])
        else:
            born_ms = min(time_of_uuid7(entity.id) or 0, entity.at_ms + AHEAD_MS_MAX)
            forgotten_ms = max(forgotten_ms, born_ms)
    groups.reverse()
    window = OutcomeWindow(codec)
    for value in groups:
        window.add(codec.decode_outcomes(value).cas, value, now)
    return OutcomesSeparated(
        epoch=epoch,
        cas=state.cas,
        digest=state.digest,
        state_digest=states.without(state, legacy_outcomes(state)).digest,
        groups=tuple(groups),
        outcomes_digest=window.digest,
        at_ms=now.wall_ms,
        forgotten_ms=forgotten_ms,
    )


def _group(old: RequestOutcome, cas: Cas) -> OutcomesRecorded:
    """Return an outcome as the window has it. Its CAS was so far below that of its entity."""
    refused = old.status == outcome_records.REFUSED
    taken = RecordedOutcome(
        id=old.id,
        status=outcome_records.REFUSED if refused else outcome_records.DONE,
        fingerprint=old.fingerprint,
        answer=outcome_records.NOTHING if refused else LITERAL,
        cas=Cas(0) if refused else Cas(cas - old.distance),
        by_topic=old.by_topic,
        answer_json=old.answer_json,
        error_code=old.error_code,
        error_message=old.error_message,
        error_details_json=old.error_details_json,
    )
    return OutcomesRecorded(TxnId(old.txn_epoch, old.txn_seq), cas, old.at_ms, (taken,))

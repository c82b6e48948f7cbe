"""What the core asks of the outside while it decides: nothing but the encoding of a value.

A pure function behind a protocol: the same entity always gives the same bytes.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.core.model.entities import Entity
from coordinator.core.model.outcome_records import OutcomesRecorded


class EntityCodec(Protocol):
    """Turns what is logged, stored and hashed into bytes, and outcomes back."""

    def encode_entity(self, entity: Entity) -> bytes: ...

    def encode_outcomes(self, group: OutcomesRecorded) -> bytes: ...

    def decode_outcomes(self, value: bytes) -> OutcomesRecorded: ...

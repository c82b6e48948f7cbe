"""What the core asks of the outside while it decides: nothing but the encoding of a value.

A pure function behind a protocol: the same entity always gives the same bytes.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.core.entities import Entity


class EntityCodec(Protocol):
    """Turns an entity into the bytes that are logged, stored and hashed."""

    def encode_entity(self, entity: Entity) -> bytes: ...

"""The Authority, folded plainly a second time, and what the judge notes beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import Mutation, TransactionProposed
from coordinator.core.model.types import TxnId


@dataclass(slots=True)
class Version:
    """From when on a key, or a name, had this CAS and value; the value None: it is gone."""

    since_ms: int
    cas: int
    value: Any


@dataclass(slots=True)
class Done:
    """A mutation that took effect."""

    mutation: Mutation
    txn: TxnId
    decided_ms: int


@dataclass(slots=True)
class Seen:
    """What a node showed last, in this incarnation of it."""

    cas: int = 0
    epoch: int = 0
    applied: int = -1
    state: Any = None


@dataclass(slots=True)
class Truth:
    """The Authority, folded plainly."""

    roster: tuple[int, ...] = ()
    minimum: int = 0
    epoch: int = 0
    master: int = 0
    incarnation: int = 0
    members: dict[int, int] = field(default_factory=dict)
    acceptors: tuple[int, ...] = ()
    last_seq: int = 0
    open: tuple[TxnId, int] | None = None
    proposal: TransactionProposed | None = None
    last_cas: int = 0
    digest: int = 0

    @property
    def point(self) -> tuple[Any, ...]:
        return (
            self.epoch,
            self.master,
            self.incarnation,
            tuple(sorted(self.members.items())),
            self.last_cas,
            self.digest,
            self.open,
            self.roster,
            self.minimum,
            self.acceptors,
        )


def point_of(authority: AuthorityState) -> tuple[Any, ...]:
    """Return the same of a node's Authority."""
    opened = authority.open
    return (
        authority.epoch,
        authority.master,
        authority.incarnation,
        tuple((n, authority.members[n].incarnation) for n in sorted(authority.members)),
        authority.last_cas,
        authority.digest,
        (opened.txn, opened.offset) if opened else None,
        authority.roster,
        authority.minimum,
        authority.acceptors,
    )


def digest_of(entities: dict[str, tuple[int, bytes, Any]]) -> int:
    """Return the digest, written down a second time."""
    total = 0
    for key, (cas, value, _) in entities.items():
        name = key.encode()
        text = len(name).to_bytes(4, "little") + cas.to_bytes(8, "little") + name + value
        total += int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
    return total % 2**128

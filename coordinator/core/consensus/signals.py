"""What one part of a node tells the others, through the node that composes them.

Pure, frozen data, and never seen outside. A part returns its results in order: effects, which the
shell carries out, and signals, which the node hands on. So no part reaches into another.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.effects import Effect
from coordinator.core.model.commands import Command
from coordinator.core.model.records import Mutation, ProposalAnswered, TransactionCommitted
from coordinator.core.model.types import Epoch


@dataclass(frozen=True, slots=True)
class SendBarrier:
    """Write a read barrier to `commit`, in place of any that is still out."""


@dataclass(frozen=True, slots=True)
class ExamineLog:
    """Have Kafka asked where `commit` ends, unless an answer is due."""


@dataclass(frozen=True, slots=True)
class BlockedAtStableOffset:
    """The node has read up to the last stable offset: an open transaction blocks what stands above.

    The master of this transaction may be dead, and all nodes may have just started. Then only a
    claim ends the transaction.
    """


@dataclass(frozen=True, slots=True)
class AnswerProposal:
    """Tell the master, which may be this node itself, what became of its proposal here."""

    record: ProposalAnswered


@dataclass(frozen=True, slots=True)
class ChainBroken:
    """A proposal does not build on what this node shows: that can no longer be trusted."""

    why: str


@dataclass(frozen=True, slots=True)
class TransactionInstalled:
    """A committed transaction was switched in: the state has moved on."""

    record: TransactionCommitted
    mutations: tuple[Mutation, ...]


@dataclass(frozen=True, slots=True)
class Synchronised:
    """A full synchronisation has found the state, in this source."""

    state: StateContext
    source: str


@dataclass(frozen=True, slots=True)
class Elected:
    """This node's own claim was read back, and counts: it is master of this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LoseMastership:
    """This master cannot go on: its producer, its store or its reading of the log has failed."""

    why: str


@dataclass(frozen=True, slots=True)
class AwaitSuccessor:
    """Answer this caller once the next claim was read back."""

    token: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Want:
    """A part of the master wants this command in the next group; one command for each key."""

    key: str
    command: Command


Signal = (
    SendBarrier
    | ExamineLog
    | BlockedAtStableOffset
    | AnswerProposal
    | ChainBroken
    | TransactionInstalled
    | Synchronised
    | Elected
    | LoseMastership
    | AwaitSuccessor
    | Want
)

Result = Effect | Signal

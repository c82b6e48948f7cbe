"""What the parts of a node may know of it. They read it, and change nothing by it.

Pure. A part gets this view with each input, and returns results (`signals`). It does not keep the
view. So a test can build a part alone, with any object that has these properties.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.inputs import PreparedTransaction
from coordinator.core.consensus.peers import PeersView
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.types import Instant
from coordinator.core.timestamps.board import Board

CATCHING_UP, SYNCHRONISING, FOLLOWING = PHASES = ("catching-up", "synchronising", "following")
"""A node folds the log to where that ended; finds the state, if it does not have it; follows."""


class Surroundings(Protocol):
    """What is around a part: who the node is, what time it is, who else is there."""

    @property
    def config(self) -> NodeConfig: ...
    @property
    def now(self) -> Instant: ...
    @property
    def peers(self) -> PeersView: ...


class FollowedView(Surroundings, Protocol):
    """That, and what the node has made of the log so far."""

    @property
    def phase(self) -> str: ...
    @property
    def applied(self) -> int: ...
    @property
    def authority(self) -> AuthorityState | None: ...
    @property
    def state(self) -> StateContext: ...
    @property
    def state_known(self) -> bool: ...
    @property
    def prepared(self) -> PreparedTransaction | None: ...
    @property
    def outcomes(self) -> OutcomeWindow: ...


class NodeView(FollowedView, Protocol):
    """A node as its parts see it."""

    @property
    def timestamps(self) -> Board: ...
    @property
    def is_member(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def is_master(self) -> bool: ...
    @property
    def is_reading(self) -> bool: ...
    @property
    def sick(self) -> str: ...
    @property
    def durable(self) -> int: ...


def authority_of(view: NodeView) -> AuthorityState:
    """Return the Authority, which a master knows."""
    assert view.authority is not None
    return view.authority


def unique(view: NodeView, token: int) -> int:
    """Return the number of a barrier or a copy: no other incarnation of any node has it."""
    return (view.config.incarnation << 20) % 2**62 + token


class Tokens:
    """Numbers by which the completions of effects are told apart: none twice in a node's life."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last

"""How a node asks to be admitted to the in-sync set, at its CAS and digest. Pure."""

from __future__ import annotations

from coordinator.core.consensus.effects import Answer, Note
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import FOLLOWING, NodeView
from coordinator.core.model.records import JoinRequested, MemberLeft


class Admission:
    """One node's requests to be admitted."""

    def __init__(self) -> None:
        self.has_left = False
        """Whether this incarnation of the node has left the cluster, as an operator wanted."""
        self._sent_cas = -1
        self._sent_ms = 0

    def ask(self, view: NodeView) -> list[Result]:
        """Ask for admission, with the CAS and digest reached; again whenever they change."""
        if view.phase != FOLLOWING or view.is_member or view.sick:
            return []
        if view.is_master or view.is_stopping or self.has_left:
            return []
        authority = view.authority
        if authority is None or not authority.master or authority.open is not None:
            return []
        config, state, now = view.config, view.state, view.now.mono_ms
        if self._sent_cas == state.cas and now - self._sent_ms < config.heartbeat_ms:
            return []
        self._sent_cas, self._sent_ms = state.cas, now
        request = JoinRequested(
            config.node, config.incarnation, config.address, state.cas, state.digest
        )
        return [Answer(request)]

    def left(self, view: NodeView, record: MemberLeft) -> list[Result]:
        """A node has left: if it is this incarnation of this node, it does not ask again."""
        if (record.node, record.incarnation) != (view.config.node, view.config.incarnation):
            return []
        self.has_left = True
        return [Note("has left the cluster")]

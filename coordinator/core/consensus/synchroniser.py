"""A full synchronisation: from what a source holds to a state that is known to be right.

Pure. What was read is provisional, for three reasons. The source may be ahead of the commit topic
as this node has folded it. The last change may have been a drop, and compaction may have removed
it. There may be events that no transaction committed. The state is right once its digest is that
of a committed transaction. Commits after this one, which the node has folded meanwhile, are applied
to it.

Invariant: no state leaves this module unless its recomputed digest is in the commit topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import LEGACY_OUTCOMES, StateContext, Versioned
from coordinator.core.model import digest as digests
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas


class Sealed(NamedTuple):
    """A committed transaction: what it changed, at which CAS values, to which digest."""

    mutations: tuple[Mutation, ...]
    cas: tuple[Cas, ...]
    digest: int


class Mismatch(NamedTuple):
    """The node has folded all commits that the source can have; none has its digest."""

    message: str


@dataclass(slots=True, kw_only=True)
class Synchroniser:
    """Collects what a source holds, and the commits of the log, until the two agree.

    `entities` is the result of everything that was read. `overwritten` has the earlier values of
    entities that an event above `base_cas` has changed. Such an event may belong to no transaction,
    and then only the state without it agrees with a commit. `settled`: the node has folded every
    commit whose events the source can have shown.
    """

    base_cas: Cas
    base_digest: int
    without_outcomes: bool = True
    """Outcomes that an older version kept as entities are left out."""
    digest: int = digests.EMPTY
    entities: dict[str, Versioned] = field(default_factory=dict)
    overwritten: dict[str, Versioned | None] = field(default_factory=dict)
    seen_cas: Cas = Cas(0)
    complete: bool = False
    settled: bool = False
    sealed: list[Sealed] = field(default_factory=list)

    def add_held(self, held: Iterable[tuple[str, Versioned]]) -> None:
        """Take entities of a copy; events at or below its CAS are in it already."""
        for key, versioned in held:
            self._put(key, versioned)
            self.seen_cas = max(self.seen_cas, versioned.cas)

    def add_events(self, events: tuple[Event, ...], done: bool) -> None:
        """Take events in log order; a later record of a key replaces the earlier one."""
        for event in events:
            mutation = event.mutation
            if event.cas <= self.seen_cas:
                continue
            self.seen_cas = event.cas
            if event.cas > self.base_cas and mutation.key not in self.overwritten:
                self.overwritten[mutation.key] = self.entities.get(mutation.key)
            if mutation.value is None:
                self._put(mutation.key, None)
            else:
                assert mutation.entity is not None
                self._put(mutation.key, Versioned(event.cas, mutation.value, mutation.entity))
        self.complete = self.complete or done

    def _put(self, key: str, versioned: Versioned | None) -> None:
        """Replace what is held under a key, and keep the digest of all that is held."""
        if self.without_outcomes and key.startswith(LEGACY_OUTCOMES):
            return
        before = self.entities.pop(key, None)
        if before is not None:
            self.digest -= digests.weight(key, before.cas, before.value)
        if versioned is not None:
            self.entities[key] = versioned
            self.digest += digests.weight(key, versioned.cas, versioned.value)
        self.digest &= digests.MODULUS_MASK

    def add_commit(self, sealed: Sealed) -> None:
        """Take a commit that was folded while the synchronisation was under way."""
        self.sealed.append(sealed)

    def resolve(self) -> StateContext | Mismatch | None:
        """Return the state at the newest commit folded; None while more must be read."""
        if not self.complete:
            return None
        known = [(self.base_cas, self.base_digest)]
        known += [(sealed.cas[-1], sealed.digest) for sealed in self.sealed]
        for number, (cas, digest) in enumerate(known):
            if digest == self.digest and cas >= self._highest():
                state = states.restore(cas, self.entities.items())
                return self._apply(state, self.sealed[number:])
        base = self._base()
        if base is not None and base.digest == self.base_digest:
            return self._apply(base, self.sealed)
        if self.settled or known[-1][0] >= self.seen_cas:
            return Mismatch(
                f"it folds to digest {self.digest:032x} at CAS {self.seen_cas}, "
                f"which no committed transaction has"
            )
        return None

    def _base(self) -> StateContext | None:
        """Return the state at `base_cas`, if what came later can be told apart from it."""
        if not self.overwritten:
            return None
        held = {k: v for k, v in self.entities.items() if k not in self.overwritten}
        held |= {k: v for k, v in self.overwritten.items() if v is not None}
        return states.restore(self.base_cas, held.items())

    def _highest(self) -> int:
        return max((held.cas for held in self.entities.values()), default=0)

    @staticmethod
    def _apply(state: StateContext, later: list[Sealed]) -> StateContext | Mismatch:
        for sealed in later:
            state = states.evolve(state, zip(sealed.mutations, sealed.cas, strict=True))
            if state.digest != sealed.digest:
                return Mismatch(f"the digest at CAS {state.cas} differs from the committed one")
        return state

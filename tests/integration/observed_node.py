"""A node's process that checks, before it says "accepted", that the proposal is on its disk.

`FOLDER` and the node's arguments: what breaks the rule is written to `FOLDER/violations`, what was
checked to `FOLDER/checked`. On the disk is what RocksDB's own count of syncs vouches for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from coordinator import process
from coordinator.core.consensus import effects
from coordinator.core.model.records import ACCEPTED, ProposalAnswered, TransactionCommitted
from coordinator.node.shell import Shell
from tests.support.observed_store import ObservedStore


class Watched(Shell):
    """The production shell, whose acceptances are held against the disk."""

    folder = Path()

    def _answer(self, effect: effects.Answer) -> None:
        record = effect.record
        if isinstance(record, ProposalAnswered) and record.answer == ACCEPTED:
            self._check(record.proposal_offset)
        super()._answer(effect)

    def _order(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Conclude):
            for record in effect.records:
                own = self.node.config.node
                if isinstance(record, TransactionCommitted) and own in record.accepted:
                    self._check(record.proposal_offset)
        super()._order(effect)

    def _check(self, offset: int) -> None:
        """The proposal at this offset, or what came after it, must survive a power cut."""
        store: Any = self._store
        with store.as_of_the_last_sync() as left:
            restored = left.restore()
        held = restored is not None and (
            restored.applied > offset
            or (restored.prepared is not None and restored.prepared.offset == offset)
        )
        name = "checked" if held else "violations"
        with (self.folder / name).open("a") as file:
            file.write(f"{offset}\n")


def main() -> None:
    Watched.folder = Path(sys.argv[1])
    del sys.argv[1]
    process.Shell = Watched  # type: ignore[misc]
    process.open_or_replace = lambda folder: (ObservedStore(folder), "")  # type: ignore[assignment]
    from coordinator.node import shell

    for kind in (effects.Answer, effects.Conclude):
        carry_out = shell.CARRY_OUT[kind]
        name = carry_out.__name__
        shell.CARRY_OUT[kind] = lambda node, effect, name=name: getattr(node, name)(effect)  # type: ignore[misc]
    process.main()


if __name__ == "__main__":
    main()

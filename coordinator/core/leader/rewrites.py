"""Writes entities again as they were committed, in few transactions. Pure."""

from __future__ import annotations

from coordinator.core.consensus.signals import Want
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader.group_commit import PLAIN_BYTES
from coordinator.core.model.commands import RewriteEntities


def rewrites(view: NodeView, name: str, keys: list[str]) -> list[Want]:
    """Return the commands that write `keys` again; `name` tells why.

    The first transaction moves the state's CAS beyond the strays; a successor would not find those
    that are left. Hence all go into one if at all possible: their number is not bounded, only their
    bytes.
    """
    return [
        Want(f"{name}/{number}", RewriteEntities(portion))
        for number, portion in enumerate(_portions(view, keys))
    ]


def _portions(view: NodeView, keys: list[str]) -> list[tuple[str, ...]]:
    portions: list[list[str]] = [[]]
    size = 0
    for key in keys:
        held = view.state.get(key)
        weight = len(key) + PLAIN_BYTES + (len(held.value) if held else 0)
        if portions[-1] and size + weight > view.config.group_bytes_max:
            portions.append([])
            size = 0
        portions[-1].append(key)
        size += weight
    return [tuple(portion) for portion in portions]

"""The states of a node, and how it may move between them.

Pure. A node starts in `bootstrap`. It becomes `replica` once it is in the in-sync set and hears
the master, and `master` once it has read its own claim back. It returns to `bootstrap` if it does
not hear the master, if it was expired, or if a newer claim counts. `rollback` is a master that
coordinates a kv-rollback: one that succeeds another goes on with it straight from `bootstrap`.
"""

from __future__ import annotations

BOOTSTRAP, REPLICA, MASTER, ROLLBACK = ROLES = ("bootstrap", "replica", "master", "rollback")

LEADING = frozenset({MASTER, ROLLBACK})
"""The states of a node that is master."""

MOVES: dict[str, frozenset[str]] = {
    BOOTSTRAP: frozenset({REPLICA, MASTER, ROLLBACK}),
    REPLICA: frozenset({BOOTSTRAP, MASTER, ROLLBACK}),
    MASTER: frozenset({BOOTSTRAP, ROLLBACK}),
    ROLLBACK: frozenset({MASTER, BOOTSTRAP}),
}
"""Every legal change of a node's state. A deposed master goes through `bootstrap`."""


class IllegalMoveError(AssertionError):
    """A node was to change to a state that its state does not lead to: a bug, never an input."""


def moved(now: str, to: str) -> str:
    """Return `to`. IllegalMoveError: the table has no such move."""
    if to != now and to not in MOVES[now]:
        raise IllegalMoveError(f"a node that is {now} cannot become {to}")
    return to


def next_role(now: str, wanted: str) -> str:
    """Return the state that follows `now` on the way to `wanted`: that itself, or one between."""
    if wanted == now or wanted in MOVES[now]:
        return wanted
    return next(step for step in ROLES if step in MOVES[now] and wanted in MOVES[step])

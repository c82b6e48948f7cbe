"""How a planted bug is looked for: first in the world that is known to show it, then in all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest

from tests.simulation.kernel.violation import Violation


def cases(mutants: Iterable[tuple[Any, ...]], slow: Container[Any]) -> list[Any]:
    """Return a test's cases of a table whose rows begin with what plants the bug."""
    thorough = pytest.mark.thorough
    return [
        pytest.param(*row, id=row[0].__name__, marks=[thorough] * (row[0] in slow))
        for row in mutants
    ]


def search(
    name: str, run: Callable[[int], None], first: int, worlds_max: int, names: set[str]
) -> None:
    """Run worlds by their numbers until one breaks an invariant of `names`; fail if none does.

    The first is a number that is written beside the bug. It is only where to begin: where another
    shows the bug now, say so, since until it is written there the search takes long.
    """
    found = set()
    for number in itertools.chain([first], set(range(worlds_max)) - {first}):
        try:
            run(number)
        except Violation as violation:
            found.add(violation.name)
            if violation.name in names:
                if number != first:
                    warnings.warn(
                        f"{name}: world {number} shows it, {first} does not", stacklevel=2
                    )
                return
    pytest.fail(f"{worlds_max} worlds of {name} break only {sorted(found)}")

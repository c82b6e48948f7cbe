"""Each mutant can still be planted: `make mutants` says who notices it."""

from __future__ import annotations

import pytest

from tests.mutants.planting import why_not
from tests.mutants.table import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_exactly_one_place(mutant: Mutant) -> None:
    assert not why_not(mutant)
    assert mutant.new != mutant.old


def test_names_of_mutants_are_their_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))

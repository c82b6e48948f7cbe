"""The table of a vbucket's conditions: what is in it happens, and nothing else does."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.model.types import Seqno, Vbuuid
from indexer_sim.bucket import progress
from indexer_sim.bucket.progress import (
    BEGUN_ABOVE,
    BEGUN_ON_A_BRANCH,
    BEGUN_WITHIN,
    BRANCHED,
    CARRIED_LATER,
    CAUGHT_UP,
    CONDITIONS,
    CUT_OFF,
    GAP,
    GOES_ON,
    LOST,
    NAMES,
    ORPHANED,
    OWNER_HEARD,
    RECORDS_MISSING,
    WHOLE,
    IllegalConditionError,
    VbucketProgress,
)

ALL = range(len(NAMES))
LEGAL = {
    (WHOLE, BEGUN_WITHIN, WHOLE),
    (GAP, BEGUN_WITHIN, WHOLE),
    (LOST, BEGUN_WITHIN, WHOLE),
    (ORPHANED, BEGUN_WITHIN, WHOLE),
    (BRANCHED, BEGUN_WITHIN, WHOLE),
    (WHOLE, BEGUN_ABOVE, GAP),
    (GAP, BEGUN_ABOVE, GAP),
    (LOST, BEGUN_ABOVE, GAP),
    (ORPHANED, BEGUN_ABOVE, GAP),
    (BRANCHED, BEGUN_ABOVE, GAP),
    (WHOLE, BEGUN_ON_A_BRANCH, BRANCHED),
    (GAP, BEGUN_ON_A_BRANCH, BRANCHED),
    (LOST, BEGUN_ON_A_BRANCH, BRANCHED),
    (ORPHANED, BEGUN_ON_A_BRANCH, BRANCHED),
    (BRANCHED, BEGUN_ON_A_BRANCH, BRANCHED),
    (LOST, OWNER_HEARD, GAP),
    (ORPHANED, OWNER_HEARD, GAP),
    (ORPHANED, GOES_ON, WHOLE),
    (WHOLE, CARRIED_LATER, GAP),
    (GAP, CARRIED_LATER, GAP),
    (WHOLE, RECORDS_MISSING, LOST),
    (GAP, RECORDS_MISSING, LOST),
    (LOST, RECORDS_MISSING, LOST),
    (ORPHANED, RECORDS_MISSING, LOST),
    (GAP, CAUGHT_UP, WHOLE),
    (LOST, CAUGHT_UP, ORPHANED),
    (WHOLE, CUT_OFF, LOST),
    (GAP, CUT_OFF, LOST),
    (LOST, CUT_OFF, LOST),
    (ORPHANED, CUT_OFF, LOST),
    (BRANCHED, CUT_OFF, LOST),
}


@pytest.mark.parametrize("cause", CONDITIONS)
@pytest.mark.parametrize("condition", ALL, ids=NAMES)
def test_what_is_in_the_table_happens_and_nothing_else(condition: int, cause: str) -> None:
    held = VbucketProgress(condition=condition)
    follows = [to for before, why, to in LEGAL if (before, why) == (condition, cause)]
    if follows:
        held.change(cause)
        assert held.condition == follows[0]
    else:
        with pytest.raises(IllegalConditionError, match=NAMES[condition]):
            held.change(cause)
        assert held.condition == condition


def test_only_the_table_changes_a_condition() -> None:
    own = Path(progress.__file__)
    for path in own.parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            assert not stored or node.attr != "condition" or path == own, f"{path}:{node.lineno}"


def test_what_is_packed_is_what_is_unpacked() -> None:
    """But for what is partial, which is a floor then."""
    made = VbucketProgress(
        number=1,
        owner=(2, 3),
        vbuuid=Vbuuid(2**64 - 4),
        seqno=Seqno(5),
        condition=GAP,
        begun=Seqno(6),
        reached=Seqno(7),
        synced=Seqno(8),
        floor=Seqno(9),
        catchup=(10, 11),
    )
    assert VbucketProgress.unpack(made.pack()) == made
    made.partial = Seqno(12)
    assert VbucketProgress.unpack(made.pack()) == replace(made, floor=12, partial=Seqno(0))

"""Planting a mutant in a copy of the tree, and seeing who notices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".venv", ".git", ".indexctl", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
WELL, NOTICED = 0, 1
"""pytest ends so when all tests have passed, or one has failed; other numbers mean that none was
run."""

TIMEOUT_S = 600


class Seen(NamedTuple):
    """What came of tests, whether it is what was wanted, and how long it took.

    Wanted is that a mutant is noticed; and that all tests pass where there is none.
    """

    is_wanted: bool
    took_s: float
    said: str


def why_not(mutant: Mutant, root: Path = ROOT) -> str:
    """Say why a mutant cannot be planted any more, or return an empty text."""
    path = root / mutant.path
    if not path.exists():
        return f"{mutant.path} is not there"
    count = path.read_text().count(mutant.old)
    if count != 1:
        return f"{mutant.path} has its text {count} times: {mutant.old!r}"
    test = root / mutant.tests.partition("::")[0]
    return "" if test.exists() else f"{mutant.tests} is not there"


def copy_tree(target: Path) -> None:
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)


def plant(mutant: Mutant, tree: Path) -> Seen:
    """Run a mutant's tests in a tree that has it, and put the tree right again."""
    path = tree / mutant.path
    right = path.read_text()
    path.write_text(right.replace(mutant.old, mutant.new))
    try:
        return _run(mutant.tests, tree, NOTICED)
    finally:
        path.write_text(right)


def is_well(tests: str, tree: Path) -> Seen:
    """Run tests in a tree without a mutant: where they fail, or are not there, they notice none."""
    return _run(tests, tree, WELL)


def _run(tests: str, tree: Path, wanted: int) -> Seen:
    """Run tests of the tree until one fails. One that hangs has noticed something, too."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    # Some are noticed by a combination that `make test` leaves out.
    here = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "MATRIX": "1"}
    environment = {**os.environ, **here}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Seen(wanted == NOTICED, time.monotonic() - began_s, "it took too long")
    said = done.stdout[-4_000:] + done.stderr[-2_000:]
    return Seen(done.returncode == wanted, time.monotonic() - began_s, said)

"""What holds of the tests themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.conftest import ENOUGH, ENOUGH_FOR_EACH, THOROUGH_SHARE
from tests.simulation.requirements import ENOUGH_FOR_PAIRS

TESTS = Path(__file__).parents[2]
PLANTED = TESTS / "simulation" / "planted"


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_imports_from_a_module_of_tests() -> None:
    """What several tests need stands in a module that says so by its name."""
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        if re.search(r"(from|import) .*\btest_", path.read_text())
        for name in imported(path)
        if any(part.startswith("test_") for part in name.split(".")[:-1])
    }
    assert found == set()
    assert "tests.support.lone_node" in imported(TESTS / "unit" / "core" / "test_lone_master.py")


def test_make_test_has_seeds_enough_for_every_law_of_the_worlds() -> None:
    """Of fewer a run is held to less, and says so by a skipped test that nobody looks at."""
    makefile = (TESTS.parent / "Makefile").read_text()
    [seeds] = map(int, re.findall(r"^test: export SIMULATION_SEEDS \?= (\d+)$", makefile, re.M))
    assert seeds >= ENOUGH_FOR_EACH
    [all_of_it] = map(int, re.findall(r"^SEEDS \?= (\d+)$", makefile, re.M))
    assert all_of_it >= ENOUGH_FOR_PAIRS
    assert int(seeds * THOROUGH_SHARE) >= ENOUGH


def seams(path: Path) -> Iterator[str]:
    """Yield what planted bugs patch, by its name, and what they call on an object or a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr
            if node.func.attr in ("setattr", "setitem"):
                texts = (one.value for one in node.args if isinstance(one, ast.Constant))
                yield from (text for text in texts if isinstance(text, str))


def test_planted_bugs_patch_decisions_that_have_a_name_of_their_own() -> None:
    """Whoever renames what is private to a class or a module need not know the planted bugs."""
    found = {name for path in PLANTED.glob("*.py") for name in seams(path)} - {"_replace"}
    assert {name for name in found if name.startswith("_") and not name.startswith("__")} == set()
    assert {"is_built", "begin_build", "barrier_read"} <= found

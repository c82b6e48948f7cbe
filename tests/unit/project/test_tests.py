"""What holds of the tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]


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
        for name in imported(path)
        if any(part.startswith("test_") for part in name.split(".")[:-1])
    }
    assert found == set()
    assert "tests.support.lone_node" in imported(TESTS / "unit" / "core" / "test_lone_master.py")

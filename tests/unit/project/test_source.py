"""What holds of the source, and no tool checks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from coordinator.core.model.stream_records import HwHeartbeat

ROOT = Path(__file__).parents[3]
PACKAGES = ("coordinator", "indexer_sim", "projector_sim", "schemas", "streaming")
POSITIONAL_MAX = 7
COLUMNS = {"SyncRows"}
"""Made of rows by `zip`, never by hand."""


def dataclasses_of(package: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield name, fields and decorators of each dataclass; not the fields that take keywords."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "dataclass" in decorators:
                    fields = [
                        n.target
                        for n in node.body
                        if isinstance(n, ast.AnnAssign)
                        and not (n.value and "kw_only=True" in ast.unparse(n.value))
                    ]
                    yield node.name, list(map(ast.unparse, fields)), decorators


def test_constructors_with_many_fields_take_keywords() -> None:
    """Of a dozen numbers in a row, two that are swapped are seen by nobody."""
    found = [one for package in PACKAGES for one in dataclasses_of(package)]
    assert any(name == HwHeartbeat.__name__ and len(fields) == 14 for name, fields, _ in found)
    many = {name: how for name, fields, how in found if len(fields) > POSITIONAL_MAX}
    assert {name for name, how in many.items() if "kw_only=True" not in how} == COLUMNS


LINES_MAX, METHODS_MAX = 300, 20
REASON = "Large because "


def classes() -> Iterator[tuple[str, int, int, str]]:
    """Yield where each class is, its lines and methods, and its docstring."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                    methods = sum(isinstance(one, functions) for one in node.body)
                    where = f"{path.relative_to(ROOT)}: {node.name}"
                    yield where, lines, methods, ast.get_docstring(node) or ""


def test_a_large_class_says_why_and_no_other_does() -> None:
    found = list(classes())
    large = {w for w, lines, methods, _ in found if lines > LINES_MAX or methods > METHODS_MAX}
    assert large, "none was looked at"
    assert {where for where, _, _, said in found if REASON in said} == large

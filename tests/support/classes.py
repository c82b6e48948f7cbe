"""The classes of the product, read from its source, for the tests that hold laws of all of them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "indexer_sim", "projector_sim", "schemas", "streaming")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClass:
    """A class as it is written.

    `fields` are those with an annotation that may be given by position; `names` is every name that
    stands in the class: methods, attributes, and what it uses.
    """

    path: str
    name: str
    lines: int
    methods: int
    docstring: str
    decorators: str
    fields: tuple[str, ...]
    names: frozenset[str]


@cache
def source_classes() -> tuple[SourceClass, ...]:
    """Return every class of the product; each file is parsed once."""
    return tuple(
        read_class(str(path.relative_to(ROOT)), node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )


def read_class(path: str, node: ast.ClassDef) -> SourceClass:
    return SourceClass(
        path=path,
        name=node.name,
        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        methods=sum(isinstance(one, FUNCTIONS) for one in node.body),
        docstring=ast.get_docstring(node) or "",
        decorators=" ".join(map(ast.unparse, node.decorator_list)),
        fields=tuple(
            ast.unparse(one.target)
            for one in node.body
            if isinstance(one, ast.AnnAssign)
            and not (one.value and "kw_only=True" in ast.unparse(one.value))
        ),
        names=frozenset(filter(None, map(name_of, ast.walk(node)))),
    )


def name_of(node: ast.AST) -> str:
    """Return the name that a node brings into a class or uses there, empty for any other node."""
    if isinstance(node, FUNCTIONS):
        return node.name
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

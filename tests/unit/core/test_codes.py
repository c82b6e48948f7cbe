"""Every refusal that the core can give has a status of its own, and a line in the documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from coordinator.http.errors import STATUS

ROOT = Path(__file__).parents[3]


def codes() -> Iterator[str]:
    for path in sorted((ROOT / "coordinator" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "refused":
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    yield code.value


def test_every_refusal_of_the_core_has_a_status_and_is_documented() -> None:
    found = set(codes())
    assert {"clock_ahead", "request_expired", "index_exists"} <= found
    assert found <= STATUS.keys()
    docs = (ROOT / "docs" / "http-api.md").read_text()
    assert [code for code in sorted(found) if f"`{code}`" not in docs] == []

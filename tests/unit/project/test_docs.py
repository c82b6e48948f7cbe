"""What the documentation names exists: tests, planted bugs, invariants, files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.classes import source_classes
from tests.support.pages import PAGES, ROOT, quoted

FOLDERS = ("coordinator/", "tests/", "docs/", "schemas/", "indexer_sim/", "projector_sim/")
FOLDERS += ("streaming/", "benchmarks/", "examples/")
NOT_INVARIANTS = {"code-with-dashes"}
NOT_TESTS = {"test_proposal_2"}


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


@cache
def defined() -> set[str]:
    return set(re.findall(r"def (\w+)\(", sources()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_and_file_that_is_named_exists(page: Path) -> None:
    missing = []
    for name in quoted(page.read_text()):
        if re.fullmatch(r"test_\w+", name) and name not in NOT_TESTS | defined():
            missing.append(name)
        plain = re.fullmatch(r"[\w/.-]+", name)
        if plain and name.startswith(FOLDERS) and not (ROOT / name).exists():
            missing.append(name)
    assert missing == []


@cache
def modules() -> set[str]:
    folders = (*FOLDERS, "docker/")
    return {
        f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_is_named_exists(page: Path) -> None:
    """A page may leave out where a module lies, and not say where it does not."""
    named = {name for name in quoted(page.read_text()) if re.fullmatch(r"[\w/]+\.py", name)}
    assert {n for n in named if not any(path.endswith(f"/{n}") for path in modules())} == set()


@cache
def members() -> dict[str, set[str]]:
    """Return what each class of the product defines and uses, by the name of the class."""
    found: dict[str, set[str]] = {}
    for one in source_classes():
        found.setdefault(one.name, set()).update(one.names)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_method_that_is_named_exists(page: Path) -> None:
    named = (re.match(r"([A-Z]\w+)\.(\w+)", name) for name in quoted(page.read_text()))
    pairs = {match.groups() for match in named if match}
    held = members()
    assert {f"{c}.{m}" for c, m in pairs if c in held and m not in held[c]} == set()


def test_every_invariant_and_planted_bug_of_the_protocol_exists() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    held = " ".join(re.findall(r"Tests: (.*?)(?:\n\n|\Z)", text, re.DOTALL))
    invariants = {n for n in quoted(held) if re.fullmatch(r"[a-z]+(-[a-z]+)+", n)}
    planted = {n for n in quoted(held) if re.fullmatch(r"[a-z]+(_[a-z]+)+", n)}
    planted = {name for name in planted if not name.startswith("test_")}
    assert len(invariants) > 10
    assert len(planted) > 10
    assert {n for n in invariants - NOT_INVARIANTS if f'"{n}"' not in sources()} == set()
    assert planted - defined() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@cache
def anchors(page: Path) -> set[str]:
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading.lower())
        found.add(re.sub(r"\s", "-", plain.strip()))
    return found

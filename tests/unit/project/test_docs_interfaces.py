"""What the documentation speaks of is there: routes, commands, options, metrics, names."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from coordinator.backup.restoring import EVENT as RESTORED
from coordinator.cli.main import app
from coordinator.core.catalog.decisions import EVENTS
from coordinator.core.consensus.counters import Counters
from coordinator.http.extras import MEMBERS, STABILITY
from coordinator.process import options
from tests.support.pages import PAGES, ROOT, quoted

PACKAGES = ("coordinator", "indexer_sim", "projector_sim", "streaming", "schemas")
NOT_OURS = {"WriteBatch"}
"""Names of libraries."""

DECISIONS = "coordinator/core/catalog/decisions.py"
METHODS = "GET|POST|PUT|PATCH|DELETE"


@cache
def source(*folders: str) -> str:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = [path for path in found if path.suffix in (".py", ".avsc", ".java", ".scala")]
    return "\n".join(path.read_text() for path in kept)


# -- routes --------------------------------------------------------------------------------------


def routes_of(folder: str) -> set[tuple[str, str]]:
    """Return the routes that an application declares, parameters as `{}`."""
    text = source(folder)
    path = re.search(r'^\s*path = "(/[^"]+)"', text, re.MULTILINE)
    found = set()
    for method, prefix, literal in re.findall(
        r'@app\.(get|post|put|patch|delete)\(\s*(?:(path)\b)?(?: ?\+ ?)?(?:"([^"]+)")?', text
    ):
        start = path[1] if prefix and path else ""
        found.add((method.upper(), plain(start + literal)))
    for literal, methods in re.findall(r'Route\("([^"]+)"[^\n]*methods=\[([^\]]+)\]', text):
        found |= {(method, plain(literal)) for method in re.findall(r"\w+", methods)}
    return found


def plain(path: str) -> str:
    """Return a path without a query, its parameters without names."""
    return re.sub(r"\{[^}]*\}", "{}", path.partition("?")[0])


def is_served(method: str, path: str, routes: set[tuple[str, str]]) -> bool:
    """Tell whether a route is served; where a page has an example, a parameter stands for it."""
    patterns = [
        re.escape(known).replace(r"\{\}", "[^/]+") for how, known in routes if how == method
    ]
    return any(re.fullmatch(pattern, plain(path)) for pattern in patterns)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_route_that_is_named_is_served(page: Path) -> None:
    served = set.union(*map(routes_of, ("coordinator", "indexer_sim", "projector_sim")))
    assert ("GET", "/v1/indexes/{}") in served
    named = re.findall(rf"\b({METHODS}) (/[\w/{{}}:.?=&-]+)", page.read_text())
    assert [route for route in named if not is_served(*route, served)] == []


def test_every_route_of_a_node_is_documented() -> None:
    page = (ROOT / "docs" / "http-api.md").read_text()
    named = {
        (how, plain(path)) for how, path in re.findall(rf"\b({METHODS}) (/[\w/{{}}:.-]+)", page)
    }
    assert routes_of("coordinator") - named == set()


# -- commands and options ------------------------------------------------------------------------


@cache
def indexctl() -> Any:
    return typer.main.get_command(app)


def commands_of(command: Any) -> dict[str, Any]:
    """Return the commands below one, by their names."""
    found: dict[str, Any] = getattr(command, "commands", {})
    return found


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `indexctl` that a page shows."""
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"(?:^|[`$ /])indexctl ((?:'[^'\n]*'|\"[^\"\n]*\"|[^`|#\n])+)", text):
        try:
            yield shlex.split(line)
        except ValueError:
            yield line.split()


def unknown(arguments: list[str]) -> str:
    """Return what `indexctl` does not know of these arguments, empty if it knows them all."""
    command, known, nouns = indexctl(), set(), []
    for argument in arguments:
        known |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        name = argument.strip("[](),.;:").partition("=")[0]
        if name.startswith("--"):
            if name not in known | {"--help"}:
                return f"{' '.join(nouns)} {name}"
        elif name in commands_of(command):
            command = commands_of(command)[name]
            nouns.append(name)
        elif commands_of(command) and re.fullmatch(r"[a-z-]{3,}", name) and not nouns:
            return name
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_indexctl_is_understood(page: Path) -> None:
    assert [found for one in command_lines(page) if (found := unknown(one))] == []


def test_a_command_line_that_is_not_understood_is_found() -> None:
    assert unknown(["config", "set", "a", "1", "--iff-match", "0"]) == "config set --iff-match"
    assert unknown(["rollback", "--to", "5"]) == "rollback"
    assert unknown(["members", "reform", "--minimum", "1"]) == ""


OTHERS = "pip|git|dockerd?|debootstrap|java|pytest|kafka|curl|spark-submit"
"""Commands whose options are not ours."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_is_named_is_one(page: Path) -> None:
    text = source(*PACKAGES, "tests", "benchmarks") + (ROOT / "pyproject.toml").read_text()
    held = {name for one in every(indexctl()) for param in one.params for name in param.opts}
    held |= {name for action in options()._actions for name in action.option_strings}
    named = {
        option
        for span in quoted(page.read_text())
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", span)
        if not re.match(rf"({OTHERS})\b", span)
    }
    assert {one for one in named - held if f'"{one}"' not in text} == set()


def every(command: Any) -> Iterator[Any]:
    yield command
    for one in commands_of(command).values():
        yield from every(one)


def test_every_code_that_a_command_can_end_with_is_documented() -> None:
    raised = r'\b(?:CommandError|EmbeddedError|KafkaRefusal|BackupError)\(\s*"([a-z_]+)"'
    codes = set(re.findall(raised, source("coordinator")))
    assert {"usage", "port_taken", "topic_mismatch"} <= codes
    pages = "".join(
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("http-api", "operations")
    )
    assert {code for code in codes if f"`{code}`" not in pages} == set()


# -- metrics and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_that_is_named_is_one(page: Path) -> None:
    counted = {f"coordinator_{one.name}_total" for one in fields(Counters)}
    named = set(re.findall(r"\bcoordinator_\w+", page.read_text())) - {"coordinator_"}
    assert {m for m in named - counted if f'"{m}"' not in source("coordinator")} == set()


@cache
def words() -> frozenset[str]:
    """Return every word of the source."""
    return frozenset(re.findall(r"\w+", source(*PACKAGES, "tests", "benchmarks")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_the_source_that_is_named_is_there(page: Path) -> None:
    """Classes, events, functions, attributes: whatever is written as a name in Python."""
    named = {
        name.removesuffix("()")
        for name in quoted(page.read_text())
        if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z0-9]*)+|_?[a-z]+(?:_[a-z0-9]+)+(?:\(\))?", name)
    }
    named -= NOT_OURS | {f"coordinator_{one.name}_total" for one in fields(Counters)}
    assert named - words() == set()


# -- events --------------------------------------------------------------------------------------

HTTP_API = ROOT / "docs" / "http-api.md"


def names_in_tables(*headings: str) -> list[str]:
    """Return what stands in the first column of the tables of `docs/http-api.md` with a heading."""
    lines = HTTP_API.read_text().splitlines()
    found: list[str] = []
    for number, line in enumerate(lines):
        if line in headings:
            rows = itertools.takewhile(lambda row: row.startswith("|"), lines[number + 2 :])
            found += [name for row in rows for name in quoted(row.split("|")[1])]
    return found


def test_every_name_of_a_change_is_documented_and_made() -> None:
    documented = names_in_tables("| `event` | what has happened |")
    assert len(documented) == len(set(documented))
    assert set(documented) == EVENTS | {RESTORED}
    text = source("coordinator/core").replace((ROOT / DECISIONS).read_text(), "")
    assert [name for name in sorted(EVENTS) if f'"{name}"' not in text] == []


def test_every_event_of_a_stream_is_documented() -> None:
    text = source("coordinator/http")
    sent = {STABILITY, MEMBERS, *re.findall(r'\b(?:frame|event)\("(\w+)"', text)}
    sent |= set(*re.findall(r'name = "(\w+)" if [^\n]+ else "(\w+)"\n\s+return shown', text))
    assert set(names_in_tables("| event | data | |")) == sent

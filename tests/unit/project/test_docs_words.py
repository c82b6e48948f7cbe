"""The glossary, the page of statements and the table of options: each says what holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model.config import NodeConfig
from coordinator.language import ddl_parser
from coordinator.language.ddl_parser import SqlError, parse_script, parse_statement
from coordinator.process import TIMINGS, options
from tests.support.pages import PAGES, ROOT, quoted

DOCS = ROOT / "docs"
GLOSSARY, STATEMENTS, OPERATIONS = (
    DOCS / f"{name}.md" for name in ("glossary", "statements", "operations")
)
WORDS_MAX, SENTENCES_MAX = 40, 2


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of all tables with a heading."""
    found = []
    for table in text.split(f"{heading}\n")[1:]:
        lines = table.split("\n\n")[0].splitlines()[1:]
        found += [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert found
    return found


# -- the glossary --------------------------------------------------------------------------------


def terms() -> dict[str, str]:
    found: dict[str, str] = {}
    for names, meaning in rows(GLOSSARY.read_text(), "| term | meaning |"):
        for name in re.split(r", (?:or )?", names):
            assert name not in found, f"{name} is explained twice"
            found[name] = meaning
    return found


def test_a_term_is_explained_in_a_few_short_sentences() -> None:
    for name, meaning in terms().items():
        assert len(meaning.split()) <= WORDS_MAX, name
        assert len(re.findall(r"[.;] ", meaning)) < SENTENCES_MAX, name
        assert meaning[0].isupper(), name
        assert not meaning.endswith("."), name


def test_every_term_is_used_and_those_that_every_page_uses_are_there() -> None:
    pages = "\n".join(page.read_text().lower() for page in PAGES if page != GLOSSARY)
    bare = pages.replace("*", "")
    plural = {name: re.sub(r"^\w+", r"\g<0>s", name) for name in terms()}
    used = {n for n, many in plural.items() if n.lower() in bare or many.lower() in bare}
    assert terms().keys() - used == set()
    basic = {"node", "master", "replica", "epoch", "CAS", "digest", "vbucket", "seqno", "slice"}
    basic |= {"Authority", "in-sync set", "proposal", "verdict", "barrier", "outcome", "generation"}
    assert basic <= terms().keys()


def test_every_page_leads_to_the_glossary_and_none_has_one_of_its_own() -> None:
    pages = [page for page in PAGES if page.parent == DOCS and page != GLOSSARY]
    pages += [ROOT / "README.md", DOCS / "decisions" / "README.md", ROOT / "docker" / "README.md"]
    assert len(pages) > 9
    for page in pages:
        assert "glossary.md)" in page.read_text(), page
    for page in PAGES:
        found = re.findall(r"^#+ Words|^\| (?:term|word)s? \|", page.read_text(), re.MULTILINE)
        assert not found or page == GLOSSARY, page


# -- statements ----------------------------------------------------------------------------------


def examples() -> list[str]:
    """Return the blocks of SQL of the page."""
    return re.findall(r"```sql\n(.*?)```", STATEMENTS.read_text(), re.DOTALL)


def test_every_statement_that_is_shown_can_be_read() -> None:
    good, _ = examples()
    found = parse_script(good)
    assert len(found) == good.count(";")
    for one in found:
        assert parse_statement(one.to_sql()) == one
    kinds = {type(one).__name__ for one in found}
    assert kinds == {"CreateIndex", "AlterIndex", "BuildIndex", "DropIndex"}


def test_every_statement_that_is_shown_as_refused_is() -> None:
    _, bad = examples()
    lines = [line.partition(" -- ")[0] for line in bad.splitlines()]
    assert len(lines) > 5
    for line in lines:
        with pytest.raises(SqlError):
            parse_script(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_statements_can_be_read(page: Path) -> None:
    for block in re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL):
        if re.match(r"(CREATE|ALTER|BUILD|DROP)\b", block) and page != STATEMENTS:
            assert parse_script(block)


def test_the_table_of_options_of_with_has_all_and_no_other() -> None:
    named = [quoted(row[0])[0] for row in rows(STATEMENTS.read_text(), "| key of WITH | value | |")]
    assert set(named) == set(ddl_parser._OPTION_TYPES)
    assert len(named) == len(set(named))


def test_the_bound_of_a_script_is_the_one_that_is_told() -> None:
    assert f"{ddl_parser.SCRIPT_LENGTH_MAX:,} characters" in STATEMENTS.read_text()


# -- options of a node ---------------------------------------------------------------------------


def actions() -> dict[str, Any]:
    found = {one.option_strings[-1]: one for one in options()._actions}
    del found["--help"]
    return found


def default_of(action: Any) -> str:
    """Return how the table shows a default, empty where it says it in words."""
    if action.required:
        return "needed"
    name = action.dest
    if name in TIMINGS or name == "log_capacity":
        return f"{NodeConfig.__dataclass_fields__[name].default:,}"
    if isinstance(action.default, bool):
        return "off"
    if isinstance(action.default, int):
        return f"{action.default:,}"
    return f"`{action.default}`" if isinstance(action.default, str) else ""


def test_the_table_of_options_of_a_node_has_all_with_their_defaults() -> None:
    section = OPERATIONS.read_text().partition("### Options of a node")[2].partition("\n## ")[0]
    found = {quoted(one[0])[0]: one[1] for one in rows(section, "| option | default | |")}
    named = {text.split()[0]: default for text, default in found.items()}
    known = actions()
    assert named.keys() == known.keys()
    for name, action in known.items():
        assert named[name] == default_of(action) or (not default_of(action) and named[name]), name
    for text in found:
        takes_value = len(text.split()) > 1
        assert takes_value == (known[text.split()[0]].nargs != 0), text

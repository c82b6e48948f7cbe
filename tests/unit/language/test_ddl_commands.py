"""Commands from outside: what is too much is refused without being looked at."""

from __future__ import annotations

import pytest

from coordinator import codec
from coordinator.core.catalog.ddl import EXPRESSION_LENGTH_MAX, EXPRESSIONS_MAX
from coordinator.core.model.commands import (
    BuildIndexes,
    CreateIndex,
    DropIndex,
    Position,
    Request,
    SkipRecord,
)
from coordinator.http.models import CreateIndexBody
from coordinator.language import ddl_parser
from coordinator.language.ddl_commands import (
    BOUNDS_LENGTH_MAX,
    COMMAND_BYTES_MAX,
    DEFINITION_LENGTH_MAX,
    NAME_LENGTH_MAX,
    NAMED_MAX,
    Definition,
    command_of,
    normalised,
    read_command,
)


@pytest.mark.parametrize(
    "command",
    [
        CreateIndex(name="i", bucket="b", expressions=("a" * (EXPRESSION_LENGTH_MAX + 1),)),
        CreateIndex(name="i", bucket="b", expressions=("a",) * (EXPRESSIONS_MAX + 1)),
        CreateIndex(name="i", bucket="b", where="a" * (EXPRESSION_LENGTH_MAX + 1)),
    ],
)
def test_an_oversized_definition_is_not_parsed(
    command: CreateIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object, **__: object) -> str:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(ddl_parser, "normalise_expression", parse)
    request = Request(command=command)
    assert normalised(request) is request


def test_of_an_oversized_record_a_letter_keeps_the_beginning() -> None:
    command = read_command(b"x" * (COMMAND_BYTES_MAX + 1), Position(0, 7)).command
    assert isinstance(command, SkipRecord)
    assert command.reason.startswith("too_large")
    assert len(command.value) == COMMAND_BYTES_MAX


PLACE = Position(0, 7)


def refuse(definition: Definition) -> Definition | str:
    raise AssertionError("it was examined")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (
            CreateIndex(name="i", bucket="b", expressions=("a" * 4_000,) * 9),
            f"more than {DEFINITION_LENGTH_MAX}",
        ),
        (
            CreateIndex(
                name="i", bucket="b", expressions=("a",), bounds_json=" " * (BOUNDS_LENGTH_MAX + 1)
            ),
            "of bounds",
        ),
        (
            CreateIndex(name="i", bucket="b", expressions=("a",), nodes=(1,) * (NAMED_MAX + 1)),
            "are named",
        ),
        (
            CreateIndex(name="i" * (NAME_LENGTH_MAX + 1), bucket="b", expressions=("a",)),
            "a name has at most",
        ),
        (
            CreateIndex(name="i", bucket="b" * (NAME_LENGTH_MAX + 1), expressions=("a",)),
            "a name has at most",
        ),
        (
            CreateIndex(
                name="i", bucket="b", expressions=("a",), using="u" * (NAME_LENGTH_MAX + 1)
            ),
            "a name has at most",
        ),
        (DropIndex(name="i" * (NAME_LENGTH_MAX + 1)), "a name has at most"),
        (BuildIndexes(tuple(range(NAMED_MAX + 1))), "are named"),
        (BuildIndexes((), "b", ("i",) * (NAMED_MAX + 1)), "are named"),
        (BuildIndexes((), "b", ("i" * (NAME_LENGTH_MAX + 1),)), "a name has at most"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_takes_time_by_its_size_is_refused_and_not_kept(
    command: CreateIndex | DropIndex | BuildIndexes, why: str
) -> None:
    request = read_command(codec.encode_ddl("r", command), PLACE, refuse)
    assert why in request.objection
    assert request.fingerprint == codec.fingerprint(command, None)
    assert len(str(request.command)) < 400
    assert normalised(Request(command=command), refuse).objection == request.objection


@pytest.mark.parametrize(
    "error", [IndexError("odd"), RecursionError(), MemoryError(), AttributeError()]
)
def test_whatever_a_definition_stumbles_over_is_an_objection(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(ddl_parser, "normalise_expression", stumble)
    data = codec.encode_ddl("r", CreateIndex(name="i", bucket="b", expressions=("a",)))
    assert type(error).__name__ in read_command(data, PLACE).objection


def test_a_definition_is_examined_by_who_is_given_and_an_index_without_one_is_not() -> None:
    asked: list[Definition] = []

    def examine(definition: Definition) -> Definition | str:
        asked.append(definition)
        return Definition(("x",), "y") if definition.where else "no"

    request = Request(command=CreateIndex(name="i", bucket="b", expressions=("a",), where="b"))
    assert normalised(request, examine).command == CreateIndex(
        name="i", bucket="b", expressions=("x",), where="y"
    )
    assert (
        normalised(
            Request(command=CreateIndex(name="i", bucket="b", expressions=("a",))), examine
        ).objection
        == "no"
    )
    assert asked == [Definition(("a",), "b"), Definition(("a",))]
    primary = Request(command=CreateIndex(name="i", bucket="b", primary=True))
    assert normalised(primary, refuse) is primary


STATEMENTS = """
CREATE INDEX i ON travel(a, LOWER(b) DESC) WHERE c > 1;
CREATE PRIMARY INDEX IF NOT EXISTS ON travel USING gsi;
CREATE INDEX n ON travel(a) WITH {"slices": 3, "replicas": 1, "nodes": [1, 2], "defer_build": true};
CREATE INDEX r ON travel(a) WITH {"partitioning": "range", "bounds": [["f"], ["m"]]};
"""


@pytest.mark.parametrize("statement", ddl_parser.parse_script(STATEMENTS), ids=lambda one: one.name)
def test_a_statement_is_the_same_command_as_over_http(statement: ddl_parser.CreateIndex) -> None:
    assert command_of(statement) == CreateIndexBody(**statement.to_request()).command()


def test_statements_drop_and_build_what_they_name() -> None:
    dropped, built = ddl_parser.parse_script("DROP INDEX IF EXISTS i ON b; BUILD INDEX ON b(i, j);")
    assert command_of(dropped) == DropIndex(0, "b", "i", if_exists=True)
    assert command_of(built) == BuildIndexes((), "b", ("i", "j"))

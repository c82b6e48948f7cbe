"""Commands from outside: what is too long is refused without being parsed."""

from __future__ import annotations

import pytest

from coordinator import sql
from coordinator.core.commands import CreateIndex, Position, Request, SkipRecord
from coordinator.core.ddl import EXPRESSION_LENGTH_MAX, EXPRESSIONS_MAX
from coordinator.ddl_commands import COMMAND_BYTES_MAX, normalised, read_command


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

    monkeypatch.setattr(sql, "normalise_expression", parse)
    request = Request(command)
    assert normalised(request) is request


def test_of_an_oversized_record_a_letter_keeps_the_beginning() -> None:
    command = read_command(b"x" * (COMMAND_BYTES_MAX + 1), Position(0, 7)).command
    assert isinstance(command, SkipRecord)
    assert command.reason.startswith("too_large")
    assert len(command.value) == COMMAND_BYTES_MAX

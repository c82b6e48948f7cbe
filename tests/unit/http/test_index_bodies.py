"""The body of `POST /v1/indexes`: what it leaves out, and what it may say of ranges."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.core.model.commands import CreateIndex
from coordinator.http.models import CreateIndexBody
from coordinator.language.ddl_parser import parse_statement


def command(**fields: Any) -> CreateIndex:
    return CreateIndexBody(**{"name": "i", "bucket": "b", "expressions": ["c"], **fields}).command()


def test_what_a_body_leaves_out_is_what_the_command_leaves_out() -> None:
    assert command() == CreateIndex(name="i", bucket="b", expressions=("c",))


def test_bounds_say_how_many_slices_there_are_unless_the_body_does() -> None:
    ranges = {"partitioning": "range", "bounds": [["F"], ["P", 1, 1.5, True, None]]}
    made = command(**ranges)
    assert made == CreateIndex(
        name="i",
        bucket="b",
        expressions=("c",),
        slices=0,
        partitioning="range",
        bounds_json='[["F"],["P",1,1.5,true,null]]',
    )
    assert command(**ranges, slices=3).slices == 3
    assert json.loads(command(bounds=[["\ud800"]]).bounds_json) == [["\ud800"]]


@pytest.mark.parametrize("bounds", ["F", ["F"], [[[1]]], [[{}]]])
def test_bounds_are_keys_of_scalars(bounds: Any) -> None:
    with pytest.raises(ValidationError):
        command(bounds=bounds)


@pytest.mark.parametrize(
    "options",
    [
        '{"nodes": [2, 1], "replicas": 1, "slices": 2, "defer_build": true}',
        '{"partitioning": "range", "bounds": [["F", 1], ["R"]]}',
    ],
)
def test_the_api_accepts_what_a_statement_asks_for(options: str) -> None:
    statement = parse_statement(f"CREATE INDEX i ON b(c, d) WHERE e USING gsi WITH {options}")
    made = CreateIndexBody.model_validate(statement.to_request()).command()
    assert made.nodes == (statement.nodes or ())

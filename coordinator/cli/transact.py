"""`indexctl txn`: several changes in one transaction, if all comparisons hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer

from coordinator.cli.apply import read_script
from coordinator.cli.json_values import read_json
from coordinator.cli.output import CommandError, plain, print_table

PARTS = ("compare", "then", "else")


def read_transaction(file: str) -> dict[str, Any]:
    """Return the transaction in a file, or in standard input for `-`. Raises CommandError."""
    try:
        found = read_json(read_script(file))
    except (ValueError, RecursionError) as error:
        raise CommandError("usage", f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict) or not found.keys() <= set(PARTS):
        raise CommandError("usage", f"{file} is no object of {', '.join(PARTS)}")
    for part, listed in found.items():
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise CommandError("usage", f"{file}: {part} is no list of objects")
    return found


def show_transaction(given: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Print what became of a transaction."""
    if not answer["succeeded"]:
        _show_comparisons(given["compare"], answer["compared"])
    chosen = given.get("then" if answer["succeeded"] else "else", [])
    if chosen:
        rows = [
            [_verb_of(operation), result["key"], result["cas"], _outcome_of(result)]
            for operation, result in zip(chosen, answer["results"], strict=True)
        ]
        print_table(["operation", "key", "cas#", "outcome"], rows)
    if answer["txn"]:
        typer.echo(f"committed as {answer['txn']}, at CAS {answer['cas']}")
    else:
        typer.echo("nothing was changed")


def _show_comparisons(asked: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    rows = [
        [comparison.get("key") or _named(comparison), comparison["cas"], held["cas"]]
        for comparison, held in zip(asked, found, strict=True)
        if comparison["cas"] != held["cas"]
    ]
    print_table(["not as expected", "expected cas#", "cas#"], rows)


def _named(comparison: Mapping[str, Any]) -> str:
    return f"{comparison['bucket']}.{comparison['name']}"


def _verb_of(operation: Mapping[str, Any]) -> str:
    return ", ".join(operation).replace("_", " ")


def _outcome_of(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return plain(f"{result['error']['message']} [{result['error']['code']}]")
    if "index" in result:
        return f"index {json.dumps(result['index']['name'])} is {result['index']['state']}"
    return "done"

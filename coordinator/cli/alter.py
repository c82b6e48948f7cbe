"""`indexctl alter`: change an index, or see first how that would be done."""

import re
from typing import Annotated, Any

import typer

from coordinator.cli.definition_options import Bucket, Expressions, Nodes, Replicas, Where
from coordinator.cli.json_values import read_json
from coordinator.cli.lookup import find_index
from coordinator.cli.output import CommandError, plain, print_json
from coordinator.cli.session import Session, command

HOW = {
    "none": "nothing would change",
    "in_place": "would change in place",
    "rebuild": "would be built anew beside the old one, which it then replaces",
}


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "alter", no_args_is_help=True)(alter)


def alter(
    session: Session,
    index: Annotated[
        str,
        typer.Argument(
            metavar="BUCKET.NAME|ID|STATEMENT",
            help="A name needs its bucket, or --bucket; or an id; or a whole ALTER INDEX.",
        ),
    ],
    bucket: Bucket = None,
    rename: Annotated[str | None, typer.Option(metavar="NAME", help="The new name.")] = None,
    expressions: Expressions = None,
    where: Where = None,
    no_where: Annotated[
        bool, typer.Option("--no-where", help="Index all documents that have the key.")
    ] = False,
    slices: Annotated[int | None, typer.Option(min=1, help="Number of slices.")] = None,
    replicas: Replicas = None,
    nodes: Nodes = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="JSON",
            help="Partition by ranges: a slice begins at this key; repeat for more.",
        ),
    ] = None,
    if_match: Annotated[
        int | None,
        typer.Option("--if-match", metavar="CAS", min=0, help="Only if it has this CAS (version)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how it would be done.")
    ] = False,
) -> None:
    """Change an index: what is not named stays as it is.

    A new name and fewer replicas take effect at once. All else builds a second index beside the
    old one, and replaces that when it is built.

    indexctl alter travel.by_city --rename by_town --replicas 0

    indexctl alter 'ALTER INDEX by_city ON travel(country, city)' --dry-run
    """
    fields: dict[str, Any] = {
        "name": rename,
        "expressions": expressions or None,
        "where": where,
        "slices": slices,
        "replicas": replicas,
        "nodes": nodes or None,
        "partitioning": "range" if bounds else None,
        "bounds": [_bound(text) for text in bounds] if bounds else None,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    if no_where:
        if where is not None:
            raise CommandError("usage", "--where or --no-where, not both")
        changes["where"] = None
    if re.search(r"\s", index):  # No name has white space, and every statement has.
        if changes or bucket:
            raise CommandError("usage", "a statement takes no other options")
        bucket, index, changes = _read(index)
    elif not changes:
        raise CommandError("usage", "what is to change? See `indexctl alter --help`")
    with session.connect() as client:
        found = find_index(
            client, index, bucket, consistency="linearizable", needs_bucket=not index.isdecimal()
        )
        old = found["index"]["id"]
        body = client.alter_index(old, changes, dry_run=dry_run, expected_cas=if_match)
    if session.json:
        print_json(body)
    else:
        typer.echo(plain(_outcome_text(body, old)))


def _read(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return the bucket, the name and the changes of a statement."""
    from coordinator.language import ddl_parser

    statement = ddl_parser.parse_statement(text)
    if not isinstance(statement, ddl_parser.AlterIndex):
        raise CommandError("usage", "that is no ALTER INDEX; see `indexctl apply`")
    return statement.bucket, statement.name, statement.to_changes()


def _bound(text: str) -> list[Any]:
    """Return the key that a slice begins at; a single component may stand by itself."""
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        raise CommandError("usage", f"--bound {text[:40]}: that is not JSON") from None
    return value if isinstance(value, list) else [value]


def _outcome_text(body: dict[str, Any], old: str) -> str:
    """Return what is said of an answer."""
    index = body["index"]
    named = f"{index['name']} on {index['bucket']}"
    if "change" in body:
        return f"{named}: {HOW[body['change']]}"
    if not body["txn"]:
        return f"unchanged {named}: cas {body['cas']}"
    how = "altered" if index["id"] == old else f"rebuilt, was {old},"
    return f"{how} {named}: id {index['id']}, {index['state']}, cas {body['cas']}"

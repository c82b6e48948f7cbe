"""`indexctl undo`: shows what would change, asks, then takes the state back to an earlier CAS."""

import json
import sys
from typing import Annotated, Any

import typer

from coordinator.cli.history import cas_of, differing
from coordinator.cli.moments import WHEN
from coordinator.cli.output import CommandError, console, plain
from coordinator.cli.session import Session, command


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "undo")(undo)


def undo(
    session: Session,
    to: Annotated[str, typer.Option("--to", metavar="WHEN", help=f"{WHEN[0].upper()}{WHEN[1:]}.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Only the entity under this key; repeat for more."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    in_steps: Annotated[
        bool,
        typer.Option("--in-steps", help="Use several transactions if the changes exceed one."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take settings and indexes back to how they were at an earlier CAS or time.

    Shows what would change, and asks. Settings get their earlier values. Indexes that were created
    since then are dropped. Indexes that were dropped since then are created again under their
    names, with new ids, and are built again. Renamed ones get their names back. The undo makes
    ordinary changes, so it can be undone.
    """
    with session.connect() as client:
        client.members()
        cas = cas_of(client, to, "--to")
        if cas == 0:
            text = f"--to {to}: nothing had been committed by then, so nothing can be undone to it"
            raise CommandError("invalid_request", text)
        planned = client.undo(cas, only or (), dry_run=True)
        if dry_run or not planned["changes"]:
            _show(planned, planned=True, as_json=session.json)
            return
        if not yes:
            if session.json or not sys.stdin.isatty():
                raise CommandError("usage", "undo changes the state: confirm it with --yes")
            _show(planned, planned=True, as_json=False)
            typer.confirm("Make these changes?", abort=True, err=True)
        done = client.undo(cas, only or (), expected_cas=planned["cas"], in_steps=in_steps)
        _show(done, planned=False, as_json=session.json)


def _show(answer: dict[str, Any], *, planned: bool, as_json: bool) -> None:
    if as_json:
        for change in answer["changes"]:
            typer.echo(json.dumps(change))
        return
    for change in answer["changes"]:
        after_cas = 0 if change["dropped"] else 1
        row = {**change, "after": change["value"], "after_cas": after_cas}
        console().print(differing(row), soft_wrap=True)
        if change.get("error"):
            error = change["error"]
            typer.echo(plain(f"    not created: {error['message']} [{error['code']}]"))
    for kept in answer["kept"]:
        typer.echo(plain(f"= {kept['key']}: {kept['reason']}"))
    count = len(answer["changes"])
    if planned:
        typer.echo(f"{count} to change, to lead back to CAS {answer['to']}")
    else:
        txns = ", ".join(answer["txns"]) or "no transaction"
        typer.echo(f"{count} changed by {txns}")

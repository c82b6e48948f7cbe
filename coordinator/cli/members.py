"""`indexctl members` and `indexctl step-down`: who is in the cluster, and changing that."""

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.output import CommandError, print_fields, print_json
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from coordinator.cli.survey import Survey

app = typer.Typer(help="Show the coordinator nodes, or take nodes out of the cluster.")

Reason = Annotated[str, typer.Option(help="The reason; it is kept in the log.")]
Node = Annotated[int, typer.Argument(metavar="NODE", min=1, help="The number of a node.")]


@command(app, None)
def members(session: Session) -> None:
    """Show the coordinator nodes, or take nodes out of the cluster."""
    from coordinator.cli import status as view

    found = _surveyed(session)
    body = {**found.best, "members": found.rows, "silent": found.silent}
    if session.json:
        print_json(body)
        return
    print_fields(
        [
            ("epoch", body["epoch"]),
            ("master", view.master_text(body)),
            ("roster", _joined(body["roster"])),
            ("active", f"{_joined(body['active'])} ({_at_least(body['minimum'])})"),
            *view.silent_field(found.silent),
        ]
    )
    view.show_members(body["members"])


@command(app, "leave")
def leave(session: Session, node: Node) -> None:
    """Take a node out of the cluster: no transaction waits for it any more.

    A master hands the mastership over first. The node joins again when it is started again.
    """
    known = _surveyed(session).best
    left = [n for n in known["active"] if n != node]
    if known["master"] == node and len(left) < known["minimum"]:
        text = f"active nodes left: {len(left)}, and {known['minimum']} copies are needed"
        raise CommandError("leave_impossible", f"{text}: start another node first, or reform")
    with session.connect() as client:
        if known["master"] == node:
            client.step_down(epoch=known["epoch"], reason="leaving")
        body = client.leave(node)
    if session.json:
        print_json(body)
    else:
        typer.echo(f"node {node} has left; active: {_joined(body['active'])}")


@command(app, "reform")
def reform(
    session: Session,
    minimum: Annotated[
        int, typer.Option(min=1, help="Nodes that must hold a change to commit it.")
    ],
    forget: Annotated[
        list[int] | None,
        typer.Option("--forget", metavar="NODE", help="A node that is lost; repeat for more."),
    ] = None,
    reason: Reason = "",
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="URL",
            help="The node that claims the mastership if there is no master.",
        ),
    ] = None,
) -> None:
    """Lower the minimum of copies, after nodes were lost for good.

    Only a node that holds every acknowledged change can do this. It writes the reform, with the
    reason, to the log. With fewer copies, the next loss of a node may lose data.
    """
    with session.connect() as client:
        furthest = node or _furthest(_surveyed(session))
        body = client.reform(minimum, forget or (), reason=reason, node=furthest)
    if session.json:
        print_json(body)
    else:
        roster, minimum = body["roster"], body["minimum"]
        nodes = "node" if len(roster) == 1 else "nodes"
        copies = "copy" if minimum == 1 else "copies"
        typer.echo(f"reformed: {nodes} {_joined(roster)}, at least {minimum} {copies}")


def add_step_down(root: typer.Typer) -> None:
    """Add `step-down` to the root command."""

    @command(root, "step-down")
    def step_down(
        session: Session,
        to: Annotated[
            int | None,
            typer.Option("--to", metavar="NODE", min=1, help="The node that becomes master."),
        ] = None,
        reason: Reason = "",
    ) -> None:
        """Have the master hand over to another node; returns when that node is master."""
        epoch = _surveyed(session).best["epoch"]
        with session.connect() as client:
            body = client.step_down(to, epoch=epoch, reason=reason)
        if session.json:
            print_json(body)
        else:
            typer.echo(f"node {body['master']} is master, epoch {body['epoch']}")


def _furthest(found: "Survey") -> str | None:
    """Return the node that has to claim the mastership if there is no master: the one with the
    highest CAS. None: there is a master, and any node redirects to it."""
    if found.best["mastership"]["state"] == "elected":
        return None
    answering = [row for row in found.rows if row.get("alive") and row["address"]]
    return max(answering, key=lambda row: row["cas"])["address"] if answering else None


def _surveyed(session: Session) -> "Survey":
    """Return what all nodes say: one that has just come back may know of an older master."""
    from coordinator.cli.survey import survey

    with session.connect() as client, session.probe() as probe:
        return survey(client, probe)


def _at_least(minimum: int) -> str:
    return f"at least {minimum} {'is' if minimum == 1 else 'are'} needed"


def _joined(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"

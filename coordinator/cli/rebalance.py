"""`indexctl rebalance`, `drain` and `rebalances`: copies of slices move between indexers."""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.moments import how_long, moment
from coordinator.cli.output import CommandError, plain, print_json, print_table
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from coordinator.client.client import Client

PERIOD_S = 0.5
FORGOTTEN = "forgotten"
OVER = ("done", "cancelled", FORGOTTEN)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would move, and why.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is over.")]


def add_to(root: typer.Typer) -> None:
    """Add them to the root command."""
    command(root, "rebalance")(rebalance)
    command(root, "drain")(drain)
    command(root, "rebalances")(rebalances)


def rebalance(
    session: Session,
    dry_run: DryRun = False,
    max_moves: Annotated[
        int | None, typer.Option("--max-moves", metavar="N", help="At most so many moves.")
    ] = None,
    wait: Wait = False,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="ID", help="Cancel this rebalance instead.")
    ] = None,
) -> None:
    """Move copies of slices, so that all indexers bear the same load.

    Indexes can be scanned and written all the time. Moves that have begun to serve are finished
    when a rebalance is cancelled; the others change nothing then.
    """
    with session.connect() as client:
        if cancel is None:
            begun = client.rebalance(dry_run=dry_run, max_moves=max_moves)
        else:
            begun = client.cancel_rebalance(cancel)
        _tell(session, client, begun, wait=wait and not dry_run)


def drain(
    session: Session,
    indexer: Annotated[list[int], typer.Argument(help="The indexers that are to be emptied.")],
    dry_run: DryRun = False,
    wait: Wait = False,
) -> None:
    """Move everything away from indexers, so that they can be stopped for good.

    With --wait it ends when they hold nothing. If something cannot be moved, it says what, and why.
    """
    with session.connect() as client:
        begun = client.rebalance(drain=indexer, dry_run=dry_run)
        found = _tell(session, client, begun, wait=wait and not dry_run)
        left = [move for move in found["moves"] if move["state"] == "failed"]
        if begun["impossible"] or (wait and left):
            first = [*begun["impossible"], *left][0]
            what = f"slice {first['slice']} of {_name(first, _names(client))}"
            why = first.get("reason") or first["why"]
            raise CommandError("drain_incomplete", f"{what} stays where it is: {why}")
        if wait and not dry_run:
            _check_emptied(client, indexer)


def _check_emptied(client: "Client", drained: list[int]) -> None:
    """One rebalance moves so much only, somebody may cancel it, and what is made or leaves while
    it is planned is in no plan. Raises CommandError."""
    for row in client.indexers()["indexers"]:
        if row["id"] in drained and row["slices"]:
            text = f"indexer {row['id']} still has {row['slices']} slices: drain it again"
            raise CommandError("drain_incomplete", text)


def rebalances(session: Session) -> None:
    """Show the last rebalances, newest first, and the moves of the one that runs."""
    with session.connect() as client:
        found = client.list_rebalances(consistency="linearizable")
        names = {} if session.json else _names(client)
    if session.json:
        print_json(found)
        return
    rows = found["rebalances"]
    print_table(
        ["id", "state", "began", "took#", "moves#", "done#", "failed#", "drains"],
        [
            [
                *(row["id"], row["state"], moment(row["began_ms"]), _took(row)),
                *(len(row["moves"]), _count(row, "done"), _count(row, "failed")),
                ", ".join(row["drain"]),
            ]
            for row in rows
        ],
        empty="no rebalances",
    )
    running = [row for row in rows if row["state"] not in OVER]
    if running:
        typer.echo("")
        _print_moves(running[0]["moves"], names)


def _took(row: dict[str, Any]) -> str:
    if row["ended_ms"] is not None:
        return str(how_long(row["ended_ms"] - row["began_ms"]))
    return f"{how_long(max(0, time.time_ns() // 1_000_000 - row['began_ms']))} so far"


def _count(row: dict[str, Any], state: str) -> int:
    return Counter(move["state"] for move in row["moves"])[state]


def _tell(
    session: Session,
    client: "Client",
    begun: dict[str, Any],
    *,
    wait: bool,
) -> dict[str, Any]:
    """Show what was planned or begun, wait for its end if that is asked; return how it is."""
    found: dict[str, Any] = begun["rebalance"]
    if wait:
        states = _states(client, found, session.timeout_s)
        quiet = session.json or not sys.stderr.isatty()
        found = _silently(states) if quiet else _with_bars(states, _names(client))
    if session.json:
        print_json({**begun, "rebalance": found})
        return found
    if found["state"] == FORGOTTEN:
        typer.echo(f"rebalance {found['id']} was over long ago")
        return found
    if not found["moves"]:
        typer.echo("nothing to move: the load is balanced")
        return found
    names = _names(client)
    _print_moves(found["moves"], names)
    for indexer, before in found["load_before"].items():
        after = found["load_after"].get(indexer, 0.0)
        typer.echo(f"indexer {indexer}: {before:.1%} of the load, then {after:.1%}")
    for one in begun.get("impossible", ()):
        text = f"slice {one['slice']} of {_name(one, names)} cannot move: {one['why']}"
        typer.echo(plain(text), err=True)
    if found["id"] is not None:
        typer.echo(f"rebalance {found['id']}: {found['state']}")
    return found


def _names(client: "Client") -> dict[str, str]:
    """Return what the indexes are called, by id."""
    indexes = client.list_indexes(consistency="local")["indexes"]
    return {index["id"]: f"{index['bucket']}.{index['name']}" for index in indexes}


def _name(move: dict[str, Any], names: dict[str, str]) -> str:
    """Return what the index of a move is called; its id, if it is gone."""
    index_id: str = move["index"]
    return names.get(index_id, index_id)


def _print_moves(moves: list[dict[str, Any]], names: dict[str, str]) -> None:
    print_table(
        ["index", "slice#", "from", "to", "bytes#", "state", "why"],
        [
            [
                *(_name(move, names), move["slice"], move["from"] or "", move["to"]),
                *(f"{move['bytes']:,}", _state(move), move["reason"] or move["why"] or ""),
            ]
            for move in moves
        ],
        empty="no moves",
    )


def _state(move: dict[str, Any]) -> str:
    progress = move["progress"]
    return f"{move['state']} {progress['percent']:.0f} %" if progress else str(move["state"])


def _states(
    client: "Client", found: dict[str, Any], timeout: float | None
) -> Iterator[dict[str, Any]]:
    """Yield a rebalance again and again, until it is over."""
    began = time.monotonic()
    while True:
        yield found
        if found["state"] in OVER:
            return
        if timeout is not None and time.monotonic() - began > timeout:
            text = f"rebalance {found['id']} is not over in {timeout:g} s; it goes on"
            raise CommandError("timeout", text)
        time.sleep(PERIOD_S)
        rows = client.list_rebalances(consistency="linearizable")["rebalances"]
        gone = {**found, "state": FORGOTTEN}
        found = next((row for row in rows if row["id"] == found["id"]), gone)


def _silently(states: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return deque(states, maxlen=1)[0]


def _with_bars(states: Iterator[dict[str, Any]], names: dict[str, str]) -> dict[str, Any]:
    """Show a bar for each move while it is carried out."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    last: dict[str, Any] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[how]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[int, Any] = {}
        for last in states:
            for number, move in enumerate(last["moves"]):
                if number not in tasks:
                    name = f"{_name(move, names)} slice {move['slice']} to {move['to']}"
                    tasks[number] = bars.add_task(name, total=100, how="")
                bars.update(tasks[number], completed=_percent(move), how=_state(move))
    return last


def _percent(move: dict[str, Any]) -> float:
    if move["state"] in ("catchup", "done"):
        return 100.0
    return min(99.0, move["progress"]["percent"]) if move["progress"] else 0.0

"""`indexctl scan`: what an index holds, as a table, as JSON, or counted."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.json_values import read_json
from coordinator.cli.lookup import find_index
from coordinator.cli.output import CommandError, plain, print_json, print_table
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from coordinator.client.client import Client

LIMIT = 20
ANSWER_S = 1.0
"""The node says best what a scan lacked: its answer is waited for so much longer than that."""

TIMEOUT_MS_MAX = 60_000
CONSISTENCIES = ("any", "consistent", "at-least", "last-good")
ORDERS = ("asc", "desc")

Components = list[str] | None


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "scan", no_args_is_help=True)(scan)


def scan(
    session: Session,
    index: Annotated[
        str, typer.Argument(metavar="BUCKET.INDEX|ID", help="A name needs its bucket, or --bucket.")
    ],
    bucket: Annotated[str | None, typer.Option("--bucket", "-b", help="The bucket.")] = None,
    equals: Annotated[
        Components,
        typer.Option(metavar="VALUE", help="The whole key; repeat for each component."),
    ] = None,
    prefix: Annotated[
        Components,
        typer.Option(metavar="VALUE", help="Keys that begin with these components; repeat."),
    ] = None,
    low: Annotated[
        Components,
        typer.Option("--from", metavar="VALUE", help="Keys from this one on, inclusive."),
    ] = None,
    high: Annotated[
        Components, typer.Option("--to", metavar="VALUE", help="Keys up to this one, inclusive.")
    ] = None,
    before: Annotated[
        Components,
        typer.Option("--before", metavar="VALUE", help="Keys up to this one, exclusive."),
    ] = None,
    starts_with: Annotated[
        Components,
        typer.Option(
            metavar="VALUE",
            help="Keys with a string that begins with this; repeat: the last value is the "
            "beginning, those before it are whole components.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=10_000,
            help=f"Show at most this many ({LIMIT}); not with --all.",
        ),
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="asc|desc", help="The order of the index, or the opposite.")
    ] = "asc",
    count: Annotated[
        bool, typer.Option("--count", help="Show only the number of entries.")
    ] = False,
    consistency: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(CONSISTENCIES),
            help="any (default): the newest entries of each indexer. consistent: all slices at one "
            "stability timestamp. at-least: entries not older than --at-least. consistent with "
            "--at-least: at a timestamp not older than that. last-good: as consistent; while the "
            "index rolls back, the snapshot that is left.",
        ),
    ] = None,
    at_least: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|JSON",
            help='Positions to include, as {"VBUCKET": ["VBUUID", "SEQNO"], …}, or of a Kafka '
            'topic as {"offsets": {"PARTITION": OFFSET, …}}.',
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Continue after the page that printed this."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Show all. With --json, a line for each row: that is for many rows."
        ),
    ] = False,
) -> None:
    """Show the entries of an index, in order.

    A VALUE is JSON. A text that is no JSON is a string.

    indexctl scan travel.by_city --prefix FR --prefix Paris --limit 5

    indexctl scan travel.high --from 14000 --to 12000
    """
    if everything and (limit or count):
        raise CommandError("usage", "--all alone, without --limit or --count")
    deadline_s = None if session.timeout_s is None else session.timeout_s + ANSWER_S
    asked: dict[str, Any] = {
        "scan": _form(equals, prefix, low, high, before, starts_with),
        "order": _one_of("--order", order, ORDERS),
        "consistency": _consistency(consistency, at_least),
        "after": after,
        "timeout_ms": _timeout_ms(session.timeout_s),
    }
    with session.connect(deadline_s) as client:
        target, columns = _resolve(client, index, bucket)
        asked.update(target)
        if count:
            _show_count(session, client.scan(**asked, count=True))
        elif everything:
            _show_all(session, client.scan_all(**asked), columns)
        else:
            _show_page(session, client.scan(**asked, limit=limit or LIMIT), columns)


# What is asked.


def _timeout_ms(timeout_s: float | None) -> int | None:
    """Return the deadline as the API takes it; None: the API's own."""
    return None if timeout_s is None else min(max(int(timeout_s * 1000), 1), TIMEOUT_MS_MAX)


def _form(
    equals: Components,
    prefix: Components,
    low: Components,
    high: Components,
    before: Components,
    starts_with: Components,
) -> dict[str, Any]:
    """Return the scan that the options ask for."""
    if high and before:
        raise CommandError("usage", "--to or --before, not both")
    given = {"equals": equals, "prefix": prefix, "range": low or high or before}
    forms = [name for name, value in {**given, "starts_with": starts_with}.items() if value]
    if len(forms) > 1:
        raise CommandError("usage", "only one of --equals, --prefix, --from/--to, --starts-with")
    if not forms:
        return {}
    if forms[0] == "range":
        ends = {"low": low, "high": high or before}
        bounds: dict[str, Any] = {name: _values(end) for name, end in ends.items() if end}
        return {"range": {**bounds, "include_high": False} if before else bounds}
    if starts_with:
        *first, last = starts_with
        value = _value(last)
        return {"starts_with": [*_values(first), value if isinstance(value, str) else last]}
    return {forms[0]: _values(equals or prefix or ())}


def _values(texts: Iterable[str]) -> list[Any]:
    return [_value(text) for text in texts]


def _value(text: str) -> Any:
    """Return the JSON value that a text is, or the text."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text


def _one_of(option: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise CommandError("usage", f"{option} is one of {', '.join(choices)}")
    return text


def _consistency(text: str | None, at_least: str | None) -> Any:
    """Return the consistency as the API takes it."""
    mode = _one_of("--consistency", text or ("at-least" if at_least else "any"), CONSISTENCIES)
    if mode != "consistent" and (mode == "at-least") != (at_least is not None):
        raise CommandError("usage", "--consistency at-least and --at-least go together")
    if at_least is None:
        return mode.replace("-", "_")
    if not at_least.lstrip().startswith("{"):
        try:
            at_least = Path(at_least).read_text()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            text = f"--at-least takes a file, or JSON as {{…}}; {at_least[:100]}: {reason}"
            raise CommandError("usage", text) from error
    vector = _value(at_least)
    required = {"at_least": _positions(vector)}
    return {"consistent": 0, **required} if mode == "consistent" else required


def _positions(given: Any) -> dict[str, Any]:
    """Return positions in vbuckets, or offsets in the partitions of a topic. CommandError."""
    if isinstance(given, dict) and given.keys() == {"offsets"}:
        offsets = given["offsets"]
        if isinstance(offsets, dict) and all(map(_is_offset, offsets, offsets.values())):
            return given
    places = given.get("vbuckets", given) if isinstance(given, dict) else None
    if isinstance(places, dict) and all(map(_is_place, places, places.values())):
        return {"vbuckets": places}
    text = '--at-least is JSON: {"vbuckets": {"7": [vbuuid, seqno], …}}, or {"offsets": {"7": 41}}'
    raise CommandError("usage", text)


def _is_place(vbucket: str, place: Any) -> bool:
    """Tell whether this is the number of a vbucket with a vbuuid and a seqno."""
    return vbucket.isdecimal() and isinstance(place, list) and len(place) == 2


def _is_offset(partition: str, offset: Any) -> bool:
    return partition.isdecimal() and isinstance(offset, int)


def _resolve(client: "Client", index: str, bucket: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return how to name the index to the API, and what its key consists of."""
    found = find_index(client, index, bucket)["index"]
    return {"index_id": found["id"]}, found.get("expressions") or ["key"]


# What is shown.


def _show_count(session: Session, body: dict[str, Any]) -> None:
    if session.json:
        print_json(body)
    else:
        typer.echo(f"{body['count']} entries ({_given(body)})")


def _show_page(session: Session, body: dict[str, Any], columns: list[str]) -> None:
    if session.json:
        print_json(body)
        return
    _show_rows(body["rows"], columns)
    if body["rows"]:
        typer.echo(f"{_rows(len(body['rows']))} ({_given(body)})")
    if body["next"]:
        typer.echo(f"there are more: --all, or --after {plain(body['next'])}", err=True)


def _show_all(session: Session, rows: Iterator[dict[str, Any]], columns: list[str]) -> None:
    if session.json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    found = list(rows)
    _show_rows(found, columns)
    typer.echo(_rows(len(found)))


def _show_rows(rows: list[dict[str, Any]], columns: list[str]) -> None:
    print_table([*columns, "document"], map(_cells, rows), empty="no entries in that range")


def _cells(row: dict[str, Any]) -> list[str]:
    missing = row.get("missing", ())
    return [
        *("" if n in missing else _cell(value) for n, value in enumerate(row["key"])),
        row["id"],
    ]


def _cell(value: Any) -> str:
    """Return a value for a person: a string as it is, if it cannot be taken for anything else."""
    if isinstance(value, str) and value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _given(body: dict[str, Any]) -> str:
    given = body["consistency"]
    if given["mode"] == "consistent":
        return f"at stability timestamp {given['number']}"
    if given["mode"] == "last_good":
        return f"at the last good stability timestamp, {given['number']}"
    return str(given["mode"]).replace("_", " ")

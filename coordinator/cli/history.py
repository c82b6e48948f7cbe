"""`indexctl history`, `state`, `diff` and `watch`: who changed what, and the state at any time."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.moments import WHEN, cas_in, moment, ms_of
from coordinator.cli.output import (
    CommandError,
    console,
    plain,
    print_fields,
    print_json,
    print_table,
)
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from rich.text import Text

    from coordinator.client.client import Client

PAGE = 1_000
NEWEST = 20
FIRST_REACH = 1_000
STYLES = {
    "index": "cyan",
    "setting": "green",
    "bucket": "magenta",
    "stream": "blue",
    "rollback": "red",
    "rebalance": "blue",
    "topic": "yellow",
    "subscription": "yellow",
}
KINDS = "index, bucket, setting, stream, rollback, rebalance, consumed, topic"
VALUE_LENGTH_MAX = 200
BRIEF = ("expressions", "where", "state")
ABSENT: Any = object()

Names = list[str] | None


def only(what: str) -> Any:
    return typer.Option(metavar="X", help=f"Only {what}; repeat for more.")


Key = Annotated[Names, only("the entity under this key, such as config/app")]
Bucket = Annotated[Names, only("what belongs to this bucket")]
Index = Annotated[Names, only("the index of this id or name")]
Indexer = Annotated[list[int] | None, only("indexes with a slice on this indexer")]
State = Annotated[Names, only("indexes in this state before or after the change")]
Principal = Annotated[Names, only("what this principal asked for")]


def add_to(root: typer.Typer) -> None:
    """Add them to the root command."""
    command(root, "history")(history)
    command(root, "state")(state)
    command(root, "diff")(diff)
    command(root, "watch")(watch)


def history(
    session: Session,
    key: Key = None,
    kind: Annotated[Names, only(f"{KINDS} or subscription")] = None,
    bucket: Bucket = None,
    index: Index = None,
    indexer: Indexer = None,
    state: State = None,
    principal: Principal = None,
    request: Annotated[Names, only("what this request did")] = None,
    txn: Annotated[Names, only("this transaction")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only changes after this: {WHEN}.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Only changes up to this. Takes the same forms as --since."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, help=f"Show at most this many, the newest (default: {NEWEST})."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all, not only the newest.")
    ] = False,
) -> None:
    """Show who changed what: the newest changes that fit the filters, the oldest of them first.

    A change is shown if it matches every filter. A repeated filter matches any of its values. A
    filter for indexes is compared with the index before and after the change: one of them must
    match. A setting has the key config/KEY.
    """
    if everything and limit is not None:
        raise CommandError("usage", "--all or --limit, not both")
    filters: dict[str, Any] = {
        "key": key,
        "kind": kind,
        "bucket": bucket,
        "index": index,
        "indexer": indexer,
        "state": state,
        "principal": principal,
        "request": request,
        "txn": txn,
    }
    after, upper = 0, None
    if since is not None:
        after, filters["from_ms"] = _bound(since, "--since")
    if until is not None:
        cas, filters["to_ms"] = _bound(until, "--until")
        upper = cas if filters["to_ms"] is None else None
    with session.connect() as client:
        if everything:
            found = client.history_all(after=after, until=upper, limit=PAGE, **filters)
        else:
            found = iter(_newest(client, after, upper, limit or NEWEST, filters))
        shown = 0
        for event in found:
            shown += 1
            if session.json:
                typer.echo(json.dumps(event))
            else:
                console().print(_change_text(event), soft_wrap=True)
    if not shown and not session.json:
        typer.echo("no changes")


def _bound(text: str, option: str) -> tuple[int, int | None]:
    """Return a CAS and None, or 0 and a time in ms."""
    cas = cas_in(text, option)
    return (cas, None) if cas is not None else (0, ms_of(text, option))


def _newest(
    client: "Client", after: int, until: int | None, count: int, filters: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the last `count` changes that fit: further back is looked only where it must be."""
    now = client.history(after=2**53 - 1)["cas"]
    end = now if until is None else min(until, now)
    found: list[dict[str, Any]] = []
    reach = max(FIRST_REACH, 4 * count)
    while end > after and len(found) < count:
        begin = max(after, end - reach)
        part = client.history_all(after=begin, until=end, limit=PAGE, **filters)
        found = [*part, *found]
        end, reach = begin, reach * 4
    return found[-count:]


def _change_text(event: dict[str, Any]) -> "Text":
    """Return a change for people: a line of who and when, and what is not as it was."""
    from rich.text import Text

    text = Text()
    text.append(f"{event['cas']:>8}", "bold yellow").append(f"  {moment(event['at_ms'])}  ")
    text.append(plain(event["event"]), STYLES.get(event["kind"], ""))
    text.append(f"  {plain(event['key'])}", "bold")
    before = event["before"] if event["before_cas"] else ABSENT
    after = ABSENT if event["dropped"] else event["value"]
    text.append(_name_of(event["kind"], before if after is ABSENT else after))
    if event["principal"]:
        text.append(f"  by {plain(event['principal'])}")
    text.append(f"  txn {plain(event['txn'])}", "dim")
    if event.get("undoes"):
        text.append(f"  undoes to CAS {event['undoes']}", "magenta")
    for line in _lines(event["kind"], before, after):
        text.append("\n").append(" " * 10).append_text(line)
    return text


def _name_of(kind: str, value: Any) -> str:
    return f" ({plain(value['bucket'])}.{plain(value['name'])})" if kind == "index" else ""


def _brief(kind: str, value: Any) -> Any:
    """Return of an index what a person asks for first."""
    whole = kind != "index" or value is ABSENT
    return value if whole else {name: value[name] for name in BRIEF}


def _lines(kind: str, before: Any, after: Any) -> "Iterator[Text]":
    """Yield what differs between two values: field by field, where both are objects."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield _line("", _brief(kind, before), _brief(kind, after))
        return
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name, ABSENT), after.get(name, ABSENT)
        if old == new and type(old) is type(new):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            for inner in [*old, *(n for n in new if n not in old)]:
                if old.get(inner, ABSENT) != new.get(inner, ABSENT):
                    yield _line(f"{name}.{inner}", old.get(inner, ABSENT), new.get(inner, ABSENT))
        else:
            yield _line(name, old, new)


def _line(name: str, before: Any, after: Any) -> "Text":
    from rich.text import Text

    text = Text(f"{plain(name)}: " if name else "")
    if before is not ABSENT:
        text.append(f"- {_short(before)}", "red")
    if before is not ABSENT and after is not ABSENT:
        text.append("  ")
    if after is not ABSENT:
        text.append(f"+ {_short(after)}", "green")
    return text


def _short(value: Any) -> str:
    text = plain(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"


def watch(
    session: Session,
    key: Key = None,
    kind: Annotated[
        Names,
        only(f"{KINDS}, subscription, stability or members"),
    ] = None,
    bucket: Bucket = None,
    index: Index = None,
    indexer: Indexer = None,
    state: State = None,
    principal: Principal = None,
    after: Annotated[str, typer.Option(metavar="CAS|now|snapshot", help="Begin here.")] = "now",
) -> None:
    """Show changes as they happen, until Ctrl-C; after a failover it goes on by itself.

    Nothing is printed until something changes. With `--after CAS`, the changes above that CAS come
    first; with `--after snapshot`, every entity that exists. If --kind is only stability or
    members, it shows these and no changes.
    """
    cas = cas_in(after, "--after")
    if after not in ("now", "snapshot") and cas is None:
        raise CommandError("usage", f"--after: {after!r} is no CAS, and not now or snapshot")
    filters: dict[str, Any] = {
        "key": key,
        "kind": kind,
        "bucket": bucket,
        "index": index,
        "indexer": indexer,
        "state": state,
        "principal": principal,
    }
    begin = after if cas is None else cas
    with session.connect() as client, suppress(KeyboardInterrupt):
        told = client.members()
        if cas is not None and not session.json:
            _tell_wait(cas, told)
        for event in client.watch(begin, **filters):
            if session.json:
                typer.echo(json.dumps(event))
            elif shown := seen(event):
                console().print(shown, soft_wrap=True)


def _tell_wait(cas: int, members: dict[str, Any]) -> None:
    """Say so, if the cluster has not come to this CAS yet: the watch is silent until it has."""
    reached = max((m["cas"] for m in members["members"] if m["alive"]), default=cas)
    if reached < cas:
        text = f"the cluster is at CAS {reached}: waiting until it comes to CAS {cas}"
        typer.echo(text, err=True)


def seen(event: dict[str, Any]) -> "Text | None":
    """Return an event of a watch for people; None: it says nothing to them."""
    from rich.text import Text

    match event["type"]:
        case "change":
            return _change_text(event)
        case "snapshot":
            name = _name_of(event["kind"], event["value"])
            return Text(f"{event['cas']:>8}  {plain(event['key'])}{name}")
        case "snapshot_end":
            return Text(f"-- the state at CAS {event['cas']}; changes follow --", "dim")
        case "stability":
            number, hash_ = event["number"], event["hash"]
            return Text(f"stability of {plain(event['bucket'])}: number {number}, hash {hash_}")
        case "members":
            return Text(f"members: master {event['master']}, active {event['active']}")
        case _:
            return None


def state(
    session: Session,
    at: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"At this moment (default: now): {WHEN}.")
    ] = None,
) -> None:
    """Show the whole state: indexes, buckets and settings, as they are or as they were."""
    with session.connect() as client:
        if at is not None:
            client.members()  # A node waits for a CAS that is still to come: it is not dead.
        found = client.state(**_moment(at, "--at")) if at is not None else client.state()
    if session.json:
        print_json(found)
        return
    print_fields([("CAS", found["cas"]), ("digest", found["digest"])])
    rows = sorted(found["indexes"].values(), key=lambda i: (i["bucket"], i["name"]))
    print_table(
        ["id#", "bucket", "index", "state", "slices#", "cas#"],
        [
            [i["id"], i["bucket"], i["name"], i["state"], len(i["topology"]["slices"]), i["cas"]]
            for i in rows
        ],
        empty="no indexes",
    )
    print_table(
        ["bucket", "vbuckets#", "cas#"],
        [[name, b["vbuckets"], b["cas"]] for name, b in sorted(found["buckets"].items())],
        empty="no buckets",
    )
    print_table(
        ["setting", "value", "cas#"],
        [[name, _short(s["value"]), s["cas"]] for name, s in sorted(found["config"].items())],
        empty="no settings",
    )


def diff(
    session: Session,
    before: Annotated[str, typer.Argument(metavar="A", help=WHEN[0].upper() + WHEN[1:] + ".")],
    after: Annotated[
        str | None, typer.Argument(metavar="[B]", help="Takes the same forms as A (default: now).")
    ] = None,
) -> None:
    """Show what differs between two moments, by key: - is the value at A, + the value at B.

    What was changed in between, and changed back, does not differ: `indexctl history` shows it.
    """
    with session.connect() as client:
        client.members()
        first = cas_of(client, before, "A")
        found = client.diff(first, None if after is None else cas_of(client, after, "B"))
    if session.json:
        for row in found["changes"]:
            typer.echo(json.dumps(row))
        return
    typer.echo(f"CAS {found['from']} to {found['to']}: {len(found['changes'])} differ")
    for row in found["changes"]:
        console().print(differing(row), soft_wrap=True)


def differing(row: dict[str, Any]) -> "Text":
    """Return how an entity differs between two moments."""
    from rich.text import Text

    before = row["before"] if row["before_cas"] else ABSENT
    after = row["after"] if row["after_cas"] else ABSENT
    sign = "+" if before is ABSENT else "-" if after is ABSENT else "~"
    text = Text(f"{sign} ").append(plain(row["key"]), STYLES.get(row["kind"], "") or "bold")
    text.append(_name_of(row["kind"], before if after is ABSENT else after))
    for line in _lines(row["kind"], before, after):
        text.append("\n").append(" " * 4).append_text(line)
    return text


def cas_of(client: "Client", text: str, what: str) -> int:
    """Return the CAS of a moment."""
    moment = _moment(text, what)
    return moment["cas"] if "cas" in moment else int(client.state(**moment)["cas"])


def _moment(text: str, what: str) -> dict[str, Any]:
    """Return `{"cas"}` or `{"at_ms"}`. CommandError `usage`."""
    cas = cas_in(text, what)
    return {"cas": cas} if cas is not None else {"at_ms": ms_of(text, what)}

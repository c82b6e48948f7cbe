"""`indexctl kv`: shows the key-value store, moves its vbuckets, and injects faults into it."""

from typing import Annotated, Any

import typer

from coordinator.cli.output import CommandError, plain, print_json, print_table
from coordinator.cli.session import Session, command, tell

app = typer.Typer(
    help="Show the key-value store, move vbuckets, and inject faults.", no_args_is_help=True
)

KvUrl = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="URL",
        envvar="INDEXCTL_KV",
        help="The key-value store (default: the one that the projectors read).",
        rich_help_panel="Connection and output",
    ),
]
BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket.")]
Vbuckets = Annotated[
    str | None, typer.Option(metavar="0-3,7,…", help="Only these vbuckets.", show_default=False)
]
InBucket = Annotated[str | None, typer.Option("--bucket", "-b", help="Only this bucket.")]


@command(app, "buckets")
def buckets(session: Session, kv: KvUrl = None) -> None:
    """Show the buckets."""
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        body = store.get("buckets")
    if session.json:
        print_json(body)
        return
    print_table(
        ["bucket", "documents#", "vbuckets#", "nodes", "mutations#"],
        [
            [b["name"], b["documents"], b["vbuckets"], _joined(b["nodes"]), b["high_seqnos_sum"]]
            for b in body["buckets"]
        ],
        empty="no buckets: try `indexctl load travel airports`",
    )


@command(app, "nodes")
def nodes(session: Session, kv: KvUrl = None) -> None:
    """Show the nodes of the store, and how many vbuckets of each bucket they own."""
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        body = store.get("nodes")
    if session.json:
        print_json(body)
        return
    print_table(
        ["node#", "connections#", "vbuckets"],
        [
            [
                *(n["node"], n["connections"]),
                ", ".join(f"{count} of {name}" for name, count in n["vbuckets"].items()),
            ]
            for n in body["nodes"]
        ],
    )


@command(app, "connections")
def connections(session: Session, kv: KvUrl = None) -> None:
    """Show the connections that stream mutations."""
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        body = store.get("connections")
    if session.json:
        print_json(body)
        return
    columns = ("id", "kind", "bucket", "node", "vbuckets", "behind", "bytes")
    numbers = ("node", "vbuckets", "behind", "bytes")
    print_table(
        [f"{name}#" if name in numbers else name for name in columns],
        [[c[name] for name in columns] for c in body["connections"]],
        empty="no connections",
    )


@command(app, "move")
def move(
    session: Session,
    bucket: BucketName,
    to: Annotated[
        int, typer.Option("--to", metavar="NODE", min=0, help="The node that gets them.")
    ],
    vbuckets: Annotated[
        str | None, typer.Option(metavar="0-3,7,…", help="Which vbuckets.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Or this many, from the nodes that own most.")
    ] = None,
    source: Annotated[
        int | None,
        typer.Option("--from", metavar="NODE", min=0, help="With --count: from this node."),
    ] = None,
    kv: KvUrl = None,
) -> None:
    """Move vbuckets to a node. Their streams end, and begin again from that node."""
    body = {"to": to, "vbuckets": parse_vbuckets(vbuckets), "count": count, "source": source}
    if (vbuckets is None) == (count is None):
        raise CommandError("usage", "name either --vbuckets, or a --count of them")
    if source == to:
        raise CommandError("usage", f"node {to} has what it has: --from is another one")
    answer = _post(session, kv, "buckets", bucket, "move", body=body)
    tell(session, answer, plain(f"moved {len(answer['moved'])} vbuckets of {bucket} to node {to}"))


@command(app, "crash")
def crash(
    session: Session,
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="Which node.")],
    lose: Annotated[
        int, typer.Option(min=0, help="Lose this many of the last mutations of each vbucket.")
    ] = 0,
    bucket: InBucket = None,
    vbuckets: Vbuckets = None,
    kv: KvUrl = None,
) -> None:
    """Crash a node, which restarts at once: connections break, mutations may be lost."""
    body = {"lose": lose, "bucket": bucket, "vbuckets": parse_vbuckets(vbuckets)}
    answer = _post(session, kv, "nodes", node, "crash", body=body)
    broken, lost = answer["connections"], answer["lost"]
    tell(session, answer, plain(f"node {node}: {broken} connections broken, {lost} mutations lost"))


@command(app, "close")
def close(
    session: Session,
    connection: Annotated[str, typer.Argument(metavar="ID", help="As `kv connections` shows it.")],
    kv: KvUrl = None,
) -> None:
    """Close a connection that streams mutations."""
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        answer = store.delete("connections", connection)
    tell(session, answer, plain(f"closed {connection}"))


@command(app, "fault")
def fault(
    session: Session,
    kind: Annotated[str, typer.Argument(metavar="begin|end|sync|mutations")],
    action: Annotated[str, typer.Argument(metavar="drop|delay")],
    delay_ms: Annotated[int | None, typer.Option(min=1, help="With delay: how long.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="This many times (default: until removed).")
    ] = None,
    bucket: InBucket = None,
    vbuckets: Vbuckets = None,
    stream: Annotated[
        str | None,
        typer.Option(metavar="maintenance|backfill|catchup", help="Only streams of this kind."),
    ] = None,
    kv: KvUrl = None,
) -> None:
    """Drop or delay frames of streams. Mutations can be delayed, not dropped."""
    body = {
        "kind": kind,
        "action": action,
        "delay_ms": delay_ms,
        "count": count,
        "bucket": bucket,
        "vbuckets": parse_vbuckets(vbuckets),
        "stream": stream,
    }
    answer = _post(session, kv, "faults", body=body)
    tell(session, answer, plain(f"fault {answer['id']}: {action} {kind}"))


@command(app, "faults")
def faults(
    session: Session,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False,
    remove: Annotated[int | None, typer.Option(metavar="ID", help="Remove this one.")] = None,
    kv: KvUrl = None,
) -> None:
    """Show the active faults, or remove them."""
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        if clear or remove is not None:
            path = ("faults",) if clear else ("faults", remove or 0)
            answer = store.delete(*path)
            tell(session, answer, plain(f"removed {answer['removed']} faults"))
            return
        body = store.get("faults")
    if session.json:
        print_json(body)
        return
    columns = ("id", "kind", "action", "delay_ms", "bucket", "stream", "count", "hits")
    print_table(
        [*columns, "vbuckets"],
        [[*(f[name] for name in columns), _joined(f["vbuckets"])] for f in body["faults"]],
        empty="no faults",
    )


def _post(session: Session, kv: str | None, *path: str | int, body: dict[str, Any]) -> Any:
    from coordinator.cli.kv_client import connect

    with connect(session, kv) as store:
        return store.post(*path, body=body)


def parse_vbuckets(text: str | None) -> list[int] | None:
    """Return the vbuckets of `0-3,7`. CommandError `usage`."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(last) >= 1 << 15:
            raise CommandError("usage", f"{text}: vbuckets are numbers, like 0-3,7")
        if int(first) > int(last):
            raise CommandError("usage", f"{text}: {first} is above {last}")
        found |= set(range(int(first), int(last) + 1))
    return sorted(found)


def _joined(numbers: list[int] | None) -> str | None:
    return None if numbers is None else ", ".join(map(str, numbers))

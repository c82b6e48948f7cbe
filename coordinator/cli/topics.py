"""`indexctl topics`: named selections of changes, who subscribes to them, and who lags."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.history import (
    KINDS,
    Bucket,
    Index,
    Indexer,
    Key,
    Names,
    Principal,
    State,
    only,
    seen,
)
from coordinator.cli.output import console, plain, print_json, print_table
from coordinator.cli.session import Session, command, tell

if TYPE_CHECKING:
    from coordinator.client.client import Client

app = typer.Typer(
    help="List and manage topics (named selections of changes), and subscriptions to them.",
    no_args_is_help=False,
)

EXPIRES_S_MAX = 366 * 24 * 3_600
"""What the cluster takes at most."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Subscriber = Annotated[str, typer.Argument(metavar="ID", help="The subscriber's id.")]
Kind = Annotated[Names, only(f"{KINDS} or subscription")]
ENDED = {"unsubscribed": "unsubscribed", "expired": "expired: the subscriber was silent"}


@command(app, None)
def list_topics(session: Session) -> None:
    """List the topics."""
    with session.connect() as client:
        found = client.topics()
    if session.json:
        print_json(found)
        return
    print_table(
        ["topic", "filter", "subscriptions#", "cas#"],
        [[t["name"], _shown(t["filter"]), t["subscriptions"], t["cas"]] for t in found["topics"]],
        empty="no topics: try `indexctl topics add all-indexes --kind index`",
    )


@command(app, "add", no_args_is_help=True)
def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the topic.")],
    key: Key = None,
    kind: Kind = None,
    bucket: Bucket = None,
    index: Index = None,
    indexer: Indexer = None,
    state: State = None,
    principal: Principal = None,
) -> None:
    """Add a topic: the changes that match all of the filters; without filters, all changes."""
    with session.connect() as client:
        answer = client.add_topic(
            name,
            key=key,
            kind=kind,
            bucket=bucket,
            index=index,
            indexer=indexer,
            state=state,
            principal=principal,
        )
    tell(session, answer, f"added topic {plain(name)} (CAS {answer['cas']})")


@command(app, "remove", no_args_is_help=True)
def remove(
    session: Session,
    name: Topic,
    with_subscriptions: Annotated[
        bool, typer.Option("--with-subscriptions", help="Also remove its subscriptions.")
    ] = False,
) -> None:
    """Remove a topic. One that has subscriptions is kept, unless --with-subscriptions is given."""
    with session.connect() as client:
        answer = client.remove_topic(name, with_subscriptions=with_subscriptions)
    tell(session, answer, f"removed topic {plain(name)} (CAS {answer['cas']})")


@command(app, "subscribe", no_args_is_help=True)
def subscribe(
    session: Session,
    topic: Topic,
    subscriber: Subscriber,
    after: Annotated[
        int | None,
        typer.Option(metavar="CAS", min=0, help="The changes above this (default: from now on)."),
    ] = None,
    deliver_to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="KAFKA-TOPIC",
            help="Write the changes to this Kafka topic, each exactly once (default: the "
            "subscriber reads them with `receive`).",
        ),
    ] = None,
    expires_after_s: Annotated[
        float | None,
        typer.Option(
            "--expires-after",
            metavar="SECONDS",
            min=1,
            max=EXPIRES_S_MAX,
            help="Expire if the subscriber neither receives nor acknowledges for so long "
            "(default: never).",
        ),
    ] = None,
    key: Key = None,
    kind: Kind = None,
    bucket: Bucket = None,
    index: Index = None,
    indexer: Indexer = None,
    state: State = None,
    principal: Principal = None,
) -> None:
    """Subscribe to a topic: to those of its changes that match all of the filters.

    The cluster keeps the subscription and its position: the CAS up to which the subscriber has
    acknowledged changes. Any `receive` under the same id resumes after that position, also after a
    crash of the subscriber or of nodes.
    """
    expires_after_ms = None if expires_after_s is None else int(expires_after_s * 1000)
    with session.connect() as client:
        answer = client.subscribe(
            topic,
            subscriber,
            after=after,
            deliver_to=deliver_to,
            expires_after_ms=expires_after_ms,
            key=key,
            kind=kind,
            bucket=bucket,
            index=index,
            indexer=indexer,
            state=state,
            principal=principal,
        )
    made = answer["subscription"]
    tell(
        session,
        answer,
        f"subscribed {plain(subscriber)} to {plain(topic)}, to the changes above CAS "
        f"{made['after']}",
    )


@command(app, "unsubscribe", no_args_is_help=True)
def unsubscribe(session: Session, topic: Topic, subscriber: Subscriber) -> None:
    """End a subscription. No change above the CAS that this prints is delivered."""
    with session.connect() as client:
        answer = client.unsubscribe(topic, subscriber)
    text = f"unsubscribed {plain(subscriber)} from {plain(topic)} (CAS {answer['cas']})"
    tell(session, answer, text)


@command(app, "subscribers", no_args_is_help=True)
def subscribers(session: Session, topic: Topic) -> None:
    """List the subscriptions of a topic, with their position and lag.

    acknowledged: the position, a CAS. behind: how many changes wait, or how many CAS. for: how
    long the oldest of them has waited. to: the Kafka topic, or `receives`. problem: why delivery to
    Kafka fails.
    """
    with session.connect() as client:
        found = client.subscriptions(topic)
    if session.json:
        print_json(found)
        return
    print_table(
        ["id", "filter", "to", "state", "acknowledged#", "behind#", "for#", "problem"],
        [
            [
                *(s["id"], _shown(s["filter"]), s["deliver_to"] or "receives", s["state"]),
                *(s["acknowledged"], _behind(s["lag"]), _duration(s["lag"]["ms"])),
                s["problem"] or "",
            ]
            for s in found["subscriptions"]
        ],
        empty=f"no subscriptions: try `indexctl topics subscribe {topic} ID`",
    )


@command(app, "receive", no_args_is_help=True)
def receive(
    session: Session,
    topic: Topic,
    subscriber: Subscriber,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Acknowledge nothing: the next `receive` shows the same."),
    ] = False,
) -> None:
    """Show the changes of a subscription as they happen, until Ctrl-C or its end.

    Prints nothing until there is a change that matches. Acknowledges what it has shown; the next
    `receive` under this id resumes after that.
    """
    with session.connect() as client, suppress(KeyboardInterrupt):
        client.members()
        with _received(client, topic, subscriber, not keep) as events:
            for event in events:
                if session.json:
                    typer.echo(json.dumps(event))
                elif event["type"] in ENDED:
                    typer.echo(f"-- {ENDED[event['type']]} at CAS {event['cas']} --")
                elif shown := seen(event):
                    console().print(shown, soft_wrap=True)


@contextmanager
def _received(
    client: "Client", topic: str, subscriber: str, acknowledge: bool
) -> Iterator[Iterator[dict[str, Any]]]:
    """Close what is received also on Ctrl-C: what was shown is acknowledged then."""
    events = client.receive(topic, subscriber, acknowledge=acknowledge)
    try:
        yield events
    finally:
        events.close()


@command(app, "ack", no_args_is_help=True)
def ack(
    session: Session,
    topic: Topic,
    subscriber: Subscriber,
    cas: Annotated[
        int, typer.Argument(metavar="CAS", min=0, help="The last CAS that was processed.")
    ],
) -> None:
    """Acknowledge all changes up to a CAS. A lower CAS than before changes nothing."""
    with session.connect() as client:
        answer = client.acknowledge(topic, subscriber, cas)
    tell(session, answer, f"{plain(subscriber)} has all up to CAS {answer['acknowledged']}")


def _shown(filters: dict[str, list[Any]]) -> str:
    parts = (f"{name}={','.join(map(str, values))}" for name, values in sorted(filters.items()))
    return plain(" ".join(parts) or "all")


def _behind(lag: dict[str, Any]) -> str:
    if lag["changes"] is None:
        return f"{lag['cas']} CAS"
    return str(lag["changes"])


def _duration(ms: int | None) -> str:
    return "long" if ms is None else f"{ms / 1000:.1f} s" if ms else ""

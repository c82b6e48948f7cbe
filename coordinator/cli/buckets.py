"""`indexctl buckets`: Kafka topics as buckets, and the buckets of the key-value store."""

from typing import Annotated, Any

import typer

from coordinator.cli.output import plain, print_fields, print_json, print_table
from coordinator.cli.session import Session, command, tell

app = typer.Typer(
    help="List the buckets; add Kafka topics as buckets, and remove them.",
    no_args_is_help=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the bucket.")]


@command(app, None)
def list_buckets(session: Session) -> None:
    """List the buckets that are added, or that have indexes."""
    with session.connect() as client:
        found = client.buckets()
    if session.json:
        print_json(found)
        return
    print_table(
        ["bucket", "source", "format", "partitions#", "indexes#", "unreadable#", "problem"],
        [_row(bucket) for bucket in found["buckets"]],
        empty="no buckets: add a topic with "
        "`indexctl buckets add orders --topic orders --format json`",
    )


@command(app, "add", no_args_is_help=True)
def add(
    session: Session,
    name: Name,
    topic: Annotated[str, typer.Option(help="The Kafka topic that has the documents.")],
    format: Annotated[
        str,
        typer.Option(help="What its records are: json, avro, debezium-json or debezium-avro."),
    ] = "json",
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="The schema registry, for Avro.")
    ] = None,
) -> None:
    """Add a Kafka topic as a bucket: its records are the documents, their keys the ids."""
    with session.connect() as client:
        answer = client.add_bucket(name, topic=topic, format=format, registry=registry)
    count = answer["bucket"]["vbuckets"]
    noun = "partition" if count == 1 else "partitions"
    text = f"added bucket {plain(name)}: {count} {noun} of topic {plain(topic)}"
    tell(session, answer, f"{text} (CAS {answer['cas']})")


@command(app, "show", no_args_is_help=True)
def show(session: Session, name: Name) -> None:
    """Show a bucket, and what the projectors say of its topic."""
    with session.connect() as client:
        answer = client.bucket(name)
    if session.json:
        print_json(answer)
        return
    bucket = answer["bucket"]
    source = bucket["source"] or {}
    print_fields(
        [
            ("bucket", bucket["name"]),
            ("topic", source.get("topic", "none: the key-value store has it")),
            ("format", source.get("format", "")),
            ("registry", source.get("registry") or ""),
            ("partitions", bucket["vbuckets"]),
            ("read again", source.get("reading", "")),
            ("indexes", bucket["indexes"]),
            ("cas", bucket["cas"]),
        ]
    )
    if source:
        print_table(
            ["projector#", "partitions#", "unreadable#", "problem"],
            [
                [p["projector"], p["owned"], p["unreadable"], p["problem"] or ""]
                for p in bucket["projectors"]
            ],
            empty="no projector reads it",
        )


@command(app, "remove", no_args_is_help=True)
def remove(session: Session, name: Name) -> None:
    """Remove a bucket of a topic that has no indexes. The topic stays as it is."""
    with session.connect() as client:
        answer = client.remove_bucket(name)
    tell(session, answer, f"removed bucket {plain(name)} (CAS {answer['cas']})")


def _row(bucket: dict[str, Any]) -> list[Any]:
    source = bucket["source"]
    readers = bucket["projectors"]
    problems = sorted({p["problem"] for p in readers if p["problem"]})
    return [
        bucket["name"],
        f"topic {source['topic']}" if source else "key-value store",
        source["format"] if source else "",
        bucket["vbuckets"],
        bucket["indexes"],
        sum(p["unreadable"] for p in readers) if source else "",
        ", ".join(problems) or ("no projector reads it" if source and not readers else ""),
    ]

"""`indexctl`: run a cluster, and talk to one.

Every command imports what it needs when it runs: `--help` and the commands that only talk HTTP
must not load Kafka, Faust, RocksDB or the SQL parser.
"""

import json
import re
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli import (
    alter,
    backup,
    buckets,
    data,
    history,
    members,
    plot,
    rebalance,
    rollbacks,
    scan,
    sql,
    timestamps,
    topics,
    undo,
)
from coordinator.cli.definition_options import Bucket, Expressions, Nodes, Replicas, Where
from coordinator.cli.extras import require
from coordinator.cli.json_values import read_json
from coordinator.cli.kafka_options import kafka_at
from coordinator.cli.lookup import find_index, refuse_statement
from coordinator.cli.output import (
    CommandError,
    Exit,
    fail,
    plain,
    print_fields,
    print_json,
    print_table,
)
from coordinator.cli.session import AsJson, Session, Timeout, Url, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.client.client import Client, Consistency

DATA_DIR = Path(".indexctl")


class Example(StrEnum):
    """What a new cluster can have."""

    TRAVEL = "travel"
    ORDERS = "orders"
    NONE = "none"


app = typer.Typer(
    name="indexctl",
    help="Run a cluster of the Index Coordinator, and manage its indexes.",
    epilog="Exit codes: 0 done · 1 refused or failed · 2 wrong usage · 3 not found · "
    "4 conflict (exists already, other CAS) · 5 unavailable or timed out · 130 Ctrl-C. "
    "After 5 and 130 a write may still have taken effect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Read and change the settings of the cluster.", no_args_is_help=True)

IfMatch = Annotated[
    int | None,
    typer.Option(
        "--if-match",
        metavar="CAS",
        min=0,
        help="Only if it has this CAS (version); 0: if it does not exist.",
    ),
]
Local = Annotated[
    bool,
    typer.Option("--local", help="Read what the asked node has applied; it may be stale."),
]


@app.callback()
def root(
    context: typer.Context, url: Url = None, timeout: Timeout = None, as_json: AsJson = False
) -> None:
    context.obj = {"url": url, "timeout": timeout, "as_json": as_json}


# The cluster itself.


@command(app, "run", local=True)
def run(
    session: Session,
    nodes: Annotated[int, typer.Option(min=1, max=250, help="Number of coordinator nodes.")] = 3,
    indexers: Annotated[int, typer.Option(min=1, max=250, help="Number of indexers.")] = 3,
    projectors: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Number of projectors, each with a node of the key-value store; 0: no store.",
        ),
    ] = 2,
    example: Annotated[
        Example,
        typer.Option(
            help="What a new cluster has: the airports of the world in its store (travel), or the "
            "orders of a shop in a Kafka topic (orders).",
        ),
    ] = Example.TRAVEL,
    no_example: Annotated[
        bool, typer.Option("--no-example", help="The same as --example none.")
    ] = False,
    timestamps: Annotated[
        bool,
        typer.Option(
            "--timestamps/--no-timestamps",
            help="Start the Spark application that computes stability timestamps.",
        ),
    ] = True,
    spark_master: Annotated[
        str, typer.Option(help="Where Spark runs its tasks on this machine, such as local[2].")
    ] = "local[2]",
    archive: Annotated[
        bool,
        typer.Option(
            "--archive", help="Start the Spark application that archives all events, for `sql`."
        ),
    ] = False,
    http_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            help="Port of node 1; the next ports are the other nodes' and the store's.",
        ),
    ] = 8600,
    data_dir: Annotated[Path, typer.Option(help="Folder for all data and logs.")] = DATA_DIR,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…", help="Use this Kafka instead of starting one."),
    ] = None,
    kafka_conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --bootstrap-servers: how to log in there (a file with sasl.…, ssl.…).",
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="Name of the cluster, the prefix of its topics.")
    ] = "default",
    not_durable: Annotated[
        bool,
        typer.Option(
            "--not-durable",
            help="Make topics that Kafka does not flush before it acknowledges: a power failure "
            "may lose changes.",
        ),
    ] = False,
    brokers: Annotated[
        int,
        typer.Option(min=1, max=5, help="Kafka brokers to start; 3 survive the death of one."),
    ] = 1,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="With --bootstrap-servers: replication factor of new topics (1)."),
    ] = None,
    log_capacity: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="At the first start: how many transactions `transactions` can show (1,000).",
        ),
    ] = None,
    sync_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_024,
            help="At the first start: partitions of sync, stream-begin and stream-end (4).",
        ),
    ] = None,
    request_window_ms: Annotated[
        int | None,
        typer.Option(
            min=1_000,
            help="At the first start: how long the outcome of a request is kept (600,000).",
        ),
    ] = None,
    history_retention: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Move changes that are older, such as 30d, from Kafka to --history-archive.",
        ),
    ] = None,
    history_archive: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder for old changes; needed with --bootstrap-servers "
            "(history-archive in the data folder).",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further host name of the cluster, such as that of a proxy; repeat for more.",
        ),
    ] = None,
) -> None:
    """Run a whole cluster in the foreground, until Ctrl-C.

    Starts Kafka, a key-value store, the coordinator nodes, indexers, projectors and the Spark
    application that computes stability timestamps, each in its own process. Loads the example.

    Ctrl-C stops all of them and keeps the data. A second Ctrl-C kills what still runs.
    `indexctl reset` deletes the data.
    """
    require("server", *(("streaming",) if timestamps or archive else ()))
    from coordinator.embedded import supervisor

    options = supervisor.RunOptions(
        nodes=nodes,
        indexers=indexers,
        projectors=projectors,
        example=(Example.NONE if no_example else example).value,
        timestamps=timestamps,
        spark_master=spark_master,
        archive=archive,
        http_port=http_port,
        data_dir=data_dir,
        bootstrap_servers=kafka_at(bootstrap_servers, kafka_conf),
        cluster=_cluster_name(cluster),
        durable=not not_durable,
        brokers=brokers,
        replication_factor=replication_factor,
        log_capacity=log_capacity,
        sync_partitions=sync_partitions,
        request_window_ms=request_window_ms,
        history_retention=history_retention,
        history_archive=history_archive,
        allowed_hosts=tuple(map(_host_name, allowed_host or ())),
    )
    raise typer.Exit(supervisor.run(options))


def _host_name(text: str) -> str:
    from coordinator.runtime.http_guard import host_name

    return _checked("--allowed-host", host_name, text)


def _cluster_name(text: str) -> str:
    from coordinator.runtime.arguments import cluster

    return _checked("--cluster", cluster, text)


def _checked(option: str, check: "Callable[[str], str]", text: str) -> str:
    """Return what a check of the processes' own command lines makes of an option's value."""
    from argparse import ArgumentTypeError

    try:
        return check(text)
    except ArgumentTypeError as error:
        raise CommandError("usage", f"{option} {text}: {error}") from None


@command(app, "reset", local=True)
def reset(
    session: Session,
    data_dir: Annotated[Path, typer.Option(help="The folder to delete.")] = DATA_DIR,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the data folder of a cluster that `run` made. Stop `run` first."""
    require("server")
    from coordinator.embedded import supervisor

    supervisor.check_data_folder(data_dir)
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("usage", "reset deletes all data: confirm it with --yes")
        typer.confirm(f"Delete the cluster in {data_dir.resolve()}?", abort=True, err=True)
    supervisor.reset(data_dir)
    if session.json:
        print_json({"reset": str(data_dir)})
    else:
        typer.echo(f"deleted the cluster in {data_dir}")


@command(app, "status")
def status(session: Session) -> None:
    """Show the master, nodes, indexers and projectors, and whether the nodes' digests agree.

    A digest is a hash over the whole state of a node. Exits with 1 if two nodes at the same CAS
    have different digests.
    """
    from coordinator.cli import status as view

    with session.connect() as client, session.probe() as probe:
        found = view.gather(client, probe)
    if session.json:
        print_json(found)
    else:
        view.show(found)
    if found["digests"] == "differ":
        raise typer.Exit(Exit.FAILED)


# Indexes.


@command(app, "create", no_args_is_help=True)
def create(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|STATEMENT", help="A name, or a whole CREATE INDEX statement."),
    ] = None,
    bucket: Bucket = None,
    expressions: Expressions = None,
    where: Where = None,
    primary: Annotated[
        bool, typer.Option("--primary", help="A primary index: its key is the document's id.")
    ] = False,
    using: Annotated[str | None, typer.Option(help="The index method: only gsi.")] = None,
    slices: Annotated[
        int | None,
        typer.Option(min=1, help="Number of slices; with bounds, a multiple of the ranges."),
    ] = None,
    replicas: Replicas = None,
    nodes: Nodes = None,
    defer_build: Annotated[
        bool, typer.Option("--defer-build", help="Leave it empty until `indexctl build`.")
    ] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if an index of this name exists.")
    ] = False,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="JSON",
            help="Partition by ranges: another range begins at this key, such as "
            "'\"M\"' or '[\"M\", 1]'; repeat for more.",
        ),
    ] = None,
) -> None:
    """Create an index, from options or from one statement.

    indexctl create by_city --bucket travel --on city --on country

    indexctl create 'CREATE INDEX by_city ON travel(city, country)'
    """
    from coordinator.language import ddl_parser

    if name and re.search(r"\s", name):  # No name has white space, and every statement has.
        if any((bucket, expressions, where, primary, using, slices, nodes, defer_build, bounds)):
            raise CommandError("usage", "a statement takes no other options")
        statement = ddl_parser.parse_statement(name)
        if not isinstance(statement, ddl_parser.CreateIndex):
            raise CommandError("usage", "that is no CREATE INDEX; see `indexctl apply`")
    else:
        if not bucket:
            raise CommandError("usage", "an index needs --bucket")
        if primary == bool(expressions):
            raise CommandError("usage", "an index needs --on EXPR, or --primary without it")
        if not name and not primary:
            raise CommandError("usage", "an index needs a name")
        statement = ddl_parser.CreateIndex(
            name=name or ddl_parser.PRIMARY_NAME,
            bucket=bucket,
            expressions=tuple(
                ddl_parser.normalise_expression(text, key=True) for text in expressions or ()
            ),
            where=ddl_parser.normalise_expression(where) if where else None,
            primary=primary,
            using=using,
            slices=slices,
            replicas=replicas,
            nodes=tuple(nodes) if nodes else None,
            defer_build=defer_build,
            if_not_exists=if_not_exists,
            partitioning="range" if bounds else None,
            bounds=tuple(map(_bound, bounds)) if bounds else None,
        )
    with session.connect() as client:
        body = client.create_index(statement.to_request())
    if session.json:
        print_json(body)
        return
    index = body["index"]
    outcome = "exists" if body.get("existed") else "created"
    typer.echo(
        plain(
            f"{outcome} {index['name']} on {index['bucket']}: "
            f"id {index['id']}, {index['state']}, cas {body['cas']}"
        )
    )


def _bound(text: str) -> tuple[Any, ...]:
    """Return the key that a slice begins at; a single component may stand by itself."""
    value = _json_value("--bound", text)
    return tuple(value) if isinstance(value, list) else (value,)


@command(app, "build")
def build(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|ID]…", help="Names, with --bucket or as bucket.name; or ids."
        ),
    ] = None,
    bucket: Bucket = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until they answer scans.")
    ] = False,
) -> None:
    """Build the named indexes, or all deferred indexes of --bucket.

    With --wait and without names, waits for the other builds of --bucket, too. Waits for --timeout
    seconds (default: without limit), and exits with 1 if a build failed. Ctrl-C ends the wait, not
    the build.
    """
    from coordinator.cli import build as builds

    with session.connect() as client:
        body = builds.begin(client, bucket, names or ())
        found = body["indexes"]
        if wait:
            if bucket and not names:
                known = {index["id"] for index in found}
                more = builds.underway(client, bucket)
                found = [*found, *(index for index in more if index["id"] not in known)]
            found = builds.watch(client, found, deadline_s=session.timeout_s, quiet=session.json)
    if session.json:
        print_json({**body, "indexes": found})
    else:
        print_table(
            ["id#", "bucket", "name", "state", "reason"],
            [[i["id"], i["bucket"], i["name"], i["state"], i.get("reason")] for i in found],
            empty=(
                f"bucket {plain(bucket)} has no deferred indexes"
                if bucket and not names
                else "nothing to build"
            ),
        )
    if any(index["state"] == "error" for index in found):
        raise typer.Exit(Exit.FAILED)


@command(app, "drop")
def drop(
    session: Session,
    index: Annotated[
        str,
        typer.Argument(
            metavar="BUCKET.NAME|ID", help="A name needs its bucket, or --bucket; or an id."
        ),
    ],
    bucket: Bucket = None,
    if_match: IfMatch = None,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if there is none.")
    ] = False,
) -> None:
    """Drop an index, by name and bucket or by id."""
    from coordinator.client.errors import CoordinatorError

    if bucket is None and not index.isdecimal() and "." not in index:
        refuse_statement("drop", index)
        text = f"in which bucket is {index}? Give bucket.{index}, --bucket, or an id"
        raise CommandError("usage", text)
    with session.connect() as client:
        try:
            index_id = _id_of(client, index, bucket)
            body = client.drop_index(index_id, expected_cas=if_match)
        except (CoordinatorError, CommandError) as error:
            if error.code != "index_not_found" or not if_exists:
                raise
            body = {"index": None, "existed": False}
    if session.json:
        print_json(body)
    elif body["index"] is None:
        typer.echo(f"absent {plain(index)}")
    else:
        gone = body["index"]
        typer.echo(plain(f"dropped {gone['name']} on {gone['bucket']}: cas {body['cas']}"))


def _id_of(client: "Client", index: str, bucket: str | None) -> str:
    """Return the id of the index to drop, which a name alone does not say."""
    if bucket is None and index.isdecimal():
        return index
    found = find_index(client, index, bucket, consistency="linearizable", needs_bucket=True)
    return str(found["index"]["id"])


@command(app, "list")
def list_(
    session: Session,
    bucket: Bucket = None,
    local: Local = False,
) -> None:
    """List the indexes, with the progress of their builds."""
    from coordinator.cli import build as builds

    with session.connect() as client:
        body = client.list_indexes(bucket, consistency=_consistency(local))
    if session.json:
        print_json(body)
        return
    print_table(
        [
            "id#",
            "bucket",
            "name",
            "state",
            "progress",
            "keys",
            "where",
            "slices#",
            "replicas#",
            "cas#",
        ],
        [
            [
                *(index["id"], index["bucket"], index["name"], _state_of(index)),
                *(builds.how(index), _keys_of(index), index.get("where"), *_shape_of(index)),
                index.get("cas"),
            ]
            for index in body["indexes"]
        ],
        empty="no indexes: try `indexctl apply examples/travel.sql`",
    )


@command(app, "show")
def show(
    session: Session,
    index: Annotated[str, typer.Argument(metavar="[BUCKET.]NAME|ID", help="A name, or an id.")],
    bucket: Bucket = None,
    local: Local = False,
) -> None:
    """Show an index and the indexers of its slices."""
    from coordinator.cli import build as builds

    with session.connect() as client:
        body = find_index(client, index, bucket, consistency=_consistency(local))
    if session.json:
        print_json(body)
        return
    found = body["index"]
    print_fields(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("bucket", found["bucket"]),
            ("state", _state_of(found)),
            ("progress", builds.how(found)),
            ("keys", _keys_of(found)),
            ("where", found.get("where")),
            ("using", found.get("using")),
            ("bounds", _bounds_of(found)),
            ("cas", body["cas"]),
        ]
    )
    slices = (found.get("topology") or {}).get("slices", [])
    print_table(
        ["slice#", "master", "replicas"],
        [[s["slice"], s["master"], _joined(s["replicas"])] for s in slices],
        empty="no slices",
    )


def _consistency(local: bool) -> "Consistency":
    return "local" if local else "linearizable"


def _state_of(index: dict[str, Any]) -> str:
    deferred = index.get("defer_build") and index["state"] == "ready"
    return f"{index['state']}, deferred" if deferred else str(index["state"])


def _keys_of(index: dict[str, Any]) -> str:
    return "primary" if index.get("primary") else ", ".join(index.get("expressions") or ())


def _bounds_of(index: dict[str, Any]) -> str:
    """Return where the slices of an index begin, if they are ranges."""
    bounds = (index.get("topology") or {}).get("bounds") or ()
    return ", ".join(json.dumps(bound, ensure_ascii=False) for bound in bounds)


def _shape_of(index: dict[str, Any]) -> tuple[int, int]:
    """Return how many slices there are, and how many replicas each has."""
    slices = (index.get("topology") or {}).get("slices", [])
    return len(slices), max((len(s["replicas"]) for s in slices), default=0)


@command(app, "apply")
def apply(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A script; - is standard input.")],
    keep_going: Annotated[
        bool, typer.Option("--keep-going", "-k", help="Go on after a statement that failed.")
    ] = False,
) -> None:
    """Execute the CREATE, ALTER, BUILD and DROP INDEX statements of a file.

    Parses the whole file first, then executes one statement after the other. Stops at the first
    error. Exits with 1 if a statement failed, with 5 if no node answered.
    """
    from coordinator.cli import apply as script
    from coordinator.language import ddl_parser

    statements = ddl_parser.parse_script(script.read_script(file))
    results = []
    with session.connect() as client:
        for result in script.apply(client, statements, keep_going=keep_going):
            results.append(result)
            if len(results) == 1 and result.error and result.error["code"] == "unreachable":
                raise CommandError("unavailable", result.error["message"], result.error["details"])
            if not session.json and result.outcome != script.SKIPPED:
                progress = f"[{len(results)}/{len(statements)}] {result.outcome} {result.name}"
                typer.echo(plain(f"{progress} ({result.seconds:.2f} s)"), err=True)
    failed = [result for result in results if result.error]
    if session.json:
        print_json({"failed": len(failed), "results": [result.as_json() for result in results]})
    else:
        _show_results(results)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _show_results(results: list[Any]) -> None:
    print_table(
        ["line#", "statement", "index", "bucket", "outcome", "id#", "cas#", "reason"],
        [
            [
                *(r.line, r.verb, r.name, r.bucket, r.outcome, r.id, r.cas),
                f"{r.error['message']} [{r.error['code']}]" if r.error else r.state,
            ]
            for r in results
        ],
        empty="the script has no statements",
    )
    counts: dict[str, int] = {}
    for result in results:
        counts[result.outcome] = counts.get(result.outcome, 0) + 1
    if counts:
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        noun = "statement" if len(results) == 1 else "statements"
        typer.echo(f"{len(results)} {noun}: {summary}")


@command(app, "txn")
def txn(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON; - is standard input.")],
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="A repeat with it gets the first answer.")
    ] = None,
) -> None:
    """Change several settings and indexes at once, if others are as expected.

    FILE is an object with three lists, each of which may be missing: compare, then, else. If all
    comparisons hold, all operations of `then` are executed, otherwise all of `else`. They are one
    transaction: all of them take effect, or none does. Exits with 4 if a comparison did not hold.
    See docs/http-api.md for the form.

    Example: {"compare": [{"key": "config/lock", "cas": 0}], "then": [{"put": {"key":
    "config/lock", "value": "me"}}]}
    """
    from coordinator.cli.transact import read_transaction, show_transaction

    given = read_transaction(file)
    compare, then, otherwise = (given.get(part, []) for part in ("compare", "then", "else"))
    with session.connect() as client:
        answer = client.transact(compare, then, otherwise, request_id)
    if session.json:
        print_json(answer)
    else:
        show_transaction(given, answer)
    if not answer["succeeded"]:
        raise typer.Exit(Exit.CONFLICT)


# What the cluster does.


@command(app, "transactions")
def transactions(
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most this many.")
    ] = 20,
) -> None:
    """Show the latest transactions, newest first."""
    with session.connect() as client:
        body = client.transactions(limit)
    if session.json:
        print_json(body)
        return
    print_table(
        ["txn", "status", "cas#", "participants", "reason"],
        [
            [t["txn"], t["status"], t.get("cas"), _joined(t.get("participants")), t.get("reason")]
            for t in body["transactions"]
        ],
        empty="no transactions yet",
    )


def _joined(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


REMOVE = "remove"
Removing = Annotated[
    str | None, typer.Argument(metavar="[remove ID]", help="Leave out to show them.")
]
RemovedId = Annotated[int | None, typer.Argument(metavar="", hidden=True)]


def _is_removal(action: str | None, number: int | None) -> bool:
    """Tell whether one is to be removed. CommandError `usage`: neither that, nor nothing."""
    if action is None:
        return False
    if action != REMOVE or number is None:
        raise CommandError("usage", f"only `{REMOVE} ID` may follow, or nothing")
    return True


@command(app, "indexers")
def indexers(session: Session, action: Removing = None, number: RemovedId = None) -> None:
    """Show the indexers, with their slices and bytes; or remove one that is gone.

    `indexctl indexers remove 2` makes the cluster forget indexer 2. It must be stopped, and hold
    nothing: drain it before. If its process is started again, it registers again.
    """
    from coordinator.cli import status as view

    with session.connect() as client:
        if _is_removal(action, number):
            assert number is not None
            _removed(session, client.remove_indexer(number))
            return
        body = client.indexers()
    if session.json:
        print_json(body)
        return
    view.show_indexers(body["indexers"])


def _removed(session: Session, answer: dict[str, Any]) -> None:
    if session.json:
        print_json(answer)
    else:
        typer.echo(f"{answer['kind']} {answer['id']} is removed")


@command(app, "projectors")
def projectors(session: Session, action: Removing = None, number: RemovedId = None) -> None:
    """Show the projectors; or remove one that is gone.

    `indexctl projectors remove 1` makes the cluster forget projector 1, which must be stopped.
    If its process is started again, it registers again.
    """
    from coordinator.cli import status as view

    with session.connect() as client:
        if _is_removal(action, number):
            assert number is not None
            _removed(session, client.remove_projector(number))
            return
        body = client.projectors()
    if session.json:
        print_json(body)
    else:
        view.show_projectors(body["projectors"])


app.add_typer(members.app, name="members")
app.add_typer(topics.app, name="topics")
app.add_typer(buckets.app, name="buckets")
members.add_step_down(app)
alter.add_to(app)
data.add_to(app)
scan.add_to(app)
timestamps.add_to(app)
rollbacks.add_to(app)
rebalance.add_to(app)
history.add_to(app)
undo.add_to(app)
backup.add_to(app, DATA_DIR)
plot.add_to(app)
sql.add_to(app, DATA_DIR)

# Settings.

app.add_typer(config_app, name="config")
Key = Annotated[str, typer.Argument(metavar="KEY", help="The name of the setting.")]


@command(config_app, "get")
def config_get(session: Session, key: Key, local: Local = False) -> None:
    """Show a setting."""
    with session.connect() as client:
        body = client.get_config(key, consistency=_consistency(local))
    _show_setting(session, body)


@command(config_app, "set", context_settings={"ignore_unknown_options": True})
def config_set(
    session: Session,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="JSON", help="Any JSON value.")],
    if_match: IfMatch = None,
) -> None:
    """Write a JSON value under a key.

    indexctl config set retention_days 30

    indexctl config set greeting '"hello"'
    """
    parsed = _json_value(f"config set {key}", value)
    with session.connect() as client:
        body = client.put_config(key, parsed, if_match)
    _show_setting(session, body)


@command(config_app, "delete")
def config_delete(session: Session, key: Key, if_match: IfMatch = None) -> None:
    """Delete a setting."""
    with session.connect() as client:
        body = client.delete_config(key, if_match)
    if session.json:
        print_json(body)
    else:
        typer.echo(plain(f"deleted {key}: cas {body['cas']}"))


@command(config_app, "list")
def config_list(session: Session, local: Local = False) -> None:
    """List the settings."""
    with session.connect() as client:
        body = client.list_config(consistency=_consistency(local))
    if session.json:
        print_json(body)
        return
    print_table(
        ["key", "value", "cas#"],
        [
            [key, json.dumps(entry["value"], ensure_ascii=False), entry["cas"]]
            for key, entry in sorted(body["config"].items())
        ],
        empty="no settings",
    )


def _show_setting(session: Session, body: dict[str, Any]) -> None:
    if session.json:
        print_json(body)
        return
    value = json.dumps(body["value"], ensure_ascii=False)
    typer.echo(plain(f"{body['key']} = {value} (cas {body['cas']})"))


def _json_value(before: str, text: str) -> Any:
    """Return the JSON value of an argument; `before` is what stands before it."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        quoted = json.dumps(text, ensure_ascii=False)
        message = f"{text} is not JSON. For a string, quote it: {before} '{quoted}'"
        raise CommandError("usage", message) from None


def main() -> None:
    """Run the command line. What is mistyped has a code, too, and is JSON where that is asked."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        typer.echo("Aborted.", err=True)
        sys.exit(Exit.FAILED)
    except Exception as error:
        message = getattr(error, "format_message", None)  # Of a mistake in the arguments.
        if message is None:
            raise
        _show_mistake(error, message())
        sys.exit(Exit.USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _show_mistake(error: Any, message: str) -> None:
    """Show a mistake in the arguments; where there are none, the help."""
    as_json = "--json" in sys.argv[1:]
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
        error.show()
        return
    context = getattr(error, "ctx", None)
    if context is not None and not as_json:
        typer.echo(context.get_usage(), err=True)
    with suppress(typer.Exit):
        fail("usage", message, as_json=as_json)


if __name__ == "__main__":
    main()

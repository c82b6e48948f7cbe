"""`indexctl status`: the cluster at a glance, and whether its nodes hold the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from coordinator.cli.output import plain, print_fields, print_table
from coordinator.cli.survey import survey
from coordinator.runtime.arguments import duration_text

if TYPE_CHECKING:
    from coordinator.client.client import Client


def gather(client: Client, probe: Client) -> dict[str, Any]:
    """Return the status, as the node knows it that knows most. `probe` asks each for its own."""
    found = survey(client, probe)
    members = found.best
    state = client.state(consistency="local", node=found.url)
    nodes = [_node(probe, member) for member in found.rows]
    by_state = Counter(index.get("state", "?") for index in state["indexes"].values())
    return {
        "cluster_id": state["cluster_id"],
        "epoch": members["epoch"],
        "master": members["master"],
        "mastership": members["mastership"],
        "cas": max([state["cas"], *(n["cas"] for n in nodes if n["cas"] is not None)]),
        "digests": _agreement(nodes),
        "silent": found.silent,
        "history_retention": found.of_master.get("history_retention"),
        "nodes": nodes,
        "indexers": client.indexers()["indexers"],
        "projectors": client.projectors()["projectors"],
        "indexes": {"total": sum(by_state.values()), "by_state": dict(sorted(by_state.items()))},
    }


def _node(probe: Client, member: dict[str, Any]) -> dict[str, Any]:
    """Return `member` with the CAS and digest it answers; without a digest if it is silent."""
    from coordinator.client.errors import CoordinatorError

    digest = None
    if member.get("alive") and member.get("address"):
        try:
            own = probe.state(consistency="local", node=member["address"])
            member, digest = {**member, "cas": own["cas"]}, own["digest"]
        except CoordinatorError:
            member = {**member, "alive": False}
    return {"cas": None, **member, "digest": digest}


def _agreement(nodes: list[dict[str, Any]]) -> str:
    """Return agree, differ or unknown: nodes at the same CAS must have the same digest."""
    seen = {(node["cas"], node["digest"]) for node in nodes if node["digest"] is not None}
    if not seen:
        return "unknown"
    return "agree" if len(seen) == len({cas for cas, _ in seen}) else "differ"


def show(status: dict[str, Any]) -> None:
    nodes, indexes = status["nodes"], status["indexes"]
    answering = [node for node in nodes if node["digest"] is not None]
    behind = sum(node["cas"] < status["cas"] for node in answering)
    agreement = f"{status['digests']} ({len(answering)} of {len(nodes)} nodes answered"
    agreement += f", {behind} behind)" if behind else ")"
    states = ", ".join(f"{count} {state}" for state, count in indexes["by_state"].items())
    print_fields(
        [
            ("cluster", status["cluster_id"]),
            ("epoch", status["epoch"]),
            ("master", master_text(status)),
            ("cas", status["cas"]),
            ("digests", agreement),
            ("indexes", f"{indexes['total']} ({states})" if states else "none"),
            ("history", history_text(status["history_retention"])),
            *silent_field(status["silent"]),
        ]
    )
    show_members(nodes)
    show_indexers(status["indexers"])
    show_projectors(status["projectors"])


def master_text(body: dict[str, Any]) -> str:
    """Return who is master; where nobody is, or it cannot write, why."""
    standing = body["mastership"]
    master = str(body["master"]) if body["master"] and standing["state"] == "elected" else "none"
    return f"{master} ({standing['message']})" if standing["message"] else master


def history_text(retained: dict[str, Any] | None) -> str:
    """Return where the history is, and why none of it goes, if the master cannot let it go."""
    if retained is None:
        return "all of it in Kafka"
    age, oldest = duration_text(retained["retention_ms"]), retained["oldest_cas"]
    text = f"archived after {age}"
    text += f", in Kafka from CAS {oldest} on" if oldest is not None else ""
    return f"{text} (stays in Kafka: {retained['error']})" if retained["error"] else text


def silent_field(silent: list[Any]) -> list[tuple[str, str]]:
    """Return the line that names who did not answer; none if all did."""
    return [("silent", f"node {', '.join(map(str, silent))}")] if silent else []


def show_members(members: list[dict[str, Any]]) -> None:
    """Print the members; with their digests where they are known."""
    with_digest = any("digest" in member for member in members)
    columns = ["node", "role", "state", "alive", "cas#", "pid#", "address"]
    keys = ["node", "role", "state", "alive", "cas", "pid", "address"]
    rows = [[member.get(key) for key in keys] for member in members]
    if with_digest:
        columns.append("digest")
        rows = [[*row, (m.get("digest") or "")[:16]] for row, m in zip(rows, members, strict=True)]
    print_table(columns, rows, empty="no members")


def show_indexers(indexers: list[dict[str, Any]]) -> None:
    columns = ["indexer", "zone", "alive", "slices#", "bytes#", "address"]
    keys = ["id", "zone", "alive", "slices", "bytes", "address"]
    rows = [[_count(indexer.get(key)) for key in keys] for indexer in indexers]
    print_table(columns, rows, empty="no indexers")


def show_projectors(projectors: list[dict[str, Any]]) -> None:
    columns = ["projector", "alive", "pid#", "store", "buckets without a stream"]
    rows = [
        [one["id"], one["alive"], one["pid"], one.get("kv"), ", ".join(one.get("waiting", ()))]
        for one in projectors
    ]
    print_table(columns, rows, empty="no projectors")
    problems = {name: text for one in projectors for name, text in _problems(one)}
    for name, text in sorted(problems.items()):
        typer.echo(plain(f"bucket {name}: {text}"))


def _problems(projector: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Return what is wrong with topics, as a projector says that is alive."""
    return projector.get("problems", {}).items() if projector["alive"] else ()


def _count(value: Any) -> Any:
    """Return how many there are, where the API lists them."""
    return len(value) if isinstance(value, list | dict) else value

"""Asks all nodes about the cluster, and chooses the most recent answer.

A node that has just started, or is cut off, still shows the master and epoch that it last read. So
every node is asked. Epochs only go up, so the highest one is the newest. Of the nodes that report
it, the answer of the one with the highest applied CAS counts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.client.client import Client

PROBE_DEADLINE_S = 4.0
"""So long a node may take that others are compared with."""

ASKED_AT_ONCE_MAX = 16

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Survey:
    """`best` is the answer to `GET /v1/members` that counts, and `url` that of its node.

    `answers` are all of them, by URL; `silent` are the nodes of the roster that gave none.
    """

    best: Body
    url: str
    answers: dict[str, Body] = field(default_factory=dict)
    silent: list[Any] = field(default_factory=list)

    @property
    def of_master(self) -> Body:
        """The master's own answer; an empty one if there is none."""
        master = self.best["master"]
        of_it = (body for body in self.answers.values() if body.get("node") == master)
        return next(of_it, {}) if master else {}

    @property
    def rows(self) -> list[Body]:
        """The members as `best` has them, each with its state and CAS as it says itself."""
        own = {body.get("node"): _own(body) for body in self.answers.values()}
        urls = {body.get("node"): url for url, body in self.answers.items()}
        rows = []
        for row in self.best["members"]:
            said = own.get(row["node"]) or {}
            fresh = {key: said[key] for key in ("state", "cas", "digest", "reason") if key in said}
            rows.append({**row, **fresh, "address": row.get("address") or urls.get(row["node"])})
        return rows


def survey(client: Client, probe: Client) -> Survey:
    """Ask every node that is known, or becomes known by the answers. `client` waits for the first
    answer, `probe` does not wait for long. CoordinatorError: nobody answers."""
    client.members()
    answers: dict[str, Body] = {}
    asked: dict[str, None] = {}
    waiting = client.nodes
    while waiting:
        asked |= dict.fromkeys(waiting)
        with ThreadPoolExecutor(min(len(waiting), ASKED_AT_ONCE_MAX)) as threads:
            found = zip(waiting, threads.map(lambda url: _ask(probe, url), waiting), strict=True)
            answers.update({url: body for url, body in found if body is not None})
        named = [m.get("address") for body in answers.values() for m in body["members"]]
        waiting = list(dict.fromkeys(url for url in named if url and url not in asked))
    if not answers:
        url = client.nodes[0]
        return _believed({url: client.members(node=url)})
    return _believed(answers)


def _ask(probe: Client, url: str) -> Body | None:
    from coordinator.client.errors import CoordinatorError

    try:
        return probe.members(node=url)
    except CoordinatorError:
        return None


def _believed(answers: dict[str, Body]) -> Survey:
    url = max(answers, key=lambda url: _rank(answers[url]))
    best = answers[url]
    heard = {body.get("node") for body in answers.values()}
    heard |= {m["node"] for m in best["members"] if m.get("address") in answers}
    nodes = [m["node"] for m in best["members"]]
    silent = [node for node in nodes if node not in heard]
    return Survey(best, url, answers, silent)


def _rank(body: Body) -> tuple[int, int, bool]:
    """Return how much an answer is worth: it knows of the newest epoch, and its node has applied
    the most; of equals, one that hears the master."""
    cas = int(_own(body).get("cas") or 0)
    return body["epoch"], cas, body["mastership"]["state"] == "elected"


def _own(body: Body) -> Body:
    """Return the row in which a node tells of itself."""
    rows = (row for row in body["members"] if row["node"] == body.get("node"))
    return next(rows, {})

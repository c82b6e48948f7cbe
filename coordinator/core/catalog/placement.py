"""Which indexer holds which slice of a new index.

Pure and deterministic: the least loaded indexer first (`loads` says what that is), ties by id.
Copies of a slice lie on different indexers, and in different zones for as long as there are unused
zones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.core.model.entities import Slice

MISSING_MAX = 64
"""How many absent indexers a refusal names: it has to fit into a reply."""


class Candidate(NamedTuple):
    """A live indexer that can take slices; `zone` is empty where zones are not used."""

    id: int
    zone: str


class Impossible(NamedTuple):
    """Why no placement exists, for the client."""

    message: str
    details: dict[str, object]


def place(
    slices: int,
    replicas: int,
    wanted: Sequence[int],
    candidates: Sequence[Candidate],
    load: Mapping[int, int],
    each: int = 1,
) -> tuple[Slice, ...] | Impossible:
    """Return the topology of a new index, or why there is none.

    `wanted` names the indexers to use; empty means all `candidates`. `load` is what each bears
    already, and `each` what a copy adds to it. Each slice gets one master and `replicas` copies.
    """
    alive = {candidate.id: candidate for candidate in candidates}
    missing = sorted(set(wanted) - set(alive))[:MISSING_MAX]
    if missing:
        text = f"indexers {missing} are not alive, or may take nothing"
        return Impossible(text, {"missing": missing, "alive": sorted(alive)})
    chosen = [alive[i] for i in sorted(set(wanted))] if wanted else list(alive.values())
    copies = replicas + 1
    if copies > len(chosen):
        return Impossible(
            f"{replicas} replicas need {copies} indexers, and {len(chosen)} are there",
            {"replicas": replicas, "indexers": sorted(c.id for c in chosen)},
        )
    held = {candidate.id: load.get(candidate.id, 0) for candidate in chosen}
    return tuple(_place_one(number, copies, chosen, held, each) for number in range(slices))


def _place_one(
    number: int, copies: int, chosen: list[Candidate], held: dict[int, int], each: int
) -> Slice:
    """Place the copies of one slice, and count them into `held`.

    The least loaded first, one in each zone; if the zones do not suffice, those passed over are
    next, in the same order. `chosen` is left in the order of the load before: the next time it is
    almost sorted.
    """
    chosen.sort(key=lambda candidate: (held[candidate.id], candidate.id))
    hosts: list[int] = []
    passed_over: list[int] = []
    zones: set[str] = set()
    for candidate in chosen:
        if len(hosts) == copies:
            break
        if candidate.zone and candidate.zone in zones:
            passed_over.append(candidate.id)
        else:
            hosts.append(candidate.id)
            zones.add(candidate.zone)
    hosts += passed_over[: copies - len(hosts)]
    for host in hosts:
        held[host] += each
    return Slice(number, hosts[0], tuple(hosts[1:]))

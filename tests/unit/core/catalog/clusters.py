"""Random clusters of few slices on few indexers, with whatever a plan has to cope with."""

from __future__ import annotations

from random import Random

from coordinator.core.catalog.layouts import Machine, Piece
from coordinator.core.catalog.loads import Load

LOST = 251
"""No indexer has this number."""

Cluster = tuple[list[Piece], list[Machine]]


def random_cluster(rng: Random, pieces_max: int = 8, machines_max: int = 5) -> Cluster:
    """Some are drained or lost, or too small; slices have too few copies, or name their hosts."""
    ids = rng.sample(range(LOST), rng.randint(2, machines_max))
    takers = [i for i in ids if rng.random() > 0.15] or ids[:1]
    kind = rng.choice(("even", "skewed", "equal"))
    pieces = [
        _random_piece(rng, number, ids, takers, kind)
        for number in range(rng.randint(2, pieces_max))
    ]
    size = sum(piece.load.bytes * piece.copies for piece in pieces) / len(ids)
    bounded = rng.random() < 0.3
    zones = rng.choice(([""], ["a", "b"], ["a", "b", "c"], ["", "a"]))
    machines = [
        Machine(
            i, rng.choice(zones), int(size * rng.uniform(1.2, 2)) if bounded else 0, i in takers
        )
        for i in ids
    ]
    return pieces, machines


def _random_piece(rng: Random, number: int, ids: list[int], takers: list[int], kind: str) -> Piece:
    def value() -> int:
        if kind == "even":
            return rng.randint(1, 1000)
        return int(rng.paretovariate(1) * 100) if kind == "skewed" else 500

    copies = rng.randint(1, min(2, len(takers)))
    hosts = tuple(rng.sample([*ids, LOST], rng.randint(1, 2)))
    named = frozenset(rng.sample(takers, copies) + rng.sample(ids, 1))
    return Piece(
        1,
        number,
        hosts[:1] if rng.random() < 0.6 else hosts,
        Load(value(), value(), rng.choice((0, value()))),
        copies,
        named if rng.random() < 0.15 else None,
    )

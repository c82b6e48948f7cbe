"""Faults by name: a simulator's table says of each whom it may strike, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A fault that strikes at random: `befall` is done to each of those that `whom` chooses.

    `whom` also says how the trace names them.
    """

    whom: Callable[[Any], tuple[Iterable[Any], str]]
    befall: Callable[[Any, Any], object]


Table = Mapping[str, Fault]


def one_of(name: str) -> Callable[[Any], tuple[Iterable[Any], str]]:
    """Return what chooses one of the actors that a world has under this name."""
    return lambda world: ((world.clock.chance.choice(getattr(world, name)),), "")


def at_large(befall: Callable[[Any], object]) -> Fault:
    """Return a fault of the world, not of an actor in it."""
    return Fault(lambda world: ((world,), ""), lambda world, _: befall(world))

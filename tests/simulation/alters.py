"""Clients that alter indexes in the simulator, and what the judge requires of them.

In a share of the worlds. Their bucket is their own: what the names in it do is told by the laws
here, and not by the model of names that are only created and dropped.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from coordinator.core.model.commands import AlterIndex, CreateIndex, DropIndex, Outcome, Request
from coordinator.core.model.entities import DROPPING, ERROR, INIT, MAINTENANCE, READY, Index
from coordinator.core.model.records import Mutation
from tests.simulation.actors import Client, DdlWriter, request_of
from tests.simulation.kernel.violation import require

if TYPE_CHECKING:
    from tests.simulation.judge import Judge

SHARE, REST = 10, 8
BUCKET = "ab"
ONE_INDEX = "a-name-has-one-index"
LOSSLESS = "a-switch-loses-nothing"


def alters_in(seed: int) -> bool:
    """Tell whether clients of this seed's world alter indexes."""
    return seed % SHARE == REST


def a_command(chance: Random) -> CreateIndex | DropIndex | AlterIndex:
    """Return a random command about a few names: most of them alter what is there."""
    name = f"a{chance.randrange(3)}"
    dice = chance.random()
    if dice < 0.35:
        return CreateIndex(
            name=name,
            bucket=BUCKET,
            expressions=(chance.choice("xy"),),
            slices=2,
            replicas=chance.randint(0, 1),
            defer_build=chance.random() < 0.3,
        )
    if dice < 0.45:
        return DropIndex(0, BUCKET, name)
    return AlterIndex(
        bucket=BUCKET,
        name=name,
        new_name=f"a{chance.randrange(3)}" if chance.random() < 0.4 else None,
        expressions=(chance.choice("xyz"),) if chance.random() < 0.6 else None,
        replicas=chance.randint(0, 1) if chance.random() < 0.4 else None,
    )


class Alterer(Client):
    """Creates, alters and drops indexes."""

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        return a_command(self.world.clock.chance), None


class AlterWriter(DdlWriter):
    """Writes such commands to the `ddl` topic, beside all else."""

    def _new(self) -> Request:
        world = self.world
        if not world.clock.hit(0.5):
            return super()._new()
        self._made += 1
        request_id, _ = world.request_id(f"t-{self._made}")
        return request_of(a_command(world.clock.chance), request_id, "topic", None, True)


# -- the laws --------------------------------------------------------------------------------------


def check_switch(judge: Judge, mutation: Mutation, was: Index, now: Index) -> None:
    """An index takes the place of another only when it is as far as that, and is not lost itself.

    The other one is as it was before the transaction, or dropped by it already.
    """
    first = judge.entities.get(f"index/{was.replaces}")
    text = f"{now.id} in {now.state} takes the place of {first}"
    require(first is not None and first[2].state != DROPPING, LOSSLESS, text)
    assert first is not None
    idle = now.state == READY and first[2].state in (READY, ERROR)
    require(now.state == MAINTENANCE or idle, LOSSLESS, text)
    require(mutation.event in ("IndexReady", "IndexBuilt"), LOSSLESS, mutation.event)
    judge.replaced.add(first[2].id)


def check_end(judge: Judge, mutation: Mutation, was: Index) -> None:
    """An index goes because somebody drops it, or because its own request fails, or because another
    has just taken its place: for nothing else."""
    match mutation.event:
        case "IndexReplaced":
            require(was.id in judge.replaced, LOSSLESS, f"{was.id} is replaced by nobody")
        case "IndexUndone":
            own = was.state == INIT or bool(was.replaces)
            require(own, LOSSLESS, f"{was.id} is undone in {was.state}")


def check_names(judge: Judge) -> None:
    """After each transaction a name has one index, and what replaces an index finds it there."""
    held = [v[2] for v in judge.entities.values() if isinstance(v[2], Index)]
    names: dict[tuple[str, str], int] = {}
    alive = {index.id: index for index in held if index.state != DROPPING}
    for index in alive.values():
        if index.replaces:
            first = alive.get(index.replaces)
            found = first is not None and not first.replaces
            require(found, ONE_INDEX, f"{index.id} replaces {index.replaces}, which is {first}")
            continue
        if index.part_of:
            continue
        key = (index.bucket, index.name)
        require(key not in names, ONE_INDEX, f"{key}: {names.get(key)} and {index.id}")
        names[key] = index.id
    require(names == judge.names, ONE_INDEX, f"{names} are found by {judge.names}")
    promised = [(i.bucket, i.name, i.replaces) for i in alive.values() if i.replaces]
    for bucket, name, first_id in promised:
        holder = names.get((bucket, name))
        free = holder in (None, first_id)
        require(free, ONE_INDEX, f"{name} is promised, and {holder} has it")
    require(len({first_id for *_, first_id in promised}) == len(promised), ONE_INDEX, f"{promised}")


def is_as_asked(mutation: Mutation, request: Request) -> bool:
    """Tell whether what an ALTER was answered with is what it asked for, and was done by it."""
    command, index = request.command, mutation.entity
    assert isinstance(command, AlterIndex)
    if not isinstance(index, Index) or index.replaces or index.state == DROPPING:
        return False
    at_once = mutation.event == "IndexAltered" and mutation.request == request.id
    ended = mutation.event in ("IndexReady", "IndexBuilt") and index.request == request.id
    return (at_once or ended) and (
        index.name == (command.new_name or command.name)
        and command.expressions in (None, index.expressions)
        and command.replicas in (None, max(len(piece.replicas) for piece in index.slices))
    )


def refused_about(command: AlterIndex, outcome: Outcome) -> tuple[Any, int | None]:
    """Return the name that a refusal is about, and which index it says to have it."""
    if outcome.code == "index_exists":
        return (command.bucket, command.new_name), int(outcome.details["id"])
    return (command.bucket, command.name), 0 if outcome.code == "index_not_found" else None

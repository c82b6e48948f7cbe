"""A world in which copies of slices move between indexers, and some moves are cancelled."""

from __future__ import annotations

from typing import Any

from coordinator.core.model.commands import BeginRebalance, CancelRebalance, PlannedMove
from coordinator.core.model.entities import (
    DROPPING,
    MAINTENANCE,
    MOVE_DONE,
    NOWHERE,
    Index,
    Rebalance,
    index_key,
)
from tests.simulation.actors import Client
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.violation import require
from tests.simulation.plane.losing import LosingWorld
from tests.simulation.plane.world import INDEXERS

MOVES_MAX = 4


class Mover(Client):
    """Asks for moves: of copies that there are, and of some that there are not."""

    reads = 0.0
    recorded = (BeginRebalance,)

    def begin(self) -> None:
        """Wait until there is something that can move."""
        if self.left > 0 and not self._indexes():
            self.world.clock.at(200, self.begin)
            self.left -= self.world.healed
        else:
            super().begin()

    def _indexes(self) -> list[Index]:
        """Return what may move: as a rule, indexes that are built."""
        held = [entity for _, _, entity in self.world.judge.entities.values()]
        indexes = [i for i in held if isinstance(i, Index) and not i.part_of]
        built = [i for i in indexes if i.state == MAINTENANCE]
        others = [i for i in indexes if i.state != DROPPING]
        return built if built and self.world.clock.chance.random() < 0.9 else others

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        chance = self.world.clock.chance
        held = (entity for _, _, entity in self.world.judge.entities.values())
        running = [e.id for e in held if isinstance(e, Rebalance) and not e.is_over]
        if running and chance.random() < 0.3:
            return CancelRebalance(running[0]), None
        indexes = self._indexes()
        moves = tuple(self._move(indexes) for _ in range(chance.randint(1, MOVES_MAX)))
        return BeginRebalance(moves if indexes else ()), None

    def _move(self, indexes: list[Index]) -> PlannedMove:
        chance = self.world.clock.chance
        index = chance.choice(indexes)
        number = chance.randrange(len(index.slices))
        hosts = self._hosts(index, number)
        others = [i for i in range(INDEXERS) if i not in hosts] or [chance.randrange(INDEXERS)]
        source = chance.choice(sorted(hosts) or [NOWHERE])
        if chance.random() < 0.1:
            source = NOWHERE
        return PlannedMove(index.id, number, source, chance.choice(others))

    def _hosts(self, index: Index, number: int) -> set[int]:
        """Return who has a copy of a slice, or is about to."""
        held = (entity for _, _, entity in self.world.judge.entities.values())
        parts = [e for e in held if isinstance(e, Index) and e.part_of == index.id]
        return {host for one in (index, *parts) for host in one.slices[number].hosts}


class MoveWitness(Actor):
    """Looks at each step of each move."""

    def __init__(self, world: MovingWorld) -> None:
        self.world = world
        self._position = 0
        self._seen: dict[str, Any] = {}
        self.taken_over = 0
        world.broker["history"].listeners.append(self._moved)

    def unsettled(self) -> str:
        held = (entity for _, _, entity in self.world.judge.entities.values())
        running = [e for e in held if isinstance(e, Rebalance) and not e.is_over]
        return f"{running[0]} goes on" if running else ""

    def _moved(self) -> None:
        """Fold what was committed; look after each transaction whether each slice is held."""
        history = self.world.broker["history"]
        for stored in history.read(self._position):
            event = stored.value
            key, entity = event.mutation.key, event.mutation.entity
            before = self._seen.get(key)
            if entity is None:
                self._seen.pop(key, None)
            else:
                self._seen[key] = entity
            if event.mutation.event == "MoveBuilt" and event.index == event.count - 1:
                self._taken_over(before, entity)
        self._position = history.stable

    def conclude(self) -> None:
        """Each part belongs to a move that was carried out, and to an index that is there."""
        held = [entity for _, _, entity in self.world.judge.entities.values()]
        indexes = {e.id: e for e in held if isinstance(e, Index)}
        moves = [m for e in held if isinstance(e, Rebalance) for m in e.moves]
        for part in indexes.values():
            done = [m for m in moves if m.part == part.id and m.state == MOVE_DONE]
            require(
                not part.part_of or (part.part_of in indexes and bool(done)),
                "a-part-is-of-something",
                f"{part}",
            )

    def _taken_over(self, before: Rebalance, rebalance: Rebalance) -> None:
        """A copy leaves, for which another one serves.

        One that has taken over earlier may have lost its storage since, and be built again.
        """
        self.taken_over += 1
        for was, move in zip(before.moves, rebalance.moves, strict=True):
            index = self._seen.get(index_key(move.index))
            if not isinstance(index, Index) or index.state != MAINTENANCE:
                continue
            parts = [
                one
                for one in self._seen.values()
                if isinstance(one, Index) and one.part_of == index.id and one.state != DROPPING
            ]
            hosts = [h for one in (index, *parts) for h in one.slices[move.slice].hosts]
            leaving = {h for one in (index, *parts) for h in one.slices[move.slice].leaving}
            sources = {
                other.source
                for other in rebalance.moves
                if (other.index, other.slice) == (move.index, move.slice)
            }
            serving = [
                h
                for one in (index, *parts)
                if one.state == MAINTENANCE
                for h in one.slices[move.slice].serving
            ]
            is_served = bool(serving) or was.state == move.state
            require(
                is_served and len(hosts) == len(set(hosts)) and leaving <= sources,
                "each-slice-has-its-copies",
                f"slice {move.slice} of index {index.id} is on {hosts}, {serving} serve",
            )


class MovingWorld(LosingWorld):
    """All of a world with a data plane, in which slices move; in half of them the store loses."""

    option = "--moves "

    def __init__(self, seed: int, **more: Any) -> None:
        super().__init__(seed, store_loses=seed % 2 == 0, **more)

    def _populate(self) -> None:
        super()._populate()
        chance = self.clock.chance
        self.config["drain_ms"] = chance.choice((100, 1_000, 3_000))
        self.moves = self.join(MoveWitness(self))
        self.join(Mover(self, 7, chance.randint(2, 8)))

    def conclude(self) -> None:
        super().conclude()
        self.moves.conclude()

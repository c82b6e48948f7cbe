"""Clients' transactions in the simulator: who asks for them, and what the judge requires of them.

In a share of the worlds. Their settings and their bucket are their own, so that each value that is
seen elsewhere is still explained by a command of one entity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from coordinator.core.catalog import state as states
from coordinator.core.history.changes import fold, whole_transactions
from coordinator.core.history.undo import plan_undo, transactions_of
from coordinator.core.model.commands import (
    OK,
    AlterIndex,
    Comparison,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Operation,
    Outcome,
    PutSetting,
    Request,
    Transact,
)
from coordinator.core.model.entities import Index, setting_key
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas
from tests.simulation.actors import EFFECTS, Client, DdlWriter, Op, request_of
from tests.simulation.kernel.violation import require

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.judge import Judge

SHARE, REST = 5, 2
UNDOES = 0.2
BUCKET = "tb"
SETTINGS = ("t0", "t1", "t2")
WHOLE, LEADS_BACK = "a-transaction-is-whole", "an-undo-leads-back"


def transactions_in(seed: int) -> bool:
    """Tell whether clients of this seed's world ask for transactions."""
    return seed % SHARE == REST


def a_transaction(chance: Random, request_id: str, known: dict[str, int]) -> Transact:
    """Return a random transaction; what it expects is what its client knows, or a guess."""
    if chance.random() < 0.25:
        # It shares a group with those that only compare what it writes.
        return Transact(then=(PutSetting(SETTINGS[2], f'"{request_id} alone"'),))
    compared, named = chance.choice(SETTINGS), f"i{chance.randrange(3)}"
    comparisons = [
        Comparison(key=setting_key(compared), cas=Cas(known.get(setting_key(compared), 0)))
    ]
    if chance.random() < 0.3:
        comparisons.append(Comparison(bucket=BUCKET, name=named, cas=Cas(known.get(named, 0))))
    then: list[Operation] = [PutSetting(name, f'"{request_id} then"') for name in SETTINGS[:2]]
    dice = chance.random()
    if dice < 0.3:
        then.append(CreateIndex(name=named, bucket=BUCKET, expressions=("x",), slices=2))
        then.append(CreateIndex(name=f"{named}_too", bucket=BUCKET, expressions=("x",)))
    elif dice < 0.5:
        then.append(DropIndex(0, BUCKET, named))
        then.append(CreateIndex(name=named, bucket=BUCKET, expressions=("y",)))
    elif dice < 0.6:
        then.append(DropIndex(0, BUCKET, named))
        then.append(DropIndex(0, BUCKET, f"{named}_too"))
    elif dice < 0.8:
        # One index gets the name of another that is dropped, or a name that is free.
        given, new = (f"{named}_too", named) if dice < 0.65 else (named, f"{named}_as")
        if dice < 0.65:
            then.append(DropIndex(0, BUCKET, named))
        then.append(AlterIndex(bucket=BUCKET, name=given, new_name=new))
    otherwise: list[Operation] = []
    if chance.random() < 0.5:
        otherwise.append(PutSetting(SETTINGS[0], f'"{request_id} else"'))
        otherwise.append(
            DeleteSetting(SETTINGS[2])
            if chance.random() < 0.3
            else PutSetting(SETTINGS[2], f'"{request_id} else"')
        )
    return Transact(compare=tuple(comparisons), then=tuple(then), otherwise=tuple(otherwise))


def an_undo(world: Cluster, target: int, chance: Random) -> Transact | None:
    """Return what leads back to a moment, as the node that is asked would plan it; None: nothing.

    Of what is the transactors' own: others keep count of their settings.
    """
    node = world.machines[target].node
    judge = world.judge
    if node is None or not judge.commits:
        return None
    to = Cas(chance.choice(judge.commits)[1])
    now, then = node.state, states.EMPTY
    for transaction in whole_transactions(judge.events):
        if transaction[-1].cas <= to:
            then, _ = fold(then, transaction)
    own = {setting_key(name) for name in SETTINGS}
    own |= {i.key for state in (then, now) for i, _ in state.indexes() if i.bucket == BUCKET}
    undo = plan_undo(then, now, own)
    return transactions_of(undo, to, in_steps=False)[0] if undo.steps else None


class Transactor(Client):
    """Asks for transactions; what it is told tells it what to expect next time."""

    def __init__(self, world: Cluster, number: int, operations: int) -> None:
        super().__init__(world, number, operations)
        self.doomed = False

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        chance = self.world.clock.chance
        undone = an_undo(self.world, self.target, chance) if chance.random() < UNDOES else None
        command = undone or a_transaction(chance, request_id, self.known)
        self.world.judge.transacts[request_id] = command
        return command, None

    def _finish(self, outcome: Outcome) -> None:
        if outcome.status == OK:
            found = (*outcome.answer["compared"], *outcome.answer["results"])
            self.known.update({row["key"]: row["cas"] for row in found if row["key"]})
            named = (row for row in outcome.answer["compared"] if row.get("name"))
            self.known.update({row["name"]: row["cas"] for row in named})
        super()._finish(outcome)


class TransactionWriter(DdlWriter):
    """Writes transactions to the `ddl` topic, beside all else."""

    def _new(self) -> Request:
        world = self.world
        if not world.clock.hit(0.3):
            return super()._new()
        self._made += 1
        request_id, _ = world.request_id(f"t-{self._made}")
        known = {key: held[0] for key, held in world.judge.entities.items()}
        command = a_transaction(world.clock.chance, request_id, known)
        world.judge.transacts[request_id] = command
        return request_of(command, request_id, "topic", None, True)


# -- the law -------------------------------------------------------------------------------------


def check_effects(judge: Judge, changes: Iterable[tuple[Mutation, int]]) -> None:
    """Look at what a committed transaction is about to change, before the judge applies it.

    All changes of one branch come together and in order, and the branch is the one that the
    comparisons choose in the state before.
    """
    by_request: dict[str, list[Mutation]] = {}
    branches: dict[str, tuple[Operation, ...]] = {}
    earlier: dict[str, int] = {}
    for mutation, cas in changes:
        request_id = mutation.request
        if mutation.event in EFFECTS and request_id in judge.transacts:
            if request_id not in by_request:
                command = judge.transacts[request_id]
                holds = _holds(judge, command, earlier)
                branches[request_id] = command.then if holds else command.otherwise
            by_request.setdefault(request_id, []).append(mutation)
        earlier[mutation.key] = 0 if mutation.value is None else cas
    for request_id, mutations in by_request.items():
        require(request_id not in judge.effects, "a-request-id-executes-once", request_id)
        seen = [_seen(mutation) for mutation in mutations]
        wanted = [_wanted(judge, operation) for operation in branches[request_id]]
        _check_undo(judge, request_id, mutations)
        require(seen == wanted, WHOLE, f"{request_id}: {seen}, not {wanted}")


def _holds(judge: Judge, command: Transact, earlier: Mapping[str, int]) -> bool:
    """Tell whether all comparisons hold, after what comes earlier in the same transaction."""
    return all(_cas_of(judge, one, earlier) == one.cas for one in command.compare)


def _cas_of(judge: Judge, comparison: Comparison, earlier: Mapping[str, int]) -> int:
    key = comparison.key
    if not key:
        index_id = judge.names.get((comparison.bucket, comparison.name))
        key = f"index/{index_id}"
    held = judge.entities.get(key)
    return earlier.get(key, held[0] if held else 0)


def _check_undo(judge: Judge, request_id: str, mutations: list[Mutation]) -> None:
    """An undo says what it leads back to, and each change of it does."""
    to = judge.transacts[request_id].undoes
    for mutation in mutations:
        require((mutation.undoes or 0) == to, "an-undo-says-so", f"{request_id}: {mutation}")
        if not to:
            continue
        if mutation.event in ("SettingWritten", "SettingDeleted"):
            same = mutation.value == _at(judge, mutation.key, to)
            require(same, LEADS_BACK, f"{request_id} to {to}: {mutation}")
        elif isinstance(mutation.entity, Index) and mutation.event == "IndexProposed":
            made = mutation.entity
            old = _index_then(judge, _at(judge, (made.bucket, made.name), to), to)
            same = old is not None and old.expressions == made.expressions
            require(same, LEADS_BACK, f"{request_id} to {to}: {made}, it was {old}")
        elif isinstance(mutation.entity, Index) and mutation.event == "IndexAltered":
            old = _index_then(judge, mutation.entity.id, to)
            same = old is not None and old.name == mutation.entity.name
            require(same, LEADS_BACK, f"{request_id} to {to}: {mutation}, it was {old}")


def _at(judge: Judge, key: Any, cas: int) -> Any:
    """Return what a key, or a name, had at a CAS."""
    older = [version for version in judge.versions.get(key, ()) if version.cas <= cas]
    return older[-1].value if older else None


def _index_then(judge: Judge, index_id: int | None, cas: int) -> Index | None:
    for event in reversed(judge.events):
        if event.cas <= cas and event.mutation.key == f"index/{index_id}":
            entity = event.mutation.entity
            return entity if isinstance(entity, Index) else None
    return None


def _wanted(judge: Judge, operation: Operation) -> tuple[str, ...]:
    match operation:
        case PutSetting():
            return "SettingWritten", operation.name, operation.value_json
        case DeleteSetting():
            return "SettingDeleted", operation.name
        case CreateIndex():
            return "IndexProposed", operation.name, *operation.expressions
        case AlterIndex():
            return "IndexAltered", operation.new_name or operation.name
        case DropIndex():
            held = judge.entities.get(f"index/{operation.index_id}")
            return "IndexDropped", held[2].name if held else operation.name


def _seen(mutation: Mutation) -> tuple[str, ...]:
    entity: Any = mutation.entity
    if mutation.event == "SettingWritten":
        return mutation.event, entity.name, entity.value_json
    if mutation.event == "SettingDeleted":
        return mutation.event, mutation.key.removeprefix("config/")
    if mutation.event == "IndexProposed":
        return mutation.event, entity.name, *entity.expressions
    return mutation.event, entity.name


def check_answer(judge: Judge, op: Op, outcome: Outcome) -> None:
    """What a client is told of its transaction is what the log has of it."""
    command = op.request.command
    assert isinstance(command, Transact)
    answer, name = outcome.answer, "acknowledged-is-effective-once"
    branch = command.then if answer["succeeded"] else command.otherwise
    effects = judge.effects.get(op.request.id, [])
    require(
        len(answer["results"]) == len(branch) == len(effects),
        name,
        f"{op.request.id} was told {answer}, and did {effects}",
    )
    for result, (_, cas), error in zip(answer["results"], effects, _errors(judge, op), strict=True):
        done = judge.done[cas].mutation
        told = (result["key"], "error" in result)
        require(told == (done.key, error), name, f"{op.request.id}: {result}, {done}")
        require("index" in result or result["cas"] == cas, name, f"{result} is at CAS {cas}")
    require(outcome.cas >= max((cas for _, cas in effects), default=0), name, f"{outcome.cas}")
    if not answer["succeeded"] and not effects:
        _check_not_held(judge, op, command, answer)


def _errors(judge: Judge, op: Op) -> Iterator[bool]:
    """Tell of each effect whether it is an index that never became ready."""
    for event, cas in judge.effects.get(op.request.id, []):
        entity = judge.done[cas].mutation.entity
        undone = isinstance(entity, Index) and entity.id not in judge.ready
        yield event == "IndexProposed" and undone


def _check_not_held(judge: Judge, op: Op, command: Transact, answer: dict[str, Any]) -> None:
    """Nothing was done, because something was not as expected: it was so while it was asked."""
    for found in answer["compared"]:
        if found["key"].startswith("config/"):
            require(
                judge.was_at(found["key"], found["cas"], op.invoked_ms),
                "linearizable",
                f"{op.request.id} found {found}, which never was since {op.invoked_ms}",
            )
    unlike = [
        found["cas"] != comparison.cas
        for comparison, found in zip(command.compare, answer["compared"], strict=True)
    ]
    require(any(unlike), WHOLE, f"{op.request.id} was not done, although {answer} is as expected")

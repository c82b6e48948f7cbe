"""Whether a history that clients recorded could have come from one copy of the data.

A history is linearizable (Herlihy and Wing, 1990) if each operation can be given one instant
between its invocation and its return, such that the operations, taken in the order of these
instants, do what a plain sequential object would have done. Objects are independent, so each
`target` is checked alone.

The search is Wing and Gong's, with Lowe's memory ("Testing for linearizability", 2017): a
configuration is the set of operations that were given their place, and the state that they lead
to; none is visited twice. Two shortcuts lose nothing:

* an operation that may come next and changes nothing takes its place at once;
* an operation of unknown fate is not tried where what follows would be the same without it.

An operation whose caller heard nothing is *unknown*: it took effect at some time after its
invocation, perhaps long after its caller gave up, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

CONFIGURATIONS_MAX = 200_000


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()
"""The result of an operation of which its caller never learned the outcome."""


class Ok(NamedTuple):
    """It took effect. `value` is what a read saw or the id of what was made; `cas` the version."""

    value: Any = None
    cas: int | None = None


class Refused(NamedTuple):
    """It had no effect, and `code` says why; `cas` and `value` are what stood in its way."""

    code: str
    cas: int | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What a process asked of an object, what it heard, and when.

    `expected` is the CAS on which a write insisted (0: absent). Times are on one clock, in any
    unit; `returned` is None exactly where the result is `UNKNOWN`.
    """

    process: Hashable
    target: Hashable
    call: str
    argument: Any
    result: Any
    invoked: float
    returned: float | None
    expected: int | None = None

    def __post_init__(self) -> None:
        assert (self.returned is None) == (self.result is UNKNOWN), self
        assert self.returned is None or self.invoked <= self.returned, self

    def __str__(self) -> str:
        until = "…" if self.returned is None else f"{self.returned:g}"
        asked = "" if self.argument is None else f" {self.argument!r}"
        asked += "" if self.expected is None else f" if CAS {self.expected}"
        return f"[{self.invoked:g}, {until}] {self.process}: {self.call}{asked} -> {self.result}"


class Model(Protocol):
    """A sequential object: hashable states, and what each operation makes of them."""

    initial: Hashable

    def step(self, state: Any, operation: Operation) -> Iterable[Any]:
        """Return the states after `operation`, with its very result; none if that cannot be.

        For an unknown result: the states after it took effect.
        """
        ...


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a history is not linearizable: how far one gets at most, and what cannot follow."""

    target: Hashable
    prefix: tuple[Operation, ...]
    state: Any
    stuck: tuple[Operation, ...]
    count: int

    def __str__(self) -> str:
        lines = [f"the history of {self.target!r} ({self.count} operations) is not linearizable"]
        lines.append(f"longest order that works, {len(self.prefix)} operations:")
        lines += [f"  {operation}" for operation in self.prefix]
        lines.append(f"after it: {self.state}")
        lines.append("one of these must come next, and none can:")
        lines += [f"  {operation}" for operation in self.stuck]
        return "\n".join(lines)


class TooHard(Exception):
    """The history needs more configurations than were granted: nothing is known about it."""


def check(
    operations: Iterable[Operation], model: Model, limit: int = CONFIGURATIONS_MAX
) -> Violation | None:
    """Return None if the history of each target is linearizable, or what is wrong with one.

    Raises TooHard after `limit` configurations of one target.
    """
    by_target: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        by_target.setdefault(operation.target, []).append(operation)
    for target, history in by_target.items():
        violation = _Search(target, history, model, limit).run()
        if violation is not None:
            return violation
    return None


class _Node(NamedTuple):
    """A configuration: the set of operations placed, the state, and how it was reached."""

    placed: int
    state: Any
    number: int
    parent: _Node | None


class _Search:
    """One depth-first search over the configurations of one target's history."""

    def __init__(
        self, target: Hashable, history: list[Operation], model: Model, limit: int
    ) -> None:
        self._target = target
        self._model = model
        self._limit = limit
        self._operations = sorted(history, key=lambda o: (o.invoked, o.returned is None))
        known = (1 << n for n, o in enumerate(self._operations) if o.returned is not None)
        self._wanted = sum(known)

    def run(self) -> Violation | None:
        model, operations, wanted = self._model, self._operations, self._wanted
        begin = deepest = _Node(0, model.initial, -1, None)
        visited: set[tuple[int, Any]] = {(0, model.initial)}
        stack = [begin]
        while stack:
            node = stack.pop()
            if node.placed & wanted == wanted:
                return None
            if (node.placed & wanted).bit_count() > (deepest.placed & wanted).bit_count():
                deepest = node
            for number in self._next(node):
                for state in model.step(node.state, operations[number]):
                    placed = node.placed | 1 << number
                    if (placed, state) in visited or self._is_idle(node, number, state):
                        continue
                    if len(visited) >= self._limit:
                        raise TooHard(f"{self._target!r}: more than {self._limit} configurations")
                    visited.add((placed, state))
                    stack.append(_Node(placed, state, number, node))
        return self._violation(deepest)

    def _candidates(self, placed: int) -> list[int]:
        """Return those that may come next: no other one that is left returned before them."""
        operations = self._operations
        found: list[int] = []
        first_return = float("inf")
        for number, operation in enumerate(operations):
            if operation.invoked > first_return:
                break
            if placed >> number & 1:
                continue
            found.append(number)
            if operation.returned is not None:
                first_return = min(first_return, operation.returned)
        return [n for n in found if operations[n].invoked <= first_return]

    def _next(self, node: _Node) -> list[int]:
        """Return what to try, the best last; only one that changes nothing, if there is any."""
        operations, state = self._operations, node.state
        candidates = self._candidates(node.placed)
        for number in candidates:
            if operations[number].returned is not None and (
                tuple(self._model.step(state, operations[number])) == (state,)
            ):
                return [number]
        return sorted(candidates, key=lambda n: -_return_of(operations[n]))

    def _is_idle(self, node: _Node, number: int, state: Any) -> bool:
        """Tell whether an unknown operation, this one or the one before it, made no difference."""
        before = node.parent
        operations = self._operations
        if operations[number].returned is None and state == node.state:
            return True
        if before is None or operations[node.number].returned is not None:
            return False
        return state in self._model.step(before.state, operations[number])

    def _violation(self, deepest: _Node) -> Violation:
        order: list[Operation] = []
        node: _Node | None = deepest
        while node is not None and node.parent is not None:
            order.append(self._operations[node.number])
            node = node.parent
        stuck = tuple(
            self._operations[n]
            for n in self._candidates(deepest.placed)
            if self._operations[n].returned is not None
        )
        return Violation(
            self._target, tuple(reversed(order)), deepest.state, stuck, len(self._operations)
        )


def _return_of(operation: Operation) -> float:
    return float("inf") if operation.returned is None else operation.returned


# -- the objects of the coordinator --------------------------------------------------------------


class Version(NamedTuple):
    """A setting: its value (None: absent) and CAS; a CAS of None is one above `floor`."""

    value: Any = None
    cas: int | None = 0
    floor: int = 0

    def at(self, cas: int | None) -> tuple[Version, ...]:
        """Return this version, known to have `cas`; nothing if it cannot have it."""
        if cas is None or cas == self.cas:
            return (self,)
        if self.cas is None and cas > self.floor:
            return (self._replace(cas=cas, floor=cas),)
        return ()


class Register:
    """A setting with versions.

    Calls: `put` (argument: the value) and `delete`, each perhaps with `expected`, and answered by
    `Ok(cas=…)`; `read`, answered by `Ok(value, cas)`, absent as `Ok(None, 0)`; `rewrite`, by which
    the value stays and gets another CAS. Refusals: `cas_mismatch` with the CAS found, `not_found`
    (of a `delete`); any other says nothing about the setting.
    """

    initial = Version()

    def step(self, state: Version, operation: Operation) -> tuple[Version, ...]:
        result = operation.result
        if isinstance(result, Refused):
            return self._refused(state, operation, result)
        if operation.call == "read":
            same = result is UNKNOWN or state.value == result.value
            return state.at(None if result is UNKNOWN else result.cas) if same else ()
        found: list[Version] = []
        for before in state.at(operation.expected):
            cas = None if result is UNKNOWN else result.cas
            if cas is not None and cas <= before.floor:
                continue
            if operation.call == "delete":
                if before.value is not None:
                    found.append(Version(None, 0, cas or before.floor))
                continue
            if operation.call == "rewrite" and before.value is None:
                found.append(before._replace(floor=cas or before.floor))
                continue
            value = before.value if operation.call == "rewrite" else operation.argument
            found.append(Version(value, cas, cas or before.floor))
        return tuple(found)

    @staticmethod
    def _refused(state: Version, operation: Operation, result: Refused) -> tuple[Version, ...]:
        if result.code == "cas_mismatch":
            if operation.expected in (None, result.cas if result.cas is not None else state.cas):
                return ()
            return state.at(result.cas)
        if result.code == "not_found":
            return (state,) if state.value is None else ()
        return (state,)


class NameSpace:
    """The indexes of a bucket by name, or those under one name.

    Calls: `create` (argument: the name), answered by `Ok(id)`; `drop` (argument: a name, or a
    whole number: an id); `read` of a name, answered by `Ok(id)` or `Ok(None)`; `list`, answered by
    `Ok` of the frozenset of all (name, id). Refusals: `index_exists` with the id that holds the
    name, `not_found`; any other says nothing. A state is a frozenset of (name, id); an id of None
    is one that nobody has learned.
    """

    initial: frozenset[tuple[str, Any]] = frozenset()

    def step(
        self, state: frozenset[tuple[str, Any]], operation: Operation
    ) -> tuple[frozenset[tuple[str, Any]], ...]:
        steps = {
            "create": self._create,
            "drop": self._drop,
            "read": self._read,
            "list": self._list,
        }
        return steps[operation.call](state, operation, operation.result)

    def _create(self, state: Any, operation: Operation, result: Any) -> tuple[Any, ...]:
        name = operation.argument
        held = _held(state, name)
        if isinstance(result, Refused):
            if result.code != "index_exists":
                return (state,)
            return _resolved(state, held, result.value) if held is not None else ()
        if held is not None:
            return ()
        made = None if result is UNKNOWN else result.value
        if made is not None and any(made == other for _, other in state):
            return ()
        return (state | {(name, made)},)

    def _drop(self, state: Any, operation: Operation, result: Any) -> tuple[Any, ...]:
        wanted = operation.argument
        if isinstance(wanted, str):
            held = _held(state, wanted)
            possible = [] if held is None else [held]
        else:
            exact = [pair for pair in state if pair[1] == wanted]
            possible = exact or [pair for pair in state if pair[1] is None]
        if not isinstance(result, Refused):
            return tuple(state - {pair} for pair in possible)
        if result.code != "not_found":
            return (state,)
        certain = isinstance(wanted, str) or any(pair[1] is not None for pair in possible)
        return () if possible and certain else (state,)

    def _read(self, state: Any, operation: Operation, result: Any) -> tuple[Any, ...]:
        held = _held(state, operation.argument)
        if result is UNKNOWN or isinstance(result, Refused):
            return (state,)
        if held is None or result.value is None:
            return (state,) if held is None and result.value is None else ()
        return _resolved(state, held, result.value)

    def _list(self, state: Any, operation: Operation, result: Any) -> tuple[Any, ...]:
        if result is UNKNOWN or isinstance(result, Refused):
            return (state,)
        if {name for name, _ in state} != {name for name, _ in result.value}:
            return ()
        fits = all(pair in result.value for pair in state if pair[1] is not None)
        return (frozenset(result.value),) if fits else ()


def _held(state: frozenset[tuple[str, Any]], name: str) -> tuple[str, Any] | None:
    return next((pair for pair in state if pair[0] == name), None)


def _resolved(
    state: frozenset[tuple[str, Any]], held: tuple[str, Any], known: Any
) -> tuple[frozenset[tuple[str, Any]], ...]:
    """Return the state where `held` is known to have this id; nothing if it has another."""
    if known is None or held[1] == known:
        return (state,)
    return (state - {held} | {(held[0], known)},) if held[1] is None else ()

"""The checker of histories: it accepts what one copy could have done, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.linearizability import (
    UNKNOWN,
    NameSpace,
    Ok,
    Operation,
    Refused,
    Register,
    TooHard,
    Violation,
    check,
)

MODELS: dict[str, Any] = {"register": Register(), "names": NameSpace()}


def history(*rows: tuple[Any, ...]) -> list[Operation]:
    """Build a history of one target from rows (invoked, returned, call, argument, result, …)."""
    return [
        Operation(f"p{n}", "x", call, argument, result, invoked, returned, *more)
        for n, (invoked, returned, call, argument, result, *more) in enumerate(rows)
    ]


LINEARIZABLE: dict[str, tuple[str, list[Operation]]] = {
    "one after the other": (
        "register",
        history(
            (0, 1, "read", None, Ok(None, 0)),
            (2, 3, "put", "a", Ok(cas=5)),
            (4, 5, "read", None, Ok("a", 5)),
            (6, 7, "put", "b", Ok(cas=6), 5),
            (8, 9, "put", "c", Refused("cas_mismatch", 6), 5),
            (10, 11, "delete", None, Ok(cas=9)),
            (12, 13, "delete", None, Refused("not_found")),
            (14, 15, "put", "d", Ok(cas=12), 0),
        ),
    ),
    "a read beside a write sees either": (
        "register",
        history(
            (0, 9, "put", "a", Ok(cas=5)),
            (1, 2, "read", None, Ok(None, 0)),
            (3, 4, "read", None, Ok("a", 5)),
        ),
    ),
    "writes overlap and the CAS tells their order": (
        "register",
        history(
            (0, 9, "put", "a", Ok(cas=7)),
            (0, 9, "put", "b", Ok(cas=5)),
            (10, 11, "read", None, Ok("a", 7)),
        ),
    ),
    "an unknown write took effect long after its caller gave up": (
        "register",
        history(
            (0, None, "put", "a", UNKNOWN),
            (1, 2, "read", None, Ok(None, 0)),
            (3, 4, "put", "b", Ok(cas=5)),
            (5, 6, "read", None, Ok("b", 5)),
            (7, 8, "read", None, Ok("a", 6)),
        ),
    ),
    "an unknown write never took effect": (
        "register",
        history((0, None, "put", "a", UNKNOWN), (1, 2, "put", "b", Ok(cas=5), 0)),
    ),
    "the CAS of an unknown write is learned by a refusal": (
        "register",
        history(
            (0, None, "put", "a", UNKNOWN),
            (1, 2, "put", "b", Refused("cas_mismatch", 8), 0),
            (3, 4, "read", None, Ok("a", 8)),
        ),
    ),
    "a rewrite moves the CAS and keeps the value": (
        "register",
        history(
            (0, 1, "put", "a", Ok(cas=5)),
            (2, 3, "rewrite", None, Ok(cas=9)),
            (4, 5, "read", None, Ok("a", 9)),
        ),
    ),
    "a refusal for another reason changes nothing": (
        "register",
        history((0, 1, "put", "a", Refused("value_too_large")), (2, 3, "read", None, Ok(None, 0))),
    ),
    "a name is made, refused, dropped by id, and made again": (
        "names",
        history(
            (0, 1, "create", "i", Ok(7)),
            (2, 3, "create", "i", Refused("index_exists", value=7)),
            (4, 5, "list", None, Ok(frozenset({("i", 7)}))),
            (6, 7, "drop", 7, Ok()),
            (8, 9, "drop", "i", Refused("not_found")),
            (10, 11, "read", "i", Ok(None)),
            (12, 13, "create", "i", Ok(8)),
        ),
    ),
    "an unknown creation is found by its id": (
        "names",
        history(
            (0, None, "create", "i", UNKNOWN),
            (1, 2, "create", "i", Refused("index_exists", value=3)),
            (3, 4, "drop", 3, Ok()),
            (5, 6, "list", None, Ok(frozenset())),
        ),
    ),
    "a creation that an indexer refused leaves the name free": (
        "names",
        history(
            (0, 5, "create", "i", Refused("indexer_refused")),
            (2, 6, "create", "i", Ok(4)),
        ),
    ),
}

IMPOSSIBLE: dict[str, tuple[str, list[Operation]]] = {
    "a stale read": (
        "register",
        history(
            (0, 1, "put", "a", Ok(cas=5)),
            (2, 3, "put", "b", Ok(cas=6)),
            (4, 5, "read", None, Ok("a", 5)),
        ),
    ),
    "an acknowledged write vanished": (
        "register",
        history((0, 1, "put", "a", Ok(cas=5)), (2, 3, "read", None, Ok(None, 0))),
    ),
    "a lost update: two replaced the same version": (
        "register",
        history(
            (0, 1, "put", "a", Ok(cas=5)),
            (2, 9, "put", "b", Ok(cas=6), 5),
            (2, 9, "put", "c", Ok(cas=7), 5),
        ),
    ),
    "two made it from nothing": (
        "register",
        history((0, 9, "put", "a", Ok(cas=5), 0), (0, 9, "put", "b", Ok(cas=6), 0)),
    ),
    "refused although the CAS was right": (
        "register",
        history(
            (0, 1, "put", "a", Ok(cas=5)),
            (2, 3, "put", "b", Refused("cas_mismatch", 6), 5),
        ),
    ),
    "refused by a CAS that it never had": (
        "register",
        history(
            (0, 1, "put", "a", Ok(cas=5)),
            (2, 3, "put", "b", Refused("cas_mismatch", 4), 3),
        ),
    ),
    "the CAS went down": (
        "register",
        history((0, 1, "put", "a", Ok(cas=5)), (2, 3, "put", "b", Ok(cas=4))),
    ),
    "a write took effect before it was asked for": (
        "register",
        history(
            (0, 1, "read", None, Ok("a", 5)),
            (2, 3, "put", "a", Ok(cas=5)),
        ),
    ),
    "an unknown write took effect before it was asked for": (
        "register",
        history((0, 1, "read", None, Ok("a", 5)), (2, None, "put", "a", UNKNOWN)),
    ),
    "an unknown write took effect twice": (
        "register",
        history(
            (0, None, "put", "a", UNKNOWN),
            (1, 2, "read", None, Ok("a", 5)),
            (3, 4, "put", "b", Ok(cas=6)),
            (5, 6, "read", None, Ok("a", 7)),
        ),
    ),
    "two readers saw two writes in different orders": (
        "register",
        history(
            (0, 20, "put", "a", Ok()),
            (0, 20, "put", "b", Ok()),
            (1, 2, "read", None, Ok("a")),
            (3, 4, "read", None, Ok("b")),
            (5, 6, "read", None, Ok("a")),
        ),
    ),
    "a deletion of what was there was refused": (
        "register",
        history((0, 1, "put", "a", Ok(cas=5)), (2, 3, "delete", None, Refused("not_found"))),
    ),
    "two creators of one name both won": (
        "names",
        history((0, 9, "create", "i", Ok(1)), (0, 9, "create", "i", Ok(2))),
    ),
    "refused although the name was free": (
        "names",
        history(
            (0, 1, "create", "i", Ok(1)),
            (2, 3, "drop", "i", Ok()),
            (4, 5, "create", "i", Refused("index_exists", value=1)),
        ),
    ),
    "refused by an index that another dropped before": (
        "names",
        history(
            (0, 1, "create", "i", Ok(1)),
            (2, 3, "drop", 1, Ok()),
            (4, 5, "create", "i", Ok(2)),
            (6, 7, "create", "i", Refused("index_exists", value=1)),
        ),
    ),
    "a created index is not in the list": (
        "names",
        history((0, 1, "create", "i", Ok(1)), (2, 3, "list", None, Ok(frozenset()))),
    ),
    "a dropped index is in the list": (
        "names",
        history(
            (0, 1, "create", "i", Ok(1)),
            (2, 3, "drop", "i", Ok()),
            (4, 5, "list", None, Ok(frozenset({("i", 1)}))),
        ),
    ),
    "one index was dropped twice": (
        "names",
        history((0, 1, "create", "i", Ok(1)), (2, 9, "drop", "i", Ok()), (2, 9, "drop", 1, Ok())),
    ),
    "not found although it was there": (
        "names",
        history((0, 1, "create", "i", Ok(1)), (2, 3, "drop", 1, Refused("not_found"))),
    ),
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_history_that_one_copy_could_have_given_is_accepted(name: str) -> None:
    model, operations = LINEARIZABLE[name]
    assert check(operations, MODELS[model]) is None


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_history_that_no_single_copy_gives_is_rejected(name: str) -> None:
    model, operations = IMPOSSIBLE[name]
    assert check(operations, MODELS[model]) is not None


def test_a_violation_names_the_order_that_works_and_what_cannot_follow() -> None:
    _, operations = IMPOSSIBLE["a stale read"]
    violation = check(operations, Register())
    assert isinstance(violation, Violation)
    assert violation.prefix == tuple(operations[:2])
    assert violation.stuck == tuple(operations[2:])
    text = str(violation)
    assert "p1: put 'b' -> Ok" in text
    assert "[4, 5] p2: read" in text


def test_each_target_is_an_object_of_its_own() -> None:
    one = history((0, 1, "put", "a", Ok(cas=5)))
    other = [replace(o, target="y") for o in history((2, 3, "read", None, Ok(None, 0)))]
    assert check(one + other, Register()) is None
    assert check(one + [replace(o, target="x") for o in other], Register()) is not None


def test_a_history_that_is_too_hard_is_an_error_and_not_a_verdict() -> None:
    rows = [(0, 100, "put", str(n), Ok()) for n in range(24)]
    operations = history(*rows, (101, 102, "read", None, Ok("nowhere")))
    with pytest.raises(TooHard):
        check(operations, Register(), limit=1_000)


def test_many_writes_of_unknown_fate_do_not_make_a_history_hard() -> None:
    unknown = [(n, None, "put", f"u{n}", UNKNOWN) for n in range(40)]
    read = [(100 + n, 101 + n, "read", None, Ok(f"u{n}", n + 1)) for n in range(0, 40, 2)]
    assert check(history(*unknown, *read), Register(), limit=10_000) is None


# -- laws: what a sequential object did is always accepted, and never with another result ---------


class Setting:
    """The obvious implementation of a setting."""

    def __init__(self) -> None:
        self.value: Any = None
        self.cas = self.last = 0

    def run(self, call: str, argument: Any, expected: int | None) -> Any:
        if call == "read":
            return Ok(self.value, self.cas)
        if expected not in (None, self.cas):
            return Refused("cas_mismatch", self.cas)
        if call == "delete" and self.value is None:
            return Refused("not_found")
        self.last += 3
        self.value = argument if call == "put" else None
        self.cas = self.last if call == "put" else 0
        return Ok(cas=self.last)


class Bucket:
    """The obvious implementation of a bucket's names."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.last = 0

    def run(self, call: str, argument: Any, expected: int | None) -> Any:
        if call == "list":
            return Ok(frozenset(self.names.items()))
        if call == "read":
            return Ok(self.names.get(argument))
        if call == "create":
            if argument in self.names:
                return Refused("index_exists", value=self.names[argument])
            self.last += 1
            self.names[argument] = self.last
            return Ok(self.last)
        name = argument
        if isinstance(argument, int):
            name = next((n for n, held in self.names.items() if held == argument), "")
        return Ok() if self.names.pop(name, None) is not None else Refused("not_found")


CALLS = {
    "register": st.tuples(
        st.sampled_from(["put", "put", "delete", "read"]),
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 5).map(lambda n: 3 * n),
    ),
    "names": st.one_of(
        st.tuples(
            st.sampled_from(["create", "create", "drop", "read"]),
            st.sampled_from(["i", "j"]),
            st.none(),
        ),
        st.tuples(st.just("drop"), st.integers(1, 4), st.none()),
        st.tuples(st.just("list"), st.none(), st.none()),
    ),
}
WIDTHS = st.tuples(st.floats(0, 6), st.floats(0, 6), st.booleans())


@st.composite
def recorded(draw: st.DrawFn, model: str) -> list[Operation]:
    """Run a sequential object, each operation at an instant inside an interval of its own."""
    real: Any = Setting() if model == "register" else Bucket()
    found: list[Operation] = []
    rows = draw(st.lists(st.tuples(CALLS[model], WIDTHS), min_size=1, max_size=14))
    for instant, ((call, argument, expected), (early, late, unheard)) in enumerate(rows):
        expected = None if call == "read" else expected
        result = real.run(call, argument, expected)
        unknown = unheard and early > 4
        found.append(
            Operation(
                instant,
                "x",
                call,
                argument,
                UNKNOWN if unknown else result,
                instant - early,
                None if unknown else instant + late,
                expected,
            )
        )
    return draw(st.permutations(found))


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_what_a_sequential_object_did_is_always_accepted(model: str, data: st.DataObject) -> None:
    violation = check(data.draw(recorded(model)), MODELS[model])
    assert violation is None, str(violation)


def impossible(operation: Operation) -> Any:
    """Return a result that this operation can never have had."""
    if operation.call == "read":
        return Ok("nothing wrote this", 1)
    if operation.call == "list":
        return Ok(frozenset({("never", 99)}))
    if operation.call in ("put", "delete"):
        return Refused("cas_mismatch", 10**6)
    return Refused("index_exists", value=10**6)


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_one_impossible_result_is_always_rejected(model: str, data: st.DataObject) -> None:
    operations = data.draw(recorded(model))
    answered = [o for o in operations if o.returned is not None and o.call != "drop"]
    # An unknown operation might have been what the false result speaks of.
    assume(answered and len(answered) == len([o for o in operations if o.call != "drop"]))
    victim = data.draw(st.sampled_from(answered))
    false = [replace(o, result=impossible(o)) if o is victim else o for o in operations]
    assert check(false, MODELS[model]) is not None

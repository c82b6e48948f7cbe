"""Laws that hold for every input, tried with as many as there is time for.

`make test` tries each with some inputs, and `make chaos` for as many seconds as FUZZ_SECONDS says.
What was once found to break a law is an example of it for ever: those are tried always, and in
`make quick` nothing else is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import PROFILE

SECONDS = float(os.environ.get("FUZZ_SECONDS") or 0.0)
PORTION = 100 if SECONDS else 40
"""So many inputs are made at a time; the clock is looked at between two portions."""

CALL_S_MAX = 0.5
"""No input may take a decoder or parser longer, in time of its own thread."""

T = TypeVar("T")

QUIET = settings(
    max_examples=PORTION,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def holds(
    law: Callable[[T], object],
    inputs: st.SearchStrategy[T],
    examples: Iterable[T] = (),
    portion: int = PORTION,
) -> None:
    """Try a law with the examples, and then with portions of inputs until the time is over: with
    one at least, but in a quick run.

    Another seed each time: what was found is printed, and belongs into the examples then.
    """
    for example in examples:
        law(example)

    @settings(QUIET, max_examples=portion)
    @given(inputs)
    def attempt(given_input: T) -> None:
        law(given_input)

    end_s = time.monotonic() + SECONDS
    is_over = PROFILE == "quick" and not SECONDS
    while not is_over:
        seed(int.from_bytes(os.urandom(4), "big"))(attempt)()
        is_over = time.monotonic() >= end_s


def total(function: Callable[[T], Any], *allowed: type[Exception]) -> Callable[[T], Any]:
    """Return the law that a function returns, or raises one of these, and does not take long."""

    def timed(given_input: T) -> tuple[Any, float]:
        began = time.thread_time()
        try:
            result = function(given_input)
        except allowed:
            result = None
        return result, time.thread_time() - began

    def law(given_input: T) -> Any:
        result, taken = timed(given_input)
        if taken >= CALL_S_MAX:
            # The first call of all loads what it needs, and any may be the one that tidies memory.
            result, taken = timed(given_input)
        assert taken < CALL_S_MAX, f"it took {taken:.2f} s"
        return result

    return law


# -- inputs ---------------------------------------------------------------------------------------

INTS = st.one_of(
    st.integers(-2, 70),
    st.sampled_from(
        [2**n + d for n in (8, 15, 16, 31, 32, 53, 62, 63, 64, 70) for d in (-1, 0, 1)]
    ),
    st.integers(-(2**63), 2**63 - 1),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "b", "i", "\x00", "\ud800", "é", "𝒳", "x" * 300, "index/1", "config/k"]),
)
SCALARS = st.none() | st.booleans() | INTS | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, good: st.SearchStrategy[bytes], spared: int = 0) -> bytes:
    """Bytes that were good once: some changed, cut off or put in, behind the first `spared`."""
    data = bytearray(draw(good))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(min(spared, len(data)), len(data)))
        kind = draw(st.sampled_from(["change", "cut", "insert", "huge"]))
        if kind == "change" and place < len(data):
            data[place] = draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
        elif kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=9))
        else:
            data[place:place] = b"\xff" * 8 + b"\x7f"
    return bytes(data)


def fields_of(schema: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return whatever fits an Avro schema; `named` are the types that it names."""
    if isinstance(schema, list):
        return st.one_of(*(fields_of(one, named) for one in schema))
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return fields_of(kind, named)
    if kind in named and (isinstance(schema, str) or kind not in PRIMITIVES):
        return fields_of(named[kind], named)
    if kind == "record":
        return st.fixed_dictionaries(
            {
                field["name"]: _hinted(field["name"], fields_of(field["type"], named))
                for field in schema["fields"]
            }
        )
    if kind == "array":
        return st.lists(fields_of(schema["items"], named), max_size=3)
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    return PRIMITIVES[kind]


HINTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("epoch", "txn_epoch"), st.sampled_from([0, 1, 1, 2])),
    **dict.fromkeys(("txn_seq", "node", "indexer", "projector"), st.integers(0, 4)),
    **dict.fromkeys(("bucket", "name"), st.sampled_from(["b", "i", "k"])),
    "incarnation": st.sampled_from([5, 7]),
    "index_id": st.sampled_from([1 << 40, (1 << 40) + 2048]),
    "key": st.sampled_from(["config/k", "bucket/b", "index/1", "stream/b", "request/r"]),
    "answer": st.sampled_from(["accepted", "refused", "behind", "allocated", "released"]),
}
"""What fields are likely to be where the rest of a cluster is to make something of a record."""


def _hinted(name: str, anything: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return HINTS[name] | anything if name in HINTS else anything


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INTS.filter(lambda n: -(2**31) <= n < 2**31),
    "long": INTS.filter(lambda n: -(2**63) <= n < 2**63),
    "string": TEXTS.filter(lambda text: text.isprintable() or "\ud800" not in text),
    "bytes": st.one_of(
        st.binary(max_size=20), st.sampled_from([b"", bytes(8), b"\x01" + bytes(511), bytes(512)])
    ),
    "record": st.nothing(),
    "array": st.nothing(),
    "fixed": st.nothing(),
}

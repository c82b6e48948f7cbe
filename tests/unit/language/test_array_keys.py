"""DISTINCT keys, and ARRAY … FOR … IN … WHEN … END: several keys of one document."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from contextlib import suppress
from functools import cmp_to_key
from typing import Any

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from coordinator.core.keys.collation import MISSING
from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.key_versions import KEY_BYTES_MAX, KEYS_BYTES_MAX, WHERE_HEAD
from coordinator.core.model.commands import CreateIndex, Request
from coordinator.language.ddl_commands import normalised
from coordinator.language.ddl_parser import SqlError, normalise_expression, parse_statement
from coordinator.language.expressions import (
    EvaluationError,
    ExpressionError,
    check,
    check_keys,
    compile_expression,
    compile_index,
)
from coordinator.language.expressions.compiler import ELEMENTS_MAX
from tests.conftest import examples
from tests.support import oracle
from tests.support.ranged_indexes import index

HOTEL: dict[str, Any] = {
    "name": "Ritz",
    "stars": 5,
    "tags": ["pool", "bar", "pool", None],
    "empty": [],
    "no_array": "bar",
    "nothing": None,
    "x": "hidden",
    "rooms": [
        {"n": 1, "beds": ["king"], "price": 90},
        {"n": 2, "beds": ["twin", "twin"]},
        {"n": 3, "price": 70, "beds": []},
        {"n": 4, "beds": "sofa"},
        "no room",
    ],
}


def keys(*expressions: str, document: Any = HOTEL, where: str | None = None) -> Any:
    """Return the keys of a document as values, in their order; None: it is not in the index."""
    one = index(expressions=tuple(normalise_expression(e, key=True) for e in expressions))
    one = index(expressions=one.expressions, where=where)
    found = compile_index(one)("doc::1", document)
    if found is None:
        return None
    assert isinstance(found, list)
    assert found == sorted(set(found))
    return [order_of(one).decode(key) for key in found]


EACH = "DISTINCT ARRAY x FOR x IN tags END"
BEDS = "DISTINCT ARRAY (DISTINCT ARRAY b FOR b IN r.beds END) FOR r IN rooms END"

MEANINGS = [
    ([EACH], [(None,), ("bar",), ("pool",)]),
    (["DISTINCT tags"], [(None,), ("bar",), ("pool",)]),
    (["DISTINCT tags DESC"], [("pool",), ("bar",), (None,)]),
    (["DISTINCT ARRAY UPPER(x) FOR x IN tags WHEN x IS NOT NULL END"], [("BAR",), ("POOL",)]),
    (["DISTINCT ARRAY r.price FOR r IN rooms END"], [(70,), (90,)]),
    (["DISTINCT ARRAY r.n FOR r IN rooms WHEN r.price > 80 OR r.n = 2 END"], [(1,), (2,)]),
    (["DISTINCT ARRAY r.n + stars FOR r IN rooms WHEN r.n < 3 END"], [(6,), (7,)]),
    (["DISTINCT ARRAY META().id || '/' || r.n FOR r IN rooms END"], [(None,)]),
    (["DISTINCT ARRAY META().id FOR r IN rooms END"], [("doc::1",)]),
    ([BEDS], [(None,), ("king",), ("twin",)]),
    (["DISTINCT ARRAY DISTINCT r.beds FOR r IN rooms END"], [("king",), ("sofa",), ("twin",)]),
    (["DISTINCT ARRAY r.beds FOR r IN rooms WHEN r.n = 2 END"], [(["twin", "twin"],)]),
    (["DISTINCT ARRAY x FOR x IN ARRAY r.n FOR r IN rooms WHEN r.n > 3 END END"], [(4,)]),
    (["DISTINCT ARRAY x || name FOR x IN tags END"], [(None,), ("barRitz",), ("poolRitz",)]),
    (["DISTINCT tags", "stars"], [(None, 5), ("bar", 5), ("pool", 5)]),
    (["stars DESC", "DISTINCT tags", "x"], [(5, e, "hidden") for e in (None, "bar", "pool")]),
    (["stars", "DISTINCT empty"], [(5, MISSING)]),
    (["stars", "DISTINCT absent"], [(5, MISSING)]),
    (["stars", "DISTINCT ARRAY e FOR e IN absent END"], [(5, MISSING)]),
    (["stars", "DISTINCT ARRAY e FOR e IN tags WHEN FALSE END"], [(5, MISSING)]),
    (["DISTINCT empty"], None),
    (["DISTINCT absent"], None),
    (["absent", "DISTINCT tags"], None),
    (["DISTINCT ARRAY e FOR e IN tags WHEN NULL END"], None),
    (["DISTINCT ARRAY r.colour FOR r IN rooms END"], None),
    (["DISTINCT no_array"], [("bar",)]),
    (["DISTINCT nothing"], [(None,)]),
    (["DISTINCT ARRAY e FOR e IN no_array END"], [(None,)]),
    (["DISTINCT (tags)"], [(None,), ("bar",), ("pool",)]),
    (["(DISTINCT tags)"], [(None,), ("bar",), ("pool",)]),
]


@pytest.mark.parametrize(("expressions", "meaning"), MEANINGS, ids=[str(m[0]) for m in MEANINGS])
def test_a_document_has_a_key_for_each_different_element(
    expressions: list[str], meaning: Any
) -> None:
    assert keys(*expressions) == meaning


def test_a_variable_hides_a_field_only_within_its_array() -> None:
    assert keys("DISTINCT ARRAY x FOR x IN tags WHEN x = 'bar' END", "x") == [("bar", "hidden")]
    inner = "ARRAY_LENGTH(ARRAY x FOR x IN tags END) || x"
    assert keys(f"DISTINCT ARRAY TYPEOF({inner}) FOR x IN tags END") == [("null",)]
    both = "DISTINCT ARRAY (DISTINCT ARRAY x FOR x IN tags WHEN x = 'bar' END) FOR x IN rooms END"
    assert keys(both, "x") == [("bar", "hidden")]
    after = "DISTINCT ARRAY ARRAY_LENGTH(ARRAY x FOR x IN tags END) + x FOR x IN ARRAY r.n"
    assert keys(f"{after} FOR r IN rooms WHEN r.n < 3 END END") == [(5,), (6,)]
    assert HOTEL["x"] == "hidden"
    assert set(HOTEL) == {
        *("name", "stars", "tags", "empty", "no_array", "nothing", "x", "rooms"),
    }


def test_an_array_is_a_value_too() -> None:
    evaluate = compile_expression("ARRAY r.n FOR r IN rooms WHEN r.price IS VALUED END")
    assert evaluate(HOTEL, "") == [1, 3]
    assert keys("DISTINCT tags", where="ARRAY_LENGTH(ARRAY r FOR r IN rooms END) = 5") is not None
    assert keys("DISTINCT tags", where="ARRAY_LENGTH(ARRAY r FOR r IN rooms END) = 6") is None


@pytest.mark.parametrize("document", [None, 5, "text", [], ["a"], {}])
def test_what_is_no_object_has_no_elements(document: Any) -> None:
    assert keys(EACH, document=document) is None
    assert keys("META().id", EACH, document=document) == [("doc::1", MISSING)]


NORMAL = [
    ("distinct array x for x in tags end", "DISTINCT ARRAY x FOR x IN tags END"),
    ("DISTINCT ARRAY x FOR x IN t WHEN x!=1 END desc",
     "DISTINCT ARRAY x FOR x IN t WHEN x <> 1 END DESC"),
    ("distinct   `odd name`", "DISTINCT `odd name`"),
    ("CASE WHEN a THEN ARRAY b FOR b IN c END END", "CASE WHEN a THEN ARRAY b FOR b IN c END END"),
    ("array", "array"),
    ("stats.distinct", "stats.distinct"),
    ("-a.distinct + (b).distinct", None),
    ("SUBSTRING(array FROM 1 FOR 2)", "SUBSTRING(array, 1, 2)"),
    ("SUBSTRING(s FROM array FOR 2)", "SUBSTRING(s, array, 2)"),
    ("DISTINCT ARRAY r.end FOR r IN rooms END", "DISTINCT ARRAY r.end FOR r IN rooms END"),
    ("ARRAY r.array + r.case FOR r IN x.array WHEN r.for = 1 END", None),
    ("ARRAY `null` FOR `null` IN a END", "ARRAY `null` FOR `null` IN a END"),
    ("array.x + 1", "array.x + 1"),
    ("DISTINCT ARRAY `array` FOR `for` IN `in` END", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "normal"), NORMAL, ids=[text for text, _ in NORMAL])
def test_the_normal_form_is_read_as_itself(text: str, normal: str | None) -> None:
    found = normalise_expression(text, key=True)
    assert normal in (None, found)
    assert normalise_expression(found, key=True) == found


def test_statements_have_them() -> None:
    text = "CREATE INDEX tags ON hotels(DISTINCT ARRAY x FOR x IN tags WHEN x IN ('a', 'b') END, n)"
    statement = parse_statement(text)
    assert parse_statement(statement.to_sql()) == statement
    command = CreateIndex(
        name="i", bucket="b", expressions=("distinct array x for x in tags end", "n")
    )
    request = normalised(Request(command=command))
    assert not request.objection
    assert isinstance(request.command, CreateIndex)
    assert request.command.expressions == (EACH, "n")


TOO_MANY = "too_many_elements"
REFUSED = [
    ("DISTINCT a + DISTINCT b", "unsupported", "at the beginning"),
    ("a + DISTINCT b", "unsupported", "at the beginning"),
    ("LENGTH(DISTINCT a)", "unsupported", ""),
    ("DISTINCT", "invalid_expression", "Expected an expression"),
    ("DISTINCT ARRAY x FOR x IN t", "invalid_expression", "Expected END"),
    ("DISTINCT ARRAY x FOR 5 IN t END", "invalid_expression", "Expected a name"),
    ("DISTINCT ARRAY x FOR x WITHIN t END", "invalid_expression", "Expected IN"),
    ("DISTINCT ARRAY x FOR x IN t, y IN u END", "invalid_expression", "Expected END"),
    ("DISTINCT ARRAY FOR x IN t END", "invalid_expression", "at FOR"),
    ("DISTINCT ARRAY x FOR x IN END", "invalid_expression", "Expected END"),
    ("DISTINCT ARRAY x FOR x IN t WHEN END", "invalid_expression", "Expected END"),
    ("ALL ARRAY x FOR x IN t END", "invalid_expression", "cannot use ALL"),
    ("ARRAY null FOR null IN t END", "invalid_expression", "need quotes"),
    ("LEFT(RIGHT(LEFT(RIGHT(a, 1), 1), 1), 1)", "invalid_expression", "does not know"),
    ("x FOR x IN t", "invalid_expression", ""),
    ("DISTINCT ARRAY f(x) FOR x IN t END", "unknown_function", "F"),
    ("DISTINCT ARRAY SUM(x) FOR x IN t END", "invalid_expression", "an aggregate"),
    ("DISTINCT " + "ARRAY " * 30 + "x" + " FOR x IN t END" * 30, "invalid_expression", "nested"),
    ("DISTINCT " + "ARRAY " * 22 + "x" + " FOR x IN t END" * 22, "too_deep", "deeper than 20"),
    ("ARRAY " * 2_000 + "x", "invalid_expression", ""),
    ("ARRAY[" * 24 + "1" + "]" * 24, "unsupported", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "message"), REFUSED, ids=[r[0][:40] for r in REFUSED])
def test_what_cannot_be_read_or_evaluated_is_refused(text: str, code: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check_keys([text])
    assert (caught.value.code, message in caught.value.message) == (code, True), caught.value


def test_an_index_has_one_distinct_key_at_most() -> None:
    check_keys(["DISTINCT a", "b"])
    with pytest.raises(ExpressionError, match="at most one DISTINCT key"):
        check_keys(["DISTINCT a", "DISTINCT b"])
    command = CreateIndex(name="i", bucket="b", expressions=("DISTINCT a", "DISTINCT b"))
    request = normalised(Request(command=command))
    assert "at most one DISTINCT key" in request.objection
    with pytest.raises(ExpressionError, match="DISTINCT"):
        check("DISTINCT a")


def refused(expression: str, document: Any) -> str:
    with pytest.raises(EvaluationError) as caught:
        keys(expression, document=document)
    return caught.value.code


def test_an_array_has_bounds_and_a_document_beyond_them_is_not_in_the_index() -> None:
    nested = "DISTINCT ARRAY (DISTINCT ARRAY y FOR y IN a END) FOR x IN a END"
    within = int((ELEMENTS_MAX / 2) ** 0.5) - 1  # What is taken apart counts once more.
    assert len(keys(nested, document={"a": list(range(within))})) == within
    assert refused(nested, {"a": list(range(within + 2))}) == "too_many_elements"
    many = list(range(ELEMENTS_MAX + 1))
    assert refused("DISTINCT ARRAY x FOR x IN a END", {"a": many}) == "too_many_elements"
    assert refused("DISTINCT a", {"a": ["x" * KEY_BYTES_MAX]}) == "key_too_long"
    size = len(compile_index(index(expressions=("a",)))("", {"a": "x" * 1000}) or b"")
    fit = KEYS_BYTES_MAX // (size + WHERE_HEAD.size)
    texts = [f"{n:04d}" + "x" * 996 for n in range(fit + 1)]
    assert len(keys("DISTINCT a", document={"a": texts[:fit]})) == fit
    assert refused("DISTINCT a", {"a": texts}) == "too_many_keys"
    assert len(keys("DISTINCT a", document={"a": texts[:fit] * 5})) == fit


WORDS = [
    "ARRAY",
    "FOR",
    "x",
    "IN",
    "END",
    "DISTINCT",
    "(",
    ")",
    "CASE",
    "WHEN",
    "THEN",
    "[",
    "]",
    ",",
    "1",
]
LONG, MANY = "x" * 900_000, list(range(100_000))
EACH_OF_A = "DISTINCT ARRAY x FOR x IN a WHEN"
HEAVY = [
    ("DISTINCT tags", "big", {"tags": MANY[:4_000], "big": LONG}, "key_too_long"),
    ("DISTINCT tags", "name", {"tags": MANY[:40_000], "name": "n"}, "too_many_keys"),
    ("DISTINCT ARRAY s || x FOR x IN a END", "n", {"s": LONG, "a": ["y"] * 8_000}, TOO_MANY),
    ("DISTINCT ARRAY n || x FOR x IN a END", "n", {"n": "y" * 900, "a": ["y"] * 8_000}, TOO_MANY),
    ("DISTINCT ARRAY (DISTINCT b) FOR x IN a END", "n", {"a": MANY[:8_000], "b": MANY}, TOO_MANY),
    ("DISTINCT ARRAY (DISTINCT b) FOR x IN a END", "n", {"a": [1] * 99, "b": [2] * 90}, TOO_MANY),
    ("DISTINCT ARRAY b FOR x IN a END", "n", {"a": MANY[:8_000], "b": MANY}, TOO_MANY),
    (f"{EACH_OF_A} x IN a END", "n", {"a": MANY[:8_000]}, TOO_MANY),
    (f"{EACH_OF_A} s LIKE '%y%' END", "n", {"a": MANY[:8_000], "s": LONG}, TOO_MANY),
    (f"{EACH_OF_A} o = o END", "n", {"a": MANY[:8_000], "o": MANY}, TOO_MANY),
    (f"{EACH_OF_A} {'x + ' * 200} 1 > 0 END", "n", {"a": MANY[:8_000]}, TOO_MANY),
]


@pytest.mark.parametrize(("text", "more", "document", "code"), HEAVY, ids=range(len(HEAVY)))
def test_a_small_document_is_no_large_work(text: str, more: str, document: Any, code: str) -> None:
    """What would fill the memory is refused as soon as that is seen: nothing is made before."""
    evaluate = compile_index(index(expressions=(normalise_expression(text, key=True), more)))
    tracemalloc.start()
    try:
        with pytest.raises(EvaluationError) as caught:
            evaluate("d", document)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.code == code


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.sampled_from("ax"), SCALARS)
DOCUMENTS = st.dictionaries(st.sampled_from("abx"), VALUES | st.lists(VALUES, max_size=5))
WITH_X = "DISTINCT ARRAY v.x FOR v IN a WHEN v.a > 0 END"


def _of_a(document: Any) -> list[Any]:
    value = oracle.get(document, "a")
    return (value or [oracle.ABSENT]) if isinstance(value, list) else [value]


def _with_x(document: Any) -> list[Any]:
    value = oracle.get(document, "a")
    if not isinstance(value, list):
        return [value if value is oracle.ABSENT else None]
    large = [v for v in value if isinstance(v, dict) and _is_large(v.get("a"))]
    return [v["x"] for v in large if "x" in v] or [oracle.ABSENT]


def _is_large(value: Any) -> bool:
    """Tell whether it is more than 0 and no NULL: a text is, and so is an array."""
    return value is not None and oracle.compare(value, 0) > 0


@pytest.mark.thorough
@examples(300)
@given(DOCUMENTS)
@pytest.mark.parametrize(("text", "elements"), [("DISTINCT a", _of_a), (WITH_X, _with_x)])
def test_keys_are_those_of_an_oracle(text: str, elements: Any, document: Any) -> None:
    wanted: list[Any] = []
    for element in elements(document):
        if not any(oracle.compare(element, one) == 0 for one in wanted):
            wanted.append(element)
    b = oracle.get(document, "b")
    wanted.sort(key=cmp_to_key(oracle.compare))

    def plain(key: tuple[Any, ...]) -> list[Any]:
        return [oracle.ABSENT if value is MISSING else value for value in key]

    assert list(map(plain, keys("META().id", text, "b", document=document))) == [
        ["doc::1", element, b] for element in wanted
    ]
    leading = [[element, b] for element in wanted if element is not oracle.ABSENT]
    assert list(map(plain, keys(text, "b", document=document) or [])) == leading


@examples(200)
@given(st.lists(st.sampled_from(WORDS), max_size=14))
def test_any_words_are_read_or_refused_and_what_is_read_is_read_again(words: list[str]) -> None:
    try:
        normal = normalise_expression(" ".join(words), key=True)
    except SqlError:
        return
    assert normalise_expression(normal, key=True) == normal


OPENERS = [
    *("(", "[", "f(", "a[", "ARRAY(", "ARRAY[", "INT[", "LIST[", "STRUCT(", "STRUCT[", "DECIMAL("),
    *("DATE(", "OBJECT(", "ANY(", "EXISTS(", "TIMESTAMP(", "x::INT[", "CAST(1 AS ARRAY[", "ROW("),
    *("a IN (", "a IN [", "COALESCE(", "EXTRACT(x FROM ", "x AT TIME ZONE ", "IF(", "MAP["),
    *("IF[", "SAFE_DIVIDE(x, ", "TO_ARRAY(", "SORT_ARRAY(x, ", "TS_OR_DS_TO_DATE(x, ", "NVL2(x, "),
    *(
        "LOWER(",
        "CONCAT(x, ",
        "COALESCE(x, ",
        "NULLIF(x, ",
        "ROUND(",
        "TRIM(",
        "SUBSTR(",
        "MOD(1, ",
    ),
    *("IFNULL(", "GREATEST(x, ", "TYPEOF(", "ARRAY_LENGTH(", "IF(x, y, ", "IFMISSING("),
    *("CASE WHEN ", "ARRAY x FOR x IN ", "DISTINCT ", "NOT ", "- ", "META(", "x -> ", "LIKE "),
]

STEPS_MAX = 20_000


@pytest.mark.thorough
@pytest.mark.parametrize("opener", OPENERS)
def test_what_nests_costs_no_more_with_each_level(
    opener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser that tries two readings of each level takes for ever for twenty of them."""
    steps = Counter[str]()
    advance = sqlglot.Parser._advance

    def counted(self: Any, times: int = 1) -> None:
        steps["all"] += 1
        assert steps["all"] < STEPS_MAX  # It is no SQL then: who called takes it for that.
        advance(self, times)

    def made(self: Any, **arguments: Any) -> None:
        steps["all"] += 1
        assert steps["all"] < STEPS_MAX
        init(self, **arguments)

    init = exp.Expr.__init__
    monkeypatch.setattr(exp.Expr, "__init__", made)
    monkeypatch.setattr(sqlglot.Parser, "_advance", counted)
    closers = {"(": ")", "[": "]"}
    closing = "".join(closers.get(letter, "") for letter in opener)[::-1]
    levels = 22 // max(1, len(closing))
    for end in (closing, " END", " WHEN TRUE END", " THEN 1 END", ""):
        with suppress(SqlError):
            normalise_expression(opener * levels + "x" + end * levels, key=True)
    assert steps["all"] < STEPS_MAX

"""Expressions of index definitions: what they mean, what they refuse, and that no document hurts.

Values are written as JSON; `MISSING` is what a document does not have.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.keys.collation import MISSING, encode_key
from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.key_versions import KEY_BYTES_MAX
from coordinator.core.model import commands
from coordinator.language import ddl_parser, expressions
from coordinator.language.ddl_commands import normalised, read_command
from coordinator.language.ddl_parser import (
    CreateIndex,
    SqlError,
    normalise_expression,
    parse_script,
)
from coordinator.language.expressions import (
    EvaluationError,
    ExpressionError,
    check,
    check_keys,
    compile_expression,
    compile_index,
    compile_whole,
)
from coordinator.language.expressions.like import matcher
from tests.conftest import examples
from tests.support.keys import components, order, texts, values
from tests.support.ranged_indexes import index

TRAVEL = Path(__file__).parents[3] / "examples" / "travel.sql"
EXPRESSIONS = Path(__file__).parents[3] / "docs" / "expressions.md"

DOCUMENT: dict[str, Any] = {
    "t": True,
    "f": False,
    "n": None,
    "i": 7,
    "z": 0,
    "d": 2.5,
    "big": 2**63,
    "s": "Straße",
    "blank": " \t x y\n",
    "a": [1, "two", None, [3], {"k": "v"}],
    "o": {"p": {"q": [10, 20]}, "a b": 1, "null": 2},
    "city": "Paris",
    "MISSING": "quoted",
    "desc": "down",
}


def value(text: str, document: Any = DOCUMENT, document_id: str = "doc::1") -> Any:
    return compile_expression(text)(document, document_id)


def key(document: Any, *expressions: str, where: str | None = None) -> Any:
    """The key of a document as values, or None."""
    one = index(expressions=expressions, where=where)
    raw = compile_index(one)("doc::1", document)
    return None if raw is None else order_of(one).decode(raw)


PATHS = [
    ("city", "Paris"),
    ("`city`", "Paris"),
    ("City", MISSING),
    ("nothing", MISSING),
    ("o.p.q", [10, 20]),
    ("o.p.q[1]", 20),
    ("o.p.q[-1]", 20),
    ("o.p.q[2]", MISSING),
    ("o.p.q[-3]", MISSING),
    ("o.`a b`", 1),
    ("o.null", 2),
    ("o['p'].q[0]", 10),
    ("a[4].k", "v"),
    ("a[3][0]", 3),
    ("a[0].x.y.z.w.v.u", MISSING),
    ("a['k']", MISSING),
    ("o[0]", MISSING),
    ("s[0]", MISSING),
    ("n.x", MISSING),
    ("i.x", MISSING),
    ("a[i - 6]", "two"),
    ("o[n]", MISSING),
    ("a[TRUE]", MISSING),
    ("MISSING", MISSING),
    ("`MISSING`", "quoted"),
    ("`desc`", "down"),
    ("META().id", "doc::1"),
    ("meta().id || '!'", "doc::1!"),
]

CONDITIONS = [
    ("t AND t", True),
    ("t AND f", False),
    ("f AND n", False),
    ("f AND x", False),
    ("x AND f", False),
    ("t AND n", None),
    ("t AND x", MISSING),
    ("n AND x", MISSING),
    ("x AND n", MISSING),
    ("n AND n", None),
    ("t AND i", None),
    ("t OR x", True),
    ("x OR t", True),
    ("f OR f", False),
    ("f OR n", None),
    ("f OR x", MISSING),
    ("n OR x", None),
    ("x OR n", None),
    ("s OR f", None),
    ("NOT t", False),
    ("NOT f", True),
    ("NOT n", None),
    ("NOT x", MISSING),
    ("NOT i", None),
    ("i = 7", True),
    ("i = 7.0", True),
    ("7 = i", True),
    ("i <> 7", False),
    ("t = 1", False),
    ("z = f", False),
    ("big = 9223372036854775808", True),
    ("big > 9223372036854775807", True),
    ("i = n", None),
    ("i = x", MISSING),
    ("n = x", MISSING),
    ("n = n", None),
    ("x = 'a'", MISSING),
    ("n = 'a'", None),
    ("i = 'a'", False),
    ("i <> 'a'", True),
    ("i < 'a'", True),
    ("t < z", True),
    ("city > 1e300", True),
    ("a > city", True),
    ("o >= a", True),
    ("f < t", True),
    ("d > 2", True),
    ("d <= 2", False),
    ("city < 'Q'", True),
    ("a = a", True),
    ("i BETWEEN 7 AND 8", True),
    ("i BETWEEN 8 AND n", False),
    ("i BETWEEN 7 AND n", None),
    ("i BETWEEN x AND 1", False),
    ("i NOT BETWEEN 1 AND 2", True),
    ("n IS NULL", True),
    ("i IS NULL", False),
    ("x IS NULL", MISSING),
    ("n IS NOT NULL", False),
    ("i IS NOT NULL", True),
    ("x IS NOT NULL", MISSING),
    ("x IS MISSING", True),
    ("n IS MISSING", False),
    ("x IS NOT MISSING", False),
    ("n IS VALUED", False),
    ("x IS VALUED", False),
    ("i IS VALUED", True),
    ("x IS NOT VALUED", True),
    ("t IS TRUE", True),
    ("n IS TRUE", False),
    ("x IS NOT TRUE", True),
    ("f IS FALSE", True),
    ("n IS NOT DISTINCT FROM NULL", True),
    ("x IS NOT DISTINCT FROM NULL", False),
    ("x IS DISTINCT FROM 1", True),
    ("i IS NOT DISTINCT FROM 7.0", True),
    ("city IN ('Rome', 'Paris')", True),
    ("city IN ('Rome')", False),
    ("i IN ('Rome')", False),
    ("i IN (1, 7.0)", True),
    ("i IN [1, 7]", True),
    ("t IN (1)", False),
    ("i IN (1, n)", None),
    ("i IN (1, x)", None),
    ("i IN (n, 7)", True),
    ("n IN (1)", None),
    ("n IN ('a')", None),
    ("x IN (1)", MISSING),
    ("x IN ('a')", MISSING),
    ("i IN ()", False),
    ("city NOT IN ('Rome')", True),
    ("'two' IN a", True),
    ("a[3] IN a", True),
    ("5 IN a", None),
    ("5 IN o.p.q", False),
    ("1 IN o", None),
    ("1 IN x", MISSING),
    ("city LIKE 'P%'", True),
    ("city NOT LIKE 'P%'", False),
    ("city LIKE 'P_ris'", True),
    ("city LIKE '%r_s'", True),
    ("city LIKE 'p%'", False),
    ("i LIKE '7'", None),
    ("x LIKE '%'", MISSING),
    ("x NOT LIKE '%'", MISSING),
    ("'50%' LIKE '50!%' ESCAPE '!'", True),
    ("'50x' NOT LIKE '50!%' ESCAPE '!'", True),
]

CALCULATIONS = [
    ("i + 1", 8),
    ("i - 8", -1),
    ("-i", -7),
    ("- -1", 1),
    ("-s", None),
    ("-x", MISSING),
    ("i * d", 17.5),
    ("i / 2", 3.5),
    ("8 / 2", 4),
    ("i / 0", None),
    ("i / 0.0", None),
    ("i % 0", None),
    ("d % 0", None),
    ("i % 4", 3),
    ("-i % 4", -3),
    ("MOD(-i, 4)", -3),
    ("-7.5 % 2", -1.5),
    ("i + city", None),
    ("i + t", None),
    ("i + n", None),
    ("n + x", MISSING),
    ("city + x", MISSING),
    ("9007199254740993 + 0", 2**53 + 1),
    ("big + big", 2.0**64),
    ("ABS(-d)", 2.5),
    ("ABS(n)", None),
    ("ABS(x)", MISSING),
    ("FLOOR(d)", 2),
    ("FLOOR(-d)", -3),
    ("CEIL(d)", 3),
    ("CEILING(-d)", -2),
    ("SIGN(-d)", -1),
    ("SIGN(z)", 0),
    ("SQRT(i + 2)", 3),
    ("SQRT(-1)", None),
    ("ROUND(d)", 3),
    ("ROUND(-d)", -3),
    ("ROUND(0.49999999999999994)", 0),
    ("ROUND(0.125, 2)", 0.13),
    ("ROUND(1.005, 2)", 1),
    ("ROUND(1250, -2)", 1300),
    ("ROUND(-1249, -2)", -1200),
    ("ROUND(1249.9, -2)", 1200),
    ("ROUND(i, 3)", 7),
    ("ROUND(d, 0.5)", None),
    ("ROUND(d, 1000)", None),
    ("ROUND(d, n)", None),
    ("ROUND(s)", None),
]

TEXTS = [
    ("LOWER(s)", "straße"),
    ("UPPER(s)", "STRASSE"),
    ("LOWER(i)", None),
    ("LOWER(x)", MISSING),
    ("LENGTH(s)", 6),
    ("LENGTH('\U0001f600')", 1),
    ("LENGTH(a)", None),
    ("TRIM(blank)", "x y"),
    ("LTRIM(blank)", "x y\n"),
    ("RTRIM(blank)", " \t x y"),
    ("TRIM('xxaxx', 'x')", "a"),
    ("TRIM(LEADING 'x' FROM 'xxaxx')", "axx"),
    ("SUBSTR(city, 1, 2)", "Pa"),
    ("SUBSTRING(city, 2)", "aris"),
    ("SUBSTRING(city FROM 2 FOR 1)", "a"),
    ("SUBSTR(city, -2)", "is"),
    ("SUBSTR(city, -2, 1)", "i"),
    ("SUBSTR(city, 5, 100)", "s"),
    ("SUBSTR(city, 2, 0)", ""),
    ("SUBSTR(city, 2.0)", "aris"),
    ("SUBSTR(city, 0)", None),
    ("SUBSTR(city, 6)", None),
    ("SUBSTR(city, -6)", None),
    ("SUBSTR(city, 1, -1)", None),
    ("SUBSTR(city, 1.5)", None),
    ("SUBSTR(city, n)", None),
    ("SUBSTR(i, 1)", None),
    ("SUBSTR(city, x)", MISSING),
    ("city || '!' || s", "Paris!Straße"),
    ("CONCAT(city, '!', s)", "Paris!Straße"),
    ("city || i", None),
    ("city || n || x", MISSING),
    ("'it''s' 'so'", "it'sso"),
]

CHOICES = [
    ("COALESCE(x, n, i, city)", 7),
    ("COALESCE(x, n)", None),
    ("COALESCE(x)", None),
    ("IFNULL(n, 1)", 1),
    ("NVL(x, 1)", 1),
    ("IFMISSING(x, n, 1)", None),
    ("IFMISSING(x)", None),
    ("IFMISSINGORNULL(x, n, 1)", 1),
    ("NULLIF(i, 7)", None),
    ("NULLIF(i, 8)", 7),
    ("NULLIF(x, 8)", MISSING),
    ("GREATEST(i, n, x, city)", "Paris"),
    ("LEAST(i, n, x, city)", 7),
    ("GREATEST(n, x)", None),
    ("CASE WHEN n THEN 1 WHEN t THEN 2 END", 2),
    ("CASE WHEN i THEN 1 END", None),
    ("CASE WHEN x THEN 1 ELSE MISSING END", MISSING),
    ("CASE city WHEN 'Rome' THEN 1 WHEN 'Paris' THEN 2 ELSE 3 END", 2),
    ("CASE n WHEN NULL THEN 1 ELSE 3 END", 3),
    ("IF(t, 1, 2)", 1),
    ("ARRAY_LENGTH(a)", 5),
    ("ARRAY_LENGTH(o)", None),
    ("ARRAY_LENGTH(x)", MISSING),
    ("TYPEOF(x)", "missing"),
    ("TYPEOF(n)", "null"),
    ("TYPEOF(t)", "boolean"),
    ("TYPEOF(d)", "number"),
    ("TYPEOF(o)", "object"),
    ("NULL", None),
    ("TRUE", True),
    ("1e3", 1000),
    ("-1", -1),
    ("(((i)))", 7),
]

MEANINGS = [*PATHS, *CONDITIONS, *CALCULATIONS, *TEXTS, *CHOICES]


@pytest.mark.thorough
@pytest.mark.parametrize(("text", "meaning"), MEANINGS, ids=[text for text, _ in MEANINGS])
def test_an_expression_means_what_it_says_as_it_was_written_and_as_it_is_kept(
    text: str, meaning: Any
) -> None:
    for form in (text, normalise_expression(text)):
        found = value(form)
        assert encode_key([found]) == encode_key([meaning]), found


REFUSED = [
    ("(", "invalid_expression", ""),
    ("", "invalid_expression", "expected an expression"),
    ("SUM(a)", "invalid_expression", "an aggregate"),
    ("a IN (SELECT 1)", "invalid_expression", "a query"),
    ("a = $1", "invalid_expression", "a parameter"),
    ("ROW_NUMBER() OVER ()", "invalid_expression", "a window function"),
    ("f(a)", "unknown_function", "unknown function F"),
    ("LOWER(f(a))", "unknown_function", "F"),
    ("`f`(a)", "unknown_function", "F"),
    ("IFMISSING()", "unknown_function", "IFMISSING"),
    ("NOW()", "unknown_function", "NOW"),
    ("CURRENT_DATE", "unsupported", "CURRENT_DATE"),
    ("RAND()", "unsupported", "RAND"),
    ("REPLACE(a, 'x', 'y')", "unsupported", "REPLACE"),
    ("POWER(a, 2)", "unsupported", "POWER"),
    ("a::int", "unsupported", "CAST"),
    ("DATE_TRUNC('day', a)", "unsupported", "DATE_TRUNC"),
    ("LENGTH(DISTINCT a)", "unsupported", "DISTINCT"),
    ("FLOOR(a, 2)", "unsupported", "FLOOR with DECIMALS"),
    ("a & b", "unsupported", "BITWISE"),
    ("a ILIKE 'x'", "unsupported", "ILIKE"),
    ("REGEXP_LIKE(a, '(x+)+y')", "unsupported", "REGEXP_LIKE"),
    ("a LIKE b", "unsupported", "the pattern of LIKE must be a string"),
    ("a LIKE ANY ('x', 'y')", "unsupported", "the pattern of LIKE"),
    ("a LIKE 'x' ESCAPE '!!'", "bad_pattern", "one character"),
    ("a LIKE 'x!' ESCAPE '!'", "bad_pattern", "nothing follows"),
    ("a LIKE 'x' ESCAPE b", "invalid_expression", "missing"),
    ("TRIM(a, b)", "unsupported", "TRIM"),
    ("[a, b]", "unsupported", "ARRAY"),
    ("(a, b)", "unsupported", "TUPLE"),
    ("a[0:1]", "unsupported", "SLICE"),
    ("a[1, 2]", "unsupported", "brackets take one index"),
    ("a.0", "unsupported", "a[0]"),
    ("a.b()", "unknown_function", "B"),
    ("a -> 'b'", "unsupported", "JSON_EXTRACT"),
    ("META().cas", "unsupported", "META().id only"),
    ("META(b).id", "unsupported", "META().id only"),
    ("META()", "unsupported", "META().id only"),
    ("a COLLATE x", "unsupported", "COLLATE"),
    ("EXISTS(a)", "unsupported", "EXISTS"),
    ("INTERVAL 1 day", "unsupported", "INTERVAL"),
    ("a IS JSON", "unsupported", "JSON"),
    ("a = ANY(b)", "unsupported", "ANY"),
    ("SUBSTR(a)", "unsupported", "SUBSTR"),
    ("a = 1e400", "bad_number", "too large"),
    ("desc", "unsupported", "must be quoted"),
    ("a = DESC", "unsupported", "must be quoted"),
    ("(" * 20 + "a" + ")" * 20, "too_deep", "deeper than 20"),
    ("LOWER(" * 20 + "a" + ")" * 20, "too_deep", "deeper than 20"),
    ("(" * 1000 + "a" + ")" * 1000, "invalid_expression", "nested too deeply"),
]


@pytest.mark.parametrize(("text", "code", "message"), REFUSED, ids=[r[0][:40] for r in REFUSED])
def test_what_no_document_can_be_asked_is_refused(text: str, code: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check(text)
    assert (caught.value.code, message in caught.value.message) == (code, True), caught.value
    assert "sqlglot" not in caught.value.message


NAMES = sorted(set(re.findall(r"\b([A-Z_]+)\(", EXPRESSIONS.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_function_nests_deeper_than_one_that_nobody_knows(name: str) -> None:
    """It may want more arguments; it is not refused for being unknown."""
    said = ""
    try:
        normalise_expression(f"{name}(" * 6 + "x" + ")" * 6)
    except SqlError as error:
        said = error.message
    assert "does not know" not in said
    with pytest.raises(SqlError, match="does not know"):
        normalise_expression(f"UN{name}(" * 6 + "x" + ")" * 6)


@pytest.mark.parametrize("text", [text for text, _ in MEANINGS])
def test_an_index_that_is_kept_calls_no_function_that_the_parser_does_not_know(text: str) -> None:
    """Or it could not be read again, where that is nested."""
    called = re.findall(r"\b([A-Z_]+)\(", normalise_expression(text))
    assert {name.lower() for name in called} <= ddl_parser._FUNCTIONS


@pytest.mark.parametrize(("text", "fine"), [
    ("a", True), ("a ASC", True), ("a DESC", True), ("a DESC NULLS LAST", True),
    ("a NULLS FIRST", True), ("a NULLS LAST", False), ("a DESC NULLS FIRST", False),
])  # fmt: skip
def test_a_key_may_have_an_order_but_missing_and_null_stay_first(text: str, fine: bool) -> None:
    with pytest.raises(ExpressionError):
        check("a DESC")
    if fine:
        check_keys([normalise_expression(text, key=True)])
    else:
        with pytest.raises(ExpressionError, match="the order is fixed"):
            check_keys([text])


def test_a_long_chain_is_no_depth() -> None:
    text = " AND ".join(f"i > -{n}" for n in range(300))
    assert value(text) is True
    assert value(text.replace(" AND ", " OR ")) is True
    assert value(" || ".join(["city"] * 300)) == "Paris" * 300
    assert value(" + ".join(["i"] * 300)) == 2100
    assert value("o" + ".p" * 100) is MISSING


@pytest.mark.parametrize("form", ["({})", "LOWER({})", "CASE WHEN {} THEN 1 END", "o[{}]", "-({})"])
def test_what_is_accepted_is_evaluated_from_deep_within_a_program_too(form: str) -> None:
    text = "i"
    while True:
        try:
            check(form.format(text))
        except ExpressionError:
            break
        text = form.format(text)

    def deep(calls: int) -> Any:
        return deep(calls - 1) if calls else value(text)

    deep(300)


@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_the_tables_of_logic_are_true(operator: str) -> None:
    page = EXPRESSIONS.read_text(encoding="utf-8")
    head, _, *rows = page[page.index(f"| `{operator}` |") :].split("\n\n")[0].splitlines()
    names = head.strip("| ").split(" | ")[1:]
    for row in rows:
        left, *cells = row.strip("| ").split(" | ")
        for right, cell in zip(names, cells, strict=True):
            found = value(f"{left.strip('*')} {operator} {right}")
            assert found is value(cell), (left, operator, right)


def test_every_code_is_explained() -> None:
    page = EXPRESSIONS.read_text(encoding="utf-8")
    sources = "".join(path.read_text() for path in Path(expressions.__file__).parent.glob("*.py"))
    raised = set(re.findall(r'(?:Expression|Evaluation)Error\(\s*"(\w+)"', sources)) - {"failed"}
    assert len(raised) > 8
    assert {code for code in raised if f"`{code}`" not in page} == set()


# -- indexes -------------------------------------------------------------------------------------


def test_a_document_without_the_leading_key_or_the_predicate_is_not_in_the_index() -> None:
    assert key({"a": 1, "b": 2}, "a", "b") == (1, 2)
    assert key({"a": None}, "a", "b") == (None, MISSING)
    assert key({"b": 2}, "a", "b") is None
    assert key({"a": 1, "c": True}, "a", where="c") == (1,)
    for condition in (False, None, 1, "true", []):
        assert key({"a": 1, "c": condition}, "a", where="c") is None
    assert key({"a": 1}, "a", where="c") is None


def test_a_descending_key_is_decoded_by_the_order_of_its_index() -> None:
    assert key({"a": 1, "b": "x"}, "a", "b DESC") == (1, "x")
    one = compile_index(index(expressions=("a DESC",)))
    low, high = one("", {"a": 1}), one("", {"a": 2})
    assert low is not None
    assert high is not None
    assert high < low


def test_a_primary_index_holds_every_document_under_its_id() -> None:
    primary = compile_index(index(expressions=(), primary=True))
    for document in (None, 1, {}, [1]):
        assert primary("doc::1", document) == encode_key(("doc::1",))


def test_a_key_has_a_greatest_length() -> None:
    evaluate = compile_index(index(expressions=("a",)))
    fits = "x" * (KEY_BYTES_MAX - 2)
    assert len(evaluate("", {"a": fits}) or b"") == KEY_BYTES_MAX
    with pytest.raises(EvaluationError) as caught:
        evaluate("", {"a": fits + "x"})
    assert caught.value.code == "key_too_long"


@pytest.mark.parametrize(
    ("text", "document", "code"),
    [
        ("a", {"a": math.nan}, "not_finite"),
        ("a", {"a": [math.inf]}, "not_finite"),
        ("a", {"a": {1, 2}}, "not_json"),
        ("a", {"a": {1: 2}}, "not_json"),
        ("a * 10", {"a": 1e308}, "not_finite"),
        ("a * 1.5", {"a": 10**400}, "not_finite"),
        ("a * a", {"a": 10**400}, "not_finite"),
        ("a / 3", {"a": 10**400}, "not_finite"),
        ("FLOOR(a)", {"a": math.inf}, "not_finite"),
        ("a < 1", {"a": {1, 2}}, "not_json"),
        ("a || a", {"a": "x" * 2**19 + "x"}, "too_long"),
    ],
    ids=str,
)
def test_what_is_no_key_is_an_error_of_this_document(text: str, document: Any, code: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_index(index(expressions=(text,)))("d", document)
    assert caught.value.code == code


def test_an_index_that_cannot_be_evaluated_is_no_evaluator() -> None:
    with pytest.raises(ExpressionError):
        compile_index(index(expressions=("f(a)",)))
    with pytest.raises(ExpressionError):
        compile_index(index(expressions=("a",), where="f(a)"))


def test_indexes_of_airports_are_evaluated() -> None:
    airport = {"type": "airport", "name": "Heathrow", "city": "London", "lat": 51.47, "lon": -0.46}
    assert key(airport, "LOWER(name)", where="type = 'airport'") == ("heathrow",)
    assert key(airport, "LOWER(name)", where="type = 'route'") is None
    assert key(airport, "country", "city") is None
    grid = ("FLOOR(lat)", "FLOOR(lon)", "elevation DESC")
    assert key(airport, *grid, where="lat BETWEEN -90 AND 90") == (51, -1, MISSING)


def test_the_example_can_be_evaluated() -> None:
    for statement in parse_script(TRAVEL.read_text(encoding="utf-8")):
        assert isinstance(statement, CreateIndex)
        if not statement.primary:
            key({}, *statement.expressions, where=statement.where)


CREATE = commands.CreateIndex(name="i", bucket="b", expressions=("a",))


@pytest.mark.parametrize(
    ("command", "objection"),
    [
        (CREATE, ""),
        (replace(CREATE, where="a > 1 and b is not missing"), ""),
        (replace(CREATE, expressions=("f(a)",)), "unknown function F"),
        (replace(CREATE, where="a = f(b)"), "unknown function F"),
        (replace(CREATE, where="a::int = 1"), "an index cannot use CAST"),
        (
            replace(CREATE, expressions=("a", "SUM(b)")),
            "an index cannot use an aggregate (column 1)",
        ),
        (replace(CREATE, expressions=("a NULLS LAST",)), "the order is fixed"),
    ],
)
def test_what_cannot_be_evaluated_is_objected_to_wherever_it_comes_from(
    command: commands.CreateIndex, objection: str
) -> None:
    by_http = normalised(commands.Request(command=command))
    by_topic = read_command(codec.encode_ddl("r", command), commands.Position(0, 1))
    assert by_http.objection == by_topic.objection
    assert objection in by_http.objection
    assert bool(objection) == bool(by_http.objection)


# -- laws ----------------------------------------------------------------------------------------

documents = st.one_of(
    values,
    st.fixed_dictionaries({}, optional=dict.fromkeys(DOCUMENT, values)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(DOCUMENT, st.floats() | texts)),
)
EVERY = [compile_index(index(expressions=(text, text), where=None)) for text, _ in MEANINGS]
EVERY += [
    compile_index(index(expressions=("1",), where=text)) for text, _ in [*CONDITIONS, *CHOICES]
]


def evaluate_every(document: Any, document_id: str = "doc::1") -> set[str]:
    """The codes of what went wrong."""
    codes = set()
    for evaluate in EVERY:
        try:
            found = evaluate(document_id, document)
        except EvaluationError as error:
            codes.add(error.code)
        else:
            assert found is None or type(found) is bytes
    return codes


KNOWN = {"not_finite", "not_json", "too_long", "key_too_long"}


@examples(50)
@given(documents, texts)
def test_no_document_brings_down_an_evaluator(document: Any, document_id: str) -> None:
    assert evaluate_every(document, document_id) <= {"not_finite"}


def nested(depth: int) -> Any:
    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    return deep


HUGE: list[Any] = [
    *(json.loads('{"a":' * 900 + "1" + "}" * 900), nested(20_000), [[[]]] * 1000),
    *(10**4000, -(10**4000), 5e-324, 1.7e308, "x" * 100_000, "\ud800", "\0"),
]


DEEP = range(2)
"""Of these it takes seconds."""


@pytest.mark.parametrize(
    "place",
    [pytest.param(n, marks=[pytest.mark.thorough] * (n in DEEP)) for n in range(len(HUGE))],
)
def test_no_huge_value_brings_down_an_evaluator(place: int) -> None:
    assert evaluate_every(dict.fromkeys(DOCUMENT, HUGE[place])) <= KNOWN
    assert evaluate_every(HUGE[place]) <= KNOWN


def test_no_object_that_is_no_json_brings_down_an_evaluator() -> None:
    class Odd(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("odd")

    for odd in (Odd(a=1), object(), (1,), b"x", {1, 2}, 1j, Fraction(1, 3)):
        assert evaluate_every(odd) <= KNOWN
        assert evaluate_every(dict.fromkeys(DOCUMENT, odd)) <= KNOWN


@examples(150)
@given(components, components)
def test_comparisons_are_those_of_the_collation(a: Any, b: Any) -> None:
    document = {name: v for name, v in (("a", a), ("b", b)) if v is not MISSING}
    signs = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
    for sign, holds in signs.items():
        found = value(f"a {sign} b", document)
        if a is MISSING or b is MISSING:
            assert found is MISSING
        elif a is None or b is None:
            assert found is None
        else:
            assert found is (order(a, b) in holds)


def test_and_and_or_are_duals_and_do_not_care_for_order() -> None:
    four: list[Any] = [True, False, None, MISSING]
    for a, b, c in product(four, repeat=3):
        document = {n: v for n, v in (("a", a), ("b", b), ("c", c)) if v is not MISSING}

        def says(text: str, document: Any = document) -> Any:
            return value(text, document)

        assert says("a AND b AND c") is says("c AND b AND a") is says("(a AND b) AND (c AND TRUE)")
        assert says("a OR b OR c") is says("c OR b OR a") is says("(a OR b) OR (c OR FALSE)")
        assert says("a OR b") is value("NOT (NOT a AND NOT b)", document) or (
            {a, b} == {None, MISSING}  # As in N1QL: AND of these is MISSING, OR is NULL.
        )


whole = st.integers(-(2**63), 2**63)
doubles = st.floats(-1e100, 1e100)


@examples(150)
@given(whole | doubles, st.integers(-20, 20))
def test_rounding_is_exact_with_ties_away_from_zero(a: float, digits: int) -> None:
    scaled = abs(Fraction(a)) * Fraction(10) ** digits
    nearest = math.floor(scaled + Fraction(1, 2)) * Fraction(10) ** -digits
    expected = nearest if a > 0 else -nearest
    if isinstance(a, int) and digits >= 0:
        expected = Fraction(a)
    found = value(f"ROUND(a, {digits})", {"a": a})
    assert found == (expected if isinstance(a, int) or digits == 0 else float(expected))


@examples(150)
@given(whole, whole)
def test_whole_numbers_are_calculated_exactly_while_they_fit(a: int, b: int) -> None:
    document = {"a": a, "b": b}
    for sign, expected in (("+", a + b), ("-", a - b), ("*", a * b)):
        exact = -(2**64) < expected < 2**64
        assert value(f"a {sign} b", document) == (expected if exact else float(expected))
    if b:
        assert value("a % b", document) == a - b * int(Fraction(a, b))
        assert value("a / b", document) == a / b


# -- LIKE ----------------------------------------------------------------------------------------

like_texts = st.text("ab_%", max_size=8)


def is_like(text: str, pattern: str) -> bool:
    """By the book: where in the pattern each beginning of the text can have come to."""
    places = {0}
    for character in [*text, ""]:
        for at in range(len(pattern)):
            if at in places and pattern[at] == "%":
                places.add(at + 1)
        if not character:
            break
        stay = {at for at in places if at < len(pattern) and pattern[at] == "%"}
        places = stay | {
            at + 1 for at in places if at < len(pattern) and pattern[at] in (character, "_")
        }
    return len(pattern) in places


@examples(500)
@given(like_texts, like_texts)
def test_like_is_as_in_the_book(text: str, pattern: str) -> None:
    assert matcher(pattern)(text) == is_like(text, pattern)


@given(st.text("ab_%!", max_size=8))
def test_an_escaped_text_is_like_itself_only(text: str) -> None:
    escaped = "".join("!" + character for character in text)
    matches = matcher(escaped, "!")
    assert matches(text)
    assert not matches(text + "a")
    assert not text or not matches(text[:-1])


@pytest.mark.parametrize(
    "pattern", ["%a%a%a%a%a%a%b", "%a_a_a_a_a_a%_a%a%b", "%" + "a" * 2000 + "b%"]
)
def test_like_is_linear_in_the_text(pattern: str) -> None:
    begin = time.process_time()
    assert not matcher(pattern)("a" * 200_000)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("type = 'a'", (("type",), "a")),
        ("'a' = type", (("type",), "a")),
        ("x > 3 AND (type = 'a' AND y IS NOT NULL)", (("type",), "a")),
        ("x > 3 AND (type = 'a') AND y IS NOT NULL", (("type",), "a")),
        ("(((`ty pe`) = 'a'))", (("ty pe",), "a")),
        ("a.b.c = 'x'", (("a", "b", "c"), "x")),
        ("a[0] = 'x'", None),
        ("type = 'a' OR type = 'b'", None),
        ("NOT type = 'a'", None),
        ("type = 1", None),
        ("LOWER(type) = 'a'", None),
        ("MISSING = 'a'", None),
        ("type > 'a'", None),
    ],
)
def test_what_a_predicate_requires_can_be_looked_up(where: str, wanted: Any) -> None:
    assert compile_whole(index(where=where)).required == wanted


CONDITIONS = st.sampled_from(
    ["a = 'x'", "'y' = a", "b.c = 'x'", "a > 'w'", "b IS NOT MISSING", "(a = 'x')", "NOT a = 'y'"]
)
PREDICATES = st.recursive(
    CONDITIONS,
    lambda some: st.tuples(some, st.sampled_from(("AND", "OR")), some).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=4,
)
SMALL = st.sampled_from(["x", "y", 1, None, True, ["x"], {"c": "x"}, {"c": "y"}])


@given(PREDICATES, st.dictionaries(st.sampled_from(("a", "b")), SMALL) | SMALL)
def test_what_lacks_what_a_predicate_requires_is_not_in_the_index(
    where: str, document: Any
) -> None:
    evaluate, required, _ = compile_whole(index(expressions=("META().id",), where=where))
    if required is None:
        return
    value = document
    for name in required.path:
        value = value.get(name) if isinstance(value, dict) else None
    if value != required.text:
        assert evaluate("d", document) is None

"""The DDL parser: what it reads, what it refuses and where, and that quoting round-trips."""

import inspect
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.language.ddl_parser import (
    NESTING_MAX,
    AlterIndex,
    BuildIndex,
    CreateIndex,
    DropIndex,
    SqlError,
    normalise_expression,
    parse_script,
    parse_statement,
    quote_name,
)

TRAVEL = Path(__file__).parents[3] / "examples" / "travel.sql"


def index(**fields) -> CreateIndex:
    return CreateIndex(**{"name": "i", "bucket": "b", "expressions": ("c",), **fields})


def primary(**fields) -> CreateIndex:
    return index(**{"name": "#primary", "expressions": (), "primary": True, **fields})


GOOD = [
    ("create index i on b(c)", index()),
    ("CREATE INDEX i ON b(c);", index()),
    ("CREATE INDEX IF NOT EXISTS i ON b(c)", index(if_not_exists=True)),
    ("CREATE INDEX i IF NOT EXISTS ON b(c)", index(if_not_exists=True)),
    ("CREATE INDEX `i` ON \"b\"(`c`)", index(expressions=("`c`",))),
    ("CREATE INDEX `a``;b` ON \"x\"\"y\"(c)", index(name="a`;b", bucket='x"y')),
    ("CREATE INDEX I ON Bücket(c)", index(name="I", bucket="Bücket")),
    ("CREATE INDEX date ON time(Date)", index(name="date", bucket="time", expressions=("Date",))),
    (
        "CREATE INDEX i ON b(lower(c), d.e[0] DESC, a || 'x')",
        index(expressions=("LOWER(c)", "d.e[0] DESC", "a || 'x'")),
    ),
    ("CREATE INDEX i ON b(f(a, g(b)), (c))", index(expressions=("F(a, G(b))", "(c)"))),
    ("CREATE INDEX i ON b(c) WHERE t = ';--''/*'", index(where="t = ';--''/*'")),
    ("CREATE INDEX i ON b(c) WHERE x in (1, 2) and y", index(where="x IN (1, 2) AND y")),
    ("CREATE INDEX i ON b(c) USING GSI", index(using="gsi")),
    ('CREATE INDEX i ON b(c) WITH {"slices": 2}', index(slices=2)),
    ('CREATE INDEX i ON b(c) WITH{"replicas":0,"defer_build":true}',
     index(replicas=0, defer_build=True)),
    ('CREATE INDEX i ON b(c) WITH {"nodes": [2, 1]}', index(nodes=(2, 1))),
    ('CREATE INDEX i ON b(c) WITH {"bounds": [["a\\"b;}"]]};', index(bounds=(('a"b;}',),))),
    ("CREATE INDEX i ON b(c) WITH -- why\n /* not */ {\n}", index()),
    (
        'CREATE INDEX i ON b(c) WHERE d > 1 USING gsi WITH {"slices": 2}',
        index(where="d > 1", using="gsi", slices=2),
    ),
    ("CREATE PRIMARY INDEX ON b", primary()),
    ("CREATE PRIMARY INDEX IF NOT EXISTS ON b", primary(if_not_exists=True)),
    ("CREATE PRIMARY INDEX p ON b USING gsi", primary(name="p", using="gsi")),
    ('CREATE PRIMARY INDEX IF NOT EXISTS `#p` ON b WITH {"replicas": 1}',
     primary(name="#p", if_not_exists=True, replicas=1)),
    (
        'CREATE INDEX i ON b(c, d) WITH {"partitioning": "range", "bounds": [["F", 1.5], [null]]}',
        index(expressions=("c", "d"), partitioning="range", bounds=(("F", 1.5), (None,))),
    ),
    ('CREATE INDEX i ON b(c) WITH {"partitioning": "hash", "slices": 4}',
     index(partitioning="hash", slices=4)),
    ("BUILD INDEX ON b", BuildIndex(bucket="b")),
    ("build index on `b`(i)", BuildIndex(bucket="b", names=("i",))),
    ("BUILD INDEX ON b(i, `#primary`, build) USING gsi;",
     BuildIndex(bucket="b", names=("i", "#primary", "build"))),
    ("ALTER INDEX i ON b RENAME TO j", AlterIndex(name="i", bucket="b", new_name="j")),
    ("alter index b.`i` drop where;", AlterIndex(name="i", bucket="b", drops_where=True)),
    (
        'ALTER INDEX i ON b(c, d DESC) RENAME TO `j k` WHERE rename > 1 WITH {"replicas": 0}',
        AlterIndex(name="i", bucket="b", new_name="j k", expressions=("c", "d DESC"),
                   where="rename > 1", replicas=0),
    ),
    (
        'ALTER PRIMARY INDEX ON b WITH {"nodes": [1, 2], "slices": 3}',
        AlterIndex(name="#primary", bucket="b", nodes=(1, 2), slices=3),
    ),
    ("DROP INDEX i ON b", DropIndex(name="i", bucket="b")),
    ("DROP INDEX IF EXISTS i ON b", DropIndex(name="i", bucket="b", if_exists=True)),
    ("DROP INDEX i IF EXISTS ON b", DropIndex(name="i", bucket="b", if_exists=True)),
    ("DROP INDEX b.i", DropIndex(name="i", bucket="b")),
    ("DROP INDEX IF EXISTS `b`.`i` USING gsi", DropIndex(name="i", bucket="b", if_exists=True)),
    ("DROP PRIMARY INDEX ON b", DropIndex(name="#primary", bucket="b")),
    ("\ufeff/* ; */ DROP INDEX b.i -- ;\n;;", DropIndex(name="i", bucket="b")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meaning"), GOOD, ids=[text for text, _ in GOOD])
def test_a_statement_means_what_it_says(text, meaning):
    assert parse_script(text) == [meaning]
    assert parse_statement(meaning.to_sql()) == meaning


BAD = [
    (
        "SELECT 1", 1, 1,
        "expected CREATE INDEX, DROP INDEX, ALTER INDEX or BUILD INDEX, found SELECT",
    ),
    ("ALTER INDEX i ON b", 1, 19, "expected what to change"),
    ("ALTER INDEX b.i(c)", 1, 16, "expected what to change"),
    ("ALTER INDEX i ON b RENAME j", 1, 27, "expected TO, found j"),
    ("ALTER INDEX i ON b DROP c", 1, 25, "expected WHERE, found c"),
    ("ALTER INDEX i ON b WHERE", 1, 25, "expected an expression"),
    ("ALTER PRIMARY INDEX ON b(c)", 1, 25, "a primary index has no expressions"),
    ('ALTER INDEX i ON b WITH {"defer_build": true}', 1, 20, "defer_build is of a CREATE"),
    ("BUILD PRIMARY INDEX ON b", 1, 7, "expected INDEX, found PRIMARY"),
    ("BUILD INDEX i ON b", 1, 13, "expected ON, found i"),
    ("BUILD INDEX ON b()", 1, 18, "expected the name of an index, found )"),
    ("BUILD INDEX ON b(i", 1, 19, "expected a comma or ), found the end"),
    ("BUILD INDEX ON b(i,)", 1, 20, "expected the name of an index"),
    ("BUILD INDEX ON b(i j)", 1, 20, "expected a comma or ), found j"),
    ("BUILD INDEX ON b.s", 1, 17, "scopes and collections"),
    ("BUILD INDEX ON b WITH {}", 1, 18, "expected the end of the statement"),
    ("EXPLAIN x", 1, 1, "found EXPLAIN"),
    ("CREATE TABLE t", 1, 8, "expected INDEX, found TABLE"),
    ("CREATE", 1, 7, "expected INDEX, found the end of the text"),
    ("CREATE INDEX ON b(c)", 1, 14, "expected a name for the index, found ON"),
    ("CREATE INDEX IF EXISTS i ON b(c)", 1, 17, "expected NOT"),
    ("CREATE INDEX i b(c)", 1, 16, "expected ON, found b"),
    ("CREATE INDEX i ON travel-sample(c)", 1, 25, "must be quoted"),
    ("CREATE INDEX i ON b.s(c)", 1, 20, "scopes and collections"),
    ("CREATE INDEX `` ON b(c)", 1, 14, "empty"),
    ("CREATE INDEX 'i' ON b(c)", 1, 14, "expected a name for the index"),
    ("CREATE INDEX i ON b", 1, 20, "expected (, found the end"),
    ("CREATE INDEX i ON b()", 1, 21, "expected an expression, found )"),
    ("CREATE INDEX i ON b(c,)", 1, 23, "expected an expression, found )"),
    ("CREATE INDEX i ON b(c", 1, 20, "parenthesis is not closed"),
    ("CREATE INDEX i ON b(f(c)", 1, 20, "parenthesis is not closed"),
    ("CREATE INDEX i ON b(c))", 1, 23, "found )"),
    ("CREATE INDEX i ON b(c d)", 1, 23, "at d"),
    ("CREATE INDEX i ON b(c +)", 1, 23, "something is missing"),
    ("CREATE INDEX i ON b(c,\n  d e)", 2, 5, "at e"),
    ("CREATE INDEX i ON b(c AS d)", 1, 23, "at AS"),
    ("CREATE INDEX i ON b(c, SUM(d))", 1, 24, "an aggregate"),
    ("CREATE INDEX i ON b(c, d in (select 1))", 1, 30, "a query"),
    ("CREATE INDEX i ON b(*)", 1, 21, "*"),
    ("CREATE INDEX i ON b(IF c d e)", 1, 24, "at c"),
    ("CREATE INDEX i ON b(ROW_NUMBER() OVER ())", 1, 21, "a window"),
    ("CREATE INDEX i ON b(?)", 1, 21, "a parameter"),
    ("CREATE INDEX i ON b(c = $1)", 1, 25, "a parameter"),
    ("CREATE INDEX i ON b(:c)", 1, 21, "a parameter"),
    ("CREATE INDEX i ON b(@c)", 1, 21, "a parameter"),
    ("CREATE INDEX i ON b({'a': 1})", 1, 21, "unexpected {"),
    ("CREATE INDEX i ON b(c) WHERE", 1, 29, "expected an expression"),
    ("CREATE INDEX i ON b(c) WHERE d = ;", 1, 32, "something is missing"),
    ("CREATE INDEX i ON b(c) WHERE d IS e", 1, 30, "IS with anything but NULL"),
    ("CREATE INDEX i ON b(c) WHERE d IS `missing`", 1, 30, "IS with anything but NULL"),
    ("CREATE INDEX i ON b(c) USING gsi WHERE d", 1, 34, "found WHERE"),
    ("CREATE INDEX i ON b(c) PARTITION BY HASH(d)", 1, 24, "PARTITION BY is not supported"),
    ("CREATE INDEX i ON b(c) WITH", 1, 28, "a JSON object after WITH"),
    ("CREATE INDEX i ON b(c) WITH 3", 1, 29, "a JSON object after WITH"),
    ("CREATE INDEX i ON b(c) WITH {'slices': 1}", 1, 30, "not valid JSON"),
    ('CREATE INDEX i ON b(c) WITH {"slices": 1', 1, 41, "not valid JSON"),
    ('CREATE INDEX i ON b(c)\nWITH {\n "slicez": 1}', 3, 2, 'unknown WITH key "slicez"'),
    ('CREATE INDEX i ON b(c) WITH {"slices": true}', 1, 30, "a whole number from 1, not true"),
    ('CREATE INDEX i ON b(c) WITH {"slices": 0}', 1, 30, "a whole number from 1"),
    ('CREATE INDEX i ON b(c) WITH {"replicas": 1.5}', 1, 30, "a whole number from 0"),
    ('CREATE INDEX i ON b(c) WITH {"replicas": -1}', 1, 30, "a whole number from 0"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": 1}', 1, 30, "a list of different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": [1, 1]}', 1, 30, "different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": ["1"]}', 1, 30, "different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": [true]}', 1, 30, "different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": [-1]}', 1, 30, "different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"nodes": []}', 1, 30, "a list of different indexer ids"),
    ('CREATE INDEX i ON b(c) WITH {"defer_build": 1}', 1, 30, "true or false"),
    ('CREATE INDEX i ON b(c) WITH {"slices": 1, "slices": 2}', 1, 30, "twice"),
    ('CREATE INDEX i ON b(c) WITH {"partitioning": "list"}', 1, 30, '"hash" or "range", not "'),
    ('CREATE INDEX i ON b(c) WITH {"partitioning": []}', 1, 30, '"hash" or "range"'),
    ('CREATE INDEX i ON b(c) WITH {"bounds": ["F"]}', 1, 30, "a list of keys"),
    ('CREATE INDEX i ON b(c) WITH {"bounds": [[]]}', 1, 30, "a list of keys"),
    ('CREATE INDEX i ON b(c) WITH {"bounds": [[[1]]]}', 1, 30, "a list of keys"),
    ('CREATE INDEX i ON b(c) WITH {"bounds": [[1e999]]}', 1, 30, "a list of keys"),
    ('CREATE INDEX i ON b(c) WITH {"bounds": [[NaN]]}', 1, 30, "a list of keys"),
    ("CREATE PRIMARY INDEX ON b(c)", 1, 26, "no expressions"),
    ("CREATE PRIMARY INDEX ON b WHERE c", 1, 27, "no WHERE"),
    ("DROP INDEX i", 1, 13, "expected ON"),
    ("DROP INDEX i ON b c", 1, 19, "expected the end of the statement, or ;"),
    ("DROP INDEX b.i DROP INDEX b.j", 1, 16, "expected the end of the statement"),
    ("DROP INDEX b.i;\r\n\r\n\tDROP INDEX 'x'", 3, 13, "the name of an index"),
    ("DROP INDEX b.i;\n-- x\nDROP INDEX ü.`i", 3, 14, "quoted name is not closed"),
    ("DROP INDEX b.i WHERE c = 'it''s", 1, 26, "string is not closed"),
    ("DROP INDEX b.i; /* x", 1, 17, "comment is not closed"),
    ("CREATE INDEX i ON b(" + "(" * 5000 + "c" + ")" * 5000 + ")", 1, 21, "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message"), BAD, ids=[b[0][:60] for b in BAD])
def test_a_bad_statement_is_refused_where_it_is_wrong(text, line, column, message):
    with pytest.raises(SqlError) as caught:
        parse_script(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in caught.value.message
    assert "sqlglot" not in str(caught.value)


WORDS = [
    *("a", "(", ")", "[", "]", "{", "}", "'x'", "1", ",", ";", ".", "*", "-", "+", "=", "<", "%"),
    *("||", "::", "@x", ":p", "?", "NOT", "AND", "OR", "LIKE", "IN", "IS", "NULL", "CASE", "WHEN"),
    *("THEN", "ELSE", "END", "BETWEEN", "ASC", "DESC", "ANY", "ARRAY", "FOR", "RETURNING"),
    *("ESCAPE", "COLLATE", "OVER", "INTERVAL", "CAST", "EXTRACT", "DATE", "USING", "EXCEPT"),
    *("UNION", "SELECT", "FROM", "WITH", "VALUES", "META()", "STRUCT", "EXISTS", "PRIOR"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("key", [True, False], ids=["key", "where"])
def test_no_pair_of_words_ends_in_anything_but_a_result_or_a_refusal(key: bool):
    for text in (" ".join(words) for number in (1, 2) for words in product(WORDS, repeat=number)):
        with suppress(SqlError):
            normalise_expression(text, key=key)


@pytest.mark.parametrize("text", ["ELSE", "ELSE a", "THEN", "WHEN a"])
def test_a_word_that_begins_no_expression_is_refused(text):
    for key in (True, False):
        with pytest.raises(SqlError):
            normalise_expression(text, key=key)
    with pytest.raises(SqlError):
        parse_script(f"CREATE INDEX i ON b({text})")


def test_what_stumbles_over_a_text_is_a_refusal(monkeypatch):
    def stumble(*_, **__):
        raise KeyError("odd")

    monkeypatch.setattr("sqlglot.Parser.parse_into", stumble)
    with pytest.raises(SqlError, match="not an expression: KeyError"):
        normalise_expression("a")
    monkeypatch.setattr("sqlglot.Dialect.tokenize", stumble)
    with pytest.raises(SqlError, match="cannot be read"):
        normalise_expression("a")


NESTS = {
    "paren": ("(", ")"), "function": ("LOWER(", ")"), "case": ("CASE WHEN a THEN ", " END"),
    "condition": ("CASE WHEN ", " THEN 1 END"), "not": ("NOT ", ""), "minus": ("- ", ""),
    "negated": ("NOT (", ")"), "between": ("(a BETWEEN 1 AND ", ")"), "in": ("(a IN (", " ))"),
    "argument": ("COALESCE(1, ", ")"), "element": ("a[", "]"), "or": ("(a OR ", ")"),
}  # fmt: skip
ROWS = {
    "names": ".a", "elements": "[0]", "mixed": " + a - a", "remainder": " % a", "is": " IS NULL",
    "compared": " = a < a", "sum": " + a", "both": " AND a", "text": " || a", "product": " * a",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NESTS, *ROWS])
def test_what_is_accepted_takes_little_stack_wherever_it_is_read_again(name):
    if name in NESTS:
        opening, closing = NESTS[name]
        texts = [opening * number + "a" + closing * number for number in range(1, 2 * NESTING_MAX)]
    else:
        texts = ["a" + ROWS[name] * number for number in (1, 50, 99, 101, 320, 680)]
    accepted = {text for text in texts if _is_expression(text)}
    assert texts[0] in accepted
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 600)
    try:
        assert {text for text in texts if _is_expression(text)} == accepted
    finally:
        sys.setrecursionlimit(before)


def _is_expression(text):
    try:
        normalise_expression(text)
    except SqlError:
        return False
    return True


def test_too_many_tokens_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr("sqlglot.Parser.parse_into", lambda *_: pytest.fail("it was read"))
    with pytest.raises(SqlError, match="more than 2048 tokens"):
        normalise_expression("+".join(["a"] * 1_025))
    with pytest.raises(SqlError, match="nested too deeply"):
        normalise_expression("(" * (NESTING_MAX + 1) + "a" + ")" * (NESTING_MAX + 1))


def test_a_script_that_is_too_long_is_not_read():
    with pytest.raises(SqlError, match="at most 1000000 characters"):
        parse_script(" " * 1_000_001)


def test_an_error_shows_its_line_with_a_caret():
    with pytest.raises(SqlError) as caught:
        parse_script("-- first\nDROP INDEX b.i;\nDROP INDEX x y")
    assert str(caught.value).split("\n") == [
        "line 3, column 14: expected ON, found y",
        "   3 | DROP INDEX x y",
        "     |              ^",
    ]


def test_a_long_line_is_cut_around_the_caret():
    with pytest.raises(SqlError) as caught:
        parse_script("DROP INDEX b.i; " * 100 + "DROP INDEX x y" + "; DROP INDEX b.i" * 100)
    _, excerpt, caret = str(caught.value).split("\n")
    assert len(excerpt) < 120
    assert excerpt[caret.index("^")] == "y"


def test_statements_know_their_place_and_text():
    text = (
        '-- a\r\nCREATE INDEX i ON b(c)\r\n  WITH {"bounds": [["x\\""]]} ; /* b\n */  DROP INDEX b'
        ".i;\n\nCREATE PRIMARY INDEX ON b -- end"
    )
    found = parse_script(text)
    assert [(s.line, s.column) for s in found] == [(2, 1), (4, 6), (6, 1)]
    assert [s.source for s in found] == [
        'CREATE INDEX i ON b(c)\r\n  WITH {"bounds": [["x\\""]]}',
        "DROP INDEX b.i",
        "CREATE PRIMARY INDEX ON b",
    ]


@pytest.mark.parametrize("text", ["", " \n", ";;", "-- only\n/* comments */"])
def test_a_script_may_have_no_statements(text):
    assert parse_script(text) == []
    with pytest.raises(SqlError, match="expected a statement"):
        parse_statement(text)


def test_a_single_statement_is_single():
    with pytest.raises(SqlError) as caught:
        parse_statement("DROP INDEX b.i;\n DROP INDEX b.j")
    assert (caught.value.line, caught.value.column) == (2, 2)


@pytest.mark.parametrize("text", ["", " ", ";", "a;", "a; b", "a, b", "a DESC", "-- a"])
def test_one_expression_is_one_without_an_order(text):
    with pytest.raises(SqlError):
        normalise_expression(text)


def test_the_request_leaves_out_what_the_statement_does_not_say():
    [statement] = parse_script('CREATE INDEX i ON b(c, d) WITH {"nodes": [1]}')
    assert statement.to_request() == {
        "name": "i",
        "bucket": "b",
        "expressions": ["c", "d"],
        "primary": False,
        "nodes": [1],
        "defer_build": False,
        "if_not_exists": False,
    }


def test_the_request_has_bounds_as_json_has_them():
    statement = parse_statement('CREATE INDEX i ON b(c) WITH {"bounds": [["F"], ["P", 1]]}')
    assert statement.to_request()["bounds"] == [["F"], ["P", 1]]


names = st.text(min_size=1, max_size=20)


@given(names, names)
def test_a_quoted_name_is_read_as_it_was(name, bucket):
    statement = DropIndex(name=name, bucket=bucket)
    assert parse_script(f"{statement.to_sql()}; {statement.to_sql()}") == [statement] * 2
    double = '"' + name.replace('"', '""') + '"'
    assert parse_statement(f"DROP INDEX {double} ON {quote_name(bucket)}").name == name


@given(names, st.text(max_size=20))
def test_normalising_a_field_and_a_string_loses_nothing_and_is_done_once(field, string):
    quoted_string = "'" + string.replace("'", "''") + "'"
    text = normalise_expression(f"lower(`{field.replace('`', '``')}`) = {quoted_string}")
    assert normalise_expression(text) == text
    assert quoted_string in text


nodes = st.lists(st.integers(0, 250), min_size=1, unique=True).map(tuple)
components = st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e9, 1e9)
bounds = st.lists(components, min_size=1, max_size=3).map(tuple)
indexes = st.builds(
    CreateIndex,
    name=names,
    bucket=names,
    expressions=st.just(("LOWER(a)", "b.c DESC")),
    where=st.sampled_from([None, "t = 'x;' AND NOT u IS NULL"]),
    using=st.sampled_from([None, "gsi"]),
    slices=st.none() | st.integers(1, 99),
    replicas=st.none() | st.integers(0, 9),
    nodes=st.none() | nodes,
    defer_build=st.booleans(),
    if_not_exists=st.booleans(),
    partitioning=st.sampled_from([None, "hash", "range"]),
    bounds=st.none() | st.lists(bounds, max_size=3).map(tuple),
)
builds = st.builds(BuildIndex, bucket=names, names=st.lists(names, max_size=3).map(tuple))


alters = st.builds(
    AlterIndex,
    name=names,
    bucket=names,
    new_name=names,
    expressions=st.sampled_from([None, ("LOWER(a)", "b.c DESC")]),
    where=st.sampled_from([None, "t = 'x;' AND NOT u IS NULL"]),
    slices=st.none() | st.integers(1, 99),
    replicas=st.none() | st.integers(0, 9),
    nodes=st.none() | nodes,
    partitioning=st.sampled_from([None, "hash", "range"]),
    bounds=st.none() | st.lists(bounds, max_size=3).map(tuple),
)


@given(st.lists(indexes | builds | alters, max_size=3))
def test_definitions_survive_being_written_and_read(definitions):
    assert parse_script(";\n".join(d.to_sql() for d in definitions)) == definitions


@given(st.text(alphabet="CREATE INDX()ib;'`\"{}:1,-/*\n$.WITH", max_size=60))
def test_any_text_is_read_or_refused_inside_itself(text):
    for script in (text, f"CREATE INDEX i ON b({text})"):
        line, column = _refused_at(script) or (1, 1)
        lines = script.split("\n")
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1


def _refused_at(script: str) -> tuple[int, int] | None:
    try:
        parse_script(script)
    except SqlError as error:
        return error.line, error.column
    return None


NORMAL = ["a IS NOT NULL", "a IS MISSING", "a is not valued", "a != 1", "a::int",
          "ifnull(a, b)", "NOT NOT a", "substr(a, 1, 2)", "a NOT LIKE 'x%'", "-a.b", "a[0].b",
          "CASE a WHEN 1 THEN 'x' END",
          "DATE_TRUNC('day', a)", "a - -1", "TRIM(a)", "a BETWEEN 1 AND 2"]  # fmt: skip


@pytest.mark.parametrize("text", NORMAL)
def test_normal_text_is_its_own_normal_text(text):
    once = normalise_expression(text)
    assert normalise_expression(once) == once


def test_the_example_has_repeatable_deferred_definitions_that_fit_three_indexers():
    definitions = parse_script(TRAVEL.read_text(encoding="utf-8"))
    assert len(definitions) == 8
    assert {(d.bucket, d.if_not_exists) for d in definitions} == {("travel", True)}
    assert len({d.name for d in definitions}) == 8
    assert all((d.replicas or 0) + 1 <= 3 and (d.slices or 1) <= 3 for d in definitions)
    assert sum(d.primary for d in definitions) == 1
    assert all(d.defer_build for d in definitions)


def test_importing_the_module_does_not_import_sqlglot():
    program = "import coordinator.language.ddl_parser, sys; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_alter_asks_for_what_it_names_and_for_nothing_else():
    statement = parse_statement('ALTER INDEX i ON b(c) DROP WHERE WITH {"bounds": [["F"]]}')
    assert statement.to_changes() == {"expressions": ["c"], "where": None, "bounds": [["F"]]}
    assert parse_statement("ALTER INDEX b.i RENAME TO j").to_changes() == {"name": "j"}

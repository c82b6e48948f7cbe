"""From the syntax tree of an expression to a function of a document.

`Evaluate(document, document_id)` returns a JSON value or `MISSING`. What a node of the tree may
be, and what it may have, is a list: everything else that sqlglot can parse is refused. Operators
in a row and the steps of a path are one level, however many; what is nested has a limit, so that
what was accepted once is parsed and evaluated wherever it is called from.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from coordinator.core.keys.collation import MISSING
from coordinator.language.expressions import values
from coordinator.language.expressions.errors import EvaluationError, ExpressionError
from coordinator.language.expressions.like import PatternError, matcher

Evaluate = Callable[[Any, str], Any]

DEPTH_MAX = 20
"""sqlglot takes some 25 calls in each other for a level, and Python allows 1000."""

_NO_MEANING = frozenset({"safe", "coalesce", "typed", "is_nvl", "is_null", "ignore_nulls"})
"""What sqlglot notes for other dialects; an index always does the same."""

_ALWAYS_QUOTED = frozenset({"asc", "desc"})


ELEMENTS_MAX = 8_192
"""So many elements an ARRAY … END looks at, nested ones included. One of which more is computed
counts as several: see `_make_array`."""

NODES_OF_ONE, TEXT_OF_ONE, LIST_OF_ONE, MADE_OF_ONE = 64, 1_024, 256, 128
"""So many operators, so long a text and a list that are looked at for each, and so long a text that
is the result, cost as much as another element."""

_LEFT = object()
"""Under this name `ARRAY … END` keeps, beside its variable, how many elements are left to look at.
No field has it: names are texts."""


def compile_tree(tree: exp.Expr) -> Evaluate:
    """Return what evaluates the expression. ExpressionError: it cannot be evaluated."""
    return _Compiler().of(tree)


def compile_elements(tree: exp.Expr) -> Evaluate | None:
    """Return what evaluates to a list of the elements of a `DISTINCT expr`; None: it is none.

    There is at least one, which is MISSING for an array without any. What is no array is the only
    one. ExpressionError: it cannot be evaluated.
    """
    tree = _bare(tree)
    if not isinstance(tree, exp.Distinct):
        return None
    array = _Compiler().of(_of_distinct(tree))

    def evaluate(document: Any, document_id: str) -> list[Any]:
        value = array(document, document_id)
        return (value or [MISSING]) if type(value) is list else [value]

    return evaluate


def _of_distinct(node: exp.Expr) -> exp.Expr:
    """Return what the elements are taken of."""
    if len(node.expressions) != 1 or node.args.get("on"):
        raise ExpressionError("unsupported", "DISTINCT takes one array")
    (array,) = node.expressions
    assert isinstance(array, exp.Expr)
    return array


class Requirement(NamedTuple):
    """What a document must have for a condition to be TRUE: this text at the end of this path."""

    path: tuple[str, ...]
    text: str


def requirement(tree: exp.Expr) -> Requirement | None:
    """Return what a condition requires; None: nothing that can be looked up.

    It is a comparison with a text that all else is ANDed to.
    """
    waiting = [tree]
    while waiting:
        condition = _bare(waiting.pop())
        if isinstance(condition, exp.And):
            waiting += [condition.args["expression"], condition.args["this"]]
        if not isinstance(condition, exp.EQ):
            continue
        sides = condition.args["this"], condition.args["expression"]
        for one, other in (sides, sides[::-1]):
            column = _bare(one)
            found, value = _literal(other)
            if found and type(value) is str and isinstance(column, exp.Column):
                path = tuple(_names(column))
                if path[0].lower() != "missing":
                    return Requirement(path, value)
    return None


def fields(tree: exp.Expr) -> frozenset[str]:
    """Return the fields of a document that an expression can refer to: no others change its value.

    Among them may be words and variables that only look like fields.
    """
    return frozenset(column.parts[0].name for column in tree.find_all(exp.Column))


def _bare(node: exp.Expr) -> exp.Expr:
    """Return what is in brackets."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def constant(value: Any) -> Evaluate:
    return lambda document, document_id: value


class _Compiler:
    """One compilation; it knows how deep it is."""

    def __init__(self) -> None:
        self._depth = 0

    def of(self, node: exp.Expr) -> Evaluate:
        """Return what evaluates `node`."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ExpressionError("too_deep", f"nested deeper than {DEPTH_MAX}")
        maker = _MAKERS.get(type(node))
        if maker is None:
            raise _unsupported(node)
        _refuse_other_parts(node)
        made = maker(self, node)
        self._depth -= 1
        return made

    def all(self, nodes: Sequence[exp.Expr]) -> list[Evaluate]:
        return [self.of(node) for node in nodes]


_Maker = Callable[[_Compiler, Any], Evaluate]
_MAKERS: dict[type[exp.Expr], _Maker] = {}
_PARTS: dict[type[exp.Expr], frozenset[str]] = {}


def _makes(*kinds: type[exp.Expr], has: str = "this") -> Callable[[_Maker], _Maker]:
    """Enter a maker for nodes of these types, which have these parts and no others."""

    def enter(maker: _Maker) -> _Maker:
        for kind in kinds:
            _MAKERS[kind] = maker
            _PARTS[kind] = frozenset(has.split()) | _NO_MEANING
        return maker

    return enter


def _refuse_other_parts(node: exp.Expr) -> None:
    for name, part in node.args.items():
        if part and name not in _PARTS[type(node)]:
            raise _unsupported(node, f" with {name.upper().replace('_', ' ')}")


def _unsupported(node: exp.Expr, detail: str = "") -> ExpressionError:
    if isinstance(node, exp.Anonymous):
        return ExpressionError("unknown_function", f"unknown function {node.name.upper()}")
    text = node.sql_name() if isinstance(node, exp.Func) else node.key.upper()
    if isinstance(node, exp.Cast):
        text = "CAST"
    return ExpressionError("unsupported", f"an index cannot use {text}{detail}")


# -- literals ------------------------------------------------------------------------------------


def _literal(node: exp.Expr) -> tuple[bool, Any]:
    """Tell whether the node is a literal, and which."""
    if isinstance(node, exp.Paren):
        return _literal(node.this)
    if isinstance(node, exp.Neg):
        found, value = _literal(node.this)
        if found and type(value) in (int, float):
            return True, -value
    if isinstance(node, exp.Literal):
        return True, node.this if node.is_string else _number(node.this)
    if isinstance(node, exp.Boolean):
        return True, bool(node.this)
    return isinstance(node, exp.Null), None


def _number(text: str) -> int | float:
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if not re.fullmatch(r"[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?", text):
        raise ExpressionError("bad_number", f"{text[:40]} is no number")
    value = float(text)
    if not math.isfinite(value):
        raise ExpressionError("bad_number", f"{text[:40]} is too large a number")
    return value


@_makes(exp.Literal, has="this is_string")
@_makes(exp.Boolean, exp.Null)
def _make_literal(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    return constant(_literal(node)[1])


@_makes(exp.Paren)
def _make_paren(compiler: _Compiler, node: exp.Paren) -> Evaluate:
    return compiler.of(node.this)


# -- fields --------------------------------------------------------------------------------------


@_makes(exp.Column, has="this table db catalog")
def _make_column(compiler: _Compiler, node: exp.Column) -> Evaluate:
    names = _names(node)
    if len(names) == 1 and not node.this.args.get("quoted"):
        word = names[0].lower()
        if word == "missing":
            return constant(MISSING)
        if word in _ALWAYS_QUOTED:
            raise ExpressionError("unsupported", f"a field named {word} must be quoted: `{word}`")
    return _path(names)


def _names(node: exp.Column) -> list[str]:
    if not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise ExpressionError("unsupported", "an element of an array is written a[0]")
    return [part.name for part in node.parts]


def _path(places: Sequence[Any]) -> Evaluate:
    """Return what goes by these names and numbers from the document to a part of it."""
    if len(places) == 1:
        return _field(places[0])
    if all(type(place) is str for place in places):
        return _path_of_names(places)

    def evaluate(document: Any, document_id: str) -> Any:
        for place in places:
            document = values.element(document, place)
        return document

    return evaluate


def _field(name: str) -> Evaluate:
    def evaluate(document: Any, document_id: str) -> Any:
        return document.get(name, MISSING) if type(document) is dict else MISSING

    return evaluate


def _path_of_names(names: Sequence[str]) -> Evaluate:
    def evaluate(document: Any, document_id: str) -> Any:
        for name in names:
            if type(document) is not dict:
                return MISSING
            document = document.get(name, MISSING)
        return document

    return evaluate


@_makes(exp.Dot, has="this expression")
@_makes(exp.Bracket, has="this expressions offset")
def _make_element(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    if _is_id(node):
        return lambda document, document_id: document_id
    places: list[exp.Expr] = []
    while isinstance(node, exp.Dot | exp.Bracket) and not _is_id(node):
        _refuse_other_parts(node)
        places.insert(0, _place(node))
        node = node.this
    literals = [_literal(place) for place in places]
    if isinstance(node, exp.Column) and all(found for found, _ in literals):
        compiler.of(node)
        return _path([*_names(node), *(value for _, value in literals)])
    container, steps = compiler.of(node), compiler.all(places)

    def evaluate(document: Any, document_id: str) -> Any:
        found = container(document, document_id)
        for step in steps:
            found = values.element(found, step(document, document_id))
        return found

    return evaluate


def _is_id(node: exp.Expr) -> bool:
    """Tell whether this is META().id; refuse what else there may be of META()."""
    if not isinstance(node, exp.Dot) or not isinstance(node.this, exp.Anonymous):
        return False
    if node.this.name.upper() != "META":
        return False
    name = node.expression
    if node.this.expressions or not isinstance(name, exp.Identifier) or name.name != "id":
        raise ExpressionError("unsupported", "of META() an index can use META().id only")
    return True


def _place(node: exp.Dot | exp.Bracket) -> exp.Expr:
    """Return the name or number of an element; a name after a point is a literal, too."""
    if isinstance(node, exp.Bracket):
        if len(node.expressions) != 1 or node.args.get("offset"):
            raise ExpressionError("unsupported", "brackets take one index")
        (place,) = node.expressions
        assert isinstance(place, exp.Expr)
        return place
    if not isinstance(node.expression, exp.Identifier):
        raise _unsupported(node.expression)
    return exp.Literal.string(node.expression.name)


# -- arrays --------------------------------------------------------------------------------------


@_makes(exp.Comprehension, has="this expression iterator condition")
def _make_array(compiler: _Compiler, node: exp.Comprehension) -> Evaluate:
    """ARRAY of_each FOR name IN source WHEN condition END; of DISTINCT arrays the elements.

    A small document, and a short expression, must not keep a projector busy, nor fill its memory.
    So each element costs what its expression does with the fields of the document, and what it
    makes. That is counted, and no clock is asked: all projectors come to the same result.
    """
    name, source = node.args["expression"].name, compiler.of(node.args["iterator"])
    made_of = _bare(node.this)
    is_flat = isinstance(made_of, exp.Distinct)
    of_each = compiler.of(_of_distinct(made_of) if is_flat else made_of)
    condition = node.args.get("condition")
    counts = compiler.of(condition) if condition else None
    parts = [made_of] if condition is None else [made_of, condition]
    nodes = sum(1 for part in parts for _ in part.walk())
    columns = {column for part in parts for column in part.find_all(exp.Column)}
    fields = [_path(_names(column)) for column in columns if _names(column)[0] != name]

    def evaluate(document: Any, document_id: str) -> Any:
        elements = source(document, document_id)
        if type(elements) is not list:
            return MISSING if elements is MISSING else None
        scope = _scope_of(document)
        weight = 1 + nodes // NODES_OF_ONE
        for field in fields:
            value = field(scope, document_id)
            if type(value) is str:
                weight += len(value) // TEXT_OF_ONE
            elif type(value) in (list, dict):
                weight += len(value) // LIST_OF_ONE
        _spend(scope, weight * len(elements))
        found: list[Any] = []
        hidden = scope.get(name, MISSING)
        for element in elements:
            scope[name] = element
            if counts is not None and counts(scope, document_id) is not True:
                continue
            value = of_each(scope, document_id)
            if is_flat and type(value) is list:
                _spend(scope, len(value))
                found += value
            elif value is not MISSING:
                if type(value) is str:
                    _spend(scope, len(value) // MADE_OF_ONE)
                found.append(value)
        scope[name] = hidden
        return found

    return evaluate


def _spend(scope: dict[Any, Any], count: int) -> None:
    """Count elements that are looked at. EvaluationError: they are too many."""
    scope[_LEFT] -= count
    if scope[_LEFT] < 0:
        text = f"more than {ELEMENTS_MAX} elements of arrays, or as much work"
        raise EvaluationError("too_many_elements", text)


def _scope_of(document: Any) -> dict[Any, Any]:
    """Return the fields of a document, to which the variables of arrays may be added.

    An array within another one shares its scope.
    """
    if type(document) is not dict:
        return {_LEFT: ELEMENTS_MAX}
    return document if _LEFT in document else {**document, _LEFT: ELEMENTS_MAX}


@_makes(exp.Distinct, has="expressions on")
def _make_distinct(compiler: _Compiler, node: exp.Distinct) -> Evaluate:
    text = "DISTINCT stands at the beginning of a key, or of what ARRAY … END is of"
    raise ExpressionError("unsupported", text)


# -- conditions ----------------------------------------------------------------------------------


def _chain(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """Return the operands of an operator in a row, without recursion."""
    waiting, found = [node], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            waiting += [node.args["expression"], node.args["this"]]
        else:
            found.append(node)
    return found


@_makes(exp.And, has="this expression")
def _make_and(compiler: _Compiler, node: exp.And) -> Evaluate:
    parts = compiler.all(_chain(node, exp.And))

    def evaluate(document: Any, document_id: str) -> Any:
        result: Any = True
        for part in parts:
            value = part(document, document_id)
            if value is not True:
                if value is False:
                    return False
                result = values.both(result, value)
        return result

    return evaluate


@_makes(exp.Or, has="this expression")
def _make_or(compiler: _Compiler, node: exp.Or) -> Evaluate:
    parts = compiler.all(_chain(node, exp.Or))

    def evaluate(document: Any, document_id: str) -> Any:
        result: Any = False
        for part in parts:
            value = part(document, document_id)
            if value is True:
                return True
            if value is MISSING:
                result = MISSING if result is False else result
            elif value is not False:
                result = None
        return result

    return evaluate


@_makes(exp.Not)
def _make_not(compiler: _Compiler, node: exp.Not) -> Evaluate:
    return _one(compiler, node.this, values.negated)


_COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.EQ: values.equal,
    exp.NEQ: values.comparison(operator.ne),
    exp.LT: values.comparison(operator.lt),
    exp.LTE: values.comparison(operator.le),
    exp.GT: values.comparison(operator.gt),
    exp.GTE: values.comparison(operator.ge),
    exp.NullSafeEQ: values.same,
    exp.NullSafeNEQ: lambda a, b: not values.same(a, b),
}


@_makes(*_COMPARISONS, has="this expression")
def _make_comparison(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    sides = node.args["this"], node.args["expression"]
    if isinstance(node, exp.EQ):
        for one, other in (sides, sides[::-1]):
            found, value = _literal(other)
            if found and type(value) is str:
                return _is_text(compiler.of(one), value)
    return _two(compiler, *sides, _COMPARISONS[type(node)])


def _is_text(operand: Evaluate, text: str) -> Evaluate:
    """What most predicates consist of."""

    def evaluate(document: Any, document_id: str) -> Any:
        value = operand(document, document_id)
        if type(value) is str:
            return value == text
        return values.equal(value, text)

    return evaluate


@_makes(exp.Between, has="this low high")
def _make_between(compiler: _Compiler, node: exp.Between) -> Evaluate:
    operand, low, high = compiler.all([node.this, node.args["low"], node.args["high"]])
    from_low, to_high = _COMPARISONS[exp.GTE], _COMPARISONS[exp.LTE]

    def evaluate(document: Any, document_id: str) -> Any:
        value = operand(document, document_id)
        above = from_low(value, low(document, document_id))
        return values.both(above, to_high(value, high(document, document_id)))

    return evaluate


@_makes(exp.Is, has="this expression")
def _make_is(compiler: _Compiler, node: exp.Is) -> Evaluate:
    operand, what = compiler.of(node.this), node.expression
    if isinstance(what, exp.Null):
        return _after(operand, lambda value: value if value is MISSING else value is None)
    if isinstance(what, exp.Boolean):
        wanted = bool(what.this)
        return _after(operand, lambda value: value is wanted)
    word = what.name.lower() if isinstance(what, exp.Column) else ""
    if word == "missing":
        return _after(operand, lambda value: value is MISSING)
    if word == "valued":
        return _after(operand, lambda value: value is not MISSING and value is not None)
    raise _unsupported(what)


@_makes(exp.In, has="this expressions field")
def _make_in(compiler: _Compiler, node: exp.In) -> Evaluate:
    field = node.args.get("field")
    if isinstance(field, exp.Array):
        candidates = field.expressions
    elif field is not None:
        return _two(compiler, node.this, field, values.among)
    else:
        candidates = node.expressions
    operand = compiler.of(node.this)
    literals = [_literal(candidate) for candidate in candidates]
    if all(found and type(value) is str for found, value in literals):
        return _is_one_of_texts(operand, [value for _, value in literals])
    parts = compiler.all(candidates)
    return lambda d, i: values.among(operand(d, i), [part(d, i) for part in parts])


def _is_one_of_texts(operand: Evaluate, texts: list[str]) -> Evaluate:
    known = frozenset(texts)

    def evaluate(document: Any, document_id: str) -> Any:
        value = operand(document, document_id)
        if type(value) is str:
            return value in known
        return values.among(value, texts)

    return evaluate


@_makes(exp.Like, has="this expression negate")
def _make_like(compiler: _Compiler, node: exp.Like) -> Evaluate:
    return _like(compiler, node, escape="")


def _like(compiler: _Compiler, node: exp.Like, escape: str) -> Evaluate:
    found, pattern = _literal(node.expression)
    if not found or type(pattern) is not str:
        raise ExpressionError("unsupported", "the pattern of LIKE must be a string")
    try:
        matches = matcher(pattern, escape)
    except PatternError as error:
        raise ExpressionError("bad_pattern", f"LIKE: {error}") from None
    like = _one(compiler, node.this, values.textual(matches))
    return _after(like, values.negated) if node.args.get("negate") else like


@_makes(exp.Escape, has="this expression")
def _make_escape(compiler: _Compiler, node: exp.Escape) -> Evaluate:
    found, escape = _literal(node.expression)
    if not isinstance(node.this, exp.Like) or not found or type(escape) is not str or not escape:
        raise ExpressionError("unsupported", "ESCAPE takes one character, behind LIKE")
    return _like(compiler, node.this, escape)


@_makes(exp.Case, has="this ifs default")
def _make_case(compiler: _Compiler, node: exp.Case) -> Evaluate:
    branches = [(when.this, when.args["true"]) for when in node.args["ifs"]]
    return _choice(compiler, node.this, branches, node.args.get("default"))


@_makes(exp.If, has="this true false")
def _make_if(compiler: _Compiler, node: exp.If) -> Evaluate:
    return _choice(compiler, None, [(node.this, node.args["true"])], node.args.get("false"))


def _choice(
    compiler: _Compiler,
    subject: exp.Expr | None,
    branches: Sequence[tuple[exp.Expr, exp.Expr]],
    default: exp.Expr | None,
) -> Evaluate:
    """Return the value of the first branch whose condition is TRUE, or is equal to the subject."""
    chosen = compiler.of(subject) if subject else None
    made = [(compiler.of(when), compiler.of(then)) for when, then in branches]
    otherwise = compiler.of(default) if default else constant(None)

    def evaluate(document: Any, document_id: str) -> Any:
        value = chosen(document, document_id) if chosen else True
        for when, then in made:
            found = when(document, document_id)
            if (values.equal(value, found) if chosen else found) is True:
                return then(document, document_id)
        return otherwise(document, document_id)

    return evaluate


# -- calculations --------------------------------------------------------------------------------

_ARITHMETIC: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.Add: values.add,
    exp.Sub: values.subtract,
    exp.Mul: values.multiply,
    exp.Div: values.divide,
    exp.Mod: values.remainder,
}


@_makes(*_ARITHMETIC, has="this expression")
def _make_arithmetic(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    operations: list[tuple[Callable[[Any, Any], Any], exp.Expr]] = []
    while type(node) in _ARITHMETIC:
        operations.insert(0, (_ARITHMETIC[type(node)], node.args["expression"]))
        node = node.args["this"]
    if len(operations) == 1:
        [(calculate, operand)] = operations
        return _two(compiler, node, operand, calculate)
    first = compiler.of(node)
    steps = [(calculate, compiler.of(operand)) for calculate, operand in operations]

    def evaluate(document: Any, document_id: str) -> Any:
        result = first(document, document_id)
        for calculate, step in steps:
            result = calculate(result, step(document, document_id))
        return result

    return evaluate


@_makes(exp.Neg)
def _make_negative(compiler: _Compiler, node: exp.Neg) -> Evaluate:
    found, value = _literal(node)
    if found:
        return constant(value)
    return _one(compiler, node.this, values.numeric(operator.neg))


_FUNCTIONS: dict[type[exp.Expr], Callable[[Any], Any]] = {
    exp.Lower: values.textual(str.lower),
    exp.Upper: values.textual(str.upper),
    exp.Length: values.textual(len),
    exp.Abs: values.numeric(abs),
    exp.Floor: values.numeric(math.floor),
    exp.Ceil: values.numeric(math.ceil),
    exp.Sign: values.numeric(values.sign),
    exp.Sqrt: values.numeric(values.root),
    exp.Typeof: values.type_name,
    exp.ArraySize: lambda a: len(a) if type(a) is list else values.unknown((a,)),
}


@_makes(*_FUNCTIONS)
def _make_function(compiler: _Compiler, node: exp.Expr) -> Evaluate:
    return _one(compiler, node.args["this"], _FUNCTIONS[type(node)])


@_makes(exp.Round, has="this decimals")
def _make_round(compiler: _Compiler, node: exp.Round) -> Evaluate:
    return _call(compiler, values.rounded, [node.this, node.args.get("decimals")])


@_makes(exp.Substring, has="this start length")
def _make_substring(compiler: _Compiler, node: exp.Substring) -> Evaluate:
    if not node.args.get("start"):
        raise ExpressionError("unsupported", "SUBSTR takes a text, a start and a length")
    return _call(compiler, values.part_of, [node.this, node.args["start"], node.args.get("length")])


@_makes(exp.Trim, has="this expression position")
def _make_trim(compiler: _Compiler, node: exp.Trim) -> Evaluate:
    position = node.args.get("position") or "BOTH"
    strip = {"BOTH": str.strip, "LEADING": str.lstrip, "TRAILING": str.rstrip}[position]
    characters: Any = values.BLANKS
    if node.expression:
        found, characters = _literal(node.expression)
        if not found or type(characters) is not str:
            raise ExpressionError("unsupported", "what TRIM takes away must be a string")
    return _one(compiler, node.this, values.textual(lambda text: strip(text, characters)))


@_makes(exp.DPipe, has="this expression")
def _make_pipe(compiler: _Compiler, node: exp.DPipe) -> Evaluate:
    return _list(compiler, values.joined, _chain(node, exp.DPipe))


@_makes(exp.Concat, has="expressions")
def _make_concat(compiler: _Compiler, node: exp.Concat) -> Evaluate:
    return _list(compiler, values.joined, node.expressions)


@_makes(exp.Coalesce, has="this expressions")
def _make_coalesce(compiler: _Compiler, node: exp.Coalesce) -> Evaluate:
    return _first(compiler, [node.this, *node.expressions])


@_makes(exp.Greatest, has="this expressions")
def _make_greatest(compiler: _Compiler, node: exp.Greatest) -> Evaluate:
    return _list(compiler, values.greatest, [node.this, *node.expressions])


@_makes(exp.Least, has="this expressions")
def _make_least(compiler: _Compiler, node: exp.Least) -> Evaluate:
    return _list(compiler, values.least, [node.this, *node.expressions])


@_makes(exp.Nullif, has="this expression")
def _make_nullif(compiler: _Compiler, node: exp.Nullif) -> Evaluate:
    def unless_equal(a: Any, b: Any) -> Any:
        return None if values.equal(a, b) is True else a

    return _two(compiler, node.this, node.expression, unless_equal)


@_makes(exp.Anonymous, has="this expressions")
def _make_anonymous(compiler: _Compiler, node: exp.Anonymous) -> Evaluate:
    name = node.name.upper()
    if name == "IFMISSING" and node.expressions:
        return _first(compiler, node.expressions, null_too=True)
    if name == "IFMISSINGORNULL" and node.expressions:
        return _first(compiler, node.expressions)
    if name == "META":
        raise ExpressionError("unsupported", "of META() an index can use META().id only")
    raise _unsupported(node)


# -- how operands come together ------------------------------------------------------------------


def _after(operand: Evaluate, function: Callable[[Any], Any]) -> Evaluate:
    return lambda d, i: function(operand(d, i))


def _one(compiler: _Compiler, node: exp.Expr, function: Callable[[Any], Any]) -> Evaluate:
    return _after(compiler.of(node), function)


def _two(
    compiler: _Compiler, one: exp.Expr, other: exp.Expr, function: Callable[[Any, Any], Any]
) -> Evaluate:
    left, right = compiler.of(one), compiler.of(other)
    return lambda d, i: function(left(d, i), right(d, i))


def _call(
    compiler: _Compiler, function: Callable[..., Any], nodes: Sequence[exp.Expr | None]
) -> Evaluate:
    operands = compiler.all([node for node in nodes if node is not None])
    return lambda d, i: function(*[operand(d, i) for operand in operands])


def _list(
    compiler: _Compiler, function: Callable[[Sequence[Any]], Any], nodes: Sequence[exp.Expr]
) -> Evaluate:
    operands = compiler.all(nodes)
    return lambda d, i: function([operand(d, i) for operand in operands])


def _first(compiler: _Compiler, nodes: Sequence[exp.Expr], null_too: bool = False) -> Evaluate:
    """Return the first value that is not MISSING, nor, unless `null_too`, NULL; else NULL.

    What follows it is not evaluated.
    """
    operands = compiler.all(nodes)

    def evaluate(document: Any, document_id: str) -> Any:
        for operand in operands:
            value = operand(document, document_id)
            if value is not MISSING and (value is not None or null_too):
                return value
        return None

    return evaluate

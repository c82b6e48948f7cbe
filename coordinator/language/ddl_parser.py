"""Index DDL as text: CREATE INDEX, DROP INDEX, ALTER INDEX and BUILD INDEX to plain values.

    CREATE INDEX [IF NOT EXISTS] name ON bucket(expr [ASC|DESC], DISTINCT expr [ASC|DESC], …)
        [WHERE condition] [USING method] [WITH {json}]
    CREATE PRIMARY INDEX [IF NOT EXISTS] [name] ON bucket [USING method] [WITH {json}]
    DROP INDEX [IF EXISTS] name ON bucket        DROP INDEX [IF EXISTS] bucket.name
    DROP PRIMARY INDEX [IF EXISTS] ON bucket
    ALTER INDEX name ON bucket[(expr [ASC|DESC], …)] [RENAME TO name]
        [WHERE condition | DROP WHERE] [WITH {json}]        ALTER INDEX bucket.name …
    ALTER PRIMARY INDEX ON bucket [RENAME TO name] [WITH {json}]
    BUILD INDEX ON bucket(name, …) [USING method]      BUILD INDEX ON bucket

`IF [NOT] EXISTS` may also follow the name, as in N1QL. Statements end with `;`. Comments are
`-- …` and `/* … */`. Names may be quoted with backticks or double quotes, doubled inside; a
string has single quotes. The keys of WITH are `slices`, `replicas`, `nodes`, `defer_build`, and
`partitioning` (`hash` or `range`) with, for ranges, `bounds`: the lowest key of each partition but
the first. ALTER leaves as it is what it does not name. BUILD without names is of all indexes of the
bucket that were deferred.

How a script is read:

1. A lexical pass blanks out comments and the JSON objects after WITH, keeping every other
   character where it is, so that offsets stay true. It alone decides what is a string, a
   comment or JSON. (sqlglot takes `CREATE INDEX … WITH {…}` for an opaque command.)
2. sqlglot tokenises what is left; a small recursive descent reads the statement's frame.
3. sqlglot parses the expressions between. They are kept as its normalised text: parsing and
   normalising that text again changes nothing.

sqlglot is slow to import, so it is imported at the first use. Nothing here does I/O. All
statements of a script are read before any is returned.

Reading is total: whatever the text, it ends in a result or in `SqlError`. sqlglot takes stack for
each level of an expression and time for each token, so both have bounds that are looked at before
it is called. What is accepted needs the same stack wherever it is read again.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

from coordinator.core.model import json_text

if TYPE_CHECKING:
    from sqlglot import Dialect, exp
    from sqlglot.tokenizer_core import Token

SCRIPT_LENGTH_MAX = 1_000_000
"""So many characters of statements are read at once: they are all kept until the last one."""

TOKENS_MAX = 2_048
"""So many tokens an expression may have: reading and checking one takes some 60 microseconds. A
list of 1,000 strings has 2,000."""

NESTING_MAX = 24
"""So deep brackets, `CASE` and signs before an operand may be nested: sqlglot takes up to 25 calls
in each other for a level, and Python allows 1,000. An index takes 20 levels anyway."""

FOREIGN_NESTING_MAX = 3
"""So deep calls of functions that an index does not know may be nested. They are refused anyway;
but first they are read, and some double their arguments."""

TREE_DEPTH_MAX = 100
"""So deep the tree of an expression may be. Operators in a row make it deep without brackets; those
of one kind are one level, since sqlglot writes them in a loop."""

PRIMARY_NAME = "#primary"

_LEXEME = re.compile(
    r"""
      (?P<blank> \s+ | \ufeff | --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^']|'')*+' | "(?:[^"]|"")*+" | `(?:[^`]|``)*+` )
    | (?P<open> ['"`] | /\* )
    | (?P<word> \w+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_RESERVED = frozenset(
    {
        *("create", "drop", "index", "primary", "on", "where"),
        *("using", "with", "if", "not", "exists", "partition"),
    }
)
_EXCERPT_WIDTH_MAX = 100
_CAUSE_LENGTH_MAX = 200


class SqlError(Exception):
    """A script that cannot be read; `line` and `column` count from 1."""

    code = "invalid_statement"

    def __init__(self, message: str, line: int, column: int, source_line: str = "") -> None:
        super().__init__(message, line, column, source_line)
        self.message = message
        self.line = line
        self.column = column
        self.source_line = source_line

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}\n{self.excerpt}"

    @property
    def excerpt(self) -> str:
        """The offending line (or its part that matters), and a caret under the place."""
        first = max(0, self.column - 1 - _EXCERPT_WIDTH_MAX * 3 // 4)
        part = self.source_line[first : first + _EXCERPT_WIDTH_MAX].replace("\t", " ")
        gutter = f"{self.line:>4} | "
        caret = " " * (len(gutter) - 2) + "| " + " " * (self.column - 1 - first) + "^"
        return f"{gutter}{part.rstrip()}\n{caret}"


@dataclass(frozen=True, kw_only=True)
class _Statement:
    """Where a statement stands in its script, and its text. Not part of its meaning."""

    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)
    source: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class CreateIndex(_Statement):
    """`CREATE INDEX`, with the fields of `POST /v1/indexes`; None leaves it to the cluster."""

    name: str
    bucket: str
    expressions: tuple[str, ...] = ()
    where: str | None = None
    primary: bool = False
    using: str | None = None
    slices: int | None = None
    replicas: int | None = None
    nodes: tuple[int, ...] | None = None
    defer_build: bool = False
    if_not_exists: bool = False
    partitioning: str | None = None
    bounds: tuple[tuple[Any, ...], ...] | None = None

    def to_request(self) -> dict[str, Any]:
        """Return the body of `POST /v1/indexes`; fields that are None are left out."""
        meaning = {f.name for f in fields(self) if f.compare}
        body = {k: v for k, v in asdict(self).items() if k in meaning and v is not None}
        if self.bounds is not None:
            body["bounds"] = [list(bound) for bound in self.bounds]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in body.items()}

    def to_sql(self) -> str:
        """Return a statement that `parse_script` reads as this one."""
        options = {
            key: getattr(self, key)
            for key in ("slices", "replicas", "nodes", "partitioning", "bounds")
            if getattr(self, key) is not None
        }
        if self.defer_build:
            options["defer_build"] = True
        return (
            f"CREATE {'PRIMARY ' if self.primary else ''}INDEX "
            + ("IF NOT EXISTS " if self.if_not_exists else "")
            + f"{quote_name(self.name)} ON {quote_name(self.bucket)}"
            + ("" if self.primary else f"({', '.join(self.expressions)})")
            + (f" WHERE {self.where}" if self.where else "")
            + (f" USING {quote_name(self.using)}" if self.using else "")
            + (f" WITH {json.dumps(options)}" if options else "")
        )


@dataclass(frozen=True, kw_only=True)
class DropIndex(_Statement):
    """`DROP INDEX` of the index `name` of `bucket`."""

    name: str
    bucket: str
    if_exists: bool = False

    def to_sql(self) -> str:
        """Return a statement that `parse_script` reads as this one."""
        condition = "IF EXISTS " if self.if_exists else ""
        return f"DROP INDEX {condition}{quote_name(self.name)} ON {quote_name(self.bucket)}"


@dataclass(frozen=True, kw_only=True)
class AlterIndex(_Statement):
    """`ALTER INDEX` of the index `name` of `bucket`; None leaves a field as it is."""

    name: str
    bucket: str
    new_name: str | None = None
    expressions: tuple[str, ...] | None = None
    where: str | None = None
    drops_where: bool = False
    slices: int | None = None
    replicas: int | None = None
    nodes: tuple[int, ...] | None = None
    partitioning: str | None = None
    bounds: tuple[tuple[Any, ...], ...] | None = None

    def to_changes(self) -> dict[str, Any]:
        """Return the body of `PATCH /v1/indexes/{id}`."""
        found = {
            "name": self.new_name,
            "expressions": None if self.expressions is None else list(self.expressions),
            "where": self.where,
            "slices": self.slices,
            "replicas": self.replicas,
            "nodes": None if self.nodes is None else list(self.nodes),
            "partitioning": self.partitioning,
            "bounds": None if self.bounds is None else list(map(list, self.bounds)),
        }
        body = {name: value for name, value in found.items() if value is not None}
        return {**body, "where": None} if self.drops_where else body

    def to_sql(self) -> str:
        """Return a statement that `parse_script` reads as this one."""
        options = {
            key: getattr(self, key)
            for key in ("slices", "replicas", "nodes", "partitioning", "bounds")
            if getattr(self, key) is not None
        }
        return (
            f"ALTER INDEX {quote_name(self.name)} ON {quote_name(self.bucket)}"
            + (f"({', '.join(self.expressions)})" if self.expressions is not None else "")
            + (f" RENAME TO {quote_name(self.new_name)}" if self.new_name is not None else "")
            + (f" WHERE {self.where}" if self.where else "")
            + (" DROP WHERE" if self.drops_where else "")
            + (f" WITH {json.dumps(options)}" if options else "")
        )


@dataclass(frozen=True, kw_only=True)
class BuildIndex(_Statement):
    """`BUILD INDEX` of the indexes `names` of `bucket`; without names, of all deferred ones."""

    bucket: str
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a table of statements shows in place of a single name."""
        return ", ".join(self.names) or "*"

    def to_sql(self) -> str:
        """Return a statement that `parse_script` reads as this one."""
        names = f"({', '.join(map(quote_name, self.names))})" if self.names else ""
        return f"BUILD INDEX ON {quote_name(self.bucket)}{names}"


Statement = CreateIndex | DropIndex | AlterIndex | BuildIndex


def parse_script(text: str) -> list[Statement]:
    """Return the statements of `text`, in order; none if it holds only blanks and comments.

    Raises `SqlError` at the first place that is not understood.
    """
    source = _Source(text)
    if len(text) > SCRIPT_LENGTH_MAX:
        raise source.error(f"at most {SCRIPT_LENGTH_MAX} characters can be read at once", 0)
    options = source.blank_comments_and_options()
    return _Parser(source, options, _tokenize(source)).script()


def parse_statement(text: str) -> Statement:
    """Return the single statement that `text` holds, or raise `SqlError`."""
    statements = parse_script(text)
    source = _Source(text)
    if not statements:
        raise source.error("expected a statement", 0)
    if len(statements) > 1:
        second = statements[1]
        line = text.split("\n")[second.line - 1]
        raise SqlError("only one statement is expected here", second.line, second.column, line)
    return statements[0]


def normalise_expression(text: str, *, key: bool = False) -> str:
    """Return the normalised text of one expression, or raise `SqlError`.

    With `key`, an order (`ASC`, `DESC`) may follow, as in the key list of an index.
    """
    return _written(parse_expression(text, key=key))


def parse_expression(text: str, *, key: bool = False) -> exp.Expr:
    """Return the syntax tree of one expression, with `key` an `Ordered`; or raise `SqlError`."""
    source = _Source(text)
    tokens = _tokens_of_expression(source)
    if not tokens:
        raise source.error("expected an expression", 0)
    for token in tokens:
        if source.visible[token.start] == ";":
            raise source.error("expected the end of the expression, found ;", token.start)
    return _Parser(source, {}, tokens).tree(tokens, key=key)


def count_tokens(text: str) -> int:
    """Return how many tokens an expression has: what reading it costs. Raises `SqlError`."""
    return len(_tokens_of_expression(_Source(text)))


def _tokens_of_expression(source: _Source) -> list[Token]:
    source.blank_comments_and_options()
    return _tokenize(source)


def _written(tree: exp.Expr) -> str:
    return tree.sql(dialect=_dialect(), comments=False)


def _names_a_field(tree: exp.Expr) -> bool:
    """Tell whether what follows IS is a column, and none of the words that look like one."""
    from sqlglot import exp

    if not isinstance(tree, exp.Column):
        return False
    quoted = len(tree.parts) > 1 or bool(tree.this.args.get("quoted"))
    return quoted or tree.name.lower() not in ("missing", "valued")


def quote_name(name: str) -> str:
    """Return `name` as an identifier, in backticks unless it is a plain word."""
    if _PLAIN_NAME.fullmatch(name) and name.isascii() and name.lower() not in _RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"


class _Source:
    """The text of a script, and the same text without comments and options (`visible`)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.visible = text

    @functools.cached_property
    def _lines(self) -> list[int]:
        """The offsets at which lines begin."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def error(self, message: str, offset: int) -> SqlError:
        line, column = self.position(offset)
        return SqlError(message, line, column, self.text.split("\n")[line - 1].rstrip("\r"))

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of `offset`, both from 1; a tab is one column."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def blank_comments_and_options(self) -> dict[int, _Options]:
        """Fill `visible` and return the options after each WITH, by the offset of their `{`.

        An object becomes `{}` and blanks: the parser still sees where it stands.
        """
        found: dict[int, _Options] = {}
        pieces: list[str] = []
        offset, last_word = 0, ""
        while offset < len(self.text):
            lexeme = _LEXEME.match(self.text, offset)
            assert lexeme is not None, "the last alternative matches any character"
            kind, end, piece = lexeme.lastgroup, lexeme.end(), lexeme[0]
            if kind == "open":
                raise self.error(_UNCLOSED[piece], offset)
            if kind == "blank":
                piece = re.sub(r"[^\n]", " ", piece)
            elif piece == "{" and last_word == "with":
                found[offset] = _Options.read(self, offset)
                end = found[offset].end
                piece = "{}" + " " * (end - offset - 2)
            elif piece in ("{", "}"):
                raise self.error(f"unexpected {piece}: an object only follows WITH", offset)
            elif piece in ("$", "?"):
                raise self.error("an index cannot use a parameter", offset)
            if kind != "blank":
                last_word = piece.lower() if kind == "word" else ""
            pieces.append(piece)
            offset = end
        self.visible = "".join(pieces)
        assert len(self.visible) == len(self.text)
        return found


_UNCLOSED = {
    "'": "this string is not closed",
    '"': "this quoted name is not closed",
    "`": "this quoted name is not closed",
    "/*": "this comment is not closed",
}


@dataclass(frozen=True)
class _Options:
    """What follows WITH, checked; `end` is the offset behind it."""

    values: dict[str, Any]
    end: int

    @classmethod
    def read(cls, source: _Source, start: int) -> _Options:
        """Return the options of the object at `start`, or raise `SqlError`."""
        duplicates: list[str] = []

        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            counts = Counter(key for key, _ in pairs)
            duplicates.extend(key for key, count in counts.items() if count > 1)
            return dict(pairs)

        decoder = json.JSONDecoder(object_pairs_hook=unique)
        try:
            json_text.end_of(source.text, start)  # How deep it is, before it is read.
            value, end = decoder.raw_decode(source.text, start)
        except json_text.TooDeep:
            raise source.error("WITH is nested too deeply", start) from None
        except json.JSONDecodeError as error:
            raise source.error(f"WITH is not valid JSON: {error.msg}", error.pos) from None
        except ValueError as error:
            raise source.error(f"WITH is not valid JSON: {error}", start) from None

        def at_key(key: str) -> int:
            place = re.compile(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:")
            match = place.search(source.text, start, end)
            return match.start() if match else start

        for key in duplicates:
            raise source.error(f"WITH names {_shown(key)} twice", at_key(key))
        for key, option in value.items():
            if key not in _OPTION_TYPES:
                known = ", ".join(_OPTION_TYPES)
                message = f"unknown WITH key {_shown(key)}: known are {known}"
                raise source.error(message, at_key(key))
            accepts, what = _OPTION_TYPES[key]
            if not accepts(option):
                message = f"WITH key {_shown(key)} must be {what}, not {_shown(option)}"
                raise source.error(message, at_key(key))
        if "nodes" in value:
            value["nodes"] = tuple(value["nodes"])
        if "bounds" in value:
            value["bounds"] = tuple(map(tuple, value["bounds"]))
        return cls(value, end)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_node_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(_is_whole(node, 0) for node in value)
        and len(set(value)) == len(value)
    )


def _is_list_of_keys(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(key, list)
        and key
        and not any(isinstance(component, list | dict) for component in key)
        and all(isfinite(component) for component in key if isinstance(component, float))
        for key in value
    )


_OPTION_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "slices": (lambda v: _is_whole(v, 1), "a whole number from 1"),
    "replicas": (lambda v: _is_whole(v, 0), "a whole number from 0"),
    "nodes": (_is_node_list, "a list of different indexer ids, such as [1, 2]"),
    "defer_build": (lambda v: isinstance(v, bool), "true or false"),
    "partitioning": (lambda v: v in ("hash", "range"), '"hash" or "range"'),
    "bounds": (_is_list_of_keys, "a list of keys, each a list of numbers, strings, …"),
}


def _shown(value: Any) -> str:
    """Return `value` as short JSON for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


@functools.cache
def _dialect() -> Dialect:
    """Return the dialect of expressions: sqlglot's own, with both quotes for names, and with
    `ARRAY expr FOR name IN expr [WHEN condition] END` and `DISTINCT expr`, as N1QL has them."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.tokenizer_core import TokenType

    class IndexDdl(sqlglot.Dialect):
        class Tokenizer(sqlglot.Tokenizer):
            IDENTIFIERS = ["`", '"']  # noqa: RUF012 - the first is the one it writes
            COMMANDS = set()  # noqa: RUF012 - nothing is an opaque command here

        class Parser(sqlglot.Parser):
            NO_PAREN_IF_COMMANDS = False  # nor after IF
            RANGE_PARSERS = {  # noqa: RUF012 - FOR stands within ARRAY only
                kind: parse
                for kind, parse in sqlglot.Parser.RANGE_PARSERS.items()
                if kind != TokenType.FOR
            }
            arrays: frozenset[int] = frozenset()
            """Where an ARRAY … END begins."""

            def _parse_types(
                self, check_func: bool = False, *arguments: Any, **more: Any
            ) -> exp.Expr | None:
                # `check_func`: it is a type, as in DATE '…' and INT[…], or else anything. Trying
                # both takes twice as long with each level of `INT[INT[…`. An index has no types: in
                # a cast one word stands for any of them, until that is refused.
                if check_func or not self._curr:
                    return None
                self._advance()
                return self.expression(exp.DataType(this=exp.DType.UNKNOWN))

            def _parse_if(self) -> exp.Expr | None:
                # Without a bracket it is the name of a field: to try both, again, takes for ever.
                if self._curr and self._curr.token_type == TokenType.L_PAREN:
                    return super()._parse_if()
                self._retreat(self._index - 1)
                return None

            def _parse_function_call(self, *arguments: Any, **more: Any) -> exp.Expr | None:
                if self._curr and self._curr.start in self.arrays:
                    self._advance()
                    return self._parse_array_of()
                is_name = self._prev and self._prev.token_type == TokenType.DOT
                if not is_name and self._match(TokenType.DISTINCT):
                    return self.expression(exp.Distinct(expressions=[self._needed()]))
                return super()._parse_function_call(*arguments, **more)

            def _parse_array_of(self) -> exp.Expr:
                of_each = self._needed()
                self._expect(TokenType.FOR)
                name = self._parse_id_var(any_token=False)
                if name is None or (not name.args.get("quoted") and name.name.lower() in _VALUES):
                    self.raise_error("Expected a name (null, true, false, missing need quotes)")
                self._expect(TokenType.IN)
                source = self._needed()
                condition = self._needed() if self._match(TokenType.WHEN) else None
                self._expect(TokenType.END)
                return self.expression(
                    exp.Comprehension(
                        this=of_each, expression=name, iterator=source, condition=condition
                    )
                )

            def _needed(self) -> exp.Expr | None:
                found = self._parse_disjunction()
                if found is None:
                    self.raise_error("Expected an expression")
                return found

            def _expect(self, kind: TokenType) -> None:
                if not self._match(kind):
                    self.raise_error(f"Expected {kind.name}")

        class Generator(sqlglot.Generator):
            def comprehension_sql(self, expression: exp.Comprehension) -> str:
                of_each, name, source, condition = (
                    self.sql(expression, part)
                    for part in ("this", "expression", "iterator", "condition")
                )
                condition = f" WHEN {condition}" if condition else ""
                return f"ARRAY {of_each} FOR {name} IN {source}{condition} END"

    return sqlglot.Dialect.get_or_raise(IndexDdl)


def _tokenize(source: _Source) -> list[Token]:
    try:
        return _dialect().tokenize(source.visible)
    except Exception as error:
        cause = str(error.__cause__ or error)
        raise source.error(f"cannot be read: {cause[:_CAUSE_LENGTH_MAX]}", 0) from None


def _arrays_of(texts: Sequence[str]) -> list[int]:
    """Return where an `ARRAY … FOR … END` begins: any other `array` is the name of a field."""
    found: list[int] = []
    opened: list[tuple[str, int]] = []
    for at, text in enumerate(texts):
        if at and texts[at - 1] == ".":
            continue  # The name of a field, whatever it is.
        if text == "array" and texts[at + 1 : at + 2] and texts[at + 1] in _NO_BEGINNING:
            continue
        if text in ("(", "[", "case", "array"):
            opened.append((text, at))
        elif text == "for" and opened and opened[-1][0] == "array":
            found.append(opened[-1][1])
            opened[-1] = ("case", at)
        elif text in _CLOSING:
            while opened and opened.pop()[0] != _OPENER_OF.get(text):
                pass
    return found


def _foreign_nesting_of(texts: Sequence[str]) -> int:
    """Return how deep calls of functions that an index does not know are nested in each other."""
    deepest = level = 0
    opened: list[int] = []
    for before, text in pairwise(("", *texts)):
        if text == "(":
            is_call = before[-1:].isalnum() or before[-1:] in ("_", '"', "`")
            opened.append(int(is_call and before not in _FUNCTIONS))
            level += opened[-1]
            deepest = max(deepest, level)
        elif text == ")" and opened:
            level -= opened.pop()
    return deepest


def _nesting_of(texts: Iterable[str]) -> int:
    """Return how deep brackets, CASE and signs before an operand are nested in each other."""
    deepest = level = run = 0
    opened: list[int] = []
    for text in texts:
        if text in _SIGNS:
            run += 1
        elif text in _OPENING:
            opened.append(run + 1)
            level += run + 1
            run = 0
        else:
            run = 0
            if text in _CLOSING and opened:
                level -= opened.pop()
        deepest = max(deepest, level + run)
    return deepest


_NO_BEGINNING = frozenset(
    {
        *(".", ",", ")", "]", "=", "<", ">", "<=", ">=", "<>", "!=", "*", "/", "%", "||", "::"),
        *("from", "for", "in", "is", "and", "or", "like", "between", "desc", "asc", "as"),
        *("when", "then", "else", "end"),
    }
)
"""What no expression begins with: `array` before it is the name of a field."""

_FUNCTIONS = frozenset(
    {
        *("lower", "upper", "length", "trim", "ltrim", "rtrim", "substr", "substring", "concat"),
        *("abs", "sign", "floor", "ceil", "ceiling", "sqrt", "round", "mod", "meta", "typeof"),
        *("coalesce", "ifnull", "nvl", "ifmissing", "ifmissingornull", "nullif", "greatest"),
        *("least", "array_length", "if", "cast"),
        *("in", "and", "or", "not", "when", "then", "else", "like", "between", "is", "from", "for"),
        *("case", "array", "distinct", "escape", "by", "end"),
    }
)
"""Words before a bracket that an index knows: functions, and words that are none. Of a function
that it does not know sqlglot may make something in which the arguments are there twice."""

_VALUES = frozenset({"null", "true", "false", "missing"})
_SIGNS = frozenset({"not", "-", "+", "~", "!"})
_OPENING = frozenset({"(", "[", "{", "case"})
_CLOSING = frozenset({")", "]", "}", "end"})
_OPENER_OF = {")": "(", "]": "[", "end": "case"}


def _depth_of(tree: exp.Expr) -> int:
    """Return how many levels a tree has; operators of one kind in a row are one."""
    from sqlglot import exp

    chains = (exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.DPipe)
    deepest = 0
    waiting: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        for part in node.iter_expressions():
            same = type(part) is type(node) and isinstance(node, chains)
            waiting.append((part, level if same else level + 1))
    return deepest


class _Parser:
    """Recursive descent over the tokens of a script; expressions go to sqlglot.

    Large because it has one method for each rule of the grammar.
    """

    def __init__(self, source: _Source, options: dict[int, _Options], tokens: list[Token]) -> None:
        self._source = source
        self._options = options
        self._tokens = tokens
        self._at = 0

    # What the grammar says, from the top down.

    def script(self) -> list[Statement]:
        statements: list[Statement] = []
        while self._at < len(self._tokens):
            if not self._accept(";"):
                statements.append(self._statement())
                if self._at < len(self._tokens):
                    self._expect(";", "the end of the statement, or ;")
        return statements

    def _statement(self) -> Statement:
        start = self._tokens[self._at]
        kinds: dict[str, type[Statement]] = {
            "create": CreateIndex,
            "drop": DropIndex,
            "alter": AlterIndex,
            "build": BuildIndex,
        }
        verb = next((verb for verb in kinds if self._accept(verb)), "")
        if not verb:
            raise self._unexpected("CREATE INDEX, DROP INDEX, ALTER INDEX or BUILD INDEX")
        primary = verb != "build" and self._accept("primary")
        self._expect("index")
        if verb == "build":
            meaning = self._build()
        else:
            rules = {"create": self._create, "drop": self._drop, "alter": self._alter}
            meaning = rules[verb](primary)
        kind = kinds[verb]
        line, column = self._source.position(start.start)
        source = self._source.text[start.start : self._end()]
        return kind(line=line, column=column, source=source, **meaning)

    def _create(self, primary: bool) -> dict[str, Any]:
        if_not_exists = self._condition("if", "not", "exists")
        name = PRIMARY_NAME
        if not (primary and self._peek("on", "if")):
            name = self._name("a name for the index")
        if_not_exists = self._condition("if", "not", "exists") or if_not_exists
        bucket = self._on_bucket()
        expressions: tuple[str, ...] = ()
        if not primary:
            expressions = self._keys()
        elif self._peek("("):
            raise self._error("a primary index has no expressions")
        if self._peek("partition by", "partition"):
            raise self._error('PARTITION BY is not supported: use WITH {"slices": n}')
        where = None
        if self._peek("where") and primary:
            raise self._error("a primary index has no WHERE")
        if self._accept("where"):
            where = self.expression(self._until("using", "with"), key=False)
        using = self._name("an index method").lower() if self._accept("using") else None
        return {
            "name": name,
            "bucket": bucket,
            "expressions": expressions,
            "where": where,
            "primary": primary,
            "using": using,
            "if_not_exists": if_not_exists,
            **self._with(),
        }

    def _drop(self, primary: bool) -> dict[str, Any]:
        if_exists = self._condition("if", "exists")
        if primary:
            name, bucket = PRIMARY_NAME, self._on_bucket()
        else:
            name = self._name("the name of an index")
            if self._accept("."):
                bucket, name = name, self._name("the name of an index")
                if_exists = self._condition("if", "exists") or if_exists
            else:
                if_exists = self._condition("if", "exists") or if_exists
                bucket = self._on_bucket()
        if self._accept("using"):
            self._name("an index method")
        return {"name": name, "bucket": bucket, "if_exists": if_exists}

    def _alter(self, primary: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"name": PRIMARY_NAME}
        if not primary:
            found["name"] = self._name("the name of an index")
        if not primary and self._accept("."):
            found |= {"bucket": found["name"], "name": self._name("the name of an index")}
        else:
            found["bucket"] = self._on_bucket()
            if self._peek("("):
                if primary:
                    raise self._error("a primary index has no expressions")
                found["expressions"] = self._keys()
        if self._accept("rename"):
            self._expect("to")
            found["new_name"] = self._name("a name for the index")
        if self._accept("where"):
            found["where"] = self.expression(self._until("with"), key=False)
        elif self._accept("drop"):
            self._expect("where")
            found["drops_where"] = True
        at = self._at
        options = self._with()
        if "defer_build" in options:
            raise self._error("defer_build is of a CREATE: it cannot be altered", at)
        if len({**found, **options}) == len(("name", "bucket")):
            raise self._unexpected("what to change: keys, RENAME TO, WHERE, DROP WHERE or WITH")
        return {**found, **options}

    def _build(self) -> dict[str, Any]:
        bucket = self._on_bucket()
        names: list[str] = []
        if self._accept("("):
            while not names or self._accept(","):
                names.append(self._name("the name of an index"))
            self._expect(")", "a comma or )")
        if self._accept("using"):
            self._name("an index method")
        return {"bucket": bucket, "names": tuple(names)}

    def _condition(self, *words: str) -> bool:
        """Take `IF [NOT] EXISTS` whole, or nothing."""
        if not self._accept(words[0]):
            return False
        for word in words[1:]:
            self._expect(word)
        return True

    def _on_bucket(self) -> str:
        self._expect("on")
        bucket = self._name("the name of a bucket")
        if self._peek("."):
            raise self._error("scopes and collections are not supported: name the bucket only")
        return bucket

    def _keys(self) -> tuple[str, ...]:
        opening = self._at
        self._expect("(")
        keys = []
        while True:
            keys.append(self.expression(self._until(",", ")"), key=True))
            if self._accept(")"):
                return tuple(keys)
            if not self._accept(","):
                raise self._error("this parenthesis is not closed", opening)

    def _with(self) -> dict[str, Any]:
        if not self._accept("with"):
            return {}
        brace = self._tokens[self._at].start if self._at < len(self._tokens) else -1
        if brace not in self._options:
            raise self._unexpected('a JSON object after WITH, such as {"replicas": 1}')
        self._at += 2
        return self._options[brace].values

    def _end(self) -> int:
        """Return the offset behind the token just taken, and behind its options if it is `}`."""
        last = self._tokens[self._at - 1]
        options = self._options.get(self._tokens[self._at - 2].start)
        return options.end if options else last.end + 1

    def expression(self, tokens: list[Token], *, key: bool) -> str:
        """Return the normalised text of the expression that `tokens` are, whole."""
        return _written(self.tree(tokens, key=key))

    def tree(self, tokens: list[Token], *, key: bool) -> exp.Expr:
        """Return the syntax tree of the expression that `tokens` are, whole.

        Raises `SqlError` for what sqlglot does not parse, and for what has no value for a
        single document: queries, aggregates, windows, parameters, `*`.
        """
        from sqlglot import ErrorLevel, exp
        from sqlglot.errors import ParseError

        if not tokens:
            raise self._unexpected("an expression")
        texts = [self._text(token) for token in tokens]
        if texts[:2] == ["all", "array"]:
            text = "an index cannot use ALL: DISTINCT makes an entry for each different element"
            raise self._source.error(text, tokens[0].start)
        arrays = _arrays_of(texts)
        for at in arrays:
            texts[at] = "case"  # It ends in END, as that does.
        if _nesting_of(texts) > NESTING_MAX:
            raise self._source.error("nested too deeply", tokens[0].start)
        if _foreign_nesting_of(texts) > FOREIGN_NESTING_MAX:
            text = "functions that an index does not know, nested too deeply"
            raise self._source.error(text, tokens[0].start)
        if len(tokens) > TOKENS_MAX:
            raise self._source.error(f"more than {TOKENS_MAX} tokens", tokens[0].start)
        parser: Any = _dialect().parser(error_level=ErrorLevel.IMMEDIATE)
        parser.arrays = frozenset(tokens[at].start for at in arrays)
        kind = exp.Ordered if key else exp.Condition
        try:
            trees = parser.parse_into(kind, tokens, self._source.visible)
            tree: exp.Expr | None = trees[0] if len(trees) == 1 else None
            if tree is None:
                raise self._source.error("this is not one expression", tokens[0].start)
            if _depth_of(tree) > TREE_DEPTH_MAX:
                raise self._source.error("nested too deeply", tokens[0].start)
            if isinstance(tree.this if key else tree, exp.DataType):
                raise self._source.error("expected an expression, not a type", tokens[0].start)
            self._refuse_what_no_document_has(tree, tokens)
            _written(tree)  # What is nested too deeply for that is refused here.
            return tree
        except ParseError as error:
            detail = error.errors[0] if error.errors else {}
            where = (detail.get("line"), detail.get("col"))
            place = next((t for t in tokens if (t.line, t.col) == where), tokens[0])
            message = str(detail.get("description") or "not an expression")
            if message.startswith("Required keyword"):
                message = "something is missing"
            shown = self._source.text[place.start : place.end + 1]
            raise self._source.error(f"{message}, at {shown}", place.start) from None
        except SqlError:
            raise
        except Exception as error:
            # sqlglot stumbles over some texts that are not SQL: there is no list of them.
            what = f"not an expression: {type(error).__name__}"
            raise self._source.error(what, tokens[0].start) from None

    def _refuse_what_no_document_has(self, tree: exp.Expr, tokens: list[Token]) -> None:
        from sqlglot import exp

        refused: dict[type[exp.Expr], str] = {
            exp.Query: "a query",
            exp.AggFunc: "an aggregate",
            exp.Window: "a window function",
            exp.Placeholder: "a parameter",
            exp.Parameter: "a parameter",
            exp.Star: "*",
            exp.Alias: "an alias",
            exp.WithFill: "WITH FILL",
            exp.Command: "a command",
        }
        for node in tree.walk():
            what = next((what for kind, what in refused.items() if isinstance(node, kind)), None)
            if isinstance(node, exp.Is) and _names_a_field(node.expression):
                what = "IS with anything but NULL, MISSING, VALUED, TRUE and FALSE"
            if what:
                starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
                if isinstance(node, exp.Query):
                    starts = [t.start for t in tokens if self._is(t, ("select", "values"))]
                place = min(starts, default=tokens[0].start)
                raise self._source.error(f"an index cannot use {what}", place)

    # Tokens.

    def _peek(self, *words: str) -> bool:
        """Whether the current token is one of the unquoted `words`."""
        return self._at < len(self._tokens) and self._is(self._tokens[self._at], words)

    def _is(self, token: Token, words: tuple[str, ...]) -> bool:
        return self._text(token) in words

    def _text(self, token: Token) -> str:
        """Return a token as it is written, in small letters; what is quoted keeps its quotes."""
        return " ".join(self._source.visible[token.start : token.end + 1].lower().split())

    def _accept(self, word: str) -> bool:
        taken = self._peek(word)
        self._at += taken
        return taken

    def _expect(self, word: str, what: str = "") -> None:
        if not self._accept(word):
            raise self._unexpected(what or word.upper())

    def _until(self, *ends: str) -> list[Token]:
        """Take the tokens before the first of `ends` outside parentheses, or before `;`."""
        start, depth = self._at, 0
        while self._at < len(self._tokens) and not self._peek(";"):
            if depth == 0 and self._peek(*ends):
                break
            depth += self._peek("(", "[") - self._peek(")", "]")
            self._at += 1
        return self._tokens[start : self._at]

    def _name(self, what: str) -> str:
        """Take an identifier; a reserved word must be quoted to be one."""
        if self._at >= len(self._tokens):
            raise self._unexpected(what)
        token = self._tokens[self._at]
        text = self._source.visible[token.start : token.end + 1]
        if text[0] in '`"':
            if not token.text:
                raise self._error("a name cannot be empty")
            self._at += 1
            return token.text
        if not _PLAIN_NAME.fullmatch(text) or text.lower() in _RESERVED:
            raise self._unexpected(what)
        self._at += 1
        if self._peek("-"):
            raise self._error("a name with - must be quoted, as in `travel-sample`")
        return text

    def _unexpected(self, wanted: str) -> SqlError:
        """Return the error that `wanted` was expected at the current token."""
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            found = self._source.text[token.start : token.end + 1]
            found = found if len(found) <= 40 else found[:39] + "…"
            return self._error(f"expected {wanted}, found {found}")
        end = self._tokens[-1].end + 1 if self._tokens else 0
        return self._source.error(f"expected {wanted}, found the end of the text", end)

    def _error(self, message: str, at: int | None = None) -> SqlError:
        token = self._tokens[self._at if at is None else at]
        return self._source.error(message, token.start)

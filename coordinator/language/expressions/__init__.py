"""Expressions of index definitions, evaluated over JSON documents.

`docs/expressions.md` says what can be written and what it means. An expression is refused when
its index is created (`check`), so that evaluating one (`compile_index`) never meets what it
cannot do: it yields a key, or says that the document is not in the index, or raises
`EvaluationError`, which concerns this one document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from coordinator.core.keys.collation import MISSING, encode_key
from coordinator.core.keys.key_order import DESCENDING, KeyOrder, order_of
from coordinator.core.keys.key_versions import KEY_BYTES_MAX, KEYS_BYTES_MAX, WHERE_HEAD
from coordinator.core.model.entities import Index
from coordinator.language.ddl_parser import SqlError, parse_expression
from coordinator.language.expressions.compiler import (
    Evaluate,
    Requirement,
    compile_elements,
    compile_tree,
    fields,
    requirement,
)
from coordinator.language.expressions.errors import EvaluationError, ExpressionError

__all__ = [
    "Compiled",
    "EvaluationError",
    "Evaluator",
    "ExpressionError",
    "Requirement",
    "check",
    "check_keys",
    "compile_index",
    "compile_whole",
]

Evaluator = Callable[[str, Any], bytes | list[bytes] | None]
"""`Evaluator(document_id, document)`: the encoded key of a document, in the order of its index
(`KeyOrder`); of an index with a DISTINCT key a list of them, in order, each once, and at least one.
None: the document is not in the index. Raises `EvaluationError`, and nothing else.
"""

Made = TypeVar("Made")


def check(text: str) -> None:
    """Raise `ExpressionError` where a predicate, or another expression, cannot be evaluated."""
    compile_expression(text)


def compile_expression(text: str) -> Evaluate:
    """Return what evaluates one expression, or raise `ExpressionError`, and nothing else."""
    return _read(text, False, compile_tree)


def check_keys(texts: Sequence[str]) -> None:
    """Raise `ExpressionError` where these cannot be the keys of one index, or one of them none."""
    _compiled_keys(texts)


def _read(text: str, key: bool, make: Callable[[Any], Made]) -> Made:
    """Return what is made of the tree of an expression; see `compile_expression`."""
    try:
        return make(parse_expression(text, key=key))
    except SqlError as error:
        place = f"{error.message} (column {error.column})"
        raise ExpressionError("invalid_expression", place) from None
    except ExpressionError:
        raise
    except Exception as error:
        # A tree of a shape that no maker expected: there is no list of what sqlglot makes.
        what = f"cannot be evaluated: {type(error).__name__}"
        raise ExpressionError("unsupported", what) from None


class Compiled(NamedTuple):
    """What yields the keys of documents, and what it needs of them.

    `required` must be in a document of the index, if it is something that can be looked up. No
    other field than `fields` changes a key.
    """

    evaluate: Evaluator
    required: Requirement | None
    fields: frozenset[str]


class _Key(NamedTuple):
    """What a key of an index is evaluated by; `is_array`: to a list of the elements."""

    evaluate: Evaluate
    is_array: bool
    fields: frozenset[str]


class _Condition(NamedTuple):
    """What a predicate is evaluated by."""

    evaluate: Evaluate
    required: Requirement | None
    fields: frozenset[str]


def _compiled_key(ordered: Any) -> _Key:
    """Return what evaluates a key, of which this is the tree: an order around an expression."""
    descending = bool(ordered.args.get("desc"))
    if bool(ordered.args.get("nulls_first")) is descending:
        raise ExpressionError("unsupported", "NULLS FIRST and NULLS LAST: the order is fixed")
    found = fields(ordered.this)
    elements = compile_elements(ordered.this)
    if elements is None:
        return _Key(compile_tree(ordered.this), False, found)
    return _Key(elements, True, found)


def _compiled_condition(tree: Any) -> _Condition:
    return _Condition(compile_tree(tree), requirement(tree), fields(tree))


def _compiled_keys(texts: Sequence[str]) -> list[_Key]:
    """Return what evaluates the keys of an index. ExpressionError: it cannot have these."""
    keys = [_read(text, True, _compiled_key) for text in texts]
    if sum(key.is_array for key in keys) > 1:
        raise ExpressionError("unsupported", "an index has at most one DISTINCT key")
    return keys


def compile_index(index: Index) -> Evaluator:
    """Return what yields the keys of documents. ExpressionError: there is no such index."""
    return compile_whole(index).evaluate


def compile_whole(index: Index) -> Compiled:
    """Return what yields the keys of documents, and what it needs of them; reads each text once.

    ExpressionError: there is no such index.
    """
    if index.primary:
        return Compiled(_evaluator_of_primary, None, frozenset())
    keys = _compiled_keys(index.expressions)
    where = None if index.where is None else _read(index.where, False, _compiled_condition)
    looked_at = frozenset().union(*(key.fields for key in keys))
    if where is None:
        return Compiled(_evaluator_of(index, keys, None), None, looked_at)
    evaluate = _evaluator_of(index, keys, where.evaluate)
    return Compiled(evaluate, where.required, looked_at | where.fields)


def _evaluator_of(index: Index, keys: list[_Key], where: Evaluate | None) -> Evaluator:
    """Return what yields the keys of documents: one, or those of the elements of an array."""
    if any(key.is_array for key in keys):
        return _evaluator_of_array(order_of(index), keys, where)
    first, *rest = [key.evaluate for key in keys]
    turned = any(text.endswith(DESCENDING) for text in index.expressions)
    encode = order_of(index).encode if turned else encode_key

    def evaluator(document_id: str, document: Any) -> bytes | None:
        try:
            if where is not None and where(document, document_id) is not True:
                return None
            leading = first(document, document_id)
            if leading is MISSING:
                return None
            if rest:
                key = encode([leading, *[one(document, document_id) for one in rest]])
            else:
                key = encode((leading,))
        except Exception as error:
            raise _as_evaluation_error(error) from None
        if len(key) > KEY_BYTES_MAX:
            raise _too_long(len(key))
        return key

    return evaluator


def _evaluator_of_array(order: KeyOrder, keys: list[_Key], where: Evaluate | None) -> Evaluator:
    """Return what yields a key for each element that is different."""
    (place,) = [place for place, key in enumerate(keys) if key.is_array]
    evaluates = [key.evaluate for key in keys]

    def evaluator(document_id: str, document: Any) -> list[bytes] | None:
        try:
            if where is not None and where(document, document_id) is not True:
                return None
            values = [evaluate(document, document_id) for evaluate in evaluates]
            elements = values[place]
            if place == 0:
                elements = [element for element in elements if element is not MISSING]
            elif values[0] is MISSING:
                return None
            components = [
                b"" if at == place else order.component(at, value)
                for at, value in enumerate(values)
            ]
            before, after = b"".join(components[:place]), b"".join(components[place + 1 :])
            found = _bounded(before, (order.component(place, one) for one in elements), after)
        except Exception as error:
            raise _as_evaluation_error(error) from None
        return sorted(found) or None

    return evaluator


def _bounded(before: bytes, elements: Iterable[bytes], after: bytes) -> set[bytes]:
    """Return the different keys. EvaluationError, as soon as that is known: too many, too long."""
    found: set[bytes] = set()
    size = 0
    for element in elements:
        length = len(before) + len(element) + len(after)
        if length > KEY_BYTES_MAX:
            raise _too_long(length)
        key = before + element + after
        if key not in found:
            found.add(key)
            size += WHERE_HEAD.size + length
            if size > KEYS_BYTES_MAX:
                text = f"keys with more than {KEYS_BYTES_MAX} bytes together"
                raise EvaluationError("too_many_keys", text)
    return found


def _evaluator_of_primary(document_id: str, document: Any) -> bytes | None:
    key = encode_key((document_id,))
    if len(key) > KEY_BYTES_MAX:
        raise _too_long(len(key))
    return key


def _too_long(length: int) -> EvaluationError:
    return EvaluationError("key_too_long", f"a key of {length} bytes; at most {KEY_BYTES_MAX}")


def _as_evaluation_error(error: Exception) -> EvaluationError:
    """Return what the caller is told: no document may bring down who evaluates it."""
    match error:
        case EvaluationError():
            return error
        case OverflowError():
            return EvaluationError("not_finite", "a number is too large to calculate with")
        case ValueError():
            return EvaluationError("not_finite", str(error))
        case TypeError():
            return EvaluationError("not_json", str(error))
        case _:
            return EvaluationError("failed", f"{type(error).__name__}: {error}")

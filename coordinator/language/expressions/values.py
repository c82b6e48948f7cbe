"""What operators and functions do with values: JSON, or `MISSING` for what is not there.

One rule holds for all of them unless they say otherwise: MISSING if any operand is MISSING, else
NULL if any is NULL or of a type that they are not for.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from coordinator.core.keys.collation import MISSING, encode
from coordinator.language.expressions.errors import EvaluationError

WHOLE_MAX = 2**64
"""Arithmetic is exact on whole numbers below this magnitude; what leaves that becomes a double."""
TEXT_LENGTH_MAX = 1 << 20
"""No expression makes a longer text: a short expression could fill the memory."""
DIGITS_MAX = 308
"""How far from the decimal point ROUND works."""
BLANKS = " \t\n\f\r"

_RANKS = {bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}
_NUMBERS = frozenset({int, float})
_NAMES = {1: "boolean", 2: "number", 3: "string", 4: "array", 5: "object"}
_EXACT = Context(prec=1_500, rounding=ROUND_HALF_UP)


def rank(value: Any) -> int:
    """Return the place of a value's type in the collation; it is neither MISSING nor NULL."""
    found = _RANKS.get(type(value))
    if found is None:
        raise EvaluationError("not_json", f"a {type(value).__name__} is no JSON value")
    return found


def unknown(values: Sequence[Any]) -> Any:
    """Return MISSING if that is among the values, else NULL."""
    return MISSING if any(value is MISSING for value in values) else None


def type_name(value: Any) -> str:
    if value is MISSING:
        return "missing"
    return "null" if value is None else _NAMES[rank(value)]


# -- comparing -----------------------------------------------------------------------------------


def order(a: Any, b: Any) -> int:
    """Return -1, 0 or 1 as the collation orders two values that are neither MISSING nor NULL."""
    difference = (found := rank(a)) - rank(b)
    if difference:
        return -1 if difference < 0 else 1
    if found >= _RANKS[list]:
        a, b = encode(a), encode(b)
    return int(a > b) - int(a < b)


def equal(a: Any, b: Any) -> Any:
    """Return TRUE or FALSE, or MISSING or NULL if a value is that."""
    kind = type(a)
    if kind is type(b) and (kind is str or kind is int or kind is bool):
        return a == b
    if a is MISSING or b is MISSING or a is None or b is None:
        return unknown((a, b))
    return order(a, b) == 0


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are one, MISSING and NULL being values like any other."""
    if a is MISSING or b is MISSING or a is None or b is None:
        return a is b
    return order(a, b) == 0


def comparison(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """Return `=`, `<`, …: what `holds` of how two values are ordered."""

    def compare(a: Any, b: Any) -> Any:
        kind, other = type(a), type(b)
        if (kind in _NUMBERS and other in _NUMBERS) or (kind is str and other is str):
            return holds(a, b)
        if a is MISSING or b is MISSING or a is None or b is None:
            return unknown((a, b))
        return holds(order(a, b), 0)

    return compare


def among(value: Any, candidates: Any) -> Any:
    """Tell whether a value is in an array: NULL where it may be, for all that is known."""
    if value is MISSING or candidates is MISSING:
        return MISSING
    if value is None or type(candidates) is not list:
        return None
    doubtful = False
    for candidate in candidates:
        if candidate is None or candidate is MISSING:
            doubtful = True
        elif order(value, candidate) == 0:
            return True
    return None if doubtful else False


def both(a: Any, b: Any) -> Any:
    """AND: FALSE decides, then MISSING, then NULL; what is no boolean counts as NULL."""
    if a is False or b is False:
        return False
    return True if a is True and b is True else unknown((a, b))


def negated(a: Any) -> Any:
    if a is True:
        return False
    if a is False:
        return True
    return MISSING if a is MISSING else None


def greatest(values: Sequence[Any]) -> Any:
    """Return the last of those that are neither MISSING nor NULL, by the collation."""
    return _extreme(values, 1)


def least(values: Sequence[Any]) -> Any:
    """Return the first of those that are neither MISSING nor NULL, by the collation."""
    return _extreme(values, -1)


def _extreme(values: Sequence[Any], sign: int) -> Any:
    found = None
    for value in values:
        if value is not None and value is not MISSING:
            rank(value)
            if found is None or order(value, found) == sign:
                found = value
    return found


# -- numbers -------------------------------------------------------------------------------------


def arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the operation on any two values. ZeroDivisionError in it is NULL."""

    def calculate(a: Any, b: Any) -> Any:
        if not _are_numbers(a, b):
            return unknown((a, b))
        try:
            return number(operation(a, b))
        except ZeroDivisionError:
            return None

    return calculate


def _are_numbers(a: Any, b: Any) -> bool:
    return type(a) in _NUMBERS and type(b) in _NUMBERS


def number(result: Any) -> Any:
    """Return the result of a calculation; one that is too large, or is none, is an error."""
    if type(result) is int and not -WHOLE_MAX < result < WHOLE_MAX:
        result = float(result)
    if type(result) is float and not math.isfinite(result):
        raise EvaluationError("not_finite", "the result is no finite number")
    return result


def _remainder(a: Any, b: Any) -> Any:
    """Return what is left of `a` by a division towards zero: it has the sign of `a`."""
    if type(a) is int and type(b) is int:
        left = abs(a) % abs(b)
        return -left if a < 0 else left
    if b == 0:
        raise ZeroDivisionError
    return math.fmod(a, b)


add = arithmetic(operator.add)
subtract = arithmetic(operator.sub)
multiply = arithmetic(operator.mul)
divide = arithmetic(operator.truediv)
remainder = arithmetic(_remainder)


def numeric(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function on any value."""

    def apply(a: Any) -> Any:
        if type(a) in _NUMBERS:
            return function(a)
        return MISSING if a is MISSING else None

    return apply


def rounded(a: Any, digits: Any = 0) -> Any:
    """Round to so many digits behind the point, or before it: exactly, ties away from zero."""
    if not _are_numbers(a, digits):
        return unknown((a, digits))
    if not -DIGITS_MAX <= digits <= DIGITS_MAX or digits != int(digits):
        return None
    if type(a) is int:
        return a if digits >= 0 else _rounded_whole(a, 10 ** -int(digits))
    if digits == 0:
        whole = math.trunc(a)
        return whole + (1 if a > 0 else -1) if abs(a - whole) >= 0.5 else whole
    step = Decimal(1).scaleb(-int(digits))
    return number(float(Decimal(number(a)).quantize(step, context=_EXACT)))


def _rounded_whole(a: int, step: int) -> int:
    count, left = divmod(abs(a), step)
    magnitude = (count + (2 * left >= step)) * step
    return magnitude if a >= 0 else -magnitude


def root(a: Any) -> Any:
    """Return the square root; there is none of a negative number."""
    return math.sqrt(a) if a >= 0 else None


def sign(a: Any) -> int:
    return int(a > 0) - int(a < 0)


# -- texts ---------------------------------------------------------------------------------------


def textual(function: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the function on any value."""

    def apply(a: Any) -> Any:
        if type(a) is str:
            return function(a)
        return MISSING if a is MISSING else None

    return apply


def joined(parts: Sequence[Any]) -> Any:
    """Return texts one after the other."""
    length = 0
    for part in parts:
        if type(part) is not str:
            return unknown(parts)
        length += len(part)
    if length > TEXT_LENGTH_MAX:
        raise EvaluationError("too_long", f"a text of more than {TEXT_LENGTH_MAX} characters")
    return "".join(parts)


def part_of(text: Any, start: Any, length: Any = WHOLE_MAX) -> Any:
    """Return the characters from `start` on: the first is 1, the last -1; NULL if there is none."""
    if type(text) is not str or not _are_numbers(start, length):
        return unknown((text, start, length))
    if start != int(start) or length != int(length) or length < 0:
        return None
    begin = int(start) - 1 if start > 0 else len(text) + int(start)
    if start == 0 or not 0 <= begin < len(text):
        return None
    return text[begin : begin + int(length)]


# -- arrays and objects --------------------------------------------------------------------------


def element(container: Any, place: Any) -> Any:
    """Return the element of an array or the member of an object; MISSING: there is none."""
    kind = type(container)
    if kind is dict:
        return container.get(place, MISSING) if type(place) is str else MISSING
    if kind is list and type(place) is int and -len(container) <= place < len(container):
        return container[place]
    return MISSING

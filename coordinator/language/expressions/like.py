"""LIKE: `%` is any text, `_` any one character. Every match takes time linear in the text.

No regular expressions: with several `%` they try all ways to spread a text over the pattern. The
first place of each piece between two `%` is always good enough, and pieces without `_` are found
by `str.find`. For pieces with `_` there is no such search: then all places of the pattern that
can have been reached are carried along as the bits of one number, character by character.
"""

from __future__ import annotations

from collections.abc import Callable

Matcher = Callable[[str], bool]

_ANY_TEXT, _ANY_CHARACTER = object(), object()
_Element = object | str


class PatternError(ValueError):
    """A pattern that says nothing."""


def matcher(pattern: str, escape: str = "") -> Matcher:
    """Return what tells whether a text is like `pattern`. After `escape` each character is one."""
    elements = _elements(pattern, escape)
    if _ANY_CHARACTER in elements and _ANY_TEXT in elements:
        return _by_bits(elements)
    if _ANY_CHARACTER in elements:
        return _by_place(elements)
    pieces = _pieces(elements)
    return _by_pieces(pieces) if len(pieces) > 1 else pieces[0].__eq__


def _elements(pattern: str, escape: str) -> list[_Element]:
    if len(escape) > 1:
        raise PatternError("ESCAPE takes one character")
    found: list[_Element] = []
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError("nothing follows the ESCAPE character")
            found.append(escaped)
        elif character == "%":
            if not found or found[-1] is not _ANY_TEXT:
                found.append(_ANY_TEXT)
        else:
            found.append(_ANY_CHARACTER if character == "_" else character)
    return found


def _pieces(elements: list[_Element]) -> list[str]:
    """Return the texts before, between and behind the `%`; there is no `_`."""
    pieces = [""]
    for element in elements:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    return pieces


def _by_pieces(pieces: list[str]) -> Matcher:
    first, *middle, last = pieces
    least = sum(map(len, pieces))

    def matches(text: str) -> bool:
        if len(text) < least or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for piece in middle:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def _by_place(elements: list[_Element]) -> Matcher:
    length = len(elements)
    places = [(at, e) for at, e in enumerate(elements) if isinstance(e, str)]

    def matches(text: str) -> bool:
        return len(text) == length and all(text[at] == character for at, character in places)

    return matches


def _by_bits(elements: list[_Element]) -> Matcher:
    """Bit n of `reached`: the text so far is like the first n elements that are no `%`."""
    takes: dict[str, int] = {}
    takes_any = stays = place = 0
    for element in elements:
        if element is _ANY_TEXT:
            stays |= 1 << place
            continue
        if isinstance(element, str):
            takes[element] = takes.get(element, 0) | 1 << place
        else:
            takes_any |= 1 << place
        place += 1
    takes = {character: bits | takes_any for character, bits in takes.items()}
    whole = 1 << place

    def matches(text: str) -> bool:
        reached = 1
        for character in text:
            reached = (reached & takes.get(character, takes_any)) << 1 | reached & stays
            if not reached:
                return False
        return bool(reached & whole)

    return matches

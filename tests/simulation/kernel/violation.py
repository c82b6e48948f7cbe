"""The one way in which an invariant fails: under its name."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant that does not hold: its name, and how it was found."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


def require(truth: bool, name: str, message: str) -> None:
    if not truth:
        raise Violation(name, message)

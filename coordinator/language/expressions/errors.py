"""What can be wrong with an expression, and with evaluating it."""

from __future__ import annotations


class ExpressionError(Exception):
    """An expression that no document can be asked; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class EvaluationError(Exception):
    """An expression that has no value, or no key, for this document; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message

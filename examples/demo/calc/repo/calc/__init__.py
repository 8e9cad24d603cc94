"""Arithmetic from text."""

from calc.parser import parse
from calc.tokens import tokenize
from calc.tree import value_of

__all__ = ["evaluate"]


def evaluate(text: str) -> float:
    """The value of an expression. Raises SyntaxError for what is no arithmetic."""
    return value_of(parse(tokenize(text)))

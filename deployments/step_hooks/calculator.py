"""A calculator as a step hook: it checks what a step says about sums, products and the like."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from search import END_PATH, EndPath

MAX_EXPRESSION_CHARS = 200
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_EQUATION = re.compile(
    # A run of digits, operators and spaces, not in the middle of a word or of a number with commas,
    r"(?<![\d.,\s()+*/-])(?:(?<!\w)|(?=\s))([\d.\s()+*/-]+)"
    # and a plain number that no further digits, letters or operators follow.
    r"=\s*(-?\d+(?:\.\d+)?)(?![\d.,]*[ \t]*[+*/(-]|[\d.,]*\d|[%\w])"
)


class Mistake(NamedTuple):
    """An equation that is wrong."""

    expression: str
    right: Fraction
    """The value of ``expression``."""

    def __str__(self) -> str:
        value = self.right.numerator if self.right.denominator == 1 else round(float(self.right), 6)
        return f"{self.expression} = {value}"


async def correct(question: str, path: Sequence[str], step: str) -> str | None:
    """Adds the right equation after a step with a wrong one."""
    mistake = next(mistakes(step), None)
    return None if mistake is None else f"{mistake}\n\n"


async def end_at_mistake(question: str, path: Sequence[str], step: str) -> EndPath | None:
    """Ends a path at its first wrong equation."""
    return None if next(mistakes(step), None) is None else END_PATH


def mistakes(text: str) -> Iterator[Mistake]:
    """The wrong equations of a text whose right side is a number. A decimal may be rounded. Anything that is not plain
    arithmetic is passed over."""
    for left, said in _EQUATION.findall(text):
        expression = left.rpartition("\n")[2].strip().removeprefix("- ")
        value = _value(expression)
        if value is None:
            continue
        _, point, decimals = said.partition(".")
        if abs(value - Fraction(said)) > (Fraction(1, 2 * 10 ** len(decimals)) if point else 0):
            yield Mistake(expression, value)


def _value(expression: str) -> Fraction | None:
    """The value of an expression with at least one operator; None for anything else."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
        return _evaluated(tree) if isinstance(tree, ast.BinOp) else None
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluated(tree: ast.expr) -> Fraction:
    match tree:
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_evaluated(left), _evaluated(right))
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluated(operand)
        case ast.Constant(value) if isinstance(value, int | float):
            return Fraction(str(value))
    raise ValueError("not plain arithmetic")

r"""Tokens of a mathematical text: its words, and the numbers, variables and signs of its formulas.

Spellings are unified: ``5,050`` is ``5050``, ``0.50`` is ``.5``; ``\times``, ``×`` and ``*`` are one sign;
``\frac{a}{b}`` is ``a/b``.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from search.tools.latex import SIGNS, plain_latex

MAX_NESTING = 8

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_FRACTION = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*+)\}\{((?:[^{}]|\{[^{}]*\})*+)\}")
_SIMPLE = re.compile(r"-?(?:[\d.]+|[A-Za-z]|\\[a-z]+)")
_LAYOUT = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|&")
_DISPLAY = re.compile(r"\\\[([^$]{,999}?)\\\]|\\\(([^$]{,999}?)\\\)|\$\$([^$]{,999}?)\$\$")
# Pandoc's rule for dollars: those of "costs $5, not $3" are not delimiters.
_MATH = re.compile(r"\$(?=\S)([^$]*?)(?<=\S)\$(?!\d)")
_TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\w)\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<word>[^\W\d_]+(?:['’][a-z]+)?)"
    r"|(?P<sign>\*\*|<=|>=|!=|[-+*/^=<>%()\[\]{}|!_×·÷−–≤≥≠≈±√π∞°])"
    r"|(?P<other>[^\s$]+?)"
)
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "csc", "ln", "sqrt", "gcd", "lcm", "mod", "det"})
_SPELLINGS = {
    **{f"\\{name}": name for name in _FUNCTIONS},
    r"\times": "*", r"\cdot": "*", r"\div": "/", "**": "^", "−": "-", "–": "-", "<=": "≤", r"\le": "≤", r"\leq": "≤",
    ">=": "≥", r"\ge": "≥", r"\geq": "≥", "!=": "≠", r"\ne": "≠", r"\neq": "≠", r"\approx": "≈", r"\pm": "±",
    r"\sqrt": "√", r"\pi": "π", r"\infty": "∞", r"\lt": "<", r"\gt": ">",
}  # fmt: skip


class Token(NamedTuple):
    """A word, or a piece of a formula: a number, a variable or a sign."""

    text: str
    is_math: bool


def tokens_of(text: str) -> Iterator[Token]:
    """Words in lower case and pieces of formulas. Any other character becomes an empty word, which ends a formula."""
    plain = _DISPLAY.sub(lambda display: f" ${''.join(filter(None, display.groups())).strip()}$ ", plain_latex(text))
    plain = _LAYOUT.sub(" ", _unwrapped(plain))
    position = 0
    for math in _MATH.finditer(plain):
        yield from _pieces(plain[position : math.start()], in_math=False)
        yield from _pieces(math[1], in_math=True)
        position = math.end()
    yield from _pieces(plain[position:], in_math=False)


def _unwrapped(text: str) -> str:
    r"""Removes ``\text{}`` and turns fractions into quotients."""
    for _ in range(MAX_NESTING):
        inner = _FRACTION.sub(_quotient, _TEXT.sub(r" \1 ", text))
        if inner == text:
            break
        text = inner
    return text


def _quotient(fraction: re.Match[str]) -> str:
    parts = (part.strip() for part in fraction.groups())
    return "/".join(part if _SIMPLE.fullmatch(part) else f"({part})" for part in parts)


def _pieces(text: str, in_math: bool) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        kind, piece = match.lastgroup, match[0]
        if kind == "number":
            yield Token(_number(piece), is_math=True)
        elif kind == "word":
            yield from _word(piece, in_math)
        else:
            piece = SIGNS.get(piece, piece).strip()
            yield Token(_SPELLINGS.get(piece, piece), is_math=True) if kind != "other" else Token("", is_math=False)


def _number(digits: str) -> str:
    whole, point, places = digits.replace(",", "").partition(".")
    places = places.rstrip("0")
    return (whole.lstrip("0") or "0") + (point + places if places else "")


def _word(word: str, in_math: bool) -> Iterator[Token]:
    """The tokens of a word. In a formula, one or two letters are variables. Outside, a single letter is a variable,
    except ``a``, ``A`` and ``I``."""
    lower = word.lower()
    if lower in _FUNCTIONS or (in_math and lower in {"log", "exp", "sec"}):
        yield Token(lower, is_math=True)
    elif len(word) == 1 and (in_math or word not in "aAI"):
        yield Token(word, is_math=True)
    elif in_math and len(word) == 2:
        yield from (Token(letter, is_math=True) for letter in word)
    else:
        yield Token(lower.replace("’", "'").removesuffix("'s").replace("n't", " not").split()[-1], is_math=False)

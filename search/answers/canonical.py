r"""Canonical spelling of answers, and exact values of numbers.

Most answers are numbers, which need no computer algebra. Signs are read as in the published graders where they agree
(Hendrycks' MATH, PRM800K's, Qwen2.5-Math's, math-verify): units, degrees and currency signs are dropped; ``10,000`` and
``10{,}000`` are one number; ``1 1/2`` and ``1\frac{1}{2}`` are three halves. Digits separated by a space, as in
``3 4``, are not a number, except in groups of three (``12 345``).
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|textrm|mbox)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;: ]|\\q?quad(?![a-z])|~|\s")
_NO_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_DOLLAR = re.compile(r"\\?\$")
_DROPPED = re.compile(r"\\?\$|\\left(?![a-z])|\\right(?![a-z])|\\!|\\?%|\^\{?\\circ\}?|°")
_PERCENT = re.compile(r"(?:\\?%|(?<![a-z])(?:percent|percentage|pct))[\s.$]{0,8}$", re.IGNORECASE)
_GAP = r"(?:\\[,;: ]|~|\s){1,3}"
_GROUPS = re.compile(rf"(?<![\w.^])\d{{1,3}}(?:{_GAP}\d{{3}}(?!\d)){{1,16}}(?!/)")
_MIXED = re.compile(rf"(?<![\w./^])(\d{{1,64}}){_GAP}(\d{{1,64}})/(\d{{1,64}})(?![\d/])")
_DIGITS_APART = re.compile(r"(?<![\w.^])\d[\d.]* \d")
_WORDS_INSIDE = re.compile(
    r"\d[^{}]{0,8}\\(?:text|mathrm|mbox)\s*\{(?!\s*,?\s*(?:and|or)\s*\})[^{}]*\}(?!\s*\^\s*\{?\d\}?\s*\.?$)[^\d]*\d"
)
_ASSIGNED = re.compile(r"[A-Za-z]=(?!=)")
_CHOICE = re.compile(r"\(([A-Za-z])\)")
_LETTERS = re.compile(r"[A-Za-z]+")
_COUNT = re.compile(
    r"(?P<number>\S{1,80}) (?:(?P<scale>thousand|million|billion|trillion)\b ?)?"
    r"(?P<unit>[A-Za-z]{3,32}(?: [A-Za-z]+)*)?"
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "mod", "theta", "choose"}
_ARITHMETIC = {"and", "but", "times", "plus", "minus", "over", "squared", "cubed", "base", "hundred", "dozen"}
_NO_UNITS = frozenset(_FUNCTIONS | _ARITHMETIC | _SCALES.keys())
"""Words that are no units after a number: they change its value, or are mathematics."""
_DECIMAL = re.compile(r"[+-]?(?:\d{1,64}(?:\.\d{0,64})?|\.\d{1,64})(?:[eE][+-]?\d{1,2})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,64})\\[dt]?frac"
    r"(?:\{(?P<a>[+-]?[\d.]{1,64})\}|(?P<a1>\d))(?:\{(?P<b>[+-]?[\d.]{1,64})\}|(?P<b1>\d))"
)


class Number(NamedTuple):
    """An answer that is a plain number."""

    value: Fraction
    """As written: 50 for ``50%``."""
    is_decimal: bool
    """Written with a decimal point, so that its last place may be rounded."""
    is_percent: bool


@lru_cache(maxsize=4096)
def canonical(answer: str) -> str:
    """A normal form: different answers never share it, equal answers often do. Numbers become reduced fractions, words
    lower case; other answers lose spaces, dollar and degree signs and text wrappers."""
    number = as_number(answer)
    if number is not None:
        return f"{number.value}%" if number.is_percent else str(number.value)
    plain = _plain(answer)
    if choice := _CHOICE.fullmatch(plain):
        plain = choice[1]
    return plain.lower() if _LETTERS.fullmatch(plain) else plain


@lru_cache(maxsize=4096)
def as_number(answer: str) -> Number | None:
    """The exact value of an integer, decimal, simple fraction or mixed number; None if the answer is anything else."""
    body, is_percent = without_percent(answer)
    plain = _plain(body)
    if _ASSIGNED.match(plain):
        plain = plain[2:]
    value = _value(plain) if plain else None
    if value is None and (count := _COUNT.fullmatch(_spaced(body))):
        value = _counted(count)
        plain = count["number"]
    return None if value is None else Number(value, "." in plain and "frac" not in plain, is_percent)


def is_word(answer: str) -> bool:
    """Whether an answer is a word of at least three letters. Shorter ones may be a product of variables or a choice."""
    return re.fullmatch("[A-Za-z]{3,}", _plain(answer)) is not None


def would_be_misread(answer: str) -> bool:
    r"""Whether computer algebra would misread an answer. It adds or multiplies digits separated by a space (``3 4``),
    and takes words before digits, and all that follows, for a unit (``10 \text{ by } 18``)."""
    return _DIGITS_APART.search(_plain(answer)) is not None or _WORDS_INSIDE.search(answer) is not None


def without_percent(answer: str) -> tuple[str, bool]:
    """``answer`` without a percent sign or word at its end, and whether there was one."""
    unwrapped = _TEXT.sub(r"\1", answer)
    percent = _PERCENT.search(unwrapped)
    return (unwrapped[: percent.start()], True) if percent else (answer, False)


def _with_whole_numbers(answer: str) -> str:
    r"""``answer`` with ``12 345`` as ``12345``, and ``1 1/2`` as ``1\frac{1}{2}`` where that is a proper fraction."""

    def latex(mixed: re.Match[str]) -> str:
        whole, above, below = mixed.groups()
        return rf"{whole}\frac{{{above}}}{{{below}}}" if 0 < int(above) < int(below) else mixed[0]

    return _MIXED.sub(latex, _GROUPS.sub(lambda groups: re.sub(r"\D", "", groups[0]), answer))


def for_algebra(answer: str) -> str:
    """``answer`` as input for a LaTeX parser: one formula, with numbers that it would misread rewritten."""
    return _with_whole_numbers(_DOLLAR.sub("", answer)).strip().rstrip(".")


def _spaced(answer: str) -> str:
    """``answer`` with LaTeX spaces as single spaces, and without signs that carry no value."""
    unwrapped = _TEXT.sub(r"\1", answer).replace("{,}", ",").replace("−", "-")
    return " ".join(_SPACE.sub(" ", _with_whole_numbers(_DROPPED.sub("", unwrapped))).split()).rstrip(". ")


def _plain(answer: str) -> str:
    """``answer`` without spaces, except between digits."""
    plain = _NO_SPACE.sub("", _spaced(answer)).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain


def _counted(count: re.Match[str]) -> Fraction | None:
    """The value of a number with a scale or unit in words: ``42 dollars``, ``2.5 million people``."""
    unit = count["unit"]
    if unit and unit.split()[0].lower() in _NO_UNITS:
        return None
    value = _value(_plain(count["number"]))
    return None if value is None else value * _SCALES.get(count["scale"] or "", 1)


def _value(plain: str) -> Fraction | None:
    if fraction := _FRACTION.fullmatch(plain):
        return _latex_fraction(fraction)
    above, slash, below = plain.partition("/")
    return _quotient(above, below) if slash else _decimal(plain)


def _latex_fraction(fraction: re.Match[str]) -> Fraction | None:
    value = _quotient(fraction["a"] or fraction["a1"], fraction["b"] or fraction["b1"])
    if value is None:
        return None
    if fraction["whole"]:
        # Only a proper fraction makes a mixed number; anything else is a product, left to computer algebra.
        if not 0 < value < 1:
            return None
        value += int(fraction["whole"])
    return -value if fraction["sign"] == "-" else value


def _decimal(text: str) -> Fraction | None:
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def _quotient(above: str, below: str) -> Fraction | None:
    a, b = _decimal(above), _decimal(below)
    return None if a is None or b is None or b == 0 else a / b

r"""Canonical spelling of answers, and exact values of numbers.

Most answers are numbers, which need no computer algebra. Signs are read as in the published graders where they agree
(Hendrycks' MATH, PRM800K's, Qwen2.5-Math's, math-verify): ``10,000`` and ``10{,}000`` are one number; ``1 1/2`` and
``1\frac{1}{2}`` are three halves. Digits separated by a space, as in ``3 4``, are not a number, except in groups of
three (``12 345``).
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from search.answers.notation import MAX_CHARS, TEXT, tidy
from search.answers.numerals import spelled
from search.answers.units import currency, unit_of

_TEXT = re.compile(TEXT)
# After a comma the space stays: "300,400" is a number, "300, 400" is not.
_NO_SPACE = re.compile(r"(?<![\d,]) | (?!\d)")
_GAP = r"\s{1,3}"
_GROUPS = re.compile(rf"(?<![\w.^])\d{{1,3}}(?:{_GAP}\d{{3}}(?!\d)){{1,16}}(?!/)")
_MIXED = re.compile(rf"(?<![\w./^])(\d{{1,64}}){_GAP}(\d{{1,64}})/(\d{{1,64}})(?![\d/])")
_ASSIGNED = re.compile(r"[A-Za-z] ?=(?!=)")
_TWICE = re.compile(r"([^()]{1,64}?) ?\(([^()]{1,64})\)")
"""A number in digits and in words: "7 (seven)"."""
_CHOICE = re.compile(r"\(([A-Za-z])\)")
_LETTERS = re.compile(r"[A-Za-z]+")
_QUANTITY = re.compile(
    r"(?P<number>[+-]? ?(?:\d{0,64} ?\\frac(?:\{[^{}]{1,64}\}){2}|"
    r"[\d.,]{1,80}(?:[eE][+-]?\d{1,2}(?!\d))?(?: ?/ ?[\d.]{1,64})?))"
    r" ?(?P<unit>\D.*)?",
    re.DOTALL,
)
_TIMES_POWER_OF_TEN = re.compile(r"(?<=[\d.]) ?\\(?:times|cdot) ?10 ?\^ ?(?:\{ ?(-?\d{1,2}) ?\}|(\d)(?!\d))")
_SCALE = re.compile(r"(thousand|million|billion|trillion)\b ?")
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINAL = re.compile(r"\^? ?\{?(?:st|nd|rd|th)\}?(?![A-Za-z])")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,64}(?:\.\d{0,64})?|\.\d{1,64})(?:[eE][+-]?\d{1,2})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_LAKHS = re.compile(r"[+-]?\d{1,2}(?:,\d\d)+,\d{3}(?![\d,])")
"""Groups of two digits, as in India."""
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,64})\\frac"
    r"\{(?P<a>[+-]?[\d.]{1,64})\}\{(?P<b>[+-]?[\d.]{1,64})\}"
)


class Number(NamedTuple):
    """An answer that is a plain number, with or without a unit."""

    value: Fraction
    """As written: 50 for ``50%``."""
    is_decimal: bool
    """Written with a decimal point, so that its last place may be rounded."""
    unit: str
    """Its unit, ``percent`` for a percentage; "" if there is none, or if it only counts things."""


@lru_cache(maxsize=4096)
def canonical(answer: str) -> str:
    """A normal form: different answers never share it, equal answers often do. Numbers become reduced fractions with
    their unit, words lower case; other answers lose spaces and decoration."""
    number = as_number(answer)
    if number is not None:
        return f"{number.value} {number.unit}".rstrip()
    plain = _NO_SPACE.sub("", _spaced(tidy(answer)))
    if choice := _CHOICE.fullmatch(plain):
        plain = choice[1]
    return plain.lower() if _LETTERS.fullmatch(plain) else plain


@lru_cache(maxsize=4096)
def as_number(answer: str) -> Number | None:
    """The exact value of an integer, decimal, simple fraction or mixed number; None if the answer is anything else."""
    if len(answer) > MAX_CHARS:
        return None
    text = _spaced(unwrapped(tidy(answer)))
    if (count := spelled(text)) is not None:
        return Number(Fraction(count), is_decimal=False, unit="")
    if (twice := _TWICE.fullmatch(text)) and (written := as_number(twice[1])) and written == as_number(twice[2]):
        return written
    if assigned := _ASSIGNED.match(text):
        text = text[assigned.end() :].lstrip()
    text, prefix = currency(text)
    text = text.replace(",", "") if prefix == "rupee" and _LAKHS.match(text) else text
    quantity = _QUANTITY.fullmatch(_TIMES_POWER_OF_TEN.sub(r"e\1\2", text))
    if quantity is None:
        return None
    number, tail = quantity["number"].replace(" ", "").rstrip(","), quantity["unit"] or ""
    number = number.replace(",", "") if _THOUSANDS.fullmatch(number) else number
    value = _value(number)
    if value is None:
        return None
    if value.denominator == 1 and (ordinal := _ORDINAL.match(tail)):
        tail = tail[ordinal.end() :].lstrip()
    if scale := _SCALE.match(tail):
        value *= _SCALES[scale[1]]
        tail = tail[scale.end() :]
    unit = unit_of(f"{prefix} {tail}")
    return None if unit is None else Number(value, "." in number and "frac" not in number, unit)


def is_word(answer: str) -> bool:
    """Whether an answer is a word of at least three letters. Shorter ones may be a product of variables or a choice."""
    return re.fullmatch("[A-Za-z]{3,}", canonical(answer)) is not None


def unwrapped(text: str) -> str:
    r"""``text`` with the words in ``\text{...}`` as they stand."""
    return _TEXT.sub(r"\1", text)


def with_whole_numbers(answer: str) -> str:
    r"""``answer`` with ``12 345`` as ``12345``, and ``1 1/2`` as ``1\frac{1}{2}`` where that is a proper fraction."""

    def latex(mixed: re.Match[str]) -> str:
        whole, above, below = mixed.groups()
        return rf"{whole}\frac{{{above}}}{{{below}}}" if 0 < int(above) < int(below) else mixed[0]

    return _MIXED.sub(latex, _GROUPS.sub(lambda groups: re.sub(r"\D", "", groups[0]), answer))


def _spaced(text: str) -> str:
    """``text`` with single spaces."""
    return " ".join(with_whole_numbers(text).split())


def _value(plain: str) -> Fraction | None:
    if fraction := _FRACTION.fullmatch(plain):
        return _latex_fraction(fraction)
    above, slash, below = plain.partition("/")
    return _quotient(above, below) if slash else _decimal(plain)


def _latex_fraction(fraction: re.Match[str]) -> Fraction | None:
    value = _quotient(fraction["a"], fraction["b"])
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

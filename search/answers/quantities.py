r"""The forms of answers that are numbers and what goes with them: units, times, ratios, numbers of a base.

Nothing here is left to computer algebra.
"""

import re
from fractions import Fraction

from search.answers.canonical import as_number, canonical
from search.answers.numerals import spelled
from search.answers.readings import Form
from search.answers.units import vaguer

MAX_PARTS = 64
"""Maximum number of parts of a ratio."""

_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?)?\s*(?:(?P<half>[ap])\.?\s?m\.?|(?P<sharp>o'clock))?",
    re.IGNORECASE,
)
_RATIO = re.compile(r"\s*(?::|\bto\b)\s*")
_BASE = re.compile(
    r"\(?(?P<digits>\d[0-9A-F]*|[A-F]+\d[0-9A-F]*|[A-F]{2,}(?=\)?\s*_\s*\{?16))\)?\s*"
    r"(?:_\s*\{?\s*\(?(?:base\s*)?|\(?\s*base[\s-]+)(?P<base>\d{1,2}|[a-z]{3,7})\)?\s*\}?\)?",
    re.IGNORECASE,
)
_COMPOUND = re.compile(r"(?:\d[\d.,/]{0,16}\s*[A-Za-z]{1,12}\.?,?\s*(?:and\s+)?){2,4}")
_PART = re.compile(r"\d[\d.,/]*\s*[A-Za-z]+")


def quantity_forms(text: str) -> list[Form]:
    """The forms of ``text`` if it is a quantity, the likeliest first; else none."""
    return _based(text) or _compound(text) or number_forms(text) or _time(text) or _ratio(text)


def number_forms(text: str) -> list[Form]:
    """The forms of ``text`` if it is one number, with or without a unit; else none."""
    number = as_number(text)
    if number is None:
        return []
    return with_unit(number.unit, ["decimal" if number.is_decimal else "number", str(number.value)])


def with_unit(unit: str, value: Form) -> list[Form]:
    """The forms of a value with a unit: with it, with a vaguer one, without. ``50%`` without its sign is 50, or else a
    half."""
    units = [each for each in (unit, vaguer(unit)) if each]
    return [*(["quantity", each, value] for each in units), value, *(_hundredth(value) if unit == "percent" else [])]


def _hundredth(value: Form) -> list[Form]:
    match value:
        case ["number" | "decimal" as kind, number]:
            return [[kind, str(Fraction(number) / 100)]]
        case ["latex", formula, text]:
            return [["latex", rf"\frac{{{formula}}}{{100}}", f"{text}/100"]]
    return []


def _based(text: str) -> list[Form]:
    """``110_2`` is that numeral, whose value is not compared; of base ten it is the number."""
    numeral = _BASE.fullmatch(text)
    if numeral is None:
        return []
    base = int(numeral["base"]) if numeral["base"].isdigit() else spelled(numeral["base"])
    digits = numeral["digits"].lower().lstrip("0") or "0"
    if base is None:
        return []
    if any(int(digit, 16) >= base for digit in digits):
        return [["text", canonical(text)]]
    return [["number", digits]] if base == 10 else [["base", base, digits]]


def _compound(text: str) -> list[Form]:
    """``5 feet 3 inches`` is the list of its parts."""
    parts = _PART.findall(text) if _COMPOUND.fullmatch(text) else []
    units = {number.unit for part in parts if (number := as_number(part)) and number.unit}
    return [["set", *(number_forms(part)[0] for part in parts)]] if parts and len(units) == len(parts) else []


def _time(text: str) -> list[Form]:
    """``7:45 PM`` is a time of the day, or else ``7:45``, which may also be a ratio."""
    time = _TIME.fullmatch(text)
    if time is None or not (time["half"] or time["minute"] or time["sharp"]):
        return []
    hour, rest = int(time["hour"]), f"{time['minute'] or '00'}:{time['second'] or '00'}"
    if time["half"]:
        of_day = hour % 12 + (12 if time["half"] in "pP" else 0)
        return [["time", f"{of_day}:{rest}"], ["clock", f"{hour}:{rest}"]] if 1 <= hour <= 12 else []
    if hour > 24:
        return []
    return [["time" if hour > 12 or hour == 0 else "clock", f"{hour}:{rest}"], *_ratio(text)]


def _ratio(text: str) -> list[Form]:
    """``2:3`` is the fraction; a ratio of more parts is the same as its multiples."""
    parts = _RATIO.split(text)
    numbers = [
        number.value for part in parts if not re.match(r"0\d", part) and (number := as_number(part)) and not number.unit
    ]
    if not 2 <= len(numbers) == len(parts) <= MAX_PARTS:
        return []
    if not all(numbers):
        return [["text", canonical(text)]]
    first, *others = numbers
    if len(others) == 1:
        return [["number", str(first / others[0])]]
    return [["ratio", *(str(other / first) for other in others)]]

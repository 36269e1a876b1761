"""Patterns of numbers as people write them: the signs of all scripts and currencies, mixed numbers, vulgar fractions,
and words."""

import re

MINUS = "-−–—‐‑‒―﹘﹣－➖˗⁃"
"""Signs that stand for a minus; in a character class they come first."""
CURRENCY = "$¢£¤¥֏؋৳฿₠-⃀﷼﹩＄￠￡￥￦"
VULGAR = "¼-¾⅐-⅞↉"

_SIGN = rf"(?:[{MINUS}+][ \t]?)?"
_CODES = "(?:Rs|USD|EUR|GBP|INR|JPY|CNY|RMB|CAD|AUD|CHF)"
_PREFIX = rf"(?:(?:[A-Z]{{1,3}}[ \t]?)?\\?[{CURRENCY}][ \t]?|{_CODES}\.?[ \t]?)?"
_FRACTION = rf"[ \t]?[{VULGAR}]|[ \t]\d{{1,9}}[/⁄]\d{{1,9}}|[ \t]?[/⁄][ \t]?\d{{1,32}}"
NUMBER = (
    rf"{_SIGN}{_PREFIX}{_SIGN}(?:\d(?:[\d.,٫٬]{{0,64}}\d)?(?:{_FRACTION})?|\.\d{{1,64}}|[{VULGAR}])"
    rf"(?:[ \t]?\\?[%％٪])?(?:[ \t]?[{CURRENCY}])?"
)
"""A number in one of these forms, with the percent sign or the currency that belongs to it."""
VALUE_START = (
    rf"{_SIGN}(?:{_CODES}\.?[ \t]?(?=\d)|[A-Z]{{1,3}}[ \t]?(?=\\?[{CURRENCY}]))?(?:[\d\\√{CURRENCY}{VULGAR}]|\.\d)"
)
"""What a number or a formula begins with."""

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_ONES)} | {word: 10 * value for value, word in enumerate(_TENS, 2)}
_WORD = re.compile(r"[\s-]+")


def spelled(text: str) -> int | None:
    """The whole number below a million that ``text`` spells in English words; None if it is anything else."""
    first, *others = words = _WORD.split(text.lower())
    if first in ("minus", "negative") and (below := spelled(" ".join(others))):
        return -below
    thousands, value, last = 0, -1, ""
    for word in words:
        is_unit_after_ten = last in _TENS and word in _ONES[1:10]
        if word in _VALUES and (value < 0 or is_unit_after_ten or last in ("hundred", "thousand", "and")):
            value = max(value, 0) + _VALUES[word]
        elif word == "hundred" and 0 < value < 100:
            value *= 100
        elif word == "thousand" and value > 0 and not thousands:
            thousands, value = 1000 * value, 0
        elif word != "and" or last not in ("hundred", "thousand"):
            return None
        last = word
    return thousands + value if value >= 0 and last != "and" else None

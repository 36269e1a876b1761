"""Readings of answers, and the grouping of equivalent answers by them.

A reading is one value that an answer may have. Some answers have two: ``50%`` is 50, or a half; ``y = 2x`` is ``2x``,
or an equation; ``1, 2`` is a set, or a pair. Values are compared by keys, so grouping takes linear time, does not
depend on the order of answers, and is transitive.
"""

import json
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from search.answers.canonical import Number

DECIMAL_PLACES = 6
"""Decimals are compared to this many places, as in math-verify: ``0.333333`` is a third."""
MIN_SIGNIFICANT_DIGITS = 4
"""Minimum number of significant digits, for small numbers of which six places would leave little or nothing."""
_EXACT = Context(prec=28)


class Reading(NamedTuple):
    """One value of an answer, as keys."""

    exact: str
    rounded: str
    """The key with numbers rounded to ``DECIMAL_PLACES``."""
    is_decimal: bool
    """Whether the value contains a decimal, so that it is compared by ``rounded``."""


Readings = tuple[Reading, ...]
"""The readings of one answer, the likelier one first; never empty."""


def of_number(number: Number) -> Readings:
    """The readings of a plain number. A percentage has two: its number as written, then a hundredth of it."""
    kind = "decimal" if number.is_decimal else "number"
    values = [number.value, number.value / 100] if number.is_percent else [number.value]
    return tuple(_reading([kind, str(value)]) for value in values)


def of_values(values: Sequence[list[Any]], is_percent: bool) -> Readings:
    """The readings of the values that the worker returned for an answer.

    Raises:
        ValueError: a value is not in the worker's format.
    """
    if is_percent and len(values) == 1 and values[0][0] in ("number", "decimal"):
        kind, text = values[0]
        values = [values[0], [kind, str(Fraction(text) / 100)]]
    return tuple(map(_reading, values))


def of_text(text: str) -> Readings:
    """The single reading of an answer that is compared as text."""
    key = json.dumps(["text", text])
    return (Reading(key, key, is_decimal=False),)


def grouped(answers: Sequence[Readings]) -> list[list[int]]:
    """Indices of ``answers``, grouped by equivalence; groups and members in order of first appearance.

    Answers are equivalent if their first readings agree. An answer with two readings uses its second if some answer
    with a single reading agrees with that and none with its first: ``50%`` goes with ``50``, else with ``0.5``.
    Numbers agree if they are equal; if one of them is a decimal, to six decimal places.
    """
    chosen = _chosen(answers)
    loose = {reading.rounded for reading in chosen if reading.is_decimal}
    groups: dict[tuple[bool, str], list[int]] = {}
    for index, reading in enumerate(chosen):
        key = (True, reading.rounded) if reading.rounded in loose else (False, reading.exact)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _chosen(answers: Sequence[Readings]) -> list[Reading]:
    """The reading by which each answer is compared. Answers whose first readings agree use the same one."""
    definite = {readings[0].rounded: readings[0] for readings in answers if len(readings) == 1}
    instead: dict[str, Reading] = {}
    for first, *others in answers:
        for other in others:
            if first.rounded not in definite and other.rounded in definite:
                instead[first.rounded] = min(instead.get(first.rounded, other), other)
    return [instead.get(readings[0].rounded, readings[0]) for readings in answers]


def _reading(value: list[Any]) -> Reading:
    return Reading(json.dumps(_keys(value, _exact)), json.dumps(_keys(value, _rounded)), _has_decimal(value))


def _keys(value: Any, key: Any) -> Any:
    """``value`` with its numbers as ``key`` writes them."""
    match value:
        case ["number" | "decimal", text]:
            return key(Fraction(text))
        case ["set" | "union" | "all" as kind, *members]:
            return [kind, *sorted((_keys(member, key) for member in members), key=json.dumps)]
        case list():
            return [_keys(part, key) for part in value]
        case _:
            return value


def _has_decimal(value: Any) -> bool:
    return isinstance(value, list) and (value[:1] == ["decimal"] or any(map(_has_decimal, value)))


def _exact(value: Fraction) -> str:
    """Integers in full, other numbers to 28 digits: enough, yet unaffected by how a value such as 1/3 was computed."""
    if value.denominator == 1:
        return str(value.numerator)
    return _written(_EXACT.divide(Decimal(value.numerator), Decimal(value.denominator)))


def _rounded(value: Fraction) -> str:
    places = DECIMAL_PLACES
    if value:
        magnitude = Decimal(_exact(abs(value))).adjusted()
        places = max(places, MIN_SIGNIFICANT_DIGITS - 1 - magnitude)
    return _exact(round(value, places))


def _written(value: Decimal) -> str:
    return str(int(value)) if value == value.to_integral_value() else str(value.normalize(_EXACT))

"""What an answer may mean, and which answers are then the same.

An answer has a value, and now and then a second one: ``50%`` is 50, or a half; ``y = 2x`` is ``2x``, or an equation;
``1, 2`` is a set, or a pair. Values are compared by keys, so a grouping costs no more for many answers than reading
each, is the same in any order, and is transitive.
"""

import json
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from search.answers.canonical import Number

DECIMAL_PLACES = 6
"""A decimal stands for what it is rounded from, as in math-verify: ``0.333333`` is a third."""
MIN_SIGNIFICANT_DIGITS = 4
"""Kept of small numbers, of which six places would leave little or nothing."""
_EXACT = Context(prec=28)


class Reading(NamedTuple):
    """One value of an answer, as keys."""

    exact: str
    rounded: str
    """With its numbers to ``DECIMAL_PLACES``."""
    is_decimal: bool
    """Whether a decimal is in it, so that ``rounded`` is what counts."""


Readings = tuple[Reading, ...]
"""The likelier one first; never none."""


def of_number(number: Number) -> Readings:
    """The readings of a plain number; those of a percentage are its figure, then its hundredth."""
    kind = "decimal" if number.is_decimal else "number"
    values = [number.value, number.value / 100] if number.is_percent else [number.value]
    return tuple(_reading([kind, str(value)]) for value in values)


def of_values(values: Sequence[list[Any]], is_percent: bool) -> Readings:
    """The readings of what the worker made of an answer.

    Raises:
        ValueError: a value is not as the worker writes them.
    """
    if is_percent and len(values) == 1 and values[0][0] in ("number", "decimal"):
        kind, text = values[0]
        values = [values[0], [kind, str(Fraction(text) / 100)]]
    return tuple(map(_reading, values))


def of_text(text: str) -> Readings:
    """The one reading of an answer that is only a text."""
    key = json.dumps(["text", text])
    return (Reading(key, key, is_decimal=False),)


def grouped(answers: Sequence[Readings]) -> list[list[int]]:
    """Indices of ``answers``, same ones together; groups and members in order of first appearance.

    Answers are the same whose first readings agree. An answer of two readings is also the same as those of one reading
    that agree with its second, where none agrees with its first: ``50%`` goes with ``50``, else with ``0.5``.
    Numbers agree that are equal; in six decimal places, where a decimal is among them.
    """
    chosen = _chosen(answers)
    loose = {reading.rounded for reading in chosen if reading.is_decimal}
    groups: dict[tuple[bool, str], list[int]] = {}
    for index, reading in enumerate(chosen):
        key = (True, reading.rounded) if reading.rounded in loose else (False, reading.exact)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _chosen(answers: Sequence[Readings]) -> list[Reading]:
    """The reading by which each answer is compared. Answers whose first readings agree choose together."""
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
    """Integers in full; else to 28 digits, to which a third is the same whether divided or computed from roots."""
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

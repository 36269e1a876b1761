"""Readings of answers, and the grouping of equivalent answers by them.

A reading is one value that an answer may have. Some answers have several: ``50%`` is a percentage, 50 or a half;
``y = 2x`` is ``2x``, or an equation; ``1, 2`` is a set, or a pair; ``3 feet`` is that length, or 3. Values are compared
by keys, so grouping takes linear time, does not depend on the order of answers, and is transitive.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

DECIMAL_PLACES = 6
"""Decimals are compared to this many places, as in math-verify: ``0.333333`` is a third."""
MIN_SIGNIFICANT_DIGITS = 4
"""Minimum number of significant digits, for small numbers of which six places would leave little or nothing."""
_EXACT = Context(prec=28)


Form = list[Any]
"""A value that an answer may have, in JSON: its kind and its parts, which may be forms, such as ``["number", "1/2"]``,
``["decimal", "0.5"]``, ``["quantity", unit, form]``, ``["set", form...]`` and ``["text", text]``.
``["latex", formula, text]`` is a formula that the worker process has yet to evaluate; without a value it is the text.
"""


class Reading(NamedTuple):
    """A form without formulas, as keys."""

    exact: str
    rounded: str
    """The key with numbers rounded to ``DECIMAL_PLACES``."""
    is_decimal: bool
    """Whether the value contains a decimal, so that it is compared by ``rounded``."""


Readings = tuple[Reading, ...]
"""The readings of one answer, the likelier one first; never empty."""


def of_forms(forms: Sequence[Form]) -> Readings:
    """The readings of an answer that has these forms, which contain no formulas."""
    return tuple(dict.fromkeys(map(_reading, forms)))


def of_text(text: str) -> Readings:
    """The single reading of an answer that is compared as text."""
    key = json.dumps(["text", text])
    return (Reading(key, key, is_decimal=False),)


def grouped(answers: Sequence[Readings]) -> list[list[int]]:
    """Indices of ``answers``, grouped by equivalence; groups and members in order of first appearance.

    Answers are equivalent if their first readings agree. An answer with several readings uses a later one if that is
    the first of another answer, and no answer has its own first reading alone: ``50%`` goes with ``50``, else with
    ``0.5``. Where answers that differ could go with the same one, only the most frequent of them does: ``3`` goes
    with ``3 feet`` or with ``3 inches``, and alone on a tie. Numbers agree if they are equal; if one of them
    is a decimal, to six decimal places.
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
    firsts: dict[str, Reading] = {}
    for first, *_ in answers:
        firsts[first.rounded] = min(first, firsts.get(first.rounded, first))
    links = _links(answers, firsts)

    def chosen(readings: Readings) -> Reading:
        key = _end(links, readings[0].rounded)
        return next((reading for reading in readings if reading.rounded == key), firsts[key])

    return [chosen(readings) for readings in answers]


def _links(answers: Sequence[Readings], firsts: Mapping[str, Reading]) -> dict[str, str]:
    """The other answers' first reading that each first reading gives way to."""
    definite = {readings[0].rounded for readings in answers if len(readings) == 1}
    frequency: Counter[str] = Counter()
    wanted: dict[str, tuple[int, str]] = {}
    for first, *others in answers:
        frequency[first.rounded] += 1
        for place, other in enumerate(others):
            if first.rounded not in definite and other.rounded != first.rounded and other.rounded in firsts:
                wish = (place, other.rounded)
                wanted[first.rounded] = min(wish, wanted.get(first.rounded, wish))
    rivals: dict[str, list[tuple[int, int]]] = {}
    for first_key, (place, target) in wanted.items():
        rivals.setdefault(target, []).append((place, -frequency[first_key]))
    links: dict[str, str] = {}
    for first_key, (place, target) in wanted.items():
        rank = (place, -frequency[first_key])
        if rank == min(rivals[target]) and rivals[target].count(rank) == 1:
            links[first_key] = target
    return links


def _end(links: Mapping[str, str], key: str) -> str:
    """The last key of the links that begin at ``key``; the smallest of a circle."""
    passed: list[str] = []
    while key in links and key not in passed:
        passed.append(key)
        key = links[key]
    return min(passed[passed.index(key) :]) if key in passed else key


def _reading(form: Form) -> Reading:
    return Reading(json.dumps(_keys(form, _exact)), json.dumps(_keys(form, _rounded)), _has_decimal(form))


def _keys(form: Any, key: Any) -> Any:
    """``form`` with its numbers as ``key`` writes them."""
    match form:
        case ["number" | "decimal", text]:
            return key(Fraction(text))
        case ["set" | "union" | "all" as kind, *members]:
            return [kind, *sorted((_keys(member, key) for member in members), key=json.dumps)]
        case list():
            return [_keys(part, key) for part in form]
        case _:
            return form


def _has_decimal(form: Any) -> bool:
    return isinstance(form, list) and (form[:1] == ["decimal"] or any(map(_has_decimal, form)))


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

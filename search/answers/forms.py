r"""The forms in which an answer may be read: quantities, choices, lists, tuples, equations, formulas.

``search.answers.readings`` says what a form is.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from search.answers.canonical import as_number, canonical, is_word, unwrapped, with_whole_numbers
from search.answers.choices import leading_choice
from search.answers.notation import CLOSING, OPENING, TEXT, closing, tidy
from search.answers.quantities import number_forms, quantity_forms, with_unit
from search.answers.readings import Form
from search.answers.units import currency, known_unit, unit_of
from search.tools.latex import DOLLAR

MAX_ITEMS = 64
"""Longer lists are compared as text."""
MAX_DEPTH = 4
"""Lists within lists beyond this depth are compared as text."""
MAX_FORMULA_CHARS = 256
"""Longer formulas are compared as text."""

_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?(?:\(([A-J])\)(?=[\s:.]|$)|([A-J])(?:\)|[.:](?=\s)))[:.]?"
    r"(?P<text>(?!\s*(?:and\b|or\b|[,;+*/=^<>]|-\s)).*)"
    r"|(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+\(?([A-Ja-j])\)?(?![A-Za-z])(?!\s*(?:and\b|or\b|[,;])).*"
    r"|(?:[Tt]he\s+)?(?:[a-z]+\s+)?(?:[Oo]ption|[Cc]hoice|[Aa]nswer)(?:\s+is\b|:)\s*\(?([A-J])\)?",
    re.DOTALL,
)
_LABEL = re.compile(r"\([A-Ja-j]\)|(?<![A-Za-z])[A-J][:.)]")
_LETTER = re.compile(r"[(\[]?([A-Ja-j])[)\]]?")
_SEPARATOR = re.compile(r"\s*(?:[,;]\s*)?\\text\s*\{\s*(and|or)\s*\}\s*|\s*(?:[,;]\s*|\s)(and|or)\b\s*|\s*[,;]\s*")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_RELATION = re.compile(r"=|\\approx(?![A-Za-z])|\\in(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\(?:leq?|geq?|neq?|lt|gt|leqslant|geqslant)(?![A-Za-z])")
_NAME = re.compile(
    r"(?:\\text\s*\{[^{}]*\}|m?\\(?:angle|triangle|overline|vec|bar|hat)\s*\{?\s*[A-Za-z]{1,3}\}?|\\[a-z]+|[A-Z]{2,3}|[A-Za-z])"
    r"'{0,2}(?:_\s*(?:\{[\w, ]+\}|\w))?'{0,2}(?:\s*\([A-Za-z](?:, ?[A-Za-z])*\))?"
    r"|[fghEPV](?:'|_\w|\^\{-1\})?\s*\([^()=]*\)|\([A-Za-z](?:, ?[A-Za-z])+\)|[A-Za-z](?::[A-Za-z])+"
    r"|[A-Z][a-z]+(?: [a-z]+){0,3}|[a-z]{4,}"
)
_COMMAND = re.compile(r"\\(?:begin|end)\{[a-z]+\}|\\[A-Za-z]+")
_ARITHMETIC = re.compile(r"\\(?:frac|sqrt|cdot|times|div|pi|pm)(?![A-Za-z])")
_NO_BRACES = str.maketrans("", "", "{}")
_BUILDER = re.compile(
    r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\\mid(?![A-Za-z])|\\vert(?![A-Za-z])|[|:])(.*)\\\}"
)
_BRACKETS = ((r"\{", r"\}"), ("⟨", "⟩"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"))
_TEXT_TAIL = re.compile(rf"(?:{TEXT}|\^\s*\{{?-?\d\}}?|[\s/-]|\\cdot)+")
_UNIT_TAIL = re.compile(
    r"(?<=[\d})\]])\s*(°\s?[CF]?|%|[€£¥₹¤]|(?<=\s)[A-Za-z][A-Za-z. ]+(?:\^\{?\d\}?)?(?:/[A-Za-z]+(?:\^\{?\d\}?)?)?)"
)
_NUMBER_SETS = r"\\mathbb\{[NZQRC]\}"
_ANY_NUMBER = re.compile(
    r"[,;\s]\s*\(?for\s+(?:any|all|every|each|some)\s+"
    r"(?:(?:real|positive|non-?negative|natural|arbitrary|constant|number|integer|value|of)s?\s+){0,4}"
    rf"[A-Za-z](?:\s*\\in\s*{_NUMBER_SETS})?\)?$"
    r"|[,;\s]\s*\(?where\s+[A-Za-z]\s+is\s+(?:an?|any)\s+(?:arbitrary\s+)?(?:real\s+)?(?:constant|number|integer)\)?$"
    rf"|(?:[,;]\s*\(?|\()\s*[A-Za-z]\s*\\in\s*{_NUMBER_SETS}\)?$"
)
"""A condition that a constant may be any number, which says nothing."""
_EXPLOSIVE = re.compile(
    r"\d[\s})]*(?:\^|\*\*)[\s{(]*\d+[\s})]*(?:\^|\*\*)"  # a tower of powers of numbers
    r"|(?:\^|\*\*)[\s{(]*\d{4,}"  # a huge exponent
    r"|\d{4,}[\s})]*!|![\s})]*!"  # a huge factorial
)
_MISREAD = re.compile(
    r"(?<![\w.^])\d[\d.]*(?:\s|\\[,;: ])+\d"  # algebra adds or multiplies digits separated by a space
    r"|\d\)?_"  # and forgets the base
    r"|:.*:"  # and divides twice
    rf"|[{DOLLAR}€£¥₹°%]|\\text"  # and knows no units or words
)
_WORD = re.compile(
    r"[A-Za-z]{4,}|(?:(?<=\s)|(?=[a-z]+\s))(?<![A-Za-z])(?:not|the|all|any|for|are|per|one|two|six|ten|is|of|to|by|in|at|if)\b"
)


class Item(NamedTuple):
    """A part of a list."""

    name: str
    """What the part is assigned to; "" if nothing."""
    form: Form
    """Its likeliest form."""


@lru_cache(maxsize=4096)
def forms_of(answer: str, depth: int = 0) -> list[Form]:
    """The forms of an answer, the likeliest first; never empty."""
    text = tidy(answer)
    if depth > MAX_DEPTH or len(text) > MAX_FORMULA_CHARS:
        return number_forms(text) or [_text(answer)]
    plain = unwrapped(text)
    if (condition := _ANY_NUMBER.search(plain)) and condition.start():
        return forms_of(plain[: condition.start()], depth + 1)
    if forms := _choice(plain) or quantity_forms(plain) or _list(text, depth):
        return forms
    if is_word(text):
        return [_text(answer)]
    return _chain(text, depth) or _bracketed(text, depth) or _with_tail(text, depth) or [_formula(text)]


def _text(answer: str) -> Form:
    return ["text", canonical(answer)]


def _formula(text: str) -> Form:
    words = _WORD.search(_COMMAND.sub(" ", text))
    formula = with_whole_numbers(text)
    if words or len(text) > MAX_FORMULA_CHARS or _EXPLOSIVE.search(text) or _MISREAD.search(formula):
        return _text(text)
    return ["latex", formula, canonical(text)]


def _choice(text: str) -> list[Form]:
    """``(B) 17`` is the choice B, or 17. A lone letter may also be a variable."""
    if alone := _LETTER.fullmatch(text):
        return [["choice", alone[1].lower()], _formula(alone[1])]
    choice = _CHOICE.fullmatch(text)
    if choice is None:
        first = leading_choice(text)
        return [["choice", first.lower()]] if first else []
    letter = next(filter(None, choice.group(1, 2, 4, 5)))
    words = (choice["text"] or "").strip()
    if _LABEL.search(words):
        return []
    return [["choice", letter.lower()], *(forms_of(words, MAX_DEPTH) if words else ())]


def _chain(text: str, depth: int) -> list[Form]:
    """``x = 5`` is 5, and so is ``2 + 3 = 5``; ``y = 2x`` is ``2x``, or else that equation. ``x + y = 5`` is not 5."""
    sides, is_rounded = _sides(text)
    if len(sides) < 2 or (name := _name(sides[0])) is None:
        return []
    if not name and _name(sides[-1]) is None and as_number(sides[-1]) is None:
        return []
    if not name and _NAME.fullmatch(sides[-1]):  # "5 = x"
        return _chain(f"{sides[-1]} = {sides[0]}", depth)
    values = forms_of(sides[-1], depth + 1)
    exact = sides[1:-1] if name else sides[:-1]
    if is_rounded and exact:
        return [forms_of(exact[-1], depth + 1)[0], *values]
    if name and len(values) == 1 and values[0][0] == "latex":
        return [*values, _formula(f"{sides[0]} = {sides[-1]}")]
    return values


def _sides(text: str) -> tuple[list[str], bool]:
    r"""The sides of a chain of equations, and whether its last sign is ``\approx``."""
    relations = [each for each in _RELATION.finditer(text) if _is_outside(text, each.start())]
    bounds = [0, *(bound for each in relations for bound in each.span()), len(text)]
    sides = [text[start:end].strip() for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    if not all(sides) or _INEQUALITY.search(text):
        return [text], False
    return sides, bool(relations) and relations[-1][0] == r"\approx"


def _name(side: str) -> str | None:
    """The variable or function's value that a side of a chain is; "" if it is arithmetic, None if it has unknowns."""
    if not _NAME.fullmatch(side) and re.search("[A-Za-z]", _COMMAND.sub("", side)):
        return None
    is_named = _NAME.fullmatch(side) or _COMMAND.search(_ARITHMETIC.sub("", side))
    return canonical(side).translate(_NO_BRACES) if is_named else ""


def _is_outside(text: str, position: int) -> bool:
    """Whether ``position`` is in no bracket, index or bound of ``text``."""
    before = text[:position]
    return sum(map(before.count, OPENING)) == sum(map(before.count, CLOSING))


def _split(text: str, in_brackets: bool = False) -> list[tuple[str, str]]:
    """The parts of a list, each with the connective before it: ``,``, ``and`` or ``or``."""
    # In brackets the commas of "(1,000)" are thousands only if others are followed by a space.
    whole = [] if in_brackets and ", " not in text else [each.span() for each in _THOUSANDS.finditer(text)]
    parts: list[tuple[str, str]] = []
    start, last = 0, ""
    depth, position = 0, 0
    while position < len(text):
        sign = text[position]
        depth += (sign in OPENING) - (sign in CLOSING)
        separator = None if depth else _SEPARATOR.match(text, position)
        if separator is None or any(begin < separator.start() < end for begin, end in whole):
            position += 1
            continue
        parts.append((text[start : separator.start()].strip(), last))
        last = separator[1] or separator[2] or ","
        start = position = separator.end()
    return [(part, connective) for part, connective in [*parts, (text[start:].strip(), last)] if part]


def _list(text: str, depth: int) -> list[Form]:
    parts = _split(text)
    if not 2 <= len(parts) <= MAX_ITEMS:
        return []
    connectives = {connective for _, connective in parts[1:]}
    formulas = [_formula(part) for part, _ in parts]
    of_sets = [[*connectives, *formulas]] if connectives in ({"and"}, {"or"}) else []
    if any(_INEQUALITY.search(part) for part, _ in parts):
        return [*of_sets, ["set", *formulas]]
    items = _with_common_unit([_item(part, depth) for part, _ in parts])
    members = ["set", *(item.form for item in items)]
    names = [item.name for item in items]
    if len({*names}) < len(names) or not all(names):
        is_union = connectives == {"or"} and all(part[0] in "([" for part, _ in parts)
        ordered = [] if any(names) else [["tuple", *members[1:]]]
        return [members, *ordered, *_bare(members), *(of_sets if is_union else [])]
    named = sorted(items)
    forms: list[Form] = [["names", *(["named", *item] for item in named)]]
    if named == items or set(names) <= set("xyz"):
        forms.append(["tuple", *(item.form for item in named)])
    return [*forms, members, *_bare(members)]


def _item(part: str, depth: int) -> Item:
    sides, _ = _sides(part)
    name = _name(sides[0]) if len(sides) > 1 else None
    return Item(name or "", forms_of(part, depth + 1)[0])


def _with_common_unit(items: list[Item]) -> list[Item]:
    """``items`` with the unit of the last one: ``3 and 4 cm`` are two lengths."""
    last = items[-1].form
    if last[0] != "quantity" or not all(item.form[0] in ("number", "decimal") for item in items[:-1]):
        return items
    return [*(item._replace(form=["quantity", last[1], item.form]) for item in items[:-1]), items[-1]]


def _bare(members: Form) -> list[Form]:
    """A list of quantities of one unit may also be meant without it."""
    units = {member[1] if member[0] == "quantity" else "" for member in members[1:]}
    if len(units - {""}) != 1:
        return []
    return [[members[0], *(member[2] if member[0] == "quantity" else member for member in members[1:])]]


def _bracketed(text: str, depth: int) -> list[Form]:
    r"""``\{1, 2\}`` is a list, ``(1, 2)`` a tuple or an open interval, ``⟨1, 2⟩`` a tuple or a vector."""
    if builder := _BUILDER.fullmatch(text):
        return forms_of(builder[2], depth + 1)
    for opening, ending in _BRACKETS:
        if not text.startswith(opening) or not text.endswith(ending) or len(text) < len(opening + ending):
            continue
        inside = text[len(opening) : -len(ending)].strip()
        if closing(text, len(opening) - 1) != len(text) - 1:
            continue
        parts = _split(inside, in_brackets=True)
        if opening == r"\{" and parts:
            return forms_of(inside, depth + 1)
        if not 2 <= len(parts) <= MAX_ITEMS:
            return []
        values = [_item(part, depth).form for part, _ in parts]
        members = ["tuple", *values]
        if opening == "⟨":
            return [members, ["matrix", len(values), 1, *values], ["matrix", 1, len(values), *values]]
        if opening + ending == "()":
            return [members, *_bare(members)]
        if len(values) == 2:
            return [["interval", opening == "(", ending == ")", *values]]
        return [members, ["set", *values]] if opening + ending == "[]" else []
    return []


def _with_tail(text: str, depth: int) -> list[Form]:
    r"""``5\sqrt{3} \text{ cm}`` and ``\frac{\pi}{2}°``."""
    body, unit = currency(text)
    if unit:
        return _of_body(body, unit, depth)
    if (start := text.find(r"\text")) > 0 and _TEXT_TAIL.fullmatch(text, start):
        tail = unit_of(unwrapped(text[start:]).strip())
        return [] if tail is None else _of_body(text[:start], tail, depth)
    for start in range(max(1, len(text) - 32), len(text)):
        if (found := _UNIT_TAIL.fullmatch(text, start)) and (unit := known_unit(found[1])):
            return _of_body(text[:start], unit, depth)
    return []


def _of_body(body: str, unit: str, depth: int) -> list[Form]:
    forms = forms_of(body, depth + 1)
    return with_unit(unit, forms[0]) if unit else forms

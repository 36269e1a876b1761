r"""Formulas of reasoning steps in a normal form, so that they can be compared exactly.

The order of terms, of factors and of the sides of an equation does not matter. Nothing is computed: ``2(x+1)`` is not
``2x+2`` here.
"""

import re
from collections.abc import Sequence

Formula = tuple[str, ...]
"""The sides of a relation in normal form, then the relation's signs; or a single expression in normal form."""

_RELATIONS = frozenset("=<>≤≥≠≈") | {r"\equiv", r"\implies", r"\Rightarrow", r"\iff", r"\in", r"\to"}
_OPEN, _CLOSED = frozenset("([{"), frozenset(")]}")


def formula_of(run: Sequence[str]) -> Formula:
    """The formula made of a run of numbers, variables and signs; empty if there are only signs."""
    sides: list[list[str]] = [[]]
    relations: list[str] = []
    for token in _trimmed(run):
        if token in _RELATIONS:
            relations.append(token)
            sides.append([])
        else:
            sides[-1].append(token)
    forms = [_side(side) for side in sides if side]
    if relations and set(relations) == {"="}:
        return (*sorted(set(forms)), "=") if len(set(forms)) > 1 else tuple(set(forms))
    return (*forms, *relations)


def _side(tokens: Sequence[str]) -> str:
    """The normal form of one side: its terms sorted, and the factors of a term sorted if it is a plain product."""
    terms: list[str] = []
    term: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token in _OPEN) - (token in _CLOSED)
        if token in {"+", "-"} and not depth and term and term[-1] not in {"+", "-", "*", "/", "^"}:
            terms.append(_term(term))
            term = []
        term.append(token)
    return " ".join(sorted([*terms, _term(term)]))


def _term(tokens: Sequence[str]) -> str:
    sign = "-" if tokens[:1] == ["-"] else ""
    factors = [token for token in (tokens[1:] if tokens[:1] in (["+"], ["-"]) else tokens) if token != "*"]
    return sign + "·".join(sorted(factors) if all(map(_is_operand, factors)) else factors)


def said_once(formulas: Sequence[Formula]) -> frozenset[Formula]:
    """Formulas without the single numbers and expressions that are part of another formula.

    ``7 apples, so 3 + 4 = 7`` says no more than ``3 + 4 = 7``.
    """
    related = [formula for formula in formulas if len(formula) > 1]
    parts = {
        part for formula in related for side in formula for part in (side, *re.split("[ ·]", side.replace("-", " ")))
    }
    return frozenset(related) | {formula for formula in formulas if len(formula) == 1 and formula[0] not in parts}


def _trimmed(run: Sequence[str]) -> list[str]:
    """A run of tokens without signs at its ends that belong to the prose: dashes, bullets, unmatched parentheses."""
    tokens = list(run)
    while tokens and not _is_operand(tokens[-1]) and tokens[-1] not in _CLOSED and tokens[-1] not in "!%°":
        tokens.pop()
    while tokens and not _is_operand(tokens[0]) and tokens[0] not in _OPEN | {"-", "√", "|"}:
        tokens.pop(0)
    opened = sum(token in _OPEN for token in tokens) - sum(token in _CLOSED for token in tokens)
    while tokens and opened > 0 and tokens[0] in _OPEN:
        tokens, opened = tokens[1:], opened - 1
    while tokens and opened < 0 and tokens[-1] in _CLOSED:
        tokens, opened = tokens[:-1], opened + 1
    return tokens if any(map(_is_operand, tokens)) else []


def _is_operand(token: str) -> bool:
    return token[-1].isalnum() or token in "π∞"

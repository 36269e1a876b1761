"""Normalized contents of a reasoning step: its mathematics and its words, without step numbers."""

import re
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from search.strategies.levels.step_formulas import Formula, formula_of, said_once
from search.tools.math_tokens import tokens_of
from search.tools.math_words import operation_of, reverses, stem_of

CACHE_SIZE = 4096

_HEADING = re.compile(r"^[ \t#*]*(?:step[ \t]*\d+[ \t]*[:.)]?|\d{1,2}[.)][ \t]+(?=\S))", re.IGNORECASE | re.MULTILINE)
_OPENING = re.compile(
    r"^\s*(?:first|second|third|next|then|finally|lastly)(?:ly)?\s*(?:,|(?=we\b|let\b|i\b))", re.IGNORECASE
)
_COMMON_WORDS = """
    a an the this that these those there here it its we us our you your he she they their them his her i let lets
    is are was were be been being am do does did has have had having can could will would shall should may might must
    of to in on at by for from with into as about over under up out between both each all any some then than so
    and or but if else when where which what who how why also just only again still now next finally begin start
    therefore thus hence because since given know need want see note notice recall remember find found finding
    get gets getting got give gives giving obtain obtaining yield compute computing calculate calculating determine
    evaluate solve solving work working write rewrite use using apply applying take taking make making look looking
    step problem question answer result solution final equation expression value number equal equals simplify mean
    means say says follow follows conclude tell tells show shows via per such easily simply well ok okay total dollar
"""
_COMMON = frozenset(map(stem_of, _COMMON_WORDS.split()))
"""Stems of common words, which say nothing specific about a step."""


class StepContents(NamedTuple):
    """The mathematics and the words of a step."""

    mathematics: frozenset[Formula]
    """Its formulas, numbers, and words that reverse its meaning; compared exactly."""
    words: frozenset[str]
    """Stems of its other words, without common words; compared by similarity."""


@lru_cache(CACHE_SIZE)
def contents_of(text: str) -> StepContents:
    """Parses a step."""
    runs: list[list[str]] = []
    words: list[str] = []
    without_numbering = _OPENING.sub(" ", _HEADING.sub(" ", text))
    for is_math, run in groupby(tokens_of(without_numbering), key=lambda token: token.is_math):
        if is_math:
            runs.append([token.text for token in run])
        else:
            words += [token.text for token in run if token.text]
    formulas = said_once([formula for run in runs if (formula := formula_of(run))])
    signs = {sign for run in runs for sign in run}
    operations = {(sign,) for word in words if (sign := operation_of(word)) and sign not in signs}
    stems = {stem_of(word) for word in words if not operation_of(word)}
    reversing = {(stem,) for stem in stems if reverses(stem)}
    own = frozenset(stem for stem in stems if not reverses(stem) and stem not in _COMMON)
    return StepContents(formulas | operations | reversing, own)

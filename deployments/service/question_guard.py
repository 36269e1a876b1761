"""Near misses: questions of almost the same words whose answers differ, which an embedding rates as similar.

``Add 3`` and ``Add 4``, or ``at least`` and ``at most``, are closer in most embeddings than two wordings of one
question are. So the cache compares two questions only if their marks are equal.
"""

import re
from collections.abc import Iterator

from search.answers.units import known_unit
from search.tools.math_tokens import tokens_of
from search.tools.math_words import operation_of, reverses, stem_of

_NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
"""
_MEANINGS = {
    "+": "increase more up gain",
    "-": "decrease fewer less down away reduce lose",
    "*": "double twice triple thrice",
    "/": "half halve third quarter",
}
"""Beside `operation_of`: the direction in which a word changes a number."""
_DISTINGUISHING = """
    thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen
    except only least most last first before after above below left right cannot
    area perimeter volume mean median mode average sum product remainder percent
    buy sell bought sold north south east west
"""
_CURRENCY = re.compile("[€£¥₹₩₽]")


def marks_of(text: str) -> tuple[str, ...]:
    """The parts of a question that change its answer, in their order: numbers, variables, signs, units, and words that
    name an operation or turn a meaning around. The words are English; the rest holds for any language.
    """
    return (*_marks(text), *_CURRENCY.findall(text))


def _marks(text: str) -> Iterator[str]:
    after_number = after_math = False
    for token, is_math in tokens_of(text):
        if is_math:
            # Behind a word it ends a sentence.
            if token != "!" or after_math:
                yield token
        elif token:
            stem = stem_of(token)
            if mark := _WORDS.get(token) or _WORDS.get(stem) or operation_of(token):
                yield mark
            elif reverses(stem):
                yield stem
            # Short ones, such as "m", are units after a number only, and "in" is an inch too rarely.
            elif (len(token) > 2 or (after_number and token != "in")) and (unit := known_unit(token)):
                yield unit
        after_math, after_number = is_math, is_math and token[-1].isdigit()


_WORDS = {
    **{word: str(number) for number, word in enumerate(_NUMBERS.split())},
    **{form: sign for sign, words in _MEANINGS.items() for word in words.split() for form in (word, stem_of(word))},
    **{form: word for word in _DISTINGUISHING.split() for form in (word, stem_of(word))},
}

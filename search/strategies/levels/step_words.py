"""The words of reasoning steps: stems, common words, and words that reverse the meaning of a step."""

from functools import lru_cache

_OPERATION_WORDS = {
    "+": "add plus sum",
    "-": "subtract minus difference",
    "*": "multiply multiplied times product",
    "/": "divide divided quotient",
    "^": "square squared",
    "factor": "factor",
    "expand": "expand",
}
_OPPOSITE_WORDS = """
    not no never neither nor without even odd positive negative maximum minimum largest smallest larger smaller greater
    less more fewer increase decrease convex concave true false possible impossible rational irrational prime composite
    parallel perpendicular acute obtuse inside outside
"""
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


def operation_of(word: str) -> str | None:
    """The sign of the operation that a lower-case word names (``plus`` is ``+``), or None."""
    return _OPERATIONS.get(word) or _OPERATIONS.get(stem_of(word))


def reverses(stem: str) -> bool:
    """Whether a word with this stem reverses the meaning of a step: ``not``, ``odd``, ``less``."""
    return stem in _OPPOSITES


def is_common(stem: str) -> bool:
    """Whether a word with this stem is common and says nothing specific about a step."""
    return stem in _COMMON


@lru_cache(4096)
def stem_of(word: str) -> str:
    """A lower-case word without its common endings."""
    for ending in ("ing", "ions", "ion", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= (4 if ending in "ey" else 3):
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] else word


_OPERATIONS = {
    form: sign for sign, words in _OPERATION_WORDS.items() for word in words.split() for form in (word, stem_of(word))
}
_OPPOSITES = frozenset(map(stem_of, _OPPOSITE_WORDS.split()))
_COMMON = frozenset(map(stem_of, _COMMON_WORDS.split()))

"""English words of mathematical texts: stems, names of operations, and words that reverse a meaning."""

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


def operation_of(word: str) -> str | None:
    """The sign of the operation that a lower-case word names (``plus`` is ``+``), or None."""
    return _OPERATIONS.get(word) or _OPERATIONS.get(stem_of(word))


def reverses(stem: str) -> bool:
    """Whether a word with this stem reverses the meaning of a sentence: ``not``, ``odd``, ``less``."""
    return stem in _OPPOSITES


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

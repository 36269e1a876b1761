"""The answer in a text, and which answers are the same.

Most answers are numbers, and those are compared as exact fractions at once. The rest goes to math-verify,
in a process of its own (``search.answers.equivalence``): sympy can hang on what a model, or whoever prompts it, wrote.
"""

import re
from fractions import Fraction
from functools import lru_cache

MOST_ANSWER_CHARS = 1024
"""A longer answer is none: no grader reads it, and comparing it costs."""

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\[\\{}]|(?P<open>\{)|(?P<close>\})")
_PHRASE = re.compile(r"\banswer[ \t]{0,4}(?:is|:|=)[ \t:*]{0,4}(\S[^\n]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?:\s|\*|$)")
_DROPPED = re.compile(r"\$|\\left(?![a-z])|\\right(?![a-z])|\\[!,;: ]|\\%|%|\^\{?\\circ\}?|°|\s|~")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}")
_ASSIGNED = re.compile(r"[A-Za-z]=(?!=)")
_NUMBER = re.compile(r"[+-]?(?:\d{1,64}(?:\.\d{0,64})?|\.\d{1,64})(?:[eE][+-]?\d{1,2})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_LATEX_FRACTION = re.compile(
    r"(?P<sign>[+-]?)\\[dt]?frac(?:\{(?P<a>[+-]?[\d.]{1,64})\}|(?P<a1>\d))(?:\{(?P<b>[+-]?[\d.]{1,64})\}|(?P<b1>\d))"
)


def extract_answer(text: str) -> str | None:
    r"""The answer that ``text`` gives, as written; None if it gives none.

    It is what the last ``\boxed{...}`` (or ``\fbox{...}``) with balanced braces holds. Without one it is
    the rest of the sentence after the last "answer is", "answer:" or "answer =" on its line.
    Empty answers and those longer than ``MOST_ANSWER_CHARS`` are none.
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    phrases = _PHRASE.findall(text)
    return _usable(_SENTENCE_END.split(phrases[-1])[0].strip("*$ \t")) if phrases else None


def boxed_answer(text: str) -> str | None:
    r"""What the last complete ``\boxed{...}`` in ``text`` holds; None if there is none or it is empty."""
    answer: str | None = None
    # One pass over the braces: a hostile text of nothing but openings must not cost its square.
    opened: list[int | None] = []
    for brace in _BRACE.finditer(text):
        if brace["box"]:
            opened.append(brace.end())
        elif brace["open"]:
            opened.append(None)
        elif brace["close"] and opened and (start := opened.pop()) is not None:
            answer = _usable(text[start : brace.start()].strip()) or answer
    return answer


@lru_cache(maxsize=4096)
def canonical(answer: str) -> str:
    """A spelling that equal answers often share: numbers as reduced fractions, the rest without spaces,
    dollar signs, units of degree and percent, text wrappers and a leading ``x=``."""
    number = as_number(answer)
    return str(number) if number is not None else _plain(answer)


@lru_cache(maxsize=4096)
def as_number(answer: str) -> Fraction | None:
    """The exact value of an integer, decimal or simple fraction; None if the answer is anything else."""
    plain = _plain(answer)
    if fraction := _LATEX_FRACTION.fullmatch(plain):
        sign = -1 if fraction["sign"] == "-" else 1
        above, below = fraction["a"] or fraction["a1"], fraction["b"] or fraction["b1"]
        value = _quotient(above, below)
        return None if value is None else sign * value
    above, slash, below = plain.partition("/")
    return _quotient(above, below) if slash else _decimal(plain)


def quickly_same(a: str, b: str) -> bool | None:
    """Whether two answers are the same, as far as plain comparison can tell; None if it cannot."""
    if canonical(a) == canonical(b):
        return True
    if as_number(a) is not None and as_number(b) is not None:
        return False
    return None


def _usable(answer: str) -> str | None:
    return answer if 0 < len(answer) <= MOST_ANSWER_CHARS else None


def _plain(answer: str) -> str:
    unwrapped = _TEXT.sub(r"\1", answer)
    plain = _DROPPED.sub("", unwrapped).rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    if _ASSIGNED.match(plain):
        plain = plain[2:]
    return plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain


def _decimal(text: str) -> Fraction | None:
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def _quotient(above: str, below: str) -> Fraction | None:
    a, b = _decimal(above), _decimal(below)
    return None if a is None or b is None or b == 0 else a / b

"""Texts of a backend, which tells no token ids, cut into steps."""

from collections.abc import Sequence
from itertools import pairwise


def split_steps(text: str, delimiter: str) -> tuple[str, ...]:
    """The steps of a whole solution, each with the delimiter that ends it. A step is not blank, so delimiters before
    its first word belong to it. Never empty; the joined steps are ``text``."""
    steps: list[str] = []
    start = searched = 0
    while (found := text.find(delimiter, searched)) >= 0:
        searched = found + len(delimiter)
        if not is_blank(text[start:searched], delimiter):
            steps.append(text[start:searched])
            start = searched
    return (*steps, text[start:]) if text[start:] or not steps else tuple(steps)


def is_blank(text: str, delimiter: str) -> bool:
    """Whether a text is only whitespace and delimiters, and so no step yet."""
    return not text.replace(delimiter, "").strip()


def shares(total: int, texts: Sequence[str]) -> list[int]:
    """``total`` tokens distributed over texts in proportion to their lengths; they add up to ``total``."""
    length = sum(map(len, texts))
    ends, behind = [0], 0
    for text in texts:
        behind += len(text)
        ends.append(total * behind // length if length else 0)
    ends[-1] = total
    return [end - start for start, end in pairwise(ends)]


def token_counts(tokens: Sequence[str], texts: Sequence[str]) -> list[int]:
    """The number of tokens with which each of the texts is written, by the texts of the tokens. A token belongs to the
    text in which it ends."""
    counts, end, position, left = [], 0, 0, iter(tokens)
    for text in texts[:-1]:
        end, count = end + len(text), 0
        while position < end and (token := next(left, None)) is not None:
            position += len(token)
            count += 1
        counts.append(count)
    return [*counts, sum(1 for _ in left)]

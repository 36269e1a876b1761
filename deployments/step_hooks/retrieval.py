"""Retrieval from a small corpus as a step hook: it adds a line that says more about what a step speaks of."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


class Retrieval:
    """Adds the line of a corpus that shares the most with a step: the words that both have, rare ones weighing more.

    It runs on the event loop of the controller, so the corpus should have at most some thousand lines. An index or a
    service of one's own takes its place in a function of the same signature.
    """

    def __init__(self, lines: Sequence[str], least: float = 0.4) -> None:
        """``least``: share of a line's weight that the step must have; at most 1."""
        self._lines = [line.strip() for line in lines if line.strip()]
        self._words = [_words(line) for line in self._lines]
        self._least = least
        in_lines = Counter(word for words in self._words for word in words)
        self._weights = {word: math.log(1 + len(self._lines) / count) for word, count in in_lines.items()}

    async def __call__(self, question: str, path: Sequence[str], step: str) -> str | None:
        """The best line, unless it is on the path already; None if no line shares enough."""
        said = _words(step)
        shares = [self._weight(words & said) / self._weight(words) if words else 0.0 for words in self._words]
        best = max(range(len(shares)), key=shares.__getitem__, default=None)
        if best is None or shares[best] < self._least:
            return None
        line = self._lines[best]
        return None if any(line in text for text in (*path, step)) else f"{line}\n\n"

    def _weight(self, words: set[str]) -> float:
        return math.fsum(self._weights[word] for word in words)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))

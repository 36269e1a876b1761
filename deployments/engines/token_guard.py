"""Texts of users and models in which no token of the chat template is left: each is cut where one begins."""

import re
from collections.abc import Mapping
from typing import NamedTuple

NONCHARACTERS = range(0xFDD0, 0xFDF0)
"""Code points that Unicode leaves to programs. None is left in a text from outside, so here each means something."""
CUT, EDGE = map(chr, NONCHARACTERS[:2])
"""``CUT``: what stands before it and what stands behind it are tokenized by themselves. ``EDGE``: a chat template may
take out what stands at one side of it; it becomes a cut if tokens would arise without it."""


class TokenGuard(NamedTuple):
    """Tokens that no text may become."""

    pattern: re.Pattern[str]
    """Matches the text of any of them, the longest first."""
    ids: frozenset[int]

    @classmethod
    def of(cls, tokens: Mapping[str, int]) -> "TokenGuard":
        longest_first = sorted(tokens, key=len, reverse=True)
        return cls(re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"), frozenset(tokens.values()))

    def cut(self, text: str) -> str:
        """``text`` with a cut behind the first character of each token, and without noncharacters of its own."""
        own = text.translate(dict.fromkeys(NONCHARACTERS))
        return self.pattern.sub(lambda match: match[0][0] + CUT + match[0][1:], own)

    def without_edges(self, text: str) -> str:
        """``text`` without its edges, or with cuts in their place if tokens would arise or move otherwise."""
        if EDGE not in text:
            return text
        plain = text.replace(EDGE, "")
        apart: list[tuple[int, int]] = []
        start = 0
        for part in text.split(EDGE):
            apart += [(start + match.start(), start + match.end()) for match in self.pattern.finditer(part)]
            start += len(part)
        return plain if apart == [match.span() for match in self.pattern.finditer(plain)] else text.replace(EDGE, CUT)

"""Texts of users and models in which no token of the chat template is left: each is cut where one begins."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NONCHARACTERS = range(0xFDD0, 0xFDF0)
"""Code points that Unicode leaves to programs. None is left in a text from outside, so here each means something."""
CUT, EDGE = map(chr, NONCHARACTERS[:2])
"""``CUT``: what stands before it and what stands behind it are tokenized by themselves. ``EDGE``: a chat template may
take out what stands at one side of it; it becomes a cut if tokens would arise without it."""


READ_KEYS = frozenset(
    {
        *("arguments", "description", "function", "id", "name", "parameters", "strict", "tool_call_id", "type"),
        *("additionalProperties", "allOf", "anyOf", "const", "default", "enum", "format", "items", "oneOf"),
        *("properties", "required", "return", "title", "$defs", "$ref"),
    }
)
"""Keys of tools and calls by which templates find their way. They stay as they are."""


class TokenGuard(NamedTuple):
    """Tokens that no text may become."""

    pattern: re.Pattern[str]
    """Matches the text of any of them, the longest first."""
    ids: frozenset[int]
    texts: tuple[str, ...]
    """Their texts."""

    @classmethod
    def of(cls, tokens: Mapping[str, int]) -> "TokenGuard":
        longest_first = sorted(tokens, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        return cls(pattern, frozenset(tokens.values()), tuple(tokens))

    def cut(self, text: str) -> str:
        """``text`` with a cut behind the first character of each token, and without noncharacters of its own."""
        own = text.translate(dict.fromkeys(NONCHARACTERS))
        return self.pattern.sub(lambda match: match[0][0] + CUT + match[0][1:], own)

    def cut_json(self, value: Any) -> Any:
        """JSON with every text in it cut, keys too.

        Some templates write a key as a tag, as in ``<key>``, which may be a token. A key that may be part of a token
        therefore stands between edges.

        Raises:
            ValueError: it is nested too deeply.
        """
        try:
            return self._cut_json(value)
        except RecursionError:
            raise ValueError("JSON in the messages or tools is nested too deeply") from None

    def _cut_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.cut(value)
        if isinstance(value, Mapping):
            return {self._cut_key(key): self._cut_json(part) for key, part in value.items()}
        return [self._cut_json(part) for part in value] if isinstance(value, list | tuple) else value

    def _cut_key(self, key: str) -> str:
        if key in READ_KEYS:
            return key
        cut = self.cut(key)
        apart = cut.isidentifier() and not any(cut in token for token in self.texts)
        return cut if apart or not cut else EDGE + cut + EDGE

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

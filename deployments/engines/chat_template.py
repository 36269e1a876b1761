"""A chat template that finds in earlier answers the tokens that it looks for, although no text has tokens in it.

Templates leave out the thoughts of earlier answers, as in ``content.split('</think>')[-1]``. But a text that reaches a
template may be printed, and so it may not have the token. Therefore the template looks for a stand-in, which stands in
the answers, too. What a user says has none: a template finds nothing there.
"""

import re
from typing import NamedTuple

from deployments.engines.token_guard import CUT, EDGE, NONCHARACTERS, TokenGuard

_FIRST, *_OTHERS = map(chr, NONCHARACTERS[2:])
"""The first character of every stand-in, and the others, one for each token."""
_THOUGHT = re.compile("think|thought|reason", re.IGNORECASE)
_THINKING_FIELD = re.compile(r"\breasoning(?:_content)?\b")
_CODE = re.compile(r"\{[{%].*?[}%]\}", re.DOTALL)
_SEARCH = re.compile(
    r"(?P<call>[.|]\s*(?:r?split|r?partition|r?find|r?index|startswith|endswith|count|replace|removeprefix|removesuffix)"
    r"\s*\(\s*)?(?P<sought>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?(call)|(?=\s+(?:not\s+)?in\b))"
)
"""A literal that Jinja code looks for in a text."""


class ChatTemplate(NamedTuple):
    """A chat template for conversations whose texts are cut."""

    guard: TokenGuard
    source: str
    """The template, to be rendered in place of the tokenizer's if it looks for tokens."""
    stand_ins: dict[str, str]
    """Stand-in of each token that it looks for, as long as the token."""
    names_thoughts: bool
    """Whether it has a word for thoughts. One without opens none."""

    thinking_fields: frozenset[str]
    """Fields of a message, such as ``reasoning_content``, in which it looks for the message's thinking."""

    @classmethod
    def of(cls, source: str, guard: TokenGuard) -> "ChatTemplate":
        searches = [search["sought"] for code in _CODE.findall(source) for search in _SEARCH.finditer(code)]
        tokens = dict.fromkeys(token for sought in searches for token in guard.pattern.findall(sought))
        stand_ins = {
            token: _FIRST + other * (len(token) - 1) for token, other in zip(tokens, _OTHERS, strict=False) if token[1:]
        }

        def found(search: re.Match[str]) -> str:
            sought = guard.pattern.sub(lambda token: stand_ins.get(token[0], token[0]), search["sought"])
            return (search["call"] or "") + sought

        sought_by = _CODE.sub(lambda code: _SEARCH.sub(found, code[0]), source)
        fields = frozenset(_THINKING_FIELD.findall(source))
        return cls(guard, sought_by, stand_ins, _THOUGHT.search(source) is not None, fields)

    def searchable(self, answer: str) -> str:
        """A cut answer with stand-ins for what the template looks for.

        A template may remove a stand-in, and then the text on both sides must not join to a token, as it would in
        ``<|im_</think>end|>``: so an edge stands on each side, outside of any spaces, which templates strip too.
        """
        for token, stand_in in self.stand_ins.items():
            answer = answer.replace(self.guard.cut(token), stand_in)
        return _STAND_INS.sub(_between_edges, answer)

    def restored(self, rendered: str) -> str:
        """A rendered conversation with cut tokens for the stand-ins that are left, and without edges."""
        for token, stand_in in self.stand_ins.items():
            rendered = rendered.replace(stand_in, self.guard.cut(token))
        return self.guard.without_edges(rendered.translate(_TORN))


_STAND_INS = re.compile(rf"(?:(?<!\s)\s+)?(?:{_FIRST}[{''.join(_OTHERS)}]+\s*)+")
_TORN = dict.fromkeys(map(ord, (_FIRST, *_OTHERS)), CUT)
"""Replaces what is left of a stand-in that a template has cut in two."""


def _between_edges(found: re.Match[str]) -> str:
    """No edge is needed where the answer begins or ends."""
    before = EDGE if found.start() else ""
    behind = EDGE if found.end() < len(found.string) else ""
    return before + found[0] + behind

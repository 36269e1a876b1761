r"""Answers in fields of JSON within a text: ``{"reasoning": "...", "answer": "C"}``.

Only the field is read, not the object: models write LaTeX in JSON with single backslashes, and text around it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from search.answers.vocabulary import ANSWER

_MAX_VALUE_CHARS = 2048
_FIELD = re.compile(
    r"""["'](?:(?:final|correct|my|best|the|your|predicted|selected|chosen)[ _-]?)?"""
    rf"""(?:{ANSWER}|choice|option|letter)["']"""
    r"[ \t]{0,4}[:：]\s{0,8}(?:"
    rf'"(?P<double>(?:[^"\\\n]|\\.){{0,{_MAX_VALUE_CHARS}}}+)"'
    rf"|'(?P<single>(?:[^'\\\n]|\\.){{0,{_MAX_VALUE_CHARS}}}+)'"
    rf"|\[(?P<items>[^\[\]{{}}\n]{{0,{_MAX_VALUE_CHARS}}}+)\]"
    r"|(?P<bare>[-+]?[\d.][\d.,eE+/%-]{0,64}(?<!,)|true|false))",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\\([\"'\\/])|\\u([0-9a-fA-F]{4})|\\[nt](?![a-z])")


class Field(NamedTuple):
    """A field of JSON."""

    end: int
    """Where its value ends in the text."""
    value: str
    """Its value as text; the items of a list are separated by commas."""


def answer_fields(text: str) -> Iterator[Field]:
    """The fields in ``text`` that hold an answer, in their order. Takes linear time."""
    for field in _FIELD.finditer(text):
        if field["items"] is not None:
            value = field["items"].replace('"', "").replace("'", "")
        else:
            value = field["double"] or field["single"] or field["bare"] or ""
        yield Field(field.end(), _ESCAPE.sub(_unescaped, value).strip())


def _unescaped(escape: re.Match[str]) -> str:
    return escape[1] or (chr(int(escape[2], 16)) if escape[2] else " ")

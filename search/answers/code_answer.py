"""Programs as answers: the code block of a text. Takes linear time, whatever the text is."""

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from search.answers.thoughts import without_thoughts

MAX_PROGRAM_CHARS = 32_768
"""Longest program. A longer one does not count as an answer."""
_FENCE = re.compile(r"[ \t]{0,12}(?P<mark>`{3,16}|~{3,16})[ \t]{0,4}(?P<language>[\w+.#-]{0,16})[^`~]{0,128}$")
_PYTHON = frozenset({"", "python", "python3", "py", "py3"})
_DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]", re.MULTILINE)


class CodeBlock(NamedTuple):
    """A program in a text."""

    source: str
    closed: bool
    """Whether its code block has ended."""


def code_block(text: str) -> CodeBlock | None:
    """The program that a text answers with, its thoughts excluded: the last Python block that defines a function or a
    class, since models show how to call it in a block of its own; or else the last Python block. None without one."""
    blocks = [block for block in _blocks(without_thoughts(text)) if block.source.strip()]
    defining = [block for block in blocks if _DEFINITION.search(block.source)]
    chosen = next(reversed(defining or blocks), None)
    return chosen if chosen is not None and len(chosen.source) <= MAX_PROGRAM_CHARS else None


def code_answer(text: str) -> str | None:
    """The source of `code_block` a text: an answer extractor."""
    program = code_block(text)
    return None if program is None else program.source


def _blocks(text: str) -> Iterator[CodeBlock]:
    """The fenced blocks in Python or without a language; the last one may be open."""
    mark, is_python, lines = "", False, list[str]()
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if not mark:
            if fence is not None:
                mark, is_python, lines = fence["mark"], fence["language"].lower() in _PYTHON, []
        elif fence is not None and fence["mark"].startswith(mark) and not fence["language"]:
            if is_python:
                yield CodeBlock(_source(lines), closed=True)
            mark = ""
        else:
            lines.append(line)
    if mark and is_python:
        yield CodeBlock(_source(lines), closed=False)


def _source(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).rstrip() + "\n"

"""Programs in the text of a path: a fenced block of Python is run, and a block of its output follows it."""

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import NamedTuple

from search.answers.extraction import MAX_ANSWER_CHARS, extract_answer

OPENING = "```python"
"""The text behind which the model writes a program."""
FENCE = "```"
"""The text that ends it."""
_OUTPUT = re.compile(r"[^\n`]*\n```output\n")


class Program(NamedTuple):
    """A block of Python that is closed."""

    source: str
    """The lines behind that of the opening fence, without a common indentation."""
    output: str | None
    """The text of the block of output behind it; None if there is none."""
    end: int
    """Where both end in the text."""


def output_block(output: str) -> str:
    """The block that follows the closing fence of a program with this output."""
    text = output.replace(FENCE, "'''")
    return f"\n{FENCE}output\n{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{FENCE}\n"


def programs(text: str) -> Iterator[Program]:
    """The programs of a text, in order."""
    end = 0
    while (start := text.find(OPENING, end)) >= 0:
        start += len(OPENING)
        close = text.find(FENCE, start)
        if close < 0:
            return
        end = close + len(FENCE)
        source = dedent(text[start:close].partition("\n")[2])
        output: str | None = None
        behind = _OUTPUT.match(text, end)
        if behind is not None and (close := text.find(FENCE, behind.end())) >= 0:
            output, end = text[behind.end() : close], close + len(FENCE)
        yield Program(source, output, end)


def program_answer(text: str) -> str | None:
    """As `extract_answer`. Where nothing follows the block of a program's output, the last line that it printed is the
    answer."""
    last = next(iter([*programs(text)][-1:]), None)
    if last is not None and last.output is not None and not text[last.end :].strip():
        line = last.output.strip().rpartition("\n")[2].strip()
        if 0 < len(line) <= MAX_ANSWER_CHARS:
            return line
    return extract_answer(text)

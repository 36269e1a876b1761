"""README and docs as readers use them: examples, commands in the text, links and headings."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("benchmarks", "deployments/embedded", "requirements")),
    ]
)
"""All pages except the changelog, which also names things that have been removed."""

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced code block."""

    page: Path
    line: int
    """Its line number."""
    language: str
    """The word after the fence; empty for diagrams and for the output of commands."""
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


class Mention(NamedTuple):
    """A piece of a page's text."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}: {self.text}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks() -> list[Block]:
    found: list[Block] = []
    for page in PAGES:
        text = page.read_text()
        found += [Block(page, _line(text, match.start()), match[2], match[3]) for match in FENCED.finditer(text)]
    return found


def blocks_in(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def spans() -> list[Mention]:
    """All inline code, outside of blocks."""
    return [Mention(page, line, " ".join(match[1].split())) for page, line, match in _matches(SPAN)]


def links() -> list[Mention]:
    """Targets of links inside the project."""
    found = [Mention(page, line, match[1]) for page, line, match in _matches(LINK)]
    return [link for link in found if not link.text.startswith(("http://", "https://"))]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Targets that a link may name after ``#``: the anchors of the headings."""
    headings = HEADING.findall(_without_blocks(page.read_text()))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def _matches(pattern: re.Pattern[str]) -> Iterator[tuple[Path, int, re.Match[str]]]:
    for page in PAGES:
        text = _without_blocks(page.read_text())
        for match in pattern.finditer(text):
            yield page, _line(text, match.start()), match


def _without_blocks(text: str) -> str:
    """The same lines, with those of blocks emptied."""
    return FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

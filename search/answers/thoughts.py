"""What in a text is thought: the one table of the marks between which models think.

A prompt may have opened the thought already, and a thought may never end. What stands in one is no answer. Every
function takes linear time, whatever the text is.
"""

import re
from typing import NamedTuple


class Span(NamedTuple):
    """A part of a text, from ``start`` to before ``end``."""

    start: int
    end: int


class Parts(NamedTuple):
    """A text in two parts."""

    thinking: str
    """The thoughts with which it begins, without marks; empty if it begins with none."""
    start: int
    """Index at which the content begins; the length of the text if a thought never ends."""


class _Marks(NamedTuple):
    """How some models mark a thought: regular expressions that ignore case."""

    opening: str
    closing: str
    alone: str = r"(?!)"
    """Matches a mark outside of thoughts after which everything before it was one: the prompt had opened it, or the
    thought quoted its own closing mark."""
    spelled: str = ""
    """An opening mark that means the same, where the matched text alone would not be recognized."""


class _Table:
    """Marks that count at the same places."""

    def __init__(self, *rows: _Marks) -> None:
        self.rows = rows
        self.closings = [_compiled(marks.closing) for marks in rows]
        # What ends a thought comes first: before its name an opening tag may have any words, "end_of" too.
        self.mark = _compiled(
            "|".join(f"(?P<a{row}>{marks.alone})|(?P<o{row}>{marks.opening})" for row, marks in enumerate(rows))
        )
        """Matches any mark outside of thoughts; its group is named by what it is, and by its row."""


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


_BEFORE = r"(?:[a-z]{1,16}[:_|-]){0,3}"
"""Words before the name in a tag: ``<seed:think>``, ``<chain_of_thought>``, ``<ifm|think>``."""
_BEHIND = r"(?:[:_-][a-z0-9]{1,24}){0,2}"
_ATTRIBUTES = r"(?:\s{1,8}[a-z][\w:-]{0,31}\s{0,4}=\s{0,4}(?:\"[^\"<>]{0,128}\"|'[^'<>]{0,128}'|[^\s\"'<>]{1,64})){0,4}"
_END = r"\s{0,8}[|｜]?>"


def _tags(name: str, bracketed: bool = False) -> _Marks:
    """``<name>…</name>``, ``<|name|>…<|/name|>``, ``<|begin_of_name|>…<|end_of_name|>`` and
    ``<|name_start|>…<|name_end|>``, with other words beside the name and with attributes.

    ``bracketed``: also ``[name]…[/name]`` and ``◁name▷…◁/name▷``.
    """
    named = f"{_BEFORE}(?:{name}){_BEHIND}"
    opening = rf"(?<=<)[|｜]?(?!no[_-]){named}{_ATTRIBUTES}{_END}"
    closing = rf"(?<=<)[|｜]?(?:\s{{0,2}}/\s{{0,2}}{named}|(?:end|close|stop)[_-]{named}|{named}[_-](?:end|stop)){_END}"
    if bracketed:
        opening += rf"|(?<=[\[◁])(?:{name})[\]▷]"
        closing += rf"|(?<=[\[◁])/(?:{name})[\]▷]"
    closing = rf"[<\[◁](?:{closing})"
    return _Marks(rf"[<\[◁](?:{opening})", closing, closing)


_FINAL = r"<\|channel\|>\s{0,2}final\b[^<]{0,128}<\|message\|>"
_CHANNEL_END = rf"<\|(?:end|eom|call|return)\|>|{_FINAL}|(?-i:assistantfinal)"
_RESPONSE = r"\[BEGIN FINAL RESPONSE\]"
_ANYWHERE = _Table(
    _Marks(r"<\|content_thinking\|>", r"<\|end_message\|>", r"<\|content_text\|>"),  # Inkling
    _tags("(?:ant)?think(?:ing)?|thoughts?|思考(?:过程)?", bracketed=True),
    _tags("reasoning", bracketed=True),
    _tags("scratchpad", bracketed=True),
    *map(_tags, ("reflection", "analysis", "monologue", "deliberation", "cot")),
    _Marks(  # gpt-oss; MuseGlimmer writes to itself.
        r"<\|channel\|>\s{0,2}(?:analysis|commentary)\b[^<]{0,128}<\|message\|>|<\|message\|>(?<=to=self<\|message\|>)",
        _CHANNEL_END,
        rf"{_FINAL}|<\|message\|>(?<=to=user<\|message\|>)",
        "<|channel|>analysis<|message|>",
    ),
    _Marks(r"<\|channel>\s{0,2}thought", r"<channel\|>", r"<channel\|>"),  # Gemma 4
    _Marks(r"<unused94>", r"<unused95>", r"<unused95>"),  # MedGemma
    _Marks(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", r"<\|inner_suffix\|>"),  # Apertus
    _Marks(*(rf"<\|{sign}\|>\s{{0,2}}think\s{{0,2}}<\|sep\|>" for sign in ("open", "close", "close"))),  # Kimi K3
    _Marks(r"(?!)", r"(?!)", _RESPONSE),
    _Marks(*(rf"<\|im_start\|>{role}" for role in ("think", "answer", "answer"))),  # s1
)
_AT_BEGINNING = _Table(
    _Marks(r"Here(?: is|'s|’s) my thought process:?", r"Here(?: is|'s|’s) my response:?"),  # Granite
    _Marks(r"Here are my reasoning steps:?", _RESPONSE),  # Apriel
    _Marks(r"#{1,4} ?Thinking[ \t]{0,8}\n", r"^#{1,4} ?Final Response\b[ \t:*]{0,8}"),  # HuatuoGPT-o1
    _Marks(  # gpt-oss without its special tokens
        r"(?-i:analysis(?=[^\sa-z.,:;!?)*_-]))",
        _CHANNEL_END,
        spelled="<|channel|>analysis<|message|>",
    ),
)
"""Sentences, headings and words that are marks only at the beginning of a text."""
_SPACE = re.compile(r"\s*")
_LINE_END = re.compile(r"[^\S\n]*(?:\n|\Z)")
_SIGN = re.compile(r"[<\[◁](?![<\[◁])")
"""The first sign of every mark that counts anywhere, and of little else."""


def outside_thoughts(text: str) -> list[Span]:
    """The parts of ``text`` that are neither thought nor marks of it."""
    return _read(text)[0]


def without_thoughts(text: str) -> str:
    """``text`` without its thoughts; a newline stands where one was."""
    return "\n".join(text[start:end] for start, end in outside_thoughts(text))


def open_thought(text: str) -> str:
    """The opening mark of the thought in which ``text`` ends; empty if it ends in none. A continuation of ``text`` can
    be read behind this mark alone."""
    return _read(text)[1]


def parts(text: str, beginning: str = "", told: int = 0) -> Parts:
    """Parts what a model wrote into its thinking and its content. Content is what stands behind the thoughts at the
    beginning; marks in it are part of it.

    A closing tag ends a thought that nothing opened only at the end of its line: elsewhere the text speaks of it.

    Args:
        beginning: the text before, in which a thought may have been opened.
        told: number of characters of ``text`` that certainly are thinking; the rest then is content.
    """
    thoughts, start = _leading_thoughts(beginning + (text[:told] if told else text))
    before = len(beginning)
    start = told or max(0, start - before)
    if not start:
        return Parts("", 0)
    read = ((beginning + text)[max(before, thought.start) : thought.end].strip() for thought in thoughts)
    return Parts("\n\n".join(filter(None, read)), len(text) - len(text[start:].lstrip()))


def _leading_thoughts(text: str) -> tuple[list[Span], int]:
    """The thoughts at the beginning of a text, without their marks, and the index behind them."""
    thoughts: list[Span] = []
    start, content = 0, len(text) - len(text.lstrip())
    mark = _AT_BEGINNING.mark.match(text, content) or _first_mark(text, 0)
    while mark:
        what, row = str(mark.lastgroup)[0], int(str(mark.lastgroup)[1:])
        behind = mark.end()
        if what == "a":
            if not start and ("/" not in mark[0] or _LINE_END.match(text, behind)):
                return [Span(0, mark.start())], behind
        else:
            table = _AT_BEGINNING if mark.re is _AT_BEGINNING.mark else _ANYWHERE
            closing = table.closings[row].search(text, behind)
            if mark.start() <= content:
                thoughts.append(Span(behind, closing.start() if closing else len(text)))
                start = closing.end() if closing else len(text)
            if closing is None:
                break
            behind = closing.end()
        if content < start:
            content = _SPACE.match(text, start).end()  # type: ignore[union-attr]
        mark = _first_mark(text, behind)
    return thoughts, start


def has_marks(text: str) -> bool:
    """Whether a mark of a thought stands in ``text``."""
    return _first_mark(text, 0) is not None


def marks_replaced(text: str, by: str) -> str:
    """``text`` with ``by`` for every mark of a thought that counts anywhere."""
    return _ANYWHERE.mark.sub(by, text) if has_marks(text) else text


def _read(text: str) -> tuple[list[Span], str]:
    """The parts that are no thought, and the opening mark of the thought in which the text ends."""
    outside: list[Span] = []
    start = 0
    mark = _AT_BEGINNING.mark.match(text, len(text) - len(text.lstrip())) or _first_mark(text, start)
    while mark:
        table = _AT_BEGINNING if mark.re is _AT_BEGINNING.mark else _ANYWHERE
        what, row = str(mark.lastgroup)[0], int(str(mark.lastgroup)[1:])
        if what == "a":
            outside.clear()
            start = mark.end()
        else:
            outside.append(Span(start, mark.start()))
            closing = table.closings[row].search(text, mark.end())
            if closing is None:
                return outside, table.rows[row].spelled or mark[0]
            start = closing.end()
        mark = _first_mark(text, start)
    return [*outside, Span(start, len(text))], ""


def _first_mark(text: str, start: int) -> re.Match[str] | None:
    """The first mark at ``start`` or behind it."""
    matches = (_ANYWHERE.mark.match(text, sign.start()) for sign in _SIGN.finditer(text, start))
    return next(filter(None, matches), None)

r"""Extracts the answer of a text, as written.

Models state answers in a few ways: ``\boxed{12}`` as in MATH, "The final answer is $12$." as Minerva was prompted,
``#### 12`` as in GSM8K, ``**Answer:** 12``, ``A: 12``. Every function here takes linear time, whatever the text is.
"""

import re

MAX_ANSWER_CHARS = 1024
"""Longest answer. Longer text does not count as an answer: graders do not read it, and comparing it is slow."""
MAX_NEXT_LINE_CHARS = 64
"""Longest answer in the line after "Answer:". A longer line is an explanation."""
_MAX_PHRASES = 16
"""Maximum number of phrases tried, the last first, until an answer follows one."""

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\[\\{}]|(?P<open>\{)|(?P<close>\})")
_NUMBER_LINE = r"[-+]?\$?[-+]?[\d.][\d.,/]{0,64}[ \t]?(?:\\?%)?"
_PHRASE = re.compile(
    r"\banswers?(?: to (?:the|this) \w{1,20})?[ \t*_]{0,4}(?:is\b|are\b|:|=)[ \t*_:]{0,8}"
    r"|^[#*_ \t]{0,8}(?:the[ \t]|final[ \t]){0,2}answer[*_ \t]{0,8}$"
    # Chat models also write headings with four number signs; only before a number is it GSM8K's format.
    rf"|^\#{{4}}[ \t]{{0,4}}(?={_NUMBER_LINE}[ \t]{{0,8}}$)",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_END = re.compile(r"\.(?:\s|\*|$)|,?\s(?:because|since)\b|,\swhich\b")
_MATH = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))
_PRICE = re.compile(r"\$\d[\d.,]{0,64}[ \t]+[A-Za-z]{2}")
_MORE_MATH = re.compile(r"\s{0,4}(?:[,;]?\s{0,4}(?:and|or)\b|[,;])\s{0,4}(?:\$|\\\()")
_PERCENT = re.compile(r"\s?\\?%|\s?percent\b")


def extract_answer(text: str) -> str | None:
    r"""The answer in ``text``, as written; None if there is none.

    It is the content of the last ``\boxed{...}`` (or ``\fbox{...}``) with balanced braces. Without one it is the text
    after the last "answer is", "answer:" or "answer =", a heading "Final Answer", ``####`` before a number, or ``A:``
    at the start of the last line. If that text begins with mathematics between dollars (or ``\(``, ``\[``), the answer
    is the mathematics, else the rest of the sentence; if the rest of the line is empty, the next line is used. Empty
    answers and answers longer than ``MAX_ANSWER_CHARS`` do not count.
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    starts = [phrase.end() for phrase in _PHRASE.finditer(text)][-_MAX_PHRASES:]
    if (last_line := _last_line(text)) and text.startswith("A:", last_line[0]):
        starts.append(last_line[0] + 2)
    for start in sorted(starts, reverse=True):
        if (answer := _usable(_stated(text[start : start + 2 * MAX_ANSWER_CHARS]))) is not None:
            return answer
    return None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` in ``text`` that is an answer; None if there is none."""
    answer: str | None = None
    # One pass over the braces: a hostile text of nothing but opening braces must not take quadratic time.
    opened: list[int | None] = []
    for brace in _BRACE.finditer(text):
        if brace["box"]:
            opened.append(brace.end())
        elif brace["open"]:
            opened.append(None)
        elif brace["close"] and opened and (start := opened.pop()) is not None:
            answer = _usable(text[start : brace.start()].strip()) or answer
    return answer


def _last_line(text: str) -> tuple[int, int] | None:
    """Start and end of the last line that is not blank; None if there is none."""
    end = len(text.rstrip())
    return (text.rfind("\n", 0, end) + 1, end) if end else None


def _stated(rest: str) -> str:
    """The answer at the beginning of ``rest``, the text after an answer phrase; "" if there is none."""
    body = rest.lstrip("* \t_`")
    moved = body[:1] in ("\r", "\n")
    body = body.lstrip("*_` \t\r\n")
    inside = _between_delimiters(body)
    if inside is not None:
        return inside
    line = body.partition("\n")[0]
    sentence = _SENTENCE_END.split(line, maxsplit=1)[0].strip("*_` \t\r")
    if "$" not in sentence.strip("$"):
        sentence = sentence.strip("$ ")
    return "" if moved and len(line.strip()) > MAX_NEXT_LINE_CHARS else sentence


def _between_delimiters(body: str) -> str | None:
    """The content of the delimited mathematics at the start of ``body``; None if it starts otherwise, or if more
    mathematics follows as part of the answer."""
    if _PRICE.match(body):
        return None
    for opening, closing in _MATH:
        if not body.startswith(opening):
            continue
        end = body.find(closing, len(opening))
        while end > 0 and closing[0] == "$" and body[end - 1] == "\\":
            end = body.find(closing, end + 1)
        if end < 0:
            return None
        after = body[end + len(closing) : end + len(closing) + 32]
        if _MORE_MATH.match(after):
            return None
        percent = "\\%" if _PERCENT.match(after) else ""
        return body[len(opening) : end].strip() + percent
    return None


def _usable(answer: str) -> str | None:
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None

r"""Extracts the answer of a text, as written.

Models state answers in a few ways: ``\boxed{12}`` as in MATH, "The final answer is $12$." as Minerva was prompted,
``#### 12`` as in GSM8K, ``**Answer:** 12``, ``A: 12``, ``<answer>12</answer>``. Every function here takes linear time,
whatever the text is.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from search.answers.answer_fields import answer_fields
from search.answers.choices import choice_alone, implied_choices, stated_choices
from search.answers.next_question import question_marks
from search.answers.numerals import NUMBER, VALUE_START
from search.answers.statement import (
    MAX_NEXT_LINE_CHARS,
    is_assessment,
    number_said,
    sentence_number,
    stated,
    without_lead,
)
from search.answers.thoughts import without_thoughts
from search.answers.units import known_unit
from search.answers.vocabulary import ANSWER, ANSWER_ADJECTIVES, ANSWER_WORDS

MAX_ANSWER_CHARS = 1024
"""Longest answer. Longer text does not count as an answer: graders do not read it, and comparing it is slow."""
_MAX_PHRASES = 16
"""Maximum number of phrases tried, the last first, until an answer follows one."""
_MAX_BOXES = 64

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_UNSEEN = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad")) | {0xA0: " "}

_ARGUMENT = r"\s*(?:\{[^{}]{1,64}\}|\w)"
_BRACE = re.compile(
    r"\\{1,2}(?:f(?:rame)?)?box(?:ed)?\s*(?:(?P<box>\{)|(?P<bare>[-−–]?\d+(?:[.,]\d+)*|[A-Za-z](?![A-Za-z])"
    rf"|[-−–]?\\[dtc]?frac(?:{_ARGUMENT}){{2}}|[-−–]?\\(?:sqrt{_ARGUMENT}|(?:pi|infty)(?![A-Za-z]))))"
    r"|\\[\\{}]|(?P<open>\{)|(?P<close>\})"
)
_GAP = r"(?:[\s$()~]|\\q?quad|\\[,; ]){0,8}"
_BETWEEN_BOXES = re.compile(
    rf"{_GAP}(?:(?:[,;&]|\\text\s?\{{\s?(?:and|or)\s?\}}|(?:and|or)\b){_GAP}){{1,2}}"
    r"(?:[A-Za-z](?:_\d)?\s?(?:=|is\b)\s?\$?|(?:the|another|other)\s(?:[a-z]{1,12}\s){1,3}(?:is|are)\s\$?)?"
)
_PLACEHOLDER = re.compile(
    r"(?:[\s.…_?□*$<>\[\]~]|--|\\q?quad|\\[ ,;!_]|\\square)*|\\[lc]?dots|and"
    r"|(?:\\text\s?\{)?[\W_]{0,4}(?:(?:your|the|my|final)\s){0,3}(?:answer|result|solution|number|value|letter)s?"
    r"(?:\shere)?[\W_]{0,4}",
    re.IGNORECASE,
)

_MORE = (
    rf"(?: (?:{ANSWER_ADJECTIVES}|(?:that )?(?:I|we|you) [a-z]{{1,8}}(?: for)?|number|choice|option"
    r"|(?:to|of|for) (?:the |this )?[\w()]{1,20}(?: [\w()]{1,20})?)){0,2}(?:, [a-z]{1,10},)?"
)
_SIGN = r"[ \t*_:：]{0,8}"
_WORD_END = r"(?!\w)"
_NO_SPACES = "\u0e00"
"""The first letter of the scripts that have no space after these words: Thai, Chinese, Japanese and Korean."""
_STATED = "|".join(
    rf"(?:{nouns}){_MORE}[ \t*_]{{0,4}}(?:[:：=]|(?:{verbs or ':'}){'' if nouns >= _NO_SPACES else _WORD_END}){_SIGN}"
    for nouns, verbs in ANSWER_WORDS
)
_PHRASE = re.compile(
    rf"(?<!this )(?<![A-Za-z])(?:{_STATED})"
    rf"|^[#*_ \t]{{0,8}}(?:(?:the|final|la|die|最终)[ \t]?){{0,2}}(?:{ANSWER})(?: final[ei]?)?"
    r"[*_]{0,3}(?:[ \t*_]{0,8}$| [-–—] )",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(
    rf"^[#*_ \t]{{0,8}}(?:(?:the|final)[ \t]){{0,2}}(?:{ANSWER})[ \t*_]{{0,4}}[:：]{_SIGN}(?=\S)",
    re.IGNORECASE | re.MULTILINE,
)
_MARKED = rf"[(\[]?{VALUE_START}|[A-Za-z]\s?="
_MARK = re.compile(rf"^\#{{4}}[ \t*_]{{0,8}}(?={_MARKED})", re.MULTILINE)
_MARKED_VALUE = re.compile(_MARKED)
_MARKED_WORD = re.compile(r"[(\[]?[A-J][)\]]?|(?i:yes|no|true|false)\.?")
_MARKED_NUMBER = re.compile(NUMBER)
_AFTER_NUMBER = re.compile(
    r"[.,;]?\s{1,8}(?:and|so|which|is|as|because|since)\b|\s?\(|\s?(?:per|an?|each|every|/)\s?[a-z]{1,12}\.?\Z"
)
_COUNTED = re.compile(r"\s{1,8}[a-z]{1,16}\.?")
_WORDS = re.compile(r"\d{1,2}[.):]\s|(?<![\\A-Za-z])[A-Za-z]{3,}")


class Boxes(NamedTuple):
    """The last boxes of a text that belong together."""

    answers: list[str]
    end: int
    """Where the last one ends."""


def extract_answer(text: str) -> str | None:
    r"""The answer in ``text``, as written; None if there is none.

    What is thought (`search.answers.thoughts`) does not count, nor what follows the answer where a model goes on into
    another question. The answer is the content of the last ``<answer>...</answer>``; without one, of the last
    ``\boxed{...}`` (or ``\fbox{...}``), or of several that stand side by side in a sentence, unless a short line
    "Answer: ..." follows. Without these it is the text after the last "answer is", "answer:" or "answer =", a heading
    "Final Answer", the same in some other languages, a choice that is called the right one, ``"answer": ...`` in JSON,
    ``####`` before a value, or ``A:`` at the start of the last line; else a choice that is implied ("so, C is
    correct"), or that stands alone in the last line. If the text after a phrase begins with mathematics between dollars
    (or ``\(``, ``\[``), the answer is the mathematics, else the rest of the sentence, or the number that the sentence
    states; if the rest of the line is empty, the next line is used. Placeholders, empty answers and answers longer than
    ``MAX_ANSWER_CHARS`` do not count.
    """
    text = without_thoughts(text).translate(_UNSEEN)
    start, has_parts = 0, False
    for mark in question_marks(text):
        # Numbered questions before any answer are the parts of the model's own solution.
        if has_parts and mark.is_numbered:
            continue
        if answer := _answer(text[start : mark.start]):
            return answer
        if mark.is_turn and start == 0 and text[: mark.start].strip():
            return None
        has_parts = has_parts or mark.is_numbered
        start = mark.start
    return _answer(text[start:])


def boxed_answer(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` in ``text`` that is an answer, of several joined by commas if
    they stand side by side in a sentence; None if there is none."""
    boxes = _boxes(without_thoughts(text)) if "box" in text else None
    return None if boxes is None else _together(boxes)


def _answer(text: str) -> str | None:
    """The answer in a text about one question."""
    for inside in _tagged(text):
        if answer := _boxed(inside) or _announced(inside) or _usable(stated(inside)):
            return answer
    return _boxed(text) or _announced(text) or _implied(text)


def _tagged(text: str) -> list[str]:
    """The contents of ``<answer>...</answer>``, the last first."""
    contents: list[str] = []
    start: int | None = None
    for tag in _TAG.finditer(text):
        if tag[1] and start is not None and tag.start() - start <= 2 * MAX_ANSWER_CHARS:
            contents.append(text[start : tag.start()])
        start = None if tag[1] else tag.end()
    return contents[: -_MAX_PHRASES - 1 : -1]


def _boxed(text: str) -> str | None:
    """The answer in boxes, or in a short "Answer: ..." below them."""
    boxes = _boxes(text)
    if boxes is None:
        return None
    below = text[boxes.end :]
    headings = [each.end() for each in _HEADING.finditer(below)]
    for start in headings[: -_MAX_PHRASES - 1 : -1]:
        answer = _usable(stated(below[start : start + 2 * MAX_ANSWER_CHARS]))
        if answer and len(answer) <= MAX_NEXT_LINE_CHARS and not is_assessment(answer):
            return answer
    return _together(boxes)


def _together(boxes: Boxes) -> str:
    return _usable(", ".join(map(sentence_number, dict.fromkeys(boxes.answers)))) or boxes.answers[-1]


def _boxes(text: str) -> Boxes | None:
    found: Boxes | None = None
    # One pass over the braces: a hostile text of nothing but opening braces must not take quadratic time.
    opened: list[re.Match[str] | None] = []
    for brace in _BRACE.finditer(text):
        if brace["bare"]:
            box, content = brace, brace["bare"]
        elif brace["box"] or brace["open"]:
            opened.append(brace if brace["box"] else None)
            continue
        elif brace["close"] and opened and (start := opened.pop()) is not None:
            box, content = start, text[start.end() : brace.start()].strip()
        else:
            continue
        if box[0].startswith("\\\\"):
            content = content.replace("\\\\", "\\")
        if _usable(content):
            is_next = found is not None and _BETWEEN_BOXES.fullmatch(text, found.end, max(found.end, box.start()))
            before = found.answers[1 - _MAX_BOXES :] if found and is_next else []
            found = Boxes([*before, content], brace.end())
    return found


def _announced(text: str) -> str | None:
    """The answer after the last phrase that announces one."""
    return next(_candidates(text), None)


def _candidates(text: str) -> Iterator[str]:
    """What follows the phrases that announce an answer, the last first."""
    announced: list[tuple[int, Callable[[], str]]] = [
        *((phrase.end(), partial(_following, text, phrase.end())) for phrase in _PHRASE.finditer(text)),
        *((mark.end(), partial(_marked, text, mark.end())) for mark in _MARK.finditer(text)),
        *((choice.end, partial(str, choice.letter)) for choice in stated_choices(text)),
        *((field.end, partial(_following, field.value, 0)) for field in answer_fields(text)),
    ]
    if (start := _last_line(text)) is not None:
        announced += [(start + 2, partial(_following, text, start + 2))] if text.startswith("A:", start) else []
        announced += [(start + 4, partial(_marked, text, start + 4))] if text.startswith("####", start) else []
    for end, read in sorted(announced, key=lambda each: each[0])[: -_MAX_PHRASES - 1 : -1]:
        answer = _usable(read())
        # "The answer is correct" is no answer, "Answer: correct" is. A box that counts was found before this.
        is_heading = any(sign in ":：=" for sign in text[max(0, end - 9) : end])
        if answer and "\\boxed" not in answer and (is_heading or not is_assessment(answer)):
            yield answer


def _following(text: str, start: int) -> str:
    return stated(text[start : start + 2 * MAX_ANSWER_CHARS])


def _marked(text: str, start: int) -> str:
    """The answer in the line after GSM8K's ``####``; "" if the line is a heading, such as "3 ways to go on"."""
    line = text[start : start + 2 * MAX_ANSWER_CHARS].partition("\n")[0].strip("*_ \t\r")
    is_last = "\n" not in text[start:].strip()
    if is_last and _MARKED_WORD.fullmatch(line):
        return line
    line = without_lead(line)
    if number := _MARKED_NUMBER.match(line):
        rest = line[number.end() :].replace("*", "").rstrip()
        if known_unit(rest):
            return line
        if not rest.strip(" .,;") or _AFTER_NUMBER.match(rest) or (is_last and _COUNTED.fullmatch(rest)):
            return number[0].strip("$ ")
    if not _WORDS.search(line):
        return stated(line) if _MARKED_VALUE.match(line) else ""
    said = number_said(line) if is_last else line
    return said if said != line else ""


def _implied(text: str) -> str | None:
    """The choice of a text that announces no answer."""
    implied = [choice.letter for choice in implied_choices(text)]
    return implied[-1] if implied else choice_alone(text)


def _last_line(text: str) -> int | None:
    """Where the last line that is not blank starts; None if there is none."""
    end = len(text.rstrip())
    return text.rfind("\n", 0, end) + 1 if end else None


def _usable(answer: str) -> str | None:
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS and not _PLACEHOLDER.fullmatch(answer) else None

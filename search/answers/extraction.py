r"""Extracts the answer of a text, as written.

Models state answers in a few ways: ``\boxed{12}`` as in MATH, "The final answer is $12$." as Minerva was prompted,
``#### 12`` as in GSM8K, ``**Answer:** 12``, ``A: 12``, ``<answer>12</answer>``. Every function here takes linear time,
whatever the text is.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from search.answers.thoughts import without_thoughts

MAX_ANSWER_CHARS = 1024
"""Longest answer. Longer text does not count as an answer: graders do not read it, and comparing it is slow."""
MAX_NEXT_LINE_CHARS = 64
"""Longest answer in the line after "Answer:", and after "Answer:" below a box. A longer line is an explanation."""
_MAX_PHRASES = 16
"""Maximum number of phrases tried, the last first, until an answer follows one."""
_MAX_LEADS = 4
_MAX_BOXES = 64

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_UNSEEN = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad")) | {0xA0: " "}

_BRACE = re.compile(
    r"\\{1,2}(?:f(?:rame)?)?box(?:ed)?\s*(?:(?P<box>\{)|(?P<bare>-?\d+(?:[.,]\d+)*|[A-Za-z](?![A-Za-z])))"
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
_NEXT_PROBLEM = re.compile(r"^\W{0,8}(?:question|problem|example|q)\b", re.IGNORECASE | re.MULTILINE)

_WORDS = (
    (
        "answers?|final result",
        (
            "is|are|was|equals|becomes|(?:must|should|will|would|can only|has to) be"
            "|(?:come|work|turn)s(?: out)? to(?: be)?"
        ),
    ),
    ("respuestas?", "es|son"),
    ("r[ée]ponses?", "est|sont"),
    ("antwort(?:en)?", "ist|lautet|sind"),
    ("rispost[ae]", "è|sono"),
    ("respostas?", "é|são"),
    ("antwoord(?:en)?", "is|zijn"),
    ("odpowied[źz]", "to|jest"),
    ("ответ", "равен|это|—|–"),
    ("cevap|yanıt", ""),
    ("đáp án|câu trả lời", "là"),
    ("jawaban(?:nya)?", "adalah"),
    ("الإجابة|الجواب", "هي|هو"),
    ("उत्तर", "है"),
    ("答案|答え?|解答", "是|应为|[为為]|は|】"),
    ("정답|답", "은|는"),
    (r"(?<!\d )ans|vastaus|απάντηση|תשובה|відповідь|válasz|odpověď", ""),
    ("svar(?:et)?", "är|er"),
    ("răspuns(?:ul)?", "este"),
    ("คำตอบ", "คือ"),
)
"""What an answer is called in a language, and the words between that and the answer, beside a colon."""
_NOUNS = "|".join(nouns for nouns, _ in _WORDS)
_MORE = (
    r"(?: (?:final[ei]?|(?:that )?(?:I|we|you) [a-z]{1,8}(?: for)?|correct[ae]?|corret[ao]|number|choice|option"
    r"|(?:to|of|for) (?:the |this )?[\w()]{1,20}(?: [\w()]{1,20})?)){0,2}(?:, [a-z]{1,10},)?"
)
_SIGN = r"[ \t*_:：]{0,8}"
_WORD_END = r"(?!\w)"
_STATED = "|".join(
    # Chinese, Japanese and Korean have no space after these words.
    rf"(?:{nouns}){_MORE}[ \t*_]{{0,4}}(?:[:：=]|(?:{verbs or ':'}){_WORD_END if nouns < '⺀' else ''}){_SIGN}"
    for nouns, verbs in _WORDS
)
_NUMBER = r"[-+]?\$?[-+]?[\d.][\d.,/]{0,64}[ \t]?(?:\\?%)?"
_PHRASE = re.compile(
    rf"(?<!this )(?<![A-Za-z])(?:{_STATED})"
    rf"|^[#*_ \t]{{0,8}}(?:(?:the|final|la|die|最终)[ \t]?){{0,2}}(?:{_NOUNS})(?: final[ei]?)?[*_ \t]{{0,8}}$"
    # Chat models also write headings with four number signs; only before a number is it GSM8K's format.
    rf"|^\#{{4}}[ \t*_]{{0,8}}(?=(?P<number>{_NUMBER})[*_]{{0,3}}"
    r"(?:[ \t]{0,8}$|[.,;]?[ \t]{1,8}(?:and|so|which|is|as|because|since)\b|[ \t]{1,8}[a-z]{1,16}\s{0,8}\Z))",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(
    rf"^[#*_ \t]{{0,8}}(?:(?:the|final)[ \t]){{0,2}}(?:{_NOUNS})[ \t*_]{{0,4}}[:：]{_SIGN}(?=\S)",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION = re.compile(
    r"\b(?:correct|right|best) (?:option|choice|answer) (?:is|would be)[: *_(]{1,6}(?:(?:option|choice)[ *_(]{1,4})?"
    r"(?P<is>(?-i:[A-J]))(?=[)*_.,:]|\s*$|\s(?:because|since|as)\b)"
    r"|\b(?:option|choice|answer) [*_(]{0,3}(?P<named>(?-i:[A-J]))[*_)]{0,3} is (?:the )?(?:correct|right|best|answer)"
    r"(?!\w)"
    r"|(?<![\w'])(?P<called>(?-i:[A-J]))[*_)]{0,3} is the (?:(?:correct|right|best) )?(?:option|choice|answer)\b"
    r"|(?:故选|应选|选)[:： ]{0,3}(?P<chosen>[A-J])(?![A-Za-z])",
    re.IGNORECASE | re.MULTILINE,
)
_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:](?=\s))[.:]?\s+(?!and\b|or\b|[-+*/=^<>,]\s)(?=\S)")

_LEAD = re.compile(
    r"(?:approx\.|(?:approximately|about|roughly|around|therefore|thus|hence|simply|just|exactly|precisely"
    r"|indeed|then|now|either|equal to|given by|clearly|obviously|only|donc"
    r"|(?:the |la |a |l')?(?:option|choice|opción|opção|opzione))\b)[ \t:*_]{0,4}",
    re.IGNORECASE,
)
_NO_END = "".join(
    rf"(?<!\b{short})" for short in ("Mr", "Mrs", "Ms", "Dr", "St", "Rs", "vs", "approx", r"i\.e", r"e\.g")
)
_UNITS = (
    r"[ap]\.m",
    "sq",
    "cu",
    "ft",
    "in",
    "yd",
    "mi",
    "cm",
    "km",
    "oz",
    "lb",
    "lbs",
    "kg",
    "hr",
    "hrs",
    "min",
    "sec",
)
_NO_END_IN_SENTENCE = "".join(rf"(?<!\b{short})" for short in _UNITS)
_SENTENCE_END = re.compile(
    rf"{_NO_END}(?<!\b[A-Z]\.[A-Z])(?:{_NO_END_IN_SENTENCE}|(?=\.\s*(?:[A-Z*]|$)))\.(?:\s|\*|$|(?=<))|。|</[a-z]{{1,10}}>|\[/[A-Z]|<\|"
    r"|!\s(?=[A-Z])|—(?=[a-z])|,?\s(?:because|since)\b|,\s(?:which|where|not)\b|\s(?:is|are)\s(?:correct|right)\b"
)
_VALUE = re.compile(r"[-+]?(?:[\d\\$€£¥₹]|\.\d)|[A-Za-z]\s?=")
_REMARK = re.compile(r"[,;]\s(?!and\b|or\b|pi\b|sqrt)[A-Za-z.]{2,}[^\d\\$=]*$|\s\([A-Za-z ]{2,32}\)$")
_SAID = re.compile(
    r"\b(?:is|are|was|were|equals?|be|has|have|had|makes?|gets?|needs?|takes?|costs?|earns?|pays?|spends?)\s"
    r"(?:(?:exactly|only|about|a|total|of|equal|to)\s){0,4}(?=[-+]?[$€£]?\\?[\d\\])"
)
_ASSESSMENT = re.compile(
    r"(?:(?:not|in|also|as|the|its)\s){0,3}(?:clear|correct|right|wrong|incorrect|helpful|useful|reasonable|valid|verified"
    r"|confirmed|complete|follows|below|above|simplest|lowest|reduced|simplified|rounded|expressed|given|found|obtained|boxed|unique"
    r"|consistent|same|expected|unclear|final|what)\b",
    re.IGNORECASE,
)
_POLITE = re.compile(r"\s?(?:です|입니다|है|[:;]-?\))$")
_MATH = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))
_PRICE = re.compile(r"\$\d[\d.,]{0,64}[ \t]*(?:(?<=\s)[A-Za-z]{2}|[-+*/=×][ \t]*\$\d)")
_MORE_MATH = re.compile(r"\s{0,4}(?:[,;]?\s{0,4}(?:and|or)\b|[,;])\s{0,4}(?:\$|\\\()")
_PERCENT = re.compile(r"\s?\\?%|\s?percent\b")


class Boxes(NamedTuple):
    """The last boxes of a text that belong together."""

    answers: list[str]
    end: int
    """Where the last one ends."""


def extract_answer(text: str) -> str | None:
    r"""The answer in ``text``, as written; None if there is none.

    What stands in a thought does not count. The answer is the content of the last ``<answer>...</answer>``; without
    one, of the last ``\boxed{...}`` (or ``\fbox{...}``), or of several that stand side by side in a sentence, unless a
    short line "Answer: ..." follows. Without these it is the text after the last "answer is", "answer:" or
    "answer =", a heading "Final Answer", the same in some other languages, ``####`` before a number, or ``A:`` at the
    start of the last line. If that text begins with mathematics between dollars (or ``\(``, ``\[``), the answer is the
    mathematics, else the rest of the sentence, or the number that the sentence states; if the rest of the line is
    empty, the next line is used. Placeholders, empty answers and answers longer than ``MAX_ANSWER_CHARS`` do not count.
    """
    text = without_thoughts(text).translate(_UNSEEN)
    for inside in _tagged(text):
        if answer := _boxed(inside) or _announced(inside) or _usable(_stated(inside)):
            return answer
    return _boxed(text) or _announced(text)


def boxed_answer(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` in ``text`` that is an answer, of several joined by commas if
    they stand side by side in a sentence; None if there is none."""
    boxes = _boxes(without_thoughts(text)) if "box" in text else None
    return None if boxes is None else _together(boxes)


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
    headings = [] if _NEXT_PROBLEM.search(below) else [each.end() for each in _HEADING.finditer(below)]
    for start in headings[: -_MAX_PHRASES - 1 : -1]:
        answer = _usable(_stated(below[start : start + 2 * MAX_ANSWER_CHARS]))
        if answer and len(answer) <= MAX_NEXT_LINE_CHARS and not _ASSESSMENT.match(answer):
            return answer
    return _together(boxes)


def _together(boxes: Boxes) -> str:
    return _usable(", ".join(dict.fromkeys(boxes.answers))) or boxes.answers[-1]


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
    ends: list[tuple[int, str]] = [
        (phrase.end(), (phrase["number"] or "").rstrip(".,")) for phrase in _PHRASE.finditer(text)
    ]
    if (last_line := _last_line(text)) and text.startswith("A:", last_line[0]):
        ends.append((last_line[0] + 2, ""))
    ends += [(option.end(), option[option.lastgroup or 0]) for option in _OPTION.finditer(text)]
    for end, named in sorted(ends, key=lambda each: each[0])[: -_MAX_PHRASES - 1 : -1]:
        answer = _usable(named.strip("$ ") or _stated(text[end : end + 2 * MAX_ANSWER_CHARS]))
        # "The answer is correct" is no answer, "Answer: correct" is. A box that counts was found before this.
        is_heading = any(sign in ":：=" for sign in text[max(0, end - 9) : end])
        if answer and "\\boxed" not in answer and (is_heading or not _ASSESSMENT.match(answer)):
            yield answer


def _last_line(text: str) -> tuple[int, int] | None:
    """Start and end of the last line that is not blank; None if there is none."""
    end = len(text.rstrip())
    return (text.rfind("\n", 0, end) + 1, end) if end else None


def _stated(rest: str) -> str:
    """The answer at the beginning of ``rest``, the text after an answer phrase; "" if there is none."""
    body = rest.lstrip("* \t_`")
    moved = body[:1] in ("\r", "\n")
    body = body.lstrip("*_` \t\r\n")
    for _ in range(_MAX_LEADS):
        body = _LEAD.sub("", body, count=1) if _LEAD.match(body) else body
    inside = _between_delimiters(body)
    if inside is not None:
        return inside
    line = body.partition("\n")[0]
    sentence = _POLITE.sub("", _SENTENCE_END.split(line, maxsplit=1)[0].strip("*_` \t\r"))
    while sentence and (sentence[-1] in "∎\ufe0f" or _is_emoji(sentence[-1])):
        sentence = sentence[:-1].rstrip("*_` ")
    if "$" not in sentence.strip("$"):
        sentence = sentence.strip("$ ")
    if moved and len(line.strip()) > MAX_NEXT_LINE_CHARS:
        return ""
    if choice := _CHOICE.match(sentence):
        return choice[1]
    if _VALUE.match(sentence):
        return _REMARK.sub("", sentence)
    said = _SAID.search(sentence)
    return _stated(sentence[said.end() :]) if said else sentence


def _is_emoji(sign: str) -> bool:
    return unicodedata.category(sign) == "So" and sign != "°" and not unicodedata.decomposition(sign)


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
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS and not _PLACEHOLDER.fullmatch(answer) else None

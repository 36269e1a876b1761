r"""Statements of a choice: "option C is correct", "正解はC", a last line ``**C**``.

A choice is a letter from A to J. ``A`` is also an article, and any letter may be a variable, so a letter counts only in
one of these forms. Every function takes linear time.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from search.answers.vocabulary import ANSWER, RIGHT

MAX_LINE_CHARS = 256
"""Longest line that may be a choice with its text."""

_OPEN = r"(?:[*_\"'“‘`(\[{（【「『$]|\\\(|\\text(?:bf|rm|tt|it)?\{){0,5}"
_CLOSE = r"(?:[*_\"'”’`)\]}）】」』$]|\\\)){0,6}"
_END = r"(?![A-Za-z0-9]|['’][A-Za-z])"
_OPTION = (
    r"option|choice|alternative|selection|opci[oó]n|opção|alternativa|opzione|optie|opcja|вариант|lựa chọn|phương án"
    r"|pilihan|seçenek|विकल्प|الخيار|الاختيار|ตัวเลือก|ข้อ|alternativet|选项|選項|選択肢|보기"
)
"""What a choice is called, beside the names of answers."""
_NAME = rf"{_OPTION}|letter|letra|lettre|lettera|{ANSWER}"
_IS = (
    r"is|was|(?:would|must|should|has to|can only) be|remains|es|est|ist|lautet|è|é|to|jest|это|là|adalah|هو|هي|है|คือ"
    r"|är|er|este"
)
_ADVERB = r"(?:(?:clearly|definitely|indeed|therefore|thus|the|la|le|a|o|il|die|only|most|single|one that is) ){0,3}"
_ARTICLE = r"(?:(?:the|la|el|die|das|a|o|il|de|het) |l['’])?"
_SENTENCE_ENDS = rf"(?={_CLOSE}[.!。]?{_CLOSE}[ \t]*(?:$|[.!。]| (?-i:[A-Z])))"
_FOLLOWS = (
    rf"{_END}(?=[)\]）]|{_CLOSE}(?:[.,;:!?。，；！、]|[ \t]*$"
    r"|[ \t]+(?:because|since|as|which|not|and not|rather|instead)\b|[ \t]+(?:\(|[-–—])|[^\x00-\x7f]))"
)
"""What may follow the letter of a statement: no word, of which ``A`` might be the article."""


def _letter(name: str) -> str:
    return rf"{_OPEN}(?P<{name}>(?-i:[A-JＡ-Ｊ]))"


_STATED = re.compile(
    # "The correct option is C", "Final choice: (C)", "La opción correcta es la C"
    rf"(?<![A-Za-zÀ-ɏ])(?:{_OPTION}|(?:correct|right|best|final|only) (?:one|response|statement|solution|pick|letter))"
    r"(?: (?!not |no |wrong|incorrect|false)[^\W\d_]{1,14}){0,3}?[*_]{0,3}"
    rf"(?: (?:{_IS})(?!\w)[:：]?| ?[:：=—–]|应?[是为為]|[は은는이가])[ *_]{{0,4}}"
    rf"{_ARTICLE}(?:(?:{_NAME}) )?{_letter('called')}{_FOLLOWS}"
    # "Option C is correct", "La opción C es la correcta"
    rf"|(?<![A-Za-zÀ-ɏ])(?:{_NAME})[ *_]{{1,4}}{_letter('named')}"
    rf"{_END}{_CLOSE} (?:{_IS}) {_ADVERB}(?:{RIGHT}|(?:correct |right |best )?(?:answer|choice|option))(?!\w)"
    # "C is the best answer"
    rf"|(?<![\w'’]){_letter('best')}{_END}{_CLOSE} (?:is|was|must be|would be) (?:the|my|our) "
    r"(?:(?:only|single|most) ){0,2}"
    r"(?:(?:(?:correct|right|best|final|likely|appropriate|suitable|reasonable|accurate) )?"
    r"(?:option|choice|answer|response)|(?:correct|right) one)\b"
    # "I choose option C", "elijo la opción C"
    r"|(?<!if I )(?<!if we )(?<!if you )\b(?:choose|chose|pick|picked|select|selected|go|going|opt|opting"
    r"|settle|settling|vote|mark|elijo|choisis|wähle|escolho|scelgo|kies|wybieram|выбираю|chọn|memilih)"
    rf"(?: with| for| on)? {_ARTICLE}(?:{_NAME})[ *_]{{1,4}}"
    rf"{_letter('chosen')}{_FOLLOWS}"
    # "Doğru seçenek C'dir", "सही विकल्प C है"
    rf"|(?:seçenek|cevap|yanıt|विकल्प|उत्तर) {_letter('before_is')}(?={_CLOSE}(?:['’][dt][ıiuü]r| है))"
    # "故选C", "C选项正确", "Cが正解です", "C가 정답입니다"
    rf"|(?<![不没])(?:(?:选|選)(?:择|擇)?(?:答案|的是)?|(?:正确|正確)的[是为為])[:： ]{{0,3}}"
    rf"{_letter('chosen_zh')}(?![A-Za-z])"
    rf"|(?<![A-Za-z])(?<![A-J][、,，和与及]){_letter('right_cjk')}[)）]? ?"
    r"(?:(?:选项|選項|项)?(?:是|为)?(?:正确|正確|对的|對的)(?!吗)|[がは](?:正解|正しい|正答|答え)(?!では|じゃ)|を(?:選|えら)"
    r"|번?(?:가|이) ?(?:정답|답|맞|옳)(?!이 아|지 않)|번?[을를] ?(?:선택|고르))",
    re.IGNORECASE | re.MULTILINE,
)
_IMPLIED = re.compile(
    # "So, C is correct", "Thus only C works"
    r"(?:^|[.,;:!?] |\b(?:so|thus|therefore|hence|only|conclude that|means that|think|believe) )"
    rf"{_letter('right')}{_END}{_CLOSE} (?:is|must be) {_ADVERB}(?:correct|right|best)(?!\w| ?\?| only\b| if\b| and\b)"
    rf"|\bonly {_letter('only')}{_END}{_CLOSE} (?:works|fits|remains|holds|matches|satisfies|makes sense)\b"
    # "I choose C", "I'd go with C", "it must be C", "Therefore, C."
    r"|(?<!if )(?<!when )\b(?:I|we|I['’](?:d|ll)|we['’]ll|let['’]s)"
    r"(?: (?:would|will|therefore|thus|must|should|have to)){0,2} "
    r"(?:choose|chose|pick|select|go with|opt for|settle on|vote for|answer) "
    rf"{_letter('chosen')}{_FOLLOWS}"
    rf"|\b(?:(?:it|this|that) (?:is|(?:must|has to|would|should) be)|it['’]s) {_letter('it')}{_END}{_SENTENCE_ENDS}"
    rf"|^\W{{0,4}}(?:choose|pick|select|mark|chọn|correct(?: answer)?:?) {_letter('told')}{_END}{_SENTENCE_ENDS}"
    rf"|\b(?:leaves|leaving|left with)(?: only| just| us with)? {_letter('left')}{_END}{_SENTENCE_ENDS}"
    rf"|\b(?:so|thus|therefore|hence),? {_letter('so')}{_END}{_SENTENCE_ENDS}"
    # "which leaves option C."
    r"|\b(?:is|be|it['’]s|(?:corresponds?|equals?|leads?|points?) to|match(?:es)?|leav(?:es|ing)(?: only| us with)?"
    rf"|thus|therefore|hence|so|only|gives),? (?:the )?(?:{_NAME})[ *_]{{1,4}}"
    rf"{_letter('mentioned')}{_END}{_SENTENCE_ENDS}",
    re.IGNORECASE | re.MULTILINE,
)
_LEADING = re.compile(
    rf"{_ARTICLE}(?:(?:{_NAME}) |选|選)?{_OPEN}(?P<letter>[A-JＡ-Ｊ])(?:"
    # "C) text", "C. text", "C: text"
    r"(?:(?:[)\]]|[.:](?=\s|[*_]))[.:]?[*_]{0,3}\s+|[）】：、．]\s*)(?!and\b|or\b|[-+*/=^<>,]\s)(?=\S)"
    # "B, as A is empty", "C - text", "C (text)"
    rf"|(?P<remark>{_CLOSE}(?:[,;]\s+(?!and\b|or\b)(?=[a-z]{{2}})"
    r"|\s+(?:because|since|as|which|not|and not|rather|instead|şıkkı\w*)\b"
    r"|[，；]\s*(?=[^\x00-\x7f])|\s+(?:[-–—]\s+|(?=\())(?=\(?[A-Za-z]{3}))))"
)
_ALONE = re.compile(
    rf"(?:{_ARTICLE}(?:{_NAME}) |(?:la|el|die|o|il|l['’]) ?|[选選][项項]?|選択肢)"
    rf"(?P<letter>{_OPEN}(?-i:[A-JＡ-Ｊ]){_CLOSE})"
    r"|(?P<before>[A-JＡ-Ｊ])(?:选项|選項|项)",
    re.IGNORECASE,
)
_LINE = re.compile(
    rf"(?:[#>\-]{{1,6}}[ \t]{{1,4}})?(?:(?i:{_NAME}) )?{_OPEN}(?P<letter>[A-JＡ-Ｊ])"
    rf"(?:{_CLOSE}[.。]?{_CLOSE}|(?:[)\]）】][*_]{{0,3}}|[.:][*_]{{0,3}}[ \t]|[：、．])[.:]?[ \t]*(?P<text>\S.*))"
)
_LONE = re.compile(r"(?<![A-Za-z])[A-JＡ-Ｊ](?![A-Za-z0-9])")
_LABEL = re.compile(r"(?<![A-Za-z])[A-J][.):：](?:\s|$)|\([A-J]\)")


class Choice(NamedTuple):
    """A statement of a choice in a text."""

    end: int
    """Where the statement ends."""
    letter: str


def stated_choices(text: str) -> Iterator[Choice]:
    """The choices that are called so, such as "option C is correct" and "I choose option C"."""
    return _found(_STATED, text)


def implied_choices(text: str) -> Iterator[Choice]:
    """The choices by weaker statements, such as "so, C is correct": for a text that announces no answer."""
    return _found(_IMPLIED, text)


def choice_alone(text: str) -> str | None:
    """The choice that is the last line of ``text``, or its first paragraph, with or without the choice's own text;
    None if there is none, or if the line belongs to a list of choices."""
    lines = [line.strip() for line in text.strip().splitlines()]
    written = [line for line in lines if line]
    if not written:
        return None
    if (letter := _choice(written[-1])) and not any(map(_choice, written[-2:-1])):
        return letter
    is_paragraph = len(lines) > 1 and not lines[1]
    if is_paragraph and (letter := _choice(written[0])) and not any(map(_choice, written[1:2])):
        return letter
    return None


def leading_choice(answer: str) -> str | None:
    """The choice with which ``answer`` begins, if words follow: "C" for "(C) bearing wear" and "B, as A is empty"."""
    if (found := _LEADING.match(answer)) is None:
        alone = _ALONE.fullmatch(answer)
        return (alone["letter"] or alone["before"]) if alone else None
    # "(E, xy)" is a pair.
    return None if found["remark"] and found[0].count("(") > found[0].count(")") else found["letter"]


def _found(pattern: re.Pattern[str], text: str) -> Iterator[Choice]:
    # The patterns are slow, and few lines have a letter.
    end = 0
    for letter in _LONE.finditer(text):
        if letter.start() >= end:
            start, end = text.rfind("\n", 0, letter.start()) + 1, text.find("\n", letter.end())
            end = len(text) if end < 0 else end
            for match in pattern.finditer(text, start, end):
                yield Choice(match.end(), match[match.lastgroup or 0])


def _choice(line: str) -> str | None:
    """The choice that a line is. ``A: 7`` is an answer, not a choice."""
    if len(line) > MAX_LINE_CHARS or line.startswith("A:") or (found := _LINE.fullmatch(line)) is None:
        return None
    return None if _LABEL.search(found["text"] or "") else found["letter"]

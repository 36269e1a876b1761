r"""Reads the answer at the beginning of a text, such as what follows "the answer is".

That is mathematics between dollars or the like, a choice, a value as written, or the number that a sentence states.
Every function takes linear time.
"""

import re
import unicodedata

from search.answers.choices import leading_choice
from search.answers.numerals import CURRENCY, NUMBER, VALUE_START

MAX_NEXT_LINE_CHARS = 64
"""Longest answer in the line after "Answer:", and after "Answer:" below a box. A longer line is an explanation."""
_MAX_LEADS = 4

_LEAD = re.compile(
    r"(?:approx\.|(?:approximately|about|roughly|around|therefore|thus|hence|simply|just|exactly|precisely"
    r"|indeed|then|now|either|equal to|equivalent to|closest to|given by|clearly|obviously|certainly|definitely|surely"
    r"|(?:most )?(?:likely|probably)|actually|only|that|donc|por tanto|daher|also"
    r"|(?:the |la |a |l')?(?:option|choice|opción|opção|opzione))\b)[ \t:*_]{0,4}",
    re.IGNORECASE,
)
_SHORT_UNITS = "sq cu ft in yd mi cm km oz lb lbs kg hr hrs min sec"
_NO_END = "".join(
    rf"(?<!\b{short})" for short in ("Mr", "Mrs", "Ms", "Dr", "St", "Rs", "vs", "approx", r"i\.e", r"e\.g")
)
_NO_END_IN_SENTENCE = "".join(rf"(?<!\b{unit})" for unit in (r"[ap]\.m", *_SHORT_UNITS.split()))
_SENTENCE_END = re.compile(
    rf"{_NO_END}(?<!\b[A-Z]\.[A-Z])(?:{_NO_END_IN_SENTENCE}|(?=\.\s*(?:[A-Z*]|$)))\.(?:\s|\*|$|(?=<))|[。।]|，(?=因为|所以|因此|而|其中|故|即)|</[a-z]{{1,10}}>|\[/[A-Z]|<\|"
    r"|!\s(?=[A-Z])|—(?=[a-z])|,?\s(?:because|since)\b|,\s(?:which|where|not|so|as(?! well)|but|while|after|leaving"
    r"|meaning|making|giving|i\.e\.|that is|and (?:it|he|she|they|we|that|this|there))(?!\w)"
    r"|\s(?:is|are)\s(?:correct|right)\b"
)
_YES_OR_NO = re.compile(r"(yes|no|true|false)[,;:]\s", re.IGNORECASE)
_VALUE = re.compile(rf"{VALUE_START}|[A-Za-z]\s?=")
_REMARK = re.compile(
    r"[,;]\s(?!and\b|or\b|pi\b|sqrt)[A-Za-z.]{2,}[^\d\\$=]*$|\s\([A-Za-z ]{2,32}\)$"
    rf"|\s\((?!mod\b|base\b)(?=[^()]{{0,64}}(?:[A-Za-z]{{4}}|=|[{CURRENCY}×]))[^()\\]{{2,64}}\)$"
    r"|(?<=\w)\s(?:for|after|during)\s\d[\d,.]{0,16}\s[a-z]{3}[^=\\]{0,64}$"
    r"|(?<=\w)\s(?:for|on|from|in|at|after|during|over)\s(?:the|an?|his|her|their|its|these|those|all)\s[^=\\]{0,64}\d[^=\\]{0,64}$"
)
_VERBS = (
    "is|are|was|were|equals?|be|been|has|have|had|makes?|made|gets?|got|needs?|needed|takes?|took|costs?|earns?|earned|pays?"
    "|paid|spends?|spent|sells?|sold|buys?|bought|saves?|saved|loses?|lost|owes?|owed|gives?|gave|gains?|gained|receives?"
    "|received|uses?|used|eats?|ate|reads?|walks?|walked|runs?|ran|drives?|drove|travels?|travell?ed|works?|worked|weighs?"
    "|weighed|contains?|contained|scores?|scored|collects?|collected|raises?|raised|requires?|required|totals?|charges?"
    "|charged|produces?|produced|wins?|won|keeps?|kept|left|es|son|est|sont|ist|sind|beträgt|è|sono|é|são|равн[аоы]|равен"
    "|составляет"
)
_SAID = re.compile(
    rf"\b(?:{_VERBS})\s(?:(?:exactly|only|about|around|approximately|an?|the|total|sum|profit|loss|of|equal|to|just|now|still"
    r"|also|him|her|them|us|up|out|in|all|another|additional|extra|number|value|therefore|thus|be|pay|de|di)\s){0,6}"
    rf"(?={VALUE_START})"
)
_CLAUSE = re.compile(
    r"(?:(?:so|that|then|thus|therefore|hence|and|overall|finally),?\s){0,2}"
    r"(?:(?:he|she|it|they|we|you|i|there|the|this|his|her|their|its|altogether|together|after|in"
    r"|él|ella|ellos|hay|il|elle|ils|elles|er|sie|lui|lei|loro|ele|ela|eles|há|hij|zij|он|она|они|есть|dia|mereka)\s"
    r"|[\u0590-\U0001ffff]"
    rf"|(?-i:[A-Z][a-z'’]{{1,20}}\s(?:{_VERBS}|[a-z]{{2,12}}ed)\s))",
    re.IGNORECASE,
)
"""The beginning of a sentence, as distinct from a name with a number: "He made $5", not "June 5"."""
_CONDITION = re.compile(
    r"[=^\\{}<>]|\b(?:than|except|least|most|between|above|below|divisible|multiples?|up to|no)\b"
    r"|[大小]于|以[上下]|超过|除了|より|이[상하]"
)
"""A formula, or words by which a number is a bound: "the integers greater than 5"."""
_NUMBER = re.compile(rf"(?<![A-Za-z0-9^_.,:/{CURRENCY}-]){NUMBER}(?![A-Za-z0-9_(]|[-.,/:]\w)")
_ASSESSMENT = re.compile(
    r"(?:(?:not|in|also|as|the|its|very|quite|rather|too|always|still|so|really|often)\s){0,3}(?:clear|correct|right|wrong|incorrect"
    r"|helpful|useful|reasonable|valid|verified"
    r"|confirmed|complete|follows|below|above|simplest|lowest|reduced|simplified|rounded|expressed|given|found|obtained|boxed|unique"
    r"|consistent|same|expected|unclear|final|what|hard|difficult|easy|tricky|uncertain|sure|certain|obvious|debatable|subjective"
    r"|ambiguous|unknown|among|listed|provided|available|possible|needed|required|to\s[a-z]{2,}|up to|yours|based|good"
    r"|important|likely to|impossible to|complicated|straightforward|trivial)\b",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"\s?(?:です|である|だ|と?になります|となります|번?입니다|번?이다|번?이에요|예요|है|['’][dt][iıuü]r|[:;]-?\))$"
)
_TEXT = re.compile(r"\\text\s?\{([^{}]*)\}")
_MATH = (("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"))
_DOLLARS = re.compile(r"\$(?P<inside>(?:[^$\\\n]|\\.|\n(?!\s*\n))++)\$(?!\d)", re.DOTALL)
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_UNFINISHED = re.compile(r"[-+*/=×·,.:;(]\s*$")
_MORE_MATH = re.compile(r"\s{0,4}(?:[,;]?\s{0,4}(?:and|or)\b|[,;])\s{0,4}(?:\$|\\\()")
_PERCENT = re.compile(r"\s?\\?%|\s?percent\b")


def stated(rest: str) -> str:
    """The answer at the beginning of ``rest``, the text after an answer phrase; "" if there is none."""
    body = rest.lstrip("* \t_`")
    moved = body[:1] in ("\r", "\n")
    body = body.lstrip("*_` \t\r\n")
    body = without_lead(body)
    inside = _between_delimiters(body)
    if inside is not None:
        return inside
    line = body.partition("\n")[0]
    sentence = _POLITE.sub("", _SENTENCE_END.split(line, maxsplit=1)[0].strip("*_` \t\r"))
    while sentence and (sentence[-1] in "∎\ufe0f" or _is_emoji(sentence[-1])):
        sentence = sentence[:-1].rstrip("*_` ")
    if "$" not in sentence.strip("$"):
        sentence = sentence.strip("$ ")
    if sentence.endswith("}") and "{" not in sentence:
        sentence = sentence.rstrip("}")
    if moved and len(line.strip()) > MAX_NEXT_LINE_CHARS:
        return ""
    if choice := leading_choice(sentence):
        return choice
    if yes_or_no := _YES_OR_NO.match(sentence):
        return yes_or_no[1]
    return _REMARK.sub("", sentence) if _VALUE.match(sentence) else number_said(sentence)


def without_lead(text: str) -> str:
    """``text`` without words such as "approximately" at its beginning."""
    for _ in range(_MAX_LEADS):
        text = text[lead.end() :] if (lead := _LEAD.match(text)) else text
    return text


def is_assessment(answer: str) -> bool:
    """Whether "the answer is" goes on with a remark about the answer: "correct", "hard to give"."""
    return _ASSESSMENT.match(answer) is not None


def number_said(sentence: str) -> str:
    """The number that ``sentence`` states; all of it if it states none, or several."""
    if said := _SAID.search(sentence):
        return stated(sentence[said.end() :])
    if not _CLAUSE.match(sentence) or _CONDITION.search(sentence):
        return sentence
    numbers = [number[0].strip() for number in _NUMBER.finditer(_REMARK.sub("", sentence))]
    amounts = [number for number in numbers if re.search(f"[{CURRENCY}]", number)]
    return next((found[0] for found in (amounts, numbers) if len(found) == 1), sentence)


def sentence_number(answer: str) -> str:
    r"""The number that ``answer`` states if it is a sentence in a formula, such as ``\text{He made } \$5``; else
    ``answer``."""
    sentence = " ".join(_TEXT.sub(r"\1", answer).replace("\\$", "$").replace("{,}", ",").split())
    return number_said(sentence) if _CLAUSE.match(sentence) and number_said(sentence) != sentence else answer


def _is_emoji(sign: str) -> bool:
    return unicodedata.category(sign) == "So" and sign != "°" and not unicodedata.decomposition(sign)


def _between_delimiters(body: str) -> str | None:
    """The content of the delimited mathematics at the start of ``body``; None if it starts otherwise, or if more
    mathematics follows as part of the answer."""
    opening, closing = next((pair for pair in _MATH if body.startswith(pair[0])), ("$", "$"))
    end = _closing_dollar(body) if opening == "$" else body.find(closing, len(opening))
    if end < 0:
        return None
    after = body[end + len(closing) : end + len(closing) + 32]
    if _MORE_MATH.match(after):
        return None
    percent = "\\%" if _PERCENT.match(after) else ""
    return body[len(opening) : end].strip() + percent


def _closing_dollar(body: str) -> int:
    """Where the formula ends that a dollar begins; -1 if the dollar is one of money, as in "$18. She has $2 left".

    As in Pandoc, no digit follows the closing dollar. Where there are spaces beside a dollar, or a line ends after a
    number, the inside must also be a formula: no words, and complete.
    """
    math = _DOLLARS.match(body)
    if math is None:
        return -1
    inside, end = math["inside"], math.end("inside")
    is_close = not inside[0].isspace() and not inside[-1].isspace()
    if is_close and not (inside[0].isdigit() and "\n" in inside):
        return end
    is_formula = not (
        _WORDS.search(inside) or _UNFINISHED.search(inside) or body[end + 1 : end + 3].strip()[:1].isdigit()
    )
    return end if is_formula and inside.strip() else -1

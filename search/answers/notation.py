r"""One notation for answers: LaTeX in ASCII, without decoration.

Models and people write the same formula as ``\sqrt{5}``, ``√5`` and ``sqrt(5)``, in bold, between dollars or with a
full stop. The tables here rewrite that before an answer is read. Every function takes at most quadratic time, and
answers have at most ``MAX_CHARS`` characters.
"""

import re
import unicodedata
from functools import lru_cache

from search.answers.numerals import MINUS
from search.tools.latex import DOLLAR, FUNCTIONS, SIGNS, plain_latex

MAX_CHARS = 1024
"""Longer answers are not rewritten, only compared as they stand."""
OPENING, CLOSING = "([{⟨", ")]}⟩"
TEXT = r"\\text\{((?:[^{}]|\{[^{}]*\})*)\}"
"""The pattern of words in a formula, as `tidy` leaves them."""
_MAX_LAYERS = 8
"""Maximum number of decorations around each other: bold, between dollars, in a box."""

_TIDY = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|-?\\frac\{[0-9]+\}\{[0-9]+\}|[A-Z]")
"""The most frequent answers, which need no rewriting."""
_SIGNS = {
    **SIGNS,
    **dict.fromkeys(MINUS, "-"),
    "٪": "%",
    "٫": ".",
    "٬": ",",
    **dict.fromkeys("“”„«»「」『』【】", '"'),
    **dict.fromkeys("‘’′", "'"),
    "√": "sqrt",
    "∛": "cbrt",
    "。": ".",
    "、": ",",
}
_GREEK = re.compile(r"[\u0370-\u03ff]+")

_PLAIN = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^(?:minus|negative)\s+(?=[\d.])", "-"),
        (r"\bper cent\b", "percent"),
        (r"^all real(?: number)?s$", r"\\mathbb{R}"),
        (r"^<([^<>]*,[^<>]*)>$", r"⟨\1⟩"),
        (r"\*\*", "^"),
        (r"\^\s*(-\d+|-[A-Za-z](?![A-Za-z]))", r"^{\1}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\^)", r"\\times "),
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        # math-verify takes a number before a binomial coefficient for a mixed number, and adds.
        (r"(?<=[\d)}])\s*(?=\\binom)", r"\\cdot "),
        (r"\*", r"\\cdot "),
        (r">=", r"\\ge "),
        (r"<=", r"\\le "),
        (r"(?<=\s)!=", r"\\neq "),
        (r"\+/-", r"\\pm "),
        (r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])[Pp]i(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])(theta|alpha|beta|gamma|lambda|phi|omega)(?![A-Za-z])", r"\\\1 "),
        (r"(?<![A-Za-z\\])a(sin|cos|tan)(?![A-Za-z])", r"\\arc\1"),
        (r"(?<![A-Za-z\\])log(\d+)(?=\()", r"\\log_{\1}"),
        (
            rf"(?<![A-Za-z\\])({FUNCTIONS}|sqrt|cbrt|abs|floor|ceil|frac)(?=\s*[({{\\^_\d]|\s[a-z]\b|x\b)",
            r"\\\1 ",
        ),
    )
]
_ROOT_OF_NUMBER = re.compile(
    r"(?<![A-Za-z\\])(sqrt|cbrt)\s*(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\pi(?![A-Za-z])"
    r"|\\frac\{[^{}]*\}\{[^{}]*\})"
)
_BRACED = re.compile(r"(\^|\\(?:sqrt|cbrt|abs|floor|ceil)(?![A-Za-z]))\s*(?=[({])")
_LATEX = {
    r"\cbrt": (r"\sqrt[3]{", "}"),
    r"\abs": ("|", "|"),
    r"\floor": (r"\lfloor ", r"\rfloor "),
    r"\ceil": (r"\lceil ", r"\rceil "),
}

_MATH = re.compile(r"\$(?!\s)([^$]*)(?<!\s)\$(?!\d)")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_SPACE = r"(?:\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s)"
_LEADING = re.compile(
    rf"(?:{_SPACE}|[=:→⇒∴]|->|\\(?:approx|sim|therefore|implies|to|[rR]ightarrow)(?![A-Za-z])|\\\\(?![A-Za-z]))+"
)
_TRAILING = " \t\r\n,;:.~"
_PAIRS = [
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("$$", "$$"),
    *((sign, sign) for sign in ("$", "**", "*", "__", "_", "`", '"', "'")),
]


@lru_cache(maxsize=4096)
def tidy(answer: str) -> str:
    r"""``answer`` in ASCII LaTeX, without decoration; text in it is ``\text{...}``, and ``¤`` the sign of dollars."""
    if len(answer) > MAX_CHARS or _TIDY.fullmatch(answer):
        return answer
    text = plain_latex(_undecorated(_without_unicode(answer)))
    text = _undecorated(_MATH.sub(r"\1", text)).replace("$", DOLLAR)
    text = _ROOT_OF_NUMBER.sub(r"\1{\2}", text)
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    return _with_braces(text).strip()


def closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at ``start``, whatever their kinds, so that ``[1, 2)`` closes; -1 if
    none does. Escaped braces are brackets too."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] in OPENING) - (text[index] in CLOSING)
        if depth == 0:
            return index
    return -1


def _without_unicode(answer: str) -> str:
    text = _GREEK.sub(_greek, unicodedata.normalize("NFC", answer))
    if text.isascii():
        return text
    # "x¹²" has one exponent of two digits.
    return "".join(map(_ascii, text)).replace("}^{", "").replace("}_{", "")


def _greek(run: re.Match[str]) -> str:
    """A Greek letter or two as LaTeX; more are a word."""
    if len(run[0]) > 2:
        return run[0]
    names = (unicodedata.name(letter, "").split() for letter in run[0])
    return "".join(
        rf"\{name[-1].lower() if name[1] == 'SMALL' else name[-1].capitalize()} "
        for name in names
        if len(name) == 4 and name[2] == "LETTER"
    )


@lru_cache(maxsize=1024)
def _ascii(sign: str) -> str:
    """One character as LaTeX; "" for a mark that is not seen, or only decorates."""
    if (known := _SIGNS.get(sign)) is not None:
        return known
    category = unicodedata.category(sign)
    if category == "Nd":
        return str(unicodedata.digit(sign))
    kind, *codes = unicodedata.decomposition(sign).split() or [""]
    if kind == "<fraction>":
        above, _, below = "".join(chr(int(code, 16)) for code in codes).partition("⁄")
        return rf"\frac{{{above}}}{{{below}}}"
    if kind in ("<super>", "<sub>"):
        return f"{'^' if kind == '<super>' else '_'}{{{unicodedata.normalize('NFKC', sign)}}}".replace("−", "-")
    if category == "Cf" or sign == "\ufe0f" or (category == "So" and not kind and sign != "°"):
        return ""
    return "".join(_SIGNS.get(part, part) for part in unicodedata.normalize("NFKC", sign))


def _undecorated(text: str) -> str:
    for _ in range(_MAX_LAYERS):
        before = text
        text = text.strip()
        if (leading := _LEADING.match(text)) and leading.end() < len(text):
            text = text[leading.end() :]
        if text.startswith("**"):
            text = _BOLD.sub(r"\1", text, count=1)
        text = text.rstrip(_TRAILING)
        while text.endswith("\\"):
            text = text[:-1].rstrip(_TRAILING)
        for opening, ending in _PAIRS:
            inside = text[len(opening) : -len(ending)]
            if inside and len(text) > len(opening + ending) and text.startswith(opening) and text.endswith(ending):
                text = text if ending in inside else inside
        for opening in ("{", r"\text{"):
            if text.startswith(opening) and closing(text, len(opening) - 1) == len(text) - 1:
                text = text[len(opening) : -1]
        if text == before:
            break
    return text.rstrip("*_` ")


def _with_braces(text: str) -> str:
    r"""``text`` with arguments in parentheses as LaTeX's: ``x^(1/2)`` is ``x^{1/2}``, ``\sqrt(5)`` is ``\sqrt{5}``."""
    position = 0
    while command := _BRACED.search(text, position):
        start, position = command.end(), command.end()
        if (end := closing(text, start)) < 0:
            break
        before, after = _LATEX.get(command[1], (f"{command[1]}{{", "}"))
        text = text[: command.start()] + before + text[start + 1 : end] + after + text[end + 1 :]
        position = command.start() + len(before)
    return text

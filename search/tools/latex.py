r"""LaTeX in one spelling, for answers and for steps: without styles and layout, with braces around all arguments.

Where braces are missing, TeX takes one token: ``\frac12`` is ``\frac{1}{2}``, ``\sqrt\pi`` is ``\sqrt{\pi}``. A
command as an argument keeps its own, as in ``x^\frac12``. ``\over`` and ``\choose`` stand between their arguments, and
split the group that they are in: ``{6 \choose 2}`` is ``\binom{6}{2}``.
"""

import re
from itertools import product

DOLLAR = "¤"
"""The sign of dollars, as distinct from the delimiter of formulas."""
FUNCTIONS = "(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp"
_SIGN_COMMANDS = (
    "·⋅∙•:cdot ×✕✖:times ≤⩽≦:le ≥⩾≧:ge ≈≃≅:approx ≠:neq ±:pm ∞:infty ∪:cup ∩:cap ∈:in ∅:emptyset ∠:angle ⌊:lfloor"
    " ⌋:rfloor ⌈:lceil ⌉:rceil"
)
SIGNS = {
    **{sign: f"\\{name} " for signs, name in (row.split(":") for row in _SIGN_COMMANDS.split()) for sign in signs},
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("º˚", "°"),
    "〈": "⟨",
    "〉": "⟩",
    "ℝ": r"\mathbb{R}",
    "∶": ":",
}
"""Mathematical signs of Unicode that its compatibility forms leave as they are, or change for the worse."""


def _named(names: str, meaning: str | None = None) -> dict[str, str]:
    return {f"\\{name}": f"\\{name}" if meaning is None else meaning for name in names.split()}


_REPLACED = {
    **dict.fromkeys(("~", r"\,", r"\;", r"\:", "\\ "), " "),
    **_named("quad qquad", " "),
    **_named("! displaystyle textstyle limits left right hfill checkmark blacksquare qed Box bf rm it", ""),
    **_named("large Large LARGE huge Huge", ""),
    **{f"\\{b}ig{g}{side}": "" for b, g, side in product("bB", ("", "g"), ("", "l", "r"))},
    **{f"\\{sign}": sign for sign in "%&#"},
    r"\$": DOLLAR,
    r"\pounds": "£",
    **_named("euro texteuro", "€"),
    r"\yen": "¥",
    r"\degree": "°",
    **_named("colon ratio", ":"),
    r"\langle": "⟨",
    r"\rangle": "⟩",
    r"\lbrace": r"\{",
    r"\rbrace": r"\}",
    r"\varnothing": r"\emptyset ",
}
"""Spaces, sizes and signs."""
_WORDS, _STYLE, _UNSEEN = r"\text", "", r"\phantom"
_COMMANDS = {
    **_named("frac dfrac tfrac cfrac nicefrac sfrac xfrac", r"\frac"),
    **_named("binom dbinom tbinom", r"\binom"),
    **_named("sqrt overline bar hat widehat tilde widetilde vec dot ddot mathbb mathscr mathfrak"),
    **_named("text textbf textit textrm texttt textsf textsc textup textnormal", _WORDS),
    **_named("mathrm mbox hbox emph operatorname", _WORDS),
    **_named("boldsymbol bm bold pmb mathop mathbf mathit mathsf mathtt mathcal", _STYLE),
    **_named("boxed fbox underline ensuremath", _STYLE),
    **_named("color textcolor tag phantom", _UNSEEN),
}
"""What is written for a command and its arguments; for a style only the argument, and for what is not seen nothing."""
_INFIX = {r"\over": r"\frac", r"\choose": r"\binom"}
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|phi|chi|psi"
    "|omega"
)
_SYMBOL = re.compile(rf"\\(?:var)?(?:{_GREEK})|\\(?:ell|infty|hbar)", re.IGNORECASE)
_SEPARATORS = frozenset((*"=<>,;&$", "\\\\"))
"""An infix command takes no more than what is between two of these."""
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_ROOT = re.compile(r"\\root\s*\{?([^\\{}]{1,32}?)\}?\s*\\of(?![A-Za-z])")
_MAX_INDEX_TOKENS = 32
r"""Longest index of a root, as in ``\sqrt[3]2``."""
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[ \t]{0,4}\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", "°"),
        (r"(?<=\d)\s*\\Omega(?![A-Za-z])", "Ω"),
        (r"\\text\{([ei])\}", r"\1"),
        (rf"\\text\{{({FUNCTIONS})\}}", r"\\\1 "),
        (r"\\\{\s*\\\}", r"\\emptyset "),
    )
]


class _Group(str):
    r"""A group whose braces only held the argument of a style or of ``\over``, and go where nothing else needs them."""

    __slots__ = ()


def plain_latex(text: str) -> str:
    r"""``text`` with one spelling of each command, braces around all arguments, and words in ``\text{...}``. A command
    stays alone where what follows is no argument, such as the parenthesis in ``\sqrt(5)``."""
    if "\\" not in text and "{" not in text:
        return text.replace("~", " ")
    # From the end, so that what follows a command is complete when the command is read. Each group that is open is a
    # list of tokens, the next one last.
    groups: list[list[str]] = [[]]
    for token in reversed(_TOKEN.findall(_ROOT.sub(r"\\sqrt[\1]", text))):
        if token == "}":
            groups.append([])
        elif token == "{" and len(groups) > 1:
            inside = groups.pop()
            groups[-1] += _group(inside)
        elif token in _COMMANDS:
            groups[-1] += _command(token, groups[-1])
        elif token in ("^", "_"):
            groups[-1].append(token + _script(groups[-1]))
        elif token := _REPLACED.get(token, token):
            groups[-1].append(token)
    plain = "}".join(_joined(group) for group in reversed(groups))
    for pattern, replacement in _SPELLINGS:
        plain = pattern.sub(replacement, plain)
    return plain


def _group(inside: list[str]) -> list[str]:
    """A group as a token; none if it is empty. ``10{,}000`` needs no braces."""
    text = _joined(inside)
    is_unneeded = text in (",", ":") or _INFIX.keys() & set(inside)
    return [_Group(f"{{{text}}}") if is_unneeded else f"{{{text}}}"] if text else []


def _command(name: str, after: list[str]) -> list[str]:
    """The command with the arguments that it takes from ``after``; alone if they are none."""
    meaning = _COMMANDS[name]
    position, index = len(after), ""
    if name == r"\sqrt":
        position, index = _index(after)
    arguments: list[str] = []
    while len(arguments) < (2 if meaning in _INFIX.values() else 1):
        position = _next(after, position)
        if position < 0 or not _is_argument(after[position]):
            return [] if meaning == _STYLE else [name]
        arguments.append(_braced([after[position]]))
    del after[position:]
    if meaning == _STYLE:
        return [_Group(arguments[0])]
    return [] if meaning == _UNSEEN else [f"{meaning}{index}{''.join(arguments)}"]


def _script(after: list[str]) -> str:
    r"""The exponent or index that ``after`` begins with, if it is a command, perhaps with a sign: ``x^\frac12``."""
    position = _next(after, len(after))
    sign = "-" if position >= 0 and after[position] == "-" else ""
    if sign:
        position = _next(after, position)
    if position < 0 or not _is_argument(after[position]):
        return ""
    if not after[position].startswith("\\") and not isinstance(after[position], _Group):
        return ""
    script = _braced([sign, after[position]] if sign else [after[position]])
    del after[position:]
    return script


def _index(after: list[str]) -> tuple[int, str]:
    """Where the index of a root ends, and the index with its brackets; "" if there is none."""
    start = _next(after, len(after))
    if start >= 0 and after[start] == "[":
        for position in range(start - 1, max(-1, start - _MAX_INDEX_TOKENS), -1):
            if after[position] == "]":
                return position, "".join(after[start : position - 1 if position else None : -1])
    return len(after), ""


def _next(after: list[str], position: int) -> int:
    """The index of the token before ``position`` that is no space; -1 if there is none."""
    position -= 1
    while position >= 0 and after[position].isspace():
        position -= 1
    return position


def _is_argument(token: str) -> bool:
    is_group = len(token) > 1 and token.endswith("}") and token[0] in "{\\"
    return is_group or token.isalnum() or _SYMBOL.fullmatch(token) is not None


def _joined(group: list[str]) -> str:
    """The text of a group, whose tokens are in reverse order."""
    parts: list[list[str]] = [[]]
    for place in range(len(group) - 1, -1, -1):
        token = group[place]
        if token in _SEPARATORS:
            parts += [[token], []]
        else:
            is_power = place > 0 and group[place - 1][0] in "^_!"
            text = _unbraced(token, is_power) if isinstance(token, _Group) else token
            before = parts[-1][-1] if parts[-1] else ""
            is_longer = text[:1].isalpha() and before[:1] == "\\" and before[1:].isalpha()  # "\pi\mathbf{x}"
            parts[-1].append(f" {text}" if is_longer else text)
    return "".join(map(_prefixed, parts))


def _unbraced(group: str, is_power: bool) -> str:
    inside = group[1:-1]
    return f"({inside})" if is_power and inside.startswith("\\") and inside.endswith("}") else inside


def _prefixed(tokens: list[str]) -> str:
    r"""The text of ``tokens`` with ``\frac{a}{b}`` for ``a \over b``."""
    place = next((place for place, token in enumerate(tokens) if token in _INFIX), 0)
    above, below = tokens[:place], tokens[place + 1 :]
    if not "".join(above).strip() or not "".join(below).strip():
        return "".join(tokens)
    return _INFIX[tokens[place]] + _braced(above) + _braced(below)


def _braced(tokens: list[str]) -> str:
    """The text of ``tokens`` as one group."""
    text = "".join(tokens).strip()
    is_group = text.startswith("{") and sum(not token.isspace() for token in tokens) == 1
    return text if is_group else f"{{{text}}}"

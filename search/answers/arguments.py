r"""Braces around the arguments of LaTeX's commands.

Where braces are missing, TeX takes one token: ``\frac12`` is ``\frac{1}{2}``, ``\sqrt\pi`` is ``\sqrt{\pi}``. A
command as an argument keeps its own, as in ``x^\frac12``. ``\over`` and ``\choose`` stand between their arguments, and
split the group that they are in: ``{6 \choose 2}`` is ``\binom{6}{2}``.
"""

import re

_FRACTIONS = ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac", "xfrac", "binom", "dbinom", "tbinom")
_ACCENTS = ("overline", "underline", "bar", "hat", "widehat", "tilde", "widetilde", "vec", "dot", "ddot")
_STYLES = ("bb", "bf", "cal", "frak", "it", "rm", "scr", "sf", "tt")
_TEXTS = ("", "bf", "it", "rm", "tt", "sf", "sc", "up", "normal")
_ARGUMENTS = {
    **dict.fromkeys((rf"\{name}" for name in _FRACTIONS), 2),
    **dict.fromkeys((rf"\{name}" for name in ("sqrt", "boldsymbol", "bm", "operatorname", "mbox", *_ACCENTS)), 1),
    **dict.fromkeys((rf"\math{style}" for style in _STYLES), 1),
    **dict.fromkeys((rf"\text{style}" for style in _TEXTS), 1),
}
"""Number of arguments of each command."""
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


class _InfixGroup(str):
    r"""A group that is one fraction or binomial coefficient, whose braces only served ``\over`` or ``\choose``."""

    __slots__ = ()


def with_arguments(formula: str) -> str:
    r"""``formula`` with braces around all arguments of its commands; unchanged where an argument cannot be one, such as
    the parenthesis in ``\sqrt(5)``."""
    if "\\" not in formula:
        return formula
    # From the end, so that what follows a command is complete when the command is read. Each group that is open is a
    # list of tokens, the next one last.
    groups: list[list[str]] = [[]]
    for token in reversed(_TOKEN.findall(_ROOT.sub(r"\\sqrt[\1]", formula))):
        if token == "}":
            groups.append([])
        elif token == "{" and len(groups) > 1:
            inside = groups.pop()
            group = f"{{{_joined(inside)}}}"
            groups[-1].append(_InfixGroup(group) if _INFIX.keys() & set(inside) else group)
        elif token in _ARGUMENTS:
            groups[-1].append(_command(token, groups[-1]))
        elif token in ("^", "_"):
            groups[-1].append(token + _script(groups[-1]))
        else:
            groups[-1].append(token)
    return "}".join(_joined(group) for group in reversed(groups))


def _command(name: str, after: list[str]) -> str:
    """The command with the arguments that it takes from ``after``; alone if they are none."""
    position, index = len(after), ""
    if name == r"\sqrt":
        position, index = _index(after)
    arguments: list[str] = []
    while len(arguments) < _ARGUMENTS[name]:
        position = _next(after, position)
        if position < 0 or not _is_argument(after[position]):
            return name
        arguments.append(_braced([after[position]]))
    del after[position:]
    return f"{name}{index}{''.join(arguments)}"


def _script(after: list[str]) -> str:
    r"""The exponent or index that ``after`` begins with, if it is a command, perhaps with a sign: ``x^\frac12``."""
    position = _next(after, len(after))
    sign = "-" if position >= 0 and after[position] == "-" else ""
    if sign:
        position = _next(after, position)
    if position < 0 or not after[position].startswith("\\") or not _is_argument(after[position]):
        return ""
    script = f"{{{sign}{after[position]}}}"
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
        elif isinstance(token, _InfixGroup) and group[place + 1 : place + 2] not in (["^"], ["_"]):
            is_power = place > 0 and group[place - 1][0] in "^_!"
            parts[-1].append(f"({token[1:-1]})" if is_power else token[1:-1])
        else:
            parts[-1].append(token)
    return "".join(map(_prefixed, parts))


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

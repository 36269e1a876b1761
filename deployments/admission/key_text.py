"""API keys as people write them into files and environment variables."""

import string

QUOTES = "\"'"
BLANKS = f"{string.whitespace}\N{NO-BREAK SPACE}\N{ZERO WIDTH NO-BREAK SPACE}"
"""Blanks and line ends, and the byte order mark that editors and shells of Windows put before a text."""
NO_PART_OF_A_KEY = frozenset(f"{QUOTES}`,;<>[]{{}}\\")
"""What separates and encloses keys where somebody writes several, or a placeholder."""
WHAT_A_KEY_IS = (
    "an API key consists of printable ASCII without blanks, quotes, commas, semicolons, backslashes and brackets, and "
    "may have = only at its end"
)


def bare_key(text: str) -> str:
    """Returns ``text`` without the blanks and the pair of quotes around it, which Docker's env files and Secrets keep
    as parts of a value."""
    text = text.strip(BLANKS)
    if len(text) > 1 and text[0] in QUOTES and text.find(text[0], 1) == len(text) - 1:
        return text[1:-1].strip(BLANKS)
    return text


def bare_keys(text: str) -> list[str]:
    """The keys of a list separated by commas. The list may be in quotes, and so may each key."""
    return [key for each in bare_key(text).split(",") if (key := bare_key(each))]


def is_key(text: str) -> bool:
    """Whether ``text`` can be one key: an HTTP header can carry it, and it has none of the characters with which people
    quote, assign or list keys, such as the ``=`` behind a variable's name or the comma between two keys."""
    printable = text.isascii() and text.isprintable() and " " not in text
    return bool(text) and printable and not NO_PART_OF_A_KEY & {*text} and "=" not in text.rstrip("=")

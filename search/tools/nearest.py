"""What to say of a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def no_such(kind: str, name: object, known: Iterable[str]) -> str:
    """Says that there is no ``kind`` of this name, and which of the ``known`` names was probably meant, or all of them.

    Not for names from requests: the time it takes grows with their number and length.
    """
    names = list(known)
    near = get_close_matches(str(name), names, n=1)
    return f"no such {kind}; " + (f"did you mean {near[0]}?" if near else f"available: {', '.join(names)}")

"""The given beginning of an answer, which every path of a search continues."""

from typing import NamedTuple

MAX_STEPS = 100
"""Most steps of a given beginning, as many as a path may have: the reward model reads all of them with every new step.
"""


class Prefill(NamedTuple):
    """Text that stands before every path as its first steps. Its tokens are part of the prompt, so it is no node of the
    tree, and no limit on paths counts it."""

    steps: tuple[str, ...] = ()
    """Its complete steps, delimiters included; the first ones are one step where there would be too many."""
    rest: str = ""
    """The text after them: the beginning of the first step that the search writes."""

    @classmethod
    def of(cls, text: str, delimiter: str) -> "Prefill":
        """Splits a text as a path that had written it: a step ends with the delimiter, unless it is blank so far. What
        is more than the last ``MAX_STEPS`` steps belongs to the first of these."""
        steps: list[str] = []
        start = end = 0
        blank = True
        for piece in text.split(delimiter)[:-1]:
            end += len(piece) + len(delimiter)
            blank = blank and not piece.strip()
            if not blank:
                steps.append(text[start:end])
                start, blank = end, True
        surplus = max(0, len(steps) - MAX_STEPS)
        return cls(("".join(steps[: surplus + 1]), *steps[surplus + 1 :]) if surplus else tuple(steps), text[start:])

    @property
    def text(self) -> str:
        return "".join(self.steps) + self.rest

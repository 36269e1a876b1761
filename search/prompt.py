"""The prompt of a search."""

from collections.abc import Sequence
from typing import NamedTuple


class Prompt(NamedTuple):
    """What the paths of a search, or of one context, continue."""

    token_ids: tuple[int, ...] = ()
    """The chat template applied."""
    messages: str = ""
    """The chat as JSON (OpenAI's messages), for a generator that encodes by itself: there are no ``token_ids`` then."""
    counted: int | None = None
    """Number of tokens where there are no ``token_ids``: a backend's count, or an estimate."""

    @classmethod
    def of(cls, given: "Prompt | Sequence[int]") -> "Prompt":
        """A prompt, given as such or as token ids."""
        return given if isinstance(given, Prompt) else cls(tuple(given))

    @property
    def size(self) -> int:
        """Its number of tokens. (Its length as a tuple is the number of its fields.)"""
        return len(self.token_ids) or self.counted or 0

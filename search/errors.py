"""What ends a search without an answer.

SearchError             a search cannot go on
├── GeneratorError      nothing could be written, on any replica
│   ├── CallInterrupted     a call ended early; what has not come can be asked for again
│   └── GeneratorRefused    for reasons of the request
│       └── PathTooLarge        no generator's KV memory could hold a path
├── ScorerError         no usable rewards could be had
│   └── ScorerRefused       for reasons of the request
├── PromptTooLong       the prompt fills the generator's context
└── LimitReached        a limit (kind, value, limit) was reached before there was anything to answer with

All of them survive pickling: they cross processes.
"""

from enum import StrEnum


class SearchError(RuntimeError):
    """A search cannot go on. Root of what the ports raise."""


class GeneratorError(SearchError):
    """The generator could not write what it was asked for, on any replica."""


class CallInterrupted(GeneratorError):
    """A call ended before all its branches had come, for reasons of its replica. What has not come is to be asked for
    again, at once: whoever raises this has waited as long as it should."""

    def __init__(self, message: str, avoid: tuple[str, ...] = ()) -> None:
        """``avoid``: the replicas at which the same has failed."""
        super().__init__(message, avoid)
        self.avoid = avoid

    def __str__(self) -> str:
        return str(self.args[0])


class GeneratorRefused(GeneratorError):
    """The generator will not write what it was asked for, whoever is asked and however often."""


class PathTooLarge(GeneratorRefused):
    """A path of it with one more token would fill more than a generator's whole KV memory."""


class ScorerError(SearchError):
    """The scorer gave no usable rewards: unreachable, too late, NaN, or the wrong number."""


class ScorerRefused(ScorerError):
    """The scorer cannot score what it was given, whoever is asked and however often: too long, or malformed."""


class PromptTooLong(SearchError):
    """The prompt leaves no room in the generator's context for a single token."""


class LimitKind(StrEnum):
    """What is limited."""

    TOKENS = "tokens"
    NODES = "nodes"
    SECONDS = "seconds"


class LimitReached(SearchError):
    """A limit ended a search before there was anything to answer with."""

    def __init__(self, kind: LimitKind, value: float, limit: float) -> None:
        # All three go to the base class: an exception is pickled by its args, and this one crosses processes.
        super().__init__(kind, value, limit)
        self.kind = kind
        self.value = value
        self.limit = limit

    def __str__(self) -> str:
        return f"the limit of {self.limit:g} {self.kind} was reached at {self.value:g}"

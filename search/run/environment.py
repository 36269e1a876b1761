"""What a search needs from its surroundings, in one object: whoever runs searches makes one and passes it to each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer
from search.ports import Generator, StepScorer
from search.run.solver import Solver


class Fallback(StrEnum):
    """What happens to a search whose scorer gives no usable rewards."""

    NEUTRAL = "neutral"
    """It goes on with rewards of 0.5 and is marked degraded."""
    FAIL = "fail"
    """It fails."""


AnswerExtractor = Callable[[str], str | None]
"""The answer that the text of a path gives; None where it gives none. Quick and pure: it runs on the event loop."""


@dataclass(frozen=True)
class SearchEnvironment:
    """Shared by all searches of a process."""

    generator: Generator
    scorer: StepScorer
    context_tokens: int
    """The generator's context length."""
    matcher: AnswerMatcher
    fallback: Fallback = Fallback.NEUTRAL
    extract_answer: AnswerExtractor = extract_answer
    solver: Solver = field(default_factory=Solver)
    model: str = ""
    """The model that the generator is asked to write with; empty: whichever it has."""

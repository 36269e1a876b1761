"""The dependencies of a search in one object, shared by all searches of a process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from search.answers.equivalence import WAIT_S, Grouping
from search.answers.extraction import extract_answer
from search.answers.json_answer import json_answer
from search.ports import Generator, StepScorer, ToolRequest
from search.run.bill import NO_PRICES, Prices
from search.run.contexts import Compose
from search.run.solver import Solver
from search.run.step_hook import StepHook


class Fallback(StrEnum):
    """What a search does when its scorer gives no usable rewards."""

    NEUTRAL = "neutral"
    """Continues with rewards of 0.5 and is marked degraded."""
    FAIL = "fail"
    """Fails."""


AnswerExtractor = Callable[[str], str | None]
"""Extracts the answer from a path's text; None if it has none. Fast and pure, because it runs on the event loop."""


class Matcher(Protocol):
    """Tells which answers of a search are the same; see `search.answers.equivalence.AnswerMatcher`."""

    async def grouping(self, answers: Sequence[str], wait_s: float = WAIT_S) -> Grouping: ...


async def are_same(matcher: Matcher, first: str, second: str) -> bool:
    """Whether two answers are the same."""
    return len((await matcher.grouping([first, second])).groups) == 1


@dataclass(frozen=True)
class SearchEnvironment:
    """The ports, answer functions and solver that all searches of a process share."""

    generator: Generator
    scorer: StepScorer
    context_tokens: int
    """Longest prompt and solution, in tokens, that fit the contexts of generator and scorer."""
    matcher: Matcher
    fallback: Fallback = Fallback.NEUTRAL
    extract_answer: AnswerExtractor = extract_answer
    json_answer: AnswerExtractor = json_answer
    """The answer of a path that a JSON schema holds."""
    solver: Solver = field(default_factory=Solver)
    step_hook: StepHook | None = None
    """Sees every new step before it is scored."""
    thinking_context: int = 0
    """Where the generator thinks: its own context length in tokens, which prompt, thought and solution share. 0: it
    does not think, or its thoughts are not told from steps."""
    thought_is_over: Callable[[Sequence[int]], bool] = lambda prompt: False
    """Whether a prompt ends behind a thought, so that no other follows."""
    scores_thinking: bool = False
    """Whether the scorer reads a path's thinking as the beginning of its first step; otherwise it reads the solution
    alone."""
    compose: Compose | None = None
    """Composes prompts that show solutions to the model; None: no strategy can have it read any."""
    tool: ToolRequest | None = None
    """How programs in the solutions are run; None: not at all."""
    prices: Prices = NO_PRICES
    """What the models' tokens cost."""
    model: str = ""
    """The model that the generator must write with; empty: the one it has."""

"""Ports without a model, for trees of any shape: depth, number of distinct next steps, quality of the scorer."""

import math
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import NamedTuple

from search.ports import Child, ChildGroup, ExpandRequest, ScoreRequest
from search.run.report import SearchOutcome
from search.tree import Step, StepEnd

FIRST_WORDING = 1_000
"""Token ids from here on stand for wordings, smaller ones for kinds of steps."""


OPENINGS = (
    "so",
    "thus",
    "hence",
    "therefore",
    "now",
    "then",
    "we get",
    "this gives",
    "it follows that",
    "we find that",
)
CLOSINGS = (
    "",
    "here",
    "as we see",
    "which is what we want",
    "as before",
    "and so on",
    "again",
    "then",
    "for now",
    "then",
)
"""Words without content: a hundred wordings with the same meaning."""


class Shape(NamedTuple):
    """The kind of trees that a model grows on its problems."""

    depth: int
    """Median number of steps of a solution."""
    kinds: int
    """Distinct next steps of the model; the k-th is drawn in proportion to 1/k."""
    paraphrases: bool
    """Whether each step is written in one of a hundred equally likely wordings, or always in the same one."""
    step_tokens: int = 30
    spread: float = 0.2
    """Standard deviation of the quality that one kind of step adds to a path."""
    noise: float = 0.1
    """Standard deviation of the scorer's error."""


SHAPES = {
    "shallow": Shape(depth=5, kinds=3, paraphrases=False),
    "deep": Shape(depth=12, kinds=3, paraphrases=False),
    "varied": Shape(depth=12, kinds=16, paraphrases=False),
    "paraphrased": Shape(depth=12, kinds=16, paraphrases=True),
}
"""``shallow`` is close to what the embedded models write."""


class ShapedModels:
    """Generator and scorer of a search. What they return depends on seeds and prefixes alone."""

    def __init__(self, shape: Shape, problem: int) -> None:
        self._shape = shape
        self._problem = problem

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        """See ``search.ports.Generator``."""
        yield ChildGroup(
            tuple(
                Child(expansion.parent, branch.index, (self._step(branch.seed, expansion.parent),), 0)
                for expansion in request.expansions
                for branch in expansion.branches
            )
        )

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """See ``search.ports.StepScorer``."""
        return [[self._reward(item.steps)] for item in request.items]

    def _step(self, seed: int, parent: Sequence[int]) -> Step:
        """A step whose last token is its kind; the other tokens are those of its wording."""
        rng, shape = Random(seed), self._shape
        kind = rng.choices(range(shape.kinds), [1 / (rank + 1) for rank in range(shape.kinds)])[0]
        wording = rng.randrange(len(OPENINGS) * len(CLOSINGS)) if shape.paraphrases else 0
        opening, closing = OPENINGS[wording % len(OPENINGS)], CLOSINGS[wording // len(OPENINGS)]
        tokens = (*(FIRST_WORDING + wording for _ in range(shape.step_tokens - 1)), kind)
        over = len(parent) + 1 - shape.depth
        ends = rng.random() < 1 / (1 + math.exp(-1.5 * over))
        answer = rf" \boxed{{{kind}}}" if ends else "\n\n"
        text = f"{opening} $x_{{{kind}}} = {kind}$ {closing}{answer}"
        return Step(tokens, text, StepEnd.END_OF_SEQUENCE if ends else StepEnd.DELIMITER)

    def quality_of_answer(self, outcome: SearchOutcome) -> float:
        """True quality of the path that answers."""
        return self._quality([step.text for step in outcome.selection.node.steps])

    def _reward(self, steps: Sequence[str]) -> float:
        observed = self._quality(steps) + Random(f"seen:{self._problem}:{''.join(steps)}").gauss(0, self._shape.noise)
        return 1 / (1 + math.exp(-4 * observed))

    def _quality(self, steps: Sequence[str]) -> float:
        """Sum over the steps. Each adds to the quality or takes off, depending on its kind and the kinds before it."""
        kinds = [step.split("$")[1] for step in steps]
        prefixes = (f"{self._problem}:{kinds[: depth + 1]}" for depth in range(len(kinds)))
        return sum(Random(each).gauss(0, self._shape.spread) for each in prefixes)

"""Ports without a model, for trees of any shape: how deep, how many steps are thought of, how good a scorer is."""

import math
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import NamedTuple

from search.ports import Child, ChildGroup, ExpandRequest, ScoreRequest
from search.run.report import SearchOutcome
from search.tree import Step, StepEnd

FIRST_WORDING = 1_000
"""The token ids of wordings are from here on, those of kinds below."""


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
"""Words that say nothing of their own: a hundred wordings that mean the same."""


class Shape(NamedTuple):
    """What kind of trees a model and its problems make."""

    depth: int
    """Steps of a solution, at the median."""
    kinds: int
    """Different next steps that the model has in mind; the k-th is as likely as 1/k."""
    paraphrases: bool
    """Whether each is written in a hundred ways, all as likely, or in one."""
    step_tokens: int = 30
    spread: float = 0.2
    """Standard deviation of a path's quality that one kind of step adds."""
    noise: float = 0.1
    """Standard deviation of what the scorer sees of it."""


SHAPES = {
    "shallow": Shape(depth=5, kinds=3, paraphrases=False),
    "deep": Shape(depth=12, kinds=3, paraphrases=False),
    "varied": Shape(depth=12, kinds=16, paraphrases=False),
    "paraphrased": Shape(depth=12, kinds=16, paraphrases=True),
}
"""The first is about what the embedded models write."""


class ShapedModels:
    """Both ports of a search. What is written depends on seeds and prefixes alone."""

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
        """Its first token is the kind, and the others are the wording's."""
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
        """The true quality of the path that answers."""
        return self._quality([step.text for step in outcome.selection.node.steps])

    def _reward(self, steps: Sequence[str]) -> float:
        seen = self._quality(steps) + Random(f"seen:{self._problem}:{''.join(steps)}").gauss(0, self._shape.noise)
        return 1 / (1 + math.exp(-4 * seen))

    def _quality(self, steps: Sequence[str]) -> float:
        """Each step adds to it or takes off, by what it says after what was said before."""
        kinds = [step.split("$")[1] for step in steps]
        said = (f"{self._problem}:{kinds[: depth + 1]}" for depth in range(len(kinds)))
        return sum(Random(each).gauss(0, self._shape.spread) for each in said)

"""Base of best-of-N and self-consistency: N whole solutions below the root."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from search.caps import MAX_SAMPLES, Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.path_score import path_score
from search.tree import SearchTree


class WholeSolutions(Strategy):
    """Writes ``n`` solutions independently of each other.

    With ``margin`` it may stop before all of them have arrived (the rule of SPEX, which uses 0.5). Then the order of
    arrival decides which solutions it waits for, and the answer may differ from that of all ``n``.
    """

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION

    n: Width = Field(16, description="Number of solutions to write.")
    margin: float | None = Field(
        None,
        ge=0.0,
        le=MAX_SAMPLES,
        description="Stop when the leading answer's weight exceeds the second's by this multiple of a solution's mean "
        "weight. Another answer might still have won.",
    )
    margin_after: Uncapped = Field(
        4, ge=1, le=MAX_SAMPLES, description="Minimum number of solutions before `margin` may stop the search."
    )

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        # Only when nothing is in flight: the grants of a tight budget then do not depend on the order of arrival.
        missing = self.n - tree.root.asked
        return [Expansion(tree.root, missing)] if missing > 0 and tree.in_flight == 0 else []

    def finished(self, tree: SearchTree) -> bool:
        return self.margin is not None and self._far_ahead(tree, self.margin)

    def _far_ahead(self, tree: SearchTree, margin: float) -> bool:
        ended = self.candidates(tree)
        if tree.ended(tree.deepest) < self.margin_after:
            return False
        weights: dict[str, float] = {}
        whole = 0.0
        for node in ended:
            score = path_score(node, self.aggregation)
            weight = 1.0 if score is None else score
            whole += weight * node.count
            if (spelling := tree.spelling_of(node)) is not None:
                weights[spelling] = weights.get(spelling, 0.0) + weight * node.count
        first, second = [*sorted(weights.values(), reverse=True), 0.0, 0.0][:2]
        return first - second > margin * whole / tree.ended(tree.deepest)

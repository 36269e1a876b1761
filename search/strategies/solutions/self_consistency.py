"""Self-consistency: N whole solutions and a majority vote, without a reward model."""

from collections import Counter
from typing import ClassVar, Literal

from pydantic import Field

from search.answers.voting import SelectionRule
from search.strategies.solutions.whole_solutions import WholeSolutions
from search.tree import SearchTree


class SelfConsistency(WholeSolutions):
    """Whole solutions and a majority vote, without a reward model.

    Source: Wang et al. 2022 (arXiv 2203.11171).

    One seed gives one tree whatever the order of arrival, unless ``early_stop`` or ``margin`` is set: then the order
    decides which solutions the search waits for. ``early_stop`` does not change the answer, but may change its
    agreement.
    """

    aliases: ClassVar[tuple[str, ...]] = ("sc",)
    needs_rewards: ClassVar[bool] = False

    name: Literal["self_consistency"] = "self_consistency"
    selection: Literal[SelectionRule.MAJORITY] = Field(
        SelectionRule.MAJORITY, description="Only a majority vote: nothing is scored."
    )
    early_stop: bool = Field(False, description="Stop as soon as no answer can overtake the leading one.")

    def finished(self, tree: SearchTree) -> bool:
        return (self.early_stop and self._decided(tree)) or super().finished(tree)

    def _decided(self, tree: SearchTree) -> bool:
        """Whether the leading answer has more votes than all other answers together could still get.

        Answers are compared by canonical spelling, which is stricter than the final test of equivalence: two rivals may
        turn out to be equivalent. Comparing the leader with the sum of all rivals stays exact.
        """
        votes: Counter[str] = Counter()
        for node in tree.terminals:
            if (spelling := tree.spelling_of(node)) is not None:
                votes[spelling] += node.count
        lead = max(votes.values(), default=0)
        expected = self.n - len(tree.root.given_back)
        return lead > votes.total() - lead + expected - tree.ended(tree.deepest)

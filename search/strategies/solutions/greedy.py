"""Greedy: one whole solution at temperature 0, the baseline of every comparison."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.tree import SearchTree


class Greedy(Strategy):
    """The model's most likely continuation, unscored. The seed has no effect."""

    aliases: ClassVar[tuple[str, ...]] = ("greedy",)
    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    answers_at_once: ClassVar[bool] = True
    needs_rewards: ClassVar[bool] = False

    name: Literal["greedy"] = "greedy"
    temperature: float = Field(0.0, ge=0.0, le=0.0, description="Only 0.")

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        return [] if tree.root.children else [Expansion(tree.root, 1)]

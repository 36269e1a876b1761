"""Greedy: one whole solution at temperature 0, the baseline of every comparison."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from search.ports import Extent
from search.strategies.base import Growth, Strategy
from search.tree import SearchTree


class Greedy(Strategy):
    """The model's own most likely continuation, unscored. The seed has no say in it."""

    aliases: ClassVar[tuple[str, ...]] = ("greedy",)
    extent: ClassVar[Extent] = Extent.SOLUTION
    needs_rewards: ClassVar[bool] = False

    name: Literal["greedy"] = "greedy"
    temperature: float = Field(0.0, ge=0.0, le=0.0, description="Greedy means 0.")

    def select(self, tree: SearchTree) -> Sequence[Growth]:
        return [] if tree.root.children else [Growth(tree.root, 1)]

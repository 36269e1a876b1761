"""What best-of-N and self-consistency share: N whole solutions below the root."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from search.ports import Extent
from search.strategy import MOST_SAMPLES, Growth, Strategy
from search.tree import SearchTree


class WholeSolutions(Strategy):
    """Writes ``n`` solutions independently of each other."""

    extent: ClassVar[Extent] = Extent.SOLUTION

    n: int = Field(16, ge=1, le=MOST_SAMPLES, description="Whole solutions to write.")

    def select(self, tree: SearchTree) -> Sequence[Growth]:
        # Only when nothing is in flight: what a tight budget grants then does not depend on arrival order.
        missing = self.n - len(tree.root.children)
        return [Growth(tree.root, missing)] if missing > 0 and tree.in_flight == 0 else []

"""Beam search over steps, guided by the process reward of each."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from search.ports import Extent
from search.scoring import best_first
from search.strategy import MOST_SAMPLES, Growth, Strategy
from search.tree import Node, NodeStatus, SearchTree


class BeamSearch(Strategy):
    """``n`` beams of width ``m``, as in search-and-learn (Beeching et al. 2024, "Scaling test-time compute").

    Each iteration writes ``n`` steps below the beams kept, scores them, moves terminal ones to the pool and
    keeps the best ``n // m`` of the rest; the next ``n`` are dealt over those in turn, the best first. It
    ends when ``n`` beams are in the pool, no beam is left or ``max_depth`` iterations are done.

    Where search-and-learn goes on after ``n`` beams have completed, returns more than ``n``, or writes the
    last step without a limit, this does not. An iteration is decided when all its steps are in, so one seed
    gives one tree whatever the order of arrival.
    """

    aliases: ClassVar[tuple[str, ...]] = ("beam",)

    name: Literal["beam_search"] = "beam_search"
    n: int = Field(16, ge=1, le=MOST_SAMPLES, description="Beams; a multiple of m.")
    m: int = Field(4, ge=1, le=MOST_SAMPLES, validate_default=True, description="Width: steps written per kept beam.")
    drop_duplicates: bool = Field(False, description="Of beams with the same text keep only the first.")
    finish_to_eos: bool = Field(False, description="Write the last iteration's step to the end of the solution.")

    @field_validator("m")
    @classmethod
    def _divides_n(cls, m: int, info: ValidationInfo) -> int:
        n = info.data.get("n")
        if n is not None and n % m:
            raise PydanticCustomError("multiple_of", "n = {n} is not a multiple of m = {m}", {"n": n, "m": m})
        return m

    def select(self, tree: SearchTree) -> Sequence[Growth]:
        if tree.in_flight or len(self._pool(tree)) >= self.n:
            return []
        level = self._last_level(tree)
        if len(level) < self.n:
            # A tight budget granted less than an iteration: go on with the same one while it can.
            depth = level[0].depth if level else 1
            return self._deal([node for node in self._open(tree) if node.depth == depth - 1])
        return self._deal([node for node in level if node.status is NodeStatus.OPEN])

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        if tree.in_flight:
            return
        level = self._last_level(tree)
        if len(level) < self.n:
            return
        beams = [node for node in level if node.status is NodeStatus.OPEN]
        kept = best_first(self._distinct(beams), self.aggregation)[: self.n // self.m]
        for node in beams:
            if node not in kept:
                tree.prune(node)

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The pool: the ``n`` terminal paths that ended in the earliest iterations, of the last of these
        the ones with the highest score; ordered by id."""
        pool = best_first(self._pool(tree), self.aggregation)
        return sorted(sorted(pool, key=lambda node: node.depth)[: self.n], key=lambda node: node.id)

    def _deal(self, kept: Sequence[Node]) -> list[Growth]:
        """Deals ``n`` children over ``kept`` in turn, less those that are there already."""
        ranked = best_first(kept, self.aggregation)
        shares = [len(range(place, self.n, len(ranked))) - len(node.children) for place, node in enumerate(ranked)]
        return [
            Growth(node, share, Extent.SOLUTION if self.finish_to_eos and node.depth == self.max_depth - 1 else None)
            for node, share in zip(ranked, shares, strict=True)
            if share > 0
        ]

    def _distinct(self, beams: Sequence[Node]) -> list[Node]:
        if not self.drop_duplicates:
            return list(beams)
        first: dict[str, Node] = {}
        for node in beams:
            first.setdefault(node.text, node)
        return list(first.values())

    def _pool(self, tree: SearchTree) -> list[Node]:
        return tree.with_status(NodeStatus.TERMINAL)

    def _open(self, tree: SearchTree) -> list[Node]:
        return [tree.root, *tree.with_status(NodeStatus.OPEN)]

    def _last_level(self, tree: SearchTree) -> list[Node]:
        """The nodes of the newest iteration, ordered by id."""
        depth = max((node.depth for node in tree.nodes), default=0)
        return sorted((node for node in tree.nodes if node.depth == depth), key=lambda node: node.id)

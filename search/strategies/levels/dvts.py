"""Diverse verifier tree search: independent subtrees, each keeping its best step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from search.caps import Width
from search.strategies.base import refused
from search.strategies.levels.level_search import LevelSearch, divides_n
from search.strategies.path_score import best_first
from search.tree import COMPLETE, Node, NodeStatus, SearchTree


class DVTS(LevelSearch):
    """Grows independent subtrees and keeps the best step of each.

    ``n // m`` subtrees of width ``m``, as in search-and-learn (Beeching et al. 2024).
    Each iteration writes ``m`` continuations in every subtree and keeps the best one; a subtree ends when its best one
    is terminal. The last ``m`` continuations of each subtree are the answers, ``n`` in all.

    If siblings of the same text are merged, subtrees that chose the same steps are at the same node, and each still
    writes ``m`` continuations of its own there. If the generator gives some back, each subtree still gets one.
    """

    name: Literal["dvts"] = "dvts"
    n: Width = Field(16, description="Number of answers; a multiple of m.")
    m: Width = Field(4, validate_default=True, description="Children per step of each subtree.")

    _divides_n = field_validator("m")(divides_n)

    @model_validator(mode="before")
    @classmethod
    def _takes_no_risk(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "risk" in given:
            raise refused(
                cls.__name__,
                "risk",
                given,
                "takes whole solutions (self_consistency, best_of_n): subtrees grow side by side, level by level, so "
                "there is none that a decided vote could leave out",
            )
        return given

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        self._ended(tree, depth - 1)  # Cached level by level, so that no later call has to recurse.
        written = self._steps(tree, depth)
        best = self._best_of(written)
        shares: Counter[Node] = Counter()
        answers: set[Node] = set()
        for subtree, steps in written.items():
            if best[subtree].status is NodeStatus.TERMINAL:
                answers.update(steps)
            else:
                shares.update(dict.fromkeys(steps, 0) | {best[subtree]: self.m})
        return {node: share for node, share in shares.items() if share or node not in answers}

    def least(self, share: int) -> int:
        """One for each subtree."""
        return share // self.m

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The last steps of every subtree, ended or not; ordered by id."""
        last = {subtree: _alive(steps) for subtree, steps in self._ended(tree, tree.deepest - 1).items()}
        for depth in range(tree.deepest, 0, -1):
            if len(last) == self.n // self.m:
                break
            for subtree, steps in self._steps(tree, depth).items():
                if subtree not in last and (alive := _alive(steps)):
                    last[subtree] = alive
        return sorted({node for nodes in last.values() for node in nodes}, key=lambda node: node.id)

    def _ended(self, tree: SearchTree, depth: int) -> Mapping[int, list[Node]]:
        """The last steps of the subtrees that ended at that depth or above. These levels must be complete."""
        if depth < 1:
            return {}
        if (DVTS._ended, depth) not in tree.strategy_cache:
            steps = self._steps(tree, depth)
            best = self._best(tree, depth)
            now = {subtree: steps[subtree] for subtree in steps if best[subtree].status is NodeStatus.TERMINAL}
            tree.strategy_cache[DVTS._ended, depth] = {**self._ended(tree, depth - 1), **now}
        return tree.strategy_cache[DVTS._ended, depth]  # type: ignore[no-any-return]

    def _best(self, tree: SearchTree, depth: int) -> Mapping[int, Node]:
        """The best node of each subtree at that depth. Subtrees that ended above it, or have no step there, are left
        out."""
        if not depth:
            return dict.fromkeys(range(self.n // self.m), tree.root)
        if (DVTS, depth) in tree.strategy_cache:
            return tree.strategy_cache[DVTS, depth]  # type: ignore[no-any-return]
        best = self._best_of(self._steps(tree, depth))
        if depth < tree.deepest:  # The level is complete.
            tree.strategy_cache[DVTS, depth] = best
        return best

    def _best_of(self, written: Mapping[int, list[Node]]) -> dict[int, Node]:
        return {subtree: best_first(steps, self.aggregation, self.lookahead)[0] for subtree, steps in written.items()}

    def _steps(self, tree: SearchTree, depth: int) -> Mapping[int, list[Node]]:
        """The distinct steps written for each subtree at that depth, from ``m`` samples each. Subtrees at the same node
        split its children in order, as evenly as possible if some were given back."""
        if (DVTS._steps, depth) in tree.strategy_cache:
            return tree.strategy_cache[DVTS._steps, depth]  # type: ignore[no-any-return]
        written: dict[int, list[Node]] = {}
        above = self._best(tree, depth - 1)
        subtrees = Counter(above.values())
        turns: Counter[Node] = Counter()
        for subtree, node in above.items():
            granted = [index for index in range(self.m * subtrees[node]) if index not in node.given_back]
            begin, end = (len(granted) * turn // subtrees[node] for turn in (turns[node], turns[node] + 1))
            turns[node] += 1
            samples = [node.children[index].first for index in granted[begin:end] if index in node.children]
            if steps := [sample for sample in dict.fromkeys(samples) if sample.status in COMPLETE]:
                written[subtree] = steps
        if depth < tree.deepest:  # The level is complete.
            tree.strategy_cache[DVTS._steps, depth] = written
        return written


def _alive(steps: Sequence[Node]) -> list[Node]:
    return [node for node in steps if node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL)]

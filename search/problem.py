"""Problems: work of a strategy that would block the event loop, so that a solver does it in a worker process."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from search.tree import SearchTree

StepClusters: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""A function that takes the texts of steps and returns a cluster number for each: steps of one cluster say the same."""
ProblemFunction: TypeAlias = Callable[[Any, StepClusters | None], Any]
"""A function that solves a problem from its argument and the operator's step clusters, if there are any."""


class Problem(NamedTuple):
    """A function call that another process can execute."""

    function: ProblemFunction
    """A module-level function: the worker imports it by its name. Its result must be JSON-serializable."""
    argument: Any
    """JSON-serializable and hashable. The worker receives tuples as lists."""
    fallback: Any
    """Replaces the result after an error or a timeout. It depends on the argument alone, so that the search continues
    in the same way on any machine."""

    def solution(self, tree: SearchTree) -> Any:
        """The solution cached in ``tree``; without one, the problem is solved in this thread and the result cached."""
        if self not in tree.strategy_cache:
            tree.strategy_cache[self] = self.function(self.argument, None)
        return tree.strategy_cache[self]

    @property
    def name(self) -> str:
        """The function's import path."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

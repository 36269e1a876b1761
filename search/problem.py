"""Work of a strategy that would hold up the event loop of all searches: handed over as a problem, solved elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from search.tree import SearchTree

StepClusters: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""A function that takes the texts of steps and returns a cluster number for each: steps of one cluster say the same."""
ProblemFunction: TypeAlias = Callable[[Any, StepClusters | None], Any]
"""A function that works out a problem from its argument, and from the operator's step clusters where there are any."""


class Problem(NamedTuple):
    """What is to be worked out, in terms that another process understands."""

    function: ProblemFunction
    """A function of a module: it is found again by its name. Its result is made of what JSON has."""
    argument: Any
    """Made of what JSON has, and hashable. Tuples arrive as lists."""
    fallback: Any
    """Stands for the result if there is none in time. A function of the argument alone, so that a search goes on alike
    wherever that happens."""

    def solution(self, tree: SearchTree) -> Any:
        """As ``tree`` has it, or worked out here and now where nobody has solved it before."""
        if self not in tree.found:
            tree.found[self] = self.function(self.argument, None)
        return tree.found[self]

    @property
    def name(self) -> str:
        """The function's import path."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

"""How long the paths of a search may become, and how long they will probably become."""

from typing import NamedTuple

from search.tree import Node, SearchTree


class PathLimits(NamedTuple):
    """Limits of every path of one search."""

    prompt: tuple[int, ...]
    context_tokens: int
    """The generator's context length: prompt, path and the step being written."""
    max_path_tokens: int
    max_depth: int

    def tokens(self, node: Node) -> int:
        """Tokens that may still be written below ``node``."""
        return min(self.max_path_tokens, self.context_tokens - len(self.prompt)) - node.path_tokens

    @property
    def longest(self) -> int:
        """Most tokens of prompt and path together."""
        return min(self.max_path_tokens + len(self.prompt), self.context_tokens)

    def steps(self, node: Node) -> int:
        """Steps that may still be written below ``node``."""
        return self.max_depth - node.depth


class PathNeeds:
    """Estimates how many tokens a path still needs, from the lengths in the tree alone: one seed stays one tree.

    A path needs what the longest finished path has beyond it. Until a path is finished, it may need all the steps that
    it is allowed, each as long as the longest step so far.
    """

    def __init__(self, tree: SearchTree, limits: PathLimits, max_step_tokens: int) -> None:
        self._tree = tree
        self._limits = limits
        self._max_step_tokens = max_step_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens that the next step needs."""
        return min(self._max_step_tokens, self._tree.longest_step or self._max_step_tokens)

    def tokens(self, node: Node) -> int:
        """Tokens that the path to ``node`` needs to its end, the next step's included."""
        step, longest = self.step_tokens, self._tree.longest_path
        needed = max(step, longest - node.path_tokens) if longest else step * self._limits.steps(node)
        return min(needed, self._limits.tokens(node))

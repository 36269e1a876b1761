"""How long the paths of a search may become, and how long they will probably become."""

from typing import NamedTuple

from search.prompt import Prompt
from search.tree import Node, SearchTree, Step


class PathLimits(NamedTuple):
    """Limits of every path of one search. Thinking has limits of its own."""

    prompt: Prompt
    """The search's own prompt; contexts have theirs."""
    prompt_size: int
    """Its number of tokens."""
    context_tokens: int
    """Longest prompt and solution that the models read: path and the step being written."""
    max_path_tokens: int
    max_depth: int
    max_thinking_tokens: int = 0
    """Most tokens of thinking below the root; 0: no thoughts are told from steps."""
    thinking_context: int = 0
    """The generator's context length, where its thinking counts, too; 0: as ``context_tokens``."""

    def tokens(self, node: Node) -> int:
        """Tokens that may still be written below ``node``, thinking included."""
        return self._left(node, 0, self.thinking(node))

    def tokens_after(self, node: Node, step: Step) -> int:
        """Tokens that may still be written behind ``step``, which was written below ``node``."""
        return self._left(node, step.size, step.thought.tokens)

    def thinking(self, node: Node) -> int:
        """Most tokens of thinking in a branch below ``node``."""
        return 0 if node.depth else self.max_thinking_tokens

    def _left(self, node: Node, written: int, thought: int) -> int:
        """``thought``: the tokens of thinking in the step below ``node``."""
        prompt = self.prompt_size if node.context is None else node.context.prompt_tokens
        most = min(self.max_path_tokens, self.context_tokens - prompt) + node.thought_tokens + thought
        return min(most, (self.thinking_context or self.context_tokens) - prompt) - node.path_tokens - written

    def prompt_of(self, node: Node) -> Prompt:
        """What the path to ``node`` continues."""
        return self.prompt if node.context is None else node.context.prompt

    def prompt_tokens(self, node: Node) -> int:
        """Number of tokens of ``prompt_of``."""
        return self.prompt_size if node.context is None else node.context.prompt_tokens

    def solution_tokens(self, node: Node) -> int:
        """Most tokens, without its thoughts, of a path that continues the prompt of ``node``."""
        return min(self.max_path_tokens, self.context_tokens - self.prompt_tokens(node))

    def steps(self, node: Node) -> int:
        """Steps that may still be written below ``node``."""
        return self.max_depth - node.depth


class PathNeeds:
    """Estimates how many tokens a path still needs, from the lengths in the tree alone: one seed stays one tree.

    A path needs what the longest finished path has beyond it. Until a path is finished, it may need all the steps that
    it is allowed, each as long as the longest step so far. A branch below the root needs a thought before them, as long
    as the longest one so far.
    """

    def __init__(self, tree: SearchTree, limits: PathLimits, max_step_tokens: int) -> None:
        self._tree = tree
        self._limits = limits
        self._max_step_tokens = max_step_tokens

    def step_tokens(self, node: Node) -> int:
        """Tokens that the next step below ``node`` needs."""
        return self._thought_tokens(node) + self._solution_step

    def tokens(self, node: Node) -> int:
        """Tokens that the path to ``node`` needs to its end, the next step's included."""
        step, longest = self._solution_step, self._tree.longest_path
        written = node.path_tokens - node.thought_tokens
        needed = max(step, longest - written) if longest else step * self._limits.steps(node)
        return min(self._thought_tokens(node) + needed, self._limits.tokens(node))

    @property
    def _solution_step(self) -> int:
        return min(self._max_step_tokens, self._tree.longest_step or self._max_step_tokens)

    def _thought_tokens(self, node: Node) -> int:
        most = self._limits.thinking(node)
        return min(most, self._tree.longest_thought or most)

"""What one sample of a search would have cost, from what the search recorded: nothing is written for it."""

from collections.abc import Sequence
from typing import NamedTuple

from search.run.report import SearchCost
from search.strategies.base import Strategy
from search.tools.turns import Turns
from search.tree import Node, NodeStatus, SearchTree


class Pace:
    """How fast a branch was written, on average: from the request of its call to its arrival, with all waits."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0

    def add(self, seconds: float, tokens: int) -> None:
        """Adds a branch that has arrived ``seconds`` after its call was made."""
        self._seconds += seconds
        self._tokens += tokens

    def seconds(self, tokens: float) -> float:
        """The time in which a branch of this length would have been written; 0 before any branch has arrived."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0


class Price(NamedTuple):
    """What a model's tokens cost, per million of them, in any currency."""

    input: float
    output: float
    cached_input: float
    """Of prompt tokens that were in a cache."""

    def of(self, read: float, cached: float, written: float) -> float:
        """The cost of tokens: those read, of which ``cached`` were in a cache, and those written."""
        return ((read - cached) * self.input + cached * self.cached_input + written * self.output) / 1e6


class Prices(NamedTuple):
    """Those of a search's models; None: not known."""

    generator: Price | None = None
    scorer: Price | None = None

    def add_to(self, cost: SearchCost) -> None:
        """Completes the bill with what the tokens cost that have a price. One sample reads the prompt, not cached, and
        is not scored."""
        if self.generator is None and self.scorer is None:
            return
        cost.price = 0.0
        if self.generator is not None:
            written = cost.generated_tokens + cost.unused_tokens
            cost.price += self.generator.of(cost.prefix_tokens, cost.cached_tokens, written)
            cost.sample_price = self.generator.of(cost.prompt_tokens, 0, cost.sample_tokens)
        if self.scorer is not None:
            cost.price += self.scorer.of(cost.prm_prompt_tokens, cost.prm_cached_tokens, cost.prm_generated_tokens)


NO_PRICES = Prices()


async def sample_tokens(ends: Sequence[Node], tree: SearchTree, strategy: Strategy, alike: bool) -> float:
    """Mean number of tokens that were written on the answering paths, each counted as often as it votes: what one path
    would have taken without a search. Paths that have not ended count only if none has.

    Args:
        ends: the last nodes of the paths, at least one.
        alike: whether each path has one vote.
    """
    turns = Turns()
    total, weights = 0.0, 0.0
    for node in [end for end in ends if end.status is NodeStatus.TERMINAL] or ends:
        weight = 1.0 if alike else float(strategy.votes(tree, node))
        total += weight * path_tokens(node)
        weights += weight
        await turns.pass_on()
    return total / weights if weights else float(path_tokens(ends[0]))


def path_tokens(end: Node) -> int:
    """Tokens that the generator wrote on a path."""
    return sum(step.written_tokens for node in end.path if (step := node.written_step))

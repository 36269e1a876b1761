"""How the rewards of a path's steps make the path's score."""

import math
from collections.abc import Sequence
from enum import StrEnum

from search.tree import Node


class Aggregation(StrEnum):
    """Which function of the step rewards ranks a path, wherever it is ranked."""

    LAST = "last"
    """The reward of the last step."""
    MIN = "min"
    """The lowest reward: a chain is as good as its weakest step."""
    PROD = "prod"
    """The product: the rewards read as independent probabilities of being right."""
    MEAN = "mean"
    """The arithmetic mean."""


def aggregate(rewards: Sequence[float], how: Aggregation) -> float:
    """The score of a path with these step rewards, first step first.

    Each reward is in [0, 1], and so is the score. A path without rewards scores 0.0: nothing speaks
    for it yet.
    """
    if not rewards:
        return 0.0
    match how:
        case Aggregation.LAST:
            return rewards[-1]
        case Aggregation.MIN:
            return min(rewards)
        case Aggregation.PROD:
            return math.prod(rewards)
        case Aggregation.MEAN:
            return math.fsum(rewards) / len(rewards)


def path_score(node: Node, how: Aggregation) -> float | None:
    """The score of the path that ends in ``node``, in [0, 1]; None where none of its steps has a reward.

    Of a complete node; then it is looked for once."""
    if how is Aggregation.LAST and node.reward is not None:
        return node.reward
    if node.score is None or node.score[0] is not how:
        rewards = node.rewards
        node.score = how, aggregate(rewards, how) if rewards else None
    return node.score[1]


def rank_score(node: Node, how: Aggregation) -> float:
    """What ranks a path among others: the score of the longest path that was written from it to look ahead, its
    own where there is none."""
    end = node.lookahead_end
    return (path_score(node, how) if end is node else aggregate(end.rewards, how)) or 0.0


def best_first(nodes: Sequence[Node], how: Aggregation) -> list[Node]:
    """``nodes`` by falling rank; ties by node id, so the order does not depend on arrival."""
    return sorted(nodes, key=lambda node: (-rank_score(node, how), node.id))


def mean_logprob(node: Node) -> float:
    """The mean log-probability of a step's tokens (nats); 0 for a step without tokens.

    Raises:
        ValueError: the generator did not say.
    """
    step = node.step
    if step is None or not step.token_ids:
        return 0.0
    if step.logprob is None:
        raise ValueError(f"the generator gave no log-probability of node {node.id}")
    return step.logprob / len(step.token_ids)

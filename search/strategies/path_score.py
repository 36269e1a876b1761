"""Path scores: how the rewards of a path's steps are aggregated."""

import math
from collections.abc import Sequence
from enum import StrEnum

from search.tree import Node


class Aggregation(StrEnum):
    """The function of the step rewards that gives a path's score."""

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

    Each reward is in [0, 1], and so is the score. A path without rewards scores 0.0.
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
    """The score of the path that ends in ``node``, in [0, 1]; None if none of its steps has a reward.

    The node must be complete, because the score is cached on it."""
    if how is Aggregation.LAST and node.reward is not None:
        return node.reward
    if node.score is None or node.score[0] is not how:
        rewards = node.rewards
        node.score = how, aggregate(rewards, how) if rewards else None
    return node.score[1]


def rank_score(node: Node, how: Aggregation, lookahead: int) -> float:
    """The score that ranks a path: that of the path to the end of its lookahead of at most that many steps, or its own
    without a lookahead."""
    end = node.lookahead_end(lookahead)
    return (path_score(node, how) if end is node else aggregate(end.rewards, how)) or 0.0


def best_first(nodes: Sequence[Node], how: Aggregation, lookahead: int = 0) -> list[Node]:
    """``nodes`` by falling `rank_score`; ties by node id, so the order does not depend on arrival."""
    return sorted(nodes, key=lambda node: (-rank_score(node, how, lookahead), node.id))


def mean_logprob(node: Node) -> float:
    """The mean log-probability of the tokens that the model wrote in a step (nats); 0 for a step without tokens.

    Raises:
        ValueError: the generator reported no log-probability.
    """
    step = node.written_step
    if step is None or not step.written_tokens:
        return 0.0
    if step.logprob is None:
        raise ValueError(f"the generator reported no log-probability for node {node.id}")
    return step.logprob / step.written_tokens

"""The answers of one search's paths, and votes and pass@k over fewer of them: 1, 2, 4 … n."""

import random
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from cluster.evaluation.code_test import Grader
from search.answers.extraction import extract_answer
from search.answers.voting import SelectionRule
from search.run.environment import AnswerExtractor
from search.settings import SearchSettings
from search.snapshot import TreeView, tree_of_view
from search.strategies.base import Strategy
from search.strategies.path_score import path_score


class PathAnswer(BaseModel):
    """The answer of one path in the vote."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    answer: str | None
    """None if the path has no answer."""
    group: int | None
    """Number of the group of equivalent answers; None if and only if there is no answer."""
    right: bool
    score: float | None
    """Score of the path, in [0, 1]; None if nothing was scored."""
    votes: float = Field(gt=0.0)
    """Weight of one sample in a vote, apart from its score."""
    samples: int = Field(1, ge=1)
    """How often the path was written, or drawn."""


class Sample(NamedTuple):
    """One written path, as a vote counts it."""

    group: int | None
    right: bool
    score: float | None
    votes: float


async def path_answers(
    tree: TreeView,
    settings: SearchSettings,
    seed: int,
    expected: str,
    matcher: Grader,
    extract_answer: AnswerExtractor = extract_answer,
) -> list[PathAnswer]:
    """Answers of the paths that the strategy lets vote, each graded against the ``expected`` answer."""
    strategy = settings.strategy
    grown = tree_of_view(tree, seed, strategy.merge_siblings)
    grown.stop = settings.stop
    grown.extract_answer = extract_answer
    nodes = strategy.candidates(grown)
    answers = [grown.answer_of(node) for node in nodes]
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    groups = await matcher.group([answer for answer in answers if answer is not None])
    group_of = {answered[member]: number for number, members in enumerate(groups) for member in members}
    right = {answer: await matcher.same(expected, answer) for answer in {*answers} if answer is not None}
    found: list[PathAnswer] = []
    for index, (node, answer) in enumerate(zip(nodes, answers, strict=True)):
        # A strategy that overrides `votes` lists a path once for each sample.
        samples = max(1, node.count) if type(strategy).votes is Strategy.votes else 1
        found.append(
            PathAnswer(
                answer=answer,
                group=group_of.get(index),
                right=answer is not None and right[answer],
                score=path_score(node, strategy.aggregation),
                votes=float(strategy.votes(grown, node)) / samples,
                samples=samples,
            )
        )
    return found


def shuffled(paths: Sequence[Mapping[str, Any]], seed: int) -> list[Sample]:
    """Samples in random order, drawn from ``seed``; a path occurs as often as it was written. In tree order the first k
    would be a subtree, since siblings are adjacent."""
    samples = [
        Sample(path["group"], path["right"], path["score"], path["votes"])
        for path in paths
        for _ in range(path["samples"])
    ]
    random.Random(seed).shuffle(samples)  # for reproducible results, not for secrets
    return samples


def powers_of_two(most: int) -> Iterator[int]:
    """1, 2, 4 … below ``most``, and ``most``; nothing for 0."""
    k = 1
    while k < most:
        yield k
        k *= 2
    if most:
        yield most


def pass_at(k: int, samples: Sequence[Sample]) -> float:
    """Probability that one of ``k`` of these samples is right; ``k`` is at most their number.

    Source: Chen et al. 2021 (arXiv 2107.03374), the unbiased estimator.
    """
    wrong = sum(not sample.right for sample in samples)
    return 1.0 - comb(wrong, k) / comb(len(samples), k)


def vote(samples: Sequence[Sample], rule: SelectionRule) -> bool:
    """Whether the answer selected from these samples is right. As in `search.answers.voting`, the first wins a tie."""
    ranks: dict[int, float] = {}
    right: dict[int, bool] = {}
    for group, is_right, score, votes in samples:
        if group is None:
            continue
        right.setdefault(group, is_right)
        weight = 1.0 if score is None else score
        match rule:
            case SelectionRule.NAIVE:
                ranks[group] = max(ranks.get(group, 0.0), weight)
            case SelectionRule.WEIGHTED:
                ranks[group] = ranks.get(group, 0.0) + weight * votes
            case SelectionRule.MAJORITY | SelectionRule.MEDOID:
                ranks[group] = ranks.get(group, 0.0) + votes
    return right[max(ranks, key=ranks.__getitem__)] if ranks else False

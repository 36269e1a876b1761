"""Labels from the outcomes of solutions, and which problems are held out.

The label of a prefix is the share of right final answers among the solutions that begin with it: the soft estimate of
Math-Shepherd (arXiv 2312.08935), with the solutions of the tree itself in place of completions of every step. A prefix
may end anywhere, not only after a step: tokens within a step are labelled in the same way, as in the verifiers of Cobbe
et al. 2021 (arXiv 2110.14168), section 4.2.
"""

import hashlib
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from cluster.training.errors import TrainingError
from cluster.training.solutions import SolvedProblem

MIN_PROBLEMS = 10


class Split(NamedTuple):
    """Problems by their part."""

    train: list[SolvedProblem]
    stop: list[SolvedProblem]
    """Held out: end the training and calibrate the head."""
    card: list[SolvedProblem]
    """Held out: measured on the card, and used for nothing else."""


def prefix_shares(
    sequences: Sequence[Sequence[Hashable]], right: Sequence[bool], counts: Sequence[int]
) -> list[list[float]]:
    """For each sequence and each of its prefixes, shortest first, the share of right ones among the sequences that
    begin with that prefix. A sequence counts as often as it was written (``counts``)."""
    following: dict[tuple[int, Hashable], int] = {}
    ends, rights = [0], [0]
    paths: list[list[int]] = []
    for sequence, is_right, count in zip(sequences, right, counts, strict=True):
        node, path = 0, []
        for item in sequence:
            node = following.setdefault((node, item), len(ends))
            if node == len(ends):
                ends.append(0)
                rights.append(0)
            ends[node] += count
            rights[node] += count * is_right
            path.append(node)
        paths.append(path)
    return [[rights[node] / ends[node] for node in path] for path in paths]


def split_problems(problems: Sequence[SolvedProblem], held_out: float, seed: int) -> Split:
    """Splits problems by a hash of seed and question, so that a problem is in one part with all its solutions.

    Raises:
        TrainingError: there are fewer than `MIN_PROBLEMS`, or all solutions to train on are right, or all are wrong.
    """
    if len(problems) < MIN_PROBLEMS:
        raise TrainingError(f"problems with a solution: {len(problems)}; at least {MIN_PROBLEMS} are needed")
    ordered = sorted(problems, key=lambda each: hashlib.sha256(f"{seed}:{each.question}".encode()).digest())
    card = max(2, round(held_out * len(ordered)))
    stop = max(1, round(held_out / 2 * len(ordered)))
    split = Split(ordered[card + stop :], ordered[card : card + stop], ordered[:card])
    outcomes = {solution.right for problem in split.train for solution in problem.solutions}
    if len(outcomes) < 2:
        kind = "right" if outcomes == {True} else "wrong"
        raise TrainingError(f"all solutions to train on are {kind}: a reward model needs right and wrong ones")
    return split

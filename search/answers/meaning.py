"""Compares answers that are free text: which of them mean the same, and which is nearest to all.

Groups are made as for semantic entropy (arXiv 2302.09664): a text joins the first group whose first text means the
same. The text nearest to all others, the medoid, has the least expected distance (minimum Bayes risk: Kumar and Byrne
2004; as a vote over samples of a language model: arXiv 2310.01387).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MIN_DIFFERENCE = 1e-6
"""Sums of similarities or votes that differ by less are equal: they are rounded."""

Vectors = Sequence[NDArray[np.float32]]
"""Vectors of length 1, so that the product of two is their cosine."""


class TextEmbedding(Protocol):
    """Embeds texts, so that the cosine of two says how much they mean the same."""

    @property
    def threshold(self) -> float:
        """Least cosine of two texts that mean the same."""

    async def vectors_of(self, texts: Sequence[str], timeout_s: float) -> Vectors | None:
        """The vector of each text, of one dimension; None if they are not known in time."""


class Comparison(NamedTuple):
    """Which texts mean the same, and which is nearest to all."""

    groups: list[list[int]]
    """Indices of the texts; groups and members in order of first appearance."""
    best: int
    """Index of the text that answers."""


def normalized(text: str) -> str:
    """A form that texts share if they differ in whitespace and case alone."""
    return " ".join(text.split()).casefold()


def compared(
    names: Sequence[int],
    votes: Sequence[float],
    vectors: Vectors | None = None,
    threshold: float = 1.0,
    by_group: bool = True,
) -> Comparison:
    """Compares texts. Of those that may answer, the best is the one with the largest sum of similarities to all texts,
    each times its votes, and the first on a tie.

    Args:
        names: of each text a number that equal texts share, counted from 0 in order of first appearance.
        votes: of each text.
        vectors: of each different text; None: only equal texts are alike.
        threshold: least cosine of texts that mean the same.
        by_group: only the texts of the groups with the most votes may answer.
    """
    weights = np.bincount(names, votes)
    alike = np.eye(len(weights)) if vectors is None else np.asarray(vectors) @ np.asarray(vectors).T
    first_of: list[int] = []
    group_of: list[int] = []
    for name in range(len(weights)):
        group = next((group for group, first in enumerate(first_of) if alike[name, first] >= threshold), len(first_of))
        if group == len(first_of):
            first_of.append(name)
        group_of.append(group)
    nearness = alike @ weights
    if by_group:
        group_votes = np.bincount(group_of, weights)[group_of]
        nearness[group_votes < group_votes.max() - MIN_DIFFERENCE] = -np.inf
    nearest = int(np.argmax(nearness >= nearness.max() - MIN_DIFFERENCE))
    groups: list[list[int]] = [[] for _ in first_of]
    for index, name in enumerate(names):
        groups[group_of[name]].append(index)
    return Comparison(groups, names.index(nearest))

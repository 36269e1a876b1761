"""Clusters of steps that say the same, by which ETS measures diversity."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from search.strategies.levels.step_contents import StepContents, contents_of
from search.strategies.levels.step_formulas import Formula

MAX_WORD_DISTANCE = 0.16
"""Largest mean word distance within a cluster, for steps with the same mathematics. Tuned on the pairs of
``tests/unit/search/step_pairs.py``."""


def clusters_by_contents(texts: Sequence[str]) -> list[int]:
    """The cluster of each text, numbered from 0 in order of first appearance.

    Steps are in one cluster if they have the same mathematics and similar words. Not detected: formulas that are equal
    only after computation, synonyms, which of two persons a sum is about, and the intended order of numbers in prose.
    In doubt, steps are kept apart.
    """
    contents = [contents_of(text) for text in texts]
    by_mathematics: dict[frozenset[tuple[str, ...]], list[int]] = {}
    for index, content in enumerate(contents):
        by_mathematics.setdefault(content.mathematics, []).append(index)
    labels: list[tuple[int, int]] = [(0, 0)] * len(texts)
    for group, members in enumerate(by_mathematics.values()):
        parts = _parted([contents[index] for index in members])
        for index, part in zip(members, parts, strict=True):
            labels[index] = (group, part)
    return numbered(labels)


def numbered(labels: Sequence[Hashable]) -> list[int]:
    """Labels as numbers from 0, in order of first appearance."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(label, len(number)) for label in labels]


def _parted(contents: Sequence[StepContents]) -> list[int]:
    """The clusters of steps with the same mathematics, by their words. The mathematics counts as shared words, one for
    each of its pieces.

    The similarity of two steps is the mean of two measures: the cosine, and the overlap, which divides the number of
    common words by the smaller word count. So a replaced word (red, blue) weighs about twice as much as an added one
    (``so 9 eggs`` and ``so 9 eggs remain``).
    """
    column = {word: index for index, word in enumerate(sorted(frozenset().union(*(step.words for step in contents))))}
    has = np.zeros((len(contents), len(column)))
    for row, step in enumerate(contents):
        has[row, [column[word] for word in step.words]] = 1.0
    # Above 0, so that steps with neither mathematics nor words are alike.
    both = has @ has.T + max(1e-9, _pieces(contents[0].mathematics))
    sizes = np.diag(both)
    cosine = both / np.sqrt(np.outer(sizes, sizes))
    overlap = both / np.minimum.outer(sizes, sizes)
    return _linked((cosine + overlap) / 2)


def _linked(similarities: NDArray[np.floating]) -> list[int]:
    if len(similarities) < 2:
        return [0] * len(similarities)
    from scipy.cluster.hierarchy import fcluster, linkage  # imported here: every process imports this module
    from scipy.spatial.distance import squareform

    # Rounded and exactly symmetric, so that no tie depends on a machine's floating-point summation.
    distances = np.round(np.clip(1.0 - similarities, 0.0, 2.0), 9)
    np.fill_diagonal(distances, 0.0)
    joined = linkage(squareform((distances + distances.T) / 2, checks=False), method="average")
    return [int(label) for label in fcluster(joined, MAX_WORD_DISTANCE, criterion="distance")]


def _pieces(mathematics: frozenset[Formula]) -> int:
    return sum(len(side.replace(" ", "·").split("·")) for formula in mathematics for side in formula)

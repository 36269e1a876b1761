"""Which steps say the same: the clusters of which ETS wants to keep many."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from search.strategies.levels.step_contents import StepContents, contents_of
from search.strategies.levels.step_formulas import Formula

MAX_WORD_DISTANCE = 0.16
"""Mean distance up to which steps of the same mathematics say the same. Chosen on the pairs of
``tests/unit/search/step_pairs.py``."""


def clusters_by_contents(texts: Sequence[str]) -> list[int]:
    """The cluster of each text, numbered from 0 in order of first appearance.

    Steps whose mathematics differs are never in one cluster; of the others, those whose words are alike. What this
    cannot know: that two formulas come to the same when they are worked out, that two words mean the same, who of two
    persons a sum is about, and in which order numbers are meant that stand in prose. In doubt steps are kept apart.
    """
    contents = [contents_of(text) for text in texts]
    alike: dict[frozenset[tuple[str, ...]], list[int]] = {}
    for index, content in enumerate(contents):
        alike.setdefault(content.mathematics, []).append(index)
    labels: list[tuple[int, int]] = [(0, 0)] * len(texts)
    for group, members in enumerate(alike.values()):
        parts = _parted([contents[index] for index in members])
        for index, part in zip(members, parts, strict=True):
            labels[index] = (group, part)
    return numbered(labels)


def numbered(labels: Sequence[Hashable]) -> list[int]:
    """Labels as numbers from 0, in order of first appearance."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(label, len(number)) for label in labels]


def _parted(contents: Sequence[StepContents]) -> list[int]:
    """The clusters of steps of the same mathematics, which counts among their words as much as it has pieces.

    Of two steps' words, the share that both have is taken twice: of the geometric mean of how many they have, which is
    the cosine, and of the fewer. So a word in another's place (red, blue) weighs about twice as much as one that only
    one of them has (``so 9 eggs`` and ``so 9 eggs remain``).
    """
    column = {word: index for index, word in enumerate(sorted(frozenset().union(*(step.words for step in contents))))}
    has = np.zeros((len(contents), len(column)))
    for row, step in enumerate(contents):
        has[row, [column[word] for word in step.words]] = 1.0
    # Never nothing: steps without mathematics and words are alike.
    both = has @ has.T + max(1e-9, _pieces(contents[0].mathematics))
    sizes = np.diag(both)
    cosine = both / np.sqrt(np.outer(sizes, sizes))
    overlap = both / np.minimum.outer(sizes, sizes)
    return _linked((cosine + overlap) / 2)


def _linked(similarities: NDArray[np.floating]) -> list[int]:
    if len(similarities) < 2:
        return [0] * len(similarities)
    # Symmetric to the last bit, and rounded, so that how a machine adds up decides no tie.
    distances = np.round(np.clip(1.0 - similarities, 0.0, 2.0), 9)
    np.fill_diagonal(distances, 0.0)
    joined = linkage(squareform((distances + distances.T) / 2, checks=False), method="average")
    return [int(label) for label in fcluster(joined, MAX_WORD_DISTANCE, criterion="distance")]


def _pieces(mathematics: frozenset[Formula]) -> int:
    return sum(len(side.replace(" ", "·").split("·")) for formula in mathematics for side in formula)

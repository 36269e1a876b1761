"""Which leaves of a level ETS keeps: an integer program over REBASE's weights, held KV and kinds of steps.

Source: Hooper et al. 2025, "ETS: efficient tree search" (arXiv 2502.13575).
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from search.problem import StepClusters
from search.strategies.levels.step_clusters import clusters_by_contents, numbered

MAX_BRANCHINGS = 1_000
"""Of the solver. Not a time limit, so that the same leaves are kept on any machine."""


class Retention(NamedTuple):
    """The problem as ETS states it: the leaves of a level and all nodes above them, the leaves first."""

    values: Sequence[float]
    """Each leaf's share of the width under REBASE; they sum to 1."""
    texts: Sequence[str]
    """Each leaf's step."""
    costs: Sequence[float]
    """What holding each node costs."""
    parents: Sequence[int]
    """The index of each node's parent; the root's is -1."""
    node_weight: float
    diversity_weight: float

    @property
    def held_cost(self) -> float:
        """What a unit of cost takes off the objective."""
        return self.node_weight / max(1.0, sum(self.costs))

    def cluster_worth(self, clusters: Sequence[int]) -> float:
        """What one more cluster is worth; nothing where there is only one kind of step."""
        kinds = len(set(clusters))
        return self.diversity_weight / kinds if kinds > 1 else 0.0


def kept_leaves(given: Sequence[Any], clusters: StepClusters | None = None) -> list[int]:
    """The indices of the leaves to keep, at least one. ``given`` is a `Retention`, perhaps as a plain list.

    Raises:
        ValueError: as `clusters_of`.
    """
    problem = Retention(*given)
    return best_leaves(problem, clusters_of(problem.texts, clusters))


def clusters_of(texts: Sequence[str], clusters: StepClusters | None) -> list[int]:
    """The cluster of each text, numbered from 0; the same ones in whatever order the texts are given.

    Args:
        clusters: takes the place of `clusters_by_contents`. It is given each text once, without white space around it.

    Raises:
        ValueError: ``clusters`` does not return a whole number for each text.
    """
    distinct = sorted({text.strip() for text in texts})
    if len(distinct) == 1:
        return [0] * len(texts)
    found = clusters_by_contents(distinct) if clusters is None else _checked(clusters(distinct), len(distinct))
    cluster_of = dict(zip(distinct, found, strict=True))
    return [cluster_of[text.strip()] for text in texts]


def _checked(returned: Any, count: int) -> list[int]:
    """The clusters that an operator's function has ``returned`` for ``count`` texts, numbered from 0."""
    try:
        labels = [operator.index(label) for label in returned]  # NumPy's integers too, but no float
    except TypeError as error:
        raise ValueError(f"step clusters must be whole numbers, one for each text: {error}") from error
    if len(labels) != count:
        raise ValueError(f"step clusters must be one for each text: there are {len(labels)} for {count} texts")
    return numbered(labels)


def best_leaves(problem: Retention, clusters: Sequence[int]) -> list[int]:
    """The set of leaves of the greatest worth: the values of its leaves, less what the nodes on their paths cost, plus
    what the clusters of its leaves are worth. Solved exactly unless that needs more than ``MAX_BRANCHINGS``, which no
    real tree came near; then the best found until there.

    Only the leaves need to be integers: at an optimum each node above is held just as far as a leaf below it is kept,
    and each cluster covered just as far as its leaves are.
    """
    leaves, nodes, kinds = len(problem.values), len(problem.costs), max(clusters) + 1
    below = [(node, parent) for node, parent in enumerate(problem.parents) if parent >= 0]
    rows = [
        # A node is held if one below it is; a cluster is covered if a leaf of it is kept; a leaf is kept.
        *([(parent, 1.0), (node, -1.0)] for node, parent in below),
        *([(nodes + kind, -1.0)] for kind in range(kinds)),
        [(leaf, 1.0) for leaf in range(leaves)],
    ]
    for leaf, kind in enumerate(clusters):
        rows[len(below) + kind].append((leaf, 1.0))
    entries = [(row, column, factor) for row, terms in enumerate(rows) for column, factor in terms]
    row_of, column_of, factors = zip(*entries, strict=True)
    lower = [0.0] * (len(rows) - 1) + [1.0]
    matrix = coo_array((factors, (row_of, column_of)), (len(rows), nodes + kinds)).tocsr()
    gain = np.concatenate(
        [-problem.held_cost * np.asarray(problem.costs, float), np.full(kinds, problem.cluster_worth(clusters))]
    )
    gain[:leaves] += problem.values
    solution = milp(
        -gain,
        integrality=(np.arange(nodes + kinds) < leaves).astype(int),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, lower),
        options={"mip_rel_gap": 0.0, "node_limit": MAX_BRANCHINGS},
    )
    if solution.x is None:
        return list(range(leaves))
    return [leaf for leaf in range(leaves) if solution.x[leaf] > 0.5]

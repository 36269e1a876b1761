"""Selects the leaves of a level that ETS keeps: an integer program over REBASE weights, held KV and step clusters.

Source: Hooper et al. 2025, "ETS: efficient tree search" (arXiv 2502.13575).
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from search.problem import StepClusters
from search.strategies.levels.step_clusters import clusters_by_contents, numbered

MAX_BRANCHINGS = 1_000
"""Node limit of the MILP solver. A time limit would make the result depend on the machine."""


class Retention(NamedTuple):
    """The optimization problem of ETS, over the leaves of a level and all nodes above them, the leaves first."""

    values: Sequence[float]
    """Each leaf's share of the width under REBASE; they sum to 1."""
    texts: Sequence[str]
    """The text of each leaf's step."""
    costs: Sequence[float]
    """The cost of holding each node's KV, in nodes or tokens."""
    parents: Sequence[int]
    """The index of each node's parent; the root's is -1."""
    node_weight: float
    diversity_weight: float

    @property
    def held_cost(self) -> float:
        """The weight of one unit of cost in the objective."""
        return self.node_weight / max(1.0, sum(self.costs))

    def cluster_worth(self, clusters: Sequence[int]) -> float:
        """The weight of one covered cluster in the objective; 0 if all steps are in one cluster."""
        number = len(set(clusters))
        return self.diversity_weight / number if number > 1 else 0.0


def kept_leaves(given: Sequence[Any], clusters: StepClusters | None = None) -> list[int]:
    """The indices of the leaves to keep, at least one. ``given`` has the fields of a `Retention`, as a tuple or list.

    Raises:
        ValueError: as `clusters_of`.
    """
    problem = Retention(*given)
    return best_leaves(problem, clusters_of(problem.texts, clusters))


def clusters_of(texts: Sequence[str], clusters: StepClusters | None) -> list[int]:
    """The cluster of each text, numbered from 0. The clusters do not depend on the order of the texts.

    Args:
        clusters: replaces `clusters_by_contents`. It is called with the distinct texts, stripped and sorted.

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
    """Validates the clusters that an operator's function ``returned`` for ``count`` texts, and numbers them from 0."""
    try:
        labels = [operator.index(label) for label in returned]  # Accepts NumPy integers, refuses floats.
    except TypeError as error:
        raise ValueError(f"step clusters must be whole numbers, one for each text: {error}") from error
    if len(labels) != count:
        raise ValueError(f"step clusters must be one number for each text: got {len(labels)} for {count} texts")
    return numbered(labels)


def best_leaves(problem: Retention, clusters: Sequence[int]) -> list[int]:
    """The set of leaves with the highest objective: the values of its leaves, minus the costs of all nodes on their
    paths, plus the worth of the covered clusters. Optimal, unless the solver reaches ``MAX_BRANCHINGS``, which no real
    tree comes near; then the best set found until then.

    Only the variables of leaves need to be integers. At an optimum, the variable of a node above equals the largest of
    its children's, and that of a cluster is 1 exactly if a leaf of it is kept.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # imported here: every process imports this module
    from scipy.sparse import coo_array

    leaves, nodes, cluster_count = len(problem.values), len(problem.costs), max(clusters) + 1
    edges = [(node, parent) for node, parent in enumerate(problem.parents) if parent >= 0]
    # Constraints: a parent is held if a child is; a cluster is covered only if a leaf of it is kept; a leaf is kept.
    rows = [
        *([(parent, 1.0), (node, -1.0)] for node, parent in edges),
        *([(nodes + cluster, -1.0)] for cluster in range(cluster_count)),
        [(leaf, 1.0) for leaf in range(leaves)],
    ]
    for leaf, cluster in enumerate(clusters):
        rows[len(edges) + cluster].append((leaf, 1.0))
    entries = [(row, column, factor) for row, terms in enumerate(rows) for column, factor in terms]
    row_of, column_of, factors = zip(*entries, strict=True)
    lower = [0.0] * (len(rows) - 1) + [1.0]
    matrix = coo_array((factors, (row_of, column_of)), (len(rows), nodes + cluster_count)).tocsr()
    gain = np.concatenate(
        [-problem.held_cost * np.asarray(problem.costs, float), np.full(cluster_count, problem.cluster_worth(clusters))]
    )
    gain[:leaves] += problem.values
    solution = milp(
        -gain,
        integrality=(np.arange(nodes + cluster_count) < leaves).astype(int),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, lower),
        options={"mip_rel_gap": 0.0, "node_limit": MAX_BRANCHINGS},
    )
    if solution.x is None:
        return list(range(leaves))
    return [leaf for leaf in range(leaves) if solution.x[leaf] > 0.5]

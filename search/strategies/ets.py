"""ETS: REBASE over the leaves that are worth the KV memory that their paths hold."""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from search.strategies.level_search import scored
from search.strategies.rebase import Balanced
from search.tree import Node, SearchTree

EMBEDDING_SIZE = 512
NGRAM = 3
CLUSTER_DISTANCE = 0.05
"""Cosine distance up to which two steps say the same."""
REMEMBERED = 64
MAX_BRANCHINGS = 1_000
"""Of the solver: it runs where the searches run, and must not hold them up. Not a time limit, so that the same leaves
are kept on any machine."""


class ETS(Balanced):
    """REBASE over the paths that are worth the KV memory they hold.

    Source: Hooper et al. 2025, "ETS: efficient tree search" (arXiv 2502.13575).

    Of each level's leaves it keeps the set that gives the most REBASE weight for the least KV held by paths, and
    the most different steps; the width is then dealt over these as REBASE does.
    """

    name: Literal["ets"] = "ets"
    node_weight: float = Field(1.0, ge=0.0, le=100.0, description="What holding KV costs (lambda_b).")
    diversity_weight: float | None = Field(
        None, ge=0.0, le=100.0, description="What another kind of step is worth (lambda_d); by width if unset."
    )
    node_cost: Literal["nodes", "tokens"] = Field(
        "nodes", description="What a node holds: one each, or the tokens whose KV it keeps."
    )

    def allocation(self, tree: SearchTree, depth: int) -> Mapping[Node, int]:
        if not depth:
            return {tree.root: self.n}
        leaves, width = scored(tree, depth), self.left(tree, depth)
        if width <= 0 or len(leaves) < 2:
            return self.allocated(leaves, width)
        kept = [leaves[index] for index in kept_leaves(self._retention(leaves, width))]
        return dict.fromkeys(leaves, 0) | self.allocated(kept, width)

    def _retention(self, leaves: Sequence[Node], width: int) -> "Retention":
        counts = self.allocated(leaves, width)
        inner: dict[Node, list[int]] = {}
        for index, leaf in enumerate(leaves):
            above = leaf.parent
            while above is not None:
                inner.setdefault(above, []).append(index)
                above = above.parent
        return Retention(
            values=tuple(counts[leaf] / width for leaf in leaves),
            leaf_costs=tuple(map(self._cost, leaves)),
            inner=tuple((self._cost(node), tuple(below)) for node, below in inner.items()),
            clusters=clusters(tuple(leaf.step.text if leaf.step else "" for leaf in leaves)),
            node_weight=self.node_weight,
            diversity_weight=self._diversity,
        )

    def _cost(self, node: Node) -> int:
        if self.node_cost == "nodes":
            return 1
        return len(node.step.token_ids) if node.step else 0  # the prompt is held in any case

    @property
    def _diversity(self) -> float:
        """The paper's values for widths of 16, 64 and 256."""
        if self.diversity_weight is not None:
            return self.diversity_weight
        return 1.5 if self.n <= 32 else 1.4 if self.n <= 128 else 1.45


class Retention(NamedTuple):
    """Which leaves to keep: the problem as ETS states it."""

    values: tuple[float, ...]
    """Each leaf's share of the width under REBASE; they sum to 1."""
    leaf_costs: tuple[int, ...]
    inner: tuple[tuple[int, tuple[int, ...]], ...]
    """Each ancestor of a leaf, the root included: its cost and which leaves are below it."""
    clusters: tuple[int, ...]
    """The cluster of each leaf, from 0."""
    node_weight: float
    diversity_weight: float

    def worth(self, kept: frozenset[int]) -> float:
        """The objective for a set of kept leaves, which the solver maximizes."""
        cost = sum(self.leaf_costs[index] for index in kept)
        cost += sum(cost for cost, below in self.inner if not kept.isdisjoint(below))
        kinds = len({self.clusters[index] for index in kept})
        return (
            sum(self.values[index] for index in kept)
            - self.node_weight * cost / self.whole_cost
            + self.cluster_worth * kinds
        )

    @property
    def whole_cost(self) -> int:
        return max(1, sum(self.leaf_costs) + sum(cost for cost, _ in self.inner))

    @property
    def cluster_worth(self) -> float:
        """What one more cluster is worth; nothing where there is only one kind of step."""
        kinds = len(set(self.clusters))
        return self.diversity_weight / kinds if kinds > 1 else 0.0


@lru_cache(REMEMBERED)
def kept_leaves(problem: Retention) -> tuple[int, ...]:
    """The places of the leaves to keep, at least one: an integer program, solved exactly unless it needs more than
    ``MAX_BRANCHINGS``, which no real tree came near; then the best found until there.

    Only the leaves need to be integers: at an optimum each ancestor is kept just as far as a leaf below it is,
    and each cluster covered just as far as its leaves are kept.
    """
    leaves, inner, kinds = len(problem.values), len(problem.inner), len(set(problem.clusters))
    first_cluster = leaves + inner
    rows: list[list[tuple[int, float]]] = [[(index, 1.0) for index in range(leaves)]]
    lower = [1.0]
    for ancestor, (_, below) in enumerate(problem.inner, start=leaves):
        rows += [[(ancestor, 1.0), (index, -1.0)] for index in below]
        rows.append([(ancestor, -1.0), *((index, 1.0) for index in below)])
        lower += [0.0] * (len(below) + 1)
    for kind in range(kinds):
        members = [index for index, own in enumerate(problem.clusters) if own == kind]
        rows.append([(first_cluster + kind, -1.0), *((index, 1.0) for index in members)])
        lower.append(0.0)
    entries = [(row, column, value) for row, terms in enumerate(rows) for column, value in terms]
    row_of, column_of, values = zip(*entries, strict=True)
    variables = first_cluster + kinds
    scale = problem.node_weight / problem.whole_cost
    gain = np.array(
        [value - scale * cost for value, cost in zip(problem.values, problem.leaf_costs, strict=True)]
        + [-scale * cost for cost, _ in problem.inner]
        + [problem.cluster_worth] * kinds
    )
    solution = milp(
        -gain,
        integrality=np.array([1] * leaves + [0] * (inner + kinds)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(coo_array((values, (row_of, column_of)), (len(rows), variables)).tocsr(), lower),
        options={"mip_rel_gap": 0.0, "node_limit": MAX_BRANCHINGS},
    )
    if solution.x is None:
        return tuple(range(leaves))
    return tuple(index for index in range(leaves) if solution.x[index] > 0.5)


@lru_cache(REMEMBERED)
def clusters(texts: tuple[str, ...]) -> tuple[int, ...]:
    """The cluster of each text, numbered from 0: average linkage on the cosine distance of embeddings."""
    if len(set(texts)) < 2:
        return (0,) * len(texts)
    joined = linkage(np.stack([embedded(text) for text in texts]), method="average", metric="cosine")
    return tuple(int(number) - 1 for number in fcluster(joined, CLUSTER_DISTANCE, criterion="distance"))


def embedded(text: str) -> NDArray[np.float64]:
    """A text as the counts of its character trigrams, hashed to ``EMBEDDING_SIZE`` places."""
    vector = np.zeros(EMBEDDING_SIZE)
    framed = f"  {text.strip()}  "
    for start in range(len(framed) - NGRAM + 1):
        vector[zlib.crc32(framed[start : start + NGRAM].encode()) % EMBEDDING_SIZE] += 1.0
    return vector

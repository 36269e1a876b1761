"""ETS against brute force over all sets of leaves."""

import json
import random
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from search_fakes import search

from search.strategies.levels.retention import Retention, best_leaves, clusters_of, kept_leaves
from search.tree import NodeStatus


def random_problem(rng: random.Random) -> tuple[Retention, list[int]]:
    """Up to 12 leaves of a random tree, and their clusters."""
    count = rng.randint(1, 12)
    allocation = [rng.choice([0, 1, 2, rng.randint(0, 9)]) for _ in range(count)]
    allocation[0] += not sum(allocation)
    levels = [count, *(rng.randint(1, 4) for _ in range(rng.randint(0, 3))), 1]
    parents: list[int] = []
    for depth, size in enumerate(levels[:-1]):
        above = sum(levels[: depth + 1])
        parents += [rng.randrange(above, above + levels[depth + 1]) for _ in range(size)]
    kinds = [rng.randint(0, 3) for _ in range(count)]
    problem = Retention(
        values=[share / sum(allocation) for share in allocation],
        texts=[""] * count,
        costs=[rng.choice([0, 1, rng.randint(1, 40)]) for _ in range(sum(levels))],
        parents=[*parents, -1],
        node_weight=rng.choice([0.0, 0.5, 1.0, 3.0]),
        diversity_weight=rng.choice([0.0, 1.0, 1.5]),
    )
    names = sorted(set(kinds))
    return problem, [names.index(kind) for kind in kinds]


def objective(problem: Retention, kept: Sequence[int], clusters: Sequence[int]) -> float:
    """Objective of ETS for a set of kept leaves."""
    held: set[int] = set()
    for leaf in kept:
        node = leaf
        while node >= 0 and node not in held:
            held.add(node)
            node = problem.parents[node]
    return (
        sum(problem.values[leaf] for leaf in kept)
        - problem.held_cost * sum(problem.costs[node] for node in held)
        + problem.cluster_worth(clusters) * len({clusters[leaf] for leaf in kept})
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_kept_leaves_are_the_best_set(seed: int) -> None:
    problem, clusters = random_problem(random.Random(seed))
    leaves = range(len(problem.values))
    sets = chain.from_iterable(combinations(leaves, size) for size in range(1, len(leaves) + 1))
    best = max(objective(problem, kept, clusters) for kept in sets)
    kept = best_leaves(problem, clusters)
    assert kept
    assert objective(problem, kept, clusters) == pytest.approx(best, abs=1e-7)


def test_the_objective_counts_ancestors_once_and_clusters_once() -> None:
    problem = Retention([0.5, 0.3, 0.2], [""] * 3, [1] * 5, [3, 3, 4, 4, -1], 1.0, 1.5)
    assert objective(problem, [0], [0, 0, 1]) == pytest.approx(0.5 - 3 / 5 + 0.75)
    assert objective(problem, [0, 1], [0, 0, 1]) == pytest.approx(0.8 - 4 / 5 + 0.75)
    assert objective(problem, [0, 2], [0, 0, 1]) == pytest.approx(0.7 - 4 / 5 + 1.5)


def test_of_equal_leaves_one_per_cluster_is_kept() -> None:
    """Three paths of equal value, two of which say the same; with a high cost of memory, one of these two is
    dropped."""
    texts = ["So 12 + 7 = 19 apples.", "We get 12 + 7 = 19 apples.", "So 12 + 7 = 18 apples."]
    problem = Retention([0.3, 0.35, 0.35], texts, [1] * 4, [3, 3, 3, -1], 1.5, 1.5)
    assert kept_leaves(problem) == [1, 2]
    assert kept_leaves(json.loads(json.dumps(problem))) == [1, 2]
    blind = problem._replace(diversity_weight=0.0)
    assert len(kept_leaves(blind)) == 1


@pytest.mark.parametrize("as_returned", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_a_configured_function_makes_the_clusters(as_returned: Any) -> None:
    asked: list[list[str]] = []

    def vowel_or_not(texts: Sequence[str]) -> Any:
        asked.append(list(texts))
        return as_returned([7 if text in "aeiou" else -1 for text in texts])

    assert clusters_of(["c", "a", "b ", "c", " a", "e"], vowel_or_not) == [1, 0, 1, 1, 0, 0]
    assert asked == [["a", "b", "c", "e"]]
    assert clusters_of(["a", " a"], vowel_or_not) == [0, 0]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([0], "one number for each text: got 1 for 2 texts"),
        ([0, 1, 2], "one number for each text: got 3 for 2 texts"),
        (["0", "1"], "must be whole numbers"),
        ([0.0, 1.0], "must be whole numbers"),
        (np.zeros((2, 3)), "must be whole numbers"),
        (None, "must be whole numbers"),
    ],
    ids=["too few", "too many", "texts", "floats", "rows", "nothing"],
)
def test_clusters_that_are_not_one_integer_per_text_are_refused(returned: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clusters_of(["a", "b"], lambda texts: returned)


@pytest.mark.parametrize("node_cost", ["nodes", "tokens"])
def test_a_higher_cost_of_memory_keeps_fewer_paths(node_cost: str) -> None:
    open_paths = []
    for weight in (0.0, 20.0):
        paths = 0
        for seed in range(5):
            wanted = {"strategy": "ets", "n": 12, "seed": seed, "node_cost": node_cost, "node_weight": weight}
            _, outcome = search(wanted)
            paths += sum(bool(node.children) for node in outcome.tree.with_status(NodeStatus.OPEN))
        open_paths.append(paths)
    assert open_paths[1] < open_paths[0]

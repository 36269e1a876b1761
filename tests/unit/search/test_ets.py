"""ETS against brute force over all sets of leaves."""

import random
from itertools import chain, combinations

import pytest
from search_fakes import search

from search.strategies.ets import Retention, clusters, kept_leaves
from search.tree import NodeStatus


def random_problem(rng: random.Random) -> Retention:
    """Up to 12 leaves below random ancestors."""
    count = rng.randint(1, 12)
    allocation = [rng.choice([0, 1, 2, rng.randint(0, 9)]) for _ in range(count)]
    allocation[0] += not sum(allocation)
    ancestors = [tuple(range(count))]
    for _ in range(rng.randint(0, 8)):
        inside = rng.choice(list(ancestors))
        ancestors.append(tuple(sorted(rng.sample(inside, rng.randint(1, len(inside))))))
    kinds = [rng.randint(0, 3) for _ in range(count)]
    names = sorted(set(kinds))
    return Retention(
        values=tuple(share / sum(allocation) for share in allocation),
        leaf_costs=tuple(rng.choice([1, rng.randint(1, 40)]) for _ in range(count)),
        inner=tuple((rng.choice([0, 1, rng.randint(1, 40)]), below) for below in ancestors),
        clusters=tuple(names.index(kind) for kind in kinds),
        node_weight=rng.choice([0.0, 0.5, 1.0, 3.0]),
        diversity_weight=rng.choice([0.0, 1.0, 1.5]),
    )


@pytest.mark.parametrize("seed", range(150))
def test_the_kept_leaves_are_the_best_of_all_sets(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    leaves = range(len(problem.values))
    sets = chain.from_iterable(combinations(leaves, size) for size in range(1, len(leaves) + 1))
    best = max(problem.worth(frozenset(kept)) for kept in sets)
    kept = kept_leaves(problem)
    assert kept
    assert problem.worth(frozenset(kept)) == pytest.approx(best, abs=1e-7)


def test_steps_that_say_the_same_are_one_cluster() -> None:
    assert clusters(("12 + 7 = 19\n\n", "12 + 7 = 19", "so the answer is four")) in {(0, 0, 1), (1, 1, 0)}
    assert clusters(("same", "same")) == (0, 0)
    assert clusters(("",)) == (0,)
    assert len(set(clusters(("", "x", "yy")))) == 3


def test_worth_counts_ancestors_once_and_clusters_once() -> None:
    problem = Retention((0.5, 0.3, 0.2), (1, 1, 1), ((1, (0, 1, 2)), (1, (0, 1))), (0, 0, 1), 1.0, 1.5)
    assert problem.worth(frozenset({0})) == pytest.approx(0.5 - 3 / 5 + 0.75)
    assert problem.worth(frozenset({0, 1})) == pytest.approx(0.8 - 4 / 5 + 0.75)
    assert problem.worth(frozenset({0, 2})) == pytest.approx(0.7 - 4 / 5 + 1.5)


@pytest.mark.parametrize("node_cost", ["nodes", "tokens"])
def test_a_dearer_memory_keeps_fewer_paths(node_cost: str) -> None:
    open_paths = []
    for weight in (0.0, 20.0):
        paths = 0
        for seed in range(5):
            wanted = {"strategy": "ets", "n": 12, "seed": seed, "node_cost": node_cost, "node_weight": weight}
            _, outcome = search(wanted)
            paths += sum(bool(node.children) for node in outcome.tree.with_status(NodeStatus.OPEN))
        open_paths.append(paths)
    assert open_paths[1] < open_paths[0]

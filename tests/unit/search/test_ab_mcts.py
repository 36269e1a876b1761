"""AB-MCTS against the ``treequest`` package, with the same rewards and the same random draws."""

import math
import random
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
import search_fakes
from scipy.stats import ks_2samp
from search_fakes import search
from treequest.algos.ab_mcts_a.algo import ABMCTSA
from treequest.algos.ab_mcts_a.prob_state import PriorConfig, ProbabilisticDist

from search.settings import parse_search
from search.snapshot import restore_tree, save_tree
from search.strategies.base import Expansion
from search.strategies.mcts.ab_mcts import ABMCTS, Arms, chosen_parent, rewards_of
from search.strategies.mcts.arm_posteriors import MANY, PRIORS, Belief, Odds, Posterior, Rewards, columns
from search.tree import (
    ContextNode,
    ExpansionRequest,
    Node,
    NodeId,
    NodeStatus,
    SearchTree,
    Step,
    StepEnd,
)

ORDER = {"gaussian": ("m", "kappa", "nu", "tau_square"), "beta": ("a", "b")}


class Turn:
    """Number of nodes so far. A draw depends on it and on the distribution, so that both sides draw the same."""

    number = 0


def draw_from(parameters: tuple[float, ...]) -> float:
    parameters = tuple(float(f"{parameter:.6f}") for parameter in parameters)
    rng = random.Random(repr((Turn.number, parameters)))
    if len(parameters) == 2:
        return rng.betavariate(*parameters)
    mean, kappa, _, tau_squared = parameters
    return rng.gauss(mean, math.sqrt(tau_squared / kappa))


def rng_of(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def reward_at(node: NodeId) -> float:
    return random.Random(f"reward {node}").choice([0.0, 0.1, 0.5, 0.9, 1.0, random.Random(f"{node}").random()])


def theirs(posterior: str, steps: int, root: NodeId) -> list[NodeId]:
    """The nodes in the order in which ``treequest`` creates them."""
    made: list[NodeId] = []

    def generate(state: NodeId | None) -> tuple[NodeId, float]:
        parent = root if state is None else state
        node = (*parent, sum(other[:-1] == parent for other in made))
        made.append(node)
        return node, reward_at(node)

    algorithm: Any = ABMCTSA(dist_type=posterior)  # type: ignore[arg-type]
    state = algorithm.init_tree()
    for Turn.number in range(steps):
        state = algorithm.step(state, {"step": generate}, inplace=True)
    return [node[len(root) :] for node in made]


def ours(posterior: str, steps: int, root: NodeId) -> list[NodeId]:
    tree = SearchTree()
    strategy = parse_search({"strategy": "ab_mcts", "generation": "step"}).strategy
    for Turn.number in range(steps):
        tree.fold(Arms, strategy)
        [node] = tree.request(chosen_parent(tree.root, Posterior(posterior), random.Random(0)), 1)
        tree.write(node, Step((1,), "x\n\n", StepEnd.DELIMITER))
        tree.complete(node, reward_at((*root, *node.id)))
    return [node.id for node in tree.nodes]


def named(solution: Node) -> NodeId:
    """The id that ``treequest`` gives a solution: its number below the solution that it improves."""
    above = () if solution.context is None else named(solution.context.reading.sources[0])
    return (*above, solution.id[-1])


def ours_refined(posterior: str, steps: int, root: NodeId) -> list[NodeId]:
    """As `ours`, of whole solutions, each a node."""
    tree = SearchTree(7)
    strategy = parse_search(
        {"strategy": "ab_mcts", "generation": "refine", "posterior": posterior, "iterations": steps}
    ).strategy
    for Turn.number in range(steps):
        [expansion] = strategy.select(tree)
        below = expansion.node
        if expansion.reads is not None:
            below = ContextNode((), None, reading=expansion.reads)
            tree.begin(below)
        [node] = tree.request(below, expansion.count)
        node.request = ExpansionRequest(True, 9, 1)
        tree.write(node, Step((1,), f"{Turn.number}", StepEnd.END_OF_SEQUENCE), ends=True)
        tree.complete(node, reward_at((*root, *named(node))))
    return [named(node) for node in tree.nodes]


@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
@pytest.mark.parametrize("case", range(12))
def test_the_same_draws_make_the_same_choices(posterior: str, case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ProbabilisticDist, "draw_sample", lambda self: draw_from(tuple(self.params[name] for name in ORDER[posterior]))
    )
    for kind in (Belief, Odds):
        monkeypatch.setattr(kind, "draw", lambda self, rng: draw_from(self))
    root = (case,)
    chosen = ours(posterior, 64, root)
    assert chosen == theirs(posterior, 64, root)
    assert max(map(len, chosen)) > 1
    assert case > 2 or ours_refined(posterior, 64, root) == chosen


@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_posteriors_equal_those_of_treequest(posterior: str) -> None:
    rng = random.Random(3)
    for _ in range(200):
        rewards = [rng.random() for _ in range(rng.randint(0, 30))]
        peer = ProbabilisticDist(PriorConfig(dist_type=posterior))  # type: ignore[arg-type]
        for reward in rewards:
            peer.tell_observation(reward)
        own = PRIORS[Posterior(posterior)].after(reduce(Rewards.with_one, rewards, Rewards()))
        assert tuple(own) == pytest.approx([peer.params[name] for name in ORDER[posterior]], abs=1e-12)


def test_draws_follow_the_posterior() -> None:
    rng = random.Random(4)
    belief = Belief(mean=0.4, kappa=11.0, nu=11.0, tau_squared=0.05)
    draws = [belief.draw(rng) for _ in range(20_000)]
    mean = sum(draws) / len(draws)
    # A Student t with nu degrees of freedom, scaled: its variance is tau^2 / kappa * nu / (nu - 2).
    variance = sum((draw - mean) ** 2 for draw in draws) / len(draws)
    assert mean == pytest.approx(0.4, abs=0.003)
    assert variance == pytest.approx(0.05 / 11 * 11 / 9, rel=0.05)


@pytest.mark.parametrize("posterior", Posterior)
@pytest.mark.parametrize("rewards", [[], [0.7], [0.1, 0.9, 0.4, 0.4, 0.6]])
def test_drawing_many_arms_at_once_has_the_same_distribution(posterior: Posterior, rewards: list[float]) -> None:
    prior, arm = PRIORS[posterior], reduce(Rewards.with_one, rewards, Rewards())
    one, number = random.Random(5), 20_000
    alone = [prior.after(arm).draw(one) for _ in range(number)]
    at_once = prior.draw_many(columns([arm] * number), rng_of(5))
    # Kolmogorov-Smirnov: equal distributions give a smaller p-value in one of a million pairs of samples.
    assert ks_2samp(alone, at_once).pvalue > 1e-6
    others = prior.draw_many(columns([arm.with_one(0.0)] * number), rng_of(5))
    assert ks_2samp(alone, others).pvalue < 1e-6, "and others are told from them"


@pytest.mark.parametrize("posterior", Posterior)
def test_each_of_many_arms_draws_from_its_own_rewards(posterior: Posterior) -> None:
    arms = columns([Rewards(400, 400 * mean, 400 * mean**2) for mean in (0.1, 0.5, 0.9)])
    draws = np.array([PRIORS[posterior].draw_many(arms, rng_of(seed)) for seed in range(50)])
    assert draws.mean(axis=0) == pytest.approx([0.1, 0.5, 0.9], abs=0.02)


def wide_tree(arms: int) -> SearchTree:
    """A tree whose root has ``arms`` children, all with much better rewards than a new child would get."""
    tree = SearchTree()
    tree.fold(Arms, parse_search({"strategy": "ab_mcts"}).strategy)
    for node in tree.request(tree.root, arms):
        tree.write(node, Step((1,), f"{node.id}\n\n", StepEnd.DELIMITER))
        tree.complete(node, 0.5)
        rewards_of(node).own = Rewards(50, 25.0, 12.5 + node.id[0] / arms)
        rewards_of(tree.root).add(node)
    rewards_of(tree.root).generated = Rewards(500, 0.0, 0.0)
    rewards_of(tree.root).continued = Rewards(500, 250.0, 125.0)
    return tree


@pytest.mark.parametrize("posterior", Posterior)
def test_among_hundreds_of_children_the_choice_follows_the_seed(posterior: Posterior) -> None:
    trees = wide_tree(300), wide_tree(300)
    first, second = (
        [chosen_parent(tree.root, posterior, random.Random(seed)).id for seed in range(40)] for tree in trees
    )
    assert first == second
    assert len(set(first)) > 20


def test_many_arms_are_drawn_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = Belief.draw
    monkeypatch.setattr(Belief, "draw", lambda belief, rng: drawn.append(belief) or draw(belief, rng))
    chosen_parent(wide_tree(MANY - 1).root, Posterior.GAUSSIAN, random.Random(1))
    assert len(drawn) == 2 + MANY - 1
    drawn.clear()
    chosen_parent(wide_tree(1000).root, Posterior.GAUSSIAN, random.Random(1))
    assert len(drawn) == 2, "whether to go on, and nothing for each child"


@pytest.mark.parametrize("generation", ["step", "solution"])
def test_the_table_of_many_arms_has_the_rewards_of_each_child(generation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the source of their rewards: their own, from below, or of repeated steps."""
    monkeypatch.setattr("search.strategies.mcts.ab_mcts.MANY", 3)
    wanted = {"strategy": "ab_mcts", "iterations": 150, "generation": generation}
    widest = 0
    for seed in range(4):
        _, outcome = search({**wanted, "seed": seed})
        outcome.tree.fold(Arms, parse_search(wanted).strategy)
        for node in (outcome.tree.root, *outcome.tree.nodes):
            if node.first is not node:
                continue
            arms = rewards_of(node)
            assert set(arms.below) == {child for child in node.distinct_children if child.status is NodeStatus.OPEN}
            assert (arms.table is None) == (len(arms.below) < 3)
            if arms.table is not None:
                own = columns([rewards_of(child).own for child in arms.below])
                np.testing.assert_array_equal(arms.table[:, : len(arms.below)], own)
                widest = max(widest, len(arms.below))
    assert widest > 6


@pytest.mark.parametrize("paths", [1, 3])
def test_writes_exactly_the_allowed_number_of_steps(paths: int) -> None:
    wanted: Mapping[str, object] = {"strategy": "ab_mcts", "iterations": 20, "paths": paths, "generation": "step"}
    for seed in range(5):
        bench, outcome = search({**wanted, "seed": seed})
        assert len(outcome.tree) == 20
        most = max(sum(len(e.branches) for e in request.expansions) for request in bench.generator.requests)
        assert most == paths


def test_a_generation_is_a_whole_answer_and_its_steps_can_be_expanded() -> None:
    gone_back = 0
    for seed in range(8):
        _, outcome = search({"strategy": "ab_mcts", "iterations": 12, "seed": seed})
        generations = [node for node in outcome.tree.nodes if node.request is not None]
        assert len(generations) == 12
        assert len(outcome.tree.with_status(NodeStatus.TERMINAL)) == 12
        gone_back += sum(node.depth > 1 for node in generations)
    assert gone_back


def test_another_seed_draws_differently() -> None:
    shapes = set()
    for seed in range(4):
        _, outcome = search({"strategy": "ab_mcts", "iterations": 30, "seed": seed})
        shapes.add(tuple(node.id for node in outcome.tree.nodes))
    assert len(shapes) > 1


def test_a_text_that_a_later_generation_represents_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation below an earlier sibling may write a step again that another generation has written, under a lower
    id. The choices are those of the whole tree, taken at once."""

    def write_step(seed: int, prefix: Sequence[int], max_tokens: int) -> Step:
        rng = search_fakes.seeded_rng("one of two", seed, tuple(prefix))
        kind = rng.randrange(2)
        if rng.random() < 1 / 4:
            return Step((kind,), f"\\boxed{{{kind}}}", StepEnd.END_OF_SEQUENCE)
        return Step((kind,), f"{kind}\n\n", StepEnd.DELIMITER)

    select = ABMCTS.select

    def checked(self: ABMCTS, tree: SearchTree) -> Sequence[Expansion]:
        chosen = select(self, tree)
        if not tree.in_flight:
            again = select(self, restore_tree(save_tree(tree)))
            assert [(each.node.id, each.count) for each in again] == [(each.node.id, each.count) for each in chosen]
        return chosen

    monkeypatch.setattr(search_fakes, "write_step", write_step)
    monkeypatch.setattr(ABMCTS, "select", checked)
    for seed in (4, 7, 43, 44, 81):
        _, outcome = search({"strategy": "ab_mcts", "iterations": 20, "max_depth": 6, "seed": seed})
        assert outcome.stop_reason == "finished"

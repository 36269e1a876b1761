"""AB-MCTS against the ``treequest`` package, under the same rewards and the same random draws."""

import math
import random
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
from search_fakes import search
from treequest.algos.ab_mcts_a.algo import ABMCTSA
from treequest.algos.ab_mcts_a.prob_state import PriorConfig, ProbabilisticDist

from search.settings import parse_search
from search.strategies.ab_mcts import PRIORS, Arms, Belief, Odds, Posterior, Rewards, chosen_parent
from search.tree import NodeId, NodeStatus, SearchTree, Step, StepEnd

ORDER = {"gaussian": ("m", "kappa", "nu", "tau_square"), "beta": ("a", "b")}


class Turn:
    """How many nodes there are: a draw depends on this and on the distribution, so that both sides draw the same."""

    number = 0


def draw_from(parameters: tuple[float, ...]) -> float:
    parameters = tuple(float(f"{parameter:.6f}") for parameter in parameters)
    rng = random.Random(repr((Turn.number, parameters)))
    if len(parameters) == 2:
        return rng.betavariate(*parameters)
    mean, kappa, _, tau_squared = parameters
    return rng.gauss(mean, math.sqrt(tau_squared / kappa))


def reward_at(node: NodeId) -> float:
    return random.Random(f"reward {node}").choice([0.0, 0.1, 0.5, 0.9, 1.0, random.Random(f"{node}").random()])


def theirs(posterior: str, steps: int, root: NodeId) -> list[NodeId]:
    """The nodes in the order in which treequest makes them."""
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


@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_posteriors_equal_theirs(posterior: str) -> None:
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


@pytest.mark.parametrize("paths", [1, 3])
def test_writes_as_many_steps_as_it_may_and_no_more(paths: int) -> None:
    wanted: Mapping[str, object] = {"strategy": "ab_mcts", "iterations": 20, "paths": paths, "generation": "step"}
    for seed in range(5):
        bench, outcome = search({**wanted, "seed": seed})
        assert len(outcome.tree) == 20
        most = max(sum(len(e.branches) for e in request.expansions) for request in bench.generator.requests)
        assert most == paths


def test_a_generation_is_a_whole_answer_whose_steps_can_be_gone_back_to() -> None:
    gone_back = 0
    for seed in range(8):
        _, outcome = search({"strategy": "ab_mcts", "iterations": 12, "seed": seed})
        generations = [node for node in outcome.tree.nodes if node.request is not None]
        assert len(generations) == 12
        assert len(outcome.tree.with_status(NodeStatus.TERMINAL)) == 12
        gone_back += sum(node.depth > 1 for node in generations)
    assert gone_back


def test_another_seed_draws_otherwise() -> None:
    shapes = set()
    for seed in range(4):
        _, outcome = search({"strategy": "ab_mcts", "iterations": 30, "seed": seed})
        shapes.add(tuple(node.id for node in outcome.tree.nodes))
    assert len(shapes) > 1

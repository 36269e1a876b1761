"""A budget that runs out leaves a finished path, if one fits into it."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from search_fakes import Bench, FakeGenerator, reward_of, search, seeded_rng

from search.ports import Child, StopCondition
from search.run.report import SearchOutcome
from search.run.step_hook import StepHook
from search.settings import parse_search
from search.snapshot import restore_tree, save_tree, tree_as_json
from search.strategies.catalog import STRATEGIES
from search.tree import NodeStatus, Step, StepEnd

STEP_TOKENS = 10
STEPS = 4
PATH_TOKENS = STEPS * STEP_TOKENS
BUDGETS = (40, 41, 55, 80, 95, 120, 200, 320, 500)
STEPWISE = sorted(
    name for name, strategy in STRATEGIES.items() if strategy.stop_condition is StopCondition.STEP and name != "ab_mcts"
)


class EvenGenerator(FakeGenerator):
    """Every path has `STEPS` steps of `STEP_TOKENS` tokens, and an answer in the last one."""

    def __init__(self, order: int = 0, longer: int = 0, rambling: bool = False) -> None:
        """``longer``: greatest number of tokens that a step may have beyond `STEP_TOKENS`. ``rambling``: the first
        child of the root never ends a step."""
        super().__init__(order)
        self._longer = longer
        self._rambling = rambling

    def _write(self, request: Any, expansion: Any, branch: Any) -> Child:
        prefix, steps = expansion.prefix, [self._step(expansion, branch, branch.max_tokens)]
        while request.stop_condition is StopCondition.SOLUTION and steps[-1].end is StepEnd.DELIMITER:
            left = branch.max_tokens - sum(len(step.token_ids) for step in steps)
            after = expansion._replace(parent=(*expansion.parent, *([0] * len(steps))), prefix=(*prefix, len(steps)))
            steps.append(self._step(after, branch, left))
        self.tokens += sum(len(step.token_ids) for step in steps)
        if request.logprobs:
            steps = [step._replace(logprob=-1.0) for step in steps]
        return Child(expansion.parent, branch.index, tuple(steps), 0)

    def _step(self, expansion: Any, branch: Any, max_tokens: int) -> Step:
        rng = seeded_rng(branch.seed, expansion.prefix)
        depth = len(expansion.parent) + 1
        wanted = STEP_TOKENS + rng.randint(0, self._longer)
        tokens = tuple(rng.randint(10, 99) for _ in range(min(wanted, max_tokens)))
        text = "-".join(map(str, tokens))
        if self._rambling and (*expansion.parent, branch.index)[0] == 0:
            return Step((7,) * max_tokens, text, StepEnd.LENGTH)
        if wanted > max_tokens:
            return Step(tokens, text, StepEnd.LENGTH)
        if depth == STEPS:
            return Step(tokens, f"so it is \\boxed{{{rng.randint(0, 4)}}}", StepEnd.END_OF_SEQUENCE)
        return Step(tokens, f"{text}\n\n", StepEnd.DELIMITER)


def run(settings: dict[str, Any], order: int = 0, tree: Any = None, **model: Any) -> tuple[Bench, SearchOutcome]:
    async def main() -> tuple[Bench, SearchOutcome]:
        bench = Bench(order)
        bench.generator = EvenGenerator(order, **model)
        outcome = await bench.search(settings, **({} if tree is None else {"tree": tree}))
        if tree is None:
            bench.check_idle()
        return bench, outcome

    return asyncio.run(main())


def ends(outcome: SearchOutcome) -> int:
    """Number of ways down the tree."""
    return sum(node.step is not None and not node.asked_below and not node.children for node in outcome.tree.nodes)


@pytest.mark.parametrize("tokens", BUDGETS)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_has_an_answer_from_one_path_on_and_is_a_search_from_two_on(strategy: str, tokens: int) -> None:
    bench, outcome = run({"strategy": strategy, "budget": {"tokens": tokens}})
    assert outcome.selection.answer is not None
    assert (outcome.ended, outcome.partial) == (True, False)
    assert outcome.cost.generated_tokens == bench.generator.tokens <= tokens
    assert outcome.stop_reason == "tokens" or strategy in ("greedy", "ab_mcts"), "these have done what they do"
    assert ends(outcome) >= (2 if tokens >= 2 * PATH_TOKENS and strategy != "greedy" else 1)


@pytest.mark.parametrize("strategy", STEPWISE)
def test_a_budget_below_one_path_is_spent_and_cut_off(strategy: str) -> None:
    for tokens in (1, 9, 10, 11, 39):
        bench, outcome = run({"strategy": strategy, "budget": {"tokens": tokens}})
        assert outcome.cost.generated_tokens == bench.generator.tokens == tokens
        assert (outcome.stop_reason, outcome.partial) == ("tokens", True)
        assert outcome.selection.answer is None


@pytest.mark.parametrize("strategy", STEPWISE)
def test_what_can_only_be_one_path_is_one_path(strategy: str) -> None:
    _, outcome = run({"strategy": strategy, "budget": {"tokens": PATH_TOKENS}})
    assert (outcome.cost.generated_tokens, outcome.cost.answer_tokens) == (PATH_TOKENS, PATH_TOKENS)
    assert ends(outcome) == 1


@pytest.mark.parametrize("tokens", [60, 130, 250, 400])
@pytest.mark.parametrize("strategy", STEPWISE)
def test_one_seed_gives_one_tree_in_any_order_and_resumed_at_any_event(strategy: str, tokens: int) -> None:
    settings = {"strategy": strategy, "budget": {"tokens": tokens}}
    saved: list[str] = []

    async def main() -> SearchOutcome:
        bench = Bench(1)
        bench.generator = EvenGenerator(1, longer=3)
        return await bench.search(settings, on_event=lambda _: saved.append(json.dumps(save_tree(bench.tree))))

    whole = asyncio.run(main())
    assert any(node.is_lookahead for node in whole.tree.nodes)
    _, again = run(settings, 2, longer=3)
    assert tree_as_json(again.tree) == tree_as_json(whole.tree)
    for number, snapshot in enumerate(saved[:: max(1, len(saved) // 4)]):
        _, resumed = run(settings, 3 + number, restore_tree(json.loads(snapshot)), longer=3)
        assert tree_as_json(resumed.tree) == tree_as_json(whole.tree)
        assert resumed.selection.node.id == whole.selection.node.id
        assert (resumed.stop_reason, resumed.partial) == (whole.stop_reason, whole.partial)


@pytest.mark.parametrize("strategy", STEPWISE)
def test_the_strategy_decides_as_without_a_budget(strategy: str) -> None:
    """Its own nodes are the first ones of the search without a budget."""
    _, free = run({"strategy": strategy})
    own = [node.id for node in free.tree.nodes]
    for tokens in (100, 200, 400):
        _, outcome = run({"strategy": strategy, "budget": {"tokens": tokens}})
        granted = [node.id for node in outcome.tree.nodes if not node.is_lookahead]
        assert granted == own[: len(granted)]


@pytest.mark.parametrize("strategy", ["beam_search", "dvts"])
@pytest.mark.parametrize("lookahead", [1, 2])
def test_a_lookahead_ranks_by_its_own_steps_only(strategy: str, lookahead: int) -> None:
    settings = {"strategy": strategy, "n": 4, "m": 2, "lookahead": lookahead}
    _, free = run(settings)
    own = [node.id for node in free.tree.nodes if not node.is_lookahead]
    for tokens in (120, 200, 300):
        _, outcome = run(settings | {"budget": {"tokens": tokens}})
        assert outcome.selection.answer is not None
        granted = [node.id for node in outcome.tree.nodes if not node.is_lookahead]
        assert granted == own[: len(granted)]


def test_the_best_path_is_finished() -> None:
    _, outcome = run({"strategy": "beam_search", "n": 8, "m": 2, "budget": {"tokens": 120}})
    finished = [node for node in outcome.tree.nodes if node.is_lookahead and node.status is NodeStatus.TERMINAL]
    leaves = [node for node in outcome.tree.level(1) if not node.children]
    begun = {node.id[0] for node in finished}
    last = max(begun)
    assert outcome.tree[(last,)].reward == max(node.reward or 0.0 for node in leaves if node.id != (0,))
    assert len(begun) == 2, "the first child shows how long a path is"


def test_a_step_that_never_ends_does_not_take_the_answer() -> None:
    _, outcome = run({"strategy": "beam_search", "budget": {"tokens": 320}, "max_step_tokens": 128}, rambling=True)
    assert outcome.selection.answer is not None
    assert outcome.cost.generated_tokens <= 320


def test_a_budget_of_nodes_leaves_a_finished_path() -> None:
    for nodes in range(1, 30):
        _, outcome = run({"strategy": "beam_search", "n": 8, "m": 2, "budget": {"nodes": nodes}})
        assert outcome.cost.nodes <= nodes
        assert (outcome.selection.answer is not None, outcome.partial) == (True, False)
        assert outcome.stop_reason == "nodes"


def test_paths_that_vary_are_finished_in_most_cases() -> None:
    finished = 0
    for seed in range(60):
        settings = {"strategy": "beam_search", "budget": {"tokens": 150 + 5 * seed}, "seed": seed}
        _, outcome = run(settings, longer=5)
        finished += outcome.selection.answer is not None
        assert outcome.cost.generated_tokens <= 150 + 5 * seed
    assert finished == 60, "the first finished path is an answer already"


def test_random_lengths_never_exceed_a_budget() -> None:
    rng = random.Random(1)
    for _ in range(100):
        strategy, tokens = rng.choice(sorted(STRATEGIES)), rng.randint(1, 200)
        bench, outcome = search({"strategy": strategy, "budget": {"tokens": tokens}, "seed": rng.randint(0, 1 << 30)})
        assert outcome.cost.generated_tokens == bench.generator.tokens <= tokens
        assert outcome.partial == (outcome.stop_reason == "tokens" and not outcome.ended)


def test_without_a_finished_path_of_its_own_a_search_is_answered_by_what_the_budget_finished() -> None:
    settings = {"strategy": "mcts", "budget": {"tokens": 130}}
    _, outcome = run(settings)
    strategy = parse_search(settings).strategy
    assert strategy.candidates(outcome.tree) == []
    assert outcome.selection.node.is_lookahead
    assert sum(group.votes for group in outcome.selection.groups) == sum(
        node.is_lookahead and node.status is NodeStatus.TERMINAL for node in outcome.tree.nodes
    )


def rewards_of(texts: Sequence[str]) -> list[float]:
    return [reward_of(texts[: index + 1]) for index in range(len(texts))]


def test_finished_paths_are_scored_to_their_end() -> None:
    _, outcome = run({"strategy": "rebase", "budget": {"tokens": 90}})
    node = outcome.selection.node
    assert node.rewards == rewards_of([step.text for step in node.steps])


def test_a_step_hook_sees_the_steps_of_a_path_that_is_finished() -> None:
    seen: list[str] = []

    async def function(question: str, path: Sequence[str], step: str) -> None:
        seen.append(step)

    async def main() -> SearchOutcome:
        bench = Bench()
        bench.generator = EvenGenerator()
        settings = {"strategy": "beam_search", "budget": {"tokens": PATH_TOKENS}}
        return await bench.search(settings, step_hook=StepHook(function, lambda text: []))

    outcome = asyncio.run(main())
    texts = [step.text for step in outcome.selection.node.steps]
    assert (seen, len(texts), outcome.ended) == (texts[:-1], STEPS, True)
    assert outcome.cost.unhooked_steps == 0

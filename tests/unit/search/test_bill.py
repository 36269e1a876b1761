"""What a search cost, beside what one sample would have."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, search
from search_settings import SEARCHES

from search.budget import BudgetMeter
from search.ports import ChildGroup, ExpandRequest
from search.rewards import RewardRows, ScoringCost
from search.run import runner
from search.run.bill import Price, Prices, path_tokens
from search.run.report import SearchCost
from search.settings import parse_search
from search.tree import NodeStatus


def test_a_search_of_one_sample_costs_one_sample() -> None:
    bench, outcome = search({"strategy": "greedy"})
    cost = outcome.cost
    assert cost.sample_tokens == cost.written_tokens == bench.generator.tokens > 0
    assert cost.prompt_tokens == len(PROMPT)
    assert cost.read_tokens == 1, "all but the last token of each prefix are cached"


@pytest.mark.parametrize("name", ["self_consistency", "best_of_n"])
def test_one_of_many_samples_is_their_mean(name: str) -> None:
    bench, outcome = search({"strategy": name, "n": 8})
    assert outcome.cost.sample_tokens == round(bench.generator.tokens / 8, 1)
    assert outcome.cost.written_tokens == bench.generator.tokens


def test_paths_of_the_same_text_count_as_often_as_they_vote() -> None:
    settings = {"strategy": "beam_search", "n": 8, "m": 4}
    _, outcome = search(settings, variety=3)
    tree, paths = outcome.tree, parse_search(settings).strategy.candidates(outcome.tree)
    votes = {node: tree.multiplicity(node) for node in paths}
    assert len(set(votes.values())) > 1
    expected = sum(votes[node] * path_tokens(node) for node in paths) / sum(votes.values())
    assert outcome.cost.sample_tokens == pytest.approx(float(expected), abs=0.05)


@settings(max_examples=15, deadline=None)
@given(SEARCHES, st.integers(0, 3))
def test_a_sample_is_as_long_as_some_path_and_cheaper_than_the_search(settings: dict[str, Any], order: int) -> None:
    _, outcome = search(settings, order, variety=4)
    cost = outcome.cost
    ended = [node for node in outcome.tree.nodes if node.status is NodeStatus.TERMINAL] or [outcome.selection.node]
    lengths = [path_tokens(node) for node in ended]
    assert min(lengths) - 0.05 <= cost.sample_tokens <= max(lengths) + 0.05
    assert cost.sample_tokens <= cost.written_tokens + 0.05


def test_what_was_written_in_vain_and_critiques_are_on_the_bill() -> None:
    async def main() -> Any:
        bench = Bench()

        class Ahead:
            def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
                return self._groups(request)

            async def _groups(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
                async for group in bench.generator.expand(request):
                    yield group._replace(unused_tokens=10)

        def with_cost(rewards: list[list[float]]) -> RewardRows:
            rows = RewardRows(rewards)
            rows.cost = ScoringCost(prompt_tokens=100, cached_tokens=60, generated_tokens=7)
            return rows

        bench.scorer.spoil = with_cost
        bench.through = lambda generator: Ahead()
        return (await bench.search({"strategy": "best_of_n", "n": 4})).cost

    cost = asyncio.run(main())
    assert cost.unused_tokens > 0
    assert cost.written_tokens == cost.generated_tokens + cost.unused_tokens + 7 * cost.prm_calls
    assert cost.read_tokens == 4 + 40 * cost.prm_calls, "one token of each of four prefixes was not cached"


def test_tokens_with_a_price_have_a_cost_on_the_bill() -> None:
    def cost_of(prices: Prices) -> SearchCost:
        return search({"strategy": "best_of_n", "n": 4}, prices=prices)[1].cost

    free = cost_of(Prices())
    assert not {"price", "sample_price"} & free.model_dump().keys()
    cost = cost_of(Prices(Price(input=2, output=8, cached_input=0.5)))
    computed = cost.prefix_tokens - cost.cached_tokens
    assert cost.price == pytest.approx((2 * computed + 0.5 * cost.cached_tokens + 8 * cost.generated_tokens) / 1e6)
    assert cost.sample_price == pytest.approx((2 * len(PROMPT) + 8 * cost.sample_tokens) / 1e6)
    assert f"price {cost.price:.4g}; one sample" in cost.bill
    scored = SearchCost(prm_prompt_tokens=1000, prm_cached_tokens=400, prm_generated_tokens=5)
    Prices(None, Price(input=100, output=20, cached_input=50)).add_to(scored)
    assert (scored.price, scored.sample_price) == (pytest.approx((600 * 100 + 400 * 50 + 5 * 20) / 1e6), None)


def test_a_sample_takes_the_time_in_which_the_branches_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by 3 s before each group of children, and by 50 s while they are scored."""
    now = 0.0
    monkeypatch.setattr(runner, "BudgetMeter", lambda budget: BudgetMeter(budget, lambda: now))
    waits: list[tuple[float, int]] = []

    async def main() -> Any:
        bench = Bench()

        class Slow:
            def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
                return self._groups(request)

            async def _groups(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
                nonlocal now
                began = now
                async for group in bench.generator.expand(request):
                    now += 3.0
                    tokens = [len(step.token_ids) for child in group.children for step in child.steps]
                    waits.append((len(group.children) * (now - began), sum(tokens)))
                    yield group

        def scored(rewards: list[list[float]]) -> list[list[float]]:
            nonlocal now
            now += 50.0
            return rewards

        bench.scorer.spoil = scored
        bench.through = lambda generator: Slow()
        return (await bench.search({"strategy": "beam_search", "n": 4, "m": 2, "max_depth": 3})).cost

    cost = asyncio.run(main())
    seconds, tokens = map(sum, zip(*waits, strict=True))
    assert cost.sample_seconds == pytest.approx(cost.sample_tokens * seconds / tokens, rel=0.05)
    assert cost.sample_seconds < cost.seconds

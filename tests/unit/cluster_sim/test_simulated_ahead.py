"""Simulated generators write ahead: the same trees, in less time where the reward model is slow."""

import asyncio
from functools import lru_cache
from typing import NamedTuple

import pytest

from benchmarks.cluster_sim.ahead import ALL, compared, longer
from benchmarks.cluster_sim.engines import SimulatedGenerator, SimulatedScorer
from benchmarks.cluster_sim.points import beam
from benchmarks.cluster_sim.processors import OwnCores
from benchmarks.cluster_sim.virtual_time import run
from benchmarks.cluster_sim.workload import Language
from deployments.engines.settings import WriteAheadSetting
from deployments.engines.write_ahead import CPU, MOST_LINGER_S
from search.answers.equivalence import AnswerMatcher
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.tree import NodeId
from tests.unit.cluster_sim.simulated import COSTS, ENGINE, NO_CALLS, language

REPEATING = language()
DIFFERING = longer(REPEATING, repeats=False)
SLOW_S = 2 * CPU.least_turn_s
"""Time of a call of the reward model."""
SEARCHES = 4


class Searched(NamedTuple):
    """`SEARCHES` searches on one generator."""

    outcomes: list[SearchOutcome]
    counts: dict[str, int]
    """Of the generator, after the searches."""
    engine_tokens: int
    left: list[str]


@lru_cache
def searched(setting: WriteAheadSetting, in_flight: int, texts: Language = REPEATING) -> Searched:
    async def main() -> Searched:
        generator = SimulatedGenerator(OwnCores(), texts, ENGINE, NO_CALLS, setting)
        scorer = SimulatedScorer(OwnCores(), texts, ENGINE, NO_CALLS, SLOW_S)
        environment = SearchEnvironment(generator, scorer, 1024, AnswerMatcher())
        limit = asyncio.Semaphore(in_flight)

        async def search(number: int) -> SearchOutcome:
            settings = parse_search({**beam(8, 4), "seed": number})
            prompt = texts.prompt(str(number))
            async with limit:
                return await run_search("", prompt, settings, environment, search_id=str(number))

        outcomes = await asyncio.gather(*map(search, range(SEARCHES)))
        await asyncio.sleep(MOST_LINGER_S + 1.0)  # until it has forgotten the searches
        counts = {**generator.write_ahead.counts, "written": generator.written_tokens}
        return Searched(list(outcomes), counts, generator.engine.generated_tokens, generator.check_integrity())

    return run(main())


def trees(of: Searched) -> list[dict[NodeId, object]]:
    return [{node.id: (node.step, node.first.reward) for node in outcome.tree.nodes} for outcome in of.outcomes]


@pytest.mark.parametrize("texts", [REPEATING, DIFFERING], ids=["repeating", "differing"])
@pytest.mark.parametrize("setting", ["auto", ALL])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_searches_have_the_same_trees_with_and_without_writing_ahead(
    setting: WriteAheadSetting, in_flight: int, texts: Language
) -> None:
    without, ahead = searched("off", in_flight, texts), searched(setting, in_flight, texts)
    assert trees(ahead) == trees(without)
    assert [each.selection.answer for each in ahead.outcomes] == [each.selection.answer for each in without.outcomes]
    assert without.counts["ahead_begun"] == 0
    assert 0 < ahead.counts["ahead_adopted"] < ahead.counts["ahead_begun"]
    assert sum(outcome.cost.ahead_branches for outcome in ahead.outcomes) == ahead.counts["ahead_adopted"]
    assert ahead.left == []


@pytest.mark.parametrize("setting", [1.5, ALL])
def test_every_token_is_either_a_searchs_or_unused(setting: WriteAheadSetting) -> None:
    found = searched(setting, 3, DIFFERING)
    assert found.counts["written"] == searched("off", 3, DIFFERING).counts["written"]
    unused, given_up = found.counts["ahead_unused_tokens"], found.counts["ahead_begun"] - found.counts["ahead_adopted"]
    assert unused > 0
    # A request that is given up still writes a token in the step that runs.
    assert 0 <= found.engine_tokens - found.counts["written"] - unused <= given_up


def test_writing_ahead_hides_the_time_of_a_slow_reward_model() -> None:
    found = compared(
        COSTS, REPEATING, 1, None, ["auto"], slow=True, device=CPU._replace(least_turn_s=1e-3), searches=SEARCHES
    )
    assert found["ratio"][0] < 0.95
    assert found["same"]


def test_under_auto_nothing_is_written_ahead_of_quick_rewards() -> None:
    found = compared(COSTS, REPEATING, 1, None, ["auto", 3.0], searches=SEARCHES)
    assert found["ratio"][0] == 1.0
    assert found["asked_for"][0] == 0
    assert found["asked_for"][1] > 0

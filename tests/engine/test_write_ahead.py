"""Trees are the same whether or not the generator writes children ahead, and nothing of it is left afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.engines import request_queue, write_ahead
from deployments.engines.generation import GenerationEngine
from deployments.engines.scoring import ScoringEngine
from deployments.engines.settings import WriteAheadSetting
from search.answers.equivalence import AnswerMatcher
from search.ports import ScoreRequest
from search.prompt import Prompt
from search.run import runner
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.run.solver import ProcessSolver
from search.settings import parse_search
from search.snapshot import tree_as_json
from search.strategies.catalog import STRATEGIES
from tests.engine.conftest import SETTLE_S
from tests.engine.test_generation import prompt

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETTING = 2.0
IN_FLIGHT = 8
SEARCHES: Sequence[dict[str, Any]] = (
    {"strategy": "greedy"},
    {"strategy": "self_consistency", "n": 4},
    {"strategy": "best_of_n", "n": 4},
    {"strategy": "self_consistency", "n": 12, "risk": 0.2, "rounds": [2, 3]},
    {"strategy": "best_of_n", "n": 8, "risk": 0.0, "rounds": [2, 2]},
    {"strategy": "beam_search", "n": 8, "m": 4},
    {"strategy": "beam_search", "n": 8, "m": 4, "merge_siblings": False},
    {"strategy": "beam_search", "n": 4, "m": 4, "temperature": 0.0},
    {"strategy": "beam_search", "n": 4, "m": 2, "lookahead": 1},
    {"strategy": "beam_search", "n": 8, "m": 4, "max_depth": 3, "finish_to_eos": True},
    {"strategy": "dvts", "n": 8, "m": 4},
    {"strategy": "rebase", "n": 8},
    {"strategy": "ets", "n": 8},
    {"strategy": "particle_filter", "n": 8},
    {"strategy": "mcts", "iterations": 8, "width": 3, "paths": 2},
    {"strategy": "mcts", "iterations": 8, "width": 3, "prior": "logprob"},
    {"strategy": "mcts", "iterations": 4, "width": 3, "value": "rollout"},
    {"strategy": "ab_mcts", "iterations": 8, "paths": 2, "generation": "step"},
    {"strategy": "frontier", "iterations": 8, "width": 4},
    {"strategy": "select", "n": 4, "readers": 2},
    {"strategy": "fuse", "n": 4, "k": 2},
    {"strategy": "refine", "n": 2},
)
NEVER_AHEAD = ("greedy", "self_consistency", "best_of_n", "ab_mcts", "select", "fuse", "refine")
COUNTERS = ("ahead_begun", "ahead_adopted", "ahead_adopted_finished", "ahead_unused_tokens")


class Case(NamedTuple):
    """One search on one problem."""

    search: int
    problem: int
    question: str


class SlowScorer:
    """A scorer whose calls take longer by a random time: some children are finished when they are asked for, and some
    are not begun."""

    def __init__(self, scoring: ScoringEngine) -> None:
        self._scoring = scoring
        self._rng = random.Random(0)

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        rewards, _ = await asyncio.gather(
            self._scoring.score(request), asyncio.sleep(self._rng.choice([0.0, 0.01, 0.03]))
        )
        return rewards


class Pair:
    """The two engines, and what searches need beside them."""

    def __init__(self, generation: GenerationEngine, scoring: ScoringEngine) -> None:
        self.generation = generation
        self.matcher = AnswerMatcher()
        self.solver = ProcessSolver(AppConfig().controller.step_clusters)
        self.environment = SearchEnvironment(
            generation,
            SlowScorer(scoring),
            AppConfig().search_context,
            self.matcher,
            solver=self.solver,
            # The question once more: the model knows no other prompts.
            compose=lambda question, template, shown, note: Prompt(tuple(prompt(generation, question))),
        )
        self._numbers = iter(range(1 << 30))
        self.before: dict[str, int] = {}
        """The engine's counters before the test: other tests use the engine, too."""

    async def searched(self, case: Case) -> SearchOutcome:
        settings = parse_search(SEARCHES[case.search] | {"seed": case.problem})
        search_id = f"search {next(self._numbers)}"
        token_ids = prompt(self.generation, case.question)
        outcome = await run_search(
            case.question, token_ids, settings, self.environment, search_id=search_id, messages=case.question
        )
        search = SEARCHES[case.search]
        assert outcome.cost.ahead_branches == 0 or "risk" in search or search["strategy"] not in NEVER_AHEAD
        return outcome

    async def tree(self, case: Case) -> dict[str, Any]:
        """The tree of a search, and its answer."""
        outcome = await self.searched(case)
        return {**tree_as_json(outcome.tree), "answer": outcome.selection.answer}

    async def trees(
        self, cases: Sequence[Case], setting: WriteAheadSetting, in_flight: int
    ) -> dict[Case, dict[str, Any]]:
        self.generation._running.write_ahead.setting = setting
        slots = asyncio.Semaphore(in_flight)

        async def search(case: Case) -> tuple[Case, dict[str, Any]]:
            async with slots:
                return case, await self.tree(case)

        return dict(await asyncio.gather(*map(search, cases)))

    async def cancelled(self, cases: Sequence[Case], seed: int, rest_s: float) -> int:
        """Runs searches one after another and cancels each at a random moment. Returns the number of those that were
        still at work then."""
        rng, number = random.Random(seed), 0
        for case in rng.sample(cases, len(cases)):
            running = asyncio.create_task(self.tree(case))
            await asyncio.wait([running], timeout=rng.uniform(0.0, rest_s))
            number += running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return number

    def counts(self) -> dict[str, int]:
        stats = self.generation.stats()
        return {name: stats[name] for name in COUNTERS}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_pair(shared_generation: GenerationEngine, shared_scoring: ScoringEngine) -> AsyncIterator[Pair]:
    pair = Pair(shared_generation, shared_scoring)
    await asyncio.gather(pair.matcher.start(), pair.solver.start())
    yield pair
    pair.matcher.close()
    pair.solver.close()


@pytest_asyncio.fixture(loop_scope="session")
async def pair(
    shared_pair: Pair, generation: GenerationEngine, scoring: ScoringEngine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pair]:
    book = generation._running.write_ahead
    before = book.setting
    # Otherwise little is begun as soon as several searches run.
    monkeypatch.setattr(request_queue.RequestQueue, "demand", property(lambda queue: 0))
    shared_pair.before = generation.stats()
    yield shared_pair
    book.setting = before


def cases_of(problems: int) -> list[Case]:
    stream = draw_problems(Split.VALIDATION, seed=11)
    questions = [next(stream).text for _ in range(problems)]
    return [Case(search, number, text) for number, text in enumerate(questions) for search in range(len(SEARCHES))]


CASES = cases_of(3)
OF_ONE_PROBLEM = CASES[: len(SEARCHES)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def expected(shared_pair: Pair) -> dict[Case, dict[str, Any]]:
    """The trees without writing ahead."""
    before = shared_pair.counts()
    trees = await shared_pair.trees(CASES, "off", IN_FLIGHT)
    assert shared_pair.counts() == before
    return trees


def assert_equal(found: Mapping[Case, dict[str, Any]], expected: Mapping[Case, dict[str, Any]]) -> None:
    assert found.keys() == expected.keys()
    for case, tree in found.items():
        assert tree == expected[case], (SEARCHES[case.search], case.problem)


async def assert_tidy(pair: Pair) -> None:
    """Every request has ended, and every token that the engine generated for this test is counted once."""
    assert await pair.generation.check_integrity(SETTLE_S) == []
    stats = pair.generation.stats()
    assert stats["reserved_blocks"] == 0
    assert stats["branches_begun"] == sum(stats[f"branches_{end}"] for end in ("finished", "aborted", "failed"))
    of_test = {name: stats[name] - pair.before[name] for name in stats}
    assert of_test["branches_failed"] == 0
    assert of_test["generated_tokens"] == of_test["written_tokens"] + of_test["discarded_tokens"]


async def test_every_strategy_is_searched() -> None:
    assert {search["strategy"] for search in SEARCHES} == set(STRATEGIES)


@pytest.mark.parametrize(("cases", "in_flight"), [(OF_ONE_PROBLEM, 1), (CASES, IN_FLIGHT)], ids=["alone", "together"])
async def test_trees_are_the_same_with_and_without_writing_ahead(
    pair: Pair, expected: dict[Case, dict[str, Any]], cases: list[Case], in_flight: int
) -> None:
    before = pair.counts()
    assert_equal(await pair.trees(cases, SETTING, in_flight), {case: expected[case] for case in cases})
    begun, adopted = (pair.counts()[name] - before[name] for name in COUNTERS[:2])
    assert begun > adopted > 0
    await assert_tidy(pair)


async def test_trees_are_the_same_beside_searches_that_are_cancelled(
    pair: Pair, expected: dict[Case, dict[str, Any]]
) -> None:
    before = pair.counts()
    found, number, more = await asyncio.gather(
        pair.trees(CASES[::2], SETTING, 2), pair.cancelled(CASES, 1, rest_s=0.2), pair.cancelled(CASES, 2, rest_s=0.05)
    )
    assert_equal(found, {case: expected[case] for case in CASES[::2]})
    assert number + more > len(CASES)
    assert pair.counts()["ahead_adopted"] > before["ahead_adopted"]
    await assert_tidy(pair)


async def test_solutions_of_later_rounds_are_written_ahead_where_steps_are_not(
    shared_pair: Pair, generation: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `auto`, which begins no steps on a CPU of several cores. Once a search has its answer, nothing that was
    written ahead for it is left, and its tokens are in the search's cost."""
    # However slow the machine, no search is taken for one that has ended, whose tokens nobody asks for.
    monkeypatch.setattr(write_ahead, "LEAST_LINGER_S", 600.0)
    monkeypatch.setattr(write_ahead, "MOST_LINGER_S", 600.0)
    monkeypatch.setattr(runner, "GIVE_UP_S", 600.0)
    book = generation._running.write_ahead
    setting, book.setting = book.setting, "auto"
    shared_pair.before = generation.stats()
    costs = []
    for case in CASES:
        if "risk" in SEARCHES[case.search]:
            costs.append((await shared_pair.searched(case)).cost)
            assert book.check_integrity() == []
    book.setting = setting
    begun, adopted, _, unused = (shared_pair.counts()[name] - shared_pair.before[name] for name in COUNTERS)
    assert sum(cost.ahead_branches for cost in costs) == adopted > 0
    assert sum(cost.unused_tokens for cost in costs) == unused
    assert begun >= adopted
    await assert_tidy(shared_pair)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("in_flight", [1, IN_FLIGHT])
async def test_many_trees_are_the_same_with_and_without_writing_ahead(pair: Pair, in_flight: int) -> None:
    cases = cases_of(40)
    off = await pair.trees(cases, "off", IN_FLIGHT)
    before = pair.counts()
    found, _ = await asyncio.gather(
        pair.trees(cases, SETTING, in_flight), pair.cancelled(cases if in_flight > 1 else [], 3, rest_s=0.3)
    )
    assert_equal(found, off)
    assert pair.counts()["ahead_adopted"] > before["ahead_adopted"]
    await assert_tidy(pair)

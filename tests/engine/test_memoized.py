"""`benchmarks.memoized` against the engines that it replaces: the same texts, probabilities and rewards."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from scipy.stats import chi2, chi2_contingency

from benchmarks.memoized import MemoizedModels
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.engines.generation import GenerationEngine
from deployments.engines.scoring import ScoringEngine
from search.answers.equivalence import AnswerMatcher
from search.ports import (
    Branch,
    Child,
    ExpandItem,
    ExpandRequest,
    Generator,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
    branch_seed,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

MINUTES = 600.0
PROBLEMS = list(islice(draw_problems(Split.VALIDATION, 9), 20))
SAMPLES = 64
PATHS = 8
MANY, FEW = 200, 9
"""Tokens: more than any solution has, and fewer than most steps."""
RARE = 10
"""Texts that came less often on both sides together are counted as one."""


@pytest.fixture(scope="module")
def models() -> Iterator[MemoizedModels]:
    """On one thread: on a busy machine, the threads of small matrix products wait for each other."""
    threads, matcher = torch.get_num_threads(), AnswerMatcher()
    torch.set_num_threads(1)
    yield MemoizedModels(matcher)
    torch.set_num_threads(threads)
    matcher.close()


async def written(
    generator: Generator, prompt: tuple[int, ...], temperature: float, stop_condition: StopCondition, branches: int
) -> list[Child]:
    """``count`` children of the root in order; the second half with few tokens."""
    tokens = [MANY if 2 * index < branches else FEW for index in range(branches)]
    item = ExpandItem(
        (), prompt, tuple(Branch(index, branch_seed(5, (), index), most) for index, most in enumerate(tokens))
    )
    request = ExpandRequest("memoized", (item,), Sampling(temperature), stop_condition, Lane.DEMAND, MINUTES, True)
    children = [child async for group in generator.expand(request) for child in group.children]
    return sorted(children, key=lambda child: child.index)


async def on_both(
    problem: Problem,
    engine: GenerationEngine,
    models: MemoizedModels,
    temperature: float,
    stop_condition: StopCondition,
    branches: int,
) -> tuple[list[Child], list[Child]]:
    with models.problem(problem.text) as memo:
        prompt = tuple(memo.prompt)
        assert list(prompt) == engine.encode_chat([{"role": "user", "content": problem.text}])
        theirs = await written(engine, prompt, temperature, stop_condition, branches)
        return theirs, await written(memo.environment.generator, prompt, temperature, stop_condition, branches)


@pytest.mark.parametrize("stop_condition", StopCondition)
async def test_greedy_texts_equal_those_of_the_engine(
    generation: GenerationEngine, models: MemoizedModels, stop_condition: StopCondition
) -> None:
    both = (on_both(problem, generation, models, 0.0, stop_condition, 2) for problem in PROBLEMS)
    for theirs, ours in await asyncio.gather(*both):
        for here, there in zip(ours, theirs, strict=True):
            assert [step._replace(logprob=None, token_logprobs=None) for step in here.steps] == [
                step._replace(logprob=None, token_logprobs=None) for step in there.steps
            ]
            assert [step.logprob for step in here.steps] == pytest.approx(
                [step.logprob for step in there.steps], abs=1e-3
            )


async def test_sampled_steps_have_the_same_frequencies(generation: GenerationEngine, models: MemoizedModels) -> None:
    """Texts drawn by both sides have the same log-probability."""
    both = (on_both(problem, generation, models, 0.8, StopCondition.STEP, SAMPLES) for problem in PROBLEMS)
    statistic, freedom = 0.0, 0
    for sides in await asyncio.gather(*both):
        theirs, ours = (Counter(child.steps[0].text for child in side) for side in sides)
        logprobs = [{child.steps[0].token_ids: child.steps[0].logprob for child in side} for side in sides]
        for token_ids in logprobs[0].keys() & logprobs[1].keys():
            assert logprobs[0][token_ids] == pytest.approx(logprobs[1][token_ids], abs=1e-3)
        often = [text for text, count in (theirs + ours).items() if count >= RARE]
        counts = [(theirs[text], ours[text]) for text in often]
        rest = SAMPLES - sum(count for count, _ in counts), SAMPLES - sum(count for _, count in counts)
        table = [*counts, *[rest][: any(rest)]]
        if len(table) > 1:
            found = chi2_contingency(table, correction=False)
            statistic, freedom = statistic + found.statistic, freedom + found.dof
    assert freedom > len(PROBLEMS)
    assert chi2.sf(statistic, freedom) > 0.001


async def test_rewards_equal_those_of_the_engine(scoring: ScoringEngine, models: MemoizedModels) -> None:
    async def differences(problem: Problem) -> list[float]:
        with models.problem(problem.text) as memo:
            generator, scorer = memo.environment.generator, memo.environment.scorer
            children = await written(generator, tuple(memo.prompt), 0.9, StopCondition.SOLUTION, PATHS)
            first, *others = dict.fromkeys(tuple(step.text for step in child.steps) for child in children)
            items = ScoreItem(first, 1), *(ScoreItem(path, len(path)) for path in others)
            request = ScoreRequest("memoized", problem.text, items, MINUTES)
            theirs, ours = await asyncio.gather(scoring.score(request), scorer.score(request))
        pairs = [zip(here, there, strict=True) for here, there in zip(ours, theirs, strict=True)]
        return [abs(reward - other) for pair in pairs for reward, other in pair]

    found = [each for one in await asyncio.gather(*map(differences, PROBLEMS)) for each in one]
    assert len(found) > 200
    assert max(found) < 1e-3


async def test_the_memo_of_a_problem_is_freed_at_its_end(models: MemoizedModels) -> None:
    free = [len(reader.trunk) for reader in (models.prefixes, models.scored)]
    with models.problem(PROBLEMS[0].text) as memo:
        request = ScoreRequest("memoized", PROBLEMS[0].text, (ScoreItem(("1 + 1 = 2",)),), MINUTES)
        await memo.environment.scorer.score(request)
        await written(memo.environment.generator, tuple(memo.prompt), 0.8, StopCondition.STEP, 4)
        assert all(
            len(reader.trunk) > before for reader, before in zip((models.prefixes, models.scored), free, strict=True)
        )
    assert [len(reader.trunk) for reader in (models.prefixes, models.scored)] == free

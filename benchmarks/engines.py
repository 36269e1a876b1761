"""A generator and a scorer engine in this process, and the environment of their searches: the side without Serve."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deployments.config import AppConfig
from deployments.engines.rewards.family import RewardModelSettings
from kvstore.server.cache_server import CacheServer
from search.answers.equivalence import AnswerMatcher
from search.run.environment import SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.run.solver import ProcessSolver
from search.settings import SearchSettings

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine
    from deployments.engines.scoring import ScoringEngine


Item = TypeVar("Item")
Solved = TypeVar("Solved")


class Engines(NamedTuple):
    generator: "GenerationEngine"
    scorer: "ScoringEngine"
    environment: SearchEnvironment

    def prompt(self, question: str, system: str | None = None) -> list[int]:
        """Token ids of a question with the chat template applied."""
        turns = [] if system is None else [{"role": "system", "content": system}]
        return list(self.generator.encode_chat([*turns, {"role": "user", "content": question}]))

    async def search(
        self, question: str, settings: SearchSettings, search_id: str, system: str | None = None
    ) -> SearchOutcome:
        prompt = self.prompt(question, system)
        return await run_search(question, prompt, settings, self.environment, search_id=search_id)


@asynccontextmanager
async def engines_of(config: AppConfig) -> AsyncIterator[Engines]:
    """Starts both engines as the application starts them, and a cache server if the settings enable it."""
    from deployments.engines.generation import GenerationEngine
    from deployments.engines.scoring import ScoringEngine
    from kvstore.connector.arguments import QUIET_ENVIRONMENT, connector_config

    server = await asyncio.to_thread(lambda: CacheServer(config.cache)) if config.cache.enabled else None
    kv_transfer = None
    if server is not None:
        os.environ.update(QUIET_ENVIRONMENT)
        address = await asyncio.to_thread(server.start)
        kv_transfer = connector_config(address, config.cache, config.generator_engine.kv_settings)
    if not isinstance(config.prm, RewardModelSettings):
        raise TypeError("prm must be a reward model, not a function")
    generator, scorer = GenerationEngine(config.generator_engine, kv_transfer), ScoringEngine(config.prm)
    await generator.start()
    await scorer.start()
    matcher = AnswerMatcher()
    solver = ProcessSolver(config.controller.step_clusters)
    await asyncio.gather(matcher.start(), solver.start())
    try:
        environment = SearchEnvironment(generator, scorer, config.search_context, matcher, solver=solver)
        yield Engines(generator, scorer, environment)
    finally:
        matcher.close()
        solver.close()
        generator.shutdown()
        scorer.shutdown()
        if server is not None:
            await asyncio.to_thread(server.stop)


async def solve_all(
    solve: Callable[[Item, int], Awaitable[Solved]], problems: Sequence[Item], in_flight: int, seed: int
) -> tuple[list[Solved], float]:
    """Solves every problem once, ``in_flight`` at a time, with the seeds ``seed``, ``seed + 1`` and so on.

    Returns the results in the order of the problems, and the seconds for all of them together.
    """
    slots = asyncio.Semaphore(in_flight)

    async def solve_one(index: int, problem: Item) -> Solved:
        async with slots:
            return await solve(problem, seed + index)

    started = time.perf_counter()
    solved = await asyncio.gather(*(solve_one(index, problem) for index, problem in enumerate(problems)))
    return list(solved), time.perf_counter() - started

"""Rewards from a Python function: for tasks that have a checker of their own. No engine."""

import asyncio
import importlib
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from deployments.config import PrmSettings
from deployments.engine import EngineStartError
from deployments.rewards.family import check_rewards
from search.ports import ScoreItem, ScoreRequest, ScorerError

RewardFunction = Callable[[str, Sequence[str]], "float | Awaitable[float]"]
"""Told a question and the texts of a path's steps, it returns the last step's reward in [0, 1]."""
CANARY = ("canary", ("canary",))


class FunctionScorer:
    """Stands where a `ScoringEngine` would: the same methods, and one call of the function for each step.

    A coroutine function runs in the event loop, any other in a thread.
    """

    def __init__(self, settings: PrmSettings) -> None:
        assert settings.function is not None
        self._name = settings.function
        self._reward: RewardFunction | None = None
        self._limit = asyncio.Semaphore(settings.max_num_seqs)
        self._running = self._called = 0

    async def start(self) -> None:
        """Raises EngineStartError when there is no such function."""
        self._reward = import_function(self._name)

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        """For each item its ``unscored`` rewards in [0, 1]; see ``search.ports.StepScorer``.

        Raises:
            ScorerError: the function failed, took too long, or returned something that is no reward.
        """
        try:
            async with asyncio.timeout(request.deadline_s), asyncio.TaskGroup() as group:
                tasks = [
                    [group.create_task(self._call(request.question, steps)) for steps in _prefixes(item)]
                    for item in request.items
                ]
        except TimeoutError as error:
            raise ScorerError(f"{self._name} was not done within {request.deadline_s:g} s") from error
        except ExceptionGroup as group_of_failures:
            failure = group_of_failures.exceptions[0]
            raise ScorerError(f"{self._name} failed: {failure!r}") from failure
        rewards = [[task.result() for task in row] for row in tasks]
        try:
            for row, item in zip(rewards, request.items, strict=True):
                check_rewards(row, item.unscored, self._name)
        except (TypeError, ValueError) as error:
            raise ScorerError(str(error)) from error
        return [[float(reward) for reward in row] for row in rewards]

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Calls the function once and returns the seconds it took. Raises ScorerError like ``score``."""
        started = time.monotonic()
        question, steps = CANARY
        await self.score(ScoreRequest("canary", question, (ScoreItem(steps),), deadline_s))
        return time.monotonic() - started

    def stats(self) -> dict[str, int]:
        """Calls of the function: at work, waiting (none: they wait with their search), and all so far."""
        return {"running": self._running, "waiting": 0, "calls": self._called}

    def check_alive(self) -> None:
        """A function does not die."""

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """What is left over though nothing should be; empty when all is well."""
        return [f"{self._running} calls of {self._name} are open"] if self._running else []

    def shutdown(self) -> None:
        self._reward = None

    async def _call(self, question: str, steps: Sequence[str]) -> float:
        reward = self._reward
        if reward is None:
            raise ScorerError(f"{self._name} is not loaded")
        async with self._limit:
            self._running += 1
            self._called += 1
            try:
                if inspect.iscoroutinefunction(reward):
                    value: Any = await reward(question, steps)
                else:
                    value = await asyncio.to_thread(reward, question, steps)
            finally:
                self._running -= 1
        return value  # type: ignore[no-any-return]  # checked by check_rewards


def import_function(name: str) -> RewardFunction:
    """The function at ``package.module:function``.

    Raises:
        EngineStartError: the name has another form, or there is no such module or function.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise EngineStartError(f"prm.function must be package.module:function, got {name!r}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise EngineStartError(f"prm.function {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise EngineStartError(f"prm.function {name!r} is no function")
    function: RewardFunction = found
    return function


def _prefixes(item: ScoreItem) -> list[tuple[str, ...]]:
    """The path up to each of its unscored steps."""
    if not 1 <= item.unscored <= len(item.steps):
        raise ScorerError(f"unscored is {item.unscored} in a path of {len(item.steps)} steps")
    return [item.steps[:end] for end in range(len(item.steps) - item.unscored + 1, len(item.steps) + 1)]

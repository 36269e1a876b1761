"""One vLLM engine from its start to its end, and what is asked of every engine whatever it does."""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from transformers import PreTrainedTokenizerBase
from vllm import AsyncEngineArgs, envs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerFactory

from deployments.engines.arguments import engine_environment
from deployments.engines.branches import BranchRegistry
from deployments.engines.counters import EngineCounters, engine_leftovers
from deployments.engines.errors import EngineStartError
from deployments.engines.settings import EngineSettings
from search.errors import SearchError


@dataclass(frozen=True)
class StartedEngine:
    """An engine that runs. Roles add what they derived from its model."""

    engine: AsyncLLM
    counters: EngineCounters

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.engine.model_config.max_model_len)


Started = TypeVar("Started", bound=StartedEngine)


class EngineLifecycle(ABC, Generic[Started]):
    """What the engines of all roles share. Use from one event loop: ``start``, calls, ``shutdown``."""

    failure: ClassVar[type[SearchError]]
    """What is raised when the engine cannot do what it is asked."""
    requests_are: ClassVar[str]
    """What a request of the engine stands for, in the plural: the first word of its counters."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._started: Started | None = None
        self._registry = BranchRegistry()
        self._canaries = 0

    @abstractmethod
    def _arguments(self) -> AsyncEngineArgs:
        """What the engine is started with. Raises EngineStartError when the settings allow none."""

    @abstractmethod
    def _derive(self, engine: AsyncLLM) -> Started:
        """What the role needs to know of a started engine's model. Raises EngineStartError when it is of no use."""

    @abstractmethod
    async def _touch(self, name: str, deadline_s: float) -> None:
        """The least work that shows that the engine does what it is for. Raises ``failure``."""

    async def start(self, stat_loggers: Sequence[StatLoggerFactory] = ()) -> None:
        """
        Args:
            stat_loggers: told vLLM's own figures, beside our counters.

        Raises:
            EngineStartError: the engine does not come up, or its model is of no use; nothing is left then.
        """
        engine = await _start_engine(self._settings, self._arguments(), stat_loggers)
        try:
            self._started = self._derive(engine)
        except BaseException:
            engine.shutdown()
            raise

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Does the least work that shows that the engine is well, and returns the seconds it took.

        Raises:
            SearchError: ``failure``: it could not, or not in time.
        """
        self._canaries += 1
        started = time.monotonic()
        await self._touch(f"canary-{self._canaries}", deadline_s)
        return time.monotonic() - started

    def stats(self) -> dict[str, int]:
        """The engine's own counters, its requests by how they ended, and the canaries."""
        return {
            **self._running.counters.figures._asdict(),
            **{f"{self.requests_are}_{name}": number for name, number in self._registry.counts.items()},
            "canaries": self._canaries,
        }

    def check_alive(self) -> None:
        """Raises ``failure`` when the engine is dead."""
        if self._running.engine.errored:
            raise self.failure("the engine is dead")

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """For an idle engine: what is left over though nothing should be; empty when all is well.

        ``settle_s`` is how long the engine has to report that it took notice of the last aborts.
        """
        return [*self._registry.check_integrity(), *await engine_leftovers(self._running.engine, settle_s)]

    def shutdown(self) -> None:
        """Ends the engine's processes. Does nothing if it does not run."""
        started, self._started = self._started, None
        if started is not None:
            started.engine.shutdown()

    @property
    def _running(self) -> Started:
        if self._started is None:
            raise self.failure("the engine is not running")
        return self._started


def engine_tokenizer(engine: AsyncLLM) -> PreTrainedTokenizerBase:
    """Raises EngineStartError when the model has no tokenizer that transformers knows."""
    tokenizer = engine.get_tokenizer()
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise EngineStartError(f"{engine.model_config.model!r} has no transformers tokenizer")
    return tokenizer


async def _start_engine(
    settings: EngineSettings, args: AsyncEngineArgs, stat_loggers: Sequence[StatLoggerFactory]
) -> AsyncLLM:
    """Starts an engine in processes of its own without blocking the event loop (half a minute on a CPU).

    Raises:
        EngineStartError: it did not come up.
    """
    try:
        return await asyncio.to_thread(_start, settings, args, stat_loggers)
    except Exception as error:
        raise EngineStartError(f"the engine for {settings.model!r} did not start: {error}") from error


def _start(settings: EngineSettings, args: AsyncEngineArgs, stat_loggers: Sequence[StatLoggerFactory]) -> AsyncLLM:
    envs.disable_envs_cache()
    with _environment(engine_environment(settings)):
        engine = AsyncLLM.from_engine_args(args, stat_loggers=[EngineCounters, *stat_loggers])
    # vLLM asks the environment about every token; the answers are kept from here on.
    envs.enable_envs_cache()
    return engine


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """The environment with ``wanted`` in it; afterwards as it was for everyone else."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

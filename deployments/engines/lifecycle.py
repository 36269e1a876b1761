"""One vLLM engine from its start to its end, with the methods that engines of all roles share."""

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from transformers import PreTrainedTokenizerBase
from vllm import AsyncEngineArgs, envs
from vllm.platforms import current_platform
from vllm.ray.lazy_utils import is_in_ray_actor
from vllm.triton_utils import HAS_TRITON
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerFactory

from deployments.engines.counters import EngineCounters, engine_leftovers
from deployments.engines.devices import gpus_compute
from deployments.engines.engine_calls import feed
from deployments.engines.environment import engine_environment
from deployments.engines.errors import EngineStartError
from deployments.engines.histograms import Histogram
from deployments.engines.request_queue import RequestQueue
from deployments.engines.service_links import drop_service_links
from deployments.engines.settings import EngineSettings
from deployments.engines.sockets import SocketDirectory
from deployments.engines.template import TemplateLost, engines_forked_from, template_of
from deployments.engines.tokenizers import configured
from deployments.engines.watch import TICK_S, EngineProcesses, HangDetector, Signs
from deployments.engines.weights import check_weights
from kvstore.memory.engine_geometry import expected_geometry
from kvstore.memory.geometry import KVGeometry, UnknownGeometry
from search.errors import SearchError
from search.tools.listing import listed

logger = logging.getLogger("banyan.engines")
WORKER_REPLY_S = 60.0
"""Longest wait for a worker's reply while the engine starts."""


@dataclass(frozen=True)
class StartedEngine:
    """A running engine. Each role adds what it derives from the engine's model."""

    engine: AsyncLLM
    counters: EngineCounters
    queue: RequestQueue

    @property
    def context(self) -> int:
        """Longest sequence, tokens."""
        return int(self.engine.model_config.max_model_len)


Started = TypeVar("Started", bound=StartedEngine)


class EngineLifecycle(ABC, Generic[Started]):
    """Base class of the engines of all roles. Use from one event loop: ``start``, calls, ``shutdown``."""

    failure: ClassVar[type[SearchError]]
    """The error that is raised when the engine fails."""
    requests_are: ClassVar[str]
    """The role's plural noun for requests: the first word of their counters."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._started: Started | None = None
        self._sockets: SocketDirectory | None = None
        self._canaries = 0
        self._unused: list[str] = []
        """Names of weights without use, which the engine does not load."""
        self._notes: list[str] = []
        self._runner = ""
        self._hangs = HangDetector(settings.stall_s, settings.max_step_s)
        self._hung: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Background tasks that run as long as the engine does."""

    @abstractmethod
    def _arguments(self) -> AsyncEngineArgs:
        """vLLM's arguments for the engine. Raises EngineStartError when the settings allow no engine."""

    @abstractmethod
    def _derive(self, engine: AsyncLLM, geometry: KVGeometry) -> Started:
        """Derives what the role needs from a started engine. Raises EngineStartError when the model does not suit the
        role."""

    @abstractmethod
    async def _touch(self, name: str, deadline_s: float) -> None:
        """Runs the smallest request of the role. Raises ``failure``."""

    async def start(self, stat_loggers: Sequence[StatLoggerFactory] = ()) -> None:
        """Starts the engine.

        Args:
            stat_loggers: get vLLM's own metrics, beside `EngineCounters`.

        Raises:
            EngineStartError: a weight is missing, the engine did not start, or its model does not suit the role;
                nothing is left running.
        """
        self._unused = await asyncio.to_thread(check_weights, self._settings)
        if self._unused:
            self._note(f"weights without use: {listed(self._unused)}")
        arguments = self._arguments()
        with ExitStack() as undo:
            sockets = SocketDirectory()
            undo.callback(sockets.remove)
            engine = await _start_engine(self._settings, arguments, stat_loggers, sockets)
            undo.callback(engine.shutdown)
            # vLLM asks this at an engine's first pooling request. If the engine is dead by then it waits for ever.
            await engine.get_supported_tasks()
            await _require_all_weights(engine)
            self._runner = await _worker_reply(engine, "runner_class")
            # On a CPU there is only one. On a GPU the log tells it at any level: trees depend on it.
            level = logging.INFO if current_platform.is_cpu() else logging.WARNING
            logger.log(level, "%s: vLLM's model runner is %s", self._settings.model, self._runner)
            self._started = self._derive(engine, await engine_geometry(engine))
            await _worker_reply(engine, "release_free_memory")
            undo.pop_all()
        self._sockets = sockets
        self._tasks = [
            asyncio.create_task(self._watch_over(self._started)),
            asyncio.create_task(feed(engine, self._started.queue)),
        ]

    def _note(self, what: str) -> None:
        self._notes.append(what)
        logger.warning("%s: %s", self._settings.model, what)

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Runs the smallest request of the role and returns the seconds it took.

        Raises:
            SearchError: ``failure``: the request failed or missed its deadline.
        """
        self._canaries += 1
        started = time.monotonic()
        await self._touch(f"canary-{self._canaries}", deadline_s)
        return time.monotonic() - started

    def stats(self) -> dict[str, int]:
        """The engine's counters, the number of requests by how they ended, and the number of canaries."""
        figures, queue = self._running.counters.figures, self._running.queue
        return {
            **figures._asdict(),
            "waiting": figures.waiting + queue.queued,
            **{f"{self.requests_are}_{name}": number for name, number in queue.counts.items()},
            "canaries": self._canaries,
        }

    @property
    def notes(self) -> list[str]:
        """What is odd about the model, found at its start: sentences that begin with its name. The log has them too."""
        return [f"{self._settings.model}: {note}" for note in self._notes]

    @property
    def model_runners(self) -> dict[str, str]:
        """Full name of the class of vLLM's model runner, by model; see ``docs/model-runners.md``."""
        return {self._settings.model: self._runner}

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        """Histograms of the engine's steps and KV blocks, by name."""
        return self._running.counters.histograms.by_name

    @property
    def pressure(self) -> float:
        """Requested work over what the engine can do at once: here, requests over its largest batch."""
        return self._running.queue.demand / self._settings.max_num_seqs

    @property
    def at_engine(self) -> frozenset[str]:
        """Searches with requests at the engine; once it is dead, those that may have ended it."""
        return self._started.queue.at_engine if self._started is not None else frozenset()

    @property
    def silent_s(self) -> float:
        """Seconds for which the engine has neither sent nor computed anything although it owes a reply."""
        return self._hangs.silent_s

    def check_alive(self) -> None:
        """Raises ``failure`` when the engine is dead, or was killed because it hung."""
        if self._hung:
            raise self.failure(self._hung)
        if self._running.engine.errored:
            raise self.failure("the engine is dead")

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """Leak check of an idle engine: a sentence for everything left over; empty when all is well.

        The engine has ``settle_s`` seconds to report that it has processed the last aborts.
        """
        running = self._running
        return [*running.queue.check_integrity(), *await engine_leftovers(running.engine, settle_s)]

    def shutdown(self) -> None:
        """Ends the engine's processes. Does nothing if it does not run."""
        started, self._started = self._started, None
        if started is not None:
            for task in self._tasks:
                with suppress(RuntimeError):  # its loop is closed, which ended the task
                    task.cancel()
            if self._hung:
                started.engine.shutdown(timeout=0.0)  # its processes were killed: an orderly shutdown is impossible
            else:
                started.engine.shutdown()
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.remove()

    async def _watch_over(self, started: Started) -> None:
        """Kills an engine that hangs: its calls then fail as they do when an engine dies."""
        engine, counters = started.engine, started.counters
        gpus = engine.vllm_config.parallel_config.world_size
        processes = EngineProcesses(_process_ids(engine), partial(gpus_compute, gpus))
        ping: asyncio.Task[None] | None = None
        answers = 0
        last = time.monotonic()
        try:
            while not engine.errored:
                await asyncio.sleep(TICK_S)
                # If this process itself was held up, it has not read the engine's messages yet.
                seconds = min(time.monotonic() - last, 2 * TICK_S)
                last = time.monotonic()
                if ping is not None and ping.done():
                    ping = None
                    answers += 1
                works = engine.get_num_unfinished_requests() > 0
                signs = Signs(counters.reports + answers, counters.progress, works or ping is not None)
                self._hung = self._hangs.look(signs, partial(processes.computes, seconds), seconds)
                if self._hung:
                    logger.error("%s; it is killed (%s)", self._hung, self._settings.model)
                    processes.kill()
                    return
                if not works and ping is None:
                    # An idle engine sends nothing by itself.
                    ping = asyncio.create_task(_ping(engine))
        finally:
            if ping is not None:
                ping.cancel()

    @property
    def _running(self) -> Started:
        if self._started is None:
            raise self.failure("the engine is not running")
        return self._started


async def _ping(engine: AsyncLLM) -> None:
    """Returns when the engine has answered its cheapest query, or has died, which the caller notices elsewhere."""
    with suppress(EngineDeadError):
        await engine.is_sleeping()


def _process_ids(engine: AsyncLLM) -> list[int]:
    manager = engine.engine_core.resources.engine_manager
    return [process.pid for process in manager.processes]


async def engine_geometry(engine: AsyncLLM) -> KVGeometry:
    """The geometry of a started engine's KV cache.

    Raises:
        EngineStartError: it differs from what the model's configuration says, so plans by the configuration are wrong.
    """
    found = KVGeometry.of(*await _worker_reply(engine, "kv_geometry"))
    if not found.groups:
        return found
    try:
        expected = expected_geometry(engine.vllm_config)
    except UnknownGeometry as unknown:
        logger.info("the size of the KV cache of %s could not be checked: %s", engine.model_config.model, unknown)
        return found
    if found != expected:
        more = found.bytes_per_block - expected.bytes_per_block
        raise EngineStartError(
            f"the KV cache of {engine.model_config.model!r} has {found}; "
            f"the model's configuration implies {expected}: {more:+d} bytes per block"
        )
    return found


async def _require_all_weights(engine: AsyncLLM) -> None:
    """Raises EngineStartError when a worker has a weight that it did not load."""
    if missing := sorted({name for found in await _worker_replies(engine, "missing_weights") for name in found}):
        raise EngineStartError(f"{engine.model_config.model!r} lacks weights: {listed(missing)}")


async def _worker_reply(engine: AsyncLLM, method: str) -> Any:
    """Calls a method of ``WorkerExtension`` on all workers and returns the first worker's reply.

    Raises:
        EngineStartError: see `_worker_replies`.
    """
    reply, *_ = await _worker_replies(engine, method)
    return reply


async def _worker_replies(engine: AsyncLLM, method: str) -> list[Any]:
    """Calls a method of ``WorkerExtension`` on all workers.

    Raises:
        EngineStartError: the method failed, or did not return in time.
    """
    try:
        # vLLM waits for ever for the reply of a dead engine.
        async with asyncio.timeout(WORKER_REPLY_S):
            return list(await engine.collective_rpc(method))
    except Exception as error:
        raise EngineStartError(f"{engine.model_config.model!r} does not answer {method}: {error!r}") from error


def engine_tokenizer(engine: AsyncLLM, settings: EngineSettings) -> PreTrainedTokenizerBase:
    """The engine's tokenizer. Raises EngineStartError when the model has none that transformers knows, or when the chat
    template of the settings cannot be read."""
    tokenizer = engine.get_tokenizer()
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise EngineStartError(f"{engine.model_config.model!r} has no transformers tokenizer")
    try:
        return configured(tokenizer, settings)
    except ValueError as error:
        raise EngineStartError(str(error)) from error


async def _start_engine(
    settings: EngineSettings,
    args: AsyncEngineArgs,
    stat_loggers: Sequence[StatLoggerFactory],
    sockets: SocketDirectory,
) -> AsyncLLM:
    """Starts an engine in processes of its own without blocking the event loop (half a minute on a CPU).

    Raises:
        EngineStartError: the engine did not start.
    """
    try:
        return await asyncio.to_thread(_start, settings, args, stat_loggers, sockets)
    except Exception as error:
        raise EngineStartError(f"the engine for {settings.model!r} did not start: {error}") from error


def _start(
    settings: EngineSettings,
    args: AsyncEngineArgs,
    stat_loggers: Sequence[StatLoggerFactory],
    sockets: SocketDirectory,
) -> AsyncLLM:
    envs.disable_envs_cache()
    if envs.VLLM_USE_V2_MODEL_RUNNER and not HAS_TRITON:  # it would start, and die at its first request
        raise EngineStartError(
            "VLLM_USE_V2_MODEL_RUNNER selects vLLM's newer model runner, which needs Triton: unset it"
        )
    drop_service_links()  # of a cluster that was started by hand in a pod
    template = template_of(settings)
    variables = {**engine_environment(settings), **sockets.environment}
    if not current_platform.is_cpu() and not is_in_ray_actor():
        # vLLM would fork this process, which has threads. In an actor it spawns, and passes on Ray's address.
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    with _environment(variables):
        start = partial(AsyncLLM.from_engine_args, args, stat_loggers=[EngineCounters, *stat_loggers])
        try:
            with engines_forked_from(template):
                engine = start()
        except TemplateLost as lost:
            logger.warning(
                "the engine for %s starts slower, not forked from a template process: %s", settings.model, lost
            )
            engine = start()
    # vLLM reads its environment variables for every token; from here on their values are cached.
    envs.enable_envs_cache()
    return engine


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables inside the context and restores the old ones after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

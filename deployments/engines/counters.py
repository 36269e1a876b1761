"""The engine's counters, kept in the process of the engine's client, and whether the engine is idle."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from deployments.engines.histograms import StepHistograms
from kvstore.connector.storing import STORING
from search.ports import Headroom

STEP_KV_USE = "banyan_step_kv_use"
"""Name of the KV use during a step in the connector stats; see `step_scheduler`."""


class EngineFigures(NamedTuple):
    """The engine's figures at one time. Counters run since its start and count tokens unless said otherwise."""

    generated_tokens: int
    prompt_tokens: int
    prefix_queries: int
    prefix_hits: int
    external_hits: int
    """Prompt tokens whose KV came from outside the engine (LMCache)."""
    preemptions: int
    engine_steps: int
    """Forward passes with an output."""
    engine_step_requests: int
    """Batch sizes summed over all forward passes; divided by ``engine_steps``, the mean batch."""
    running: int
    waiting: int
    free_blocks: int
    """KV blocks that no running request holds; cached but idle blocks are free."""
    total_blocks: int


class EngineCounters(PrometheusStatLogger):  # type: ignore[misc]
    """The engine's counters, updated from the statistics that it sends with every step.

    The class is a PrometheusStatLogger only so that vLLM adds none of its own, whose per-token histograms cost more
    than everything else that this process does for a token.
    """

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None) -> None:
        self.total_blocks = vllm_config.cache_config.num_gpu_blocks or 0
        self.idle = asyncio.Event()
        """Set while the engine reports that it neither runs nor queues a request."""
        self.idle.set()
        self._running = self._waiting = 0
        self._usage = 0.0
        self.restart()
        self.on_step: Callable[[int, int], None] = lambda storing, preempted: None
        """Called after every step with the number of KV blocks that only LMCache's stores hold, and the number of
        preempted requests."""
        self.reports = self.progress = 0
        """Messages of the engine, one per step; and how many of them reported tokens or a change in running requests,
        waiting requests or KV usage."""

    def restart(self) -> None:
        """Counts from zero again."""
        self._generated = self._prompt = self._preemptions = 0
        self._steps = self._step_requests = 0
        self._queries = self._hits = self._external_hits = 0
        self.histograms = StepHistograms()

    @classmethod
    def of(cls, engine: AsyncLLM) -> "EngineCounters":
        """The counters of an engine that ``start_engine`` made."""
        manager = engine.logger_manager
        assert manager is not None
        return next(logger for logger in manager.stat_loggers if isinstance(logger, cls))

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        before = self._running, self._waiting, self._usage
        self._count(scheduler_stats, iteration_stats)
        self.reports += 1
        self.progress += iteration_stats is not None or before != (self._running, self._waiting, self._usage)

    def _count(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if iteration_stats is not None:
            self._generated += iteration_stats.num_generation_tokens
            self._prompt += iteration_stats.num_prompt_tokens
            self._preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self._running = scheduler_stats.num_running_reqs
        more = scheduler_stats.kv_connector_stats or {}
        if iteration_stats is not None:
            self._count_step(iteration_stats, more.get(STEP_KV_USE, scheduler_stats.kv_cache_usage))
        for block in scheduler_stats.kv_cache_eviction_events:
            self.histograms.evicted(block.lifetime_seconds, block.idle_seconds, block.reuse_gaps_seconds)
        self._waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self._usage = scheduler_stats.kv_cache_usage
        self.on_step(
            more.get(STORING, 0),
            0 if iteration_stats is None else iteration_stats.num_preempted_reqs,
        )
        self._queries += scheduler_stats.prefix_cache_stats.queries
        self._hits += scheduler_stats.prefix_cache_stats.hits
        if scheduler_stats.connector_prefix_cache_stats is not None:
            self._external_hits += scheduler_stats.connector_prefix_cache_stats.hits
        if self._running or self._waiting:
            self.idle.clear()
        else:
            self.idle.set()

    def _count_step(self, iteration_stats: IterationStats, kv_use: float) -> None:
        """Counts a step with outputs: one for each request in its batch, but none for one whose prompt continues in the
        next step."""
        later = len(iteration_stats.inter_token_latencies_iter)
        requests = len(iteration_stats.time_to_first_tokens_iter) + later
        if not requests:
            return
        self._steps += 1
        self._step_requests += requests
        # A request's first token comes from the pass over its prompt.
        self.histograms.step(iteration_stats.prompt_token_stats.computed + later, requests, kv_use)

    @property
    def usable_blocks(self) -> int:
        # One block is vLLM's null block: never free, never used.
        return max(self.total_blocks - 1, 0)

    @property
    def headroom(self) -> Headroom:
        usable = self.usable_blocks
        return Headroom(round(usable * (1.0 - self._usage)), usable, self._running, self._waiting)

    @property
    def figures(self) -> EngineFigures:
        headroom = self.headroom
        return EngineFigures(
            generated_tokens=self._generated,
            prompt_tokens=self._prompt,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            external_hits=self._external_hits,
            preemptions=self._preemptions,
            engine_steps=self._steps,
            engine_step_requests=self._step_requests,
            running=headroom.running,
            waiting=headroom.waiting,
            free_blocks=headroom.free_blocks,
            total_blocks=headroom.total_blocks,
        )

    def log(self) -> None:
        """Nothing is logged: `figures` is read on request."""

    def log_engine_initialized(self) -> None:
        """Nothing is logged."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Engines here never sleep."""

    def record_admission_rejection(self, reason: str) -> None:
        """The engine rejects no request: requests wait in the replica's queue."""


async def engine_leftovers(engine: AsyncLLM, settle_s: float) -> list[str]:
    """Describes what an engine still works on; empty when it is idle.

    The engine has ``settle_s`` seconds to report that it has processed the last aborts.
    """
    counters = EngineCounters.of(engine)
    try:
        async with asyncio.timeout(settle_s):
            # The engine processes its messages in order. At this reply it has processed every abort, so the next
            # report that says idle is true.
            await engine.is_sleeping()
            await counters.idle.wait()
    except TimeoutError:
        headroom = counters.headroom
        return [f"the engine runs {headroom.running} requests and queues {headroom.waiting}"]
    except EngineDeadError:
        return ["the engine is dead"]
    unfinished = engine.get_num_unfinished_requests()
    return [f"the engine's client still waits for {unfinished} requests"] if unfinished else []

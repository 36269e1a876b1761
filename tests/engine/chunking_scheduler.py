"""Schedulers that cut the prompts of some requests into chunks of random lengths, so that one engine computes a path in
one piece and in many."""

import random
import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from deployments.engines.step_scheduler import StepScheduler

CHUNKED = "chunked"
"""Requests whose cache salt begins with it are computed in chunks. The salt also keeps them apart from the others'
prefixes."""
CHUNK_TOKENS = (3, 70)
"""Least and most tokens of a step with such requests: less than a block, and more than two."""
PREEMPTED = 0.1
"""Share of the steps in which a partly computed prompt is put back, as if memory were short."""


class Chunking(Scheduler):  # type: ignore[misc]
    """Draws a small budget of tokens for each step with a request that is to be chunked, and sometimes one for each
    request: a batch then mixes chunks of several paths."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rng = random.Random(1)
        self._whole = self.max_num_scheduled_tokens

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        chunked = any((request.cache_salt or "").startswith(CHUNKED) for request in self.requests.values())
        self.max_num_scheduled_tokens = self._rng.randint(*CHUNK_TOKENS) if chunked else self._whole
        self.scheduler_config.long_prefill_token_threshold = self._rng.choice((0, 7, 16)) if chunked else 0
        partial = [request for request in self.running if request.is_prefill_chunk]
        if chunked and partial and self._rng.random() < PREEMPTED:
            self._put_back(self._rng.choice(partial))
        return super().schedule(*args, **kwargs)

    def _put_back(self, request: Any) -> None:
        """As `Scheduler.reset_prefix_cache` does, which preempts between two steps too."""
        self.running.remove(request)
        self._preempt_request(request, time.monotonic(), drop_stale_output=True)
        self.prev_step_scheduled_req_ids.discard(request.request_id)


class ChunkingPooling(Chunking, StepScheduler):
    """For reward models with a head."""


class ChunkingGeneration(Chunking, AsyncScheduler):  # type: ignore[misc]
    """For reward models that write tokens."""

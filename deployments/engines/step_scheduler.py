"""vLLM's scheduler for reward models, which also reports the KV use of each step.

vLLM reports KV use after a step, when the requests of a pooling model have already released their blocks. Only the
engine's own process imports this module.
"""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats

from deployments.engines.counters import STEP_KV_USE


class StepScheduler(Scheduler):  # type: ignore[misc]
    """Adds the share of KV blocks in use during the step to the connector stats, vLLM's field for additional figures.

    Without asynchronous scheduling, which vLLM turns off for pooling models, one step ends before the next begins.
    """

    _kv_use = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        scheduled = super().schedule(*args, **kwargs)
        self._kv_use = self.kv_cache_manager.usage
        return scheduled

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            stats.kv_connector_stats = {**(stats.kv_connector_stats or {}), STEP_KV_USE: self._kv_use}
        return stats

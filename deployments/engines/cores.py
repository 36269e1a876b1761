"""The number of OpenMP threads of an engine on a CPU."""

import os
from contextlib import suppress
from pathlib import Path

from deployments.engines.settings import EngineSettings

SMALL_MODEL_BYTES = 64 << 20
"""Size of the weights below which a model gets one thread, bytes: waking a second one takes as long as its part of the
work.

Beam search on two cores, two threads per engine relative to one, by the weights of generator and reward model:

==================  ====================  =====================
weights (MB)        throughput at 16      latency of one search
==================  ====================  =====================
4 and 7             0.85                  1.4
51 and 178          1.02                  0.89
204 and 708         1.36                  0.66
==================  ====================  =====================
"""
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cpu_threads(settings: EngineSettings) -> int:
    """Number of threads: the setting, or else one for a small model and one per core for any other."""
    if settings.cpu_threads is not None:
        return settings.cpu_threads
    return 1 if is_small_model(settings.model_path) else usable_cores()


def is_small_model(path: str) -> bool:
    """Whether the weights in a model directory are below ``SMALL_MODEL_BYTES``. A hub id counts as large."""
    weights = sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    return 0 < weights < SMALL_MODEL_BYTES


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or its container's quota where that is less."""
    cores = len(os.sched_getaffinity(0))
    # The file has no number where there is no quota, and is missing without cgroups v2.
    with suppress(OSError, ValueError):
        quota, period = CGROUP_QUOTA.read_text(encoding="ascii").split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores

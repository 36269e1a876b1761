"""What an engine's process finds when it begins: its environment variables and its memory. Imports nothing of vLLM."""

import os
import shutil
import sysconfig
from pathlib import Path

from deployments.engines.allocator import allocator_environment
from deployments.engines.cores import cpu_threads
from deployments.engines.settings import EngineSettings
from deployments.engines.vllm_build import runs_on_cpu

CPU_KV_BYTES = 256 << 20
"""KV memory of an engine on a CPU that has no setting of its own."""

FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
GRAMMARS = {"VLLM_XGRAMMAR_CACHE_MB": "128"}
"""Bounds the compiled grammars that an engine keeps for later requests."""


def engine_environment(settings: EngineSettings) -> dict[str, str]:
    """The variables that an engine's process needs when it begins: its allocator and OpenMP read theirs only then."""
    return _on_cpu(settings) if runs_on_cpu() else _on_gpu(settings)


def _on_gpu(settings: EngineSettings) -> dict[str, str]:
    return {
        **allocator_environment(preload=False),
        **GRAMMARS,
        # Both of vLLM's model runners would import FlashInfer, which may be missing or compile for minutes. They use
        # its sampler only for requests without a seed, and every branch has one.
        FLASHINFER_SAMPLER: os.environ.get(FLASHINFER_SAMPLER, "0"),
        **({"VLLM_BATCH_INVARIANT": "1"} if settings.exact else {}),
    }


def _on_cpu(settings: EngineSettings) -> dict[str, str]:
    return {
        **allocator_environment(preload=True),
        **GRAMMARS,
        # "auto" would bind every engine of the machine to the same core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(cpu_threads(settings)),
        # Idle threads sleep. If they spun, they would take the cores from the other engine.
        "OMP_WAIT_POLICY": "PASSIVE",
        # The model runs in the engine's process: a separate worker process costs a message each way at every step.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM compiles some functions of an eager engine too, such as that of log-probabilities: without a compiler the
        # first request for these would kill the engine.
        **({} if can_compile() else {"TORCH_COMPILE_DISABLE": "1"}),
    }


def can_compile() -> bool:
    """Whether torch's inductor finds what it needs on a CPU: a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()


def shared_memory_bytes(settings: EngineSettings) -> int:
    """Bytes of the node's shared memory that an engine takes as a client of the cache server: on a CPU its whole KV
    memory, on a GPU none."""
    return (settings.kv_cache_memory_bytes or CPU_KV_BYTES) if runs_on_cpu() else 0


def has_compiled() -> bool:
    """Whether engines have compiled code on this machine before. If not, their first start takes a minute longer."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    root = Path(os.environ.get("VLLM_CACHE_ROOT", caches / "vllm"))
    compiled = root.expanduser() / "torch_compile_cache"
    return compiled.is_dir() and any(compiled.iterdir())

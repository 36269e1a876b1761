"""vLLM's engine arguments. This module, ``environment`` and ``exact`` decide what engines on CPUs and on GPUs get.

Importing this module imports vLLM (seconds): deployments import it inside their constructors.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

# vLLM configures its logging and its usage report from the environment at import.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import AsyncEngineArgs
from vllm.config import KVTransferConfig, PoolerConfig, StructuredOutputsConfig
from vllm.config.model import _get_and_verify_dtype
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_config

from deployments.engines.environment import CPU_KV_BYTES, can_compile
from deployments.engines.errors import EngineStartError
from deployments.engines.exact import make_exact
from deployments.engines.load_arguments import loader_args
from deployments.engines.settings import CONFIG_FILES, CPU_BLOCK_SIZE, GPU_SHARE, EngineSettings, Runner
from deployments.engines.yaml_values import BOOLEANS, Boolean, as_meant
from search.token_beam import MAX_WIDTH

CPU_BATCH_TOKENS = 4096
GPU_BATCH_TOKENS = 8192
"""Maximum tokens per engine step. vLLM's default for an AsyncLLM, 2,048, would split the passes of a reward model."""
SAMPLED_BLOCKS = 0.05
"""Share of KV blocks whose lifetime is recorded. A block takes a random number, and a sampled one the time at every
read."""
STEP_SCHEDULER = "deployments.engines.step_scheduler.StepScheduler"
WORKER_EXTENSION = "deployments.engines.worker_extension.WorkerExtension"

TYPES = {field.name: field.type for field in fields(AsyncEngineArgs)}
"""The type of each engine argument."""


def engine_args(
    settings: EngineSettings,
    *,
    runner: Runner,
    kv_transfer: KVTransferConfig | None = None,
    pooler: PoolerConfig | None = None,
    model: Mapping[str, Any] | None = None,
    unused: Collection[str] = (),
) -> AsyncEngineArgs:
    """vLLM's engine arguments for this machine. ``settings.engine_args`` overrides them.

    Args:
        model: arguments by which the model is read in another way than its files say.
        unused: names of weights that are not loaded.

    Raises:
        EngineStartError: the model directory holds no model, or an argument is unknown, forbidden or of the wrong type.
    """
    for name, path in settings.missing_models.items():  # vLLM would call it a malformed or unreachable hub id
        raise EngineStartError(f"no model at {path!r}: there is no {CONFIG_FILES[name]}")
    for name, fault in settings.missing_files.items():
        raise EngineStartError(f"{name}: {fault}")
    args: dict[str, Any] = {
        "model": settings.model_path,
        "runner": runner,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "kv_cache_metrics": True,
        "kv_cache_metrics_sample": SAMPLED_BLOCKS,
        "scheduler_cls": STEP_SCHEDULER if runner == "pooling" else None,
        "enable_log_requests": False,
        "use_tqdm_on_load": False,
        "kv_transfer_config": kv_transfer,
        "pooler_config": pooler,
        "max_logprobs": 2 * MAX_WIDTH,
        "worker_extension_cls": WORKER_EXTENSION,
        # `deployments.http.json_schema` is written for this backend. If whitespace were free, a model that does not
        # know JSON would write nothing else.
        "structured_outputs_config": StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=True),
    }
    if settings.block_size is not None:
        args["block_size"] = settings.block_size
    args |= loader_args(settings, unused)
    args |= model or {}
    if current_platform.is_cpu():
        args |= _cpu_args(settings)
    else:
        args |= _gpu_args(settings)
        args |= {"dtype": _gpu_dtype(settings, runner), "max_num_batched_tokens": _gpu_batch_tokens(settings, runner)}
    args |= {name: as_meant(TYPES.get(name, Any), value) for name, value in settings.engine_args.items()}
    if booleans := sorted(name for name, value in args.items() if isinstance(value, Boolean)):
        raise EngineStartError(f"engine_args: {', '.join(booleans)} may not be a boolean; {BOOLEANS}")
    if current_platform.is_cpu() and settings.seeded and args["enable_chunked_prefill"]:
        raise EngineStartError(
            "engine_args.enable_chunked_prefill must stay false on a CPU: a seeded request whose prefill "
            "is cut into chunks kills vLLM's engine there"
        )
    try:
        made = AsyncEngineArgs(**args)
    except (TypeError, ValueError) as error:
        raise EngineStartError(f"engine arguments for {settings.model!r}: {error}") from error
    if settings.exact:
        make_exact(made, settings.model)
    return made


def _cpu_args(settings: EngineSettings) -> dict[str, Any]:
    return {
        # A float32 checkpoint stays float32: most CPUs have no fast path for shorter types, and in float32 sampling
        # under a seed is reproducible whatever else is in the batch.
        "dtype": "float32" if settings.dtype == "auto" else settings.dtype,
        "block_size": settings.block_size or CPU_BLOCK_SIZE,
        # Unset, vLLM takes most of the host's memory and the second engine dies.
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes or CPU_KV_BYTES,
        # Compiled code is kept below VLLM_CACHE_ROOT, so that only an engine's first start waits for the compiler.
        "enforce_eager": not can_compile(),
        # A partial prefill rolls back the request's random generator, which a CPU generator cannot do.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(settings.max_model_len, CPU_BATCH_TOKENS),
    }


def _gpu_args(settings: EngineSettings) -> dict[str, Any]:
    gpus = settings.replicas.num_gpus or 0
    # vLLM refuses to start unless this much of the device is free, even where the KV memory is given.
    return {"gpu_memory_utilization": gpus if 0 < gpus < 1 else GPU_SHARE}


def _gpu_dtype(settings: EngineSettings, runner: Runner) -> str:
    """The type that vLLM takes for a generator under ``auto``: bfloat16 for a float32 checkpoint. For a reward model it
    would be float16.

    Raises:
        EngineStartError: the model's configuration cannot be read.
    """
    if settings.dtype != "auto" or runner == "generate" or "://" in settings.model_path:  # vLLM fetches its files
        return settings.dtype
    arguments = settings.engine_args
    try:
        config = get_config(settings.model_path, bool(arguments.get("trust_remote_code")), arguments.get("revision"))
        dtype = _get_and_verify_dtype(
            settings.model_path, config, "auto", is_pooling_model=False, revision=arguments.get("revision")
        )
    except Exception as error:  # any error of vLLM, the hub or a file's reader
        raise EngineStartError(f"{settings.model!r}: {error}") from error
    return str(dtype).removeprefix("torch.")


def _gpu_batch_tokens(settings: EngineSettings, runner: Runner) -> int:
    """Maximum tokens per engine step: at least a whole context where vLLM may not split prompts into chunks, which it
    decides by the pooler of a reward model."""
    whole = runner == "pooling" or settings.engine_args.get("enable_chunked_prefill") is False
    return max(settings.max_model_len, GPU_BATCH_TOKENS) if whole else GPU_BATCH_TOKENS

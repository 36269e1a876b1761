"""Prints what vLLM's configuration of both engines is on a GPU that is not there: a line of JSON for each.

    python -m tests.engine.fake_gpu 9.0 exact

NVML and the extension module are replaced before vLLM chooses its platform, so this needs a process of its own.
"""

import importlib.metadata
import json
import sys
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

VERSION = importlib.metadata.version


def pretend(capability: str) -> None:
    """Makes vLLM find the build for GPUs, and one GPU of this compute capability."""
    patch("importlib.metadata.version", lambda name: "0.32.0" if name == "vllm" else VERSION(name)).start()
    import torch  # noqa: F401  # asks for versions of its own
    import vllm.third_party.pynvml as nvml

    sys.modules["vllm._C_stable_libtorch"] = ModuleType("vllm._C_stable_libtorch")
    replies = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetCudaComputeCapability": tuple(map(int, capability.split("."))),
        "nvmlDeviceGetName": "a GPU that is not there",
        "nvmlDeviceGetMemoryInfo": Mock(total=80 << 30),
    }
    for name, reply in replies.items():
        patch.object(nvml, name, Mock(return_value=reply)).start()


def configured(exact: bool) -> list[dict[str, Any]]:
    """The figures of both engines."""
    from vllm import envs
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    from deployments.engines.arguments import engine_args
    from deployments.engines.environment import engine_environment
    from deployments.engines.rewards.step_head import StepHeadSettings
    from deployments.engines.scoring import scoring_args
    from deployments.engines.settings import EMBEDDED_GENERATOR, EMBEDDED_PRM, GeneratorSettings
    from kvstore.memory.engine_geometry import expected_geometry

    memory: dict[str, Any] = {"exact": exact, "kv_cache_memory_bytes": 1 << 30, "replicas": {"num_gpus": 0.5}}
    generator = GeneratorSettings(model=EMBEDDED_GENERATOR, **memory)
    prm = StepHeadSettings(family="step_head", model=EMBEDDED_PRM, **memory)
    found = []
    for settings, args in ((generator, engine_args(generator, runner="generate")), (prm, scoring_args(prm))):
        with patch.dict("os.environ", engine_environment(settings)):
            envs.disable_envs_cache()
            config = args.create_engine_config()
            with set_current_vllm_config(config):
                attention = get_attn_backend(config.model_config.get_head_size(), config.model_config.dtype, None)
            found.append(
                {
                    "platform": config.device_config.device_type,
                    "dtype": str(config.model_config.dtype),
                    "batched_tokens": config.scheduler_config.max_num_batched_tokens,
                    "chunked": config.scheduler_config.enable_chunked_prefill,
                    "tokens_per_block": [group.block_size for group in expected_geometry(config).groups],
                    "expected_tokens_per_block": settings.expected_block_size,
                    "named_attention": getattr(config.attention_config.backend, "name", None),
                    "attention": attention.get_name(),
                    "batch_invariant": envs.VLLM_BATCH_INVARIANT,
                    "flashinfer_sampler": envs.VLLM_USE_FLASHINFER_SAMPLER,
                }
            )
    return found


if __name__ == "__main__":
    pretend(sys.argv[1])
    for each in configured("exact" in sys.argv[2:]):
        print(json.dumps(each))

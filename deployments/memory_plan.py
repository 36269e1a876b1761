"""What the engines of a configuration need on this machine, before any of them starts. Importing it imports vLLM."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from vllm import AsyncEngineArgs

from deployments.config import AppConfig
from deployments.engines.arguments import engine_args
from deployments.engines.rewards.function import FunctionSettings
from deployments.engines.settings import EngineSettings
from kvstore.engine_geometry import expected_geometry
from kvstore.planner import Role


def roles_of(config: AppConfig, working_bytes: int, tokens: Mapping[str, float]) -> list[Role]:
    """The engines that share a device: one replica of each.

    Args:
        working_bytes: of each, beside weights and KV.
        tokens: what each was seen to hold, by name.

    Raises:
        EngineStartError: vLLM refuses its arguments.
        UnknownGeometry: what a model keeps per token cannot be told before it runs.
        OSError: a model's weights are not to be had.
    """
    roles = [
        _role("generator", config.generator, engine_args(config.generator, runner="generate"), working_bytes, tokens)
    ]
    if not isinstance(config.prm, FunctionSettings):
        args = engine_args(config.prm, runner=config.prm.reader.runner)
        roles.append(_role("prm", config.prm, args, working_bytes, tokens))
    return roles


def _role(
    name: str, settings: EngineSettings, args: AsyncEngineArgs, working_bytes: int, tokens: Mapping[str, float]
) -> Role:
    vllm_config = args.create_engine_config()
    weights = parameters(settings.model_path) * element_bytes(vllm_config.model_config.dtype)
    return Role(
        name, weights, working_bytes, expected_geometry(vllm_config), settings.max_model_len, tokens.get(name, 1.0)
    )


def element_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def parameters(model: str) -> int:
    """Numbers in a model's safetensors files: a directory's, or those that a hub has under this id."""
    directory = Path(model)
    if not directory.is_dir():
        from huggingface_hub import get_safetensors_metadata

        return sum(get_safetensors_metadata(model).parameter_count.values())
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{model} has no safetensors files")
    numbers = 0
    for path in files:
        with safe_open(path, framework="pt") as tensors:
            numbers += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return numbers


def device_bytes() -> int | None:
    """Of the device of this machine; None where engines run on its CPU, and somebody has to say how much is theirs."""
    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None

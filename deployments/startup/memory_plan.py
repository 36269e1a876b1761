"""What the engines of a configuration need on this machine, before any of them starts. Importing it imports vLLM."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from vllm import AsyncEngineArgs
from vllm.config import ModelConfig

from deployments.config import AppConfig
from deployments.engines.arguments import engine_args
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.function import FunctionSettings
from deployments.engines.scoring import scoring_args
from deployments.engines.settings import EngineSettings
from kvstore.memory.engine_geometry import expected_geometry
from kvstore.memory.planner import Role

BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}
"""Of a number, by the digits in safetensors' name of its type: F32, BF16, I8, F8_E4M3."""


def roles_of(config: AppConfig, working_bytes: int, tokens: Mapping[str, float]) -> list[Role]:
    """The engines that share a device: one replica of each.

    Args:
        working_bytes: of each, beside weights and KV.
        tokens: what each holds, by name: only their ratio matters.

    Raises:
        EngineStartError: vLLM refuses a model or its arguments, its weights are not to be had, or what it keeps per
            token cannot be told before it runs.
    """
    args = engine_args(config.generator, runner="generate")
    roles = [_role("generator", config.generator, args, working_bytes, tokens)]
    if not isinstance(config.prm, FunctionSettings):
        roles.append(_role("prm", config.prm, scoring_args(config.prm), working_bytes, tokens))
    return roles


def _role(
    name: str, settings: EngineSettings, args: AsyncEngineArgs, working_bytes: int, tokens: Mapping[str, float]
) -> Role:
    try:
        config = args.create_engine_config()
        # Tensor and pipeline parallelism cut the weights, too.
        weights = -(-weight_bytes(settings.model_path, config.model_config) // config.parallel_config.world_size)
        geometry = expected_geometry(config)
    except Exception as error:  # whatever vLLM, the hub or a file's reader has to say
        raise EngineStartError(f"{settings.model!r}: {error}") from error
    return Role(name, weights, working_bytes, geometry, settings.max_model_len, tokens[name])


def weight_bytes(model: str, config: ModelConfig) -> int:
    """What a model's weights take once they are loaded."""
    numbers = stored_numbers(model)
    if config.quantization is not None:
        return sum(count * element_bytes(dtype) for dtype, count in numbers.items())
    size: int = config.dtype.itemsize
    return sum(numbers.values()) * size


def element_bytes(dtype: str) -> int:
    """Of a type as safetensors calls it."""
    digits = "".join(each for each in dtype.partition("_")[0] if each.isdigit())
    return BYTES.get(digits, 1)


def stored_numbers(model: str) -> Counter[str]:
    """Numbers in a model's safetensors files, by their type: a directory's, or those that a hub has under this id."""
    directory = Path(model)
    if not directory.is_dir():
        from huggingface_hub import get_safetensors_metadata

        return Counter(get_safetensors_metadata(model).parameter_count)
    numbers: Counter[str] = Counter()
    for path in _files(directory):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                tensor = tensors.get_slice(name)
                numbers[tensor.get_dtype()] += math.prod(tensor.get_shape())
    return numbers


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return [directory / name for name in sorted({*json.loads(index.read_text())["weight_map"].values()})]
    found = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError("there are no safetensors files")
    return found


def device_bytes() -> int | None:
    """Of the device of this machine; None where engines run on its CPU, and somebody has to say how much is theirs."""
    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None

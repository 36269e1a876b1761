"""Memory that a configuration's engines need, computed before any of them starts. Importing this imports vLLM."""

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
from deployments.engines.scoring import scoring_args
from deployments.engines.settings import EngineSettings
from kvstore.memory.engine_geometry import expected_geometry
from kvstore.memory.planner import TOKENS, VERIFIER_TOKENS, Role

BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}
"""Bytes of one weight, by the digits in safetensors' name of its dtype: F32, BF16, I8, F8_E4M3."""


def roles_of(config: AppConfig, working_bytes: int, tokens: Mapping[str, float]) -> list[Role]:
    """Memory needs of the engines that share a device, one replica of each.

    Args:
        working_bytes: working memory of each engine, in addition to weights and KV.
        tokens: tokens that generator and reward model hold, by name; each of several reward models holds as many. Only
            their ratio matters. Without "prm" its default is used.

    Raises:
        EngineStartError: vLLM refuses a model or its arguments, the weights are not available, or the KV size of a
            token is not known before the engine runs.
    """
    args = engine_args(config.generator, runner="generate")
    roles = [_role("generator", config.generator, args, working_bytes, tokens["generator"])]
    for path, prm in config.prm.engines.items():
        default = VERIFIER_TOKENS if prm.critique_tokens else TOKENS["prm"]
        roles.append(_role(f"prm{path}", prm, scoring_args(prm), working_bytes, tokens.get("prm", default)))
    return roles


def _role(name: str, settings: EngineSettings, args: AsyncEngineArgs, working_bytes: int, tokens: float) -> Role:
    try:
        config = args.create_engine_config()
        # Tensor and pipeline parallelism divide the weights, too.
        # An adapter is merged into a model's weights.
        weights = sum(
            weight_bytes(path, config.model_config, settings.revisions.get(name))
            for name, path in settings.model_paths.items()
            if name != "lora"
        )
        weights = -(-weights // config.parallel_config.world_size)
        geometry = expected_geometry(config)
    except Exception as error:  # any error of vLLM, the hub or a file's reader
        raise EngineStartError(f"{settings.model!r}: {error}") from error
    return Role(name, weights, working_bytes, geometry, settings.max_model_len, tokens)


def weight_bytes(model: str, config: ModelConfig, revision: str | None = None) -> int:
    """Size of a model's loaded weights, bytes."""
    numbers = stored_numbers(model, revision)
    if config.quantization is not None:
        return sum(count * element_bytes(dtype) for dtype, count in numbers.items())
    size: int = config.dtype.itemsize
    return sum(numbers.values()) * size


def element_bytes(dtype: str) -> int:
    """Bytes of one weight of a safetensors dtype."""
    digits = "".join(each for each in dtype.partition("_")[0] if each.isdigit())
    return BYTES.get(digits, 1)


def stored_numbers(model: str, revision: str | None = None) -> Counter[str]:
    """Number of weights in a model's safetensors files, by dtype. ``model``: a directory or a hub id."""
    directory = Path(model)
    if not directory.is_dir():
        from huggingface_hub import get_safetensors_metadata

        return Counter(get_safetensors_metadata(model, revision=revision).parameter_count)
    numbers: Counter[str] = Counter()
    for path in _files(directory):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
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
    """Memory of this machine's GPU, bytes; None without one: how much engines on a CPU may use must then be given."""
    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None

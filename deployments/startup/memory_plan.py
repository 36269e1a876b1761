"""Memory that engines need, from their settings and their models' files: without vLLM, before any starts."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.config import AppConfig
from deployments.engines.checkpoint import INDEX
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.settings import EngineSettings
from deployments.engines.vllm_build import runs_on_cpu
from deployments.engines.yaml_values import as_meant
from deployments.startup.model_files import model_directories
from kvstore.memory.device_memory import TOKENS, VERIFIER_TOKENS, Role
from kvstore.memory.geometry import MODELS, KVGeometry, UnknownGeometry
from kvstore.memory.model_geometry import model_geometry

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}
"""Bytes of one weight, by the digits in the name of its dtype: F32, BF16, I8, F8_E4M3, float32."""
WORKING_BYTES = 2 << 30
"""Default memory of an engine beside weights and KV, an assumption: CUDA's context, activations, captured graphs."""
BATCHED_TOKENS = 8192
"""Tokens of one engine step, at most, where the settings do not say. Two steps may be in flight."""


def roles_of(config: AppConfig, working_bytes: int, tokens: Mapping[str, float]) -> list[Role]:
    """Memory needs of the engines, one replica of each.

    Args:
        working_bytes: working memory of each engine, in addition to weights and KV.
        tokens: tokens that generator and reward model hold, by name; each of several reward models holds as many. Only
            their ratio matters. Defaults are used for missing ones.

    Raises:
        EngineStartError: as `role_of`.
    """
    return [
        role_of(path, engine, working_bytes, tokens.get("generator" if path == "generator" else "prm"))
        for path, engine in config.engines.items()
    ]


def role_of(
    path: str, settings: EngineSettings, working_bytes: int = WORKING_BYTES, tokens: float | None = None
) -> Role:
    """Memory needs of one engine, on each of its devices.

    Args:
        path: path of the engine's settings.
        tokens: tokens that it holds, relative to other engines; unset: the default of its kind.

    Raises:
        EngineStartError: the weights are not available, or the KV size of a token is not known before the engine runs.
    """
    if tokens is None:
        tokens = TOKENS["generator"]
        if isinstance(settings, RewardModelSettings):
            tokens = VERIFIER_TOKENS if settings.critique_tokens else TOKENS["prm"]
    tensor, pipeline, _ = settings.parallel_sizes
    weights, geometry = 0, None
    try:
        directories = zip(settings.model_paths.items(), model_directories(settings), strict=True)
        for (name, model), directory in directories:
            if name == "lora":  # merged into the model's weights
                continue
            revision = settings.revisions.get(name)
            config = _configuration(settings, directory or model, None if directory else revision)
            numbers = stored_numbers(model, directory, revision)
            weights += sum(count * size for count, size in _loaded(settings, config, numbers))
            geometry = geometry or _geometry(settings, config)  # models of one engine have the same shape
    except Exception as error:  # any error of transformers, the hub or a file's reader
        raise EngineStartError(f"{path}.model: the memory of {settings.model!r} is not known: {error}") from error
    assert geometry is not None
    weights = -(-weights // (tensor * pipeline))
    return Role(path, weights, working_bytes, geometry, settings.max_model_len, tokens)


def _configuration(settings: EngineSettings, model: Path | str, revision: str | None) -> "PreTrainedConfig":
    """The configuration in a model's directory, or at the hub."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        model,
        revision=revision,
        cache_dir=settings.engine_args.get("download_dir"),
        trust_remote_code=settings.tokenizer.trust_remote_code,
    )
    config.update(settings.engine_args.get("hf_overrides") or {})
    return config


def _number_bytes(settings: EngineSettings) -> int:
    """Bytes of a weight that is not quantized, and of a number of a key or value. ``dtype: auto`` is float32 on a CPU,
    and a type of 16 bits on a GPU."""
    if settings.dtype == "auto":
        return 4 if runs_on_cpu() else 2
    return element_bytes(settings.dtype)


def _loaded(settings: EngineSettings, config: "PreTrainedConfig", numbers: Counter[str]) -> Iterator[tuple[int, int]]:
    """Weights as the engine holds them: their number, and the bytes of each. Quantized ones stay as they are stored."""
    quantized = getattr(config, "quantization_config", None) or numbers.keys() - {"F64", "F32", "F16", "BF16"}
    changed = {"cpu_offload_gb"} | (set() if quantized else {"quantization"})
    if names := sorted(changed & settings.engine_args.keys()):
        raise ValueError(f"engine_args.{names[0]} changes the memory of the weights")
    for dtype, count in numbers.items():
        yield count, element_bytes(dtype) if quantized else _number_bytes(settings)


def _geometry(settings: EngineSettings, config: "PreTrainedConfig") -> KVGeometry:
    arguments = settings.engine_args
    tensor, pipeline, _ = settings.parallel_sizes
    if arguments.get("speculative_config"):
        raise UnknownGeometry("the KV of a draft model (speculative_config) is not counted")
    dtype = str(arguments.get("kv_cache_dtype", "auto"))
    if not dtype.startswith(("auto", "float", "bfloat16", "half", "fp8")):
        raise UnknownGeometry(f"{dtype} has a layout that depends on the attention backend")
    number_bytes = {"auto": _number_bytes(settings), "half": 2}.get(dtype) or (
        1 if dtype.startswith("fp8") else element_bytes(dtype)
    )
    batched = as_meant(int, arguments.get("max_num_batched_tokens"))
    return model_geometry(
        config.get_text_config(),
        block_size=settings.expected_block_size,
        number_bytes=number_bytes,
        max_model_len=settings.max_model_len,
        in_flight_tokens=2 * (batched if isinstance(batched, int) else BATCHED_TOKENS),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        models=settings.hf_overrides.get(MODELS, 1) if isinstance(settings, RewardModelSettings) else 1,
    )


def element_bytes(dtype: str) -> int:
    """Bytes of one number of a dtype, as safetensors or torch call it."""
    digits = "".join(each for each in dtype.partition("_")[0] if each.isdigit())
    return BYTES.get(digits, 1)


def stored_numbers(model: str, directory: Path | None, revision: str | None) -> Counter[str]:
    """Number of weights in a model's safetensors files, by dtype.

    Args:
        model: a directory or a hub id.
        directory: where its files are on this machine. The hub is asked for what is missing there.

    Raises:
        FileNotFoundError: a directory has no such files, or not all of them.
    """
    files = [] if directory is None else _files(directory)
    if not files or not all(file.is_file() for file in files):
        if Path(model).is_dir():
            raise FileNotFoundError("there are no safetensors files, or some are missing")
        from huggingface_hub import get_safetensors_metadata

        return Counter(get_safetensors_metadata(model, revision=revision).parameter_count)
    from safetensors import safe_open

    numbers: Counter[str] = Counter()
    for file in files:
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                tensor = tensors.get_slice(name)
                numbers[tensor.get_dtype()] += math.prod(tensor.get_shape())
    return numbers


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        return [directory / name for name in sorted({*json.loads(index.read_text())["weight_map"].values()})]
    return sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))


def device_bytes() -> int | None:
    """Memory of this machine's GPU, bytes; None without one: how much engines on a CPU may use must then be given."""
    import torch

    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None

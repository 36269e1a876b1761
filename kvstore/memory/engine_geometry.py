"""The KV geometry of an engine: from its configuration before it starts, and from its own process once it runs.

The KV spec of each layer is derived here; vLLM's own code groups the layers. Imports vLLM.
"""

from copy import copy
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_quant_mode,
)

from kvstore.memory.geometry import MODELS, KVGeometry, KVGroup, UnknownGeometry

FULL = "full_attention"
SLIDING = "sliding_attention"
UNQUANTIZED_DTYPES = {"auto", "float32", "float16", "half", "bfloat16"}
FP8_DTYPES = {"fp8", "fp8_e4m3", "fp8_e5m2"}
ANY_LAYOUT = "LBHNC"
"""A layout with which vLLM can group layers before an engine has chosen its own."""


def expected_geometry(config: VllmConfig) -> KVGeometry:
    """KV geometry of an engine with this configuration. Fast, and needs no device.

    Raises:
        UnknownGeometry: it cannot be derived from the configuration.
    """
    specs = {f"layer {index}": spec for index, spec in enumerate(_layers(config))}
    groups = get_kv_cache_groups(_with_layout(config), specs)
    return _geometry(config, groups, max(sum(_page_bytes(group)) for group in groups))


def _with_layout(config: VllmConfig) -> VllmConfig:
    """The configuration with a KV cache layout, which vLLM needs to group layers and only a running engine chooses. The
    layout makes no difference if all layers have the same page size."""
    if config.cache_config.kv_cache_layout is not None:
        return config
    decided = copy(config)
    decided.cache_config = copy(config.cache_config)
    decided.cache_config.kv_cache_layout = ANY_LAYOUT
    return decided


class GeometryReport:
    """A vLLM worker extension (``worker_extension_cls``) that reports the KV geometry of a running engine."""

    def kv_geometry(self: Any) -> tuple[list[list[int | None]], int]:
        """The arguments of `KVGeometry.of`: the groups (none if the worker has no KV cache) and the bytes per block."""
        cache = self.model_runner.kv_cache_config
        if not cache.kv_cache_tensors:
            return [], 0
        bytes_per_block = cache.kv_cache_tensors[0].size // cache.num_blocks
        geometry = _geometry(self.vllm_config, cache.kv_cache_groups, bytes_per_block)
        return [list(group) for group in geometry.groups], geometry.bytes_per_block


def _geometry(config: VllmConfig, groups: list[KVCacheGroupSpec], bytes_per_block: int) -> KVGeometry:
    cached = (group for group in groups if not isinstance(group.kv_cache_spec, EncoderOnlyAttentionSpec))
    return KVGeometry(tuple(_group(config, group) for group in cached), bytes_per_block)


def _group(config: VllmConfig, group: KVCacheGroupSpec) -> KVGroup:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    most = None
    if not isinstance(spec, FullAttentionSpec):
        most = -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
    of_tokens = isinstance(spec, FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec)
    # A pipeline stage may have no layer of a group.
    return KVGroup(len(group.layer_names), max(_page_bytes(group), default=0), spec.block_size, most, of_tokens)


def _page_bytes(group: KVCacheGroupSpec) -> list[int]:
    """Bytes of a block in each layer of the group."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return [each.page_size_bytes for each in spec.kv_cache_specs.values()]
    return [spec.page_size_bytes] * len(group.layer_names)


def _layers(config: VllmConfig) -> list[KVCacheSpec]:
    model, cache = config.model_config, config.cache_config
    if reason := _why_unknown(config):
        raise UnknownGeometry(f"{model.architecture}: {reason}")
    dtype = kv_cache_dtype_str_to_dtype(cache.cache_dtype, model)
    start, end = model.get_layers_start_end_indices(config.parallel_config)
    models: int = getattr(model.hf_config, MODELS, 1)
    if model.use_mla:
        # One latent vector for all heads, followed by the rotary part.
        latent = MLAAttentionSpec(
            block_size=cache.block_size, num_kv_heads=1, head_size=model.get_head_size(), dtype=dtype
        )
        return [latent] * (end - start) * models
    kinds = _kinds(config)[start:end] * models
    return [_attention(config, kind, dtype) for kind in kinds]


def _why_unknown(config: VllmConfig) -> str | None:
    """Why the geometry of this model cannot be derived; None if it can. Cases that are missing here are found when the
    running engine reports another geometry."""
    model, cache = config.model_config, config.cache_config
    dtypes = UNQUANTIZED_DTYPES if model.use_mla else UNQUANTIZED_DTYPES | FP8_DTYPES
    reasons = {
        "it has layers without attention": model.is_attention_free or model.is_hybrid or model.has_noops,
        "the number or size of its KV heads differs between layers": getattr(
            model.model_arch_config, "per_layer_overrides", None
        )
        is not None,
        "it stores an index in addition to its latent vectors": bool(getattr(model.hf_text_config, "index_topk", None)),
        "the KV of a draft model (speculative_config) is not counted": config.speculative_config is not None,
        f"{cache.cache_dtype} has a layout that depends on the attention backend": cache.cache_dtype not in dtypes,
        "layers have different KV data types": bool(cache.kv_cache_dtype_skip_layers),
        "its pipeline stages have different layers": config.parallel_config.pipeline_parallel_size > 1
        and len({*_kinds(config)}) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _kinds(config: VllmConfig) -> list[str]:
    """Attention type of each layer: ``FULL`` or ``SLIDING``."""
    model = config.model_config
    text = model.hf_text_config
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return [FULL if model.get_sliding_window() is None else SLIDING] * model.get_total_num_hidden_layers()
    if unknown := {*kinds} - {FULL, SLIDING}:
        raise UnknownGeometry(f"{model.architecture} has layers of an unsupported type: {', '.join(sorted(unknown))}")
    if getattr(text, "num_kv_shared_layers", 0):
        raise UnknownGeometry(f"{model.architecture}: some layers use the KV of other layers (num_kv_shared_layers)")
    return list(kinds)


def _attention(config: VllmConfig, kind: str, dtype: torch.dtype) -> AttentionSpec:
    model, cache = config.model_config, config.cache_config
    common: dict[str, Any] = {
        "block_size": cache.block_size,
        "num_kv_heads": model.get_num_kv_heads(config.parallel_config),
        "head_size": model.get_head_size(),
        "dtype": dtype,
        "kv_quant_mode": get_kv_quant_mode(cache.cache_dtype),
    }
    if kind == SLIDING:
        return SlidingWindowSpec(sliding_window=model.get_sliding_window(), **common)
    return FullAttentionSpec(**common)

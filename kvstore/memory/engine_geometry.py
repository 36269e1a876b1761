"""The KV geometry of an engine: from its configuration before it starts, and from its own process once it runs.

What a layer keeps is told here; how vLLM groups the layers it says itself. Imports vLLM.
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

from kvstore.memory.geometry import KVGeometry, KVGroup, UnknownGeometry

FULL = "full_attention"
SLIDING = "sliding_attention"
PLAIN = {"auto", "float32", "float16", "half", "bfloat16"}
BYTES = {"fp8", "fp8_e4m3", "fp8_e5m2"}
ANY_LAYOUT = "LBHNC"


def expected_geometry(config: VllmConfig) -> KVGeometry:
    """What an engine with this configuration will keep. Takes no time and no device.

    Raises:
        UnknownGeometry: that cannot be told from the configuration.
    """
    specs = {f"layer {place}": spec for place, spec in enumerate(_layers(config))}
    groups = get_kv_cache_groups(_with_layout(config), specs)
    return _geometry(config, groups, max(sum(_pages(group)) for group in groups))


def _with_layout(config: VllmConfig) -> VllmConfig:
    """A configuration that says how blocks lie in memory, as only an engine decides. It makes no difference for layers
    that all keep as much, but vLLM wants to know before it groups them."""
    if config.cache_config.kv_cache_layout is not None:
        return config
    decided = copy(config)
    decided.cache_config = copy(config.cache_config)
    decided.cache_config.kv_cache_layout = ANY_LAYOUT
    return decided


class GeometryReport:
    """What vLLM is told to add to its workers (``worker_extension_cls``), so that they can be asked."""

    def kv_geometry(self: Any) -> tuple[list[list[int | None]], int]:
        """The arguments of `KVGeometry.of`: the groups, none where nothing is kept, and the bytes of a block."""
        kept = self.model_runner.kv_cache_config
        if not kept.kv_cache_tensors:
            return [], 0
        bytes_per_block = kept.kv_cache_tensors[0].size // kept.num_blocks
        geometry = _geometry(self.vllm_config, kept.kv_cache_groups, bytes_per_block)
        return [list(group) for group in geometry.groups], geometry.bytes_per_block


def _geometry(config: VllmConfig, groups: list[KVCacheGroupSpec], bytes_per_block: int) -> KVGeometry:
    kept = (group for group in groups if not isinstance(group.kv_cache_spec, EncoderOnlyAttentionSpec))
    return KVGeometry(tuple(_group(config, group) for group in kept), bytes_per_block)


def _group(config: VllmConfig, group: KVCacheGroupSpec) -> KVGroup:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    most = None
    if not isinstance(spec, FullAttentionSpec):
        most = -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)
    of_tokens = isinstance(spec, FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec)
    # A stage of a pipeline may have no layer of a group.
    return KVGroup(len(group.layer_names), max(_pages(group), default=0), spec.block_size, most, of_tokens)


def _pages(group: KVCacheGroupSpec) -> list[int]:
    """Bytes of each layer's part of a block."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return [each.page_size_bytes for each in spec.kv_cache_specs.values()]
    return [spec.page_size_bytes] * len(group.layer_names)


def _layers(config: VllmConfig) -> list[KVCacheSpec]:
    model, cache = config.model_config, config.cache_config
    if reason := _not_to_be_told(config):
        raise UnknownGeometry(f"{model.architecture}: {reason}")
    dtype = kv_cache_dtype_str_to_dtype(cache.cache_dtype, model)
    start, end = model.get_layers_start_end_indices(config.parallel_config)
    if model.use_mla:
        # One latent vector for all heads; what rotates stands behind it.
        latent = MLAAttentionSpec(
            block_size=cache.block_size, num_kv_heads=1, head_size=model.get_head_size(), dtype=dtype
        )
        return [latent] * (end - start)
    kinds = _kinds(config)[start:end]
    return [_attention(config, kind, dtype) for kind in kinds]


def _not_to_be_told(config: VllmConfig) -> str | None:
    """Why nothing is expected of a model: what is not listed here is refused where it turns out to be otherwise."""
    model, cache = config.model_config, config.cache_config
    dtypes = PLAIN if model.use_mla else PLAIN | BYTES
    reasons = {
        "it has layers that are no attention": model.is_attention_free or model.is_hybrid or model.has_noops,
        "its layers differ in their heads": getattr(model.model_arch_config, "per_layer_overrides", None) is not None,
        "it keeps an index beside its latent vectors": bool(getattr(model.hf_text_config, "index_topk", None)),
        "a draft model has layers too": config.speculative_config is not None,
        f"{cache.cache_dtype} is kept as a backend likes": cache.cache_dtype not in dtypes,
        "layers are kept in types of their own": bool(cache.kv_cache_dtype_skip_layers),
        "its stages have different layers": config.parallel_config.pipeline_parallel_size > 1
        and len({*_kinds(config)}) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _kinds(config: VllmConfig) -> list[str]:
    """How far each layer looks back."""
    model = config.model_config
    text = model.hf_text_config
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return [FULL if model.get_sliding_window() is None else SLIDING] * model.get_total_num_hidden_layers()
    if unknown := {*kinds} - {FULL, SLIDING}:
        raise UnknownGeometry(f"{model.architecture} has layers of {', '.join(sorted(unknown))}")
    if getattr(text, "num_kv_shared_layers", 0):
        raise UnknownGeometry(f"{model.architecture} has layers that share their keys and values")
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

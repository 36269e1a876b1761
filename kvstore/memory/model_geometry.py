"""The KV geometry of a model from its configuration alone, without vLLM: for plans that are made before any engine
starts. `kvstore.memory.engine_geometry` derives the same from vLLM's configuration; tests compare the two.
"""

from collections import Counter
from typing import Any

from kvstore.memory.geometry import KVGeometry, KVGroup, UnknownGeometry

FULL = "full_attention"
SLIDING = "sliding_attention"
KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
"""Entries for the number of heads that have keys and values. Without any, all heads have."""
OTHER_LAYERS = ("mamba", "ssm", "linear_", "layers_block_type", "hybrid_override_pattern", "block_configs", "rwkv")
"""Beginnings of the names of entries that describe layers without attention, or layers that differ from each other."""
UNPLANNED = {
    "index_topk": "it stores an index in addition to its latent vectors",
    "num_kv_shared_layers": "some layers use the KV of other layers (num_kv_shared_layers)",
    "global_head_dim": "the number or size of its KV heads differs between layers",
    "attention_chunk_size": "it has layers of an unsupported type: chunked_attention",
}


def model_geometry(
    text: Any,
    *,
    block_size: int,
    number_bytes: int,
    max_model_len: int,
    in_flight_tokens: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    models: int = 1,
) -> KVGeometry:
    """The KV geometry on each of an engine's devices.

    Args:
        text: the configuration of the model's text part, as transformers reads it.
        block_size: tokens per block.
        number_bytes: bytes of one number of a key or value.
        in_flight_tokens: most tokens that are scheduled at a time. Only sliding windows depend on it.
        models: number of models of this shape that the engine holds.

    Raises:
        UnknownGeometry: it cannot be derived from the configuration.
    """
    kinds = _kinds(text)
    if pipeline_parallel > 1 and len({*kinds}) > 1:
        raise UnknownGeometry(f"{text.model_type}: its pipeline stages have different layers")
    layers = Counter(kinds[: -(-len(kinds) // pipeline_parallel)] * models)
    page = block_size * _numbers_per_token(text, tensor_parallel) * number_bytes
    width = _layers_per_group(layers)
    groups = []
    for kind, count in layers.items():
        most = None
        if kind == SLIDING:
            # As vLLM counts: the window, all tokens in flight, and a block that the window only begins in.
            most = -(-min(text.sliding_window - 1 + in_flight_tokens, max_model_len) // block_size) + 1
        parts = -(-count // width)
        groups += [KVGroup(len(range(part, count, parts)), page, block_size, most) for part in range(parts)]
    return KVGeometry(tuple(groups), max(group.layers for group in groups) * page)


def _kinds(text: Any) -> list[str]:
    """Attention type of each layer: ``FULL`` or ``SLIDING``."""
    for name, value in text.to_dict().items():
        reason = UNPLANNED.get(name) or ("it has layers without attention" if name.startswith(OTHER_LAYERS) else "")
        if value and reason:
            raise UnknownGeometry(f"{text.model_type}: {reason}")
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return [SLIDING if window else FULL] * text.num_hidden_layers
    if unknown := {*kinds} - {FULL, SLIDING}:
        raise UnknownGeometry(f"{text.model_type}: it has layers of an unsupported type: {', '.join(sorted(unknown))}")
    return list(kinds)


def _numbers_per_token(text: Any, tensor_parallel: int) -> int:
    """Numbers that one layer keeps for a token."""
    if latent := getattr(text, "kv_lora_rank", None):
        # One latent vector for all heads, followed by the rotary part; every device has it whole.
        return int(latent + text.qk_rope_head_dim)
    heads = next((found for name in KV_HEADS if (found := getattr(text, name, None))), text.num_attention_heads)
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        heads = 1
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * max(1, heads // tensor_parallel) * size)


def _layers_per_group(layers: Counter[str]) -> int:
    """vLLM's number of layers in each group: that of the rarer kind, or of the more frequent one where they are nearly
    as many (``_get_kv_cache_groups_uniform_page_size``)."""
    least, most = min(layers.values()), max(layers.values())
    return most if most < 1.5 * least else least

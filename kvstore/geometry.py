"""How much memory a token's keys and values take, from a model's Hugging Face configuration.

Multi-head, grouped-query and multi-query attention. Models that keep something else per token (multi-head latent
attention, state-space layers) are refused, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element, by the names that torch and vLLM's ``kv_cache_dtype`` use."""

_PER_HEAD_FREE_LAYERS = ("kv_lora_rank", "mamba_d_state", "ssm_state_size", "linear_num_value_heads")


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """The shape of one replica's KV cache."""

    layers: int
    kv_heads: int
    """Per device: tensor parallelism divides them, and repeats them once there are fewer heads than devices."""
    head_dim: int
    dtype_bytes: int
    block_size: int
    """Tokens per block."""

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "dtype_bytes", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        block_size: int,
        dtype: str | None = None,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> "KVGeometry":
        """Read a model's ``config.json`` (or ``PretrainedConfig.to_dict()``), nested ``text_config`` included.

        ``dtype`` names the cache's element type; None takes the model's own. The result is per device; with pipeline
        parallelism it is that of the device with most layers.

        Raises:
            ValueError: a figure is missing, or the model keeps something other than keys and values per head.
        """
        text = config.get("text_config") or config
        for name in _PER_HEAD_FREE_LAYERS:
            if text.get(name):
                raise ValueError(f"{name} is set: this model's cache is not keys and values per head")
        layers = _figure(text, "num_hidden_layers")
        heads = _figure(text, "num_attention_heads")
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or _figure(text, "hidden_size") // heads)
        return cls(
            layers=-(-layers // pipeline_parallel),
            kv_heads=max(1, kv_heads // tensor_parallel),
            head_dim=head_dim,
            dtype_bytes=_element_bytes(dtype or text.get("dtype") or text.get("torch_dtype") or config.get("dtype")),
            block_size=block_size,
        )

    @property
    def bytes_per_token(self) -> int:
        """Layers x 2 (a key and a value) x KV heads x head width x bytes of an element."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens; the last may be partly used."""
        return -(-max(0, tokens) // self.block_size)

    def blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into ``memory_bytes``."""
        return max(0, memory_bytes) // self.bytes_per_block

    def tokens_in(self, memory_bytes: int) -> int:
        """Tokens that whole blocks within ``memory_bytes`` hold."""
        return self.blocks_in(memory_bytes) * self.block_size


def _figure(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"the model's configuration needs {name} as a positive integer, not {value!r}")
    return value


def _element_bytes(dtype: object) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"unknown KV element type {name!r}; known: {', '.join(sorted(DTYPE_BYTES))}")
    return DTYPE_BYTES[name]

"""KV bytes against figures computed by hand."""

from typing import Any

import pytest

from kvstore.geometry import KVGeometry

QWEN2_5_7B: dict[str, Any] = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "torch_dtype": "bfloat16",
}
LLAMA_3_70B: dict[str, Any] = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
}
SMALL: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "float32",
}


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        (QWEN2_5_7B, 57_344),  # 28 layers x 2 x 4 heads x 128 x 2 bytes
        (LLAMA_3_70B, 327_680),  # 80 x 2 x 8 x 128 x 2
        (SMALL, 2_048),  # 4 x 2 x 2 x 32 x 4
    ],
)
def test_bytes_per_token(config: dict[str, Any], bytes_per_token: int) -> None:
    assert KVGeometry.from_config(config, block_size=16).bytes_per_token == bytes_per_token


def test_blocks_of_the_small_model() -> None:
    geometry = KVGeometry.from_config(SMALL, block_size=32)
    assert geometry.bytes_per_block == 65_536
    assert [geometry.blocks_for(tokens) for tokens in (-1, 0, 1, 32, 33)] == [0, 0, 1, 1, 2]
    assert geometry.blocks_in(256 << 20) == 4_096
    assert geometry.tokens_in(256 << 20) == 131_072
    assert geometry.blocks_in(65_535) == 0
    assert geometry.blocks_in(-1) == 0


def test_without_kv_heads_every_head_has_its_own() -> None:
    config = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    assert KVGeometry.from_config(config, block_size=32).kv_heads == 4


def test_the_cache_may_have_another_element_type() -> None:
    assert KVGeometry.from_config(LLAMA_3_70B, block_size=16, dtype="fp8").bytes_per_token == 163_840
    assert KVGeometry.from_config(SMALL, block_size=16, dtype="torch.float16").bytes_per_token == 1_024


@pytest.mark.parametrize(("devices", "kv_heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_tensor_parallelism_divides_heads_then_repeats_them(devices: int, kv_heads: int) -> None:
    assert KVGeometry.from_config(LLAMA_3_70B, block_size=16, tensor_parallel=devices).kv_heads == kv_heads


def test_pipeline_parallelism_takes_the_fullest_device() -> None:
    assert KVGeometry.from_config(QWEN2_5_7B, block_size=16, pipeline_parallel=3).layers == 10


def test_a_nested_text_model_is_found() -> None:
    assert KVGeometry.from_config({"text_config": SMALL}, block_size=32).bytes_per_token == 2_048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"dtype": "int3"}, "int3"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVGeometry.from_config(SMALL | change, block_size=32)

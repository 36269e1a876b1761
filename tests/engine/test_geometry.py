"""KV cache sizes computed from a model's configuration, against engines that have started."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig
from vllm import AsyncEngineArgs
from vllm.config import VllmConfig

from deployments.engines import template
from deployments.engines.errors import EngineStartError
from deployments.engines.lifecycle import engine_geometry
from deployments.engines.settings import EMBEDDED_GENERATOR, EMBEDDED_PRM, GeneratorSettings
from kvstore.memory.engine_geometry import expected_geometry
from kvstore.memory.geometry import KVGeometry, UnknownGeometry
from kvstore.memory.model_geometry import model_geometry
from tests.engine.architectures import ARCHITECTURES, LATENT_BYTES, Sizes, arguments, started, write
from tests.unit.manifests.published import MODELS


def config_of(architecture: str, directory: Path, **more: Any) -> VllmConfig:
    return AsyncEngineArgs(**arguments(write(architecture, directory)) | more).create_engine_config()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sizes]:
    """Of every architecture's engine, started in one process that has imported vLLM already."""
    forked = template.template_of(GeneratorSettings())
    assert forked is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "FORK_S", 600.0)
        return forked.call(partial(started, tmp_path_factory.mktemp("models"), [*ARCHITECTURES]))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_geometry_is_known_before_the_engine_starts(architecture: str, sizes: dict[str, Sizes]) -> None:
    expected, found, blocks = sizes[architecture]
    assert expected == found
    assert blocks == expected.blocks_in(64 << 20)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_geometry_by_the_files_alone_is_that_of_vllms_configuration(architecture: str, tmp_path: Path) -> None:
    assert_same_geometries(config_of(architecture, tmp_path))


@pytest.mark.parametrize("model", [EMBEDDED_GENERATOR, EMBEDDED_PRM])
def test_so_is_that_of_the_shipped_models(model: str) -> None:
    path = GeneratorSettings(model=model).model_path
    assert_same_geometries(AsyncEngineArgs(model=path, block_size=32, dtype="float32").create_engine_config())


@pytest.mark.parametrize("name", MODELS)
def test_so_is_that_of_published_models(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name].config))
    given = {"skip_tokenizer_init": True, "block_size": 32, "max_model_len": 4096}
    assert_same_geometries(AsyncEngineArgs(model=str(tmp_path), **given).create_engine_config())


def assert_same_geometries(config: VllmConfig) -> None:
    model = config.model_config
    by_files = model_geometry(
        AutoConfig.from_pretrained(model.model).get_text_config(),
        block_size=config.cache_config.block_size,
        number_bytes=model.dtype.itemsize,
        max_model_len=model.max_model_len,
        in_flight_tokens=config.max_in_flight_tokens,
    )
    assert by_files == expected_geometry(config)


@pytest.mark.parametrize(
    ("architecture", "bytes_per_token"),
    [
        ("LlamaForCausalLM", 4 * 2 * 2 * 32 * 4),  # layers, keys and values, heads, numbers per head, bytes
        ("Qwen3ForCausalLM", 4 * 2 * 2 * 64 * 4),
        ("FalconForCausalLM", 4 * 2 * 1 * 32 * 4),
        ("OPTForCausalLM", 4 * 2 * 4 * 32 * 4),
        ("GptOssForCausalLM", 2 * 2 * 2 * 64 * 4),  # every second layer keeps all tokens
        ("DeepseekV2ForCausalLM", 4 * (512 + 64) * LATENT_BYTES),  # one latent vector per token
        ("MistralForCausalLM", 0),  # sliding windows only
    ],
)
def test_bytes_of_a_token_by_hand(architecture: str, bytes_per_token: int, tmp_path: Path) -> None:
    """Of one more token in a long sequence, whose sliding windows are full."""
    geometry = expected_geometry(config_of(architecture, tmp_path))
    growing = (group for group in geometry.groups if group.most_blocks is None)
    assert sum(geometry.bytes_per_block / group.block_size for group in growing) == bytes_per_token


def test_keys_and_values_of_one_byte(tmp_path: Path) -> None:
    whole = expected_geometry(config_of("Qwen3ForCausalLM", tmp_path))
    small = expected_geometry(config_of("Qwen3ForCausalLM", tmp_path, kv_cache_dtype="fp8_e5m2"))
    assert small.bytes_per_block * 4 == whole.bytes_per_block


@pytest.mark.parametrize(
    ("architecture", "more", "reason"),
    [
        ("LlamaForCausalLM", {"kv_cache_dtype": "int8_per_token_head"}, "depends on the attention backend"),
        ("LlamaForCausalLM", {"kv_cache_dtype_skip_layers": ["0"]}, "different KV data types"),
        ("Gemma3ForCausalLM", {"hf_overrides": {"layer_types": ["chunked_attention"] * 7}}, "chunked_attention"),
    ],
)
def test_unknown_architectures_have_no_expected_size(
    architecture: str, more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownGeometry, match=reason):
        expected_geometry(config_of(architecture, tmp_path, **more))


class Engine:
    """An engine that reports what the test says."""

    def __init__(self, config: VllmConfig, geometry: KVGeometry) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self._geometry = geometry

    async def collective_rpc(self, method: str) -> list[Any]:
        assert method == "kv_geometry"
        return [self._geometry]


async def test_an_engine_that_keeps_more_than_expected_is_refused(tmp_path: Path) -> None:
    config = config_of("LlamaForCausalLM", tmp_path)
    expected = expected_geometry(config)
    as_expected: Any = Engine(config, expected)
    assert await engine_geometry(as_expected) == expected
    larger: Any = Engine(config, expected._replace(bytes_per_block=expected.bytes_per_block + 64))
    with pytest.raises(EngineStartError, match=r"\+64 bytes per block"):
        await engine_geometry(larger)

"""One cache server, supervised by its keeper, and one model for all tests of this folder."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kvstore.connector.arguments import QUIET_ENVIRONMENT
from kvstore.server.cache_server import CacheKeeper
from tests.cache.engines import VOCABULARY
from tests.cache.servers import BLOCK, SETTINGS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            # vLLM and torch warn about themselves and each other.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Environment of the engines and of the servers."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as sockets:
        for name, value in QUIET_ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_RPC_BASE_PATH", sockets)
        yield


SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 1024,
}


def saved(architecture: Any, config: Any, directory: Path) -> Path:
    """A model directory with random weights and without a tokenizer."""
    import torch

    torch.manual_seed(0)
    architecture(config).to(torch.float32).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**SHAPE, num_key_value_heads=2)
    path = saved(Qwen2ForCausalLM, config, tmp_path_factory.mktemp("qwen2"))
    written = json.loads((path / "config.json").read_text())
    assert written["hidden_size"] // written["num_attention_heads"] == 32
    return path


@pytest.fixture(scope="session")
def model_with_windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 in which all layers but one have a sliding window of two blocks."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **SHAPE,
        num_key_value_heads=1,
        head_dim=32,
        initializer_range=0.1,
        sliding_window=2 * BLOCK,
        layer_types=[*["sliding_attention"] * 3, "full_attention"],
    )
    return saved(Gemma3ForCausalLM, config, tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="session")
def keeper() -> Iterator[CacheKeeper]:
    keeper = CacheKeeper(SETTINGS, probe_failures=10)  # a busy machine or a stopped server misses some
    keeper.start()
    yield keeper
    keeper.stop()


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner

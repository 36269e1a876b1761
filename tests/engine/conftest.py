"""Engines shared by all tests of this folder: an engine takes half a minute to start, so each kind starts once.

The embedded models are used if they exist; otherwise tiny ones with random weights, whose output is nonsense but passes
through the same code.
"""

import tests.engine.without_compiler  # before torch is imported

# isort: split
import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

import tests.ray_environment  # noqa: F401  # before Ray is imported
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.settings import EMBEDDED_MODELS, GeneratorSettings
from scripts.embedded.language_model import qwen2_config
from scripts.embedded.tokenizer import build_tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Ignores warnings of vLLM and torch about themselves during imports and starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    import ray.serve  # noqa: F401
    from vllm.platforms import current_platform

    from deployments.engines.generation import GenerationEngine
    from deployments.engines.scoring import ScoringEngine

SETTLE_S = 30.0
"""Longest time until an engine reports that it is idle; generous, for a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM leaves its ZeroMQ contexts to the garbage collector, whose warning appears in some later test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


async def stop(engine: "GenerationEngine | ScoringEngine") -> None:
    """Shuts the engine down, and collects at once what vLLM leaves to the garbage collector, without its warnings."""
    with quiet():
        engine.shutdown()
        await asyncio.sleep(0)  # lets cancelled tasks end
        gc.collect()


def _random_generator(directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    Qwen2ForCausalLM(qwen2_config(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _random_prm(directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(1)
    config = qwen2_config(tokenizer)
    body = Qwen2ForCausalLM(config).state_dict()
    width = config.hidden_size
    weights = {name: tensor.clone() for name, tensor in body.items() if name.startswith("model.")} | {
        "score.0.weight": torch.randn(width, width) / 5,
        "score.0.bias": torch.randn(width) / 10,
        "score.2.weight": torch.randn(2, width) / 5,
        "score.2.bias": torch.randn(2) / 10,
    }
    config.architectures = ["Qwen2ForProcessRewardModel"]
    config.save_pretrained(directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(directory)


@pytest.fixture(scope="session")
def generator_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    if (EMBEDDED_MODELS / "generator" / "model.safetensors").is_file():
        return str(EMBEDDED_MODELS / "generator")
    directory = tmp_path_factory.mktemp("generator")
    _random_generator(directory, build_tokenizer())
    return str(directory)


@pytest.fixture(scope="session")
def prm_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    if (EMBEDDED_MODELS / "prm" / "model.safetensors").is_file():
        return str(EMBEDDED_MODELS / "prm")
    directory = tmp_path_factory.mktemp("prm")
    _random_prm(directory, build_tokenizer())
    return str(directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_generation(generator_model: str) -> AsyncIterator[GenerationEngine]:
    engine = GenerationEngine(GeneratorSettings(model=generator_model))
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def generation(shared_generation: GenerationEngine) -> AsyncIterator[GenerationEngine]:
    """The shared engine; every test must leave it idle."""
    yield shared_generation
    assert await shared_generation.check_integrity(SETTLE_S) == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_scoring(prm_model: str) -> AsyncIterator[ScoringEngine]:
    engine = ScoringEngine(StepHeadSettings(model=prm_model))
    with quiet():
        await engine.start()
    yield engine
    await stop(engine)


@pytest_asyncio.fixture(loop_scope="session")
async def scoring(shared_scoring: ScoringEngine) -> AsyncIterator[ScoringEngine]:
    """The shared engine; every test must leave it idle."""
    yield shared_scoring
    assert await shared_scoring.check_integrity(SETTLE_S) == []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes vLLM take this machine for one with an NVIDIA GPU of a compute capability, at first 90 for 9.0."""

    def of(capability: int) -> None:
        # As in vllm.platforms.cuda.
        dtypes = [torch.bfloat16, torch.float16, torch.float32][capability < 80 :]
        monkeypatch.setattr(type(current_platform), "supported_dtypes", dtypes)
        monkeypatch.setattr(current_platform, "has_device_capability", lambda least: capability >= least)
        monkeypatch.setattr(
            current_platform, "is_device_capability_family", lambda family: capability // 10 == family // 10
        )

    monkeypatch.setattr(current_platform, "is_cpu", lambda: False)
    monkeypatch.setattr(current_platform, "is_cuda", lambda: True)
    of(90)
    return of

"""What `exact` asks of an engine, and where it is refused: no engine is started."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from vllm import AsyncEngineArgs
from vllm.platforms import current_platform

from deployments.engines.arguments import engine_args
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.scoring import scoring_args
from deployments.engines.settings import GeneratorSettings


def exact(model: str, **changed: Any) -> AsyncEngineArgs:
    return engine_args(GeneratorSettings(model=model, exact=True, **changed), runner="generate")


@pytest.mark.usefixtures("gpu")
def test_an_exact_engine_on_a_gpu_has_attention_with_the_same_tiles_for_all_batches(
    generator_model: str, prm_model: str
) -> None:
    assert exact(generator_model).attention_backend == "TRITON_ATTN"
    assert scoring_args(StepHeadSettings(model=prm_model, exact=True)).attention_backend == "TRITON_ATTN"
    assert exact(generator_model, dtype="float32").dtype == "float32"
    for backend in ("TRITON_ATTN", "FLEX_ATTENTION"):
        exact(generator_model, engine_args={"attention_backend": backend})
        named = exact(generator_model, engine_args={"attention_config": {"backend": backend}})
        assert named.attention_backend is None
    assert engine_args(GeneratorSettings(model=generator_model), runner="generate").attention_backend is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"attention_backend": "FLASH_ATTN"},
            "its attention must be TRITON_ATTN or FLEX_ATTENTION, not FLASH_ATTN",
        ),
        (
            {"attention_config": {"backend_per_kind": {"sliding_window": "FLASHINFER"}}},
            "its attention must be TRITON_ATTN or FLEX_ATTENTION, not FLASHINFER, TRITON_ATTN",
        ),
        ({"kv_cache_dtype": "fp8"}, r"its keys and values are quantized \(fp8\)"),
        ({"speculative_config": {"method": "ngram"}}, r"it has a draft model \(speculative_config\)"),
    ],
)
def test_what_would_not_be_exact_on_a_gpu_is_refused(generator_model: str, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineStartError, match=f"exact: true is not possible for .*: {reason}$"):
        exact(generator_model, engine_args=given)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"quantization": "fp8"}, "its weights are quantized"),
        ({"use_mla": True}, "it has latent attention"),
        ({"is_hybrid": True}, "it has layers without attention"),
        ({"get_head_size": lambda: 256}, "it has heads of size 256"),
    ],
)
def test_models_that_would_not_be_exact_on_a_gpu_are_refused(
    gpu: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    generator_model: str,
    changed: dict[str, Any],
    reason: str,
) -> None:
    plain = {"quantization": None, "use_mla": False, "is_hybrid": False, "is_attention_free": False}
    model = Mock(**plain | {"get_head_size": lambda: 128} | changed)
    monkeypatch.setattr(AsyncEngineArgs, "create_model_config", lambda _: model)
    gpu(100)
    with pytest.raises(EngineStartError, match=f"{reason}$"):
        exact(generator_model)


def test_gpus_that_are_not_exact_are_refused(
    gpu: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, generator_model: str
) -> None:
    gpu(75)
    with pytest.raises(EngineStartError, match=r"the GPU's compute capability is below 8.0$"):
        exact(generator_model)
    monkeypatch.setattr(current_platform, "is_cuda", lambda: False)
    with pytest.raises(EngineStartError, match=r"it needs an NVIDIA GPU$"):
        exact(generator_model)


def test_on_a_cpu_exact_asks_for_float32_and_changes_nothing(generator_model: str, tmp_path: Path) -> None:
    assert exact(generator_model) == engine_args(GeneratorSettings(model=generator_model), runner="generate")
    with pytest.raises(EngineStartError, match=r"on a CPU dtype must be float32, not bfloat16$"):
        exact(generator_model, dtype="bfloat16")
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    config = json.loads((Path(generator_model) / "config.json").read_text()) | {"quantization_config": quantized}
    shutil.copytree(generator_model, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineStartError, match=r"its weights are quantized$"):
        exact(str(tmp_path / "model"))

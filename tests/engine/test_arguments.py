"""Arguments for vLLM on a GPU, as far as they can be checked without one: no engine is started."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import AsyncEngineArgs
from vllm.utils.network_utils import get_open_port

from deployments.engines import arguments, lifecycle
from deployments.engines.arguments import engine_args
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.rewards.generative_presets import GenerativeSettings
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.scoring import scoring_args
from deployments.engines.settings import GPU_SHARE, EngineSettings, GeneratorSettings, ReplicaSettings
from deployments.engines.sockets import SocketDirectory


@pytest.mark.parametrize("num_gpus", [0.5, 0.251])
def test_an_engine_on_a_part_of_a_device_is_limited_to_it(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, num_gpus: float
) -> None:
    monkeypatch.setattr(arguments.current_platform, "is_cpu", lambda: False)
    settings = GeneratorSettings(
        model=generator_model, kv_cache_memory_bytes=1 << 30, replicas=ReplicaSettings(num_gpus=num_gpus)
    )
    args = engine_args(settings, runner="generate")
    assert args.gpu_memory_utilization == num_gpus
    assert args.kv_cache_memory_bytes == 1 << 30
    own = settings.model_copy(update={"engine_args": {"gpu_memory_utilization": 0.4}})
    assert engine_args(own, runner="generate").gpu_memory_utilization == 0.4


@pytest.mark.parametrize("num_gpus", [1, 2, None])
def test_an_engine_on_whole_devices_has_vllms_default(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, num_gpus: int | None
) -> None:
    monkeypatch.setattr(arguments.current_platform, "is_cpu", lambda: False)
    settings = GeneratorSettings(model=generator_model, replicas=ReplicaSettings(num_gpus=num_gpus))
    found = engine_args(settings, runner="generate").gpu_memory_utilization
    assert found == GPU_SHARE == AsyncEngineArgs(model=generator_model).gpu_memory_utilization


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_a_step_takes_8192_tokens_and_where_prompts_are_not_cut_a_whole_context(
    generator_model: str, prm_model: str
) -> None:
    written, read = GeneratorSettings(model=generator_model), StepHeadSettings(model=prm_model)
    for args in (engine_args(written, runner="generate"), scoring_args(read)):
        assert (args.max_num_batched_tokens, args.enable_chunked_prefill, args.block_size) == (8192, None, None)
    long = {"max_model_len": 32_768}
    uncut = {"engine_args": {"enable_chunked_prefill": False}}
    own = {"engine_args": {"max_num_batched_tokens": 4096}}
    assert engine_args(written.model_copy(update=long), runner="generate").max_num_batched_tokens == 8192
    assert engine_args(written.model_copy(update=long | uncut), runner="generate").max_num_batched_tokens == 32_768
    assert scoring_args(read.model_copy(update=long)).max_num_batched_tokens == 32_768
    assert scoring_args(read.model_copy(update=own)).max_num_batched_tokens == 4096


def dtype_in_vllm(args: AsyncEngineArgs) -> torch.dtype:
    return args.create_model_config().dtype


def test_on_a_gpu_generator_and_reward_model_of_float32_have_the_same_type(
    gpu: Callable[[int], None], generator_model: str, prm_model: str
) -> None:
    written, read = GeneratorSettings(model=generator_model), StepHeadSettings(model=prm_model)
    for capability, dtype in ((90, torch.bfloat16), (75, torch.float16)):
        gpu(capability)
        assert dtype_in_vllm(engine_args(written, runner="generate")) == dtype
        assert dtype_in_vllm(scoring_args(read)) == dtype
    exact = read.model_copy(update={"dtype": "float32"})
    assert dtype_in_vllm(scoring_args(exact)) == torch.float32


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_a_checkpoint_in_16_bits_keeps_its_type(prm_model: str, tmp_path: Path) -> None:
    config = json.loads((Path(prm_model) / "config.json").read_text()) | {"dtype": "float16"}
    shutil.copytree(prm_model, tmp_path / "prm")
    (tmp_path / "prm" / "config.json").write_text(json.dumps(config))
    assert dtype_in_vllm(scoring_args(StepHeadSettings(model=str(tmp_path / "prm")))) == torch.float16


def test_the_cache_connector_has_no_metrics_among_vllms_own() -> None:
    """LMCache's has a histogram that Ray refuses, so that no engine would start with ``engine_metrics``."""
    from kvstore.connector.lmcache_connector import LMCacheMPConnector

    assert LMCacheMPConnector.build_prom_metrics(None, {}, [], {}) is None


def test_arguments_are_read_by_vllms_own_types(generator_model: str) -> None:
    """YAML 1.1 reads ``8e3`` as a text."""
    given = {
        "max_num_batched_tokens": "8e3",
        "gpu_memory_utilization": "9e-1",
        "download_dir": "1e5",
        "enforce_eager": True,
    }
    args = engine_args(GeneratorSettings(model=generator_model, engine_args=given), runner="generate")
    assert {name: getattr(args, name) for name in given} == given | {
        "max_num_batched_tokens": 8000,
        "gpu_memory_utilization": 0.9,
    }


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "load_format"])
def test_a_boolean_for_another_argument_is_refused(generator_model: str, name: str) -> None:
    """YAML 1.1 reads ``on`` as one, and vLLM takes it for 1."""
    settings = GeneratorSettings(model=generator_model, engine_args={name: True})
    with pytest.raises(EngineStartError, match=f"engine_args: {name} may not be a boolean; .* in quotes"):
        engine_args(settings, runner="generate")


@pytest.mark.parametrize("settings", [GeneratorSettings, GenerativeSettings])
def test_chunks_are_refused_on_a_cpu_where_requests_have_seeds(
    generator_model: str, settings: type[EngineSettings]
) -> None:
    chunked = settings(model=generator_model, engine_args={"enable_chunked_prefill": True})
    with pytest.raises(EngineStartError, match=r"engine_args\.enable_chunked_prefill must stay false on a CPU"):
        engine_args(chunked, runner="generate")


@pytest.mark.parametrize(
    ("family", "own"), [("step_head", {}), ("label_turns", {}), ("generative", {"temperature": 0.0, "samples": 1})]
)
def test_chunks_are_allowed_where_requests_have_no_seeds(prm_model: str, family: str, own: dict[str, Any]) -> None:
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": 128}
    settings = parse_prm({"family": family, "model": prm_model, "engine_args": chunked, **own})
    assert isinstance(settings, RewardModelSettings)
    args = scoring_args(settings)
    assert args.enable_chunked_prefill
    assert args.max_num_batched_tokens == 128


def test_an_engine_starts_where_kubernetes_has_a_service_named_vllm(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_PORT", "tcp://10.96.7.31:8000")
    monkeypatch.setattr(lifecycle, "template_of", lambda settings: None)
    monkeypatch.setattr(lifecycle.AsyncLLM, "from_engine_args", lambda *_, **__: get_open_port())
    settings = GeneratorSettings(model=generator_model)
    sockets = SocketDirectory(tmp_path)
    try:
        assert lifecycle._start(settings, engine_args(settings, runner="generate"), (), sockets) > 0  # type: ignore[operator]
    finally:
        sockets.remove()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("in_actor", "method"), [(False, "spawn"), (True, None)])
def test_on_a_gpu_engines_are_spawned_in_ray_actors_by_vllm_itself(
    monkeypatch: pytest.MonkeyPatch, generator_model: str, tmp_path: Path, in_actor: bool, method: str | None
) -> None:
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lifecycle, "is_in_ray_actor", lambda: in_actor)
    monkeypatch.setattr(lifecycle, "template_of", lambda settings: None)
    monkeypatch.setattr(lifecycle.AsyncLLM, "from_engine_args", lambda *_, **__: os.environ.get(name))
    settings = GeneratorSettings(model=generator_model)
    sockets = SocketDirectory(tmp_path)
    try:
        assert lifecycle._start(settings, engine_args(settings, runner="generate"), (), sockets) == method
    finally:
        sockets.remove()
    assert name not in os.environ
